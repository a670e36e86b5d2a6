"""The clients of the bare loops, which a process of a benchmark runs by hand, without a
framework.
"""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition


def bare_clients(bootstrap: str, group: str, source: str) -> tuple[Consumer, Producer]:
    """Return a consumer that is assigned the first partition of a topic from its start,
    and a producer.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 2,
            "queued.min.messages": 200_000,
            "fetch.message.max.bytes": 8 << 20,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 1_000_000,
            "delivery.report.only.error": True,
            "partitioner": "murmur2_random",
        }
    )
    consumer.assign([TopicPartition(source, 0, 0)])
    return consumer, producer
