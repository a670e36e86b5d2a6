"""Gives tasks with asynchronous operators time to end their calls before they are
closed.

A draining task begins no calls, and waits for those that are being made: their results
are processed as they come, and the thread commits them at its interval, with its other
tasks. The next owner makes all other calls. The wait has a limit
(`max.revoke.delay.ms`), because meanwhile no task processes the keys.

Invariant: a draining task is still held by this member, so no other member has its key
range.
Relies on: `stream_thread` (commits and closes what is `over`), `pending_calls`
(`drain`).
Turned down: a limit below the transaction time-out (a transaction is open for a commit
interval only, however long a call takes).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from coopstreams.common.host import Host
from coopstreams.tasks.task import Task

log = logging.getLogger(__name__)

PROMPT_S = 1.0
"""How long a task may drain before others are given to the group without it. Units:
seconds.
"""


class Draining:
    """The tasks of one stream thread that wait for their calls before they are closed.
    Used by that thread only.
    """

    def __init__(self, most_s: float, host: Host) -> None:
        """`most_s`: the longest time for which a task waits for its calls."""
        self._most_s = most_s
        self._host = host
        self._slow_at: dict[Task, float] = {}
        """When each task is slow, unless it is reported already. Units: `Host.now`."""
        self._tasks: list[Task] = []

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def begin(self, task: Task) -> bool:
        """Stop a task from beginning calls, and let those being made end; return False
        if it has no asynchronous operators or is closed.
        """
        if task.calls is None or task.closed:
            return False
        if task not in self._tasks:
            now = self._host.now()
            task.calls.drain()
            task.drains_until = now + self._most_s
            self._slow_at[task] = now + PROMPT_S
            self._tasks.append(task)
        return True

    def hurry(self) -> None:
        """Wait for no calls any more, not even of tasks that are closed later."""
        self._most_s = 0.0
        for task in self._tasks:
            task.drains_until = self._host.now()

    def ready(self) -> list[Task]:
        """Return the draining tasks that have records to process, because calls have
        ended.
        """
        return [
            task
            for task in self._tasks
            if task.calls is not None and not task.closed and task.calls.look()
        ]

    def slow(self) -> Iterator[Task]:
        """Yield each task once, when it has drained for longer than `PROMPT_S`."""
        now = self._host.now()
        for task, at in list(self._slow_at.items()):
            if at <= now:
                del self._slow_at[task]
                yield task

    def over(self, *, all_of_them: bool = False) -> Iterator[Task]:
        """Yield the tasks to close now, and forget them. `all_of_them`: whether or not
        their calls have ended.
        """
        now = self._host.now()
        for task in list(self._tasks):
            drained = task.closed or task.calls is None or task.calls.drained()
            if drained or all_of_them or _until(task) <= now:
                if not drained:
                    log.info(
                        "%s: its calls have not ended in time (max.revoke.delay.ms); the next owner makes them",
                        task,
                    )
                self._tasks.remove(task)
                self._slow_at.pop(task, None)
                yield task

    def next_s(self) -> float:
        """Return in how many seconds the next task must be closed or reported, even if
        its calls have not ended. A task that was discarded meanwhile must be closed at
        once.
        """
        if any(task.closed for task in self._tasks):
            return 0.0
        times = [*map(_until, self._tasks), *self._slow_at.values()]
        return min(times, default=float("inf")) - self._host.now()


def _until(task: Task) -> float:
    assert task.drains_until is not None
    return task.drains_until
