"""Which records of a partition an application has committed: what its state is the fold of. Decisions only.

    Rebuild      what is to be rebuilt, and where everything stood when it was decided
    aligned      so many key ranges that each lies within one segment, whose records end in one place
    Cut          a partition's records on their way to its tasks: those that count, and the time at which each task ends

Key ranges of a partition stand at positions of their own, and may have done records above them. Time is the
partition's: every record moves it, up to where a key range stands, whether the record is of that range or not. So
records are left out only after all has been told of them.

Invariant: a record counts for its hash exactly if it lies below the position of the segment that has the hash, or in
one of its runs.
Turned down: one position for the partition (whatever it is, some key ranges have done more, or less).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from coopstreams.commit.ranges import contains
from coopstreams.commit.record import Segment
from coopstreams.topology.columns import Columns
from coopstreams.topology.keys import GROUPS, WHOLE, KeyRange
from coopstreams.topology.task_id import TaskId

Stands: TypeAlias = Mapping[str, Mapping[int, tuple[Segment, ...]]]
"""By topic and partition, what is committed: segments that tile the hash space."""

ALL = (Segment(WHOLE, (1 << 63) - 1),)
"""Everything counts."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """What is made right, and by what.

    Shape: `stores` have a changelog, whose `ends` (by store and partition) were those when the run was planned.
    `partitions`: None is all. `key_range` is made of whole slices.
    """

    stores: tuple[str, ...]
    partitions: tuple[int, ...] | None
    key_range: KeyRange
    committed: Stands
    ends: Mapping[str, Mapping[int, int]]

    def covered(self, task: TaskId) -> KeyRange | None:
        """Return which of a task's hashes are made right; None: none."""
        if self.partitions is not None and task.partition not in self.partitions:
            return None
        return self.key_range.intersect(task.range)


class SegmentRange(NamedTuple):
    """Hashes of one task and one segment. `slot` is the number of the task's range."""

    range: KeyRange
    slot: int
    segment: Segment


def end_of(segments: Iterable[Segment]) -> int:
    """Return the offset above which nothing is committed of any hash."""
    return max(segment.runs[-1][1] + 1 if segment.runs else segment.position for segment in segments)


def is_done(segment: Segment, offset: int) -> bool:
    """Whether a record of the segment's hashes is committed."""
    return offset < segment.position or contains(segment.runs, offset)


def aligned(wanted: int, stands: Iterable[Sequence[Segment]]) -> int | None:
    """Return the smallest number of equal ranges, not below the wanted one, of which each lies within one segment of
    each partition.

    None: there is none; some segment is cut where no task with state is, within a key group.
    """
    starts = {segment.range.start for segments in stands for segment in segments}
    for count in range(wanted, GROUPS + 1):
        if starts <= {piece.start for piece in KeyRange.split(count)}:
            return count
    return None


class Now(NamedTuple):
    """What time it is: of the order in which a task takes records, of the stream, and of its operators."""

    time: int
    stream_time: int
    operator_times: list[int]


class Cut:
    """The records of one partition, in offset order, for the tasks of these ranges. `pieces` tile the hash space."""

    def __init__(self, ranges: Sequence[KeyRange], segments: Sequence[Segment]) -> None:
        self.pieces = [
            SegmentRange(common, slot, segment)
            for slot, key_range in enumerate(ranges)
            for segment in segments
            if (common := key_range.intersect(segment.range)) is not None
        ]
        self._until = [
            min(piece.segment.position for piece in self.pieces if piece.slot == slot) for slot in range(len(ranges))
        ]
        self.ends: list[Now | None] = [None] * len(ranges)
        """By slot, the time at which the task ends; None: before the first record."""

    def spans(self, offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the half-open bounds of the records that come next, cut where a task ends."""
        cuts = sorted({0, len(offsets), *(bisect_left(offsets, until) for until in self._until)})
        yield from pairwise(cuts)

    def tell(self, last: int, now: Now) -> None:
        """Note what time it is behind a span that ends with this offset."""
        for slot, until in enumerate(self._until):
            if last < until:
                self.ends[slot] = now

    def committed(self, number: int, columns: Columns) -> Columns:
        """Return those records of a piece that count."""
        segment = self.pieces[number].segment
        if not len(columns) or columns.offsets[-1] < segment.position:
            return columns
        return columns.pick([i for i, offset in enumerate(columns.offsets) if is_done(segment, offset)])
