"""Threads that make calls. One is kept for a moment behind its call: to start one costs
more than most calls.

Invariant: a waiting call does not keep the process from ending: its thread is a daemon.
Turned down: `WorkerPool`, whose threads end with the last job (one was started for
almost each call, at three times the
CPU: measured), and the executors of `concurrent.futures` (at its end, a process waits
for their threads).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

KEPT_S = 1.0
"""How long a thread waits for its next call."""


class CallThreads:
    """Makes each call at once, on a thread that waits for one or on a new one. Any
    thread. Calls must not raise.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._idle = 0

    def put(self, call: Callable[[], None]) -> None:
        """Make a call.

        Raises:
            RuntimeError: the system has no thread.
        """
        with self._changed:
            if self._idle <= len(self._calls):
                threading.Thread(target=self._work, name="call", daemon=True).start()
            self._calls.append(call)
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._calls:
                    self._idle += 1
                    told = self._changed.wait(KEPT_S)
                    self._idle -= 1
                    if not told and not self._calls:
                        return
                call = self._calls.popleft()
            call()
