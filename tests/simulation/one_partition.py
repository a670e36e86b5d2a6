"""The records of all source partitions as those of one, in the order of births: what
the programs get whose answer depends on that order.

The birth of a record is the largest timestamp of its source partition up to it. The
clock is the least of the largest timestamps of all source partitions. Records come as
soon as the clock has reached their births.

Invariant: source partitions have no birth in common (`APART_MS`), because the order of
these would be that of arrival. No two keys of a source partition become one
(`topologies.PAIRS`), because the order of their records with one birth would be that in
which the tasks of their key ranges have written them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence

from coopstreams.topology.keys import partition_of
from tests.simulation.answers import Written
from tests.simulation.topologies import PAIRS, PARTITIONS

TOPICS = ("left", "right")
"""The topics of programs with two: they have births of their own, too."""
APART_MS = PARTITIONS * len(TOPICS)
"""Timestamps of the source partitions are distinct modulo this."""


def _place(topic: str, key: bytes) -> tuple[str, int]:
    return topic, partition_of(key, PARTITIONS)


def apart(record: Written) -> Written:
    """Return the record with a timestamp that no other source partition has."""
    topic, partition = _place(record.topic, record.key)
    number = partition + (PARTITIONS if topic == TOPICS[1] else 0)
    time = record.timestamp - record.timestamp % APART_MS + number
    return record._replace(timestamp=time)


class OnePartition:
    """Puts the records of these topics in the order of their births.

    `direct`: the topics that are read without a repartition topic, only this
    `partition` of them.
    """

    def __init__(
        self,
        topics: Iterable[str],
        direct: Collection[str] = (),
        partition: int = 0,
    ) -> None:
        self._born = {
            (topic, number): -1
            for topic in topics
            for number in range(PARTITIONS)
            if topic not in direct or number == partition
        }
        """The last birth of each source partition."""
        self._waiting: list[tuple[int, Written]] = []
        """Records and their births, in the order of these."""

    def put(self, records: Iterable[Written]) -> Sequence[Written]:
        """Add records that were written; return those that the clock has reached,
        with the keys of `PAIRS`.
        """
        for record in records:
            place = _place(record.topic, record.key)
            if place not in self._born:
                continue
            birth = self._born[place] = max(self._born[place], record.timestamp)
            self._waiting.append((birth, record))
        self._waiting.sort(key=_birth)
        due = bisect_right(self._waiting, min(self._born.values()), key=_birth)
        reached = [
            record._replace(key=_moved(record.key)) for _, record in self._waiting[:due]
        ]
        del self._waiting[:due]
        return reached


def _moved(key: bytes) -> bytes:
    """Return the key behind the repartition topic. That of a topic that is read directly
    is one of these.
    """
    return PAIRS.get(key.decode(), key.decode()).encode()


def _birth(waiting: tuple[int, Written]) -> int:
    return waiting[0]
