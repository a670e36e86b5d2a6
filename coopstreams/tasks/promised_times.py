"""Computes the time that a silent source partition promises to the readers of timed
topics. Pure: times and a clock in.

The clock of a timed topic is the least time of all source partitions of its writers. A
partition without records would hold the clock for ever. So a task that has read its
partition to the end, and to which no record came for `repartition.idle.ms`, asks the
cluster whether that is the end (`source_times`), and promises the time of the other
partitions: a record that comes later is born at that time or later, and may be late.
The promise is an operator time like others: the task commits it, and the next owner
keeps it.

The times of the other partitions are those of their commits, which each process
follows. The promise is

* the least time of the partitions that are not silent;
* if all are silent, the greatest time, because all records have been read.

Where the readers also read other topics in the order of births, the partitions in front
of these are among the others, and those of the user's topics: with a silent one their
records would wait for the next record of this topic. A user's topic is not done before
that, so its readers note in their commits how far they have read it (`read_time_of`).

Invariant: no reader of a timed topic decides about silence. A process that is down
makes no promise, so time waits for its successor, and none of its records becomes late
by that.
Turned down: a time mark in the source topic, as `idle_advance` writes them. It would
have a place among the records, and be the same for a replay. But the source topic
belongs to other people. They may read it with programs that know no marks, may not let
this application write, or may compact the topic, which refuses a record without a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.operator_time import store_id

ACTIVE = 2.0
"""The multiple of the idle time for which a partition counts as not silent after its
last advance.

It is more than 1, so that two partitions that fall silent together each still see the
other's last time.
"""


class Advance(NamedTuple):
    """The time of a partition, and when it was last seen to advance. Units: ms; seconds
    of a monotonic clock.
    """

    time: int
    seen_at: float


def read_time_of(topic: str) -> int:
    """Return the operator whose time, in the commits of a user's topic that is read in
    the order of births, is the stream time up to which the topic was read.
    """
    return store_id(f"{topic}/read")


class Advances:
    """The times of all source partitions that the readers of one timed topic wait for,
    as the commits state them.
    """

    def __init__(self) -> None:
        self._of: dict[TopicPartition, Advance] = {}

    def look(self, times: Mapping[TopicPartition, int], now: float) -> None:
        """Take in the present time of each partition; -1: not known."""
        for partition, time in times.items():
            before = self._of.get(partition)
            if before is None or time > before.time:
                self._of[partition] = Advance(time, now)

    def time(self, partition: TopicPartition) -> int:
        """Return the time that a partition has reached; -1: not known."""
        found = self._of.get(partition)
        return -1 if found is None else found.time

    def promised(
        self,
        partition: TopicPartition,
        now: float,
        idle_s: float,
    ) -> int:
        """Return the time that `partition` may promise after a silence of `idle_s`; -1:
        none.
        """
        others = [at for other, at in self._of.items() if other != partition]
        return promised(others, now, idle_s)


def promised(
    others: Iterable[Advance],
    now: float,
    idle_s: float,
) -> int:
    """Return the time that a silent partition may promise, given the times of all other
    partitions; -1: none.
    """
    others = list(others)
    active = [at.time for at in others if now - at.seen_at < ACTIVE * idle_s]
    return min(active) if active else max((at.time for at in others), default=-1)
