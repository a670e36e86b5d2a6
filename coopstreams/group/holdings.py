"""What this member holds, is giving up, and has been promised: a state machine without I/O.

    assigned    what is not in the assignment is closing, what is new is added
    released    a closing task is closed: nobody here touches it again
    lost        the group went on without us: everything is void, and the epoch is another one

Invariant: whatever may still be open here is in `held`, so the leader gives it to nobody else (revoked is not
released).
Invariant: the epoch changes whenever membership is lost, before anything can be done under a new one. Whoever commits
names the epoch under which the work began; under another epoch it is void, even if this member holds the same task
again.
Turned down: releasing at once what is revoked, as consumers may: the next owner would open it beside our open
transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from coopstreams.group.members import NO_GENERATION, Assignment, Cluster, MemberInfo, MemberState
from coopstreams.topology.errors import GroupError
from coopstreams.topology.task_id import TaskId


@dataclass(frozen=True, slots=True)
class Assigned:
    """The group has spoken. `added` are to be opened, after those of the `revoked` that they overlap are closed.

    Shape: `tasks` is everything this member owns now, sorted. `revoked` must each be released; until then nobody gets
    them. `serial` numbers the assignments of this member.
    """

    serial: int
    generation: int
    epoch: int
    tasks: tuple[TaskId, ...]
    added: tuple[TaskId, ...]
    revoked: tuple[TaskId, ...]
    cluster: Cluster
    waits: str = ""
    """Why this member has no tasks, if the leader gives it none for now."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The membership is gone, and with it these tasks: uncommitted work is void, nothing has to be released. `epoch` is
    the new one.
    """

    epoch: int
    tasks: tuple[TaskId, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """Kafka will not have this member, and trying again does not help: the instance has to stop. `error` says why."""

    error: GroupError


GroupEvent: TypeAlias = Assigned | Lost | Refused


class Holdings:
    """The tasks of one member. Not thread-safe: its user has the lock."""

    def __init__(self, process: str) -> None:
        self.epoch = 0
        self.generation = NO_GENERATION
        """Of the last assignment; what is held comes from it."""
        self.tasks: tuple[TaskId, ...] = ()
        self.closing: dict[TaskId, int] = {}
        """Revoked and not yet released: by which assignment."""
        self.process = process
        self._target: tuple[TaskId, ...] = ()
        self._settled = True
        self._serial = 0
        self._asked = 0
        self._sent = 0

    @property
    def held(self) -> tuple[TaskId, ...]:
        """Everything that may be open here: assigned, or revoked and not yet released."""
        return tuple(sorted({*self.tasks, *self.closing}))

    def state(self, info: MemberInfo) -> tuple[MemberState, int]:
        """Return what to tell the leader, and a number that is another one for each rebalance that was asked for.

        A member whose bytes are the same as before only gets its old assignment again (measured), hence the number.
        """
        self._sent = self._asked
        return MemberState(info, self.held, self.generation, self._target), self._asked

    def ask(self) -> None:
        """Want a rebalance: what the leader knows of us is out of date."""
        self._asked += 1

    @property
    def wants_rebalance(self) -> bool:
        """Whether one was asked for after we last told the leader anything. One that runs already may have been too
        early.
        """
        return self._asked > self._sent

    def assigned(self, generation: int, assignment: Assignment) -> Assigned:
        """Take an assignment; what is revoked stays held until it is released."""
        old, new = set(self.tasks), set(assignment.tasks)
        self._serial += 1
        added = tuple(task for task in assignment.tasks if task not in old)
        revoked = tuple(task for task in self.tasks if task not in new)
        self.closing = {task: at for task, at in self.closing.items() if task not in new} | dict.fromkeys(
            revoked, self._serial
        )
        self.tasks = assignment.tasks
        self.generation = generation
        self._target = assignment.target
        self._settled = assignment.settled
        if (
            assignment.process != self.process
        ):  # a predecessor's: the leader knows neither our endpoint nor what we hold
            self.ask()
        cluster = replace(assignment.cluster, generation=generation)
        return Assigned(self._serial, generation, self.epoch, self.tasks, added, revoked, cluster, assignment.waits)

    def released(self, tasks: Iterable[TaskId], seen: int) -> None:
        """Forget closing tasks; when none is left and somebody waits for them, want a rebalance.

        Shape: `seen` is the serial of the last assignment that the caller has handled. A task revoked by a later one
        stays held: the caller is about to be told, perhaps to open it first.
        """
        before = len(self.closing)
        done = set(tasks)
        self.closing = {task: at for task, at in self.closing.items() if task not in done or at > seen}
        if before and not self.closing and not self._settled:
            self.ask()

    def lost(self) -> Lost:
        """Hold nothing, under a new epoch."""
        gone = self.held
        self.epoch += 1
        self.generation = NO_GENERATION
        self.tasks, self._target, self.closing = (), (), {}
        return Lost(self.epoch, gone)
