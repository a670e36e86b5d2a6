"""A partitioner on a real Kafka: each record lies where the program says, and what the topic has is what it was
told.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from coopstreams import CoopStreams, Processor, Record, StreamsBuilder, serdes
from tests.broker.reading import read_topic


def by_value(_topic: str, _key: str, value: str, partitions: int) -> int:
    return int(value) % partitions


class Where(Processor[str, str, str, str]):
    """Says in which partition it has found each value."""

    def process(self, record: Record[str, str]) -> None:
        assert self.context.metadata is not None
        self.context.forward(record.with_value(f"{record.value} in {self.context.metadata.partition}"))


@pytest.mark.broker
def test_records_lie_in_the_partitions_that_the_program_chooses(kafka: Any, tmp_path: Path) -> None:
    source = kafka.topic("in")
    spread = kafka.topic("spread", 3)
    by_key = kafka.topic("by-key", 3)
    found_in = kafka.topic("found-in")
    everywhere = kafka.topic("everywhere", 3)
    builder = StreamsBuilder(kafka.unique("partitioner"))
    stream = builder.stream(source, key=serdes.text, value=serdes.text)
    stream.to(by_key)
    stream.to(lambda _key, _value: spread, partitioner=by_value)
    stream.to(everywhere, partitioner=lambda _topic, _key, value, partitions: range(partitions) if value != "3" else [])
    behind = stream.repartition(name="spread", partitions=3, partitioner=by_value).process(
        Where, key=serdes.text, value=serdes.text, by_key=False
    )
    behind.to(found_in)
    kafka.write(source, (("always the same", str(number)) for number in range(7)))

    settings = kafka.config(tmp_path, ranges_per_partition=4)
    with CoopStreams(builder.build(), settings):
        deadline = time.monotonic() + 120
        while (
            min(len(read_topic(kafka.bootstrap, topic)) for topic in (spread, found_in)) < 7
            or len(read_topic(kafka.bootstrap, everywhere)) < 18
        ):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    found = [(record.value, record.partition) for record in read_topic(kafka.bootstrap, spread)]
    assert sorted(found) == [(str(number).encode(), number % 3) for number in range(7)]
    copies = sorted((record.value, record.partition) for record in read_topic(kafka.bootstrap, everywhere))
    assert copies == [(str(number).encode(), partition) for number in (0, 1, 2, 4, 5, 6) for partition in range(3)]
    assert {record.value for record in read_topic(kafka.bootstrap, found_in)} == {
        f"{number} in {number % 3}".encode() for number in range(7)
    }
    assert len({record.partition for record in read_topic(kafka.bootstrap, by_key)}) == 1
