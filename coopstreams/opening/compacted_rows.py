"""Finds out whether compaction has removed rows with which a table should have been
restored from its source topic.

The table is restored up to its task's position. Compaction knows no positions: it keeps
the last record of each key, which may be a record that the task has still to process.

    offset    0 k→red | position 1 | 1 k→blue           what the task has read, and what waits
    compacted           position 1 | 1 k→blue           k has no row: blue is added, red stays counted

The row is nowhere else. So a missing row can only be detected, and the restore refused.
A row may be missing if all of these hold:

* A record waits, at or above the position, that was old enough to be compacted
  (`min.compaction.lag.ms`). Brokers compact no segment that has a younger record, and
  none behind it.
* Its key has no row. If compaction leaves a record of the key below the position, it
  leaves the last of them there: it removes only records that are older than one that it
  keeps.
* An offset in the restored interval has no record. It may be the offset of a
  transaction's marker, which looks the same.

If the restore continued from a checkpoint, the missing row may also be older than the
checkpoint. Then each old record that waits counts, and the doubtful key groups are
restored from the start of the log.

Invariant: the end up to which records wait is fetched after the rows were read.
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
    """Key groups in which rows may be missing.

    Shape: `waits` is the offset of the record that may have removed a row, `hole` an
    offset without a record below the position.
    """

    groups: Sequence[int]
    waits: int
    hole: int


class CompactedRows:
    """Looks for rows of one restore that compaction may have removed. No I/O.

    The caller reads the keys of `ranges` from `position` on, and feeds what it has
    read, until the object is `done`.
    """

    def __init__(
        self,
        restore: Restore,
        ranges: Sequence[KeyRange],
        since_ms: int,
        end: int,
    ) -> None:
        """Look at the records at or above the restored position and below `end`, the
        end of the log.

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
        """The offset of a record that may have removed a row, and its key group; None:
        no such record is known.
        """
        self.position = min((stop for _, stop in self._intervals.values()), default=end)

    @property
    def done(self) -> bool:
        """Whether no more records need to be read."""
        if self.lost is not None or not self._intervals:
            return True
        return self._suspect is None and self.position >= self._end

    @property
    def ranges(self) -> Sequence[KeyRange]:
        """The key ranges to read: all, while offsets without a record are looked for."""
        return self._of_tasks if self._suspect is None else [WHOLE]

    def feed(self, batches: Sequence[RecordBatch]) -> None:
        """Take in the records read from `position` on.

        Shape: batches of the topic's partition, one for each of `ranges`.
        """
        if self._suspect is None:
            self._look_at_waiting(batches)
        else:
            self._look_for_holes(*self._suspect, batches)

    def _look_at_waiting(self, batches: Sequence[RecordBatch]) -> None:
        """Look for the first waiting record whose key may lack its row. If there is
        one, below the first young record, holes are looked for next, from the begin of
        its group's interval; at the end, nothing is lost.
        """
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
        """Return whether the row that a key had may be missing. `offset`: that of the
        record of the key that waits.
        """
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
        """Look for an offset without a record in a group's interval, from `position`
        on; `lost` then has it. `waits`: the offset of the record whose key has no row.
        """
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
