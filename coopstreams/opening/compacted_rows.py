"""Whether compaction has removed rows that a table on its source topic should have been
restored with.

Such a table is restored up to its task's position. Compaction knows no positions: it
keeps the last record of each key, and that may be one which the task has still to
process.

    offset    0 k→red | position 1 | 1 k→blue           what the task has read, and what waits
    compacted           position 1 | 1 k→blue           k has no row: blue is added, red stays counted

The row is nowhere else, so this is only seen, and then refused. A row may be missing
where

* a record waits, at or above the position, that was old enough to be compacted away
  from (`min.compaction.lag.ms`): brokers compact no segment that has a younger record,
  and none behind it; and
* its key has no row. Compaction that leaves a record of the key below the position
  leaves the last one there: it removes what is older than one record that it keeps; and
* offsets have no record in the interval that was restored. Of a transaction's marker
  this cannot be told apart.

Where the restore went on from a checkpoint, a row may also be one of before it. Then
each old record that waits counts; and what is in doubt is restored from the start of
the log.

Invariant: the end up to which records wait is asked for after the rows were read.
Turned down: refusing each topic with holes (a compacted topic has some), or remembering
all keys (there may be millions).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coopstreams.log.log import RecordBatch
from coopstreams.state.layout import GROUP_SHIFT, PREFIXES
from coopstreams.state.restore import Restore
from coopstreams.topology.keys import WHOLE, KeyRange, key_hashes


class Lost(NamedTuple):
    """Key groups of which rows may be missing.

    Shape: `waits` is the offset of the record that may have removed one, `hole` an
    offset without a record below the position.
    """

    groups: Sequence[int]
    waits: int
    hole: int


class CompactedRows:
    """Looks for rows of one restore that compaction may have removed. No I/O.

    The caller reads from `position` on, of the keys of `ranges`, and feeds what it has
    read until it is `done`.
    """

    def __init__(
        self,
        restore: Restore,
        ranges: Sequence[KeyRange],
        since_ms: int,
        end: int,
    ) -> None:
        """Look at the waiting records below `end`, the end of the log.

        `since_ms`: records from this time on were too young to be compacted.
        """
        self.lost: Lost | None = None
        self._get = restore.database.getter(restore.spec.name)
        self._log_start = restore.bounds.log_start
        self._intervals = restore.unproven
        self._of_tasks = ranges
        self._since_ms = since_ms
        self._end = end
        self._suspect: tuple[int, int] | None = None
        """The waiting record that may have removed a row, and its group; None: none is
        known.
        """
        self.position = min((stop for _, stop in self._intervals.values()), default=end)

    @property
    def done(self) -> bool:
        """Whether there is nothing more to read."""
        if self.lost is not None or not self._intervals:
            return True
        return self._suspect is None and self.position >= self._end

    @property
    def ranges(self) -> Sequence[KeyRange]:
        """The key ranges to read: all, where holes are looked for."""
        return self._of_tasks if self._suspect is None else [WHOLE]

    def feed(self, batches: Sequence[RecordBatch]) -> None:
        """Take in what was read from `position` on.

        Shape: batches of the topic's partition, one for each of `ranges`.
        """
        if self._suspect is None:
            self._look_at_waiting(batches)
        else:
            self._look_for_holes(*self._suspect, batches)

    def _look_at_waiting(self, batches: Sequence[RecordBatch]) -> None:
        suspects: list[tuple[int, int]] = []
        young = self._end
        for batch in batches:
            columns = batch.columns
            for key, hash_, timestamp, offset in zip(
                columns.keys,
                key_hashes(columns.keys, columns.offsets),
                columns.timestamps,
                columns.offsets,
                strict=True,
            ):
                if timestamp >= self._since_ms:
                    young = min(young, offset)
                    break
                group = hash_ >> GROUP_SHIFT
                if key is not None and self._may_lack(group, key, offset):
                    suspects.append((offset, group))
                    break
        self.position = max(self.position, *(batch.next_offset for batch in batches))
        first = min(suspects, default=None)
        if first is not None and first[0] < young:
            self._suspect = first
            self.position = self._intervals[first[1]][0]
        elif young < self._end or any(batch.at_end for batch in batches):
            self._intervals = {}

    def _may_lack(
        self,
        group: int,
        key: bytes,
        offset: int,
    ) -> bool:
        """Whether the row that a waiting record's key had may be missing."""
        if group not in self._intervals:
            return False
        start, stop = self._intervals[group]
        if offset < stop:
            return False
        return start > self._log_start or self._get(PREFIXES[group] + key) is None

    def _look_for_holes(
        self,
        waits: int,
        group: int,
        batches: Sequence[RecordBatch],
    ) -> None:
        start, stop = self._intervals[group]
        hole = self.position
        for batch in batches:
            for offset in batch.columns.offsets:
                if offset != hole:
                    break
                hole += 1
            if hole < min(batch.next_offset, stop):
                alike = [
                    other
                    for other, interval in self._intervals.items()
                    if interval[0] == start and interval[1] > hole
                ]
                self.lost = Lost(alike, waits, hole)
                return
        self.position = hole
        if hole >= stop:
            # Nothing was removed there, so what else waits has removed nothing either.
            self._intervals = {
                other: interval
                for other, interval in self._intervals.items()
                if interval[0] < start or interval[1] > stop
            }
            self._suspect = None
            self.position = waits
