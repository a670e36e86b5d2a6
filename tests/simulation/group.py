"""A group coordinator, and the client side of a member: the classic protocol, as
members observe it.

    join       each member sends its subscription; when all have, or at the time-out, a generation begins
               a static member's successor takes its place, in the generation that runs
    sync       the leader sends the assignments
    heartbeat  a member without one for a session time-out is removed, and the group rebalances

Invariant: a request that Kafka's coordinator would refuse (another generation, an
unknown member) is refused here.
Source: Kafka `GroupCoordinator` (classic groups), KIP-394 for member ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from coopstreams.group.coordinator_interface import Hooks, Identity, Timings
from coopstreams.group.group_requests import FetchedOffset
from coopstreams.log.log import GroupFence
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    FencedError,
    GroupError,
    LogError,
    MembershipLostError,
)
from tests.simulation.cluster import ANSWER_S, MachineClient, T, patient
from tests.simulation.fibers import Fiber, Machine, Scheduler
from tests.simulation.kafka.log import SimulatedGroup
from tests.simulation.kafka.plan import Kind

LOOK_S = 0.5


class Phase(Enum):
    """The states of a group, in Kafka's words."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class UnknownMemberError(LogError):
    """The coordinator does not know this member."""


class FencedInstanceError(LogError):
    """Another process has taken the place of this static member."""


class IllegalGenerationError(LogError):
    """Another generation has begun."""


class RebalancingError(LogError):
    """A rebalance has begun: join again."""


@dataclass(slots=True)
class _Member:
    subscription: bytes
    heard: float
    session_s: float
    joined: bool = True
    assignment: bytes = b""
    instance: str | None = None
    """The id of a static member."""
    request: int = 0
    """The request to join that the broker answers: the latest, as in Kafka; 0: none is
    known.
    """


