"""Selects the committed records of a partition, from which an application's state
follows. Decisions only.

    Rebuild      the scope of a rebuild, and the positions when it was planned
    aligned      the number of key ranges at which each lies within one segment, so that its records end at one place
    Cut          a partition's committed records on their way to the tasks, and the time at which each task ends

Key ranges of a partition have positions of their own, and may have done runs above
them. Stream time belongs to the partition: every record advances it, up to the position
of a key range, whether or not the record is in that range. So uncommitted records are
dropped only after they have advanced the time.

Invariant: a record is committed for its hash exactly if it lies below the position of
the segment that has the hash, or in one of its done runs. Turned down: one position for
the partition (the key ranges have different ones).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import (
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from coopstreams.commit.record import Segment
from coopstreams.topology.columns import Columns
from coopstreams.topology.keys import GROUPS, WHOLE, KeyRange
from coopstreams.topology.task_id import TaskId

Stands: TypeAlias = Mapping[str, Mapping[int, tuple[Segment, ...]]]
"""The committed segments, which tile the hash space, by topic and partition."""

ALL = (Segment(WHOLE, (1 << 63) - 1),)
"""Everything is committed."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """The scope of a rebuild from the source, and the positions it is based on.

    Shape: `stores` have a changelog. `ends` has the ends of the changelogs, by store
    and partition, when the run was planned. `partitions`: None is all. `key_range` is
    made of whole slices.
    """

    stores: tuple[str, ...]
    partitions: tuple[int, ...] | None
    key_range: KeyRange
    committed: Stands
    ends: Mapping[str, Mapping[int, int]]

    def covered(self, task: TaskId) -> KeyRange | None:
        """Return the hashes of a task that are rebuilt; None if there are none."""
        if self.partitions is not None and task.partition not in self.partitions:
            return None
        return self.key_range.intersect(task.key_range)


class SegmentRange(NamedTuple):
    """The hashes that a task and a segment have in common. `slot` is the number of the
    task's range.
    """

    key_range: KeyRange
    slot: int
    segment: Segment


def aligned(wanted: int, stands: Iterable[Sequence[Segment]]) -> int | None:
    """Return the smallest number of equal key ranges, at least `wanted`, with each
    range within one segment of each partition. `stands`: the segments of each.

    Return None if a segment begins within a key group, as only tasks without state
    allow.
    """
    starts = {segment.key_range.start for segments in stands for segment in segments}
    for count in range(wanted, GROUPS + 1):
        if starts <= {key_range.start for key_range in KeyRange.split(count)}:
            return count
    return None


class Now(NamedTuple):
    """The times at a record: `time` orders the records of a task, the others are those
    of the stream and of the operators.
    """

    time: int
    stream_time: int
    operator_times: list[int]


class Cut:
    """Divides the records of one partition, in offset order, among the tasks of some
    key ranges.

    `segments`: the committed segments of the partition, which tile the hash space.
    """

    def __init__(self, ranges: Sequence[KeyRange], segments: Sequence[Segment]) -> None:
        self.segment_ranges = [
            SegmentRange(common, slot, segment)
            for slot, key_range in enumerate(ranges)
            for segment in segments
            if (common := key_range.intersect(segment.key_range)) is not None
        ]
        self._until = [
            min(
                segment_range.segment.position
                for segment_range in self.segment_ranges
                if segment_range.slot == slot
            )
            for slot in range(len(ranges))
        ]
        self.ends: list[Now | None] = [None] * len(ranges)
        """For each slot, the times at which its task ends; None before the first record."""

    def spans(
        self,
        offsets: Sequence[int],
        ends: Iterable[int] = (),
    ) -> Iterator[tuple[int, int]]:
        """Yield the half-open bounds of runs of the next records, as indexes into
        `offsets`: cut where a task ends, and at the indexes `ends`.
        """
        cuts = sorted(
            {
                0,
                len(offsets),
                *ends,
                *(bisect_left(offsets, until) for until in self._until),
            }
        )
        yield from pairwise(cuts)

    def tell(self, last: int, now: Now) -> list[int]:
        """Note the times after a span that ends with offset `last`; return the slots of
        the tasks that read that far.
        """
        slots = [slot for slot, until in enumerate(self._until) if last < until]
        for slot in slots:
            self.ends[slot] = now
        return slots

    def committed(self, number: int, columns: Columns) -> Columns:
        """Return the committed records of a segment range, by its number."""
        segment = self.segment_ranges[number].segment
        if not len(columns) or columns.offsets[-1] < segment.position:
            return columns
        return columns.pick(
            [i for i, offset in enumerate(columns.offsets) if segment.has_done(offset)]
        )
