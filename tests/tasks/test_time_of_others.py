"""Stream time that advances by records of other processes' key ranges: due results are
emitted without own records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

from coopstreams import (
    JoinWindows,
    Processor,
    ProcessorContext,
    Record,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    key_value_store,
    serdes,
    until_window_closes,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import KeyRange, key_hash
from tests.durations import ms
from tests.tasks.engine import AT_LEAST, EXACTLY, PATIENCE_S, Engine

PIECES = KeyRange.split(4)
_KEYS = [b"key-%d" % number for number in range(40)]
HOUR_MS = 3_600_000
Rows = list[tuple[bytes | None, bytes | None, int]]


def keys_of(*pieces: KeyRange) -> list[bytes]:
    return [key for key in _KEYS if any(key_hash(key) in piece for piece in pieces)]


def joined(kind: Literal["left", "outer"], windows: JoinWindows) -> Topology:
    builder = StreamsBuilder("joined")
    left, right = (
        builder.stream(topic, key=serdes.raw, value=serdes.raw)
        for topic in ("left", "right")
    )
    join = left.left_join if kind == "left" else left.outer_join
    join(
        right,
        lambda one, other: b"%r, %r" % (one, other),
        windows=windows,
        value=serdes.raw,
    ).to("out")
    return builder.build()


def joined_with_grace() -> Topology:
    builder = StreamsBuilder("graceful")
    rows = builder.table(
        "right", key=serdes.raw, value=serdes.raw, store="rows", history=ms(HOUR_MS)
    )
    left = builder.stream("left", key=serdes.raw, value=serdes.raw)
    left.left_join(
        rows,
        lambda one, other: b"%r, %r" % (one, other),
        grace=ms(60_000),
        value=serdes.raw,
    ).to("out")
    return builder.build()


def closed(windows: Any) -> Topology:
    builder = StreamsBuilder("closed")
    left, right = (
        builder.stream(topic, key=serdes.raw, value=serdes.raw)
        for topic in ("left", "right")
    )
    counts = (
        left.merge(right)
        .group_by_key()
        .windowed_by(windows)
        .emit_strategy("on_window_close")
        .count(retention=ms(24 * HOUR_MS))
    )
    _tell(counts.to_stream())
    return builder.build()


def suppressed(windows: Any) -> Topology:
    builder = StreamsBuilder("suppressed")
    left, right = (
        builder.stream(topic, key=serdes.raw, value=serdes.raw)
        for topic in ("left", "right")
    )
    _tell(
        left.merge(right)
        .group_by_key()
        .windowed_by(windows)
        .count()
        .suppress(until_window_closes())
        .to_stream()
    )
    return builder.build()


def _tell(windows: Any) -> None:
    windows.map(
        lambda at, count: (at.key, b"%d..%d: %d" % (at.start_ms, at.end_ms, count)),
        key=serdes.raw,
        value=serdes.raw,
    ).to("out")


class Reminder(Processor[bytes, bytes, bytes, bytes]):
    """Forwards its rows when an hour of stream time has passed."""

    def init(self, context: ProcessorContext[bytes, bytes]) -> None:
        super().init(context)
        self.kept: Any = context.store("kept")
        context.schedule(ms(HOUR_MS), "stream_time", self.remind)

    def process(self, record: Record[bytes, bytes]) -> None:
        self.kept.put(record.key, record.value)

    def remind(self, now_ms: int) -> None:
        for key, value in list(self.kept.all()):
            if now_ms > HOUR_MS:
                self.context.forward(Record(key, value, HOUR_MS))
                self.kept.delete(key)


def reminded() -> Topology:
    builder = StreamsBuilder("reminded")
    left, right = (
        builder.stream(topic, key=serdes.raw, value=serdes.raw)
        for topic in ("left", "right")
    )
    store = key_value_store("kept", key=serdes.raw, value=serdes.raw)
    left.merge(right).process(
        Reminder, stores=[store], key=serdes.raw, value=serdes.raw, by_key=True
    ).to("out")
    return builder.build()


MADE: dict[str, Callable[[], Topology]] = {
    "left join": lambda: joined("left", JoinWindows(milliseconds=4000)),
    "left join with grace": lambda: joined(
        "left", JoinWindows(milliseconds=4000, grace=ms(60_000))
    ),
    "outer join": lambda: joined("outer", JoinWindows(milliseconds=4000)),
    "outer join, later only": lambda: joined(
        "outer", JoinWindows(before=0, after=ms(10_000), grace=ms(1000))
    ),
    "join with a table, with grace": joined_with_grace,
    "windows emitted when they close": lambda: closed(TimeWindows(minutes=1)),
    "sliding windows emitted when they close": lambda: closed(
        SlidingWindows(milliseconds=60_000)
    ),
    "sessions emitted when they close": lambda: closed(
        SessionWindows(milliseconds=60_000)
    ),
    "suppressed windows": lambda: suppressed(TimeWindows(minutes=1)),
    "suppressed sessions": lambda: suppressed(SessionWindows(milliseconds=60_000)),
    "punctuation by stream time": reminded,
}


def rows_of(topic: str, ours: list[bytes], theirs: list[bytes]) -> Rows:
    """Return records of our keys, some with a match; six hours later only records of
    other keys.
    """
    rows: Rows = []
    for number, key in enumerate(ours):
        if number % 3 == 0 or topic == ("left", "right")[number % 3 - 1]:
            rows.append(
                (
                    key,
                    b"%s %d" % (topic.encode(), number),
                    1000 * number + (topic == "right"),
                )
            )
    return rows + [
        (key, b"%s later" % topic.encode(), 6 * HOUR_MS + number)
        for number, key in enumerate(theirs)
    ]


@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
@pytest.mark.parametrize("open_", [1, 2])
@pytest.mark.parametrize("what", MADE)
def test_what_is_due_goes_by_records_that_another_process_has(
    what: str, open_: int, guarantee: str
) -> None:
    pieces = PIECES[:open_]
    ours, theirs = keys_of(*pieces), keys_of(*PIECES[open_:])
    topology = MADE[what]()
    engine = Engine(
        topology, {"left": 1, "right": 1, "out": 1}, processing_guarantee=guarantee
    )
    for topic in ("left", "right"):
        engine.write(topic, rows_of(topic, ours, theirs))
    engine.start()
    for piece in pieces:
        engine.open(piece)
    engine.settle()
    engine.stop()
    out = engine.read("out")
    found = sorted(zip(out.keys, out.values, out.timestamps, strict=True))
    assert found == expected(topology, ours, theirs)
    assert found


def test_what_a_sibling_leaves_to_another_process_moves_time_here() -> None:
    """Its records have advanced the time here, but it leaves before it processes them,
    and no task here does.
    """
    first, rest = KeyRange.split(2)
    topology = MADE["left join"]()
    engine = Engine(topology, {"left": 1, "right": 1, "out": 1}, threads=2)
    engine.threads[
        0
    ].start()  # the other thread has not reached the waiting records of its task
    engine.open(first)
    sibling = engine.open(rest, thread=1)
    for topic in ("left", "right"):
        engine.write(topic, rows_of(topic, keys_of(first), keys_of(rest)))
    while engine.dispatcher.move(0.01) or engine.threads[0].backlog:
        pass
    engine.dispatcher.close(sibling)
    engine.threads[1].close((sibling,), clean=True)
    engine.threads[1].start()
    while sibling.id in engine.tasks:
        engine.take(engine.events.get(timeout=PATIENCE_S))
    assert sibling.processed == 0
    engine.settle()
    engine.stop()
    out = engine.read("out")
    assert sorted(zip(out.keys, out.values, out.timestamps, strict=True)) == expected(
        topology, keys_of(first), keys_of(rest)
    )


def test_what_became_due_while_a_task_was_closed_goes_when_it_is_opened() -> None:
    first, rest = KeyRange.split(2)
    topology = MADE["left join"]()
    engine = Engine(topology, {"left": 1, "right": 1, "out": 1})
    rows = {
        topic: rows_of(topic, keys_of(first), keys_of(rest))
        for topic in ("left", "right")
    }
    for topic, all_ in rows.items():
        engine.write(topic, [row for row in all_ if row[2] < HOUR_MS])
    engine.start()
    task = engine.open(first)
    engine.settle()
    engine.close(task)
    for topic, all_ in rows.items():
        engine.write(topic, [row for row in all_ if row[2] >= HOUR_MS])
    engine.open(first)
    engine.settle()
    engine.stop()
    out = engine.read("out")
    assert sorted(zip(out.keys, out.values, out.timestamps, strict=True)) == expected(
        topology, keys_of(first), keys_of(rest)
    )


def expected(topology: Topology, ours: list[bytes], theirs: list[bytes]) -> Rows:
    """Return the results of one task over all records, for our keys."""
    rows = sorted(
        (
            (topic, *row)
            for topic in ("left", "right")
            for row in rows_of(topic, ours, theirs)
        ),
        key=lambda row: row[3],
    )
    with TopologyTestDriver(topology) as driver:
        for topic, key, value, timestamp in rows:
            driver.input(topic, serdes.raw, serdes.raw).send(key, value, timestamp)
        records = driver.output("out", serdes.raw, serdes.raw).records()
    return sorted(
        (record.key, record.value, record.timestamp)
        for record in records
        if record.key in ours
    )
