"""The cluster of three brokers does what its name says, and each fault is the one it is meant to be."""

from __future__ import annotations

import socket

import pytest
from confluent_kafka import Producer

from tests.broker.cluster import ThreeBrokers
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def write(cluster: ThreeBrokers, topic: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 2})
    producer.produce(topic, value)
    assert producer.flush(60) == 0


@pytest.mark.parametrize("how", ["kill", "stop", "pause"])
def test_the_cluster_goes_on_without_the_leader_of_a_partition(three_brokers: ThreeBrokers, how: str) -> None:
    topic = three_brokers.kafka.topic("survives")
    write(three_brokers, topic, "before")
    leader = three_brokers.leader_of(topic)
    assert leader is not None

    getattr(three_brokers, how)(leader)
    assert leader not in three_brokers.living
    eventually(lambda: three_brokers.leader_of(topic) not in {leader, None}, 60, lambda: f"broker {leader} still leads")
    write(three_brokers, topic, "between")

    three_brokers.mend()
    write(three_brokers, topic, "after")
    assert [record.value for record in read_topic(three_brokers.bootstrap, topic)] == [b"before", b"between", b"after"]


@pytest.mark.parametrize("kind", ["group", "transaction"])
def test_coordinators_are_found_and_move_when_they_are_killed(three_brokers: ThreeBrokers, kind: str) -> None:
    def find() -> int | None:
        return (
            three_brokers.group_coordinator("a group")
            if kind == "group"
            else three_brokers.transaction_coordinator("an id")
        )

    eventually(lambda: find() is not None, 60, lambda: f"no {kind} coordinator")
    first = find()
    assert first is not None
    three_brokers.kill(first)
    eventually(lambda: find() not in {first, None}, 60, lambda: f"broker {first} is still the coordinator")


def test_a_paused_broker_takes_connections_and_says_nothing(three_brokers: ThreeBrokers) -> None:
    three_brokers.pause(2)
    port = int(three_brokers.brokers[2].bootstrap.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    assert three_brokers.living == [1, 3]
