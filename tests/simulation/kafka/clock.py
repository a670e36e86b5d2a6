"""Time of a simulated cluster: virtual for a scheduler, real for the contract suite."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

SLICE_S = 0.005


class Clock(Protocol):
    """The time, and how a call waits inside.

    A scheduler that runs each actor on a stack of its own (a thread that hands over, a greenlet) parks the caller in `wait`, and lets
    others act; one that steps actors as functions lets no call wait (`VirtualClock`).
    """

    def now(self) -> float:
        """Return the time. Units: seconds, from anywhere."""
        ...

    def wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Return whether it is ready, now or within so many seconds."""
        ...


class VirtualClock:
    """Time that stands still until somebody moves it. A call that would have to wait for others gives up at once, as if its time were over."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the time."""
        return self._now

    def move(self, seconds: float) -> None:
        """Let time pass; `Cluster.step` then does what has become due."""
        self._now += seconds

    def wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Return whether it is ready now."""
        return ready()


class RealClock:
    """The time of this machine, for callers on threads."""

    def now(self) -> float:
        """Return the time."""
        return time.monotonic()

    def wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Look again every few milliseconds."""
        deadline = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > deadline:
                return False
            time.sleep(SLICE_S)
        return True
