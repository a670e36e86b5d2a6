"""Time marks: records by which the stream time of a silent partition advances
(`idle_advance`).

    key None | value None | header `__coopstreams.stream.time`: the stream time in ms, decimal digits

The owner of key hash 0 appends a mark to the partition itself, so stream time stays a
function of the log. A mark advances the time of every operator that its source feeds,
and is handed to no task.

Invariant: every reader drops marks; in a backfill, the code behind the reader does.
They advance time only if the source asks for it.
Why a mark in the partition, and what was turned down: docs/internals/time_marks.md.
"""

from __future__ import annotations

from coopstreams.log.clocks import marked
from coopstreams.topology.columns import Columns, Headers

HEADER = "__coopstreams.stream.time"
VERSION = 1
"""The version of a mark. A later version has another header."""
_MOST_DIGITS = 19
"""The most digits of a time. Python refuses to convert 5,000, and the record would end
each process that reads it.
"""


def headers_of(stream_time: int) -> Headers:
    """Return the headers of a time mark."""
    return [(HEADER, b"%d" % stream_time)]


def marks_in(columns: Columns) -> list[tuple[int, int]]:
    """Return the time marks among these records: the index and the stream time (ms) of
    each.
    """
    return [
        (index, min(int(time), columns.timestamps[index]))
        for index, name, time in marked(columns, HEADER)
        if name == HEADER and time.isdigit() and len(time) <= _MOST_DIGITS
    ]
