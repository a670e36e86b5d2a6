"""Reads the committed records of a topic, as another application would."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)


class Record(NamedTuple):
    """A record as it was read."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    partition: int
    offset: int
    headers: dict[str, bytes | None]


def read_topic(bootstrap: str, topic: str) -> list[Record]:
    """Return every committed record of a topic, partition after partition, each in
    order.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-everything",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "isolation.level": "read_committed",
        }
    )
    records: list[Record] = []
    with closing(consumer):
        partitions = consumer.list_topics(topic, 60).topics[topic].partitions
        consumer.assign(
            [
                TopicPartition(topic, partition, OFFSET_BEGINNING)
                for partition in partitions
            ]
        )
        unfinished = set(partitions)
        while unfinished:
            for message in consumer.consume(5000, 0.02):
                error, partition, offset = (
                    message.error(),
                    message.partition(),
                    message.offset(),
                )
                assert partition is not None
                assert offset is not None
                if error is None:
                    records.append(
                        Record(
                            message.key(),
                            message.value(),
                            message.timestamp()[1],
                            partition,
                            offset,
                            dict(message.headers() or ()),  # type: ignore[arg-type]
                        )
                    )
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(partition)
                else:
                    raise KafkaException(error)
    return sorted(records, key=lambda record: (record.partition, record.offset))


def latest(records: Iterable[Record]) -> dict[bytes, bytes]:
    """Return the last value of each key, without deleted ones: a topic as a table."""
    table: dict[bytes, bytes] = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table


def by_key(records: Iterable[Record]) -> dict[bytes, list[bytes | None]]:
    """Return the values of each key, in order."""
    values: dict[bytes, list[bytes | None]] = {}
    for record in records:
        assert record.key is not None
        values.setdefault(record.key, []).append(record.value)
    return values


def counts_of(bootstrap: str, topic: str) -> dict[str, int]:
    """Return the last count of each key of a topic of counts."""
    return {
        key.decode(): int.from_bytes(value, "big")
        for key, value in latest(read_topic(bootstrap, topic)).items()
    }


def updates_of(bootstrap: str, topic: str) -> dict[str, list[int]]:
    """Return all counts of each key of a topic of counts, in order."""
    found = by_key(read_topic(bootstrap, topic))
    return {
        key.decode(): [int.from_bytes(value or b"", "big") for value in values]
        for key, values in found.items()
    }
