"""Pauses a task whose record failed, and processes the record again after the pause.

A failure handler asks for it. The failed record has left half of its effects behind:
rows, and results in the open transaction. So its stream thread does as after an error
of the log: it aborts the interval, and all of its tasks are opened again from the last
commit. The task of the failed record is opened only when the pause is over.
Exactly-once holds as after any abort.

Relies on: `failure_handlers` (raises the error), `stream_thread` (aborts), `opener` (opens
the task when its pause is over).
Turned down: to wait on the stream thread (all of its tasks would stand still, and the
transaction would time out).
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
    """A task that may not be opened before a time.

    Shape: `why` is the failure, in words. Units: `until` as `Host.now`.
    """

    task: TaskId
    until: float
    why: str


class TriedLaterError(LogError):
    """Raised where a record failed and is to be processed again after a pause.

    Its stream thread handles it as a failed commit.
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
        """Return until when the task may not be opened. `now`: as `Host.now`."""
        return Held(self.task, now + self.pause_s, str(self))


class Attempts(Protocol):
    """Counts how often in a row a record has failed."""

    def attempt(self, task: TaskId, failure: Failure) -> int:
        """Return how many times in a row the record of this failure has failed."""
        ...

    def note(self, task: TaskId, failure: Failure) -> None:
        """Count this failure of the record; the record is processed again."""


class Tries:
    """The failed attempts at one record of each task: the record at which the task
    paused last.

    One object for each instance; a thread notes only its own tasks.
    """

    def __init__(self) -> None:
        self._failed: dict[TaskId, tuple[Hashable, int]] = {}

    def attempt(self, task: TaskId, failure: Failure) -> int:
        """Return how many times in a row the record of this failure has failed."""
        record, times = self._failed.get(task, (None, 0))
        return times + 1 if record == _record(failure) else 1

    def note(self, task: TaskId, failure: Failure) -> None:
        """Count this failure of the record; the record is processed again."""
        self._failed[task] = _record(failure), failure.attempt


def _record(failure: Failure) -> Hashable:
    return failure.phase, failure.node, failure.source, failure.offset, failure.key
