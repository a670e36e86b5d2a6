"""Window, session and versioned stores of processors."""

from __future__ import annotations

from typing import Any

import pytest

from coopstreams import (
    KeyValueStore,
    Processor,
    Record,
    SessionStore,
    VersionedStore,
    WindowStore,
    key_value_store,
    session_store,
    versioned_store,
    window_store,
)
from coopstreams.testing import Row
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import ProcessingError
from tests.durations import ms
from tests.topology.operators.results import outputs
from tests.topology.operators.test_process import driver_of, each_of


def test_a_window_store_forgets_what_lies_behind_its_retention() -> None:
    class Windows(Processor[str, Any, str, Any]):
        def process(self, record: Record[str, Any]) -> None:
            windows: WindowStore[str, Any] = self.context.store("windows")
            windows.put(record.key, record.value, record.timestamp)
            self.context.forward(
                record.with_value(
                    [
                        list(pair)
                        for pair in windows.fetch(record.key, 0, 1000, reverse=True)
                    ]
                )
            )

    store = window_store(
        "windows", key=serdes.text, value=serdes.json, size=ms(10), retention=ms(20)
    )
    with driver_of(Windows, store) as driver:
        for value, at in ((1, 5), (2, 15), (3, 24), (4, 3)):
            driver.input("in", serdes.text, serdes.json).send("a", value, at)
        assert [record.value for record in driver.outputs()] == [
            [[5, 1]],
            [[15, 2], [5, 1]],
            [[24, 3], [15, 2], [5, 1]],
            [[24, 3], [15, 2], [5, 1]],
        ]


@pytest.mark.parametrize("ranges", [1, 3])
def test_a_session_store_finds_the_sessions_that_a_record_would_meet(
    ranges: int,
) -> None:
    class Runs(Processor[str, Any, str, Any]):
        """Sessions with a gap of 5, by hand."""

        def process(self, record: Record[str, Any]) -> None:
            sessions: SessionStore[str, int] = self.context.store("runs")
            start, end, count = record.timestamp, record.timestamp, 1
            for (first, last), records in sessions.sessions(
                record.key, record.timestamp - 5, record.timestamp + 5
            ):
                start, end, count = min(start, first), max(end, last), count + records
                sessions.put(record.key, None, first, last)
            sessions.put(record.key, count, start, end)
            assert sessions.get(record.key, start, end) == count
            self.context.forward(
                record.with_value([[*at, n] for at, n in sessions.sessions(record.key)])
            )

    store = session_store(
        "runs", key=serdes.text, value=serdes.int64, retention=ms(100)
    )
    with driver_of(Runs, store, ranges=ranges, by_key=True) as driver:
        for at in (10, 14, 30, 19, 22, 26, 131):
            driver.input("in", serdes.text, serdes.json).send("a", 1, at)
        seen = [record.value for record in driver.outputs()]
        assert seen[:4] == [
            [[10, 10, 1]],
            [[10, 14, 2]],
            [[10, 14, 2], [30, 30, 1]],
            [[10, 19, 3], [30, 30, 1]],
        ]
        assert seen[5:] == [
            [[10, 30, 6]],
            [[131, 131, 1]],
        ]  # the first ended more than the retention before the last
        assert [
            (row.key.start_ms, row.key.end_ms, row.value)
            for row in driver.store("runs").all()
        ] == [(131, 131, 1)]


@pytest.mark.parametrize("ranges", [1, 3])
def test_a_versioned_store_knows_what_was(ranges: int) -> None:
    class Prices(Processor[str, Any, str, Any]):
        def process(self, record: Record[str, Any]) -> None:
            prices: VersionedStore[str, int] = self.context.store("prices")
            kept = prices.put(record.key, record.value, record.timestamp)
            past = [prices.as_of(record.key, at) for at in (5, 10, 15, 25)]
            self.context.forward(
                record.with_value([kept, prices.get(record.key), past])
            )

    store = versioned_store(
        "prices", key=serdes.text, value=serdes.int64, history=ms(20)
    )
    with driver_of(Prices, store, ranges=ranges, by_key=True) as driver:
        for value, at in ((1, 10), (3, 20), (2, 15), (None, 25), (9, 4), (4, 50)):
            driver.input("in", serdes.text, serdes.json).send("a", value, at)
        assert [record.value for record in driver.outputs()] == [
            [True, 1, [None, 1, 1, 1]],
            [True, 3, [None, 1, 1, 3]],
            [True, 3, [None, 1, 2, 3]],
            [True, None, [None, 1, 2, None]],
            [False, None, [None, 1, 2, None]],  # 4 is before 25 - 20
            [True, 4, [None, None, None, None]],
        ]
        assert driver.store("prices").as_of("a", 50) == Row("a", 4, 50)


