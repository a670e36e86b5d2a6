"""Several processes share each partition by key range without a group: arguments assign
each process its part.

    python examples/consumer_key_ranges.py localhost:9092 orders 0 3      the first of three processes; then 1 3 and 2 3

Write these three lines into three pod templates: a pod that is replaced goes on where
its predecessor committed. The topic must allow it: `coopstreams policy set
accept.range.fetch=true --topic orders`.
"""

import sys
from collections.abc import Callable

from coopstreams.consumer import ConsumerRecord, CooperativeConsumer, KeyRange


def run(
    bootstrap: str,
    topic: str,
    number: int,
    of: int,
    work: Callable[[ConsumerRecord], None],
    running: Callable[[], bool],
) -> None:
    mine = KeyRange.split(of)[number]
    with CooperativeConsumer(
        {"bootstrap.servers": bootstrap, "group.id": f"{topic}-by-range"}
    ) as consumer:
        consumer.assign({(topic, 0): [mine]})
        while running():
            for record in consumer.consume(500, timeout_s=0.5):
                work(record)
                consumer.done(record)
            consumer.commit()


if __name__ == "__main__":
    bootstrap, topic, number, of = sys.argv[1:]
    run(
        bootstrap,
        topic,
        int(number),
        int(of),
        lambda record: print(record.offset, record.key, record.value),
        lambda: True,
    )
