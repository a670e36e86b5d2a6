"""Membership on a real Kafka: sharing, hand-over, fences, and transactions of dead
members.
"""

# pyright: reportAttributeAccessIssue=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

import copy
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import cast

import pytest
from confluent_kafka.admin import AdminClient

from coopstreams.common.host import System
from coopstreams.group.claims import check_granted
from coopstreams.group.coordinator import GroupCoordinator
from coopstreams.group.coordinator_interface import Identity
from coopstreams.group.membership import Lost, Refused, Timings
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    FencedError,
    GroupError,
    LogError,
    MembershipLostError,
    UnknownTopicError,
)
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.task_id import TaskId
from tests.conftest import Kafka
from tests.group.instances import (
    CALM,
    PATIENCE_S,
    QUICK,
    Application,
    application,
    commit,
    eventually,
    later,
)

pytestmark = pytest.mark.broker


# --- sharing and hand-over ------------------------------------------------------


def test_five_share_three_partitions_and_the_others_take_over_from_one_that_dies(
    kafka: Kafka,
) -> None:
    with application(kafka.bootstrap, kafka.unique("five"), 3) as app:
        for name in "abcde":
            app.start(name, timings=QUICK if name == "c" else CALM)
        app.complete(*"abcde")
        assert max(len(instance.tasks) for instance in app.instances.values()) == 1
        app.instances["c"].die()
        app.complete(*"abde")
        app.instances["a"].close()
        app.complete(*"bde")
        app.start("f", threads=3)
        app.complete(*"bdef")
        for instance in app.instances.values():
            clusters = {
                event.generation: event.cluster
                for event in instance.events
                if not isinstance(event, (Lost, Refused))
            }
            for cluster in clusters.values():
                check_granted(
                    {member.id: member.tasks for member in cluster.members}, {}
                )


def test_nobody_waits_for_a_dead_member_whose_successor_is_there(
    app: Application,
) -> None:
    long = replace(CALM, session=20 * 60_000)
    a = app.start("a", timings=long)
    app.complete("a")
    app.start("b", timings=long)
    app.complete("a", "b")
    dead = a.member.id
    a.die()
    app.start("c", timings=long, identity=Identity(predecessor=dead))
    app.complete("b", "c")


def test_everybody_has_the_same_picture_of_the_group(app: Application) -> None:
    a = app.start("a", endpoint="a:1", transactional_ids=("t-a-0", "t-a-1"))
    b = app.start("b", endpoint="b:1", transactional_ids=("t-b-0",))
    app.complete("a", "b")
    eventually(lambda: a.generation == b.generation)
    assert a.cluster == b.cluster
    assert {
        member.info.process: (member.info.endpoint, member.tasks)
        for member in a.cluster.members
    } == {
        "a": ("a:1", a.tasks),
        "b": ("b:1", b.tasks),
    }
    assert a.cluster.transactional_ids == {"t-a-0", "t-a-1", "t-b-0"}
    assert a.cluster.partitions == {0: 1}


def test_kafkas_tools_see_who_reads_which_partition(app: Application) -> None:
    app.start("a")
    app.complete("a")
    admin = AdminClient({"bootstrap.servers": app.bootstrap})
    group = admin.describe_consumer_groups([app.group])[app.group].result(PATIENCE_S)
    assert group.partition_assignor == "coopstreams"
    assert [
        (t.topic, t.partition) for t in group.members[0].assignment.topic_partitions
    ] == [(f"{app.group}-topic", 0)]


def test_a_revoked_range_reaches_its_next_owner_only_when_it_was_released(
    app: Application,
) -> None:
    a = app.start("a")
    app.complete("a")
    a.may_release.clear()
    b = app.start("b")
    eventually(lambda: b.assigned is not None)
    for _ in range(3):  # further rebalances change nothing
        before = b.generation
        b.member.rejoin()
        eventually(partial(later, before, b))
        assert b.tasks == ()
        assert TaskId(0, 0, KeyRange.of_groups(0, 255)) in a.member.held()
    a.may_release.set()
    app.complete("a", "b")


def test_what_does_not_move_stays_open(kafka: Kafka) -> None:
    with application(kafka.bootstrap, kafka.unique("calm"), 2) as app:
        a, b = app.start("a"), app.start("b")
        app.complete("a", "b")
        eventually(lambda: a.generation == b.generation)
        told = {instance: len(instance.events) for instance in (a, b)}
        c = app.start("c")
        app.complete("a", "b", "c")
        eventually(lambda: a.generation == b.generation == c.generation)
        given_up = [
            event.revoked
            for instance, seen in told.items()
            for event in instance.events[seen:]
            if not isinstance(event, (Lost, Refused))
        ]
        assert sum(map(len, given_up)) == 1


