"""Defines join windows: which records of two streams are near enough in time to be
joined.

A left record is joined with the right records for which `left - before <= right <= left
+ after`, both ends inclusive.

Invariant: `before + after >= 0`: the window does not end before it begins.
Turned down: Kafka Streams' default grace of 24 hours (see `windows`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from coopstreams.topology.durations import (
    Duration,
    Units,
    checked_ms,
    duration_ms,
    length_ms,
)
from coopstreams.topology.errors import TopologyError


@dataclass(frozen=True, slots=True, init=False)
class JoinWindows:
    """The window of a stream-stream join: `JoinWindows(minutes=5,
    grace=timedelta(minutes=1))`. `before=` or `after=` gives one side a length of its
    own.

    Either side may be negative: `before=timedelta(seconds=-3)` takes right records from
    three seconds after the left record. With `eager`, left and outer joins forward a
    record without a match at once, and its matches later, as Kafka Streams' deprecated
    `JoinWindows.of` does.

    Units: durations are timedeltas; `difference=` gives the length as a timedelta
    instead of `minutes=` and the like.
    Source: Kafka Streams `JoinWindows.ofTimeDifferenceAndGrace`, `before`, `after`.
    """

    before_ms: int
    after_ms: int
    grace_ms: int
    """How long after the end of its window, in stream time, a record still waits for a
    match; 0 by default.
    """
    eager: bool

    def __init__(
        self,
        difference: Duration | None = None,
        *,
        before: Duration | None = None,
        after: Duration | None = None,
        grace: Duration = 0,
        eager: bool = False,
        **units: Unpack[Units],
    ) -> None:
        both = before is not None and after is not None
        far = (
            0
            if both and difference is None and not units
            else length_ms("JoinWindows", "difference", difference, **units)
        )
        before_ms = (
            far if before is None else duration_ms(before, "JoinWindows: before")
        )
        after_ms = far if after is None else duration_ms(after, "JoinWindows: after")
        grace_ms = checked_ms(grace, "JoinWindows: grace")
        if before_ms + after_ms < 0:
            raise TopologyError(
                f"JoinWindows: it ends {after_ms} ms after a record and begins {-before_ms} ms after it, so nothing is "
                "in it"
            )
        object.__setattr__(self, "before_ms", before_ms)
        object.__setattr__(self, "after_ms", after_ms)
        object.__setattr__(self, "grace_ms", grace_ms)
        object.__setattr__(self, "eager", eager)

    @property
    def retention_ms(self) -> int:
        """How long the join keeps a record for later records, in stream time."""
        return self.before_ms + self.after_ms + self.grace_ms
