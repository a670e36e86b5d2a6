"""Punctuations by stream time where tasks share a partition: at the records of any
range that make them due.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from coopstreams import (
    KeyValueStore,
    Processor,
    ProcessorContext,
    Record,
    StreamsBuilder,
    key_value_store,
    serdes,
)
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import KeyRange, key_hash
from tests.durations import ms
from tests.tasks.engine import Engine
from tests.topology.operators.results import outputs

EVERY_MS, PATIENCE_MS = 100, 1_000


class Unanswered(Processor[str, str, str, str]):
    """Forwards each question that has no answer for a second."""

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        super().init(context)
        self.asked: KeyValueStore[str, int] = context.store("asked")
        context.schedule(ms(EVERY_MS), "stream_time", self.look)

    def process(self, record: Record[str, str]) -> None:
        if record.value == "?":
            self.asked.put(record.key, record.timestamp)
        else:
            self.asked.delete(record.key)

    def look(self, now_ms: int) -> None:
        for key, asked_ms in list(self.asked.all()):
            if now_ms - asked_ms >= PATIENCE_MS:
                self.asked.delete(key)
                self.context.forward(
                    Record(
                        key,
                        f"{asked_ms} at {now_ms}, {self.context.stream_time()}",
                        now_ms,
                    )
                )


def alarms(*topics: str) -> Topology:
    builder = StreamsBuilder("alarms")
    streams = [
        builder.stream(topic, key=serdes.text, value=serdes.text) for topic in topics
    ]
    stream = streams[0] if len(streams) == 1 else streams[0].merge(streams[1])
    store = key_value_store("asked", key=serdes.text, value=serdes.int64)
    stream.process(
        Unanswered, stores=[store], key=serdes.text, value=serdes.text, by_key=True
    ).to("out")
    return builder.build()


def rows(chance: Random, topics: tuple[str, ...]) -> list[tuple[str, str, str, int]]:
    """Return questions and answers of many keys, each in a topic of its own, about as
    often in time as too late.
    """
    found, now = [], 0
    for _ in range(400):
        now += chance.choice((0, 1, 7, 60, 350))
        number = chance.randrange(40)
        late_ms = chance.choice((0, 0, 0, 30, 200))
        # An odd time in one topic and an even one in the other: equal ones are taken in
        # the order of the topics.
        at = max(0, now - late_ms) // 2 * 2 + number % len(topics)
        found.append(
            (topics[number % len(topics)], f"k{number}", chance.choice("?!"), at)
        )
    return found


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("topics", [("in",), ("in", "more")])
def test_alarms_do_not_depend_on_the_number_of_ranges_nor_on_batches(
    topics: tuple[str, ...], seed: int
) -> None:
    """A task called them at its own next record, and after it: an answer came before
    the alarm that was due.
    """
    topology, written = alarms(*topics), rows(Random(seed), topics)
    if len(topics) == 2:
        written.sort(key=lambda row: row[3])
    expected = sorted((key, value) for key, value, _ in outputs(topology, *written))
    assert len(expected) > 40
    engine = Engine(
        topology,
        dict.fromkeys((*topics, "out"), 1),
        processing_guarantee="exactly_once_v2",
    )
    for topic, key, value, at in written:
        engine.write(topic, [(key.encode(), value.encode(), at)])
    engine.start()
    for piece in KeyRange.split(4):
        engine.open(piece)
    engine.settle()
    engine.stop()
    assert alarmed(engine) == expected


def alarmed(engine: Engine) -> list[tuple[str, str]]:
    out = engine.read("out")
    return sorted(
        (key.decode(), value.decode())
        for key, value in zip(out.keys, out.values, strict=True)
        if key and value
    )


@pytest.mark.parametrize("ranges", [1, 4])
def test_alarms_do_not_depend_on_where_a_task_is_opened_again(ranges: int) -> None:
    """Each opening began with a punctuation at its first record, as Kafka Streams does,
    between two of the grid.
    """
    topology, written = alarms("in"), rows(Random(1), ("in",))
    expected = sorted((key, value) for key, value, _ in outputs(topology, *written))
    engine = Engine(
        topology, {"in": 1, "out": 1}, processing_guarantee="exactly_once_v2"
    )
    engine.start()
    for start in range(0, len(written), 50):
        for _, key, value, at in written[start : start + 50]:
            engine.write("in", [(key.encode(), value.encode(), at)])
        for piece in KeyRange.split(ranges):
            engine.open(piece)
        engine.settle()
        for task, _ in list(engine.tasks.values()):
            engine.close(task)
    engine.stop()
    assert alarmed(engine) == expected


def test_alarms_are_called_at_siblings_records_that_came_while_the_thread_was_busy() -> (
    None
):
    """Batches without records of a task's own are joined before its thread takes them."""
    part, _ = KeyRange.split(2)
    mine, other = (
        next(
            key
            for n in range(99)
            if (key_hash(b"k%d" % n) in part) == own and (key := f"k{n}")
        )
        for own in (True, False)
    )
    engine = Engine(
        alarms("in"), {"in": 1, "out": 1}, processing_guarantee="exactly_once_v2"
    )
    engine.open(part)
    for key, value, at in (
        (mine, "?", 10),
        (other, "!", 1_020),
        (other, "!", 1_130),
        (mine, "!", 1_250),
    ):
        engine.write("in", [(key.encode(), value.encode(), at)])
        engine.dispatcher.move(0.0)
    engine.start()
    engine.settle()
    engine.stop()
    assert alarmed(engine) == [(mine, "10 at 1020, 1020")]
