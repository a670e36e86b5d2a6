"""Stores with several values for a key: windows of any length, sessions, versions; and
global tables, which all instances have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.query import local_reads
from coopstreams.query.client import QueryClient
from coopstreams.query.client_requests import (
    EntryFound,
    Found,
    VersionFound,
    WindowFound,
)
from coopstreams.query.range_pages import Query
from coopstreams.query.scan import rows
from coopstreams.state.database import Database
from coopstreams.state.global_table import GlobalRows
from coopstreams.state.memory_engine import Memory
from coopstreams.state.task_state import TaskState
from coopstreams.state.views import KeyRangeView
from coopstreams.topology import serdes
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.errors import QueryError
from coopstreams.topology.failures import Failure
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.row_versions import versions_of
from coopstreams.topology.stores import StoreSpec, session_key
from tests.query.cluster import GLOBAL, HOUR, LIMITS, Cluster, Data, Node
from tests.state.rows import put

KEYS = [f"key-{number}" for number in range(12)]
VISITS: dict[Any, tuple[Any, int]] = {
    (key, start, start + length): (length, start + length)
    for key in KEYS
    for start, length in ((100, 50), (300, 0), (1000, 500))
}
HISTORY = [(10, b"1"), (20, b"2"), (30, None), (40, b"4")]
DATA: Data = {
    "visits": VISITS | {("key-1\x00", 1, 2): (9, 2)},
    "ever": {(key, 5): (number, number) for number, key in enumerate(KEYS)},
    "hours": {(key, hour * HOUR): (hour, hour) for key in KEYS for hour in range(3)},
    "prices": dict.fromkeys(KEYS, (HISTORY, 40))
    | {"gone": ([(5, b"0"), (6, None)], 6)},
}
NAMES = {f"name-{number}": {"n": number} for number in range(30)}


def refused(failure: Failure) -> None:
    raise failure.error


def names(rows: dict[str, Any]) -> GlobalRows:
    table = GlobalRows(GLOBAL)
    values = [GLOBAL.value.serialize(value) for value in rows.values()]
    columns = Columns(
        [key.encode() for key in rows], values, [7] * len(rows), [*range(len(rows))], []
    )
    table.apply(TopicPartition("names", 0), columns, refused)
    return table


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2) as cluster:
        cluster.deal(4, DATA)
        for node in cluster.nodes:
            node.names = names(NAMES)
            node.stream_time = 115
        yield cluster


@pytest.fixture(params=["a", "b"])
def node(cluster: Cluster, request: pytest.FixtureRequest) -> Node:
    return cluster[request.param]


@pytest.fixture
def queries(node: Node) -> Iterator[QueryClient]:
    with QueryClient(node.url, deadline_s=1) as queries:
        yield queries


def ask(node: Node, path: str) -> httpx.Response:
    return httpx.get(f"{node.url}/v1/stores/{path}", trust_env=False, timeout=60)


@pytest.mark.parametrize("key", KEYS)
def test_sessions_come_in_order_from_whoever_is_asked(
    cluster: Cluster, node: Node, key: str
) -> None:
    answer = ask(node, f"visits/sessions/{key}").json()
    assert answer["sessions"] == [
        {"start": 100, "end": 150, "value": 50, "timestamp": 150},
        {"start": 300, "end": 300, "value": 0, "timestamp": 300},
        {"start": 1000, "end": 1500, "value": 500, "timestamp": 1500},
    ]
    assert (answer["key"], answer["more"], answer["owner"]) == (
        key,
        False,
        cluster.owner("visits", (key, 0, 0)).name,
    )


@pytest.mark.parametrize(
    ("first", "last", "starts"),
    [
        (150, 300, [100, 300]),
        (151, 299, []),
        (0, 99, []),
        (0, 100, [100]),
        (1500, 9999, [1000]),
        (1501, 9999, []),
        (1200, 1300, [1000]),
    ],
)
def test_sessions_are_found_that_overlap_a_time_both_ends_inside(
    queries: QueryClient, first: int, last: int, starts: list[int]
) -> None:
    assert [
        session.start for session in queries.sessions("visits", "key-1", first, last)
    ] == starts


def test_sessions_of_a_limit_say_that_there_are_more(node: Node) -> None:
    answer = ask(node, "visits/sessions/key-3?limit=2").json()
    assert ([session["start"] for session in answer["sessions"]], answer["more"]) == (
        [100, 300],
        True,
    )
    assert ask(node, "visits/sessions/nobody").json()["sessions"] == []


def test_a_range_of_sessions_has_both_ends_of_each(queries: QueryClient) -> None:
    found = list(queries.range("visits", "key-1", "key-1\x00", page=2))
    assert [(entry.key, entry.window) for entry in found] == [
        ("key-1\x00", (1, 2)),  # the order is that of the stored bytes: key, end, start
        ("key-1", (100, 150)),
        ("key-1", (300, 300)),
        ("key-1", (1000, 1500)),
    ]
    assert [
        (entry.start, entry.end)
        for entry in queries.range("visits", page=7, reverse=True)
    ] == [entry.window for entry in queries.range("visits")][::-1]


def test_a_window_that_never_ends_has_no_end_and_others_have_theirs(
    node: Node, queries: QueryClient
) -> None:
    assert queries.windows("ever", "key-7") == [WindowFound(5, None, 7, 7)]
    assert '"end":null' in ask(node, "ever/windows/key-7").text
    assert {(entry.key, entry.window) for entry in queries.range("ever")} == {
        (key, (5, None)) for key in KEYS
    }
    assert [(one.start, one.end) for one in queries.windows("hours", "key-7")] == [
        (h * HOUR, (h + 1) * HOUR) for h in range(3)
    ]


@pytest.mark.parametrize("key", KEYS)
def test_the_latest_version_is_the_value_of_a_key(
    cluster: Cluster, node: Node, key: str
) -> None:
    answer = ask(node, f"prices/keys/{key}").json()
    assert (answer["value"], answer["timestamp"], answer["owner"]) == (
        "4",
        40,
        cluster.owner("prices", key).name,
    )


def test_a_row_whose_latest_version_is_a_deletion_is_not_there(
    node: Node, queries: QueryClient
) -> None:
    assert queries.get("prices", "gone") is None
    assert [
        found and found.value
        for found in queries.get_many("prices", ["gone", "key-1", "nobody"])
    ] == [
        None,
        "4",
        None,
    ]
    assert [
        (entry.key, entry.value, entry.timestamp)
        for entry in queries.range("prices", page=5)
    ] == [(key, "4", 40) for key in sorted(KEYS)]
    assert ask(node, "prices/keys/gone").json()["error"] == "KEY_NOT_FOUND"


@pytest.mark.parametrize(
    ("moment", "version"),
    [
        (15, VersionFound(10, 20, "1")),
        (19, VersionFound(10, 20, "1")),
        (20, VersionFound(20, 30, "2")),
        (30, None),
        (39, None),
        (40, VersionFound(40, None, "4")),
        (1 << 62, VersionFound(40, None, "4")),
    ],
)
def test_a_row_is_what_it_was_at_a_moment(
    queries: QueryClient, moment: int, version: VersionFound | None
) -> None:
    assert queries.as_of("prices", "key-5", moment) == version
    assert queries.as_of("prices", "nobody", moment) is None


def test_all_versions_of_a_time_come_in_order_without_deletions(
    node: Node, queries: QueryClient
) -> None:
    one, two, four = (
        VersionFound(10, 20, "1"),
        VersionFound(20, 30, "2"),
        VersionFound(40, None, "4"),
    )
    assert queries.versions("prices", "key-2") == [one, two, four]
    assert queries.versions("prices", "key-2", 0, 19) == [one]
    assert queries.versions("prices", "key-2", 19, 20) == [one, two]
    assert queries.versions("prices", "key-2", 25, 40) == [two, four]
    assert queries.versions("prices", "key-2", 30, 39) == []
    assert ask(node, "prices/versions/key-2").json()["known_since"] == 15


def test_many_versions_come_in_several_answers(
    node: Node, queries: QueryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = []
    for limit, since in ((1, 0), (1, 20), (1, 30), (2, 0), (3, 0)):
        answer = ask(node, f"prices/versions/key-2?from={since}&limit={limit}").json()
        pages.append(
            ([version["since"] for version in answer["versions"]], answer["more"])
        )
    assert pages == [
        ([10], True),
        ([20], True),
        ([40], False),
        ([10, 20], True),
        ([10, 20, 40], False),
    ]
    everything = queries.versions("prices", "key-2")
    monkeypatch.setattr(local_reads, "MOST_BYTES", 1)
    assert ask(node, "prices/versions/key-2").json()["more"]
    assert queries.versions("prices", "key-2") == everything


def test_what_lies_before_the_history_is_forgotten_and_not_called_absent(
    node: Node, queries: QueryClient
) -> None:
    answer = ask(node, "prices/versions/key-5?as_of=14")
    assert (
        answer.status_code,
        answer.json()["error"],
        answer.json()["known_since"],
        answer.json()["retryable"],
    ) == (
        410,
        "FORGOTTEN",
        15,
        False,
    )
    with pytest.raises(QueryError, match="does not know any more") as caught:
        queries.as_of("prices", "key-5", 3)
    assert caught.value.code == "FORGOTTEN"
    assert queries.as_of("prices", "gone", 14) is None, (
        "the deletion was the last change: it holds since"
    )


def test_of_a_past_that_is_ahead_of_its_row_only_what_the_row_knows_is_shown() -> None:
    """A commit between the reads of both, or at-least-once a crash in its middle,
    brought 10 and 20 into the past.
    """
    with Cluster(1) as cluster:
        cluster.deal(
            1,
            {
                "prices": {
                    "ahead": ([(5, b"0"), (10, b"1"), (20, b"2"), (30, b"3")], 30)
                }
            },
        )
        cluster["a"].damage(
            "prices", "ahead", versions_of(serdes.raw).serialize([(10, b"1")])
        )
        with QueryClient(cluster["a"].url) as queries:
            assert queries.versions("prices", "ahead") == [
                VersionFound(5, 10, "0"),
                VersionFound(10, None, "1"),
            ]
            assert queries.as_of("prices", "ahead", 40) == VersionFound(10, None, "1")


def test_a_latest_version_older_than_the_history_still_holds() -> None:
    with Cluster(1) as cluster:
        cluster.deal(2, {"prices": {"old": ([(10, b"1")], 10)}})
        cluster["a"].stream_time = 1_000_000
        with QueryClient(cluster["a"].url) as queries:
            assert queries.as_of("prices", "old", 11) == VersionFound(10, None, "1")
            assert queries.versions("prices", "old") == [VersionFound(10, None, "1")]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("visits/windows/a", "session store: ask /v1/stores/visits/sessions/{key}"),
        ("visits/keys/a", "/v1/stores/visits/sessions/{key}"),
        ("hours/sessions/a", "window store: ask /v1/stores/hours/windows/{key}"),
        ("counts/versions/a", "key-value store: ask /v1/stores/counts/keys/{key}"),
        ("names/windows/a", "global table: ask /v1/stores/names/keys/{key}"),
        (
            "prices/windows/a",
            "versioned store: ask /v1/stores/prices/versions/{key}, keys/{key}",
        ),
        ("prices/versions/a?as_of=1&from=0", "give one or the other"),
        ("prices/versions/a?as_of=yesterday", "write a time as 2026"),
        ("prices/versions/a?prefix=3", "unknown parameter"),
        ("visits/sessions/a?from=2&to=1", "later than"),
    ],
)
def test_what_a_store_of_another_kind_is_asked_is_refused_with_what_can_be_asked(
    node: Node, path: str, says: str
) -> None:
    answer = ask(node, path)
    assert answer.status_code == 400
    assert says in answer.json()["message"]


def test_a_global_table_is_answered_by_whoever_is_asked(
    cluster: Cluster, node: Node, queries: QueryClient
) -> None:
    assert queries.get("names", "name-3") == Found(
        "name-3", {"n": 3}, 7, None, None, node.name, None, None
    )
    assert ask(node, "names/keys/name-3?local=true").json()["owner"] == node.name
    assert queries.get("names", "nobody") is None
    assert [
        found and found.value
        for found in queries.get_many("names", ["name-1", "nobody"])
    ] == [{"n": 1}, None]
    everything = [EntryFound(key, NAMES[key], 7, None) for key in sorted(NAMES)]
    assert list(queries.range("names", page=4)) == everything
    assert list(queries.range("names", page=4, reverse=True)) == everything[::-1]
    assert [entry.key for entry in queries.range("names", "name-1", "name-12")] == [
        "name-1",
        "name-10",
        "name-11",
        "name-12",
    ]
    assert [
        entry.key for entry in queries.range("names", prefix="name-2", page=3)
    ] == sorted(k for k in NAMES if k.startswith("name-2"))
    assert next(store for store in queries.stores() if store["name"] == "names")[
        "approximate_entries"
    ] == len(NAMES)


def test_a_global_table_is_nobodys(node: Node, queries: QueryClient) -> None:
    with pytest.raises(QueryError, match="every instance has all of it"):
        queries.owner("names", "name-1")
    assert all(
        "names" not in task["stores"]
        for instance in queries.metadata()["instances"]
        for task in instance["tasks"]
    )


def test_a_global_table_that_is_still_being_read_is_moving_and_not_empty() -> None:
    with Cluster(2, replace(LIMITS, retry_s=0.0)) as cluster:
        cluster.deal(1, {})
        cluster["a"].names, cluster["b"].names = None, names(NAMES)
        for path in ("names/keys/name-1", "names/keys?key=name-1", "names/range"):
            answer = ask(cluster["a"], path)
            assert (answer.status_code, answer.json()["error"]) == (503, "TASK_MOVING")
            assert "still being read" in answer.json()["message"]
            assert ask(cluster["b"], path).status_code == 200


def test_bytes_that_are_no_history_are_unreadable() -> None:
    with Cluster(1) as cluster:
        cluster.deal(1, {"prices": {"a": (HISTORY, 40)}})
        cluster["a"].damage("prices", "a", b"\x00\x01")
        for path in ("prices/keys/a", "prices/versions/a", "prices/range"):
            assert (
                ask(cluster["a"], path).status_code,
                ask(cluster["a"], path).json()["error"],
            ) == (500, "UNREADABLE")


@given(
    st.dictionaries(
        st.tuples(
            st.text("\x00\x01a", max_size=3).map(str.encode),
            st.integers(0, 70_000),
            st.integers(0, 2**40),
        ),
        st.just(b""),
        max_size=12,
    ),
    st.none() | st.text("\x00\x01a", max_size=3).map(str.encode),
    st.none() | st.text("\x00\x01a", max_size=3).map(str.encode),
    st.booleans(),
    st.none() | st.integers(0, 11),
)
def test_bounds_on_keys_hold_for_sessions_of_keys_that_continue_each_other(
    sessions: dict[tuple[bytes, int, int], bytes],
    first: bytes | None,
    last: bytes | None,
    reverse: bool,
    after: int | None,
) -> None:
    spec = StoreSpec(
        "s", "session", serdes.raw, serdes.raw, retention_ms=2**62, step_ms=1
    )
    database = Database(Memory(), [spec])
    state = TaskState(database, [spec], WHOLE, 1 << 20)
    stored = [
        session_key(key, start, start + length) for key, start, length in sessions
    ]
    for row in stored:
        put(state.stores["s"], row, b"v", 1)
    state.changes()
    state.commit({"s": 1})
    wanted = sorted(
        (
            row
            for row in stored
            if (first is None or row[:-16] >= first)
            and (last is None or row[:-16] <= last)
        ),
        reverse=reverse,
    )
    cursor = None if after is None or after >= len(wanted) else (wanted[after], 0)
    if cursor is not None:
        wanted = wanted[(after or 0) + 1 :]
    view = KeyRangeView(database, spec, [WHOLE])
    assert [
        row.key
        for row in rows(
            view,
            "session",
            0,
            Query(first=first, last=last, reverse=reverse, limit=100, after=cursor),
        )
    ] == wanted
    for key in {key for key, _, _ in sessions}:
        of_key = sorted(
            (start + length, start) for other, start, length in sessions if other == key
        )
        assert [(one.end, one.start) for one in view.sessions(key, 30_000, 60_000)] == [
            x for x in of_key if x[0] >= 30_000 and x[1] <= 60_000
        ]
