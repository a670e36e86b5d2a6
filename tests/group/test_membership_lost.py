"""Membership on a real Kafka, lost or refused: zombies, outages, static members, and
errors with a cure.
"""

# pyright: reportAttributeAccessIssue=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from coopstreams.dev.broker import KafkaBroker
from coopstreams.group.codec import decode_assignment
from coopstreams.group.coordinator import GroupCoordinator
from coopstreams.group.coordinator_interface import Identity
from coopstreams.group.group_settings import kafka_python_settings
from coopstreams.group.membership import Lost, Refused, Timings
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import GroupError, MembershipLostError
from tests.group.instances import (
    PATIENCE_S,
    QUICK,
    Application,
    Instance,
    application,
    commit,
    eventually,
)

pytestmark = pytest.mark.broker


# --- losing the membership --------------------------------------------------------


@pytest.mark.ci
def test_a_zombie_learns_that_it_is_one_and_comes_back_under_another_epoch(
    app: Application, partition: TopicPartition
) -> None:
    """`alive` runs on the thread that sends heartbeats: blocking it is like a C call
    that keeps the GIL.
    """
    awake = threading.Event()
    awake.set()
    z = app.start("z", alive=lambda: awake.wait(PATIENCE_S), timings=QUICK)
    other = app.start("other")
    app.complete("z", "other")
    stale = commit(z, partition, 1)
    assert z.member.sure(0)
    awake.clear()
    eventually(
        lambda: any(task.key_range.is_whole for task in other.tasks), "nobody took over"
    )
    assert not z.member.sure(0)
    assert z.member.epoch == 0
    app.ledger.died("z")  # from here on, its work is void
    commit(other, partition, 2)
    app.ledger.clashes.clear()
    awake.set()
    eventually(lambda: z.heard(Lost))
    with pytest.raises(MembershipLostError, match="since epoch 0"), z.member.fence(0):
        pass
    with pytest.raises(MembershipLostError):
        z.member.commit({partition: (99, "")}, stale)
    app.complete("z", "other")
    assert z.member.epoch == 1
    assert z.assigned is not None
    assert z.assigned.epoch == 1
    assert z.member.sure(1)
    commit(z, partition, 3)


@pytest.mark.slow
def test_a_short_outage_of_the_broker_costs_nobody_the_membership(
    broker_to_break: KafkaBroker,
) -> None:
    with application(broker_to_break.bootstrap, "outage", 1) as app:
        a, b = app.start("a"), app.start("b")
        app.complete("a", "b")
        admin = AdminClient({"bootstrap.servers": broker_to_break.bootstrap})
        admin.create_topics([NewTopic("outage", 1, 1)])["outage"].result(PATIENCE_S)
        partition = TopicPartition("outage", 0)
        commit(a, partition, 1)
        broker_to_break.restart()
        commit(a, partition, 2)
        commit(b, partition, 3)
        assert a.member.committed([partition]) == {partition: (3, "")}
        assert not a.heard(Lost)
        assert not b.heard(Lost)
        assert (a.member.epoch, b.member.epoch) == (0, 0)


# --- static members ---------------------------------------------------------------


def test_a_static_member_that_starts_again_keeps_its_tasks_and_everybody_learns_its_new_address(
    app: Application,
) -> None:
    a = app.start("a")
    old = app.start("old", identity=Identity("one"), endpoint="old:1")
    app.complete("a", "old")
    tasks = old.tasks
    old.close()
    new = app.start("new", identity=Identity("one"), endpoint="new:1")
    app.complete("a", "new")
    assert new.tasks == tasks
    eventually(
        lambda: (
            {member.info.endpoint for member in a.cluster.members} == {None, "new:1"}
        )
    )
    assert not a.heard(Lost)


def test_of_two_processes_with_one_instance_id_the_older_one_stops(
    app: Application,
) -> None:
    old = app.start("old", identity=Identity("one"))
    app.complete("old")
    new = app.start("new", identity=Identity("one"))
    eventually(lambda: old.heard(Refused))
    assert (
        "another process has taken over group.instance.id 'one'" in old.member.problem
    )
    app.ledger.clashes.clear()  # it is fenced: its open tasks are void
    app.complete("new")
    assert not new.heard(Refused)


# --- what is refused ----------------------------------------------------------------


def refusal(instance: Instance) -> str:
    eventually(
        lambda: instance.heard(Refused), f"not refused; {instance.member.problem}"
    )
    return next(
        str(event.error) for event in instance.events if isinstance(event, Refused)
    )


def test_a_group_that_other_consumers_use_is_named(
    app: Application, partition: TopicPartition
) -> None:
    consumer = Consumer({"bootstrap.servers": app.bootstrap, "group.id": app.group})
    consumer.subscribe([partition.topic])
    eventually(lambda: consumer.poll(0.05) is None and len(consumer.assignment()) == 1)
    assert f"group {app.group} is in use by other consumers" in refusal(app.start("a"))
    consumer.close()


def test_a_broker_that_cannot_be_reached_is_named_with_the_reason() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with application(address, "nowhere", 1) as app:
            said = refusal(app.start("a", timings=Timings(connect=1000)))
    assert f"cannot reach the brokers at {address}: KafkaConnectionError" in said
    assert "ECONNREFUSED" in said
    assert "is bootstrap.servers right?" in said


@pytest.mark.slow
def test_a_broker_that_comes_up_late_is_found(
    broker_of_own: Callable[..., KafkaBroker],
) -> None:
    broker = broker_of_own()
    broker.stop()
    with application(broker.bootstrap, "late", 1) as app:
        a = app.start("a")
        eventually(lambda: "cannot reach the brokers" in a.member.problem)
        broker.start()
        app.complete("a")


class Stranger:
    """A foreign member whose assignor is called `coopstreams` as well."""

    def __init__(self) -> None:
        self.given: list[bytes] = []

    def alive(self) -> bool:
        return True

    def subscription(self) -> bytes:
        return bytes(
            ConsumerProtocolSubscription(
                version=1, topics=["t"], user_data=b"sticky", owned_partitions=[]
            ).encode()
        )

    def assignments(self, subscriptions: Mapping[str, bytes]) -> dict[str, bytes]:
        return dict.fromkeys(subscriptions, b"")

    def may_join(self) -> bool:
        return True

    def answered(self, generation: int) -> None:
        pass

    def joined(self, generation: int, assignment: bytes) -> bool:
        self.given.append(assignment)
        return False

    def lost(self) -> None:
        pass

    def failed(self, error: GroupError) -> None:
        raise AssertionError(error)


def test_a_stranger_in_the_group_gets_nothing_and_stops_nobody(
    app: Application,
) -> None:
    app.start("a")
    app.complete("a")
    hooks = Stranger()
    stranger = GroupCoordinator(
        kafka_python_settings({"bootstrap.servers": app.bootstrap}),
        app.group,
        Identity(),
        QUICK,
        hooks,
    )
    stranger.start()
    eventually(lambda: bool(hooks.given))
    assert (
        "is not an instance of this application"
        in decode_assignment(hooks.given[-1], "a").error
    )
    app.start("b")
    app.complete("a", "b")
    stranger.close(leave=True)
