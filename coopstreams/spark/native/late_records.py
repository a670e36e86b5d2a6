"""Decides whether any record is late for a window, without putting the records in
order.

A record is late for a window if an earlier record has a time of at least the window's
start + size + grace. So two offsets for each window start suffice: the last record of
the window in the log, and the first record of a later time:

    start    of a window
    opened   the first offset of a time in [start, start + advance)
    beyond   the first offset of a time in [start + rest, start + advance), where rest is (size + grace) % advance
    last     the last offset of a record of the window

Invariant: with distinct offsets the answer is exact; with equal offsets it may report
late records where there are none.
Turned down: putting all records in order always (two sorts and a window function, which
holds a whole partition: most of the JVM's time, while most histories have no late
records).
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

SPANS: Final = pa.schema(
    [(name, pa.int64()) for name in ("start", "opened", "beyond", "last")]
)
MOST_SPANS: Final = 50_000
"""The most spans of a task that are sent to the driver; with more, it is unknown
whether a record is late.
"""

_NEVER: Final = sys.maxsize


def merged(spans: Iterable[Any]) -> Any:
    """Return several tables of spans as one table that has each start once."""
    table: Any = pa.concat_tables(spans)
    folds = [("opened", "min"), ("beyond", "min"), ("last", "max")]
    made = table.group_by("start").aggregate(folds)
    return pa.table(
        [made["start"], *(made[f"{name}_{how}"] for name, how in folds)],
        schema=SPANS,
    )


def any_late(
    spans: Iterable[Any],
    advance_ms: int,
    close_ms: int,
) -> bool:
    """Return whether a record of a partition is late. `close_ms`: size + grace of the
    windows.
    """
    rows: Any = merged(spans).sort_by("start")
    starts, opened, beyond, lasts = (rows[name].to_pylist() for name in SPANS.names)
    known = [_NEVER if offset is None else offset for offset in opened]
    after = [_NEVER, *accumulate(reversed(known), min)][
        ::-1
    ]  # the first offset at or after each start
    for start, last in zip(starts, lasts, strict=True):
        end = start + close_ms
        at = bisect_left(starts, end - end % advance_ms)
        turned = at < len(starts) and starts[at] == end - end % advance_ms
        reached = after[at + 1] if turned else after[at]
        if turned and beyond[at] is not None:
            reached = min(reached, beyond[at])
        if last >= reached:
            return True
    return False
