"""A shared task inside Spark whose stores were folded by SQL: it takes store rows
instead of records.

Rows go from Arrow to the database as columns, without a Python object for each row:
there may be nearly as many rows as records.

Invariant: key groups, segments, expiry, changelog records, slices and the transaction
are those of `spark_task`; only the rows come from SQL.
Relies on: `native_frames` and `native.store_rows` (the rows), `spark_task` (what
becomes of them).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

from coopstreams.spark.history.arrow_rows import check_task
from coopstreams.spark.native.store_rows import Folded, kept_rows
from coopstreams.spark.spark_task import TaskAttempt, TaskWork, attempt
from coopstreams.state import layout
from coopstreams.state.checkpoints import NOTHING_OBSERVED
from coopstreams.state.engine import Change
from coopstreams.state.layout import TIMESTAMP
from coopstreams.state.task_state import NO_TABLES
from coopstreams.topology.compile.operator_time import OperatorTimes, store_id
from coopstreams.topology.stores import StoreSpec


@dataclass(frozen=True, slots=True)
class NativeWork:
    """The work of one sub-topology's tasks over rows that SQL has folded. Shape:
    `folded` by task, with files in `folder`.
    """

    work: TaskWork
    folder: str
    folded: Mapping[int, Folded]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the result of the task."""
        return attempt(
            batches,
            lambda number, closing: _NativeAttempt(
                self.work,
                number,
                closing,
                self.folder,
                self.folded.get(number),
            ),
        )


class _NativeAttempt(TaskAttempt):
    """One attempt of one task. `folded`: None if its partition has no record."""

    def __init__(
        self,
        work: TaskWork,
        number: int,
        closing: ExitStack,
        folder: str,
        folded: Folded | None,
    ) -> None:
        super().__init__(work, number, closing, tables=NO_TABLES)
        clocks = {} if folded is None else folded.operator_times
        self._clocks = tuple(
            sorted(
                (store_id(store), clock)
                for store, clock in clocks.items()
                if clock >= 0
            )
        )
        self._folder = folder
        self._files = {} if folded is None else folded.files
        if folded is None:
            return
        (source,) = self._topics
        if folded.read:
            self._read[source.topic] = folded.read
        self._stream_times[source.topic] = folded.stream_time
        self._dropped.update(folded.dropped)
        for store, clock in folded.operator_times.items():
            # Advance the time first, so that windows that have expired by then are
            # never written.
            self._state.stores[store].advance(clock)

    def take(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Put the rows of this task into its database: each key, or key and window,
        comes once.
        """
        check_task(rows, self._number)
        for spec in self._specs:
            for kept in (
                kept_rows(self._folder, self._files[spec.name])
                if spec.name in self._files
                else ()
            ):
                self._database.write(self._changes(spec, kept), {})
        yield from ()

    def _operator_times(self) -> dict[str, OperatorTimes]:
        return {source.topic: self._clocks for source in self._topics}

    def _changes(self, spec: StoreSpec, rows: pa.RecordBatch) -> list[Change]:
        """Return the rows of a store as changes of its families, ordered by database
        key.
        """
        number = "value" if rows.column("real").null_count else "real"
        names = ("place", "start", number, "timestamp")
        places, starts, values, times = (
            rows.column(name).to_pylist() for name in names
        )
        pack = TIMESTAMP.pack
        encode = spec.value.encode
        packed = [
            pack(time) + encode(value)
            for time, value in zip(times, values, strict=True)
        ]
        if spec.kind not in layout.SEGMENTED:
            return [
                _change(layout.family_of(spec.name), zip(places, packed, strict=True))
            ]
        observed = self._state.stores[spec.name].observed
        length = layout.segment_ms(spec)
        horizon = 0 if observed == NOTHING_OBSERVED else layout.horizon(spec, observed)
        segments: dict[int, list[tuple[bytes, bytes]]] = defaultdict(list)
        for place, start, row in zip(places, starts, packed, strict=True):
            if start >= horizon:
                segments[start // length].append((place + pack(start), row))
        return [
            _change(layout.segment_family(spec.name, segment), found)
            for segment, found in segments.items()
        ]


def _change(family: str, rows: Iterable[tuple[bytes, bytes]]) -> Change:
    """Return rows as a sorted change of a family: RocksDB writes sorted rows in a
    fraction of the time.
    """
    ordered = sorted(rows)
    return Change(family, [place for place, _ in ordered], [row for _, row in ordered])
