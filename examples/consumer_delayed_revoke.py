"""A rebalance without interruption: revoked key ranges are finished and committed
first, the others continue at full speed.

    python examples/consumer_delayed_revoke.py localhost:9092 orders

One loop, no listener. While a pool of threads still works on records of a partition
that is to be revoked, `delay_revoke` keeps it; a key range that took too long
(`max.revoke.delay.ms`) is lost, and its records are not committed any more.
"""

import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from coopstreams.consumer import ConsumerRecord, CooperativeConsumer, TopicPartition


def run(
    bootstrap: str,
    topic: str,
    work: Callable[[ConsumerRecord], None],
    running: Callable[[], bool],
) -> None:
    pending: dict[Future[None], ConsumerRecord] = {}

    def busy(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        working = {
            TopicPartition(record.topic, record.partition)
            for future, record in pending.items()
            if not future.done()
        }
        return [at for at in partitions if at in working]

    with (
        ThreadPoolExecutor(8) as pool,
        CooperativeConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{topic}-pool",
                "max.revoke.delay.ms": 30_000,
            }
        ) as consumer,
    ):
        consumer.subscribe([topic])
        while running():
            for record in consumer.consume(100, timeout_s=0.1):
                future = pool.submit(work, record)
                pending[future] = record
            for future in [future for future in pending if future.done()]:
                record = pending.pop(future)
                if future.exception() is None:
                    consumer.done(record)
            consumer.commit()
            if late := busy(consumer.to_be_revoked()):
                consumer.delay_revoke(late)
            if gone := consumer.lost():
                print("lost: do not go on with", gone)


if __name__ == "__main__":
    run(
        sys.argv[1],
        sys.argv[2],
        lambda record: print(record.partition, record.offset, record.key),
        lambda: True,
    )
