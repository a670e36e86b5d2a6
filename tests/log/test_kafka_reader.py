"""A reader whose client hangs or misses records continues with a new client: each
record once, in order, held ones included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from kafka import KafkaProducer

from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.kafka import reader as kafka_reader
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.reader import KafkaReader
from coopstreams.log.log import Position, RecordBatch, TopicSpec
from coopstreams.topology.columns import TopicPartition
from tests.conftest import Kafka
from tests.log.reading import (
    PATIENCE_S,
    fetch_until,
    fill,
    numbers,
    read_all,
    records,
    values,
)

pytestmark = pytest.mark.broker

READ, HELD, FULL = (TopicPartition("numbers", partition) for partition in range(3))
FIRST, FEW, MANY, LAST = 100, 10, 60, 50


def counts(batches: Iterable[RecordBatch], partition: TopicPartition) -> int:
    return sum(len(batch.columns) for batch in batches if batch.partition == partition)


@pytest.mark.slow
def test_a_new_client_goes_on_where_the_silent_one_stood(
    broker_of_own: Callable[..., KafkaBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_reader, "HELD_RECORDS", MANY)
    broker = broker_of_own()
    log = KafkaLog({"bootstrap.servers": broker.bootstrap})
    log.create_topics([TopicSpec("numbers", 3)])
    reader = log.reader()
    assert isinstance(reader, KafkaReader)
    written: dict[TopicPartition, list[str]] = {
        partition: [] for partition in (READ, HELD, FULL)
    }

    def more(through: KafkaLog, **count: int) -> None:
        for partition, name in ((READ, "read"), (HELD, "held"), (FULL, "full")):
            new = numbers(count[name], start=len(written[partition]))
            fill(through, partition, new)
            written[partition] += new

    more(log, read=FIRST, held=FIRST, full=FIRST)
    reader.assign(dict.fromkeys(written, Position(0)))
    seen = fetch_until(
        reader,
        lambda batches: all(
            counts(batches, partition) == FIRST for partition in written
        ),
    )
    reader.hold(HELD, True)
    reader.hold(FULL, True)
    more(log, read=FEW, held=FEW, full=MANY)
    log.close()
    states = reader._readings
    seen += fetch_until(
        reader,
        lambda batches: (
            counts(batches, READ) == FEW
            and reader._buffer.fetched_to(HELD) == FIRST + FEW
            and not states[FULL].taken
        ),
    )

    broker.kill()
    monkeypatch.setattr(kafka_reader, "SILENCE_S", 0.1)
    silent = reader._consumer
    seen += fetch_until(reader, lambda _: reader._consumer is not silent)
    # Long enough for the new client to find the broker; otherwise it is replaced, too.
    monkeypatch.setattr(kafka_reader, "SILENCE_S", 3.0)
    broker.start()
    log = KafkaLog({"bootstrap.servers": broker.bootstrap})
    more(log, read=LAST, held=LAST, full=LAST)
    seen += fetch_until(reader, lambda batches: counts(batches, READ) >= LAST)
    assert {
        batch.partition
        for batch in seen
        if len(batch.columns) and batch.columns.offsets[0] >= FIRST
    } == {READ}, "the others are still held"
    for partition in (HELD, FULL):
        reader.hold(partition, False)
    seen += fetch_until(
        reader,
        lambda batches: (
            counts(batches, HELD) >= FEW + LAST and counts(batches, FULL) >= MANY + LAST
        ),
    )
    more(
        log, read=1, held=1, full=1
    )  # the last records: no earlier ones may come again
    ends = {partition: len(texts) for partition, texts in written.items()}
    seen += fetch_until(
        reader,
        lambda _: (
            {partition: reading.at.offset for partition, reading in states.items()}
            == ends
        ),
    )
    for partition, texts in written.items():
        assert (
            values(records(batch for batch in seen if batch.partition == partition))
            == texts
        )
    reader.close()
    log.close()


@pytest.mark.ci
def test_a_client_that_overlooks_records_is_replaced(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = KafkaLog({"bootstrap.servers": kafka.bootstrap})
    topic = kafka.topic("overlooked", partitions=2)
    idle, overlooked = (TopicPartition(topic, partition) for partition in range(2))
    reader = log.reader()
    assert isinstance(reader, KafkaReader)
    reader.assign({idle: Position(0), overlooked: Position(0)})
    fill(log, overlooked, numbers(FIRST))
    seen = fetch_until(reader, lambda batches: counts(batches, overlooked) == FIRST)
    monkeypatch.setattr(kafka_reader, "SILENCE_S", 0.5)
    fetch_until(
        reader,
        lambda _: all(reading.looks > 4 for reading in reader._readings.values()),
    )
    client = reader._consumer
    client.pause(
        [KafkaPartition(*overlooked)]
    )  # as if it had lost its broker: metadata are answered, but no records come
    fill(log, overlooked, numbers(LAST, start=FIRST))
    seen += fetch_until(reader, lambda batches: counts(batches, overlooked) == LAST)
    assert reader._consumer is not client
    assert values(
        records(batch for batch in seen if batch.partition == overlooked)
    ) == numbers(FIRST + LAST)
    reader.close()
    log.close()


class Latin1(str):
    """A header's name that its producer does not write as UTF-8."""

    __slots__ = ()

    def encode(self, encoding: str = "", errors: str = "strict") -> bytes:
        return super().encode("latin-1", errors)


@pytest.mark.usefixtures("plane")
def test_a_header_whose_name_is_not_utf8_stops_no_reader(kafka: Kafka) -> None:
    """confluent-kafka raised a SystemError: each start of the process ended at the same
    record.
    """
    topic = kafka.topic("headers")
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    for headers in (
        [("a", b"1"), (Latin1("caf\xe9"), b"2"), (Latin1("\xe8"), b"")],
        [("b", b"3")],
    ):
        producer.send(topic, b"value", headers=headers).get(PATIENCE_S)
    producer.close()
    log = KafkaLog(kafka.settings)
    found = [record.headers for record in read_all(log, TopicPartition(topic, 0))]
    assert found == [[("a", b"1"), ("\ufffd", b"2"), ("\ufffd", b"")], [("b", b"3")]]
    log.close()