def test_a_follower_can_have_a_rebalance(app: Application) -> None:
    """A follower that joins with an unchanged subscription gets its old assignment, so
    each request has a number.
    """
    a, b = app.start("a"), app.start("b")
    app.complete("a", "b")
    for instance in (a, b):
        eventually(lambda: a.generation == b.generation)
        before = a.generation
        instance.member.rejoin()
        eventually(partial(later, before, a, b))


# --- fences ---------------------------------------------------------------------


def test_a_commit_of_an_earlier_generation_is_refused(
    app: Application, partition: TopicPartition
) -> None:
    a = app.start("a")
    app.complete("a")
    stale = commit(a, partition, 1)
    app.start("b")
    app.complete("a", "b")
    with pytest.raises(MembershipLostError, match="committing offsets of group"):
        a.member.commit({partition: (99, "")}, stale)
    commit(a, partition, 2)
    assert a.member.committed([partition]) == {partition: (2, "")}


def test_a_transaction_of_an_earlier_generation_is_refused_and_the_next_one_goes_through(
    app: Application, partition: TopicPartition
) -> None:
    a = app.start("a")
    app.complete("a")
    stale = commit(a, partition, 1)
    app.start("b")
    app.complete("a", "b")
    writer = KafkaLog({"bootstrap.servers": app.bootstrap}).writer(
        f"{app.group}-transaction"
    )
    writer.begin()
    with pytest.raises(FencedError), a.member.fence(0):
        writer.send_offsets({partition: (99, "")}, stale)
    writer.abort()
    writer.begin()
    with a.member.fence(0) as fence:
        writer.send_offsets({partition: (3, "done")}, fence)
    writer.commit(PATIENCE_S)
    writer.close()
    assert a.member.committed([partition]) == {partition: (3, "done")}
    assert not a.heard(Lost)


@pytest.mark.ci
def test_a_commit_to_a_topic_that_does_not_exist_is_refused(app: Application) -> None:
    a = app.start("a")
    app.complete("a")
    with pytest.raises(UnknownTopicError, match="no-such-topic-0"):
        commit(a, TopicPartition("no-such-topic", 0), 1)


def test_a_commit_waits_for_a_topic_that_the_coordinator_does_not_know_yet(
    app: Application, kafka: Kafka
) -> None:
    """A broker learns of a topic after its controller has created it: a commit in
    between ended an application.
    """
    a = app.start("a")
    app.complete("a")
    partition = TopicPartition(kafka.unique("soon"), 0)
    with ThreadPoolExecutor(1) as pool:
        committed = pool.submit(commit, a, partition, 1)
        kafka.create(partition.topic)
        committed.result(PATIENCE_S)
    assert a.member.committed([partition]) == {partition: (1, "")}


def test_there_is_no_fence_before_the_first_assignment_nor_after_the_end(
    app: Application,
) -> None:
    a = app.start("a")
    app.complete("a")
    with pytest.raises(MembershipLostError, match="since epoch 5"), a.member.fence(5):
        pass
    a.close()
    with pytest.raises(MembershipLostError), a.member.fence(a.member.epoch):
        pass
    with pytest.raises(GroupError, match="closed"):
        a.member.committed([TopicPartition("t", 0)])


def test_commits_of_several_threads_go_on_while_members_come_and_go(
    app: Application, partition: TopicPartition
) -> None:
    """A rebalance refuses no rightful owner's commit: joins wait for commits, and
    commits for joins.
    """
    a = app.start("a")
    app.complete("a")
    stop = threading.Event()

    def committing(number: int) -> int:
        done = 0
        while not stop.is_set():
            commit(a, TopicPartition(partition.topic, 0), number)
            done += 1
        return done

    with ThreadPoolExecutor(3) as pool:
        threads = [pool.submit(committing, number) for number in range(3)]
        for name in "bcd":
            app.start(name)
            app.complete("a", *(other for other in "bcd" if other <= name))
        for name in "bc":
            app.instances[name].close()
        app.complete("a", "d")
        stop.set()
        assert min(thread.result(PATIENCE_S) for thread in threads) > 10
    assert not a.heard(Lost)


@pytest.mark.ci
def test_a_join_that_waits_for_a_dead_member_does_not_stop_commits(
    app: Application, partition: TopicPartition
) -> None:
    short = Timings(session=6000, heartbeat=200)
    a, b = app.start("a", timings=short), app.start("b", timings=short)
    app.complete("a", "b")
    b.die()
    before = a.generation
    a.member.rejoin()  # the broker waits for b until its session times out
    began = time.monotonic()
    commits = 0
    while a.generation == before and time.monotonic() < began + PATIENCE_S:
        commit(a, partition, commits)
        commits += 1
    assert commits >= 3
    app.complete("a")


