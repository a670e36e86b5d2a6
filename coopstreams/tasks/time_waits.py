"""Who is waited for where time stands behind timed topics, and since when. Pure: times
and a clock in.

Two things wait. The clock of a reader, for the key groups of a source partition that
have told no later time; and with `max.time.skew.ms` the reading of a source partition,
for the slowest one. A process that is down tells nothing, so both wait for its
successor: that is how none of its records is late. Here it gets its name.

Invariant: a clock waits only where a later record has come. Where all have told the
time of the newest record, nothing is missing, however long ago that was.
"""

from __future__ import annotations

from dataclasses import dataclass

from coopstreams.log.clocks import UNHEARD, Awaited, Clock


@dataclass(frozen=True, slots=True)
class ClockWait:
    """A clock, and for whom it waits. Units: `since` in seconds of `Host.now`; else
    milliseconds, -1 if not known.
    """

    time: int
    newest: int
    """The latest birth of all records in front of it."""
    awaited: Awaited | None = None
    """None: the clock has passed all records."""
    since: float = 0.0
    """Since when it stands at this time, and a later record has come."""

    @property
    def lag_ms(self) -> int:
        """How far the clock is behind the newest record; 0 before its first time."""
        return 0 if self.time == UNHEARD else max(0, self.newest - self.time)


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A source partition that is not read, because it is too far ahead of another.
    Units: as of `ClockWait`.
    """

    time: int
    """The time that its records have reached."""
    awaited: Awaited
    since: float


def looked_at(
    clock: Clock,
    newest: int,
    before: ClockWait | None,
    now: float,
) -> ClockWait:
    """Return for whom a clock waits now, given the last look at it."""
    if newest <= clock.now:
        return ClockWait(clock.now, newest)
    stands = (
        before is not None and before.awaited is not None and before.time == clock.now
    )
    since = before.since if before is not None and stands else now
    return ClockWait(clock.now, newest, clock.waits_for, since)


def too_far_ahead(
    time: int,
    slowest: Awaited,
    most_ms: int,
) -> bool:
    """Whether a source partition of this time may not be read on. One without a time
    may: it holds the others.
    """
    if time == UNHEARD:
        return False
    return slowest.time == UNHEARD or time - slowest.time > most_ms


def held_back(
    time: int,
    slowest: Awaited,
    most_ms: int,
    before: HeldBack | None,
    now: float,
) -> HeldBack | None:
    """Return that a source partition is held back, given what was so before; None: it
    is read on.
    """
    if not too_far_ahead(time, slowest, most_ms):
        return None
    stands = before is not None and before.awaited == slowest
    since = before.since if before is not None and stands else now
    return HeldBack(time, slowest, since)
