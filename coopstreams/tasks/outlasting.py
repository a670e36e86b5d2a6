"""Calls that take longer than the transaction or the group bears: the third time the same one does, that is an error
with its name.

The broker ends a transaction that is open for longer than `transaction.timeout.ms`, and a process of which a thread has
not moved for `max.poll.interval.ms` leaves the group. What was done is void then and is done again, and the same call
takes as long again, for ever.

Invariant: it is one and the same call: records by topic, partition and offset. A process that was stopped, or a service
that did not answer for a while, makes another call slow the next time.
Turned down: counting what was void in a row (a thread whose other tasks commit in between would never be told).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coopstreams.common.config import Config

MOST_TIMES = 3
FORGOTTEN_AFTER_S = 3600.0
"""A call that was slow so long ago, and three times its own duration, is another one when it is again."""


@dataclass(slots=True)
class Outlasting:
    """The slow calls of one instance: a task that is opened again may be on another thread.

    Units: `limits` in seconds, by the setting that gives them.
    """

    limits: Mapping[str, float]
    _times: dict[str, tuple[int, float]] = field(default_factory=dict)
    """How often a call was too slow, and when last."""

    @staticmethod
    def of(config: Config) -> Outlasting:
        """Return what knows of no slow call yet."""
        names = ("transaction.timeout.ms", "max.poll.interval.ms") if config.exactly_once else ("max.poll.interval.ms",)
        return Outlasting({name: config[name] / 1000 for name in names})

    @property
    def least_s(self) -> float:
        """What takes no longer is never too slow."""
        return min(self.limits.values())

    def void(self, call: str, seconds: float, now: float) -> str | None:
        """Note that what was done is void after a call that took so long; return what is wrong if that is hopeless.

        Shape: `call` in words that name nothing else.
        """
        exceeded = [f"{name} ({limit:g} s)" for name, limit in self.limits.items() if seconds > limit]
        if not exceeded:
            return None
        times, last = self._times.get(call, (0, now))
        times = 1 if now - last > max(FORGOTTEN_AFTER_S, 3 * seconds) else times + 1
        self._times[call] = times, now
        if times < MOST_TIMES:
            return None
        return (
            f"{call} takes {seconds:.0f} s, longer than {' and '.join(exceeded)}: its results were void {times} times, "
            "and would be each time. "
            f"Raise {' and '.join(name.partition(' ')[0] for name in exceeded)} above that, or make the function "
            "faster or give up sooner"
        )
