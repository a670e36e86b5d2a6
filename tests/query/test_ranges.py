"""Range and window queries: all ranges of all instances, merged in key order, page by
page.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import httpx
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.query import local_reads
from coopstreams.query.backend import NotOpen, OpenView
from coopstreams.query.client import QueryClient
from coopstreams.query.local_reads import LocalReader
from coopstreams.query.parameters import RequestLimits
from coopstreams.query.range_pages import Query
from coopstreams.query.scan import rows
from coopstreams.state.database import Database
from coopstreams.state.engine import Rows
from coopstreams.state.memory_engine import Memory
from coopstreams.state.task_state import TaskState
from coopstreams.state.views import KeyRangeView
from coopstreams.topology import serdes
from coopstreams.topology.errors import QueryError
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.stores import StoreSpec, session_key, window_key
from tests.query.cluster import HOUR, LIMITS, STORES, Cluster, Data, Node, tasks
from tests.state.rows import put

NDJSON = {"accept": "application/x-ndjson"}


def words(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return sorted(
        {"".join(rng.choices("abcé", k=rng.randint(0, 4))) for _ in range(count)}
    )


COUNTS: dict[Any, tuple[Any, int]] = {
    word: (i, 100 + i) for i, word in enumerate(words(1, 300))
}
NUMBERS: dict[Any, tuple[Any, int]] = {n * n * n: (n, n + 1000) for n in range(-30, 30)}
HOURS: dict[Any, tuple[Any, int]] = {
    (word, hour * HOUR): ({"n": hour}, hour * HOUR + 5)
    for word in words(2, 20)
    for hour in range(12)
}
DATA: Data = {
    "counts": COUNTS,
    "numbers": NUMBERS,
    "hours": HOURS,
    "blobs": {bytes([i, j]): (b"", 1) for i in (0, 1, 254, 255) for j in (0, 255)},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, replace(LIMITS, max_entries=500)) as cluster:
        cluster.deal(4, DATA)
        yield cluster


def ask(node: Node, store: str, **parameters: Any) -> httpx.Response:
    return httpx.get(
        f"{node.url}/v1/stores/{store}/range",
        params={k.rstrip("_"): v for k, v in parameters.items()},
        trust_env=False,
        timeout=60,
    )


def all_pages(node: Node, store: str, **parameters: Any) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    while True:
        response = ask(node, store, **parameters)
        assert response.status_code == 200, response.text
        page = response.json()
        assert len(page["entries"]) <= parameters.get("limit", 1000)
        entries += page["entries"]
        if page["cursor"] is None:
            return entries
        assert page["entries"]
        parameters["cursor"] = page["cursor"]


def expected(
    store: str, keep: Any = lambda _: True, reverse: bool = False
) -> list[Any]:
    """Return the keys in the order of their bytes."""
    serde = STORES[store].key

    def order(key: Any) -> bytes:
        return (
            window_key(serde.serialize(key[0]), key[1])
            if store == "hours"
            else serde.serialize(key)
        )

    return sorted((key for key in DATA[store] if keep(key)), key=order, reverse=reverse)


def test_all_entries_come_in_key_order_with_value_timestamp_and_place(
    cluster: Cluster,
) -> None:
    for node in cluster.nodes:
        entries = ask(node, "counts").json()["entries"]
        assert [entry["key"] for entry in entries] == expected("counts")
        assert {
            entry["key"]: (entry["value"], entry["timestamp"]) for entry in entries
        } == COUNTS
        assert all(
            entry["partition"] == cluster.task("counts", entry["key"]).partition
            for entry in entries
        )


def test_the_ranges_that_answered_cover_the_store_and_name_their_owners(
    cluster: Cluster,
) -> None:
    ranges = ask(cluster["b"], "counts", limit=1).json()["ranges"]
    assert [(r["partition"], r["key_range"]) for r in ranges] == [
        (t.partition, str(t.key_range)) for t in tasks(4)
    ]
    owners = {
        (t.partition, str(t.key_range)): name
        for name, owned in cluster.placed.items()
        for t in owned
    }
    assert all(
        r["owner"] == owners[r["partition"], r["key_range"]]
        and r["lag"] == 3
        and r["epoch"] > 0
        for r in ranges
    )


@pytest.mark.ci
@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from("abc"),
    st.sampled_from([3, 7, 50, 500]),
    st.booleans(),
    st.none() | st.sampled_from([*COUNTS, "b", "é", "aaaaaaa"]),
    st.none() | st.sampled_from([*COUNTS, "b", "é", "aaaaaaa"]),
    st.none() | st.sampled_from(["", "a", "ab", "é", "nothing"]),
    st.sampled_from([local_reads.MOST_BYTES, 1, 1000]),
)
def test_pages_of_any_size_are_the_sorted_dict(
    cluster: Cluster,
    name: str,
    limit: int,
    reverse: bool,
    first: str | None,
    last: str | None,
    prefix: str | None,
    most_bytes: int,
) -> None:
    bounds = {"from": first, "to": last, "prefix": prefix}
    asked = {name: value for name, value in bounds.items() if value is not None}
    low, high = (first or "").encode(), None if last is None else last.encode()
    if high is not None and low > high:
        assert ask(cluster[name], "counts", **asked).status_code == 400
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local_reads, "MOST_BYTES", most_bytes)
        entries = all_pages(
            cluster[name], "counts", limit=limit, reverse=str(reverse).lower(), **asked
        )
    wanted = expected(
        "counts",
        lambda k: (
            k.encode() >= low
            and (high is None or k.encode() <= high)
            and k.startswith(prefix or "")
        ),
        reverse,
    )
    assert [entry["key"] for entry in entries] == wanted


def test_numbers_come_in_the_order_of_their_bytes_negative_ones_last(
    cluster: Cluster,
) -> None:
    keys = [entry["key"] for entry in all_pages(cluster["a"], "numbers", limit=7)]
    assert keys == expected("numbers")
    assert keys[:3] == [0, 1, 8]
    assert [
        e["key"]
        for e in ask(cluster["c"], "numbers", from_="-8", to="-1").json()["entries"]
    ] == [-8, -1]
    response = ask(cluster["c"], "numbers", from_="-1", to="1")
    assert (response.status_code, response.json()["error"]) == (400, "BAD_PARAMETER")


def test_prefixes_that_end_in_the_last_byte_have_no_neighbours(
    cluster: Cluster,
) -> None:
    assert [
        e["key"]
        for e in ask(cluster["a"], "blobs", prefix="base64:/w==").json()["entries"]
    ] == [
        "base64:/wA=",
        "base64://8=",
    ]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [5, 500])
def test_windows_of_all_keys_come_by_key_and_start(
    cluster: Cluster, limit: int, reverse: bool
) -> None:
    entries = all_pages(
        cluster["b"], "hours", limit=limit, reverse=str(reverse).lower()
    )
    assert [(e["key"], e["window"]["start"]) for e in entries] == expected(
        "hours", reverse=reverse
    )
    assert all(e["window"]["end"] - e["window"]["start"] == HOUR for e in entries)
    some = all_pages(cluster["c"], "hours", limit=limit, from_="a", to="b", prefix="a")
    assert [(e["key"], e["window"]["start"]) for e in some] == expected(
        "hours", lambda k: k[0].startswith("a")
    )


@given(
    st.dictionaries(
        st.tuples(
            st.text("\x00\x01a", max_size=3).map(str.encode),
            st.integers(0, 2**63 - 1) | st.integers(0, 70_000),
        ),
        st.just(b""),
        max_size=12,
    ),
    st.none() | st.text("\x00\x01a", max_size=3).map(str.encode),
    st.none() | st.text("\x00\x01a", max_size=3).map(str.encode),
    st.none() | st.text("\x00\x01a", max_size=2).map(str.encode),
    st.booleans(),
    st.none() | st.integers(0, 11),
    st.sampled_from(["window", "session"]),
)
def test_bounds_on_keys_hold_for_windows_of_keys_that_continue_each_other(
    windows: dict[tuple[bytes, int], bytes],
    first: bytes | None,
    last: bytes | None,
    prefix: bytes | None,
    reverse: bool,
    after: int | None,
    kind: Literal["window", "session"],
) -> None:
    spec = StoreSpec(
        "w", kind, serdes.raw, serdes.raw, window_ms=1, retention_ms=2**62, step_ms=1
    )
    database = Database(Memory(), [spec])
    state = TaskState(database, [spec], WHOLE, 1 << 20)

    def stored(key: bytes, start: int) -> bytes:
        return (
            window_key(key, start)
            if kind == "window"
            else session_key(key, max(0, start - 5), start)
        )

    for key, start in windows:
        put(state.stores["w"], stored(key, start), b"v", 1)
    state.changes()
    state.commit({"w": 1})
    wanted = sorted(
        (
            stored(key, start)
            for key, start in windows
            if (first is None or key >= first)
            and (last is None or key <= last)
            and (prefix is None or key.startswith(prefix))
        ),
        reverse=reverse,
    )
    cursor = None if after is None or after >= len(wanted) else (wanted[after], 0)
    if cursor is not None:
        wanted = wanted[(after or 0) + 1 :]
    query = Query(
        first=first, last=last, prefix=prefix, reverse=reverse, limit=100, after=cursor
    )
    assert [
        row.key for row in rows(KeyRangeView(database, spec, [WHOLE]), kind, 0, query)
    ] == wanted


def test_large_rows_come_in_pages_that_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_reads, "MOST_BYTES", 10_000)
    with Cluster(2) as cluster:
        cluster.deal(
            2, {"blobs": {b"%03d" % number: (b"x" * 1000, 1) for number in range(200)}}
        )
        page = ask(cluster["a"], "blobs").json()
        assert 0 < len(page["entries"]) <= 2 * 2 * 10
        assert page["cursor"] is not None
        assert [entry["key"] for entry in all_pages(cluster["b"], "blobs")] == [
            f"{number:03}" for number in range(200)
        ]
        lines = httpx.get(
            f"{cluster['a'].url}/v1/stores/blobs/range", headers=NDJSON, trust_env=False
        ).text.splitlines()
        assert (len(lines), orjson.loads(lines[-1])) == (
            201,
            {"cursor": None, "count": 200},
        )


def test_large_windows_come_in_answers_that_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_reads, "MOST_BYTES", 10_000)
    with Cluster(1) as cluster:
        cluster.deal(
            1, {"hours": {("k", hour * HOUR): ("x" * 998, hour) for hour in range(50)}}
        )
        url = f"{cluster['a'].url}/v1/stores/hours/windows/k"
        answer = httpx.get(url, trust_env=False, timeout=60).json()
        assert [window["timestamp"] for window in answer["windows"]] == list(range(10))
        assert answer["more"]
        with QueryClient(cluster["a"].url) as client:
            assert [
                window.timestamp for window in client.windows("hours", "k")
            ] == list(range(50))


def test_a_scan_of_the_windows_of_a_key_reads_none_of_longer_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = StoreSpec(
        "w", "window", serdes.raw, serdes.raw, window_ms=1, retention_ms=2**40
    )
    database = Database(Memory(), [spec])
    state = TaskState(database, [spec], WHOLE, 1 << 20)
    for key in (b"k", *(b"k%d" % number for number in range(1000))):
        put(state.stores["w"], window_key(key, 1_700_000_000_000), b"v", 1)
    state.changes()
    state.commit({"w": 1})
    read, scan = list[bytes](), database.scan

    def counted(*which: Any, **how: Any) -> Rows:
        for row in scan(*which, **how):
            read.append(row[0])
            yield row

    monkeypatch.setattr(database, "scan", counted)
    for reverse in (False, True):
        query = Query(first=b"k", last=b"k", reverse=reverse, limit=10)
        found = rows(KeyRangeView(database, spec, [WHOLE]), "window", 0, query)
        assert [row.key for row in found] == [window_key(b"k", 1_700_000_000_000)]
    assert len(read) == 2


def test_the_length_of_a_bound_costs_a_scan_of_windows_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = StoreSpec(
        "w", "window", serdes.raw, serdes.raw, window_ms=1, retention_ms=2**40
    )
    database = Database(Memory(), [spec])
    state = TaskState(database, [spec], WHOLE, 1 << 20)
    put(state.stores["w"], window_key(b"k", 1_700_000_000_000), b"v", 1)
    state.changes()
    state.commit({"w": 1})
    read, windows_of = list[bytes](), database.windows_of

    def counted(store: str, key: bytes, *times: int, **how: Any) -> Rows:
        read.append(key)
        return windows_of(store, key, *times, **how)

    monkeypatch.setattr(database, "windows_of", counted)
    found = rows(
        KeyRangeView(database, spec, [WHOLE]),
        "window",
        0,
        Query(last=b"k" * 100_000, limit=10),
    )
    assert [row.key for row in found] == [window_key(b"k", 1_700_000_000_000)]
    assert read == []


def test_local_gives_only_what_the_instance_has_itself(cluster: Cluster) -> None:
    pieces = [ask(node, "counts", local="true").json() for node in cluster.nodes]
    assert sorted(
        entry["key"] for piece in pieces for entry in piece["entries"]
    ) == sorted(COUNTS)
    assert {r["owner"] for r in pieces[0]["ranges"]} == {"a"}


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"limit": "0"}, "from 1 to 500"),
        ({"limit": "501"}, "from 1 to 500"),
        ({"limit": "ten"}, "from 1 to 500"),
        ({"cursor": "!"}, "cursor"),
        ({"reverse": "down"}, '"true" or "false"'),
        ({"form": "a"}, 'did you mean "from"'),
        ({"from_": "b", "to": "a"}, "comes after"),
        ({"query": "00"}, "unknown parameter"),
    ],
)
def test_what_a_range_cannot_be_is_refused(
    cluster: Cluster, parameters: dict[str, str], says: str
) -> None:
    response = ask(cluster["a"], "counts", **parameters)
    assert (response.status_code, response.json()["retryable"]) == (400, False)
    assert says in response.json()["message"]


def lines(node: Node, store: str, query: str = "") -> list[dict[str, Any]]:
    response = httpx.get(
        f"{node.url}/v1/stores/{store}/range{query}",
        headers=NDJSON,
        trust_env=False,
        timeout=60,
    )
    assert response.headers["content-type"].startswith("application/x-ndjson")
    return [orjson.loads(line) for line in response.content.splitlines()]


@pytest.mark.ci
def test_ndjson_streams_everything_over_many_pages_and_says_that_it_is_all() -> None:
    many: Data = {"counts": {f"{i:05}": (i, i) for i in range(2500)}}
    with Cluster(3, replace(LIMITS, entries=100)) as cluster:
        cluster.deal(2, many)
        found = lines(cluster["b"], "counts")
        assert [line["key"] for line in found[:-1]] == sorted(many["counts"])
        assert found[-1] == {"cursor": None, "count": 2500}
        part = lines(cluster["a"], "counts", "?limit=250&from=00100")
        assert [line["key"] for line in part[:-1]] == sorted(many["counts"])[100:350]
        rest = lines(cluster["c"], "counts", f"?cursor={part[-1]['cursor']}")
        assert (part[-1]["count"], rest[0]["key"], rest[-1]["count"]) == (
            250,
            "00350",
            2150,
        )
        exact = lines(cluster["c"], "counts", "?limit=100&from=02400")
        assert exact[-1] == {"cursor": None, "count": 100}


def test_a_scan_that_takes_too_long_is_ended_in_its_thread_too() -> None:
    with Cluster(1) as cluster:
        cluster.deal(1, {"counts": {f"{i:05}": (i, i) for i in range(1000)}})
        with pytest.raises(QueryError, match="ask for less") as caught:
            LocalReader(cluster["a"]).part(
                cluster["a"].stores()["counts"], Query(limit=1000), -1.0
            )
        assert (caught.value.code, caught.value.status, caught.value.retryable) == (
            "TIMED_OUT",
            504,
            True,
        )


def test_a_request_that_takes_too_long_says_so() -> None:
    with Cluster(1, RequestLimits(request_s=0.001)) as cluster:
        cluster.deal(1, {"counts": {f"{i:05}": (i, i) for i in range(3000)}})
        response = ask(cluster["a"], "counts", limit=3000)
        assert (response.status_code, response.json()["error"]) == (504, "TIMED_OUT")


POISON = b"\xff\xfe"
"""A key as a topic may have it, which is no text, and not 8 bytes."""


@pytest.mark.parametrize(
    ("store", "keys", "value"),
    [
        ("counts", ["a", POISON], 1),
        ("numbers", [7, POISON], "n"),
        ("prices", ["a", POISON], [(3, b"v")]),
        ("hours", [("a", HOUR), (POISON, HOUR)], 1),
        ("ever", [("a", 5), (POISON, 5)], 1),
        ("visits", [("a", 5, 9), (POISON, 5, 9)], 1),
    ],
)
def test_a_key_that_cannot_be_read_hides_no_other_entry(
    store: str, keys: list[Any], value: Any
) -> None:
    with Cluster(2) as cluster:
        cluster.deal(2, {store: dict.fromkeys(keys, (value, 3))})
        for node in cluster.nodes:
            good, bad = all_pages(node, store, limit=1)
            assert lines(node, store)[:-1] == [good, bad]
            assert good["key"] == (
                keys[0][0] if isinstance(keys[0], tuple) else keys[0]
            )
            assert "key_error" not in good
            assert bad["key"] == "base64://4="
            assert (
                rf"serde {STORES[store].key} cannot read b'\xff\xfe'"
                in bad["key_error"]
            )
            assert [bad[name] for name in ("value", "timestamp")] == [
                good[name] for name in ("value", "timestamp")
            ]
            assert bad.get("window") == good.get("window")
            with QueryClient(node.url) as queries:
                one, other = queries.range(store)
            assert (one.key_error, other.key, other.key_error) == (
                None,
                bad["key"],
                bad["key_error"],
            )


def test_an_empty_store_is_an_empty_answer(cluster: Cluster) -> None:
    assert ask(cluster["a"], "points").json()["entries"] == []
    assert lines(cluster["a"], "points") == [{"cursor": None, "count": 0}]


def test_a_range_of_which_a_part_is_not_open_is_moving_not_shorter() -> None:
    with Cluster(3) as cluster:
        cluster.deal(2, DATA)
        task, owner = cluster.task("counts", "a"), cluster.owner("counts", "a")
        owner.close(task)
        owner.pending[task] = "restoring"
        for node in cluster.nodes:
            response = ask(node, "counts")
            assert (response.status_code, response.json()["error"]) == (
                503,
                "TASK_MOVING",
            )
            assert "no key range has the hashes" in response.json()["message"]
            assert response.json()["message"].endswith(f": task {task} is restoring")
            assert (
                httpx.get(
                    f"{node.url}/v1/stores/counts/range",
                    headers=NDJSON,
                    trust_env=False,
                    timeout=60,
                ).status_code
                == 503
            )


def test_a_range_that_two_instances_have_open_is_moving_not_doubled() -> None:
    with Cluster(2) as cluster:
        cluster.deal(2, DATA)
        task, other = cluster.task("counts", "a"), cluster.other("counts", "a")
        other.open(task, DATA)
        for node in cluster.nodes:
            response = ask(node, "counts")
            assert (response.status_code, response.json()["error"]) == (
                503,
                "TASK_MOVING",
            )
            assert "overlaps" in response.json()["message"]


def test_a_stream_that_is_cut_off_by_a_move_ends_with_the_error_and_the_place_to_go_on_from() -> (
    None
):
    class Leaving(Node):
        """Closes its tasks at the request for the fourth page."""

        asked = 0

        def views(self, store: str) -> Sequence[OpenView | NotOpen]:
            self.asked += 1
            if self.asked == 4:
                for task in list(self.openings):
                    self.close(task)
            return super().views(store)

    many: Data = {"counts": {f"{i:05}": (i, i) for i in range(1000)}}
    with Cluster(2, replace(LIMITS, entries=100, retry_s=0.0), kind=Leaving) as cluster:
        cluster.deal(2, many)
        found = lines(cluster["a"], "counts")
        end = found.pop()
        assert (end["error"], end["retryable"], end["count"], len(found)) == (
            "TASK_MOVING",
            True,
            300,
            300,
        )
        for node in cluster.nodes:
            for task in cluster.placed[node.name]:
                node.open(task, many)
        rest = lines(cluster["b"], "counts", f"?cursor={end['cursor']}")
        assert [line["key"] for line in found + rest[:-1]] == sorted(many["counts"])


def windows(node: Node, key: str, query: str = "") -> httpx.Response:
    return httpx.get(
        f"{node.url}/v1/stores/hours/windows/{key}{query}", trust_env=False, timeout=60
    )


def test_the_windows_of_a_key_come_in_the_order_of_their_starts(
    cluster: Cluster,
) -> None:
    key = next(key for key, _ in HOURS if key)
    for node in cluster.nodes:
        answer = windows(node, key).json()
        assert answer["windows"] == [
            {
                "start": h * HOUR,
                "end": (h + 1) * HOUR,
                "value": {"n": h},
                "timestamp": h * HOUR + 5,
            }
            for h in range(12)
        ]
        assert (answer["key"], answer["more"], answer["owner"]) == (
            key,
            False,
            cluster.owner("hours", (key, 0)).name,
        )
        some = windows(node, key, f"?from={2 * HOUR}&to={4 * HOUR}").json()
        assert [window["start"] // HOUR for window in some["windows"]] == [2, 3, 4]
        few = windows(node, key, f"?from={HOUR + 1}&limit=3").json()
        assert (
            [window["start"] // HOUR for window in few["windows"]],
            few["more"],
        ) == ([2, 3, 4], True)


def test_a_key_without_windows_has_none(cluster: Cluster) -> None:
    answer = windows(cluster["b"], "unheard-of")
    assert (answer.status_code, answer.json()["windows"], answer.json()["owner"]) == (
        200,
        [],
        cluster.owner("hours", ("unheard-of", 0)).name,
    )


@pytest.mark.parametrize(
    "query",
    [
        "?from=a",
        "?from=-1",
        "?from=2&to=1",
        "?to=9223372036854775808",
        "?cursor=x",
        "?limit=501",
    ],
)
def test_times_that_are_none_are_refused(cluster: Cluster, query: str) -> None:
    assert windows(cluster["a"], "a", query).status_code == 400
