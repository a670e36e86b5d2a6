"""A former leader that was paused and resumes reports an old end offset: no barrier and
no restore may use it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from coopstreams.commit.follower import Follower
from coopstreams.commit.record import (
    CommitKey,
    CommitValue,
    Segment,
    encode_key,
    encode_value,
    partition_of,
)
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import Position
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.naming import COMMIT_TOPIC
from tests.broker.cluster import NODES, ThreeBrokers
from tests.broker.waiting import eventually
from tests.log.reading import fill, numbers

pytestmark = [pytest.mark.broker, pytest.mark.slow]

LONG_S = 90.0
BEFORE, AFTER = 5, 10
WINDOW_S = 4.0
PARTITIONS = 30
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def log(three_brokers: ThreeBrokers) -> Iterator[KafkaLog]:
    made = KafkaLog({"bootstrap.servers": three_brokers.bootstrap}, timeout_s=LONG_S)
    yield made
    made.close()


def led_by(
    cluster: ThreeBrokers, topic: str, partitions: int
) -> tuple[int, list[TopicPartition]]:
    """Return a broker that is not the active controller, and the partitions that it
    leads.
    """
    broker = next(node for node in NODES if node != cluster.controller())
    return broker, [
        TopicPartition(topic, number)
        for number in range(partitions)
        if cluster.leader_of(topic, number) == broker
    ]


def pass_on(
    cluster: ThreeBrokers, old: int, led: list[TopicPartition]
) -> tuple[int, TopicPartition]:
    """Pause a leader until its partitions have another; return the controller, and a
    partition of another leader.
    """
    cluster.pause(old)
    eventually(
        lambda: not {cluster.leader_of(*at) for at in led} & {old, None},
        LONG_S,
        lambda: f"broker {old} still leads",
    )
    controller = cluster.controller()
    return controller, next(at for at in led if cluster.leader_of(*at) != controller)


def wake(cluster: ThreeBrokers, old: int, controller: int) -> None:
    """Resume a broker and pause the controller: for a while the broker does not learn
    of its successors.
    """
    cluster.pause(controller)
    cluster.resume(old)


@contextmanager
def other_client(cluster: ThreeBrokers) -> Iterator[KafkaLog]:
    """Return a client with fresh metadata."""
    client = KafkaLog({"bootstrap.servers": cluster.bootstrap}, timeout_s=LONG_S)
    yield client
    client.close()


@pytest.mark.parametrize("min_isr", [1, 2])
def test_a_leader_that_wakes_is_not_asked_where_a_partition_ends(
    three_brokers: ThreeBrokers, log: KafkaLog, min_isr: int
) -> None:
    topic = three_brokers.kafka.topic(
        "ends", PARTITIONS, min_insync_replicas=str(min_isr)
    )
    old, led = led_by(three_brokers, topic, PARTITIONS)
    for at in led:
        fill(log, at, numbers(BEFORE))
    assert set(log.end_offsets(led).values()) == {BEFORE}
    assert {log.reported_end(at) for at in led} == {
        BEFORE
    }  # the client knows their leaders
    controller, at = pass_on(three_brokers, old, led)
    with other_client(three_brokers) as client:
        fill(client, at, numbers(AFTER))
    with ThreadPoolExecutor(2) as threads:
        reported, true = (
            threads.submit(log.reported_end, at),
            threads.submit(log.end_offset, at),
        )
        time.sleep(0.2)  # the requests wait in the socket of the paused broker
        wake(three_brokers, old, controller)
        told, heard, until = [], [], time.monotonic() + WINDOW_S
        while time.monotonic() < until:
            told.append(log.end_offset(at))
            heard.append(log.reported_end(at))
        three_brokers.mend()
        told.append(true.result(LONG_S))
        heard.append(reported.result(LONG_S))
    stale = sum(end < BEFORE + AFTER for end in heard)
    print(
        f"{stale} of {len(heard)} reports were of before, while {len(told)} true ends were told"
    )
    assert set(told) == {BEFORE + AFTER}


def test_no_task_opens_where_its_predecessor_was_when_a_leader_stood_still(
    three_brokers: ThreeBrokers, log: KafkaLog
) -> None:
    groups: dict[TopicPartition, str] = {}
    for name in (
        three_brokers.kafka.unique(f"stale-{number}") for number in range(500)
    ):
        groups.setdefault(
            TopicPartition(COMMIT_TOPIC, partition_of(name, PARTITIONS)), name
        )
    followers = {
        at: Follower(log, name, partitions=PARTITIONS)
        for at, name in sorted(groups.items())[:1]
    }  # creates the topic
    old, led = led_by(three_brokers, COMMIT_TOPIC, PARTITIONS)
    followers |= {
        at: Follower(log, groups[at], partitions=PARTITIONS)
        for at in led
        if at not in followers
    }
    for at in led:
        commit(log, followers[at], 1, BEFORE)
        pass_barrier(followers[at])
        assert log.reported_end(at) == 1
    controller, at = pass_on(three_brokers, old, led)
    with other_client(three_brokers) as client:
        commit(client, followers[at], 2, BEFORE + AFTER)
    wake(three_brokers, old, controller)
    pass_barrier(followers[at])
    opening = followers[at].open(ORDERS, WHOLE, None, Position(0))
    three_brokers.mend()
    for follower in followers.values():
        follower.close()
    assert [segment.position for segment in opening.segments] == [BEFORE + AFTER]


def commit(log: KafkaLog, follower: Follower, term: int, position: int) -> None:
    key = encode_key(CommitKey(follower.group, *ORDERS, WHOLE, term, 1))
    writer = log.writer()
    value = encode_value(CommitValue("t", (Segment(WHOLE, position),)))
    writer.append(
        COMMIT_TOPIC, [key], [value], [1], partitions=follower.partition.partition
    )
    writer.flush(LONG_S)
    writer.close()


def pass_barrier(follower: Follower) -> None:
    """Read on as an opening task does, until the barrier that it takes first is passed."""
    barrier, deadline = follower.barrier(), time.monotonic() + LONG_S
    while not follower.passed(barrier):
        assert time.monotonic() < deadline, (
            f"at {follower.tail}, the barrier is {barrier}"
        )
        follower.poll(0.1)
