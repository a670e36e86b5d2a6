"""Tables that are restored from their source topics (`topology.optimization`)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from coopstreams import CoopStreams, StreamsBuilder, serdes
from coopstreams.dev.broker import KafkaBroker
from coopstreams.topology.errors import ConfigError
from tests.broker.counting import failure_of
from tests.broker.reading import latest, read_topic
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


@pytest.mark.slow
def test_a_row_that_was_compacted_away_before_it_was_counted_down_is_refused(
    broker_of_own: Callable[..., KafkaBroker], tmp_path: Path
) -> None:
    """Own disk and lag: red 0, blue 1. Another disk would make it red 1, blue 1."""
    broker = broker_of_own(log_cleaner_backoff_ms="200")
    kafka = Kafka(
        broker.bootstrap,
        AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2}),
    )
    table = kafka.topic(
        "colours",
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.0",
    )
    sink = kafka.topic("out")
    builder = StreamsBuilder(kafka.unique("colours"))
    builder.table(table, key=serdes.text, value=serdes.text, store="colours").group_by(
        lambda key, value: (value, key), key=serdes.text, value=serdes.text
    ).count(store="counts").to_stream().to(sink)
    topology = builder.build()

    def app(folder: str) -> CoopStreams:
        settings: dict[str, Any] = {
            "processing_guarantee": "exactly_once_v2",
            "topology_optimization": "all",
        }
        return CoopStreams(topology, kafka.config(tmp_path / folder, **settings))

    def counts() -> dict[bytes, int]:
        rows = latest(read_topic(kafka.bootstrap, sink))
        return {colour: serdes.int64.decode(count) for colour, count in rows.items()}

    def offsets() -> list[int]:
        return [record.offset for record in read_topic(kafka.bootstrap, table)]

    kafka.write(table, [(b"k", b"red")])
    with app("own"):
        eventually(lambda: counts() == {b"red": 1}, 60, lambda: str(counts()))
    kafka.write(table, [(b"k", b"blue")])
    # A segment is compacted once a later record has begun another one.
    for at in range(60):
        time.sleep(0.5)
        kafka.write(table, [(b"later", b"%d" % at)])
        if 0 not in offsets():
            break
    assert offsets()[0] == 1, "blue is the first record that is left"
    refused = failure_of(app("another"))
    assert isinstance(refused, ConfigError), refused
    assert "up to offset 1, where its task stands" in str(refused)
    with app("own"):
        expected = {b"red": 0, b"blue": 1}
        eventually(
            lambda: expected.items() <= counts().items(), 60, lambda: str(counts())
        )
