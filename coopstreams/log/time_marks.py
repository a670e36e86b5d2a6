"""Time marks: records by which the stream time of a silent partition advances
(`idle_advance`).

    key None | value None | header `__coopstreams.stream.time`: the stream time, in
    decimal digits, milliseconds

The owner of hash 0 appends a mark to the partition itself, so stream time stays a
function of the log. A mark advances the time of every operator that its source feeds,
and is handed to no task.

Invariant: marks are dropped by every reader, in a backfill by what comes behind it, and
advance time only where the source asks for it.
Why a mark in the partition, and what was turned down: docs/internals/time_marks.md.
"""

from __future__ import annotations

from coopstreams.topology.columns import Columns, Headers

HEADER = "__coopstreams.stream.time"
_MOST_DIGITS = 19
"""Digits of a time at most. Python refuses to convert 5,000, and the record would end
each process that reads it.
"""


def headers_of(stream_time: int) -> Headers:
    """Return the headers of a mark."""
    return [(HEADER, b"%d" % stream_time)]


def marks_in(columns: Columns) -> list[tuple[int, int]]:
    """Return the index of each mark among these records, and the stream time that it
    stands for.
    """
    if columns.headers is None:
        return []
    return [
        (index, min(int(time), columns.timestamps[index]))
        for index, headers in enumerate(columns.headers)
        if headers
        and headers[0][0] == HEADER
        and columns.keys[index] is None
        and columns.values[index] is None
        and (time := headers[0][1] or b"").isdigit()
        and len(time) <= _MOST_DIGITS
    ]
