"""Tables that are restored from their source topics (`topology.optimization`)."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from coopstreams import CoopStreams, StreamsBuilder, serdes
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


@pytest.mark.ci
@pytest.mark.parametrize(
    "guarantee",
    ["exactly_once_v2", pytest.param("at_least_once", marks=pytest.mark.slow)],
)
def test_calls_beside_a_table_on_a_source_with_transaction_markers(
    kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    stream, table, sink = kafka.topic("in"), kafka.topic("rows"), kafka.topic("out")
    let_go, asked = threading.Event(), threading.Event()

    async def ask(value: int) -> int:
        while value == 2 and not let_go.is_set():
            asked.set()
            await asyncio.sleep(0.01)
        return value

    builder = StreamsBuilder(kafka.unique("called"))
    rows = builder.table(table, key=serdes.text, value=serdes.int64)
    builder.stream(stream, key=serdes.text, value=serdes.int64).map_values_async(
        ask, value=serdes.int64
    ).join(rows, lambda one, two: [one, two], value=serdes.json).to(sink)
    producer = Producer(
        {**kafka.settings, "transactional.id": kafka.unique("a-writer")}
    )
    producer.init_transactions()
    for number in range(5):
        producer.begin_transaction()
        for topic in (table, stream):
            value = serdes.int64.encode(number)
            producer.produce(topic, value, b"k", timestamp=1000 + number)
        producer.commit_transaction()
    settings: dict[str, Any] = {
        "processing_guarantee": guarantee,
        "topology_optimization": "all",
    }

    def results() -> list[bytes | None]:
        return [record.value for record in read_topic(kafka.bootstrap, sink)]

    with CoopStreams(builder.build(), kafka.config(tmp_path, **settings)):
        assert asked.wait(60)
        eventually(lambda: len(results()) == 2, 60, lambda: str(results()))
        let_go.set()
        eventually(lambda: len(results()) == 5, 60, lambda: str(results()))
    assert results() == [b"[%d,%d]" % (number, number) for number in range(5)]
