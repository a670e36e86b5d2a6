"""Decides when a task has to write time marks. Pure: times and a clock in.

A mark is due when the time has advanced, but at most once in `time.mark.interval.ms`.
Without an advance it is due after `REPEAT_S`, or after the interval if that is longer:
a reader that opens waits until it has read a mark of each key group of each writer.

Relies on: `committer` (writes what is `due`, stages it, and says that it is
`committed`; of an aborted commit nothing is).
"""

from __future__ import annotations

from collections.abc import Mapping

REPEAT_S = 2.0
"""The longest wait of a reader that opens for a mark of a running writer."""


class MarkSchedule:
    """The time marks of one task, by topic. Units: `now` in seconds of a monotonic
    clock.
    """

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, float]] = {}
        """Of each topic, the time in its last mark and when that mark was written."""
        self._staged: dict[str, tuple[int, float]] = {}

    def due(
        self,
        times: Mapping[str, int],
        now: float,
        interval_s: float,
    ) -> dict[str, int]:
        """Return the marks to write now, by topic.

        `times`: the present lower bound of each topic's time, -1 where none is known.
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
        """Remember marks that are part of the present commit."""
        self._staged = {topic: (time, now) for topic, time in marks.items()}

    def committed(self) -> None:
        """Count the staged marks as written, because the commit has succeeded."""
        self._told |= self._staged
        self._staged = {}
