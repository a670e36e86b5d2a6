"""A member's reactions to its coordinator's answers: scripted brokers, a group of one
member.
"""

# pyright: reportAttributeAccessIssue=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from kafka.errors import (
    FencedInstanceIdError,
    GroupAuthorizationFailedError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    NotCoordinatorError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from kafka.protocol.admin import ListTransactionsRequest
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)
from kafka.protocol.producer import InitProducerIdRequest

from coopstreams.group.coordinator_interface import Identity
from coopstreams.group.membership import Lost, Refused, Timings
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import MembershipLostError
from tests.group.brokers import Brokers, brokers
from tests.group.instances import Application, application, commit, eventually, later

AT = TopicPartition("input", 0)
OFTEN = Timings(session=60_000, heartbeat=20, patience=30_000)


class OneMember:
    """The coordinator of a group that has one member."""

    def __init__(self, kafka: Brokers) -> None:
        self.generation, self.members, self.committed = 0, 0, list[tuple[int, int]]()
        kafka.answers |= {
            JoinGroupRequest: self.join,
            SyncGroupRequest: lambda _, request: {
                "assignment": request.assignments[0].assignment
            },
            HeartbeatRequest: lambda *_: {},
            LeaveGroupRequest: lambda *_: {},
            OffsetCommitRequest: self.commit,
        }

    def join(self, _: int, request: Any) -> Mapping[str, Any]:
        self.generation += 1
        self.members += not request.member_id
        member = request.member_id or f"member-{self.members}"
        return {
            "generation_id": self.generation,
            "protocol_type": "consumer",
            "protocol_name": request.protocols[0].name,
            "leader": member,
            "member_id": member,
            "members": [
                {"member_id": member, "metadata": request.protocols[0].metadata}
            ],
        }

    def commit(self, broker: int, request: Any) -> Mapping[str, Any]:
        topics = []
        for topic in request.topics:
            self.committed += [(broker, at.committed_offset) for at in topic.partitions]
            partitions = [
                {"partition_index": at.partition_index} for at in topic.partitions
            ]
            topics.append({"name": topic.name, "partitions": partitions})
        return {"topics": topics}


@pytest.fixture
def kafka() -> Iterator[Brokers]:
    with brokers(2) as kafka:
        yield kafka


@pytest.fixture
def group(kafka: Brokers) -> OneMember:
    return OneMember(kafka)


@pytest.fixture
def app(kafka: Brokers, group: OneMember) -> Iterator[Application]:
    with application(kafka.bootstrap, "app", 1) as app:
        yield app


def test_a_member_joins_has_the_tasks_commits_and_leaves(
    kafka: Brokers, group: OneMember, app: Application
) -> None:
    a = app.start("a", timings=OFTEN)
    app.complete("a")
    eventually(lambda: a.member.problem == "")
    fence = commit(a, AT, 7, "positions")
    assert (fence.generation, fence.member, fence.coordinator) == (
        a.generation,
        "member-1",
        1,
    )
    assert group.committed == [(1, 7)]
    eventually(lambda: a.member.sure(0, a.generation))
    a.close()
    assert kafka.count(LeaveGroupRequest) == 1


def test_a_rebalance_is_a_new_generation_of_the_same_membership(
    kafka: Brokers, app: Application
) -> None:
    a = app.start("a", timings=OFTEN)
    app.complete("a")
    kafka.refuse(HeartbeatRequest, RebalanceInProgressError.errno)
    eventually(partial(later, 1, a))
    assert (a.member.epoch, a.member.id, a.heard(Lost)) == (0, "member-1", False)


def test_heartbeats_during_a_rebalance_do_not_prolong_the_certainty(
    kafka: Brokers, app: Application
) -> None:
    """The group goes on without a member that does not join again in time, whatever
    heartbeats it sends meanwhile.
    """
    a = app.start("a", timings=OFTEN)
    app.complete("a")
    coordinator = a.member._coordinator

    def confirm() -> None:
        asked = a.member.ask()
        eventually(lambda: a.member.confirmed(asked, 0))

    confirm()
    with a.member.fence(0):  # the join waits for this commit
        kafka.answers[HeartbeatRequest] = lambda *_: {
            "error_code": RebalanceInProgressError.errno
        }
        confirm()
        sure_until = coordinator.sure_until
        confirm()
        assert coordinator.sure_until == sure_until
        assert a.member.sure(0)
        kafka.answers[HeartbeatRequest] = lambda *_: {}
    eventually(lambda: coordinator.sure_until > sure_until)


