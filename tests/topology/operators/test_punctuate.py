"""Punctuations: a processor's functions called at intervals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams import (
    KeyValueStore,
    Processor,
    ProcessorContext,
    Record,
    key_value_store,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.compile.punctuations import PunctuationQueue, Schedule
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import ProcessingError, TopologyError
from tests.durations import ms

AnyContext = ProcessorContext[Any, Any]


class Tick(Processor[Any, Any, Any, Any]):
    """Forwards records, and the time at intervals."""

    def __init__(self, type_: Any, interval_ms: int, fires: int = 1000) -> None:
        self._type, self._interval_ms, self._left = type_, interval_ms, fires

    def init(self, context: AnyContext) -> None:
        super().init(context)
        self.punctuation = context.schedule(
            ms(self._interval_ms), self._type, self.tick
        )

    def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record)

    def tick(self, now_ms: int) -> None:
        self.context.forward(Record("tick", self.context.metadata, now_ms))
        self._left -= 1
        if not self._left:
            self.punctuation.cancel()


def run(
    processor: Any, *steps: Any, config: dict[str, Any] | None = None
) -> list[tuple[Any, Any]]:
    """Send a record for each (timestamp, headers), advance the time for each number;
    return (key, timestamp) of the outputs.
    """
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.json).process(
        processor, key=serdes.text, value=serdes.json, by_key=False
    ).to("out")
    with TopologyTestDriver(builder.build(), config=config) as driver:
        for step in steps:
            if isinstance(step, tuple):
                driver.input("in", serdes.text, serdes.json).send("a", 0, *step)
            else:
                driver.advance(ms(step))
        return [
            (record.key, record.timestamp)
            if not record.headers
            else (record.key, record.headers)
            for record in driver.outputs()
        ]


def test_stream_time_fires_with_the_first_record_and_then_on_its_grid_after_the_record_that_moved_it() -> (
    None
):
    outputs = run(
        lambda: Tick("stream_time", 10), (5,), (9,), (10,), (95,), (99,), (100,)
    )
    ticks = [("tick", 5), ("tick", 10), ("tick", 95), ("tick", 100)]
    assert [output for output in outputs if output[0] == "tick"] == ticks
    assert outputs[:2] == [("a", 5), ("tick", 5)]


def test_the_wall_clock_fires_after_one_interval_and_once_for_a_long_time() -> None:
    assert run(lambda: Tick("wall_clock", 10), 9, 1, 5, 80, 4, 1) == [
        ("tick", 10),
        ("tick", 95),
        ("tick", 100),
    ]


def test_a_cancelled_punctuation_is_silent() -> None:
    assert run(lambda: Tick("wall_clock", 10, fires=2), 10, 10, 10, 10) == [
        ("tick", 10),
        ("tick", 20),
    ]


def test_what_a_punctuation_forwards_has_not_the_headers_of_the_record_before_it() -> (
    None
):
    header = [("h", b"1")]
    assert run(lambda: Tick("stream_time", 10), (5, header), (6, header)) == [
        ("a", header),
        ("tick", 5),
        ("a", header),
    ]


def test_a_failing_punctuation_goes_to_the_failure_handler_and_is_called_again() -> (
    None
):
    class Fragile(Tick):
        def tick(self, now_ms: int) -> None:
            if now_ms == 10:
                raise ValueError("ten")
            super().tick(now_ms)

    with pytest.raises(ProcessingError, match="ValueError: ten"):
        run(lambda: Fragile("wall_clock", 10), 10)
    assert run(
        lambda: Fragile("wall_clock", 10),
        10,
        10,
        config={"processing.exception.handler": "continue"},
    ) == [("tick", 20)]


def test_a_schedule_needs_an_interval_and_a_clock() -> None:
    with pytest.raises(TopologyError, match="at least 1 ms"):
        run(lambda: Tick("wall_clock", 0))
    with pytest.raises(TopologyError, match="wall_clock"):
        run(lambda: Tick("sundial", 1))


class Totals(Processor[str, int, str, int]):
    """Counts by key, and forwards all counts every 10 ms of stream time."""

    def init(self, context: AnyContext) -> None:
        super().init(context)
        self.totals: KeyValueStore[str, int] = context.store("totals")
        context.schedule(ms(10), "stream_time", self.tell)

    def process(self, record: Record[str, int]) -> None:
        self.totals.put(record.key, (self.totals.get(record.key) or 0) + 1)

    def tell(self, now_ms: int) -> None:
        for key, total in self.totals.all():
            self.context.forward(Record(key, total, now_ms))
            self.totals.delete(key)


@pytest.mark.ci
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 100)), max_size=30))
def test_punctuations_by_key_do_not_depend_on_the_number_of_ranges(
    records: list[tuple[str, int]],
) -> None:
    def outputs(ranges: int) -> dict[str, list[tuple[int, int]]]:
        builder = StreamsBuilder("app")
        store = key_value_store("totals", key=serdes.text, value=serdes.int64)
        stream = builder.stream("in", key=serdes.text, value=serdes.json)
        stream.process(
            Totals, stores=[store], key=serdes.text, value=serdes.json, by_key=True
        ).to("out")
        with TopologyTestDriver(builder.build(), ranges) as driver:
            for key, at in records:
                driver.input("in", serdes.text, serdes.json).send(key, 0, at)
            found: dict[str, list[tuple[int, int]]] = {}
            for record in driver.outputs():
                found.setdefault(record.key, []).append(
                    (record.value, record.timestamp)
                )
            return found

    assert outputs(4) == outputs(1)


@given(st.integers(1, 20), st.lists(st.integers(0, 50), max_size=20))
def test_a_schedule_stays_on_its_grid_and_fires_once_for_each_grid_point_passed_or_less(
    interval_ms: int, steps: list[int]
) -> None:
    fired: list[int] = []
    queue = PunctuationQueue()
    queue.add(Schedule(interval_ms, fired.append), 0)
    now = 0
    for step in steps:
        now += step
        expected = now // interval_ms > (fired[-1] // interval_ms if fired else -1)
        assert queue.punctuate(now) is expected
        assert queue.next_ms == now - now % interval_ms + interval_ms
    assert fired == sorted(set(fired))


@given(
    st.integers(1, 20),
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(-100_000, 100_000) | st.just(0)),
        max_size=20,
    ),
)
def test_whatever_the_clock_is_put_to_the_next_call_is_an_interval_away_at_most_and_none_comes_in_a_burst(
    interval_ms: int, steps: list[tuple[int, int]]
) -> None:
    """Steps of real time, after each of which the clock may jump forward or back."""
    fired: list[int] = []
    queue, now = PunctuationQueue(), 1_000_000
    queue.look(now)
    queue.add(Schedule(interval_ms, fired.append), now + interval_ms)
    for step, put in steps:
        now, before = now + step + put, len(fired)
        queue.look(now)
        queue.punctuate(now)
        assert len(fired) - before <= 1
        assert queue.next_ms is not None
        assert now < queue.next_ms <= now + interval_ms
