"""A partitioner on a real Kafka: each record lies where the program says, and what the topic has is what it was told."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from coopstreams import CoopStreams, StreamsBuilder, serdes
from tests.broker.reading import read_topic


def by_value(_topic: str, _key: str, value: str, partitions: int) -> int:
    return int(value) % partitions


@pytest.mark.broker
def test_records_lie_in_the_partitions_that_the_program_chooses(kafka: Any, tmp_path: Path) -> None:
    source, spread, by_key = kafka.topic("in"), kafka.topic("spread", 3), kafka.topic("by-key", 3)
    builder = StreamsBuilder(kafka.unique("partitioner"))
    stream = builder.stream(source, key=serdes.text, value=serdes.text)
    stream.to(by_key)
    stream.to(lambda _key, _value: spread, partitioner=by_value)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(7):
        producer.produce(source, str(number), "always the same")
    assert producer.flush(10) == 0

    settings = {"bootstrap.servers": kafka.bootstrap, "ranges.per.partition": 4, "state.dir": str(tmp_path)}
    with CoopStreams(builder.build(), settings):
        deadline = time.monotonic() + 60
        while len(read_topic(kafka.bootstrap, spread)) < 7:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    found = [(record.value, record.partition) for record in read_topic(kafka.bootstrap, spread)]
    assert sorted(found) == [(str(number).encode(), number % 3) for number in range(7)]
    assert len({record.partition for record in read_topic(kafka.bootstrap, by_key)}) == 1