def test_a_commit_waits_for_no_join_that_is_over(
    kafka: Brokers, app: Application
) -> None:
    """A join closes the gate for commits; its end opens it, whether the group has taken
    this member or not.
    """
    a = app.start("a", timings=OFTEN)
    app.complete("a")
    for error in (RebalanceInProgressError, UnknownMemberIdError):
        generation = a.generation
        kafka.refuse(HeartbeatRequest, error.errno)
        eventually(partial(later, generation, a))
        begun = time.monotonic()
        commit(a, AT, 1)
        assert time.monotonic() - begun < OFTEN.patience / 2000


@pytest.mark.parametrize("error", [UnknownMemberIdError, IllegalGenerationError])
def test_a_member_that_the_group_has_put_out_joins_under_another_epoch(
    kafka: Brokers, app: Application, error: Any
) -> None:
    a = app.start("a", timings=OFTEN)
    app.complete("a")
    kafka.refuse(HeartbeatRequest, error.errno)
    eventually(lambda: a.heard(Lost) and later(1, a))
    app.complete("a")
    assert a.member.epoch == 1
    with pytest.raises(MembershipLostError, match="since epoch 0"), a.member.fence(0):
        pass
    assert commit(a, AT, 3).generation >= 2


def test_a_commit_goes_to_the_coordinator_that_has_moved(
    kafka: Brokers, group: OneMember, app: Application
) -> None:
    a = app.start("a", timings=OFTEN)
    app.complete("a")
    first = group.commit

    def moved(broker: int, request: Any) -> Mapping[str, Any]:
        if broker == kafka.coordinator:
            return first(broker, request)
        at = {"partition_index": AT.partition, "error_code": NotCoordinatorError.errno}
        return {"topics": [{"name": AT.topic, "partitions": [at]}]}

    kafka.answers[OffsetCommitRequest] = moved
    kafka.coordinator = 2
    kafka.refuse(HeartbeatRequest, NotCoordinatorError.errno)
    commit(a, AT, 5)
    assert group.committed == [(2, 5)]
    assert not a.heard(Lost)


def test_a_member_that_another_process_has_fenced_is_refused_for_good(
    kafka: Brokers, app: Application
) -> None:
    a = app.start("a", timings=OFTEN, identity=Identity("one"))
    app.complete("a")
    kafka.refuse(HeartbeatRequest, FencedInstanceIdError.errno)
    eventually(lambda: a.heard(Refused))
    assert (
        "another process has taken over group.instance.id 'one' in group app"
        in a.member.problem
    )
    assert kafka.count(LeaveGroupRequest) == 0, "its place belongs to the other process"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvalidSessionTimeoutError, "session.timeout.ms 60000 is outside"),
        (InconsistentGroupProtocolError, "group app is in use by other consumers"),
        (GroupMaxSizeReachedError, "as many members as the brokers allow"),
        (GroupAuthorizationFailedError, "--operation Read --group app"),
    ],
)
def test_a_join_that_is_refused_for_good_says_why(
    kafka: Brokers, app: Application, error: Any, said: str
) -> None:
    kafka.refuse(JoinGroupRequest, error.errno)
    a = app.start("a", timings=OFTEN)
    eventually(lambda: a.heard(Refused))
    assert said in a.member.problem


def test_a_refused_commit_makes_a_zombie_look_at_once(
    kafka: Brokers, group: OneMember, app: Application
) -> None:
    """With a heartbeat every ten minutes it would otherwise continue for long."""
    a = app.start("a", timings=Timings(session=1_800_000, heartbeat=600_000))
    app.complete("a")
    error = {"partition_index": AT.partition, "error_code": UnknownMemberIdError.errno}
    kafka.answers[OffsetCommitRequest] = lambda *_: {
        "topics": [{"name": AT.topic, "partitions": [error]}]
    }
    kafka.refuse(HeartbeatRequest, UnknownMemberIdError.errno)
    with pytest.raises(MembershipLostError):
        commit(a, AT, 2)
    eventually(lambda: a.heard(Lost) and later(1, a))


