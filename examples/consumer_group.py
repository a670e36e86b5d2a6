"""A group that shares partitions: start any number of members, even more than there are
partitions.

    python examples/consumer_group.py localhost:9092 orders

Each key belongs to one member at a time, in the order of its records. The topic must
allow it: `coopstreams policy set accept.range.fetch=true --topic orders`.
"""

import sys
from collections.abc import Callable

from coopstreams.consumer import ConsumerRecord, CooperativeConsumer


def run(
    bootstrap: str,
    topic: str,
    work: Callable[[ConsumerRecord], None],
    running: Callable[[], bool],
) -> None:
    with CooperativeConsumer(
        {"bootstrap.servers": bootstrap, "group.id": f"{topic}-workers"}
    ) as consumer:
        consumer.subscribe(
            [topic],
            on_assign=lambda ranges: print("reads", ranges),
            on_revoke=lambda ranges: print("gives up", ranges),
            on_lost=lambda ranges: print("lost", ranges),
        )
        while running():
            for record in consumer.consume(500, timeout_s=0.5):
                work(record)
                consumer.done(record)
            consumer.commit()


if __name__ == "__main__":
    run(
        sys.argv[1],
        sys.argv[2],
        lambda record: print(record.partition, record.offset, record.key, record.value),
        lambda: True,
    )
