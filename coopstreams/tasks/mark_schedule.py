"""When the time marks of a task are due. Pure: times and a clock in.

A mark is due where the time has advanced, at most each `time.mark.interval.ms`; and
without an advance each `REPEAT_S`, or each interval if that is longer, because a reader that opens waits until it has heard
each key group of each writer once.
"""

from __future__ import annotations

from collections.abc import Mapping

REPEAT_S = 2.0
"""How long a reader that opens may wait for a mark of a writer that runs."""


class MarkSchedule:
    """The marks of one task, by topic. Units: `now` in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, float]] = {}
        """The time of the last mark of each topic, and when it was committed."""
        self._staged: dict[str, tuple[int, float]] = {}

    def due(
        self,
        times: Mapping[str, int],
        now: float,
        interval_s: float,
    ) -> dict[str, int]:
        """Return the marks to write now. `times`: the lower bounds of today, -1 where
        none is known.
        """
        found: dict[str, int] = {}
        for topic, time in times.items():
            before, at = self._told.get(topic, (-1, float("-inf")))
            waited_s = now - at
            repeat_s = max(REPEAT_S, interval_s)
            if time >= 0 and waited_s >= (interval_s if time > before else repeat_s):
                found[topic] = time
        return found

    def stage(self, marks: Mapping[str, int], now: float) -> None:
        """Note marks that count with the commit under way."""
        self._staged = {topic: (time, now) for topic, time in marks.items()}

    def committed(self) -> None:
        """Note that the staged marks count."""
        self._told |= self._staged
        self._staged = {}
