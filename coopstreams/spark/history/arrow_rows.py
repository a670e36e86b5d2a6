"""The Arrow schemas of records in Spark, and the conversion from and to `Columns`.

    HISTORY   records of topic partitions, as a source returns them
    ROUTED    the same with task, stream time and operator times: a task's input in its processing order, which is
              that of `time`. A row without a timestamp is no record: it opens a source
              (`BEGIN`), or tells the times that the partition has reached, at a time
              mark or at its end (`END`)
    RESULTS   a task's output: records for other stages or for a table, and one row with the task's result

Invariant: a Spark DataFrame of one of these has exactly these columns, in this order:
mapInArrow casts nothing.
Invariant: rows from Spark to Python have empty lists, not null ones. Spark asks for the
size of the batch after each row, and Arrow's Java then fills in the offsets of all null
lists since the last one that is not null. With nulls only, as for headers, the work
grows with the square of the batch: two thirds of the JVM's time (measured).
Relies on: `routing` (makes ROUTED), `spark_task` (reads it in the order of `time`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from coopstreams.topology.columns import Columns, Headers

_HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
_RECORD = [
    ("timestamp", pa.int64()),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("headers", _HEADERS),
]

HISTORY = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        *_RECORD,
    ]
)
ROUTED = pa.schema(
    [
        ("task", pa.int32()),
        ("source", pa.int32()),
        ("time", pa.int64()),
        ("stream_time", pa.int64()),
        ("offset", pa.int64()),
        *_RECORD,
        ("operator_times", pa.list_(pa.int64())),
    ]
)
RESULTS = pa.schema(
    [
        ("task", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("time", pa.int64()),
        ("number", pa.int64()),
        *_RECORD,
        ("result", pa.string()),
    ]
)

BEGIN = -1
"""The offset of the row that opens a source of a task, so that a task without records
runs, too.
"""
END = (1 << 63) - 1
"""The offset of the row behind the last record of a source; it has the partition's
final stream time.
"""

_NAMES = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    _HEADERS: "array<struct<name:string,value:binary>>",
}
_NAMES[pa.list_(pa.int64())] = "array<bigint>"


def ddl(schema: pa.Schema) -> str:
    """Return the schema as Spark's DDL."""
    return ", ".join(f"`{field.name}` {_NAMES[field.type]}" for field in schema)


def batch(schema: pa.Schema, columns: Sequence[Any]) -> pa.RecordBatch:
    """Return a batch of these columns, lists or arrays, in the order of the schema."""
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.record_batch(arrays, schema=schema)


def headers_of(column: pa.Array) -> list[Headers | None] | None:
    """Return a column of headers; None if no record has any."""
    if not len(column.flatten()):
        return None
    return [
        [(header["name"], header["value"]) for header in row] if row else None
        for row in column.to_pylist()
    ]


def headers_column(headers: Sequence[Headers | None] | None, length: int) -> pa.Array:
    """Return headers as an Arrow column. `length`: the number of records."""
    if headers is None:
        return pa.nulls(length, _HEADERS)
    return pa.array(
        [
            [{"name": name, "value": value} for name, value in row] if row else None
            for row in headers
        ],
        _HEADERS,
    )


def lists_column(
    lists: Any,
    length: int,
    kind: pa.DataType,
) -> pa.Array:
    """Return lists as an Arrow column of this type; if `lists` is None, all rows are
    empty.
    """
    if lists is not None:
        return pa.array(lists, kind)
    return pa.ListArray.from_arrays(
        pa.array([0] * (length + 1), pa.int32()),
        pa.array([], kind.value_type),
        kind,
    )


def record_columns(columns: Columns, *, null_headers: bool = True) -> list[Any]:
    """Return timestamps, keys, values and headers of some records, in the order of the
    schemas.

    `null_headers`: whether a record without headers has null; otherwise it has an empty
    list.
    """
    headers: Any = headers_column(columns.headers, len(columns))
    if not null_headers:
        headers = lists_column(
            None if columns.headers is None else headers.fill_null([]),
            len(columns),
            _HEADERS,
        )
    return [list(columns.timestamps), list(columns.keys), list(columns.values), headers]


def columns_of(rows: pa.RecordBatch, offsets: Sequence[int]) -> Columns:
    """Return the records of a batch, with these offsets; their stream times are not set
    yet.
    """
    return Columns(
        rows.column("key").to_pylist(),
        rows.column("value").to_pylist(),
        rows.column("timestamp").to_pylist(),
        offsets,
        (),
        headers_of(rows.column("headers")),
    )


def check_task(rows: pa.RecordBatch, number: int) -> None:
    """Check that all rows are of one task.

    Raises:
        ValueError: Spark has put rows of another task into the batch.
    """
    if (found := rows.column("task").unique().to_pylist()) != [number]:
        raise ValueError(
            f"task {number} got rows of {found}: a Spark partition must have one task"
        )


def runs_of(values: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Yield the half-open bounds of the runs of equal neighbours."""
    start = 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[start]:
            yield start, i
            start = i
