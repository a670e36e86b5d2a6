"""A broker that accepts requests and does not answer: requests that other brokers can
answer do not wait for it.
"""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from coopstreams.group.admin import connected
from coopstreams.group.hanging_transactions import Transactions
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from tests.broker.cluster import NODES, ThreeBrokers
from tests.group.instances import PATIENCE_S, Instance, application, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_transactions_of_the_dead_are_found_and_ended_beside_a_broker_that_stands_still(
    three_brokers: ThreeBrokers,
) -> None:
    kafka = three_brokers.kafka
    topic = kafka.topic("input")
    with application(three_brokers.bootstrap, kafka.unique("silent"), 1) as app:
        a = app.start("a")
        app.complete("a")
        log = KafkaLog({"bootstrap.servers": three_brokers.bootstrap})
        coordinator = three_brokers.group_coordinator(app.group)
        silent = next(node for node in NODES if node != coordinator)
        ids = (f"{app.group}-dead-{number}" for number in range(1000))
        dead = next(
            name
            for name in ids
            if three_brokers.transaction_coordinator(name) != silent
        )
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


def test_a_question_is_asked_of_the_next_coordinator_when_the_one_that_was_asked_stands_still(
    three_brokers: ThreeBrokers,
) -> None:
    """The request waited there until its time limit: an abort took 72 s."""
    kafka = three_brokers.kafka
    id_ = kafka.unique("silent")
    Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": id_}
    ).init_transactions(PATIENCE_S)
    transactions = Transactions(
        connected({"bootstrap.servers": kafka.bootstrap}, PATIENCE_S)
    )
    try:
        assert transactions.settle(id_, (), PATIENCE_S) == frozenset()
        silent = three_brokers.transaction_coordinator(id_)
        assert silent is not None
        three_brokers.pause(silent)
        assert transactions.settle(id_, (), PATIENCE_S) == frozenset()
    finally:
        transactions.close()
        three_brokers.mend()


def coordinator_of(instance: Instance) -> int | None:
    """Return the broker that a member commits to."""
    with instance.member.fence(instance.member.epoch) as fence:
        return fence.coordinator


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_offsets_reach_the_next_coordinator_of_the_group(
    three_brokers: ThreeBrokers, how: str
) -> None:
    """A producer connected to the lost broker waited for it, so that the commit, and
    then the whole transaction, was repeated.
    """
    kafka = three_brokers.kafka
    partition = TopicPartition(kafka.topic("input"), 0)
    with application(three_brokers.bootstrap, kafka.unique("next"), 1) as app:
        a = app.start("a")
        app.complete("a")
        log = KafkaLog(
            {
                "bootstrap.servers": three_brokers.bootstrap,
                "producer.transaction.timeout.ms": 60_000,
            }
        )
        writer = log.writer(kafka.unique("next"))
        lost = three_brokers.group_coordinator(app.group)
        assert lost is not None
        for offset in range(3):
            writer.begin()
            writer.append(partition.topic, [b"k"], [b"v"], [1], partitions=0)
            if offset == 1:
                getattr(three_brokers, how)(lost)
                eventually(lambda: coordinator_of(a) not in {lost, None})
            writer.flush(PATIENCE_S)
            with a.member.fence(a.member.epoch) as fence:
                if offset == 1:
                    with pytest.raises(LogError, match=f"no longer {lost}"):
                        writer.send_offsets({partition: (offset, "")}, fence)
                    writer.abort()
                else:
                    writer.send_offsets({partition: (offset, "")}, fence)
                    writer.commit(PATIENCE_S)
        three_brokers.mend()
        assert a.member.committed([partition])[partition] == (2, "")
        writer.close()
        log.close()
