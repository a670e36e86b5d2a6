r"""A range query over one view: its rows in the order of the stored keys, behind the
cursor, within the bounds.

A key-value store has keys as its stored keys, so the bounds apply to both. Window and
session stores keep `key + times`, in the order of these bytes. A bound on keys is none
on these stored keys: windows of `a` lie before and behind those of `a\x00...`.

Invariant: every row within the bounds comes once, in order, in both directions.
Relies on: `state.layout` (the times behind a key), `state.views` (the order of a
range).
Turned down: bounding window keys by the largest start there can be (a key that is a
prefix of the bound would end too early).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from coopstreams.query.range_pages import Query
from coopstreams.state.layout import SESSION_BYTES, START_BYTES, TIMESTAMP
from coopstreams.state.views import GlobalView, KeyRangeView, StoredRow
from coopstreams.status.model import Kind
from coopstreams.topology.stores import session_key, window_key

_LATEST = (1 << 63) - 1
_AGES = 1 << 40
"""More milliseconds than there are between two commits: 34 years."""
_TIMES: Mapping[Kind, int] = {"window": START_BYTES, "session": SESSION_BYTES}
"""The bytes of times that follow the key in a stored key."""


def rows(
    view: KeyRangeView | GlobalView,
    kind: Kind,
    partition: int,
    query: Query,
) -> Iterator[StoredRow]:
    """Return the rows of a view that a query asks for, lazily; the caller applies the
    limit.
    """
    found = (
        _timed_rows(view, query, _TIMES[kind])
        if kind in _TIMES and isinstance(view, KeyRangeView)
        else _sought(view, query, query.last)
    )
    return (row for row in found if query.is_after(row.key, partition))


def rows_of(
    view: KeyRangeView,
    key: bytes,
    first: int,
    last: int,
) -> Iterator[tuple[int, StoredRow]]:
    """Yield the windows of a key that start within first..last, or its sessions that
    overlap first..last, both inclusive.

    Shape: (a window's start or a session's end, the row), ascending by that time.
    """
    if view.spec.kind == "window":
        for window in view.fetch(key, first, last):
            yield (
                window.start,
                StoredRow(
                    window_key(key, window.start),
                    window.value,
                    window.timestamp,
                ),
            )
    else:
        for session in view.sessions(key, first, last):
            stored = session_key(key, session.start, session.end)
            yield session.end, StoredRow(stored, session.value, session.timestamp)


def plain_key(kind: Kind, stored: bytes) -> bytes:
    """Return the key without the times that follow it in a stored key."""
    return stored[: -_TIMES[kind]] if kind in _TIMES else stored


def _sought(
    view: KeyRangeView | GlobalView,
    query: Query,
    last: bytes | None,
) -> Iterator[StoredRow]:
    """Return the rows from the cursor on, up to the stored key `last` (None: to the
    end). The cursor's own key is included, because another partition may have it.
    """
    first = query.first
    if query.after is not None:
        if query.reverse:
            last = query.after[0] if last is None else min(last, query.after[0])
        else:
            first = query.after[0] if first is None else max(first, query.after[0])
    if first is not None and last is not None and first > last:
        return iter(())
    return view.range(first, last, prefix=query.prefix, reverse=query.reverse)


def _timed_rows(
    view: KeyRangeView,
    query: Query,
    times: int,
) -> Iterator[StoredRow]:
    """Return the rows of a store whose stored keys end with this many bytes of times."""
    if query.last is None:
        return (
            row
            for row in _sought(view, query, None)
            if _within(query, row.key[:-times])
        )
    latest = TIMESTAMP.pack(
        min(view.latest_ms() + _AGES, _LATEST)
    )  # a commit may come before the scan
    # Behind all rows of the last key. Longer keys that begin with it are behind the
    # bound, unless zero bytes follow.
    bound = query.last + latest + b"\xff" * (times - START_BYTES)
    most = (
        row for row in _sought(view, query, bound) if _within(query, row.key[:-times])
    )
    stragglers = sorted(
        _stragglers(view, query, query.last, bound, latest),
        reverse=query.reverse,
    )
    return chain(stragglers, most) if query.reverse else chain(most, stragglers)


def _stragglers(
    view: KeyRangeView,
    query: Query,
    last: bytes,
    bound: bytes,
    latest: bytes,
) -> Iterator[StoredRow]:
    """Yield the rows whose stored keys are above `bound` though their keys are at most
    `last`. Their keys are prefixes of `last`. `latest`: the bytes of the latest time.
    """
    for length in range(len(last)):
        # A row of this key lies above the bound if its time does above what follows the
        # key: seldom, in a text never.
        if last[length : length + START_BYTES] <= latest and _within(
            query,
            key := last[:length],
        ):
            yield from (
                row for _, row in rows_of(view, key, 0, _LATEST) if row.key > bound
            )


def _within(query: Query, key: bytes) -> bool:
    """Return whether a plain key is within the query's bounds and has its prefix."""
    return (
        (query.first is None or key >= query.first)
        and (query.last is None or key <= query.last)
        and (query.prefix is None or key.startswith(query.prefix))
    )
