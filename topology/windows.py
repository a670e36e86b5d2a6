"""Which windows a timestamp falls into.

Windows are plain numbers: a `Windows` maps a timestamp to window starts, says where a window ends and when it is
closed; whoever keeps state under them knows nothing else. `SlidingWindows` and `SessionWindows` depend on the records
of a key, not on the clock alone: they are sizes only, and the operators know the rest.

Invariant: every timestamp >= 0 lies in at least one window of fixed size.
Turned down: a default grace of 24 hours (what Kafka Streams' deprecated `TimeWindows.of` had): results that wait a day
surprise more than late records that drop. Without `grace=` there is none, as Kafka Streams' `ofSizeWithNoGrace`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from coopstreams.topology.errors import TopologyError

MILLISECOND = timedelta(milliseconds=1)

FOREVER_MS = (1 << 63) - 1
"""The end of a window that does not end."""


def duration_ms(duration: timedelta | int, what: str) -> int:
    """Return a duration in milliseconds; whole numbers already are.

    Raises:
        TopologyError: neither a timedelta nor an int, or finer than a millisecond; `what` names the argument.
    """
    if isinstance(duration, timedelta):
        if duration % MILLISECOND:
            raise TopologyError(f"{what} is {duration}: nothing finer than a millisecond exists in Kafka. Round it.")
        return duration // MILLISECOND
    if type(duration) is int:  # True is no duration
        return duration
    raise TopologyError(f"{what} must be a timedelta or whole milliseconds, not {duration!r}")


def checked_ms(duration: timedelta | int, what: str, least: int = 0) -> int:
    """Return a duration in milliseconds that is not below `least`.

    Raises:
        TopologyError: it is, or it is no duration.
    """
    ms = duration_ms(duration, what)
    if ms < least:
        raise TopologyError(
            f"{what} must be at least {least} ms, not {ms} ms"
            if least
            else f"{what} must not be negative, it is {ms} ms"
        )
    return ms


class Windows:
    """Windows of your own, for example days of a time zone: subclass it and say which windows hold a timestamp, and
    where they end.

    Shape: `[start, end)`. `size_ms` is the length of the longest window, `grace_ms` how long after its end, in stream
    time, a window takes late records. Two objects of a class must be equal, or the same, where their windows are; they
    are constants of the program.
    """

    __slots__ = ()

    size_ms: int
    grace_ms: int

    def starts(self, timestamp: int) -> Sequence[int]:
        """Return the starts of the windows that hold the timestamp, ascending. None of them is below 0."""
        raise NotImplementedError

    def end(self, start_ms: int) -> int:
        """Return where the window that starts there ends; the end itself is outside."""
        raise NotImplementedError

    def is_closed(self, start_ms: int, stream_time: int) -> bool:
        """Whether the window takes no records any more: end + grace <= stream time."""
        return self.end(start_ms) + self.grace_ms <= stream_time


@dataclass(frozen=True, slots=True, init=False)
class TimeWindows(Windows):
    """Windows of a fixed size: `TimeWindows(hours=1, grace=timedelta(hours=6))`, or `size=`.

    Tumbling (no gaps, no overlap), or hopping if they advance by less than their size: `TimeWindows(hours=1,
    advance=timedelta(minutes=5))`. They are aligned to the epoch.

    Units: durations are timedeltas or whole milliseconds; timestamps are milliseconds since the epoch.
    Source: Kafka Streams `TimeWindows`.
    """

    size_ms: int
    advance_ms: int
    grace_ms: int
    """How long after its end (in stream time) a window still takes late records. 0 unless given."""

    def __init__(
        self,
        *,
        size: timedelta | int | None = None,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
        advance: timedelta | int | None = None,
        grace: timedelta | int = 0,
    ) -> None:
        parts = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        if size is not None and parts:
            raise TopologyError(
                "TimeWindows: give the size either as size= or in days=, hours=, minutes=, seconds=, milliseconds=, "
                "not both"
            )
        size_ms = duration_ms(parts if size is None else size, "TimeWindows: the size")
        if size_ms <= 0:
            raise TopologyError(
                f"TimeWindows: the size must be at least 1 ms, not {size_ms} ms. Write TimeWindows(hours=1), for "
                "example."
            )
        advance_ms = size_ms if advance is None else checked_ms(advance, "TimeWindows: advance", 1)
        if advance_ms > size_ms:
            raise TopologyError(
                f"TimeWindows: windows of {size_ms} ms that advance by {advance_ms} ms leave gaps. Advance by at most "
                "the size."
            )
        object.__setattr__(self, "size_ms", size_ms)
        object.__setattr__(self, "advance_ms", advance_ms)
        object.__setattr__(self, "grace_ms", checked_ms(grace, "TimeWindows: grace"))

    @property
    def tumbles(self) -> bool:
        """Whether each timestamp lies in one window."""
        return self.advance_ms == self.size_ms

    def starts(self, timestamp: int) -> Sequence[int]:
        """Return the starts of the windows that hold the timestamp, ascending."""
        first = max(0, timestamp - self.size_ms + self.advance_ms) // self.advance_ms * self.advance_ms
        return range(first, timestamp + 1, self.advance_ms)

    def end(self, start_ms: int) -> int:
        """Return where the window that starts there ends; the end itself is outside."""
        return start_ms + self.size_ms


@dataclass(frozen=True, slots=True, init=False)
class UnlimitedWindows(Windows):
    """One window, from `start` (milliseconds since the epoch) on, that never ends. Records before it are in none.

    Source: Kafka Streams `UnlimitedWindows`.
    """

    start_ms: int

    def __init__(self, start: int = 0) -> None:
        object.__setattr__(self, "start_ms", checked_ms(start, "UnlimitedWindows: start"))

    @property
    def size_ms(self) -> int:  # type: ignore[override]
        """As long as time goes."""
        return FOREVER_MS

    @property
    def grace_ms(self) -> int:  # type: ignore[override]
        """None: nothing is late."""
        return 0

    def starts(self, timestamp: int) -> Sequence[int]:
        """Return the start of the window, if it holds the timestamp."""
        return (self.start_ms,) if timestamp >= self.start_ms else ()

    def end(self, start_ms: int) -> int:  # noqa: ARG002 whatever it is
        """Return the end of time."""
        return FOREVER_MS


@dataclass(frozen=True, slots=True, init=False)
class SlidingWindows:
    """A window for each set of records of a key that lie at most `difference` apart. Both its ends are inside.

    Source: Kafka Streams `SlidingWindows`.
    """

    difference_ms: int
    grace_ms: int

    def __init__(self, *, difference: timedelta | int, grace: timedelta | int = 0) -> None:
        object.__setattr__(self, "difference_ms", checked_ms(difference, "SlidingWindows: the difference", 1))
        object.__setattr__(self, "grace_ms", checked_ms(grace, "SlidingWindows: grace"))

    def end(self, start_ms: int) -> int:
        """Return where the window that starts there ends; the end itself is inside."""
        return start_ms + self.difference_ms


@dataclass(frozen=True, slots=True, init=False)
class SessionWindows:
    """A window for each run of records of a key without a pause longer than `gap`. Both its ends are inside.

    Source: Kafka Streams `SessionWindows`.
    """

    gap_ms: int
    grace_ms: int

    def __init__(self, *, gap: timedelta | int, grace: timedelta | int = 0) -> None:
        object.__setattr__(self, "gap_ms", checked_ms(gap, "SessionWindows: the gap"))
        object.__setattr__(self, "grace_ms", checked_ms(grace, "SessionWindows: grace"))


AnyWindows: TypeAlias = Windows | SlidingWindows | SessionWindows
