"""Which partition a clock or a reader waits for behind timed topics, and since when.
Pure: times and a clock in.

Two things wait. A reader's clock waits for the key groups of a source partition that
have told no later time. With `max.time.skew.ms`, the reading of a source partition
waits for the slowest partition. A process that is down tells no times, so both wait for
its successor, and none of its records becomes late. This module names the partition
that is waited for.

Invariant: a clock waits only if a record has come that is later than the clock. If all
writers have told the time of the newest record, nothing is missing, however long ago
that was.
Relies on: `log.clocks` (what a clock awaits), `instance.dispatch` (feeds this),
`status.time_status` (shows it).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from coopstreams.log.clocks import UNHEARD, Awaited, Clock


@dataclass(frozen=True, slots=True)
class ClockWait:
    """A clock, and what it waits for.

    Units: `since` in seconds of `Host.now`; times in milliseconds, -1 if not known.
    """

    time: int
    newest: int
    """The latest birth among all records that the clock has to pass."""
    awaited: Awaited | None = None
    """The partition that the clock waits for; None: the clock has passed all records.
    """
    since: float = 0.0
    """Since when the clock has stood at `time` while a later record waits."""

    @property
    def lag_ms(self) -> int:
        """How far the clock is behind the newest record; 0 if the clock has no time
        yet.
        """
        return 0 if self.time == UNHEARD else max(0, self.newest - self.time)


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A source partition that is not read, because it is too far ahead of another one.
    Units: as for `ClockWait`.
    """

    time: int
    """The time that the partition's records have reached."""
    awaited: Awaited
    since: float


class ReadTime(NamedTuple):
    """The clock of a topic of the user in the order of births: how far it was read."""

    now: int
    waits_for: Awaited


def looked_at(
    clock: Clock | ReadTime,
    newest: int,
    before: ClockWait | None,
    now: float,
) -> ClockWait:
    """Return what a clock waits for now. `before`: the result of the last call for this
    clock.
    """
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
    """Return whether a source partition at this time is too far ahead of the slowest
    one to be read.

    A partition without a time is never too far ahead: the other partitions wait for it.
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
    """Return why a source partition is not read; None: it is read.

    `before`: the result of the last call for this partition.
    """
    if not too_far_ahead(time, slowest, most_ms):
        return None
    stands = before is not None and before.awaited == slowest
    since = before.since if before is not None and stands else now
    return HeldBack(time, slowest, since)
