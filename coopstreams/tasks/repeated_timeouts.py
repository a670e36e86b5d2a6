"""Ends a thread with an error if the same call exceeds a time-out three times, or if
errors repeat.

The broker aborts a transaction that is open for longer than `transaction.timeout.ms`,
and a process leaves the group when a thread has not moved for `max.poll.interval.ms`.
The work is void then and is repeated, and the same call takes as long again, for ever.
The third time, an error names the call. The flush of record caches before a commit
counts as one call: it runs the functions below the caches for all updates of an
interval.

Invariant: only repetitions of the same call count; calls on records are told apart by
topic, partition and offset. If a process was stopped, or a service did not answer for a
while, another call is slow the next time. Turned down: counting aborts in a row (a
thread whose other tasks commit in between would never report an error).
Relies on: `stream_thread` (measures the calls, and aborts).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coopstreams.common.config import Config
from coopstreams.topology.errors import ProcessingError

MOST_TIMES = 3
FORGOTTEN_AFTER_S = 3600.0
"""The shortest time after which a slow call is forgotten: its count then begins again.
The time is three times the call's duration, if that is longer.
"""


MOST_IN_VAIN = 5
"""The number of errors that are not retryable, within `IN_VAIN_S`, at which a thread
gives up.
"""
IN_VAIN_S = 60.0


class OutlastingError(ProcessingError):
    """Raised when a call takes longer than a time-out allows, each time that it is
    made.

    A lost membership does not explain it: the call itself makes the member lose its
    membership.
    """


@dataclass(slots=True)
class Outlasting:
    """The calls of one instance that took longer than a time-out, and how often each
    did. All its threads share it, because a task may be opened again on another thread.

    Units: `limits` (the time-outs) in seconds, by the name of the setting.
    """

    limits: Mapping[str, float]
    _times: dict[str, tuple[int, float]] = field(default_factory=dict)
    """How often each call was too slow, and when it last was."""

    @staticmethod
    def of(config: Config) -> Outlasting:
        """Return an empty record of slow calls with the limits of this configuration."""
        names = (
            ("transaction.timeout.ms", "max.poll.interval.ms")
            if config.exactly_once
            else ("max.poll.interval.ms",)
        )
        return Outlasting({name: config[name] / 1000 for name in names})

    @property
    def least_s(self) -> float:
        """The smallest limit. A call that takes no longer is never too slow."""
        return min(self.limits.values())

    def void(
        self,
        call: str,
        seconds: float,
        now: float,
    ) -> str | None:
        """Count a call that exceeded a limit, whose work is void; return an error
        message at the third time, else None.

        `call`: words that identify the call.
        """
        exceeded = [
            f"{name} ({limit:g} s)"
            for name, limit in self.limits.items()
            if seconds > limit
        ]
        if not exceeded:
            return None
        times, last = self._times.get(call, (0, now))
        times = 1 if now - last > max(FORGOTTEN_AFTER_S, 3 * seconds) else times + 1
        self._times[call] = times, now
        if times < MOST_TIMES:
            return None
        return (
            f"{call} takes {seconds:.0f} s, longer than {' and '.join(exceeded)}: its results were void {times} "
            f"times, and would be each time. Raise {' and '.join(name.partition(' ')[0] for name in exceeded)} above "
            "that, or make the function faster or give up sooner"
        )


class InVain:
    """The errors of one thread within the last `IN_VAIN_S`."""

    def __init__(self) -> None:
        self._at: list[float] = []

    def again(self, now: float) -> bool:
        """Count an error; return whether there were too many. `now`: as `Host.now`."""
        self._at = [at for at in self._at if at > now - IN_VAIN_S] + [now]
        return len(self._at) >= MOST_IN_VAIN
