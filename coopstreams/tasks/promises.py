"""What a silent source partition promises to the readers of timed topics. Pure: times
and a clock in.

The clock of a timed topic is the least time of all source partitions of its writers. A
partition without records would hold it for ever. So a task that has read its partition
to the end, and to which nothing came for `repartition.idle.ms`, asks the cluster
whether that is the end (`source_times`), and promises the time of the others: what
comes later is born at that time or later, and may be late. The promise is an operator
time like others: it is in the task's commit, and its successor keeps it.

The others' times are those of their commits, which each process follows:

* the least time of the partitions that are not silent;
* where all are silent, the greatest: everything that there is has been read.

Invariant: no reader of a timed topic decides about silence. A process that is down makes
no promise, so time waits for its successor, and none of its records is late for that.
Turned down: a time mark in the source topic, as `idle_advance` writes them. It would
have a place among the records, and be the same for a replay. But it is a topic of other
people, who may read it by programs that know no marks, may not let this one write, or
may compact it, where a record without a key is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

ACTIVE = 2.0
"""For how many times the idle time a partition counts as not silent after its last
advance. More than once: of two partitions that fall silent together each must still see
the other's last time.
"""


class Advance(NamedTuple):
    """A partition's time, and when it was seen to advance. Units: ms; s of a monotonic
    clock.
    """

    time: int
    seen_at: float


class Advances:
    """The times of the source partitions of one sub-topology, as they are followed."""

    def __init__(self) -> None:
        self._of: dict[int, Advance] = {}

    def look(self, times: Mapping[int, int], now: float) -> None:
        """Take in the time of each partition; -1: none is known."""
        for partition, time in times.items():
            before = self._of.get(partition)
            if before is None or time > before.time:
                self._of[partition] = Advance(time, now)

    def time(self, partition: int) -> int:
        """Return the time that a partition has reached; -1: none is known."""
        found = self._of.get(partition)
        return -1 if found is None else found.time

    def promised(
        self,
        partition: int,
        now: float,
        idle_s: float,
    ) -> int:
        """Return the time that a partition may promise which has been silent for
        `idle_s`; -1: none.
        """
        others = [at for other, at in self._of.items() if other != partition]
        return promised(others, now, idle_s)


def promised(
    others: Iterable[Advance],
    now: float,
    idle_s: float,
) -> int:
    """Return the time that a silent partition may promise, given all others."""
    others = list(others)
    active = [at.time for at in others if now - at.seen_at < ACTIVE * idle_s]
    return min(active) if active else max((at.time for at in others), default=-1)
