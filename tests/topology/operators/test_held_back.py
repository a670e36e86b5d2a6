"""What fails when a later record lets it go is not that record's failure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coopstreams import (
    JoinWindows,
    KStream,
    Materialized,
    Processor,
    Record,
    StreamsBuilder,
    TimeWindows,
    serdes,
    until_time_limit,
    until_window_closes,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.columns import Headers
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.stores import window_key

DEAD = {
    "processing.exception.handler": "dead-letter",
    "errors.dead.letter.queue.topic.name": "dead",
}
Stream = KStream[str, str]


def fails_at_a(key: Any, value: Any) -> Any:
    if "a" in str(key):
        raise ValueError("a")
    return value


def suppressed(numbers: Stream) -> KStream[Any, Any]:
    windows = numbers.group_by_key().windowed_by(TimeWindows(milliseconds=10))
    return windows.count().suppress(until_window_closes()).to_stream()


def emitted_on_close(numbers: Stream) -> KStream[Any, Any]:
    windows = numbers.group_by_key().windowed_by(TimeWindows(milliseconds=10))
    return windows.emit_strategy("on_window_close").count().to_stream()


def unmatched(numbers: Stream) -> KStream[Any, Any]:
    others = numbers.filter(lambda _, __: False)
    windows = JoinWindows(milliseconds=10, grace=timedelta(0))
    return numbers.left_join(
        others, lambda one, _: one, windows=windows, value=serdes.text
    )


def expired(numbers: Stream) -> KStream[Any, Any]:
    rows = numbers.to_table(store=Materialized("rows", ttl=timedelta(milliseconds=10)))
    return rows.to_stream().filter_not(lambda _, value: value == "1")


@pytest.mark.parametrize(
    ("held", "key"),
    [
        (suppressed, window_key(b"a", 0)),
        (emitted_on_close, window_key(b"a", 0)),
        (unmatched, b"a"),
        (expired, b"a"),
    ],
)
@pytest.mark.parametrize("ranges", [1, 4])
def test_a_row_that_is_let_go_fails_itself_and_not_the_record_that_lets_it_go(
    held: Callable[[Stream], KStream[Any, Any]], key: bytes, ranges: int
) -> None:
    builder = StreamsBuilder("held")
    numbers = builder.stream("in", key=serdes.text, value=serdes.text)
    held(numbers).map_values_with_key(fails_at_a, value=serdes.json).to("out")
    with TopologyTestDriver(builder.build(), ranges, DEAD) as driver:
        driver.input("in").send("a", "1", 0)
        driver.input("in").send("b", "2", 100)
        assert [
            (failure.offset, failure.key, failure.value) for failure in driver.failures
        ] == [(None, key, None)]
        (letter,) = driver.output("dead").records()
        assert (letter.key, letter.value) == (key, None)
        assert "__coopstreams.errors.offset" not in dict(letter.headers)


@pytest.mark.parametrize("grace_ms", [0, 5])
def test_a_record_that_waits_for_a_row_fails_as_itself_only_while_it_is_at_hand(
    grace_ms: int,
) -> None:
    builder = StreamsBuilder("grace")
    rows = builder.table(
        "rows", key=serdes.text, value=serdes.text, history=timedelta(seconds=1)
    )
    joined = builder.stream("in", key=serdes.text, value=serdes.text).left_join(
        rows,
        lambda one, _: one,
        value=serdes.text,
        grace=timedelta(milliseconds=grace_ms),
    )
    joined.map_values_with_key(fails_at_a, value=serdes.text).to("out")
    with TopologyTestDriver(builder.build(), config=DEAD) as driver:
        for key, value, timestamp in [
            ("a", "waits", 0),
            ("b", "lets it go", 5),
            ("a", "late", 0),
        ]:
            driver.input("in").send(key, value, timestamp)
        first = (None, b"a", None) if grace_ms else (0, b"a", b"waits")
        letters = [
            (failure.offset, failure.key, failure.value) for failure in driver.failures
        ]
        assert letters == [first, (2, b"a", b"late")]


class Upper(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(
            record.with_value(fails_at_a(record.key, record.value.upper()))
        )


def test_a_driver_that_has_told_a_failure_does_not_tell_it_again_of_the_next_record() -> (
    None
):
    builder = StreamsBuilder("again")
    numbers = builder.stream("in", key=serdes.text, value=serdes.text)
    numbers.process(Upper, key=serdes.text, value=serdes.text, by_key=True).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        with pytest.raises(ProcessingError, match="offset 0 made a function raise"):
            driver.input("in").send("a", "x")
        driver.input("in").send("b", "y")
        assert driver.output("out").latest() == {"b": "Y"}


class Where(Processor[str, str, str, Any]):
    """Forwards where each record was read."""

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(
            record.with_value(self.context.metadata and list(self.context.metadata))
        )


def of_suppress(builder: StreamsBuilder) -> Stream:
    table = builder.table("in", key=serdes.text, value=serdes.text)
    return table.suppress(until_time_limit(timedelta(milliseconds=10))).to_stream()


def of_a_join_with_grace(builder: StreamsBuilder) -> Stream:
    prices = builder.table(
        "prices",
        key=serdes.text,
        value=serdes.text,
        history=timedelta(milliseconds=100),
    )
    orders = builder.stream("in", key=serdes.text, value=serdes.text)
    return orders.left_join(
        prices,
        lambda one, _: one,
        value=serdes.text,
        grace=timedelta(milliseconds=10),
        name="priced",
    )


@pytest.mark.parametrize("held", [of_suppress, of_a_join_with_grace])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_processor_knows_where_a_record_was_read_that_was_held_back(
    held: Callable[[StreamsBuilder], Stream], restarts: bool, tmp_path: Path
) -> None:
    builder = StreamsBuilder("app")
    places = held(builder).process(
        Where, key=serdes.text, value=serdes.json, by_key=True
    )
    places.to("out")
    records: list[tuple[str, int, Headers]] = [
        ("a", 0, [("h", b"1")]),
        ("b", 1, []),
        ("z", 50, [("h", b"3")]),
    ]
    found = []
    for part in (records[:2], records[2:]) if restarts else (records,):
        with TopologyTestDriver(builder.build(), state_dir=tmp_path) as driver:
            for key, at, headers in part:
                driver.input("in").send(key, "1", at, headers)
            driver.commit()
            found += [
                (record.key, record.value, record.headers)
                for record in driver.outputs()
            ]
    assert found == [("a", ["in", 0, 0], [("h", b"1")]), ("b", ["in", 0, 1], [])]
