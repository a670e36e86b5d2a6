"""A topic, its policy, a group and its consumers, for tests that run them in one
process.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from coopstreams.commit.cluster_policy import PolicyTopic
from coopstreams.consumer import (
    ConsumerRecord,
    CooperativeConsumer,
    KeyRange,
    TopicPartition,
)
from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import TopicSpec
from coopstreams.topology.keys import key_hash
from tests.conftest import Kafka


class Orders:
    """A topic that may be shared, and a group."""

    def __init__(self, kafka: Kafka | KafkaBroker, partitions: int = 1) -> None:
        self.kafka = kafka
        self.login = (
            kafka.settings
            if isinstance(kafka, Kafka)
            else {"bootstrap.servers": kafka.bootstrap}
        )
        """How the consumers connect."""
        self.log = KafkaLog(self.login)
        self.topic = f"orders-{uuid.uuid4().hex[:8]}"
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self.at = TopicPartition(self.topic, 0)
        self.log.create_topics([TopicSpec(self.topic, partitions)])
        PolicyTopic(self.log).set("accept.range.fetch", True, self.topic)
        self.written = 0
        self.consumers: list[CooperativeConsumer] = []

    def write(self, count: int, partition: int = 0) -> None:
        """Write records with keys 0, 1, ... to a partition."""
        writer = self.log.writer()
        offsets = range(self.written, self.written + count)
        writer.append(
            self.topic,
            [b"%d" % n for n in offsets],
            [b"v%d" % n for n in offsets],
            [n + 1 for n in offsets],
            partitions=partition,
        )
        writer.flush(60)
        writer.close()
        self.written += count

    def remake(self, count: int) -> None:
        """Delete the topic, create it again, and write this many records."""
        partitions = self.log.partitions([self.topic])[self.topic]
        self.log.delete_topics([self.topic])
        self.log.create_topics([TopicSpec(self.topic, partitions)])
        self.written = 0
        self.write(count)

    def make(self, **config: Any) -> CooperativeConsumer:
        named = {name.replace("_", "."): value for name, value in config.items()}
        settings = {
            **self.login,
            "group.id": self.group,
            "heartbeat.interval.ms": 200,
            "session.timeout.ms": 60_000,
        }
        consumer = CooperativeConsumer({**settings, **named})
        self.consumers.append(consumer)
        return consumer

    def alone(self, ranges: Sequence[KeyRange], **config: Any) -> CooperativeConsumer:
        """Return a consumer that reads these key ranges of partition 0, without a
        group.
        """
        consumer = self.make(**config)
        consumer.assign({self.at: ranges})
        return consumer

    def member(self, **config: Any) -> CooperativeConsumer:
        """Return a consumer that joins the group."""
        consumer = self.make(**config)
        consumer.subscribe([self.topic])
        return consumer

    def offsets_of(self, key_range: KeyRange) -> list[int]:
        return [n for n in range(self.written) if key_hash(b"%d" % n) in key_range]

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()
        self.log.close()


def read(
    consumer: CooperativeConsumer, count: int, timeout_s: float = 90.0
) -> list[ConsumerRecord]:
    """Consume until this many records have come."""
    records: list[ConsumerRecord] = []
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        records += consumer.consume(count - len(records), 0.2)
        if len(records) >= count:
            return records
    pytest.fail(f"{len(records)} of {count} records")


def nothing_more(consumer: CooperativeConsumer) -> None:
    assert [(record.offset, record.key) for record in consumer.consume(100, 0.5)] == []


def finish(
    consumer: CooperativeConsumer,
    records: Iterable[ConsumerRecord],
    which: Callable[[int], bool] = lambda _: True,
) -> None:
    for record in records:
        if which(record.offset):
            consumer.done(record)


def poll_until(
    true: Callable[[], object], *consumers: CooperativeConsumer, timeout_s: float = 90.0
) -> list[ConsumerRecord]:
    """Poll all consumers in turn until the condition holds; return their records."""
    records: list[ConsumerRecord] = []
    until = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > until:
            pytest.fail(
                f"not within {timeout_s} s; assigned: {[consumer.assignment() for consumer in consumers]}"
            )
        for consumer in consumers:
            records += consumer.consume(500, 0.05)
    return records