@dataclass
class Group:
    """One group."""

    scheduler: Scheduler
    answers: Callable[[], bool]
    """Whether the group's coordinator answers."""
    wrong: list[str] = field(default_factory=list)
    """Violations by members."""
    decided: Callable[[Mapping[str, bytes], Mapping[str, bytes]], None] = (
        lambda subscriptions, assignments: None
    )
    """Called with all subscriptions and the assignments that the leader has made."""
    phase: Phase = Phase.EMPTY
    generation: int = 0
    members: dict[str, _Member] = field(default_factory=dict)
    leader: str = ""
    _deadline: float = 0.0
    _waiting: set[Fiber] = field(default_factory=set)
    _settled: dict[Machine, Callable[[int], bool]] = field(default_factory=dict)
    """Whether the process on a machine considers itself a member of a generation."""
    _fenced: set[str] = field(default_factory=set)
    """The members whose place another process has taken."""
    _ids: int = 0
    _requests: int = 0
    _moves: int = 0
    _kept: tuple[int, str, dict[str, _Member]] = (0, "", {})
    """In the log: generation, leader and members of the last assignment."""

    def __post_init__(self) -> None:
        self.scheduler.at(self.scheduler.now + LOOK_S, self._look)

    def check(self, fence: GroupFence) -> str | None:
        """Return why a fence is stale, or None."""
        if fence.member not in self.members:
            return f"member {fence.member} is unknown, or fenced"
        return (
            None
            if fence.generation == self.generation
            else f"generation {fence.generation} is over, it is {self.generation}"
        )

    def enter(self, machine: Machine, settled_in: Callable[[int], bool]) -> None:
        """Register the member on a machine."""
        self._settled[machine] = settled_in

    def ends_transaction(self, owner: Machine | None, by: Machine) -> None:
        """Note a member that ends another one's transaction: the other one must have
        left.
        """
        if (
            owner in (None, by)
            or owner.dead
            or owner.paused
            or self.phase is not Phase.STABLE
        ):
            return
        if owner in self._settled and self._settled[owner](self.generation):
            self.wrong.append(
                f"{by.name} ends the transaction of {owner.name}, which is in the group"
            )

    def join(
        self,
        member: str,
        subscription: bytes,
        session_s: float,
        instance: str | None = None,
    ) -> tuple[str, int]:
        """Take a request to join; return the ids of the member and of the request. The
        answer comes when `in_generation`.

        `instance`: the id of a static member.
        """
        replaced = ""
        if member:
            self._check_known(member)
        else:
            self._ids += 1
            member = f"member-{self._ids}"
            replaced = self.static(instance)
            if replaced and self._succeed(replaced, member, subscription, session_s):
                self._requests += 1
                self.members[member].request = self._requests
                return member, self._requests
        unchanged = (
            not replaced
            and member in self.members
            and self.members[member].subscription == subscription
        )
        known = self.members.setdefault(
            member,
            _Member(subscription, self.scheduler.now, session_s, instance=instance),
        )
        self._requests += 1
        known.subscription, known.heard, known.request = (
            subscription,
            self.scheduler.now,
            self._requests,
        )
        if unchanged and (
            self.phase is Phase.COMPLETING
            or (self.phase is Phase.STABLE and member != self.leader)
        ):
            return member, known.request  # Kafka answers with the current generation
        if self.phase is not Phase.PREPARING:
            self._prepare()
        known.joined = True
        self._complete_if_all()
        return member, known.request

    def static(self, instance: str | None) -> str:
        """Return the member with this id of a static member; empty: there is none."""
        return next(
            (
                id_
                for id_, each in self.members.items()
                if instance is not None and each.instance == instance
            ),
            "",
        )

    def _succeed(
        self, before: str, member: str, subscription: bytes, session_s: float
    ) -> bool:
        """Give a static member's place to its successor; return whether the present
        generation goes on with it.

        Source: Kafka `updateStaticMemberAndRebalance`.
        """
        self._fenced.add(before)
        old = self.members[before]
        new = replace(
            old,
            subscription=subscription,
            heard=self.scheduler.now,
            session_s=session_s,
        )
        # In the old one's place: the order of the members decides who leads next.
        self.members = {
            member if id_ == before else id_: new if id_ == before else each
            for id_, each in self.members.items()
        }
        self.leader = member if self.leader == before else self.leader
        self.scheduler.wake(self._waiting)
        if self.phase is Phase.STABLE:
            self._keep()
            return True
        return False

    def _check_known(self, member: str) -> None:
        if member in self._fenced:
            raise FencedInstanceError(f"another process has the place of {member}")
        if member not in self.members:
            raise UnknownMemberError(f"the coordinator does not know {member}")

    def in_generation(self, member: str, request: int) -> tuple[int, dict[str, bytes]]:
        """Wait for the answer to a request to join; return the generation, and for the
        leader all subscriptions.
        """
        self._await(
            lambda: member not in self.members or self.phase is not Phase.PREPARING
        )
        self._check_known(member)
        known = self.members[member]
        if known.request != request:
            if (
                known.request
            ):  # an earlier request came late, and its client does not wait any more
                self.scheduler.wait(known.session_s + ANSWER_S)
            raise LogError("the broker that was asked does not answer", retryable=True)
        known.heard = self.scheduler.now
        told = (
            {id_: each.subscription for id_, each in self.members.items()}
            if member == self.leader and self.phase is Phase.COMPLETING
            else {}
        )
        return self.generation, told

    def sync(self, member: str, generation: int, given: Mapping[str, bytes]) -> None:
        """Take a request for the member's assignment; the leader's has all of them. The
        answer comes when it is `assigned`.
        """
        self._check(member, generation)
        if self.phase is Phase.COMPLETING and member == self.leader:
            for id_, each in self.members.items():
                each.assignment = given.get(id_, b"")
            told = {id_: each.subscription for id_, each in self.members.items()}
            self.decided(told, given)
            self.phase = Phase.STABLE
            self._keep()
            self.scheduler.wake(self._waiting)

    def assigned(self, member: str, generation: int) -> bytes:
        """Wait for the member's assignment; return it."""
        self._await(
            lambda: (
                self.phase is not Phase.COMPLETING
                or self.generation != generation
                or member not in self.members
            )
        )
        self._check(member, generation)
        if self.phase is not Phase.STABLE:
            raise RebalancingError("join again")
        self.members[member].heard = self.scheduler.now
        return self.members[member].assignment

    def heartbeat(self, member: str, generation: int) -> None:
        """Note a heartbeat."""
        self._check(member, generation)
        self.members[member].heard = self.scheduler.now
        if self.phase is Phase.PREPARING:
            raise RebalancingError("join again")

    def leave(self, member: str) -> None:
        """Remove the member."""
        if self.members.pop(member, None) is not None:
            self._without(member)

    def load(self) -> None:
        """Load the group from the log: another broker coordinates it, or this one has
        restarted.
        """
        self.generation, self.leader, kept = self._kept
        self.members = {
            id_: replace(each, heard=self.scheduler.now, joined=True, request=0)
            for id_, each in kept.items()
        }
        self.phase = Phase.STABLE if self.members else Phase.EMPTY
        self._moves += 1
        self.scheduler.wake(self._waiting)

    def _await(self, ready: Callable[[], bool]) -> None:
        """Wait for a condition, and for the broker's answer.

        Raises:
            LogError: retryable: it does not coordinate the group any more.
        """
        moves = self._moves
        while self._moves == moves and not (ready() and self.answers()):
            self.scheduler.wait(LOOK_S if ready() else None, self._waiting)
        if self._moves != moves:
            raise LogError("another broker coordinates the group", retryable=True)

    def _keep(self) -> None:
        self._kept = (
            self.generation,
            self.leader,
            {id_: replace(each) for id_, each in self.members.items()},
        )

    def _check(self, member: str, generation: int) -> None:
        self._check_known(member)
        if generation != self.generation:
            raise IllegalGenerationError(f"generation {generation} is over")

    def _prepare(self) -> None:
        self.phase = Phase.PREPARING
        self._deadline = self.scheduler.now + max(
            each.session_s for each in self.members.values()
        )
        for each in self.members.values():
            each.joined = False
        self.scheduler.wake(self._waiting)
        self.scheduler.at(self._deadline, self._complete_late)

    def _complete_late(self) -> None:
        if not self.answers():
            self.scheduler.at(self.scheduler.now + LOOK_S, self._complete_late)
        elif self.phase is Phase.PREPARING and self.scheduler.now >= self._deadline:
            # A static member stays, with its last subscription, until its session ends.
            self.members = {
                id_: each
                for id_, each in self.members.items()
                if each.joined or each.instance is not None
            }
            self._complete_if_all(late=True)

    def _complete_if_all(self, *, late: bool = False) -> None:
        joined = [id_ for id_, each in self.members.items() if each.joined]
        waits = len(joined) < len(self.members) and not (late and joined)
        if self.phase is not Phase.PREPARING or waits:
            return
        self.generation += 1
        self.phase = Phase.COMPLETING if self.members else Phase.EMPTY
        if self.leader not in joined:
            self.leader = next(iter(joined), "")
        for id_ in joined:
            self.members[id_].heard = self.scheduler.now
        for each in self.members.values():
            each.assignment = b""
        self.scheduler.wake(self._waiting)

    def _without(self, member: str) -> None:
        if not self.members:
            self.generation += 1
            self.phase, self.leader = Phase.EMPTY, ""
            self._keep()
        elif self.phase is Phase.PREPARING:
            self._complete_if_all()
        else:
            if self.leader == member:
                self.leader = next(iter(self.members))
            self._prepare()
        self.scheduler.wake(self._waiting)

    def _look(self) -> None:
        """Remove members without a heartbeat for a session time-out."""
        for id_, each in list(self.members.items()) if self.answers() else ():
            waits = self.phase is Phase.PREPARING and each.joined
            if not waits and self.scheduler.now - each.heard > each.session_s:
                self.leave(id_)
        self.scheduler.at(self.scheduler.now + LOOK_S, self._look)


