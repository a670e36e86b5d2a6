"""Columns: the format in which logs, compiled programs and stores hand over records.

A batch is a few parallel lists, because a record object for each record is too slow for
the hot path.

Invariant: all columns of one `Columns` have the same length and belong to one
partition; they are never mutated. Records are in the order of offsets, or of births
(`coopstreams.tasks.birth_order`). Turned down: a list of record
objects (190-480 ns each, against 15-40 ns for a cell of a column: measured).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import (
    Any,
    NamedTuple,
    TypeAlias,
    TypeVar,
)

T = TypeVar("T")

Int64s: TypeAlias = Sequence[int]
"""A column of integers: a list, or a memoryview from the native data plane. Use only
len, index, slice and iteration.
"""

Headers: TypeAlias = list[tuple[str, bytes | None]]
"""The headers of one record, in order; a name may repeat."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Advances(NamedTuple):
    """The records, of any key range, that raised the stream time of their partition.

    Shape: the offsets and the times of these records, both strictly ascending.
    """

    offsets: Sequence[int]
    times: Sequence[int]


@dataclass(slots=True)
class Columns:
    """Records of one partition in the order in which they are processed.

    Shape: a null key, a null value (tombstone) and empty bytes are three different
    things.
    Units: timestamps and stream times in milliseconds since the epoch.
    """

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Int64s
    offsets: Int64s
    stream_times: Int64s
    """The largest timestamp up to each record, over ALL records of the partition,
    including those of other key ranges.
    """
    headers: Sequence[Headers | None] | None = None
    """The headers of each record. None, the usual case, means that no record has
    headers.
    """
    operator_times: Sequence[Int64s] = ()
    """If tasks share the partition: for each operator time of the program, a column
    with its value before each record. See `operator_time`.
    """
    births: Int64s | None = None
    """The birth of each record of a timed topic. None means that each birth is the
    timestamp. See `timed_topics`.
    """

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def born(self) -> Int64s:
        """The birth of each record; of a topic that is not timed, its timestamp."""
        return self.timestamps if self.births is None else self.births

    @property
    def earliest(self) -> int:
        """The smallest timestamp. There must be at least one record."""
        # Where the stream times are the timestamps, these ascend: the usual case.
        if self.timestamps is self.stream_times:
            return self.timestamps[0]
        return min(self.timestamps)

    def slice(self, start: int, stop: int) -> Columns:
        """Return the records with indexes start..stop, half-open."""
        timestamps = self.timestamps[start:stop]
        ascending = self.timestamps is self.stream_times
        return Columns(
            self.keys[start:stop],
            self.values[start:stop],
            timestamps,
            self.offsets[start:stop],
            timestamps if ascending else self.stream_times[start:stop],
            None if self.headers is None else self.headers[start:stop],
            [operator_time[start:stop] for operator_time in self.operator_times],
            None if self.births is None else self.births[start:stop],
        )

    def pick(self, indexes: list[int]) -> Columns:
        """Return the records with these indexes, which must ascend."""
        return self if len(indexes) == len(self) else self.ordered(indexes)

    def ordered(self, indexes: Sequence[int]) -> Columns:
        """Return the records with these indexes, in this order."""
        if not indexes:
            return NO_RECORDS

        def cells(column: Sequence[T]) -> list[T]:
            return [column[i] for i in indexes]

        timestamps = cells(self.timestamps)
        ascending = self.timestamps is self.stream_times
        headers = None if self.headers is None else cells(self.headers)
        return Columns(
            cells(self.keys),
            cells(self.values),
            timestamps,
            cells(self.offsets),
            timestamps if ascending else cells(self.stream_times),
            headers if headers is not None and any(headers) else None,
            list(map(cells, self.operator_times)),
            None if self.births is None else cells(self.births),
        )


NO_RECORDS = Columns((), (), (), (), ())
"""Columns without records. Columns are never mutated, so one object serves all
callers.
"""


def joined(some: Iterable[Columns]) -> Columns:
    """Return the records of all given columns, concatenated."""
    parts = [columns for columns in some if len(columns)]
    if len(parts) <= 1:
        return parts[0] if parts else NO_RECORDS

    def chained(name: str) -> list[Any]:
        return list(chain.from_iterable(map(attrgetter(name), parts)))

    headers: list[Headers | None] | None = None
    if any(part.headers is not None for part in parts):
        nothing: list[Headers | None] = [None]
        headers = []
        for part in parts:
            headers += part.headers or nothing * len(part)
    births: list[int] | None = None
    if any(part.births is not None for part in parts):
        births = []
        for part in parts:
            births += part.born
    operator_times = zip(*(part.operator_times for part in parts), strict=True)
    return Columns(
        chained("keys"),
        chained("values"),
        chained("timestamps"),
        chained("offsets"),
        chained("stream_times"),
        headers,
        [list(chain.from_iterable(columns)) for columns in operator_times],
        births,
    )
