"""Defines windows: which windows hold a timestamp, and when a window is closed.

A `Windows` maps a timestamp to window starts, and a start to its end; operators and
stores identify windows by these numbers alone. The starts of `SlidingWindows` and
`SessionWindows` depend on the records of a key. So these classes have only the lengths,
and the operators find the windows.

Invariant: every timestamp >= 0 lies in at least one window of a `TimeWindows`. Turned
down: a default grace of 24 hours, as in Kafka Streams' deprecated `TimeWindows.of`:
results that wait a day surprise more than late records that are dropped. Without
`grace=`, the grace is 0, as in Kafka Streams' `ofSizeWithNoGrace`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, Unpack

from coopstreams.topology.durations import (
    Duration,
    Units,
    checked_ms,
    length_ms,
)
from coopstreams.topology.errors import TopologyError

FOREVER_MS = (1 << 63) - 1
"""The end of an unlimited window: the largest timestamp."""


class Windows:
    """The base class of windows. For your own windows, such as days of a time zone,
    override `starts` and `end`.

    Shape: `[start, end)`. `size_ms` is the length of the longest window; `grace_ms` is
    how long after its end, in stream time, a window takes late records. Objects are
    constants of the program; use one object, or objects that are equal, for the same
    windows. If the class is a dataclass, two versions of the program are compared by
    all its fields.
    """

    __slots__ = ()

    size_ms: int
    grace_ms: int

    def starts(self, timestamp: int) -> Sequence[int]:
        """Return the starts of the windows that hold the timestamp, ascending and not
        negative.
        """
        raise NotImplementedError

    def end(self, start_ms: int) -> int:
        """Return the end of the window that starts at `start_ms`, exclusive."""
        raise NotImplementedError

    def is_closed(self, start_ms: int, stream_time: int) -> bool:
        """Return whether the window is closed and takes no more records: end + grace <=
        stream time.
        """
        return self.end(start_ms) + self.grace_ms <= stream_time


@dataclass(frozen=True, slots=True, init=False)
class TimeWindows(Windows):
    """Windows of a fixed size: `TimeWindows(hours=1, grace=timedelta(hours=6))`, or
    `size=timedelta(...)`.

    They are tumbling (no gaps, no overlap), or hopping if they advance by less than
    their size: `TimeWindows(hours=1, advance=timedelta(minutes=5))`. They are aligned
    to the epoch.

    Units: durations are timedeltas, timestamps milliseconds since the epoch.
    Source: Kafka Streams `TimeWindows`.
    """

    size_ms: int
    advance_ms: int
    grace_ms: int
    """How long after its end, in stream time, a window takes late records; 0 by
    default.
    """

    def __init__(
        self,
        size: Duration | None = None,
        *,
        advance: Duration | None = None,
        grace: Duration = 0,
        **units: Unpack[Units],
    ) -> None:
        size_ms = length_ms("TimeWindows", "size", size, 1, **units)
        advance_ms = (
            size_ms
            if advance is None
            else checked_ms(advance, "TimeWindows: advance", 1)
        )
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
        """Whether the windows are tumbling, so that each timestamp lies in exactly one
        window.
        """
        return self.advance_ms == self.size_ms

    def starts(self, timestamp: int) -> Sequence[int]:
        """Return the starts of the windows that hold the timestamp, ascending."""
        first = (
            max(0, timestamp - self.size_ms + self.advance_ms)
            // self.advance_ms
            * self.advance_ms
        )
        return range(first, timestamp + 1, self.advance_ms)

    def end(self, start_ms: int) -> int:
        """Return the end of the window that starts at `start_ms`, exclusive."""
        return start_ms + self.size_ms


@dataclass(frozen=True, slots=True, init=False)
class UnlimitedWindows(Windows):
    """One window that starts at `start_ms` (since the epoch) and never ends. Earlier
    records are in no window.

    Source: Kafka Streams `UnlimitedWindows`.
    """

    start_ms: int

    def __init__(self, start_ms: int = 0) -> None:
        if type(start_ms) is not int or start_ms < 0:
            raise TopologyError(
                f"UnlimitedWindows: start_ms is a timestamp, milliseconds since the epoch, not {start_ms!r}"
            )
        object.__setattr__(self, "start_ms", start_ms)

    @property
    def size_ms(self) -> int:  # type: ignore[override]
        """The largest timestamp, because the window never ends."""
        return FOREVER_MS

    @property
    def grace_ms(self) -> int:  # type: ignore[override]
        """Always 0, because no record is late."""
        return 0

    def starts(self, timestamp: int) -> Sequence[int]:
        """Return the start of the window if the window holds the timestamp, else an
        empty sequence.
        """
        return (self.start_ms,) if timestamp >= self.start_ms else ()

    def end(self, start_ms: int) -> int:  # noqa: ARG002 the end is the same for any start
        """Return the largest timestamp, because the window never ends."""
        return FOREVER_MS


@dataclass(frozen=True, slots=True, init=False)
class SlidingWindows:
    """The windows of each key over records that are at most `difference` apart:
    `SlidingWindows(minutes=5)`.

    Shape: both ends of a window are inclusive.
    Source: Kafka Streams `SlidingWindows`.
    """

    difference_ms: int
    grace_ms: int

    def __init__(
        self,
        difference: Duration | None = None,
        *,
        grace: Duration = 0,
        **units: Unpack[Units],
    ) -> None:
        object.__setattr__(
            self,
            "difference_ms",
            length_ms("SlidingWindows", "difference", difference, 1, **units),
        )
        object.__setattr__(self, "grace_ms", checked_ms(grace, "SlidingWindows: grace"))

    def end(self, start_ms: int) -> int:
        """Return the end of the window that starts at `start_ms`, inclusive."""
        return start_ms + self.difference_ms


@dataclass(frozen=True, slots=True, init=False)
class SessionWindows:
    """The sessions of each key: runs of records without a pause longer than `gap`:
    `SessionWindows(minutes=30)`.

    Shape: both ends of a session are inclusive.
    Source: Kafka Streams `SessionWindows`.
    """

    gap_ms: int
    grace_ms: int

    def __init__(
        self,
        gap: Duration | None = None,
        *,
        grace: Duration = 0,
        **units: Unpack[Units],
    ) -> None:
        object.__setattr__(
            self,
            "gap_ms",
            length_ms("SessionWindows", "gap", gap, **units),
        )
        object.__setattr__(self, "grace_ms", checked_ms(grace, "SessionWindows: grace"))


AnyWindows: TypeAlias = Windows | SlidingWindows | SessionWindows
