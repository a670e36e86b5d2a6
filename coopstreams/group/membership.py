"""This process as a member of the group: its tasks, its fence, its events.

    Kafka -> coordinator.py (I/O thread) -> holdings.py (state machine) -> events -> the instance's control thread
    control thread -> released -> join again;   stream threads -> fence -> commit

A commit names a generation. When the group begins a new generation during the commit,
the broker refuses a rightful owner, which then repeats its work. So a join waits until
no commit is under way, and a commit waits while this member joins (`CommitGate`). Both
waits are limited: neither a dead member that the group waits for nor a hanging commit
may stop the other for long.

Invariant: a revoked task is held until `released`, so no other member opens it before
its last commit here.
Invariant: work names the epoch under which it began. `fence` refuses work of another
epoch, and reads the identity before the epoch: a member that was lost and came back
cannot commit old work under its new identity. Without an identity there is no commit,
because brokers would not fence it.
Invariant: the gate avoids refusals; safety does not depend on it. The broker checks
every commit's generation.
Relies on: `coordinator_interface` (`Hooks`, which `Participant` has), `holdings`.
Turned down: a thread that drives the membership beside the I/O thread (two more
hand-overs, nothing gained).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager

from coopstreams.common.host import SYSTEM, Host
from coopstreams.group import group_requests
from coopstreams.group.codec import (
    decode_assignment,
    decode_subscription,
    encode_assignments,
    encode_subscription,
)
from coopstreams.group.coordinator_interface import Connector, Identity, Timings
from coopstreams.group.holdings import (
    Assigned,
    GroupEvent,
    Holdings,
    Lost,
    Refused,
)
from coopstreams.group.members import (
    Assignment,
    Cluster,
    MemberInfo,
    MemberState,
    Warmth,
)
from coopstreams.group.plain_offsets import settled_offsets
from coopstreams.log.log import GroupFence
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import FencedError, GroupError, MembershipLostError
from coopstreams.topology.task_id import TaskId

__all__ = [
    "Assigned",
    "Assigner",
    "GroupEvent",
    "GroupMember",
    "Lost",
    "Refused",
    "Timings",
]

log = logging.getLogger(__name__)

Assigner = Callable[[Mapping[str, MemberState]], Mapping[str, Assignment]]

LIST_MS = 1000
"""How long a broker may take to list open transactions. The transactions of a dead
broker could not be ended now anyway.
"""
LOOK_S = 0.02
"""How often a commit checks whether the group has a coordinator again."""
_RECORD_LIMIT = 900_000
"""The size of a group's metadata above which a warning is logged. Units: bytes.

