"""A partition of a `MemoryLog`: a few parallel lists, oldest record first.

The records of a transaction are added at once, each with its span: the records of one
producer between two of its markers. A marker takes an offset and decides the span.

Invariant: offsets only grow, and no offset is given twice; compacted and deleted
records, and markers, leave a hole.
Relies on: `transactions` (spans and markers), `log.batches`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, repeat

from coopstreams.log.batches import raw_columns
from coopstreams.log.memory.transactions import Producer
from coopstreams.topology.columns import (
    NO_RECORDS,
    Columns,
    Headers,
    Int64s,
    TopicPartition,
)


@dataclass(slots=True, eq=False)
class _Span:
    """The records of one producer between two of its markers: they count together or
    not at all. `start`: the offset of the first.
    """

    start: int
    aborted: bool = False


class Partition:
    """The records of one partition."""

    def __init__(self, where: TopicPartition) -> None:
        self.where = where
        self.start = 0
        self.end = 0
        self._offsets: list[int] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._timestamps: list[int] = []
        self._headers: list[Headers | None] = []
        self._spans: list[_Span | None] = []
        self._open: dict[Producer, _Span] = {}
        """The open spans, in the order of their starts."""
        self._aborted = False

    @property
    def stable_end(self) -> int:
        """The last stable offset: the first offset of an open transaction, else the
        end.
        """
        return next(iter(self._open.values())).start if self._open else self.end

    def append(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Int64s,
        headers: Sequence[Headers | None] | None,
        producer: Producer | None,
    ) -> None:
        """Add records at the end. With a producer, they are uncommitted until its
        marker.
        """
        span = None if producer is None else self._open.get(producer)
        if span is None and producer is not None:
            span = self._open[producer] = _Span(self.end)
        self._offsets.extend(range(self.end, self.end + len(keys)))
        self._keys.extend(keys)
        self._values.extend(values)
        self._timestamps.extend(timestamps)
        self._headers.extend(repeat(None, len(keys)) if headers is None else headers)
        self._spans.extend(repeat(span, len(keys)))
        self.end += len(keys)

    def mark(self, producer: Producer, *, commit: bool) -> None:
        """Write the marker that ends the producer's open span: it takes an offset and
        is never read.
        """
        span = self._open.pop(producer)
        span.aborted = not commit
        self._aborted = self._aborted or span.aborted
        self.end += 1

    def is_open(self, producer: Producer) -> bool:
        """Whether the producer has an open span."""
        return producer in self._open

    def read(
        self,
        position: int,
        most: int,
        *,
        committed_only: bool,
    ) -> tuple[Columns, int, bool]:
        """Return up to `most` records from an offset on, the next position, and whether
        that is the end.
        """
        limit = self.stable_end if committed_only else self.end
        stop = bisect_left(self._offsets, limit)
        while True:
            first = bisect_left(self._offsets, position)
            last = min(first + most, stop)
            position = (
                max(position, limit) if last >= stop else self._offsets[last - 1] + 1
            )
            columns = self._columns(first, last, committed_only=committed_only)
            if len(columns) or last >= stop:
                return columns, position, last >= stop

    def offset_at(self, timestamp_ms: int) -> int:
        """Return the first offset whose record time is at least `timestamp_ms`; the end
        if there is no such record.
        """
        found = zip(self._offsets, self._timestamps, strict=True)
        return next(
            (offset for offset, timestamp in found if timestamp >= timestamp_ms),
            self.end,
        )

    def compact(self, before: int | None = None) -> None:
        """Keep only the last committed record of each key. All records from the first
        open transaction on stay.

        `before`: all records from this offset on stay as well, as
        `min.compaction.lag.ms` does for a time.
        """
        end = self.stable_end if before is None else min(before, self.stable_end)
        stable = bisect_left(self._offsets, end)
        kept: dict[bytes | None, int] = {}
        for i in range(stable):
            span = self._spans[i]
            if span is None or not span.aborted:
                kept[self._keys[i]] = i
        keep = set(kept.values())
        self._filter([i in keep or i >= stable for i in range(len(self._offsets))])

    def delete_before(self, offset: int) -> None:
        """Delete the records below an offset."""
        self.start = max(self.start, offset)
        self._filter([at >= self.start for at in self._offsets])

    def _columns(
        self,
        first: int,
        last: int,
        *,
        committed_only: bool,
    ) -> Columns:
        if first >= last:
            return NO_RECORDS
        rows = slice(first, last)
        keys = self._keys[rows]
        values = self._values[rows]
        timestamps = self._timestamps[rows]
        offsets = self._offsets[rows]
        headers = self._headers[rows]
        if committed_only and self._aborted:
            seen = [span is None or not span.aborted for span in self._spans[rows]]
            if not all(seen):
                keys = list(compress(keys, seen))
                values = list(compress(values, seen))
                headers = list(compress(headers, seen))
                timestamps = list(compress(timestamps, seen))
                offsets = list(compress(offsets, seen))
        return raw_columns(keys, values, timestamps, offsets, headers)

    def _filter(self, mask: Sequence[bool]) -> None:
        self._offsets = list(compress(self._offsets, mask))
        self._keys = list(compress(self._keys, mask))
        self._values = list(compress(self._values, mask))
        self._timestamps = list(compress(self._timestamps, mask))
        self._headers = list(compress(self._headers, mask))
        self._spans = list(compress(self._spans, mask))