def test_committed_offsets_wait_for_a_transaction_that_is_open(
    app: Application, partition: TopicPartition
) -> None:
    a = app.start("a")
    app.complete("a")
    commit(a, partition, 1)
    writer = KafkaLog({"bootstrap.servers": app.bootstrap}).writer(
        f"{app.group}-transaction"
    )
    writer.begin()
    with a.member.fence(0) as fence:
        writer.send_offsets({partition: (2, "in doubt")}, fence)
    with pytest.raises(
        LogError, match=rf"an open transaction has kept back {partition} for 2 s"
    ):
        a.member.committed([partition], timeout_ms=2000)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(a.member.committed, [partition])
        writer.commit(PATIENCE_S)
        assert answer.result(PATIENCE_S) == {partition: (2, "in doubt")}
    writer.close()


# --- transactions of the dead ----------------------------------------------------


def test_a_transaction_that_nobody_ends_is_ended_at_once_and_its_producer_fenced(
    app: Application, partition: TopicPartition
) -> None:
    a = app.start("a")
    app.complete("a")
    log = KafkaLog({"bootstrap.servers": app.bootstrap})
    dead, living = (log.writer(f"{app.group}-{who}") for who in ("dead", "living"))
    for writer in (dead, living):
        writer.begin()
        writer.append(partition.topic, [b"k"], [b"v"], [0], partitions=0)
        writer.flush(PATIENCE_S)
    assert a.member.open_transactions(f"{app.group}-") == {
        f"{app.group}-dead",
        f"{app.group}-living",
    }
    a.member.end_transaction(f"{app.group}-dead")
    eventually(
        lambda: a.member.open_transactions(f"{app.group}-") == {f"{app.group}-living"}
    )
    with pytest.raises(FencedError):
        dead.commit(PATIENCE_S)
    living.commit(PATIENCE_S)
    for writer in (dead, living):
        writer.close()
    log.close()


def test_ending_a_transaction_that_never_was_does_nothing(app: Application) -> None:
    a = app.start("a")
    app.complete("a")
    a.member.end_transaction(f"{app.group}-nobody")
    a.member.end_transaction(f"{app.group}-nobody")
    assert a.member.open_transactions(app.group) == frozenset()


def test_a_broker_that_says_nothing_keeps_no_answer_of_the_others_back(
    app: Application, partition: TopicPartition
) -> None:
    a = app.start("a")
    app.complete("a")
    log = KafkaLog({"bootstrap.servers": app.bootstrap})
    writer = log.writer(f"{app.group}-open")
    writer.begin()
    writer.append(partition.topic, [b"k"], [b"v"], [0], partitions=0)
    writer.flush(PATIENCE_S)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        brokers = cast(
            GroupCoordinator, a.member._coordinator
        )._connection.network.client.cluster._brokers
        brokers[77] = copy.copy(next(iter(brokers.values())))
        brokers[77].node_id, brokers[77].port = 77, silent.getsockname()[1]
        for _ in range(3):
            eventually(
                lambda: (
                    a.member.open_transactions(f"{app.group}-") == {f"{app.group}-open"}
                )
            )
        brokers.pop(77, None)
    writer.close()
    log.close()


class Laptop(System):
    """A machine that can be suspended."""

    asleep_s = 0.0

    def elapsed(self) -> float:
        return super().elapsed() + self.asleep_s


def test_a_machine_that_was_suspended_costs_the_certainty_until_the_group_has_answered(
    app: Application,
) -> None:
    """The monotonic clock stops meanwhile; the clock that counts suspended time does
    not, nor does the broker's.
    """
    asleep, awake, laptop = threading.Event(), threading.Event(), Laptop()
    awake.set()

    def alive() -> bool:  # on the thread that sends heartbeats
        if not awake.is_set():
            asleep.set()
        return awake.wait(PATIENCE_S)

    one = app.start("one", alive=alive, machine=laptop)
    app.complete("one")
    assert one.member.sure(0)
    asked = one.member.ask()
    eventually(lambda: one.member.confirmed(asked, 0))
    assert not one.member.confirmed(asked, 1), "of another epoch nobody has heard"
    awake.clear()
    assert asleep.wait(PATIENCE_S)
    asked = one.member.ask()
    laptop.asleep_s += CALM.session / 1000
    assert not one.member.sure(0)
    assert not one.member.confirmed(asked, 0)
    awake.set()
    eventually(lambda: one.member.sure(0))
    assert one.member.confirmed(asked, 0)
    assert one.member.epoch == 0
