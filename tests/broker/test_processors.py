"""Processors on real Kafka: their stores survive a restart, the wall clock calls them without records, topics are
chosen by record.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from coopstreams import (
    CoopStreams,
    KeyValueStore,
    Processor,
    ProcessorContext,
    Record,
    StreamsBuilder,
    Topology,
    TopologyBuilder,
    key_value_store,
    serdes,
)
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.durations import ms


class Told(Processor[str, str, str, int]):
    """Counts by key; tells what has changed ten times a second, whether records come or not."""

    def init(self, context: ProcessorContext[str, int]) -> None:
        super().init(context)
        self.counts: KeyValueStore[str, int] = context.store("counts")
        self.changed: set[str] = set()
        context.schedule(ms(100), "wall_clock", self.tell)

    def process(self, record: Record[str, str]) -> None:
        self.counts.put(record.key, (self.counts.get(record.key) or 0) + 1)
        self.changed.add(record.key)

    def tell(self, now_ms: int) -> None:
        for key in sorted(self.changed):
            self.context.forward(Record(key, self.counts.get(key) or 0, now_ms))
        self.changed.clear()


def topology_of(application: str, source: str, even: str, odd: str, *, by_key: bool) -> Topology:
    builder = StreamsBuilder(application)
    store = key_value_store("counts", key=serdes.text, value=serdes.int64)
    told = builder.stream(source, key=serdes.text, value=serdes.text).process(
        Told, stores=[store], key=serdes.text, value=serdes.int64, by_key=by_key
    )
    told.to(lambda _, count: odd if count % 2 else even)
    return builder.build()


def named(application: str, source: str, even: str, odd: str) -> Topology:
    """The same, written node by node."""
    return (
        TopologyBuilder(application)
        .add_source("lines", source, key=serdes.text, value=serdes.text)
        .add_processor("told", Told, "lines", by_key=True)
        .add_state_store(key_value_store("counts", key=serdes.text, value=serdes.int64), "told")
        .add_sink("numbers", lambda _, count: odd if count % 2 else even, "told", key=serdes.text, value=serdes.int64)
        .build()
    )


@pytest.mark.broker
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(partial(topology_of, by_key=True), id="by key"),
        pytest.param(partial(topology_of, by_key=False), id="whole", marks=pytest.mark.slow),
        pytest.param(named, id="named", marks=pytest.mark.slow),
    ],
)
def test_a_store_survives_a_restart_and_the_wall_clock_speaks(
    kafka: Any, tmp_path: Path, write: Callable[..., Topology]
) -> None:
    source, even, odd = (kafka.topic(name) for name in ("in", "even", "odd"))
    topology = write(kafka.unique("told"), source, even, odd)
    config = kafka.config(tmp_path, ranges_per_partition=4, processing_guarantee="exactly_once_v2")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})

    def latest() -> dict[str, int]:
        found: dict[str, int] = {}
        for topic in (even, odd):
            for key, value, *_ in read_topic(kafka.bootstrap, topic):
                name = (key or b"").decode()
                found[name] = max(found.get(name, 0), int.from_bytes(value or b"", "big"))
        return found

    def told(expected: dict[str, int]) -> bool:
        return latest() == expected

    for total in (3, 5):
        with CoopStreams(topology, config):
            for key in "abcdefgh":
                for _ in range(3 if total == 3 else 2):
                    producer.produce(source, b"x", key)
            producer.flush(60)
            expected = dict.fromkeys("abcdefgh", total)
            eventually(partial(told, expected), 120, lambda: f"{latest()}")