The broker keeps all subscriptions and assignments of a group in one record, by default
of 1 MiB at most.
"""


class GroupMember:
    """The membership of one process in one group. Thread-safe, but not for calls from
    inside the functions of its `Participant`.
    """

    def __init__(
        self,
        coordinator: Connector,
        participant: Participant,
        *,
        identity: Identity | None = None,
        timings: Timings | None = None,
        host: Host = SYSTEM,
    ) -> None:
        """Make a member that is not connected yet.

        `coordinator`: makes the client of the group's coordinator. `identity`: None: of
        a process without a history.

        Raises:
            ConfigError: a connection or security setting that the group's client does
                not have.
        """
        self.group = participant.group
        self._host = host
        identity = identity or Identity()
        self._instance = identity.instance
        self._timings = timings or Timings()
        self._participant = participant
        self._coordinator = coordinator(
            self.group,
            identity,
            self._timings,
            participant,
        )

    def start(self) -> None:
        """Join the group, in the background: `Assigned` follows, or `Refused`."""
        self._coordinator.start()

    def close(self, leave: bool = True) -> None:
        """Leave the group. No events follow.

        `leave` False: the group learns of the end when the session has timed out, as if
        this process had died.
        """
        self._participant.close()
        self._coordinator.close(leave=leave)

    @property
    def problem(self) -> str:
        """Why this process is not in the group, in words; empty: it is in the group."""
        return self._coordinator.problem

    @property
    def id(self) -> str:
        """The member id of this process in the group; empty: it is no member."""
        return self._coordinator.identity()[1]

    @property
    def epoch(self) -> int:
        """The epoch of this membership. It changes whenever membership is lost: work
        that began in an earlier epoch is void, and must not be committed.
        """
        return self._participant.epoch

    def held(self) -> tuple[TaskId, ...]:
        """Return the tasks that no other member can have: assigned, or revoked and not
        yet released.
        """
        return self._participant.held()

    def sure(self, epoch: int, generation: int | None = None) -> bool:
        """Return whether this is certainly still a member, under that epoch.

        It is if a heartbeat was answered within the session time-out, outside of a
        rebalance. With `generation`: and if no later generation can have begun, because
        none begins before this process asks to join it.
        """
        if generation is not None and not self._coordinator.settled_in(generation):
            return False
        return self.sure_s(epoch) > 0

    def sure_s(self, epoch: int) -> float:
        """Return for how many seconds this process certainly stays a member under that
        epoch; 0: it may have been removed.
        """
        left = self._coordinator.sure_until - self._host.elapsed()
        return max(0.0, left) if self.epoch == epoch else 0.0

    def ask(self) -> float:
        """Send a heartbeat soon, by which the group confirms this member; return the
        time of the request, for `confirmed`.
        """
        moment = self._host.elapsed()
        self._coordinator.check()
        return moment

    def confirmed(self, since: float, epoch: int) -> bool:
        """Return whether the group has answered a request that this member sent after
        that time, in that epoch.
        """
        return (
            self._coordinator.heard_at > since and self.epoch == epoch
        )  # in this order: answers to a new membership come under its own epoch

    def released(self, tasks: Iterable[TaskId], seen: int) -> None:
        """Release these revoked tasks, which are committed and closed. If another
        member waits for a task, rebalance.

        Shape: `seen` is the `serial` of the last `Assigned` that the caller has
        handled: tasks revoked by a later one stay held.
        """
        if self._participant.released(tasks, seen):
            self._coordinator.rejoin()

    def drains(self, tasks: Iterable[TaskId]) -> None:
        """Release other tasks without these, which take long to close. If another member
        waits for one that is released, rebalance.
        """
        if self._participant.drains(tasks):
            self._coordinator.rejoin()

    def caught_up(self, ready: Iterable[TaskId]) -> None:
        """Have the tasks of these standbys move here, those of them that are to. If the
        group does not know that one is ready, rebalance.
        """
        if self._participant.caught_up(ready):
            self._coordinator.rejoin()

    def rejoin(self) -> None:
        """Rebalance, because the group's knowledge of this member is out of date."""
        self._participant.ask()
        self._coordinator.rejoin()

    def subscribe(
        self,
        topics: Sequence[str],
        sources: Mapping[int, Sequence[str]],
    ) -> None:
        """Set the topics to read (see `Participant`); the group rebalances."""
        self._participant.subscribe(topics, sources)
        self.rejoin()

    @contextmanager
    def fence(self, epoch: int) -> Iterator[GroupFence]:
        """Return the fence for a commit of work that began under `epoch`.

        Any number of threads may have a fence at the same time; joins wait for them,
        within limits. While the coordinator is being looked for, this waits: a client
        that sends to a broker that is gone may never return (`bounded`).

        Raises:
            MembershipLostError: the membership of that epoch is over: uncommitted work
                is void.
        """
        coordinator = self._await_coordinator(epoch)
        self._participant.gate.enter(self._timings.patience / 1000)
        try:
            generation, member = (
                self._coordinator.identity()
            )  # before the epoch: see the module's invariants
            if self.epoch != epoch or generation < 0 or not member:
                raise MembershipLostError(
                    f"group {self.group} has removed this process since epoch {epoch}; uncommitted work is void"
                )
            yield GroupFence(
                self.group,
                generation,
                member,
                self._instance,
                coordinator,
            )
        except (FencedError, MembershipLostError):
            self._coordinator.check()
            raise
        finally:
            self._participant.gate.leave()

    def _await_coordinator(self, epoch: int) -> int | None:
        """Wait for the broker that coordinates the group, and return it; None: none in
        time, or the membership of that epoch is over.
        """
        give_up = self._host.now() + self._timings.request / 1000
        while (
            (broker := self._coordinator.broker) is None
            and self._is_member(epoch)
            and self._host.now() < give_up
        ):
            self._host.sleep(LOOK_S)
        return broker

    def _is_member(self, epoch: int) -> bool:
        return (
            not self._participant.closed
            and self._coordinator.identity()[0] >= 0
            and self.epoch == epoch
        )

    def commit(
        self,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        fence: GroupFence,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit offsets (with metadata) outside of any transaction, inside `fence`.

        Raises:
            MembershipLostError: refused, because another generation has begun.
            LogError: the commit was refused for another reason, or not answered in
                time.
        """
        self._coordinator.commit_offsets(fence, offsets, timeout_ms)

    def committed(
        self,
        partitions: Iterable[TopicPartition] | None,
        timeout_ms: int | None = None,
    ) -> group_requests.Offsets:
        """Return the committed offset of each partition; `partitions` None: of all
        partitions that have one.

        Waits for open transactions that would change an offset.

        Raises:
            LogError: the request was refused, a transaction stayed open, or no answer
                came in time.
        """
        return settled_offsets(
            self.fetch_offsets,
            self.group,
            partitions,
            (timeout_ms or self._timings.request) / 1000,
            self._host,
        )

    def fetch_offsets(
        self,
        partitions: Iterable[TopicPartition] | None,
        *,
        stable: bool = True,
    ) -> group_requests.FetchedOffset:
        """Return the plain offsets of these partitions as they are now; `partitions`
        None: of all.

        `stable`: leave out offsets that an open transaction may still change.

        Raises:
            LogError: the request was refused, or not answered in time.
        """
        return self._coordinator.fetch_offsets(partitions, stable=stable)

    def end_transaction(
        self,
        transactional_id: str,
        timeout_ms: int | None = None,
    ) -> None:
        """Abort the open transaction that a dead producer left under a transactional
        id. A live producer is fenced.

        Raises:
            LogError: the request was refused, or not answered in time.
        """
        self._coordinator.end_transaction(transactional_id, timeout_ms)

    def open_transactions(
        self,
        prefix: str = "",
        timeout_ms: int = LIST_MS,
    ) -> frozenset[str]:
        """Return the transactional ids that begin with `prefix` and have an open
        transaction, from the brokers that answer in time.
        """
        return frozenset(
            id_
            for id_ in self._coordinator.open_transactions(timeout_ms)
            if id_.startswith(prefix)
        )


class Participant:
    """The tasks of a process in its group, and what it announces: the hooks of its
    coordinator.

    The coordinator's I/O thread calls the hooks. They return at once: no heartbeat is
    sent meanwhile.
    """

    def __init__(
        self,
        group: str,
        topics: Sequence[str],
        info: Callable[[], MemberInfo],
        assign: Assigner,
        on_event: Callable[[GroupEvent], None],
        alive: Callable[[], bool] = lambda: True,
        *,
        warmth: Callable[[tuple[TaskId, ...]], Warmth | None] = lambda _: None,
        sources: Mapping[int, Sequence[str]] | None = None,
        host: Host = SYSTEM,
    ) -> None:
        """Make the hooks of a member.

        `topics`: every topic that offsets are committed for: brokers forget the offsets
        of other topics. `sources`: the source topics of each sub-topology, for tools
        that show which member reads which partition.

        `info`, `warmth` (what to say of the held tasks), `assign` and `alive` run on the
        I/O thread, `on_event` on whichever thread causes the event. They must return at
        once.
        """
        self.group = group
        self.alive = alive
        self.gate = CommitGate(host)
        self._info = info
        self._warmth = warmth
        self._assign = assign
        self._on_event = on_event
        self._lock = threading.RLock()
        self._holdings = Holdings(info().process)
        self.closed = False
        self.subscribe(topics, sources or {})

    @property
    def epoch(self) -> int:
        """The epoch of the current membership."""
        with self._lock:
            return self._holdings.epoch

    def held(self) -> tuple[TaskId, ...]:
        """Return the tasks that no other member can have."""
        with self._lock:
            return self._holdings.held

    def released(self, tasks: Iterable[TaskId], seen: int) -> bool:
        """Release revoked tasks; return whether another member waits for one."""
        with self._lock:
            self._holdings.released(tasks, seen)
            return self._holdings.wants_rebalance

    def drains(self, tasks: Iterable[TaskId]) -> bool:
        """Note that tasks take long to close; return whether another member waits for
        one that is released.
        """
        with self._lock:
            self._holdings.drains(tasks)
            return self._holdings.wants_rebalance

    def caught_up(self, ready: Iterable[TaskId]) -> bool:
        """Note which standbys are ready; return whether the leader has to know it."""
        with self._lock:
            self._holdings.caught_up(ready)
            return self._holdings.wants_rebalance

    def ask(self) -> None:
        """Request a rebalance, because the group's knowledge of this member is out of
        date.
        """
        with self._lock:
            self._holdings.ask()

    def subscribe(
        self,
        topics: Sequence[str],
        sources: Mapping[int, Sequence[str]],
    ) -> None:
        """Set the topics that this member announces from the next join on."""
        self._topics = sorted(set(topics))
        self._sources = dict(sources)

    def close(self) -> None:
        """Emit no events any more."""
        with self._lock:
            self.closed = True

    def subscription(self) -> bytes:
        info = self._info()
        with self._lock:
            state, nonce = self._holdings.state(info, self._warmth)
        return encode_subscription(state, nonce, self._topics, self._sources)

    def assignments(self, subscriptions: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the encoded assignments of all members. A foreign process in the group
        gets no tasks, and does not stop the others.
        """
        states: dict[str, MemberState] = {}
        strangers: dict[str, GroupError] = {}
        for id_, data in sorted(subscriptions.items()):
            try:
                states[id_] = decode_subscription(data, id_)
            except GroupError as error:
                strangers[id_] = error
                log.error("%s It gets no tasks.", error)
        given = dict(self._assign(states))
        cluster = next((assignment.cluster for assignment in given.values()), Cluster())
        given |= {
            id_: Assignment("", cluster=cluster, error=str(error))
            for id_, error in strangers.items()
        }
        here = self._holdings.process
        waits = any(
            assignment.waits
            for assignment in given.values()
            if assignment.process == here
        )
        encoded = encode_assignments(
            given,
            {} if waits else self._sources,
        )  # in the active version its numbers mean other sub-topologies
        size = sum(map(len, subscriptions.values())) + sum(map(len, encoded.values()))
        if size > _RECORD_LIMIT:
            log.warning(
                "group %s has %d bytes of metadata; brokers refuse more than max.message.bytes of __consumer_offsets "
                "(1 MiB), and then no member gets tasks. Raise that, or run fewer processes with more threads.",
                self.group,
                size,
            )
        return encoded

    def may_join(self) -> bool:
        return self.gate.close()

    def answered(self, generation: int) -> None:
        with self._lock:
            if (void := self._holdings.answered(generation)) is not None:
                log.warning(
                    "group %s began generations before %d without an answer to this member: %d tasks are void",
                    self.group,
                    generation,
                    len(void.tasks),
                )
                self._tell(void)

    def joined(self, generation: int, assignment: bytes) -> bool:
        given = (
            decode_assignment(assignment, f"{self.group}'s leader")
            if assignment
            else Assignment(self._holdings.process)
        )
        if given.error:
            raise GroupError(
                f"the leader of group {self.group} gives this process nothing: {given.error}"
            )
        with self._lock:
            event = self._holdings.assigned(generation, given)
            again = self._holdings.wants_rebalance
            self._tell(event)
        self.gate.open()
        log.info(
            "generation %d of group %s: %d tasks, +%d, -%d",
            generation,
            self.group,
            len(event.tasks),
            len(event.added),
            len(event.revoked),
        )
        return again

    def lost(self) -> None:
        with self._lock:
            self._tell(self._holdings.lost())
        self.gate.open()

    def failed(self, error: GroupError) -> None:
        self.gate.open()
        with self._lock:
            self._tell(Refused(error))

    def _tell(self, event: GroupEvent) -> None:
        """Emit an event. The caller holds the lock, so that events keep their order."""
        if not self.closed:
            self._on_event(event)


class CommitGate:
    """A lock for any number of commits, or one join, with limited waits."""

    def __init__(self, host: Host = SYSTEM) -> None:
        self._changed = host.condition()
        self._committing = 0
        self._joining = False

    def enter(self, patience_s: float) -> bool:
        """Begin a commit, after waiting for a join for at most `patience_s`; return
        whether no join was under way. Every `enter` needs a `leave`.
        """
        with self._changed:
            clear = self._changed.wait_for(lambda: not self._joining, patience_s)
            self._committing += 1
            return clear

    def leave(self) -> None:
        """End a commit that `enter` began."""
        with self._changed:
            self._committing -= 1
            self._changed.notify_all()

    def close(self) -> bool:
        """Begin a join, for which new commits wait; return whether no commit is under
        way. Never waits.
        """
        with self._changed:
            self._joining = True
            return self._committing == 0

    def open(self) -> None:
        """End a join."""
        with self._changed:
            self._joining = False
            self._changed.notify_all()
