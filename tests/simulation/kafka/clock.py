"""The part of `coopstreams.common.host.Host` that clients of the simulated cluster use."""

from __future__ import annotations

from typing import Protocol

from coopstreams.common.host import Signal


class Clock(Protocol):
    """The time, and ways to wait: a `Host` of the system or of a scheduler, or a
    `VirtualClock`.
    """

    def now(self) -> float:
        """Return the time. Units: seconds since any moment."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def signal(self) -> Signal:
        """Return an event flag that is not set."""
        ...


class VirtualClock:
    """The time of a run with one thread: it advances only by `sleep` and waits."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Return the time."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Advance the time; `Cluster.step` then does the due work."""
        self._now += seconds

    def signal(self) -> Signal:
        """Return a flag that is never set: waiting for it advances the time."""
        return _Alone(self)


class _Alone:
    """An event flag without other threads."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def set(self) -> None:
        """Do nothing: no thread waits while another one calls this."""

    def clear(self) -> None:
        """Do nothing."""

    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None, "nobody else is there who could raise this flag"
        self._clock.sleep(timeout)
        return False
