"""Which tasks an instance has, in which state, and what is to be done next: events in, actions out.

    wanted, and a local task overlaps it  -> waiting
    wanted                                -> opening -> running
    not wanted any more                   -> closing -> gone (and released to the group)
    aborted, lost, thread died            -> closing -> opened again if it is wanted
    topics changed                        -> closing -> opened again if it is wanted

Invariant: at any time the tasks of one partition that are opening, running or closing here do not overlap, but for a
task and its own successor that waits. Every revoked task is released exactly once, and only when it is closed.
Turned down: opening a re-cut range while its predecessor still commits (two writers for one key).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from coopstreams.topology.task_id import TaskId


class State(Enum):
    """Where a task of this instance is in its life."""

    WAITING = "waiting"
    OPENING = "restoring"
    RUNNING = "running"
    CLOSING = "closing"


class Do(Enum):
    """What the instance does about a task."""

    OPEN = "open"
    CANCEL = "cancel"
    RUN = "run"
    CLOSE = "close"
    CLOSE_DIRTY = "close dirty"
    DROP = "drop"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do."""

    do: Do
    task: TaskId


class TaskRegistry:
    """The tasks of one instance. Used by the control thread only."""

    def __init__(self) -> None:
        self.states: dict[TaskId, State] = {}
        self.wanted: set[TaskId] = set()
        self._owed: set[TaskId] = set()
        """Revoked, and not yet released."""

    def assigned(self, added: Iterable[TaskId], revoked: Iterable[TaskId]) -> list[Action]:
        """The group has spoken: give up what is revoked, open what is added."""
        actions: list[Action] = []
        for task in revoked:
            self.wanted.discard(task)
            self._owed.add(task)
            actions += self._give_up(task, dirty=False)
        self.wanted.update(added)
        return actions + self._open_what_can_be()

    def lost(self) -> list[Action]:
        """The membership is gone: whatever is not committed is void, nothing is owed to the group."""
        self.wanted.clear()
        self._owed.clear()
        return [action for task in list(self.states) for action in self._give_up(task, dirty=True)]

    def stop(self) -> list[Action]:
        """The instance ends: give everything up cleanly."""
        self.wanted.clear()
        return [action for task in list(self.states) for action in self._give_up(task, dirty=False)]

    def reopen(self, subtopologies: Collection[int]) -> list[Action]:
        """The tasks of these sub-topologies read other topics from now on: close them cleanly and open them again. The
        group hears nothing.
        """
        actions = [
            action
            for task in list(self.states)
            if task.subtopology in subtopologies
            for action in self._give_up(task, dirty=False)
        ]
        return actions + self._open_what_can_be()

    def opened(self, task: TaskId) -> list[Action]:
        """The opener has finished a task."""
        if self.states.get(task) is State.OPENING:
            self.states[task] = State.RUNNING
            return [Action(Do.RUN, task)]
        return [Action(Do.DROP, task), *self.closed(task)]

    def aborted(self, tasks: Iterable[TaskId]) -> list[Action]:
        """A stream thread has discarded these; those still wanted are opened again from the log."""
        actions: list[Action] = []
        for task in tasks:
            if task in self.states:
                actions += self._gone(task)
        return actions + self._open_what_can_be()

    def closed(self, task: TaskId) -> list[Action]:
        """A stream thread or the opener has let go of a task."""
        return self._gone(task) + self._open_what_can_be()

    def _give_up(self, task: TaskId, *, dirty: bool) -> list[Action]:
        state = self.states.get(task)
        if state is None or state is State.WAITING:
            return self._gone(task)
        if state is State.CLOSING:
            return []
        self.states[task] = State.CLOSING
        if state is State.OPENING:
            return [Action(Do.CANCEL, task)]
        return [Action(Do.CLOSE_DIRTY if dirty else Do.CLOSE, task)]

    def _gone(self, task: TaskId) -> list[Action]:
        self.states.pop(task, None)
        if task in self._owed:
            self._owed.discard(task)
            return [Action(Do.RELEASE, task)]
        return []

    def _open_what_can_be(self) -> list[Action]:
        actions: list[Action] = []
        for task in sorted(self.wanted):
            if self.states.get(task, State.WAITING) is not State.WAITING:
                continue
            busy = any(
                other != task and state is not State.WAITING and task.conflicts(other)
                for other, state in self.states.items()
            )
            self.states[task] = State.WAITING if busy else State.OPENING
            if not busy:
                actions.append(Action(Do.OPEN, task))
        return actions
