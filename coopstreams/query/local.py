"""Reads the stores of this instance. Blocks on the disk: called in the server's reader
threads.

Invariant: after every read it is checked that the instance owned the range during the
whole read. Only then is "not found" an answer; otherwise the answer is TASK_MOVING. A
global table has no owner: it can be read once it is loaded.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from itertools import chain, takewhile
from typing import Any, TypeAlias

from coopstreams.query.backend import Backend, NotOpen, OpenView, Placement, StoreInfo
from coopstreams.query.entries import (
    history_of,
    row_headers,
    row_value,
    shown,
    window_of,
)
from coopstreams.query.formats import show_key, show_value, to_json
from coopstreams.query.pages import Cover, Entry, PartialPage, Query, in_order
from coopstreams.query.problems import (
    forgotten,
    key_not_found,
    moving,
    not_owner,
    timed_out,
    too_large,
)
from coopstreams.query.router import (
    Asked,
    Elsewhere,
    Here,
    KeyLocation,
    Moving,
    There,
    route,
)
from coopstreams.query.scan import rows, rows_of
from coopstreams.state.views import GlobalView, StoredRow
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.row_versions import Version, versions_within
from coopstreams.topology.windows import FOREVER_MS

CHECK_EVERY = 256
"""Rows between two looks at the clock."""
MOST_BYTES = 16 << 20
"""The bytes at which a part of a range query ends, or an answer of windows, and the
most of several keys: an instance has all of it in memory.
"""

Lookup: TypeAlias = tuple[str, bytes, KeyLocation]
"""A key as the request gave it, its bytes, and its location."""

Times: TypeAlias = tuple[int, int]
"""The first and the last moment (ms) of a request, both inclusive."""

About: TypeAlias = dict[str, Any]
"""The fields of an answer about the owner of its key."""

Row: TypeAlias = tuple[bytes, int]
"""The value and the timestamp of a row."""

_Rows: TypeAlias = Iterable[tuple[bytes, int, StoredRow]]


class LocalReader:
    """Answers from the stores of this instance."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def point(self, store: StoreInfo, wanted: Lookup) -> bytes:
        """Return the JSON of a key.

        Raises:
            QueryError: KEY_NOT_FOUND, or TASK_MOVING if the range was not open all the
            time.
        """
        return point_of(store, wanted, *self._row(store, wanted))

    def points(self, store: StoreInfo, wanted: Sequence[Lookup]) -> list[bytes]:
        """Return the JSON of several keys; a missing one has `found` false.

        Raises:
            QueryError: TASK_MOVING; TOO_LARGE.
        """
        entries = []
        size = 0
        for one in wanted:
            about, row = self._row(store, one)
            size = grown(store, size, row)
            entries.append(entry_of(store, one, about, row))
        return entries

    def timed(
        self, store: StoreInfo, wanted: Lookup, times: Times, limit: int
    ) -> bytes:
        """Return the JSON of a key's windows that start within `times`, or of its
        sessions that overlap them.

        Shape: ascending; `more`: some were cut off, by the limit or because they are
        large.
        """
        text, key, at = wanted
        with self.reading(store, at) as view:
            found, more = _first(rows_of(view.store, key, *times), limit)
            about = self._about(view)
        where = _where(store, text)
        shown = [
            window_of(store, row.key)
            | {
                "value": show_value(store.value, row.value, where),
                "timestamp": row.timestamp,
            }
            for row in found
        ]
        told = {
            "store": store.name,
            "key": show_key(store.key, key),
            f"{store.kind}s": shown,
            "more": more,
        }
        return to_json(told | about, where)

    def versions(
        self, store: StoreInfo, wanted: Lookup, times: Times, limit: int
    ) -> bytes:
        """Return the JSON of the versions of a key that were valid at some moment of
        `times`, ascending.

        Shape: `more`: some were cut off, by the limit or because they are large.

        Raises:
            QueryError: FORGOTTEN: the history begins later; TASK_MOVING.
        """
        text, key, at = wanted
        history = store.history
        (first, last) = times
        assert history is not None

        def known_since(view: OpenView) -> int:
            return max(
                0, max(map(view.stream_time, history.topics)) - history.history_ms
            )

        where = _where(store, text)
        with self.reading(store, at) as view:
            oldest = known_since(view)
            while True:
                found, answered = _versions(
                    view, key, (max(first, oldest), last), limit, where
                )
                # Read stream time after the rows: in the other order, a commit in
                # between could shorten the history, and the answer would seem complete.
                oldest = known_since(view)
                if answered >= min(
                    oldest, last
                ):  # else a commit meanwhile has made all that was read forgotten
                    break
            about = self._about(view)
        held = versions_within(found, first, answered, oldest)
        if held is None:
            raise forgotten(store.name, text, times[1], oldest)
        versions = [
            {
                "since": one.since,
                "until": one.until,
                "value": show_value(store.value, one.value, where),
            }
            for one in held
        ]
        return to_json(
            {"store": store.name, "key": show_key(store.key, key), "versions": versions}
            | {"more": answered < last, "known_since": oldest}
            | about,
            where,
        )

    def part(self, store: StoreInfo, query: Query, timeout_s: float) -> PartialPage:
        """Return this instance's part of a range query: the first `limit` entries of
        all its open ranges.

        Ranges that are not open are missing from `covers`, which the merge of the parts
        detects; `closed` says why.

        Raises:
            QueryError: TIMED_OUT, or TASK_MOVING if a range moved during the read.
        """
        if store.kind == "global":
            return _collected(
                store,
                query,
                timeout_s,
                (
                    (row.key, 0, row)
                    for row in rows(self.global_table(store), store.kind, 0, query)
                ),
            )
        with self._reading_all(store.name) as (views, closed):
            found = in_order(
                (_scan(view, store, query) for view in views), query.reverse
            )
            page = _collected(store, query, timeout_s, found)
            page.covers = [self._cover(view) for view in views]
            page.closed = closed
            return page

    def sizes(self) -> dict[str, int]:
        """Return the approximate number of entries of each store on this instance."""
        sizes = {}
        for name, store in self._backend.stores().items():
            if store.kind == "global":
                table = self._backend.global_view(name)
                sizes[name] = 0 if table is None else table.approximate_count()
                continue
            with self._reading_all(name) as (views, _):
                sizes[name] = sum(view.store.approximate_count() for view in views)
        return sizes

    def _row(self, store: StoreInfo, wanted: Lookup) -> tuple[About, Row | None]:
        """Return the fields about a key's owner, and its row."""
        _, key, at = wanted
        if store.kind == "global":
            return about_global(self._backend.placement().here), self.global_table(
                store
            ).get(key)
        with self.reading(store, at) as view:
            row = view.store.get(key)
            return self._about(view), row

    def global_table(self, store: StoreInfo) -> GlobalView:
        """Return a global table.

        Raises:
            QueryError: TASK_MOVING: it is still being read.
        """
        table = self._backend.global_view(store.name)
        if table is None:
            raise moving(f"global table {store.name} is still being read")
        return table

    @contextmanager
    def reading(self, store: StoreInfo, at: KeyLocation) -> Iterator[OpenView]:
        """Yield a view of the open task that has a key.

        Raises:
            QueryError: TASK_MOVING: the task is not open here, or was given up during
            the block.
        """
        view = self._backend.view(store.name, at.partition, at.hash)
        if isinstance(view, NotOpen):
            raise moving(
                f"partition {at.partition} of {store.name} cannot be read on the owner of the key: {view.message}",
                view.retry_after_ms,
            )
        with view, _owned_throughout([view]):
            yield view

    @contextmanager
    def _reading_all(self, store: str) -> Iterator[tuple[list[OpenView], list[str]]]:
        """Yield the views of the open tasks, and why the others are not open."""
        with ExitStack() as stack:
            found = self._backend.views(store)
            views = [
                stack.enter_context(view)
                for view in found
                if not isinstance(view, NotOpen)
            ]
            with _owned_throughout(views):
                yield (
                    views,
                    [view.message for view in found if isinstance(view, NotOpen)],
                )

    def _about(self, view: OpenView) -> About:
        return about_of(view, self._backend.placement().here)

    def _cover(self, view: OpenView) -> Cover:
        task = view.task
        return Cover(
            task.partition,
            task.key_range.start,
            task.key_range.end,
            self._backend.placement().here,
            view.epoch,
            view.lag,
        )


