"""Time marks: records by which the stream time of a silent partition advances
(`idle_advance`).

    key None | value None | header `__coopstreams.stream.time`: the stream time, in
    decimal digits, milliseconds

The owner of hash 0 appends a mark to the partition itself. So a mark has a place in the
order of the records, and stream time stays a function of the log: every key range,
every successor, a replay and a backfill find the same mark between the same records. A
mark advances the time of every operator that its source feeds, and is handed to no
task.

A topic may have marks of other applications, which may take other timestamps from the
records. So a mark counts at most up to its own timestamp as a record, which is never
later than the clock of its writer, or of the broker: no mark closes a window of the
future. (A broker refuses timestamps far ahead of its clock:
`message.timestamp.after.max.ms`.)

Invariant: marks are dropped by every reader, in a backfill by what comes behind it, and
advance time only where the source asks for it. Turned down: marks that count only for
the application that wrote them. Another one, started later, would close its windows at
other records when it replays the topic. Turned down: the advance in the individual
commit of the owner of hash 0. A sibling reads that topic and the source in no common
order, so it may process a record before it reads of the advance; and the compacted
topic keeps the last advance only, so a replay would miss the others. Turned down: a
topic beside the source with (offset, stream time). To agree on the first record behind
an advance, each sibling would have to ask for that topic's end after each fetch, and
the decider to confirm each advance after a look at the source's end.
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
