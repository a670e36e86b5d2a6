"""Retries of failed records, as a failure handler decides: the task pauses and is
opened again from the last commit.

A record that fails has left half of its effects behind: rows, and results in the open
transaction. So its task is given up as after an error of the log: the interval is
aborted, the task is opened again from the last commit, but only when the pause is over.
Tasks on the same thread are opened again at once. Exactly-once holds as after any
abort.

Turned down: to wait on the stream thread (all of its tasks would stand still, and the
transaction would run out).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from coopstreams.topology.errors import LogError
from coopstreams.topology.failures import Failure
from coopstreams.topology.task_id import TaskId


@dataclass(frozen=True, slots=True)
class Held:
    """A task that is not to be opened yet. Units: `until` as `Host.now`. Shape: `why`
    in words, a failure.
    """

    task: TaskId
    until: float
    why: str


class TriedLaterError(LogError):
    """A record is to be processed again after a pause. Its stream thread handles it as
    a commit that failed.
    """

    def __init__(
        self,
        message: str,
        task: TaskId,
        pause_s: float,
    ) -> None:
        super().__init__(
            f"{message}; it is processed again in {pause_s:.1f} s",
            retryable=True,
        )
        self.task = task
        self.pause_s = pause_s

    def held(self, now: float) -> Held:
        """Return until when its task is not to be opened. `now`: as `Host.now`."""
        return Held(self.task, now + self.pause_s, str(self))


class Attempts(Protocol):
    """Counts the attempts at a record."""

    def attempt(self, task: TaskId, failure: Failure) -> int:
        """Return how many times in a row this record has failed."""
        ...

    def note(self, task: TaskId, failure: Failure) -> None:
        """Note that the record is processed again."""


class Tries:
    """Counts failures of the record at which each task has stopped. Of one instance; a
    thread notes its own tasks.
    """

    def __init__(self) -> None:
        self._failed: dict[TaskId, tuple[Hashable, int]] = {}

    def attempt(self, task: TaskId, failure: Failure) -> int:
        """Return how many times in a row the record of this failure has failed."""
        record, times = self._failed.get(task, (None, 0))
        return times + 1 if record == _record(failure) else 1

    def note(self, task: TaskId, failure: Failure) -> None:
        """Note that the record is processed again."""
        self._failed[task] = _record(failure), failure.attempt


def _record(failure: Failure) -> Hashable:
    return failure.phase, failure.node, failure.source, failure.offset, failure.key
