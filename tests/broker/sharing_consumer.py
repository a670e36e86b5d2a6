"""A worker of the consumer tests: reads its share of a topic, and copies each record in
the transaction of its commit.

python sharing_consumer.py BOOTSTRAP GROUP INPUT OUTPUT NAME       until SIGTERM
"""

from __future__ import annotations

import logging
import signal
import sys
import threading

from confluent_kafka import Producer

from coopstreams.consumer import CooperativeConsumer
from coopstreams.topology.errors import FencedError, LogError, MembershipLostError

log = logging.getLogger("worker")


def main(bootstrap: str, group: str, source: str, target: str, name: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s {name} %(name)s %(levelname)s %(message)s",
        stream=sys.stdout,
    )
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    with CooperativeConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "session.timeout.ms": 3000,
            "heartbeat.interval.ms": 200,
        }
    ) as consumer:
        producer = new_producer(bootstrap, consumer)
        consumer.subscribe(
            [source],
            on_assign=lambda ranges: log.info("has %s", ranges),
            on_lost=lambda ranges: log.info("lost %s", ranges),
        )
        log.info("ready")
        while not stop.is_set():
            try:
                records = consumer.consume(1000, 0.2)
                if not records:
                    continue
                with consumer.transaction(producer):
                    for record in records:
                        producer.produce(
                            target,
                            f"{record.partition} {record.offset} {name}",
                            record.key,
                            0,
                        )
                        consumer.done(record)
            except FencedError as error:
                log.warning("with a new producer: %s", error)
                producer = new_producer(bootstrap, consumer)
            except (LogError, MembershipLostError) as error:
                log.warning("once more: %s", error)
    log.info("closed")


def new_producer(bootstrap: str, consumer: CooperativeConsumer) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": consumer.transactional_id,
            "retry.backoff.ms": 5,
            "linger.ms": 2,
        }
    )
    producer.init_transactions(90)
    return producer


if __name__ == "__main__":
    main(*sys.argv[1:])
