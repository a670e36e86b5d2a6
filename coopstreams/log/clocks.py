"""Time marks of timed topics, and the clock of their reader (`timed_topics`).

    key None | value None | header `__coopstreams.time`: partition, first and last key
    group, time

A task that writes to a timed topic appends a mark to each of its partitions: what it
writes behind the mark is born at that time or later. It says for which key groups of
which of its source partitions it speaks. The clock is the least time over all key groups
of all source partitions of the writers. So no record behind a mark is born before the
clock, and what the clock has passed is complete.

Invariant: the clock counts only what was heard in front of a record. A reader that goes
back forgets the marks, because they promise nothing for what lies before them, and waits
until each key group has been heard again: writers repeat their marks. It then closes
windows later than it could have, never differently. Turned down: the newest mark (order
of arrival would decide what is late), and marks in the reader's commits (100 partitions
would be 100 kB each time).
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.keys import GROUPS, KeyGroups, KeyRange

HEADER = "__coopstreams.time"
UNHEARD = -1
_MARK = Struct(">IHHq")


class Mark(NamedTuple):
    """A lower bound of the births of all that a task will still write. Units: `time` in
    milliseconds.
    """

    partition: int
    first_group: int
    last_group: int
    time: int

    @classmethod
    def of(
        cls,
        partition: int,
        key_range: KeyRange,
        time: int,
    ) -> Mark:
        """Return the mark of a task."""
        return cls(partition, *key_range.groups, time)

    @property
    def headers(self) -> Headers:
        """The headers of the record."""
        return [(HEADER, _MARK.pack(*self))]


def clock_marks_in(columns: Columns) -> list[tuple[int, Mark]]:
    """Return the index of each mark among these records, and the mark."""
    if columns.headers is None:
        return []
    return [
        (index, Mark._make(_MARK.unpack(data)))
        for index, headers in enumerate(columns.headers)
        if headers
        and headers[0][0] == HEADER
        and columns.keys[index] is None
        and columns.values[index] is None
        and (data := headers[0][1]) is not None
        and len(data) == _MARK.size
    ]


class Awaited(NamedTuple):
    """Key groups of a source partition that have told no later time. Shape: both ends
    inclusive. Units: `time` in milliseconds, -1 if none was told.
    """

    partition: int
    groups: KeyGroups
    time: int


class Clock:
    """The time of a partition of a timed topic, as its marks tell it."""

    def __init__(self, writers: int) -> None:
        """Hear this many source partitions of the writers."""
        self.writers = writers
        self.now = UNHEARD
        self._times = [[UNHEARD] * GROUPS for _ in range(writers)]
        self._least = [UNHEARD] * writers
        """The least time of each row."""

    def hear(self, mark: Mark) -> None:
        """Take in a mark. One of a partition that is not known yet counts once it is."""
        if mark.partition >= self.writers:
            return
        row = self._times[mark.partition]
        groups = slice(mark.first_group, mark.last_group + 1)
        # Under at-least-once a new owner may stand behind what an earlier one has said.
        row[groups] = [max(before, mark.time) for before in row[groups]]
        self._least[mark.partition] = min(row)
        self.now = max(self.now, min(self._least))

    def forget(self) -> None:
        """Forget all marks: the reader goes back behind them."""
        self._times = [[UNHEARD] * GROUPS for _ in range(self.writers)]
        self._least = [UNHEARD] * self.writers
        self.now = UNHEARD

    @property
    def waits_for(self) -> Awaited | None:
        """The first of the key groups for which the clock waits, and those behind it
        that have told the same; None: there is no writer.
        """
        if not self._least:
            return None
        time = min(self._least)
        partition = self._least.index(time)
        row = self._times[partition]
        first = last = row.index(time)
        while last + 1 < GROUPS and row[last + 1] == time:
            last += 1
        return Awaited(partition, KeyGroups(first, last), time)


class Clocks:
    """The clocks of a reader's partitions."""

    def __init__(self) -> None:
        self._of: dict[TopicPartition, Clock] = {}

    def of(self, partition: TopicPartition, writers: int | None) -> Clock | None:
        """Return the clock of a partition; None: its topic is not timed.

        `writers`: how many source partitions its writers have.
        """
        if writers is None:
            return None
        clock = self._of.get(partition)
        if clock is None or clock.writers != writers:
            clock = self._of[partition] = Clock(writers)
        return clock

    def get(self, partition: TopicPartition) -> Clock | None:
        """Return the clock of a partition that is read; None: its topic is not timed."""
        return self._of.get(partition)

    def forget(self, partition: TopicPartition) -> None:
        """Forget the marks of a partition: the reader goes back behind them."""
        if (clock := self._of.get(partition)) is not None:
            clock.forget()

    def drop(self, partition: TopicPartition) -> None:
        """Drop the clock of a partition that is not read any more."""
        self._of.pop(partition, None)
