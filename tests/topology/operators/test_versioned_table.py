"""Versioned tables: rows have a history, and the latest is the latest by timestamp."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.state import layout
from coopstreams.state.database import Database
from coopstreams.state.engine import Change
from coopstreams.state.memory_engine import Memory
from coopstreams.state.task_state import TaskState
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import SerdeError, TopologyError
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.row_versions import (
    Held,
    latest_value,
    put_version,
    value_at,
    versions_of,
    versions_within,
)
from coopstreams.topology.serde import Serde
from coopstreams.topology.stores import StoreSpec, split_window_key, window_key
from tests.durations import ms
from tests.topology.operators.results import Event, outputs

HOUR_MS = 3_600_000


def joined(
    *events: Event,
    grace: int | None = None,
    left: bool = False,
    ranges: int = 1,
    history: int = 100,
) -> list[tuple[Any, Any, int]]:
    """Return the outputs of a stream-table join after these events: (topic, key, value,
    timestamp).
    """
    builder = StreamsBuilder("app")
    orders = builder.stream("orders", key=serdes.text, value=serdes.json)
    prices = builder.table(
        "prices", key=serdes.text, value=serdes.json, history=ms(history)
    )

    def pair(order: Any, price: Any) -> list[Any]:
        return [order, price]

    method: Any = orders.left_join if left else orders.join
    method(
        prices,
        pair,
        value=serdes.json,
        grace=None if grace is None else ms(grace),
        name="priced",
    ).to("out")
    return outputs(builder.build(), *events, ranges=ranges)


@pytest.mark.parametrize("ranges", [1, 4])
def test_a_stream_record_meets_the_row_as_it_was_at_its_own_time(ranges: int) -> None:
    events: list[Event] = [
        ("prices", "a", 1, 10),
        ("prices", "a", 2, 20),
        ("orders", "a", "x", 15),
        ("orders", "a", "y", 25),
        ("orders", "a", "z", 5),
    ]
    assert joined(*events, ranges=ranges) == [("a", ["x", 1], 15), ("a", ["y", 2], 25)]


def test_what_lies_before_the_history_is_forgotten() -> None:
    events: list[Event] = [
        ("prices", "a", 1, 10),
        ("prices", "a", 2, 200),
        ("orders", "a", "x", 50),
        ("prices", "a", 3, 60),
        ("orders", "a", "y", 150),
    ]
    assert joined(*events, left=True) == [("a", ["x", None], 50), ("a", ["y", 1], 150)]


@pytest.mark.parametrize("ranges", [1, 4])
def test_with_grace_a_record_waits_for_late_rows(ranges: int) -> None:
    events: list[Event] = [
        ("orders", "a", "x", 10),
        ("prices", "a", 1, 9),
        ("orders", "b", "w", 14),
        ("orders", "b", "y", 15),
        ("prices", "b", 2, 1),
    ]
    assert joined(*events, grace=5, ranges=ranges) == [("a", ["x", 1], 10)]


def test_with_grace_a_late_record_is_joined_at_once_and_others_by_time_and_key() -> (
    None
):
    events: list[Event] = [("prices", key, 1, 0) for key in "ab"]
    events += [
        ("orders", "b", 1, 20),
        ("orders", "a", 2, 20),
        ("orders", "a", 3, 10),
        ("orders", "a", 4, 30),
    ]
    assert joined(*events, grace=5) == [
        ("a", [3, 1], 10),
        ("a", [2, 1], 20),
        ("b", [1, 1], 20),
    ]


@pytest.mark.parametrize("ranges", [1, 4])
def test_with_grace_a_left_join_passes_a_record_without_a_key_on_at_once(
    ranges: int,
) -> None:
    events: list[Event] = [("orders", "a", "x", 10), ("orders", None, "y", 10)]
    assert joined(*events, grace=5, left=True, ranges=ranges) == [
        (None, ["y", None], 10)
    ]


def test_grace_needs_a_history() -> None:
    builder = StreamsBuilder("app")
    orders = builder.stream("orders", key=serdes.text, value=serdes.json)
    with pytest.raises(TopologyError, match="a table without history does not know"):
        orders.join(
            builder.table("prices", key=serdes.text, value=serdes.json),
            max,
            grace=ms(5),
        )
    with pytest.raises(
        TopologyError, match="nor longer than the table's history of 10 ms"
    ):
        orders.join(
            builder.table("old", key=serdes.text, value=serdes.json, history=ms(10)),
            max,
            grace=ms(11),
        )


def test_streams_see_the_past_change_and_tables_do_not() -> None:
    builder = StreamsBuilder("app")
    table = builder.table(
        "in", key=serdes.text, value=serdes.int64, store="kept", history=ms(100)
    )
    table.to_stream().to("updates")
    table.group_by(
        lambda _, value: ("all", value), key=serdes.text, value=serdes.int64
    ).count().to_stream().to("count")
    with TopologyTestDriver(builder.build(), ranges=2) as driver:
        topic = driver.input("in", serdes.text, serdes.int64)
        for value, timestamp in ((1, 50), (2, 40), (3, 60)):
            topic.send("a", value, timestamp)
        assert [
            record.value
            for record in driver.output("updates", serdes.text, serdes.int64).records()
        ] == [1, 2, 3]
        assert driver.output("count", serdes.text, serdes.int64).latest() == {"all": 1}
        store = driver.store("kept")
        assert [
            store.as_of("a", at) and store.as_of("a", at).value  # type: ignore[union-attr]
            for at in (39, 40, 50, 99)
        ] == [None, 2, 1, 3]
        assert store.get("a") == 3


@pytest.mark.parametrize("ranges", [1, 4])
@pytest.mark.parametrize("store", [None, "even"])
def test_a_filter_tells_of_each_record_that_does_not_pass_also_of_a_row_that_never_was(
    store: str | None, ranges: int
) -> None:
    builder = StreamsBuilder("app")
    table = builder.table("in", key=serdes.text, value=serdes.int64, history=ms(100))
    table.filter(lambda _, value: value % 2 == 0, store=store).to_stream().to("out")
    with TopologyTestDriver(builder.build(), ranges) as driver:
        for value, timestamp in ((1, 50), (3, 40), (None, 45), (2, 60), (5, 55)):
            driver.input("in", serdes.text, serdes.int64).send("a", value, timestamp)
        found = driver.output("out", serdes.text, serdes.int64).records()
        assert [(record.value, record.timestamp) for record in found] == [
            (None, 50),
            (None, 40),
            (None, 45),
            (2, 60),
            (None, 55),
        ]


def test_a_view_in_a_store_of_its_own_has_no_versions_and_so_no_past() -> None:
    """Operators below take each row as the latest, as the store does; directly below
    the table they would drop this one.
    """
    builder = StreamsBuilder("app")
    table = builder.table(
        "in", key=serdes.text, value=serdes.int64, store="rows", history=ms(100)
    )
    for name, view in (
        ("kept", table.filter(lambda _, value: value > 0, store="view")),
        ("seen", table.filter(lambda _, value: value > 0)),
    ):
        view.group_by(
            lambda _, value: ("all", value), key=serdes.text, value=serdes.int64
        ).reduce(
            lambda total, value: total + value,
            lambda total, value: total - value,
            store=name,
        )
    with TopologyTestDriver(builder.build(), ranges=2) as driver:
        for value, timestamp in ((1, 50), (7, 40)):
            driver.input("in", serdes.text, serdes.int64).send("a", value, timestamp)
        assert (driver.store("view").get("a"), driver.store("rows").get("a")) == (7, 1)
        assert (driver.store("kept").get("all"), driver.store("seen").get("all")) == (
            7,
            1,
        )


@given(
    st.lists(st.tuples(st.integers(0, 30), st.none() | st.integers(0, 5)), min_size=1),
    st.integers(0, 30),
)
def test_a_history_in_any_order_is_the_history_in_order(
    puts: list[tuple[int, int | None]], at: int
) -> None:
    rows = Rows()
    newest = -1
    for timestamp, value in puts:
        assert rows.put(b"k", timestamp, value) == (timestamp >= newest)
        newest = max(newest, timestamp)
    ordered = dict(puts)
    before = [time for time in sorted(ordered) if time <= at]
    assert rows.at(b"k", at) == (ordered[before[-1]] if before else None)
    assert latest_value(rows.latest.load(b"k").value) == ordered[max(ordered)]
    assert rows.all(b"k") == sorted(ordered.items())


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"k", b"kk"]),
            st.integers(0, 30),
            st.none() | st.integers(0, 5),
        ),
        min_size=1,
    ),
    st.integers(0, 20),
)
def test_versions_written_before_there_was_a_store_for_the_past_are_brought_into_it(
    puts: list[tuple[bytes, int, int | None]], in_one_row: int
) -> None:
    rows, expected = Rows(), dict[bytes, dict[int, int | None]]()
    for key, timestamp, value in puts[:in_one_row]:
        expected.setdefault(key, {})[timestamp] = value
    for key, versions in expected.items():
        entry = rows.latest.load(key)
        entry.value, entry.timestamp = sorted(versions.items()), max(versions)
        rows.latest.touch(key, entry)
    rows.commit()
    for key, timestamp, value in puts[in_one_row:]:
        rows.put(key, timestamp, value)
        expected.setdefault(key, {})[timestamp] = value
        assert rows.at(key, timestamp) == value
    rows.commit()
    for key, versions in expected.items():
        assert rows.all(key) == sorted(versions.items())
        for at in range(32):
            before = [time for time in versions if time <= at]
            assert rows.at(key, at) == (versions[max(before)] if before else None)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.none() | st.integers(0, 5)), max_size=8),
    st.lists(
        st.tuples(st.integers(0, 30), st.none() | st.integers(0, 5)),
        min_size=1,
        max_size=12,
    ),
    st.data(),
)
def test_records_that_are_repeated_mend_a_past_of_which_a_part_was_written(
    done: list[tuple[int, int | None]],
    repeated: list[tuple[int, int | None]],
    data: st.DataObject,
) -> None:
    """At-least-once, a crash in the middle of a commit: a changelog has the first rows
    of a batch, in their order.
    """
    rows, crashed = Rows(), Rows()
    for each in rows, crashed:
        for timestamp, value in done:
            each.put(b"k", timestamp, value)
        each.commit()
    for timestamp, value in repeated:
        crashed.put(b"k", timestamp, value)
    written = crashed.commit().get("rows-history", [])
    rows.take_past(written[: data.draw(st.integers(0, len(written)))])
    for timestamp, value in repeated:
        rows.put(b"k", timestamp, value)
    assert rows.all(b"k") == sorted(dict([*done, *repeated]).items())


def test_an_update_of_a_row_with_a_long_history_writes_two_versions() -> None:
    rows = Rows()
    for timestamp in range(1000):
        rows.put(b"k", timestamp, timestamp)
    rows.commit()
    rows.put(b"k", 1000, "new")
    assert rows.commit() == {
        "rows": [(b"k", [(1000, "new")])],
        "rows-history": [(window_key(b"k", 1000), [(999, 999)])],
    }
    assert [rows.at(b"k", at) for at in (0, 500, 999, 1000)] == [0, 500, 999, "new"]


def test_versions_that_ended_before_the_history_are_deleted_with_later_updates() -> (
    None
):
    rows = Rows(history_ms=80)
    for timestamp in range(0, 1000, 5):
        rows.put(b"k", timestamp, timestamp, oldest=timestamp - 80)
        rows.put(b"kk", timestamp % 20, "another", oldest=-1)
        rows.commit()
    assert rows.all(b"k") == [
        (timestamp, timestamp) for timestamp in range(905, 1000, 5)
    ]
    assert len(rows.all(b"kk")) == 4
    assert [rows.at(b"k", at) for at in (915, 919, 995)] == [915, 915, 995]


def test_versions_that_are_deleted_need_not_be_readable() -> None:
    """Their class may be another one by now, or the registry of their schema be away."""
    rows = Rows(history_ms=80)
    rows.put(b"k", 0, "an old form", oldest=-80)
    rows.put(b"k", 10, 1, oldest=-70)
    rows.commit()
    rows.damage_past(b"k", 10)
    rows.put(b"k", 200, 2, oldest=120)
    rows.commit()
    written = rows.put(b"k", 300, 3, oldest=220) and rows.commit()
    assert written == {
        "rows": [(b"k", [(300, 3)])],
        "rows-history": [
            (window_key(b"k", 10), None),
            (window_key(b"k", 300), [(200, 2)]),
        ],
    }


@pytest.mark.parametrize(
    "row",
    [
        b"a plain text that is long enough",
        b"short",
        b"\0" * 11,
        b"\0" * 8 + b"\xff" * 3 + b"\xfe",
    ],
)
def test_a_row_that_has_no_versions_is_refused_and_not_taken_for_one(
    row: bytes,
) -> None:
    with pytest.raises(SerdeError, match="versions"):
        versions_of(serdes.raw).deserialize(row)


def test_what_records_since_the_last_commit_may_ask_for_again_is_not_deleted() -> None:
    """At-least-once, a crash may leave the changelog ahead, and they are repeated."""
    rows = Rows(history_ms=80)
    for timestamp in range(0, 100, 10):
        rows.put(b"k", timestamp, timestamp, oldest=timestamp - 80)
    rows.commit()
    for timestamp in range(100, 1000, 10):
        rows.put(b"k", timestamp, timestamp, oldest=timestamp - 80)
    rows.commit()
    assert rows.all(b"k")[0] == (10, 10)


@dataclass
class Narrow:
    cents: int


@dataclass
class Wide:
    cents: int
    currency: str = "EUR"


@pytest.mark.parametrize("commits", [False, True])
def test_versions_keep_the_fields_that_a_program_without_them_moves(
    commits: bool,
) -> None:
    database = Database(Memory(), Rows().specs)
    newer = Rows(value=serdes.json(Wide), database=database)
    newer.put(b"k", 10, Wide(1, "USD"))
    newer.put(b"k", 20, Wide(2, "USD"))
    newer.put(b"late", 20, Wide(3, "USD"))
    newer.commit()
    older = Rows(value=serdes.json(Narrow), database=database)
    older.put(b"late", 15, Narrow(4))  # the latest stays, and is written again
    if commits:
        older.commit()
    older.put(b"k", 30, Narrow(5))
    older.put(b"late", 40, Narrow(6))
    older.commit()
    newer = Rows(value=serdes.json(Wide), database=database)
    assert newer.all(b"k") == [
        (10, Wide(1, "USD")),
        (20, Wide(2, "USD")),
        (30, Wide(5)),
    ]
    assert newer.all(b"late") == [(15, Wide(4)), (20, Wide(3, "USD")), (40, Wide(6))]


class Rows:
    """A versioned store over a database in memory."""

    def __init__(
        self,
        history_ms: int = HOUR_MS,
        value: Serde[Any] = serdes.json,
        database: Database | None = None,
    ) -> None:
        spec = StoreSpec(
            "rows", "key_value", serdes.raw, versions_of(value), history_ms=history_ms
        )
        self._history_ms = history_ms
        assert spec.past is not None
        self.specs = [spec, spec.past]
        self._database = database or Database(Memory(), self.specs)
        self._state = TaskState(self._database, self.specs, WHOLE, 1 << 20)
        self._read = spec.value.deserialize
        self.latest = self._state.stores["rows"]
        self._past: Any = self._state.stores["rows-history"]

    def put(self, key: bytes, timestamp: int, value: Any, oldest: int = -1) -> bool:
        """Insert a version; return whether it is the latest."""
        entry = self.latest.load(key)
        latest = put_version(
            entry, self._past, key, timestamp, value, oldest, self._history_ms
        )
        self.latest.touch(key, entry)
        return latest

    def at(self, key: bytes, timestamp: int) -> Any:
        """Return the value of a key at a moment."""
        return value_at(self.latest.load(key).value, self._past, key, timestamp, 0)

    def all(self, key: bytes) -> list[tuple[int, Any]]:
        """Return all versions of a key, and check that each ends where the next begins."""
        past = [
            (split_window_key(at)[1], entry.value)
            for at, entry in self._past.fetch(key, 0, HOUR_MS)
        ]
        latest = self.latest.load(key).value
        ends, versions = (
            [end for end, _ in past],
            [version for _, one in past for version in one] + latest,
        )
        assert ends == [since for since, _ in versions[1 : len(past) + 1]]
        return list(versions)

    def take_past(self, written: Iterable[tuple[bytes, Any]]) -> None:
        """Restore these records of the changelog of the past, as `commit` returns them."""
        for changelog_key, versions in written:
            self._past.put(changelog_key, versions, split_window_key(changelog_key)[1])
        self.commit()

    def damage_past(self, key: bytes, end: int) -> None:
        """Replace the value of a committed version that has ended by bytes that its
        serde cannot read.
        """
        at = layout.database_key(key, window_key(key, end))
        self._database.write(
            [
                Change(
                    layout.family_of("rows-history"),
                    [at],
                    [layout.TIMESTAMP.pack(end) + b"?"],
                )
            ],
            {},
        )
        self._past.discard()

    def commit(self) -> dict[str, list[tuple[bytes, Any]]]:
        """Commit; return what was written, by store."""
        batches = self._state.changes()
        self._state.commit({"rows": 1, "rows-history": 1})
        return {
            batch.store: [
                (key, value and self._read(value))
                for key, value in zip(batch.keys, batch.values, strict=True)
            ]
            for batch in batches
        }


@given(
    st.dictionaries(st.integers(0, 30), st.none() | st.integers(0, 5), max_size=8),
    st.integers(0, 32),
    st.integers(0, 32),
    st.integers(0, 32),
)
def test_versions_of_a_time_are_those_that_any_moment_of_it_shows(
    puts: dict[int, int | None], first: int, last: int, oldest: int
) -> None:
    versions: list[tuple[int, Any]] = sorted(puts.items())
    found = versions_within(versions, min(first, last), max(first, last), oldest)
    moments = [
        at
        for at in range(min(first, last), max(first, last) + 1)
        if at >= oldest or at >= max(puts, default=0)
    ]
    if versions and not moments:
        assert found is None
        return
    times = sorted(puts)
    held = {
        max(time for time in times if time <= at)
        for at in moments
        if any(time <= at for time in times)
    }
    ends = dict(zip(times, [*times[1:], None], strict=True)) if times else {}
    assert found == [
        Held(time, ends[time], puts[time])
        for time in sorted(held)
        if puts[time] is not None
    ]
