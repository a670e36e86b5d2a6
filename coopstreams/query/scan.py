r"""A range query over the view of one task: its rows in the order of the stored keys, behind the cursor, within the bounds.

Key-value stores: the bounds are those of the stored key. Window stores keep `key + window start`, in the order of these bytes, so a
bound on keys is not one on stored keys: windows of `a` lie before and behind those of `a\x00...`.

Invariant: every row within the bounds comes once, in order, whichever direction.
Turned down: bounding window keys by the largest start there can be (a key that is a prefix of the bound would end too early).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from coopstreams.query.pages import Query
from coopstreams.state.layout import START_BYTES
from coopstreams.state.views import Row, StoreView
from coopstreams.topology.stores import StoreKind, window_key

_LAST_START = (1 << 63) - 1
_BEYOND = b"\xff" * START_BYTES
"""Behind every window start that is not negative."""


def rows(view: StoreView, kind: StoreKind, partition: int, query: Query) -> Iterator[Row]:
    """Return the rows of a view that a query asks for, lazily; the limit is for the caller."""
    found = _window_rows(view, query) if kind == "window" else _sought(view, query, query.last)
    return (row for row in found if query.is_after(row.key, partition))


def plain_key(kind: StoreKind, stored: bytes) -> bytes:
    """Return the key of a stored key."""
    return stored[:-START_BYTES] if kind == "window" else stored


def _sought(view: StoreView, query: Query, last: bytes | None) -> Iterator[Row]:
    """Begin at the cursor; an entry at the cursor itself may be one of another partition."""
    first = query.first
    if query.after is not None:
        if query.reverse:
            last = query.after[0] if last is None else min(last, query.after[0])
        else:
            first = query.after[0] if first is None else max(first, query.after[0])
    if first is not None and last is not None and first > last:
        return iter(())
    return view.range(first, last, prefix=query.prefix, reverse=query.reverse)


def _window_rows(view: StoreView, query: Query) -> Iterator[Row]:
    if query.last is None:
        return (row for row in _sought(view, query, None) if _within(query, row.key[:-START_BYTES]))
    bound = query.last + _BEYOND
    most = (row for row in _sought(view, query, bound) if _within(query, row.key[:-START_BYTES]))
    stragglers = sorted(_stragglers(view, query, query.last, bound), reverse=query.reverse)
    return chain(stragglers, most) if query.reverse else chain(most, stragglers)


def _stragglers(view: StoreView, query: Query, last: bytes, bound: bytes) -> Iterator[Row]:
    """Yield the rows behind the bound whose keys are within it: those of keys that the last key continues."""
    for length in range(len(last)):
        key = last[:length]
        if _within(query, key):
            for window in view.fetch(key, 0, _LAST_START):
                stored = window_key(key, window.start)
                if stored > bound:
                    yield Row(stored, window.value, window.timestamp)


def _within(query: Query, key: bytes) -> bool:
    return (
        (query.first is None or key >= query.first)
        and (query.last is None or key <= query.last)
        and (query.prefix is None or key.startswith(query.prefix))
    )
