"""What a client of the simulated cluster needs of the machine it is on: part of `coopstreams.common.host.Host`, which
is given to it as it is.
"""

from __future__ import annotations

from typing import Protocol

from coopstreams.common.host import Signal


class Clock(Protocol):
    """The time, and ways to wait: a `Host`, that of the system or one of a scheduler, or a `VirtualClock`."""

    def now(self) -> float:
        """Return the time. Units: seconds, from anywhere."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def signal(self) -> Signal:
        """Return a lowered flag."""
        ...


class VirtualClock:
    """The time of a run with one thread: it stands still until somebody moves it, or waits."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Return the time."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Let time pass; `Cluster.step` then does what has become due."""
        self._now += seconds

    def signal(self) -> Signal:
        """Return a flag that nobody raises: whoever waits for it waits for the time to pass."""
        return _Alone(self)


class _Alone:
    """A flag where there is nobody else."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def set(self) -> None:
        """Do nothing: whoever does that does not wait."""

    def clear(self) -> None:
        """Do nothing."""

    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None, "nobody else is there who could raise this flag"
        self._clock.sleep(timeout)
        return False
