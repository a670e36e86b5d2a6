"""Keeps the scheduled punctuations and calls those that are due: a queue for stream
time and one for the wall clock.

Invariant: however far the clock jumps ahead, a punctuation is called once, and its next
time is still a whole number of intervals after its first.
Invariant: a wall clock that is set back delays no punctuation: one that was due in a
second is still due in a second. (Kafka Streams calls it when the clock shows the
original due time.)
Relies on: `program` (calls what is due, before which record).
Source: Kafka Streams `PunctuationQueue`, `PunctuationSchedule`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count


@dataclass(slots=True)
class Schedule:
    """A punctuation: a function that is called with the time (ms) each `interval_ms`,
    until `cancel`. The function itself may call `cancel`.
    """

    interval_ms: int
    function: Callable[[int], object]
    cancelled: bool = False

    def cancel(self) -> None:
        """Stop the schedule: its function is never called again."""
        self.cancelled = True


@dataclass(slots=True)
class PunctuationQueue:
    """The schedules of one clock, ordered by their due times."""

    _queue: list[tuple[int, int, Schedule]] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)
    _now_ms: int | None = None

    @property
    def next_ms(self) -> int | None:
        """The time at which the next punctuation is due, or None if none is
        scheduled.
        """
        return self._queue[0][0] if self._queue else None

    def due(self, now_ms: int) -> bool:
        """Return whether a punctuation is due at `now_ms`."""
        return bool(self._queue) and self._queue[0][0] <= now_ms

    def add(self, schedule: Schedule, first_ms: int) -> None:
        """Add a schedule. Its function is first called when the clock reaches
        `first_ms`.
        """
        heappush(self._queue, (first_ms, next(self._numbers), schedule))

    def look(self, now_ms: int) -> None:
        """Note the time of the wall clock. If the clock was set back, move all due
        times back with it.
        """
        if self._now_ms is not None and now_ms < self._now_ms:
            back_ms = self._now_ms - now_ms
            self._queue = [
                (due_ms - back_ms, number, schedule)
                for due_ms, number, schedule in self._queue
            ]
        self._now_ms = now_ms

    def punctuate(self, now_ms: int) -> bool:
        """Call the functions that are due, each once. Return whether any was called.

        Raises:
            Whatever a function raises; it is called again at its next time.
        """
        fired = False
        while self.due(now_ms):
            due_ms, _, schedule = heappop(self._queue)
            if schedule.cancelled:
                continue
            fired = True
            self.add(
                schedule,
                now_ms
                - (now_ms - due_ms) % schedule.interval_ms
                + schedule.interval_ms,
            )
            schedule.function(now_ms)
        return fired
