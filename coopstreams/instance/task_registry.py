"""The tasks of an instance, their states, and the next action for each: events in,
actions out.

    wanted, and a local task overlaps it  -> waiting
    wanted                                -> opening -> running
    not wanted any more                   -> closing -> gone (and released to the group)
    aborted, lost, thread died            -> closing -> opened again if it is wanted
    topics changed, thread removed        -> closing -> opened again if it is wanted

Invariant: a standby runs only on hashes of which no task here is wanted, or not closed.
Invariant: the tasks of one partition that are opening, running or closing here never
overlap; a task that overlaps one of them waits. Every revoked task is released exactly
once, and only when it is closed. Turned down: opening a new key range while a task that
overlaps it still commits (two writers for one key).
Relies on: `group.holdings` (which tasks the group gives, and when one is released),
`instance` (carries the actions out).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from coopstreams.group.holdings import Assigned
from coopstreams.tasks.stream_thread import StreamThread
from coopstreams.tasks.task import Task
from coopstreams.topology.task_id import TaskId


class State(Enum):
    """The state of a task in this instance."""

    WAITING = "waiting"
    OPENING = "restoring"
    RUNNING = "running"
    CLOSING = "closing"


class Do(Enum):
    """The next action of the instance on a task.

    CANCEL: have the opener stop opening it. RUN: give what was opened to a stream thread.
    DROP: close it instead. CLOSE_DIRTY: close without a commit. RELEASE: tell the group.
    """

    OPEN = "open"
    CANCEL = "cancel"
    RUN = "run"
    CLOSE = "close"
    CLOSE_DIRTY = "close dirty"
    DROP = "drop"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Action:
    """One action on one task."""

    do: Do
    task: TaskId


@dataclass(frozen=True, slots=True)
class Standing:
    """What the control thread publishes of an instance. Replaced as a whole after each
    event.

    Shape: `tasks` are those that run, or are being closed, and `homes` their threads;
    `resting` has, for each dead stream thread, when its successor starts (`Host.now`),
    and its error.
    """

    assigned: Assigned | None = None
    """The last assignment; None: there was none yet."""
    states: Mapping[TaskId, State] = field(default_factory=dict)
    tasks: Mapping[TaskId, Task] = field(default_factory=dict)
    homes: Mapping[TaskId, StreamThread] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    """The errors that are held until the group has confirmed this member, in words."""
    resting: Mapping[int, tuple[float, str]] = field(default_factory=dict)

    @property
    def waits(self) -> str:
        """Why the group gives this process no tasks; empty: it gives tasks."""
        return "" if self.assigned is None else self.assigned.waits


class TaskRegistry:
    """The tasks of one instance. Used by the control thread only."""

    def __init__(self) -> None:
        self.states: dict[TaskId, State] = {}
        self.wanted: set[TaskId] = set()
        """The tasks that the group has assigned, and not revoked."""
        self.standbys: tuple[TaskId, ...] = ()
        """The tasks of which the group wants standbys here."""
        self._owed: set[TaskId] = set()
        """The revoked tasks that are not released yet."""
        self._ending: set[TaskId] = set()
        """The tasks that a stream thread is closing, perhaps waiting for calls."""
        self.unheard = False
        """Whether the group does not know the transactional ids of this process yet.
        Then no task is opened: others would end its transactions as those of a dead
        process.
        """
        self._stopped = False

    @property
    def here(self) -> set[TaskId]:
        """The tasks whose rows stay on this disk: those that are wanted, those that are
        not closed yet, and standbys.
        """
        return self.wanted | self.states.keys() | set(self.standbys)

    @property
    def stands_by(self) -> tuple[TaskId, ...]:
        """The standbys that may run now: they have no hash of a task that is wanted, or
        not closed yet.
        """
        tasks = self.wanted | self.states.keys()
        return tuple(
            replace(standby, key_range=free)
            for standby in self.standbys
            for free in standby.key_range.minus(
                task.key_range for task in tasks if task.conflicts(standby)
            )
        )

    def assigned(
        self,
        added: Iterable[TaskId],
        revoked: Iterable[TaskId],
    ) -> list[Action]:
        """Close the revoked tasks and open the added ones; return the actions for it."""
        actions: list[Action] = []
        for task in revoked:
            self.wanted.discard(task)
            self._owed.add(task)
            actions += self._give_up(task, dirty=False)
        self.wanted.update(added)
        return actions + self._open_what_can_be()

    def lost(self) -> list[Action]:
        """Close all tasks without a commit, because the membership is lost; return the
        actions for it. No task is released.
        """
        self.wanted.clear()
        self._owed.clear()
        return [
            action
            for task in list(self.states)
            for action in self._give_up(task, dirty=True)
        ]

    def stop(self) -> list[Action]:
        """Close all tasks cleanly, because the instance ends; return the actions for
        it. No task is opened any more.
        """
        self.wanted.clear()
        self._stopped = True
        return [
            action
            for task in list(self.states)
            for action in self._give_up(task, dirty=False)
        ]

    def reopen(self, tasks: Collection[TaskId]) -> list[Action]:
        """Close these tasks and open them again, with other source topics or on another
        stream thread; return the actions for it.

        They are closed cleanly and stay assigned, so none is released.
        """
        actions = [
            action
            for task in list(self.states)
            if task in tasks
            for action in self._give_up(task, dirty=False)
        ]
        return actions + self._open_what_can_be()

    def of(self, subtopologies: Collection[int]) -> list[TaskId]:
        """Return the local tasks of these sub-topologies."""
        return [task for task in self.states if task.subtopology in subtopologies]

    def opened(self, task: TaskId) -> list[Action]:
        """Return the actions after the opener has opened a task: run it, or drop it if
        it is no longer wanted.
        """
        if self.states.get(task) is State.OPENING:
            self.states[task] = State.RUNNING
            return [Action(Do.RUN, task)]
        return [Action(Do.DROP, task), *self.closed(task)]

    def aborted(self, tasks: Iterable[TaskId]) -> list[Action]:
        """Remove tasks that a stream thread has discarded; return the actions that open
        the wanted ones again from the log.
        """
        actions: list[Action] = []
        for task in tasks:
            if task in self.states:
                actions += self._gone(task)
        return actions + self._open_what_can_be()

    def closed(self, task: TaskId) -> list[Action]:
        """Remove a task that a stream thread or the opener has closed; return the
        actions that follow.
        """
        return self._gone(task) + self._open_what_can_be()

    def _give_up(self, task: TaskId, *, dirty: bool) -> list[Action]:
        """Return the actions that close a task, as far as it is open. `dirty`: without
        a commit.
        """
        state = self.states.get(task)
        if state is None or state is State.WAITING:
            return self._gone(task)
        if state is State.CLOSING:
            # a void task need not wait for its calls any more
            again = dirty and task in self._ending
            return [Action(Do.CLOSE_DIRTY, task)] if again else []
        self.states[task] = State.CLOSING
        if state is State.OPENING:
            return [Action(Do.CANCEL, task)]
        self._ending.add(task)
        return [Action(Do.CLOSE_DIRTY if dirty else Do.CLOSE, task)]

    def _gone(self, task: TaskId) -> list[Action]:
        """Forget a task that is closed; return the action that releases it, if the group
        waits for that.
        """
        self.states.pop(task, None)
        self._ending.discard(task)
        if task in self._owed:
            self._owed.discard(task)
            return [Action(Do.RELEASE, task)]
        return []

    def _open_what_can_be(self) -> list[Action]:
        """Return the actions that open the wanted tasks which overlap none here; the
        others wait.
        """
        actions: list[Action] = []
        if self._stopped:
            return actions
        for task in sorted(self.wanted):
            if self.states.get(task, State.WAITING) is not State.WAITING:
                continue
            busy = self.unheard or any(
                other != task and state is not State.WAITING and task.conflicts(other)
                for other, state in self.states.items()
            )
            self.states[task] = State.WAITING if busy else State.OPENING
            if not busy:
                actions.append(Action(Do.OPEN, task))
        return actions
