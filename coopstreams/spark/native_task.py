"""A shared task inside Spark whose stores were folded by SQL: it takes store rows instead of records.

Invariant: key groups, segments, expiry, changelog records, slices and the transaction are those of `task`; only the
rows come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

from coopstreams.spark.native_frames import Facts
from coopstreams.spark.task import TaskAttempt, TaskWork, attempt
from coopstreams.state.task_state import NO_TABLES
from coopstreams.topology.stores import window_key


@dataclass(frozen=True, slots=True)
class NativeWork:
    """The work of one sub-topology's tasks over NATIVE rows. Shape: `facts` by task."""

    work: TaskWork
    facts: Mapping[int, Facts]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the result of the task."""
        return attempt(batches, self._begin)

    def _begin(self, number: int, closing: ExitStack) -> TaskAttempt:
        return _Folded(self.work, number, closing, self.facts.get(number))


class _Folded(TaskAttempt):
    """One attempt of one task."""

    def __init__(self, work: TaskWork, number: int, closing: ExitStack, facts: Facts | None) -> None:
        super().__init__(work, number, closing, tables=NO_TABLES)
        if facts is None:
            return  # its partition has no record
        (source,) = self._topics
        if facts.read:
            self._read[source.topic] = facts.read
        self._stream_times[source.topic] = facts.stream_time
        self._dropped.update(facts.dropped)
        for store, clock in facts.operator_times.items():
            # Advance the time first, so that windows that have expired by then are never written.
            self._state.stores[store].advance(clock)

    def take(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Put rows into the stores of this task."""
        self._check(rows)
        tables = [self._state.stores[spec.name] for spec in self._specs]
        for number, key, start, value, timestamp in zip(
            *(column.to_pylist() for column in rows.columns[1:]), strict=True
        ):
            if number is None:
                continue
            table, at = tables[number], key if start is None else window_key(key, start)
            entry = table.load(at)
            entry.value, entry.timestamp = value, timestamp
            table.touch(at, entry)
        yield from self._relieve()
