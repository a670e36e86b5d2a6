"""Time marks of timed topics, and the clock of their reader (`timed_topics`).

    key None | value None | header `__coopstreams.time`: partition, first and last key group, time

A task that writes to a timed topic appends a mark to each of its partitions: all
records that it writes behind the mark have a birth of at least that time. The mark
names the source partition and the key groups of the task. The clock is the least time
over all key groups of all source partitions of the writers. So no record behind a mark
is born before the clock, and windows that the clock has passed are complete.

Invariant: the clock counts only marks in front of a record. A reader that goes back
forgets the marks, because they promise nothing about earlier records. It waits until it
has a mark of each key group: writers repeat their marks. It then closes windows later
than it could have, but with the same results. Turned down: the newest mark (order of
arrival would decide what is late), and marks in the reader's commits (100 partitions
would be 100 kB each time).
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.compile.births import check_version
from coopstreams.topology.keys import GROUPS, KeyGroups, KeyRange

HEADER = "__coopstreams.time"
VERSION = 1
"""The version of a mark. The header of a later version begins with the name of this
one.
"""
UNHEARD = -1
"""The time of a writer that has not told one, and of a clock while there is such."""
_MARK = Struct(">IHHq")


class Mark(NamedTuple):
    """A time mark of a task: no record that it writes later is born before `time`.

    Shape: the task's source partition and key groups, both ends inclusive. Units:
    `time` in milliseconds.
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
        """Return the mark of a task: its source partition, key range and time."""
        return cls(partition, *key_range.groups, time)

    @property
    def headers(self) -> Headers:
        """The headers of the record that is this mark."""
        return [(HEADER, _MARK.pack(*self))]


def clock_marks_in(columns: Columns) -> list[tuple[int, Mark]]:
    """Return the marks among these records, each with its index.

    Raises:
        LogError: a mark is of a later version.
    """
    found = marked(columns, HEADER)
    for _, name, _ in found:
        check_version(name, HEADER)
    return [
        (index, Mark._make(_MARK.unpack(data)))
        for index, _, data in found
        if len(data) == _MARK.size
    ]


def marked(columns: Columns, name: str) -> list[tuple[int, str, bytes]]:
    """Return the records without key and value whose first header has this name, or one
    that begins with it: the index, and the name and the value of the header of each.
    """
    if columns.headers is None:
        return []
    keys = columns.keys
    values = columns.values
    # The name is compared last: nearly every record has a key or a value.
    return [
        (index, headers[0][0], headers[0][1] or b"")
        for index, headers in enumerate(columns.headers)
        if headers
        and keys[index] is None
        and values[index] is None
        and headers[0][0].startswith(name)
    ]


class Awaited(NamedTuple):
    """The key groups for which a clock waits: their marks have the least time. Shape:
    both ends inclusive. Units: `time` in milliseconds, -1 if there was no mark yet.
    """

    partition: int
    groups: KeyGroups
    time: int


class Clock:
    """The clock of a partition of a timed topic: the least time of its writers' marks."""

    def __init__(self, writers: int) -> None:
        """Begin without any mark.

        `writers`: the number of source partitions of the topic's writers.
        """
        self.writers = writers
        self.now = UNHEARD
        self._times = [[UNHEARD] * GROUPS for _ in range(writers)]
        self._least = [UNHEARD] * writers
        """The least time of each source partition."""

    def hear(self, mark: Mark) -> None:
        """Apply a mark, which may advance the clock. A mark of a source partition that
        is not known yet is ignored: its task repeats it.
        """
        if mark.partition >= self.writers:
            return
        row = self._times[mark.partition]
        groups = slice(mark.first_group, mark.last_group + 1)
        # Under at-least-once a new owner may stand behind what an earlier one has said.
        row[groups] = [max(before, mark.time) for before in row[groups]]
        self._least[mark.partition] = min(row)
        self.now = max(self.now, min(self._least))

    def forget(self) -> None:
        """Forget all marks, because the reader seeks back."""
        self._times = [[UNHEARD] * GROUPS for _ in range(self.writers)]
        self._least = [UNHEARD] * self.writers
        self.now = UNHEARD

    @property
    def waits_for(self) -> Awaited | None:
        """The first of the key groups for which the clock waits, and the groups behind
        it with the same time; None: there is no writer.
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
        """Return the clock of a partition, and make it if needed; None: its topic is
        not timed.

        `writers`: the number of source partitions of the topic's writers; None: not
        timed.
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
        """Forget the marks of a partition, because the reader seeks back."""
        if (clock := self._of.get(partition)) is not None:
            clock.forget()

    def drop(self, partition: TopicPartition) -> None:
        """Drop the clock of a partition that is not read any more."""
        self._of.pop(partition, None)