def about_of(view: OpenView, here: str) -> About:
    """Return the fields about the owner of the keys of a view; `here` is this instance."""
    return {
        "partition": view.task.partition,
        "key_range": _shown(view.task.key_range),
        "owner": here,
        "epoch": view.epoch,
        "lag": view.lag,
    }


@lru_cache(maxsize=1024)
def _shown(key_range: KeyRange) -> str:
    """Return a key range as text. Kept: it is part of each answer."""
    return str(key_range)


def about_global(here: str) -> About:
    """Return the fields on owner and lag for a global table."""
    return {
        "partition": None,
        "key_range": None,
        "owner": here,
        "epoch": None,
        "lag": None,
    }


def point_of(store: StoreInfo, wanted: Lookup, about: About, row: Row | None) -> bytes:
    """Return the JSON of a key whose row was read here.

    Raises:
        QueryError: KEY_NOT_FOUND, or UNREADABLE.
    """
    fields, found = _fields_of(store, wanted, about, row)
    if found is None:
        raise key_not_found(
            store.name, wanted[0], {"store": store.name} | fields, store.misplaced
        )
    return to_json({"store": store.name} | fields | found, _where(store, wanted[0]))


def grown(store: StoreInfo, size: int, row: Row | None) -> int:
    """Return the bytes of the values of several keys with one more.

    Raises:
        QueryError: TOO_LARGE.
    """
    more = 0 if row is None else len(row[0])
    if size and size + more > MOST_BYTES:
        raise too_large(store.name, MOST_BYTES)
    return size + more