def test_a_process_without_progress_leaves_and_comes_back(
    kafka: Brokers, app: Application
) -> None:
    moving = threading.Event()
    moving.set()
    a = app.start("a", timings=OFTEN, alive=moving.is_set)
    app.complete("a")
    moving.clear()
    eventually(lambda: kafka.count(LeaveGroupRequest) == 1)
    assert "no progress" in a.member.problem
    moving.set()
    eventually(partial(later, 1, a))
    app.complete("a")
    assert a.member.epoch == 1
    eventually(lambda: a.member.problem == "")


def test_a_member_rests_between_its_steps(kafka: Brokers, app: Application) -> None:
    """`alive` is called once a step: four times a second, besides steps caused by an
    event.
    """
    asked: list[float] = []

    def alive() -> bool:
        asked.append(time.monotonic())
        return True

    app.start("a", timings=OFTEN, alive=alive)
    app.complete("a")
    beats, steps, begun = kafka.count(HeartbeatRequest), len(asked), time.monotonic()
    eventually(lambda: kafka.count(HeartbeatRequest) >= beats + 10)
    assert len(asked) - steps < 10 + 4 * (time.monotonic() - begun)


def test_a_dead_predecessor_leaves_before_the_member_joins(
    kafka: Brokers, app: Application
) -> None:
    app.start("a", timings=OFTEN, identity=Identity(predecessor="member-of-the-dead"))
    app.complete("a")
    names = [name for _, name in kafka.asked]
    assert names.index("LeaveGroupRequest") < names.index("JoinGroupRequest")


def test_a_transaction_of_a_dead_producer_is_ended_by_its_coordinator_wherever_it_has_moved(
    kafka: Brokers, group: OneMember, app: Application
) -> None:
    ended: list[tuple[int, str]] = []

    def init(broker: int, request: Any) -> Mapping[str, Any]:
        if broker != 2:
            kafka.coordinator = 2
            return {"error_code": NotCoordinatorError.errno}
        ended.append((broker, request.transactional_id))
        return {"producer_id": 66, "producer_epoch": 4}

    kafka.answers[InitProducerIdRequest] = init
    a = app.start("a", timings=OFTEN)
    app.complete("a")
    a.member.end_transaction("app-of-the-dead-0")
    assert ended == [(2, "app-of-the-dead-0")]


def test_open_transactions_are_those_of_all_brokers_that_answer(
    kafka: Brokers, group: OneMember, app: Application
) -> None:
    """A broker that hangs is asked once, and left out."""

    def listed(broker: int, _: Any) -> Mapping[str, Any] | None:
        state = {
            "transactional_id": f"app-{broker}",
            "producer_id": broker,
            "transaction_state": "Ongoing",
        }
        return {"transaction_states": [state]} if broker not in hanging else None

    hanging: set[int] = set()
    kafka.answers[ListTransactionsRequest] = listed
    a = app.start("a", timings=OFTEN)
    app.complete("a")
    assert a.member.open_transactions() == {"app-1", "app-2"}
    assert a.member.open_transactions("app-2") == {"app-2"}
    hanging.add(2)
    asked = kafka.asked.count((2, "ListTransactionsRequest"))
    for _ in range(2):
        eventually(lambda: a.member.open_transactions(timeout_ms=200) == {"app-1"})
    assert kafka.asked.count((2, "ListTransactionsRequest")) == asked + 1


def test_heartbeats_go_on_while_a_name_server_does_not_answer(
    kafka: Brokers, app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.answers[ListTransactionsRequest] = lambda *_: {"transaction_states": []}
    a = app.start("a", timings=OFTEN)
    app.complete("a")
    answers, look_up, hung = threading.Event(), socket.getaddrinfo, list[Any]()

    def hang(*arguments: Any) -> Any:
        if len(hung) < 2:
            hung.append(arguments)
            answers.wait()
        return look_up(*arguments)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    heard = kafka.count(HeartbeatRequest)
    assert a.member.open_transactions(timeout_ms=50) == frozenset(), (
        "no broker of the list is connected"
    )
    eventually(lambda: kafka.count(HeartbeatRequest) > heard + 10)
    answers.set()

    def listed() -> bool:
        return (
            a.member.open_transactions(timeout_ms=100) == frozenset()
            and kafka.count(ListTransactionsRequest) >= 2
        )

    eventually(listed)
