"""Gives tasks with asynchronous operators time to end their calls before they are
closed.

A draining task begins no calls, and waits for those that are being made: their results
are part of its last commit. The next owner makes all other calls. The wait has a limit,
because meanwhile no task processes the keys.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from coopstreams.common.host import Host
from coopstreams.tasks.task import Task

log = logging.getLogger(__name__)

DRAIN_S = 3.0
"""The longest time for which a task waits for its calls."""


class Draining:
    """The tasks of one stream thread that wait for their calls before they are closed.
    Used by that thread only.
    """

    def __init__(self, most_s: float, host: Host) -> None:
        self._most_s = min(DRAIN_S, most_s)
        self._host = host
        self._until: dict[Task, float] = {}
        """The time limit of each task. Units: `Host.now`."""

    def __bool__(self) -> bool:
        return bool(self._until)

    def begin(self, task: Task) -> bool:
        """Stop a task from beginning calls, and let those being made end; return False
        if it has no asynchronous operators or is closed.
        """
        if task.calls is None or task.closed:
            return False
        task.calls.drain()
        self._until[task] = self._host.now() + self._most_s
        return True

    def ready(self) -> list[Task]:
        """Return the draining tasks that have records to process, because calls have
        ended.
        """
        return [
            task
            for task in self._until
            if task.calls is not None and not task.closed and task.calls.look()
        ]

    def over(self) -> Iterator[Task]:
        """Yield the tasks to close now, and forget them."""
        now = self._host.now()
        for task, until in list(self._until.items()):
            drained = task.closed or task.calls is None or task.calls.drained()
            if drained or until <= now:
                if not drained:
                    log.info(
                        "%s: calls have not ended within %g s; the next owner makes them",
                        task,
                        self._most_s,
                    )
                del self._until[task]
                yield task

    def next_s(self) -> float:
        """Return in how many seconds the next task must be closed, even if its calls
        have not ended. A task that was discarded meanwhile must be closed at once.
        """
        if any(task.closed for task in self._until):
            return 0.0
        return min(self._until.values(), default=float("inf")) - self._host.now()
