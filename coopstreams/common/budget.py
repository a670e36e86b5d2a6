"""Limits the CPU time that a side activity of a process may take while its main work
waits for the interpreter.

Python runs one thread at a time, so queries take time from the processing. While
records wait, queries get a share of the time; further ones wait in order. The time is
measured, not estimated, so an expensive request is followed by a longer wait.

Invariant: while the main work is busy, requests spend no more than the share over any
long time, except those under way. Turned down: refusing requests beyond the share
(refusing 2,000 a second costs more than the share), threads of lower priority (the
interpreter's lock knows none).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

BURST_S = 0.05
"""CPU time that may be spent at once after a while without requests."""
LOOK_S = 0.1
"""How often a waiting request checks whether the main work is still busy."""


class CpuBudget:
    """The CPU time that one event loop, and functions on other threads, may take.
    `share` of a core; None: no bound.
    """

    def __init__(
        self,
        share: float | None,
        busy: Callable[[], bool],
        now: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        """Begin without any request.

        `busy`: whether the main work waits for the interpreter. `cpu`: the CPU time of
        the loop's thread.
        """
        self._share = share
        self._busy = busy
        self._now = now
        self._cpu = cpu
        self._elsewhere = 0.0
        """CPU time of counted functions on other threads."""
        self._here = 0.0
        self._seen: float | None = None
        """The CPU time of the loop's thread when it was last read."""
        self._guard = threading.Lock()
        self._left = BURST_S
        self._at: tuple[float, float] | None = None
        self._line = asyncio.Lock()

    async def turn(self) -> None:
        """Wait until the next request may be answered; requests wait in order. On the
        loop's thread.
        """
        if self._share is None:
            return
        async with self._line:
            while wait_s := self.wait_s(self._share):
                await asyncio.sleep(min(wait_s, LOOK_S))

    def wait_s(self, share: float) -> float:
        """Return the seconds until CPU time may be spent; 0: now. On the loop's thread."""
        cpu = self._cpu()
        self._here += 0.0 if self._seen is None else cpu - self._seen
        self._seen = cpu
        return self._wait_s(share)

    def wait_elsewhere_s(self) -> float:
        """Return the seconds until CPU time may be spent, at most `LOOK_S`; 0: now. On
        any other thread.
        """
        return 0.0 if self._share is None else min(LOOK_S, self._wait_s(self._share))

    def _wait_s(self, share: float) -> float:
        with self._guard:
            now = self._now()
            used = self._here + self._elsewhere
            if self._at is not None:
                self._left = min(
                    BURST_S,
                    self._left + share * (now - self._at[0]) - (used - self._at[1]),
                )
            self._at = now, used
            if not self._busy():
                self._left = BURST_S
            return 0.0 if self._left > 0 else 0.001 - self._left / share

    def counted(self, function: Callable[[], T]) -> Callable[[], T]:
        """Return a function that calls this one, and counts its CPU time. For threads
        other than the loop's.
        """
        if self._share is None:
            return function

        def call() -> T:
            began = time.thread_time()
            try:
                return function()
            finally:
                # losing another thread's update admits one request too many
                self._elsewhere += time.thread_time() - began

        return call
