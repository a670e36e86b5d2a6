"""The tasks that this member holds, is giving up, and was promised: a state machine
without I/O.

    answered    a generation began with the last request of this member; if one was missed in between: lost
    assigned    tasks that are not in the assignment are closing, new ones are added
    drains      closing tasks wait for their calls, and others shall not wait for them
    released    a closing task is closed: no thread of this process touches it any more
    caught up   a warm-up here is ready, and the leader does not know it
    lost        the group has removed this member: all its work is void, and a new epoch begins

Invariant: every task that may still be open here is in `held`, so the leader grants it
to no other member (revoked is not released).
Invariant: the epoch changes whenever membership is lost, before any work can begin
under a new one. A commit names the epoch under which its work began; under another
epoch the work is void, even if this member holds the same task again.
Invariant: a held task was claimed in each generation since it was assigned. A broker
may handle an old request to join after a newer one (they came by two connections) and
begin a generation with the old claim. It answers only the request that it handled last.
So this member gets no answer from a generation that began with the old claim, and voids
the tasks it holds when it has missed a generation.
Relies on: `membership` (who calls, under its lock), `claims` (what the leader makes of a
claim).
Turned down: releasing revoked tasks at once, as consumers may: the next owner would
open them beside our open transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from coopstreams.group.members import (
    NO_GENERATION,
    Assignment,
    Cluster,
    MemberInfo,
    MemberState,
    Warmth,
)
from coopstreams.topology.errors import GroupError
from coopstreams.topology.task_id import TaskId


@dataclass(frozen=True, slots=True)
class Assigned:
    """A new assignment. Open the `added` tasks once the `revoked` tasks that they
    overlap are closed.

    Shape: `tasks` is everything this member owns now, sorted. Each of `revoked` must be
    released; until then no other member gets it. `serial` numbers the assignments of
    this member.
    """

    serial: int
    generation: int
    epoch: int
    tasks: tuple[TaskId, ...]
    added: tuple[TaskId, ...]
    revoked: tuple[TaskId, ...]
    cluster: Cluster
    waits: str = ""
    """Why the leader gives this member no tasks for now; empty: it gives it tasks."""
    standbys: tuple[TaskId, ...] = ()
    """The tasks of which this member is to have standbys."""
    warming: tuple[TaskId, ...] = ()
    """Of these, the warm-ups: their tasks move here once they are ready."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The loss of the membership with these tasks: uncommitted work is void, and no
    task has to be released.

    `epoch` is the new epoch.
    """

    epoch: int
    tasks: tuple[TaskId, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """The end of the membership for good, refused by Kafka: the instance has to stop.
    `error` has the reason.
    """

    error: GroupError


GroupEvent: TypeAlias = Assigned | Lost | Refused


class Holdings:
    """The tasks of one member. Not thread-safe: the caller holds a lock."""

    def __init__(self, process: str) -> None:
        self.epoch = 0
        self.generation = NO_GENERATION
        """The generation of the last assignment, which gave the held tasks."""
        self.tasks: tuple[TaskId, ...] = ()
        self.closing: dict[TaskId, int] = {}
        """The revoked and not yet released tasks, each with the serial of the
        assignment that revoked it.
        """
        self.standbys: tuple[TaskId, ...] = ()
        """The tasks of which this member has standbys. They outlast the membership: their
        rows stay in its databases.
        """
        self.process = process
        self._warming: tuple[TaskId, ...] = ()
        """Of the standbys, those of tasks that are to move here."""
        self._ready: tuple[TaskId, ...] = ()
        """The standbys that the leader knows to be ready."""
        self._draining: set[TaskId] = set()
        """The held tasks that take long to close."""
        self._freed = False
        """Whether a closing task was released of which the leader does not know it."""
        self._target: tuple[TaskId, ...] = ()
        """The tasks that this member gets once all hand-overs are done."""
        self._settled = True
        """Whether no member waits for a task of another, by the last assignment."""
        self._serial = 0
        """The number of assignments so far."""
        self._asked = 0
        """How many rebalances were requested."""
        self._sent = 0
        """The value of `_asked` when the state was last sent to the leader."""
        self._answered = NO_GENERATION
        """The generation that answered the last request to join."""

    @property
    def held(self) -> tuple[TaskId, ...]:
        """All tasks that may be open here: assigned, or revoked and not yet released."""
        return tuple(sorted({*self.tasks, *self.closing}))

    def state(
        self,
        info: MemberInfo,
        warmth: Callable[[tuple[TaskId, ...]], Warmth | None] = lambda _: None,
    ) -> tuple[MemberState, int]:
        """Return the state to send to the leader, and a nonce that changes with each
        requested rebalance. `warmth`: returns what is to be said of the held tasks.

        A member that joins with unchanged bytes only gets its old assignment again
        (measured).
        """
        self._sent = self._asked
        self._freed = False
        warm = warmth(self.held)
        self._ready = () if warm is None else warm.ready
        state = MemberState(
            info,
            self.held,
            self.generation,
            self._target,
            standbys=self.standbys,
            warmth=warm,
        )
        return state, self._asked

    def ask(self) -> None:
        """Request a rebalance, because the leader's knowledge of this member is out of
        date.
        """
        self._asked += 1

    @property
    def wants_rebalance(self) -> bool:
        """Whether a rebalance was requested after the state was last sent: a running
        one may have begun too early.
        """
        return self._asked > self._sent

    def answered(self, generation: int) -> Lost | None:
        """Apply the answer to the last request to join. Return what is lost if a
        generation was missed before it; None: nothing is lost.

        A missed generation may have begun with a request from before the last
        assignment, and may have granted tasks to others that are held here.
        """
        missed = generation > self._answered + 1
        self._answered = generation
        if not (missed and self.held):
            return None
        self.ask()  # the answered request still names the tasks that are void now
        return self.lost()

    def assigned(self, generation: int, assignment: Assignment) -> Assigned:
        """Apply an assignment; revoked tasks stay held until they are released."""
        old = set(self.tasks)
        new = set(assignment.tasks)
        self._serial += 1
        added = tuple(task for task in assignment.tasks if task not in old)
        revoked = tuple(task for task in self.tasks if task not in new)
        self.closing = {
            task: at for task, at in self.closing.items() if task not in new
        } | dict.fromkeys(revoked, self._serial)
        self.tasks = assignment.tasks
        self._draining &= set(self.held)
        self.generation = generation
        self.standbys = assignment.standbys
        self._warming = tuple(
            standby
            for standby in assignment.standbys
            if any(standby.conflicts(task) for task in assignment.target)
        )
        self._target = assignment.target
        self._settled = assignment.settled
        # a predecessor's assignment: the leader knows neither our endpoint nor our
        # tasks
        if assignment.process != self.process:
            self.ask()
        return Assigned(
            self._serial,
            generation,
            self.epoch,
            self.tasks,
            added,
            revoked,
            assignment.cluster,
            assignment.waits,
            assignment.standbys,
            self._warming,
        )

    def caught_up(self, ready: Iterable[TaskId]) -> None:
        """Request a rebalance if one of these standbys is of a task that is to move here,
        and the leader does not know that it is ready.
        """
        for task in ready:
            known = any(
                told.conflicts(task) and told.key_range.covers(task.key_range)
                for told in self._ready
            )
            if not known and any(task.conflicts(other) for other in self._warming):
                self.ask()
                return

    def drains(self, tasks: Iterable[TaskId]) -> None:
        """Note that these tasks take long to close: once they are revoked, others are
        released without them, and each of them when it is closed.
        """
        self._draining |= set(tasks) & set(self.held)
        self._ask_if_closed()

    def released(self, tasks: Iterable[TaskId], seen: int) -> None:
        """Remove closing tasks. When only such as take long are left, and another member
        waits for them, request a rebalance.

        Shape: `seen` is the serial of the last assignment that the caller has handled.
        A task revoked by a later one stays held: the caller is about to get that
        assignment, and may have to open the task first.
        """
        before = len(self.closing)
        done = set(tasks)
        self.closing = {
            task: at
            for task, at in self.closing.items()
            if task not in done or at > seen
        }
        self._draining &= set(self.held)
        self._freed = self._freed or len(self.closing) < before
        self._ask_if_closed()

    def _ask_if_closed(self) -> None:
        """Request a rebalance if a task was released for which another member waits,
        and no other closing task is about to be released, too. Those that take long to
        close are not waited for.
        """
        if self._freed and not self._settled and self.closing.keys() <= self._draining:
            self._freed = False
            self.ask()

    def lost(self) -> Lost:
        """Drop all tasks, and begin a new epoch."""
        gone = self.held
        self._warming = ()
        self.epoch += 1
        self.generation = NO_GENERATION
        self.tasks = ()
        self._target = ()
        self.closing = {}
        self._draining = set()
        self._freed = False
        return Lost(self.epoch, gone)