class SimCoordinator:
    """A member's client: a `joining.Coordinator` without a network."""

    def __init__(
        self,
        client: MachineClient,
        group: Group,
        name: str,
        timings: Timings,
        hooks: Hooks,
        identity: Identity,
    ) -> None:
        self.problem = "not started"
        self._identity = identity
        self._machine, self._client, self._group = client.machine, client, group
        self._broker = SimulatedGroup(client, name, timeout_s=ANSWER_S)
        self._name, self._timings, self._hooks = name, timings, hooks
        self._generation, self._member = -1, ""
        self._stable = False
        self._again = True
        self._closed = False
        self._heard_at = self._calm_at = 0.0
        self._wake = client.machine.signal()
        self._driver = client.machine.thread(self._drive, "group")
        group.enter(client.machine, self.settled_in)

    # --- joining.Coordinator ---

    def start(self) -> None:
        self._driver.start()

    def identity(self) -> tuple[int, str]:
        return self._generation, self._member

    @property
    def broker(self) -> int | None:
        leader = self._client.cluster.brokers.leader(self._name).broker
        return leader if self._client.cluster.brokers.answers(self._name) else None

    def settled_in(self, generation: int) -> bool:
        return self._stable and self._generation == generation

    @property
    def sure_until(self) -> float:
        return (
            self._calm_at + self._timings.session / 1000
            if self._generation >= 0 and self._calm_at
            else 0.0
        )

    @property
    def heard_at(self) -> float:
        return self._heard_at if self._generation >= 0 else 0.0

    def rejoin(self) -> None:
        self._again = True
        self._wake.set()

    def check(self) -> None:
        self._wake.set()

    def commit_offsets(
        self,
        fence: GroupFence,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        timeout_ms: int | None = None,
    ) -> None:
        try:
            patient(self._machine, lambda: self._broker.commit(offsets, fence))
        except FencedError as error:
            raise MembershipLostError(str(error)) from error

    def fetch_offsets(
        self, partitions: Iterable[TopicPartition] | None, *, stable: bool = True
    ) -> FetchedOffset:
        asked = None if partitions is None else list(partitions)
        return patient(
            self._machine, lambda: self._broker.fetch_offsets(asked, stable=stable)
        )

    def end_transaction(
        self, transactional_id: str, timeout_ms: int | None = None
    ) -> None:
        self._group.ends_transaction(
            self._client.cluster.owners.get(transactional_id), self._machine
        )
        self._broker.end_transaction(transactional_id, timeout_ms)

    def open_transactions(self, timeout_ms: int) -> frozenset[str]:
        return self._broker.open_transactions()

    def close(self, *, leave: bool) -> None:
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if leave:
            self._say_goodbye()

    # --- its thread ---

    def _drive(self) -> None:
        beat_at = 0.0
        self._succeed_or_wait()
        while not self._closed:
            self._wake.clear()
            try:
                if not self._hooks.alive():
                    self._go()
                elif self._again or self._generation < 0:
                    self._join()
                    self.problem = ""
                else:
                    self._beat()
                beat_at = self._machine.now()
            except FencedInstanceError as error:
                self._lose(keep_id=False)
                self._closed, self.problem = True, str(error)
                self._hooks.failed(GroupError(str(error)))
                return
            except (UnknownMemberError, IllegalGenerationError) as error:
                self._lose(keep_id=isinstance(error, IllegalGenerationError))
                continue
            except RebalancingError:
                self._again = True
                continue
            except LogError:
                self._again = self._again or self._generation < 0
            except GroupError as error:
                self.problem = str(error)
                self._hooks.failed(error)
                return
            if not self._again:
                self._wake.wait(
                    max(
                        0.0,
                        beat_at + self._timings.heartbeat / 1000 - self._machine.now(),
                    )
                )
            else:
                self._machine.sleep(0.02)

    def _succeed_or_wait(self) -> None:
        """Have the predecessor leave, or wait until the group has removed it; a static
        member takes its place instead.
        """
        if self._identity.instance is None:
            if self._identity.predecessor and self._group.answers():
                self._group.leave(self._identity.predecessor)
        elif self._identity.waits:
            while not self._closed and not (
                self._group.answers()
                and not self._group.static(self._identity.instance)
            ):
                self._machine.sleep(LOOK_S)

    def _join(self) -> None:
        self._stable = False
        patient_until = self._machine.now() + self._timings.patience / 1000
        while not self._hooks.may_join() and self._machine.now() < patient_until:
            self._machine.sleep(0.005)
        subscription, sent = self._hooks.subscription(), self._machine.elapsed()
        session_s = self._timings.session / 1000
        self._again = False
        try:
            self._member, request = self._call(
                "join",
                lambda: self._group.join(
                    self._member, subscription, session_s, self._identity.instance
                ),
            )
            generation, told = self._group.in_generation(self._member, request)
            if self._closed:
                return
            self._hooks.answered(generation)
            self._generation, joined = generation, self._machine.elapsed()
            given = self._hooks.assignments(told) if told else {}
            self._call(
                "sync", lambda: self._group.sync(self._member, generation, given)
            )
            assignment = self._group.assigned(self._member, generation)
        except LogError:
            self._again = True
            raise
        if self._closed:
            return
        self._heard_at = self._calm_at = max(sent, joined)
        self._stable = True
        if self._hooks.joined(generation, assignment):
            self._again = True

    def _beat(self) -> None:
        sent = self._machine.elapsed()
        try:
            self._call(
                "heartbeat",
                lambda: self._group.heartbeat(self._member, self._generation),
            )
        except RebalancingError:
            self._heard_at = sent
            raise
        self._heard_at = self._calm_at = sent

    def _go(self) -> None:
        if self._member:
            self._say_goodbye()
            self._lose(keep_id=False)

    def _say_goodbye(self) -> None:
        """Leave, if the coordinator answers."""
        if self._group.answers():
            self._group.leave(self._member)

    def _lose(self, *, keep_id: bool) -> None:
        held, self._generation, self._stable = self._generation >= 0, -1, False
        if not keep_id:
            self._member = ""
        self._again = True
        if held:
            self._hooks.lost()

    def _call(self, kind: Kind, do: Callable[[], T]) -> T:
        return self._client.ask(kind, self._name, do, ANSWER_S)