class Signs(Processor[str, int, str, Any]):
    """Asks for the numbers from -2 to the value of the record."""

    def process(self, record: Record[str, int]) -> None:
        numbers: KeyValueStore[int, str] = self.context.store("numbers")
        for number in (-3, -2, -1, 0, 1):
            numbers.put(number, record.key)
        found = [number for number, _ in numbers.range(-2, record.value)]
        self.context.forward(record.with_value(found))


def test_a_range_whose_bounds_are_in_another_order_as_bytes_is_refused() -> None:
    """It was empty: the bytes of negative numbers come after those of the others."""
    store = key_value_store("numbers", key=serdes.int64, value=serdes.text)
    other_way_round = "-2 comes after 2 in the order of the serialised keys"
    with driver_of(Signs, store) as driver:
        numbers = driver.input("in", serdes.text, serdes.json)
        numbers.send("a", -1)
        assert [record.value for record in driver.outputs()] == [[-2, -1]]
        view = driver.store("numbers")
        with pytest.raises(ValueError, match=other_way_round):
            view.range(-2, 2)
        assert [row.key for row in view.range(0, -3)] == [0, 1, -3]
        with pytest.raises(ProcessingError, match=other_way_round):
            numbers.send("a", 2)


class Emptying(Processor[str, int, str, Any]):
    """Deletes all rows at the first of them, and forwards what comes."""

    def process(self, record: Record[str, int]) -> None:
        rows: KeyValueStore[str, int] = self.context.store("rows")
        for number, key in enumerate("abc"):
            rows.put(key, number)
        found = []
        for key, number in rows.all():
            found.append([key, number])
            for other in "abc":
                rows.delete(other)
        self.context.forward(record.with_value([found, list(rows.all())]))


def test_all_is_a_snapshot_in_which_rows_that_are_deleted_meanwhile_still_come() -> (
    None
):
    store = key_value_store("rows", key=serdes.text, value=serdes.int64)
    with driver_of(Emptying, store) as driver:
        driver.input("in", serdes.text, serdes.json).send("k", 1)
        assert [record.value for record in driver.outputs()] == [
            [[["a", 0], ["b", 1], ["c", 2]], []]
        ]


def test_a_version_from_before_1970_is_refused_unless_it_is_before_the_history() -> (
    None
):
    """It was taken, and not found any more once a later one had followed."""

    class Births(Processor[str, int, str, Any]):
        def process(self, record: Record[str, int]) -> None:
            kept = self.context.store("births").put(
                record.key, record.value, record.value
            )
            self.context.forward(record.with_value(kept))

    for history, says in (
        (10, None),
        (1000, 'store "births": a version cannot begin at -5 ms, before 1970'),
    ):
        store = versioned_store(
            "births", key=serdes.text, value=serdes.json, history=ms(history)
        )
        with driver_of(Births, store) as driver:
            births = driver.input("in", serdes.text, serdes.json)
            births.send("a", 0, 20)
            if says is None:
                births.send("a", -5, 20)
                assert driver.outputs()[-1].value is False
            else:
                with pytest.raises(ProcessingError, match=says):
                    births.send("a", -5, 20)


def test_a_processor_sees_the_versions_of_a_table_as_versions() -> None:
    builder = StreamsBuilder("app")
    builder.table(
        "prices", key=serdes.text, value=serdes.int64, history=ms(100), store="prices"
    )
    looked = each_of(
        lambda context, record: record.with_value(
            [context.store("prices").get("a"), context.store("prices").as_of("a", 1)]
        )
    )
    builder.stream("in", key=serdes.text, value=serdes.json).process(
        looked, stores=["prices"], key=serdes.text, value=serdes.json, by_key=False
    ).to("out")
    events = [("prices", "a", 7, 0), ("prices", "a", 8, 2), ("in", "a", 0, 3)]
    assert [value for _, value, _ in outputs(builder.build(), *events)] == [[8, 7]]
