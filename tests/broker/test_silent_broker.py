"""A broker that is there and says nothing: what the others know is known all the same."""

from __future__ import annotations

import pytest

from coopstreams.log.kafka_log import KafkaLog
from tests.broker.cluster import NODES, ThreeBrokers
from tests.group.instances import PATIENCE_S, application, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_transactions_of_the_dead_are_found_and_ended_beside_a_broker_that_stands_still(three_brokers: ThreeBrokers) -> None:
    kafka = three_brokers.kafka
    topic = kafka.topic("input")
    with application(three_brokers.bootstrap, kafka.unique("silent"), 1) as app:
        a = app.start("a")
        app.complete("a")
        log = KafkaLog({"bootstrap.servers": three_brokers.bootstrap})
        coordinator = three_brokers.group_coordinator(app.group)
        silent = next(node for node in NODES if node != coordinator)
        ids = (f"{app.group}-dead-{number}" for number in range(1000))
        dead = next(name for name in ids if three_brokers.transaction_coordinator(name) != silent)
        writer = log.writer(dead)
        writer.begin()
        writer.append(topic, [b"k"], [b"v"], [0], partitions=0)
        writer.flush(PATIENCE_S)
        three_brokers.pause(silent)
        eventually(lambda: a.member.open_transactions(app.group) == {dead})
        a.member.end_transaction(dead)
        eventually(lambda: a.member.open_transactions(app.group) == frozenset())
        three_brokers.mend()
        writer.close()
        log.close()