def entry_of(store: StoreInfo, wanted: Lookup, about: About, row: Row | None) -> bytes:
    """Return the JSON of a key among several; if it is missing, `found` is false."""
    fields, found = _fields_of(store, wanted, about, row)
    return to_json(
        fields | {"found": found is not None} | (found or {}), _where(store, wanted[0])
    )


def _fields_of(
    store: StoreInfo, wanted: Lookup, about: About, row: Row | None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the fields about key and owner, and those about value and timestamp, None
    if the key is missing.
    """
    text, key, _ = wanted
    value = None if row is None else row_value(store, row[0], _where(store, text))
    fields = {"key": show_key(store.key, key)} | about
    if row is None or value is None:
        return fields, None
    return fields, {
        "value": value[0],
        **row_headers(store, row[0]),
        "timestamp": row[1],
    }


def decided(
    placement: Placement, store: StoreInfo, at: KeyLocation, asked: Asked
) -> Here | There:
    """Return where a key is read.

    Raises:
        QueryError: TASK_MOVING: nowhere now; NOT_OWNER: at another instance, and the
        request may not be forwarded.
    """
    decision = route(placement, store, at, asked)
    if isinstance(decision, Moving):
        raise moving(decision.reason)
    if isinstance(decision, Elsewhere):
        raise not_owner(decision.owner.instance.id, decision.url)
    return decision


@contextmanager
def _owned_throughout(views: Sequence[OpenView]) -> Iterator[None]:
    """Raise unless the views are owned from their opening until the end of the block.

    Raises:
        QueryError: TASK_MOVING: one is not. The result is void, and so is an error that
        a closed database raised.
    """
    try:
        yield
    except Exception:
        _check_owned(views)
        raise
    _check_owned(views)


def _check_owned(views: Sequence[OpenView]) -> None:
    for view in views:
        if not view.owned():
            raise moving(f"task {view.task} was given up while it was read")


def _scan(
    view: OpenView, store: StoreInfo, query: Query
) -> Iterator[tuple[bytes, int, StoredRow]]:
    partition = view.task.partition
    return (
        (row.key, partition, row)
        for row in rows(view.store, store.kind, partition, query)
    )


def _first(
    rows: Iterable[tuple[int, StoredRow]], limit: int
) -> tuple[list[StoredRow], bool]:
    """Return the first `limit` rows, or fewer if they are large, and whether there are
    more.

    What is large is cut between two times: who asks goes on behind the last one.
    """
    found: list[StoredRow] = []
    size = 0
    last = -1
    for time_ms, row in rows:
        if len(found) == limit or (size >= MOST_BYTES and time_ms > last):
            return found, True
        found.append(row)
        size = size + len(row.value)
        last = time_ms
    return found, False


def _collected(
    store: StoreInfo, query: Query, timeout_s: float, found: _Rows
) -> PartialPage:
    """Return the first `limit` entries of these rows, or fewer if they are large, as a
    part that covers nothing yet.
    """
    deadline = time.monotonic() + timeout_s
    entries: list[Entry] = []
    size = 0
    for number, (stored, partition, row) in enumerate(found, 1):
        if number % CHECK_EVERY == 0 and time.monotonic() > deadline:
            raise timed_out(
                f"reading {store.name} took longer than {timeout_s:g} s: ask for less with limit=, from=, to= or "
                "prefix="
            )
        entry = shown(store, row, partition)
        if entry is None:
            continue
        if len(entries) == query.limit or size >= MOST_BYTES:
            return PartialPage([], entries, True)
        entries.append((stored, partition, entry))
        size += len(stored) + len(entry)
    return PartialPage([], entries, False)


def _versions(
    view: OpenView, key: bytes, times: Times, limit: int, where: str
) -> tuple[list[Version], int]:
    """Return the versions of a row that may have been valid within `times`, the next
    one and the latest, oldest first; and the last moment for which they are all: an
    earlier one, without the latest, if more than `limit` have a value, or if they are
    large.

    Read the row before its past: in the other order, a commit in between could bring
    its version into the past unseen. The past may be ahead of the row, because of a
    commit in between or, at-least-once, of a crash in the middle of one. What began
    there when the row's version did, or later, is left out: the last of it has ended,
    and its successor is not known.
    """
    row = view.store.get(key)
    if row is None:
        return [], times[1]
    assert view.past is not None
    latest = history_of(row[0], where)
    past = (
        one
        for each in view.past.fetch(key, times[0] + 1, FOREVER_MS)
        for one in history_of(each.value, where)
    )
    found = dict[int, Any]()
    many = 0
    size = 0
    for since, value in chain(
        takewhile(lambda one: one[0] < latest[0][0], past), latest
    ):
        if since in found:
            # at-least-once, after such a crash, until its records are repeated
            continue
        found[since] = value
        if since > times[1]:  # the end of the last one
            break
        if value is not None:
            if many == limit or size >= MOST_BYTES:
                return sorted(found.items()), since - 1
            many = many + 1
            size = size + len(value)
    return sorted(found.items()), times[1]


def _where(store: StoreInfo, text: str) -> str:
    return f'the value of key "{text}" in {store.name}'
