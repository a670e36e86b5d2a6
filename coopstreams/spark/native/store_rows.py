"""Rows of stores on their way from Spark SQL to the tasks: a file for each task and
store, in the folder of the run.

    FOLDED    what SQL makes of the records of a task and store: a row for each key and window, with counts
    KEPT      the name of the file with these rows, and the sums of the counts
    NATIVE    the rows of a file

Two things are known only when all tasks are folded: the counts of all tasks decide
whether SQL's rows are used, and the stream time of a partition decides which rows have
expired. So the rows wait in files.

Invariant: an attempt writes files of its own, and Spark returns the rows of one
attempt.
Turned down: Parquet by Spark (which has to be read twice, shuffled and sorted again: a
third of the JVM's time where there are nearly as many rows as records).
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import compute

from coopstreams.spark.history.arrow_rows import batch, check_task
from coopstreams.spark.native.late_records import MOST_SPANS, SPANS, merged
from coopstreams.state.storage import Storage
from coopstreams.topology.errors import SnapshotError

pc: Any = compute
"""pyarrow adds its functions at import: type checkers do not see them."""

NATIVE = pa.schema(
    [
        ("place", pa.binary()),
        ("start", pa.int64()),
        ("value", pa.int64()),
        ("real", pa.float64()),
        ("timestamp", pa.int64()),
    ]
)
"""Shape: `place` is the key group and the key. `place` and then the `start` of a window
(null without windows) make the database key. Rows come in the order of places. A row
has a `value` or, in a store of floats, a `real`.
"""

COUNTS = ("read", "keyless", "valueless", "late", "doubts")
FOLDED = (*NATIVE.names, *SPANS.names[1:], "task", "taken", "newest", *COUNTS)
"""Records without a key are in groups with a null `place`. A group without a record
that was `taken` makes no row.
"""

KEPT = pa.schema(
    [
        ("store", pa.int32()),
        ("task", pa.int32()),
        ("file", pa.string()),
        ("newest", pa.int64()),
        ("clock", pa.int64()),
        *((name, pa.int64()) for name in COUNTS),
        *((name, pa.list_(pa.int64())) for name in SPANS.names),
    ]
)
"""Shape: `store` is the index within the sub-topology. `newest` is the last timestamp
of all records, `clock` that of the records with a key. The lists are spans of windows:
null if there are too many.
"""


@dataclass(frozen=True, slots=True)
class Folded:
    """The result of SQL's fold for a task: counts and times, and the files with the
    rows of its stores.

    Shape: `read`: the number of records. `stream_time`: the latest timestamp (ms).
    `dropped` by "node: reason"; `operator_times` (the stream time of the store's
    operator) and `files` by store.
    """

    read: int
    stream_time: int
    dropped: dict[str, int]
    operator_times: dict[str, int]
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class Keeping:
    """The function that writes the FOLDED rows of one task and store to a file in the
    folder `url`. `store`: the index of the store in `Stage.stores`.
    """

    url: str
    store: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows to a file; yield the KEPT row, or nothing if there are no
        rows.
        """
        filled = (rows for rows in batches if rows.num_rows)
        first = next(filled, None)
        if first is None:
            return
        task = first.column("task")[0].as_py()
        sums = dict.fromkeys(COUNTS, 0)
        newest = list[int]()
        clocks = list[int]()
        spans = [SPANS.empty_table()]
        name = f"{task:05}-{self.store}-{uuid.uuid4().hex}.arrow"
        with tempfile.TemporaryDirectory(prefix="coopstreams-rows-") as folder:
            local = Path(folder) / "rows.arrow"
            with pa.ipc.new_file(
                local,
                NATIVE,
                options=pa.ipc.IpcWriteOptions(compression="lz4"),
            ) as file:
                for rows in chain([first], filled):
                    check_task(rows, task)
                    keyed = rows.filter(pc.is_valid(rows.column("place")))
                    kept = keyed.filter(pc.greater(keyed.column("taken"), 0))
                    file.write_batch(
                        batch(NATIVE, [kept.column(column) for column in NATIVE.names])
                    )
                    for each in COUNTS:
                        sums[each] += _total(rows.column(each))
                    newest.append(pc.max(rows.column("newest")).as_py())
                    clocks += (
                        []
                        if not keyed.num_rows
                        else [pc.max(keyed.column("newest")).as_py()]
                    )
                    spans = _more(spans, keyed)
            Storage(self.url).upload(local, name)
        told = [
            self.store,
            task,
            name,
            max(newest),
            max(clocks, default=None),
            *sums.values(),
        ]
        all_spans = merged(spans)
        told += [
            None if len(all_spans) > MOST_SPANS else all_spans[name].to_pylist()
            for name in SPANS.names
        ]
        yield batch(KEPT, [[each] for each in told])


def _more(spans: list[Any], rows: Any) -> list[Any]:
    """Return the spans together with the spans of some rows, merged when there are
    many.
    """
    found = pa.table([rows.column(name) for name in SPANS.names], schema=SPANS)
    spans = [*spans, found.filter(pc.is_valid(found["start"]))]
    return (
        [merged(spans)] if sum(len(each) for each in spans) > 4 * MOST_SPANS else spans
    )


def _total(column: Any) -> int:
    total: int | None = pc.sum(column).as_py()
    return total or 0


def kept_rows(url: str, name: str) -> Iterator[pa.RecordBatch]:
    """Yield the NATIVE rows of a file.

    Raises:
        SnapshotError: the file is missing.
    """
    with tempfile.TemporaryDirectory(prefix="coopstreams-rows-") as folder:
        local = Path(folder) / "rows.arrow"
        if not Storage(url).download(name, local):
            raise SnapshotError(
                f'the rows that Spark SQL has folded, "{name}" at {url}, are missing'
            )
        with pa.memory_map(str(local)) as source, pa.ipc.open_file(source) as file:
            for number in range(file.num_record_batches):
                yield file.get_batch(number)
