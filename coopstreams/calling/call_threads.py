"""The threads on which lanes call functions that are no coroutines."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

KEPT_S = 1.0
"""How long an idle thread waits for its next call before it ends."""


class CallThreads:
    """A pool that makes each call at once, on an idle thread or on a new one.
    Thread-safe by a lock. Calls must not raise.

    A thread is kept for a moment after its call, because starting one costs more than
    most calls. It is a daemon, so a waiting call does not keep the process from ending.
    Turned down: the executors of `concurrent.futures` (at its end, a process waits for
    their threads).
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._idle = 0

    def put(self, call: Callable[[], None]) -> None:
        """Start a call on a thread.

        Raises:
            RuntimeError: the system cannot start a thread.
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
