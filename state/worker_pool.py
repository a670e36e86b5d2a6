"""Threads for jobs that may wait forever for a network.

Invariant: a waiting job does not keep the process from ending: its thread is a daemon.
Turned down: the executors of `concurrent.futures` (at its end, a process waits for
their threads, one of which may never return).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Job = Callable[[], None]
Start = Callable[[Job, str], object]
"""Runs a job on a thread of its own, with that name."""


def start_daemon(job: Job, name: str) -> None:
    """Run a job on a daemon thread."""
    threading.Thread(target=job, name=name, daemon=True).start()


class WorkerPool:
    """A pool of up to `most` threads, which end when no job is left. Jobs must not
    raise. Thread-safe: a lock.

    Each job belongs to an owner. Owners take turns, one job each: a big store does not
    delay small ones.
    """

    def __init__(
        self,
        name: str,
        most: int,
        start: Start = start_daemon,
    ) -> None:
        self._name = name
        self._most = most
        self._start = start
        self._lock = threading.Lock()
        self._jobs: dict[object, deque[Job]] = {}
        """The jobs of each owner; the next owner comes first."""
        self._working = 0

    def put(self, owner: object, job: Job) -> None:
        """Add a job behind the other jobs of its owner; start a thread if fewer than
        `most` run.
        """
        with self._lock:
            if self._working < self._most:
                self._start(
                    self._work,
                    self._name,
                )  # first: if the system has no thread, the job is not taken
                self._working += 1
            self._jobs.setdefault(owner, deque()).append(job)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._working -= 1
                    return
                owner, jobs = next(iter(self._jobs.items()))
                job = jobs.popleft()
                del self._jobs[owner]
                if jobs:
                    self._jobs[owner] = jobs
            job()
