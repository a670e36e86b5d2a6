"""The oracle of timed topics: what their marks say is true of the log.

A mark says that nothing behind it is born before its time. So a record that was
committed behind marks of all key groups of all writers is not born before the least of
them. That holds for whatever is written, and however long partitions are silent.
"""

from __future__ import annotations

from coopstreams.log.clocks import Mark, clock_marks_in
from coopstreams.log.memory.state import MemoryState
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.births import births_in
from coopstreams.topology.graph.timed_topics import timed_topics, writers_of
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import GROUPS


class _Read:
    """How far a partition was read, and what its marks have said there: a clock of its
    own, because bugs are planted in the other one.
    """

    def __init__(self, offset: int, writers: int) -> None:
        self.offset = offset
        self._times = [[-1] * GROUPS for _ in range(writers)]

    def hear(self, mark: Mark) -> None:
        row = self._times[mark.partition]
        for group in range(mark.first_group, mark.last_group + 1):
            row[group] = max(row[group], mark.time)

    @property
    def now(self) -> int:
        """The least of all marks; -1: some are still to come."""
        return min(map(min, self._times))


class TimedTopics:
    """Reads the timed topics of a topology on and on; only under exactly-once is each
    record written once.
    """

    def __init__(self, state: MemoryState, topology: Topology) -> None:
        self._state = state
        self._parts = topology.subtopologies
        self._timed = timed_topics(self._parts)
        self._read: dict[TopicPartition, _Read] = {}

    def begin_anew(self) -> None:
        """Take it that the topics were deleted."""
        self._read.clear()

    def wrong(self) -> list[str]:
        """Return each new record that was born before the clock."""
        needed = {*self._timed, *(part.topics[0] for part in self._parts)}
        if not self._timed or not all(name in self._state.topics for name in needed):
            return []
        sources = [self._state.topic(part.topics[0]) for part in self._parts]
        writers = writers_of(
            self._timed, self._parts, [len(each.partitions) for each in sources]
        )
        return [
            problem
            for topic, count in writers.items()
            for partition in self._state.topic(topic).partitions
            for problem in self._wrong_in(partition.where, count)
        ]

    def _wrong_in(self, where: TopicPartition, writers: int) -> list[str]:
        stored = self._state.partition(where)
        read = self._read.get(where)
        if read is None or read.offset < stored.start:  # or some were deleted unread
            read = self._read[where] = _Read(stored.start, writers)
        wrong = []
        now = read.now
        while read.offset < stored.stable_end:
            columns, end, _ = stored.read(read.offset, 1 << 20, committed_only=True)
            marks = dict(clock_marks_in(columns))
            births, _ = births_in(columns.headers, columns.timestamps)
            for row, born in enumerate(births or columns.timestamps):
                if (mark := marks.get(row)) is not None:
                    read.hear(mark)
                    now = read.now
                elif born < now:
                    wrong.append(
                        f"record {columns.offsets[row]} of {where} is born at {born}, behind marks of {now}"
                    )
            read.offset = end
        return wrong
