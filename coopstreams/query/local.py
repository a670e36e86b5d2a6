"""Reading what this instance owns. Blocks on the disk: called in the server's reader threads.

Invariant: whoever reads here has checked, after the read, that the instance owned the range all along. Only then is "not found" an
answer; otherwise it is TASK_MOVING.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

from coopstreams.query.backend import Backend, NotOpen, OpenView, StoreInfo
from coopstreams.query.formats import show_key, show_value, to_json
from coopstreams.query.pages import Cover, Entry, Part, Query, in_order
from coopstreams.query.problems import key_not_found, moving, timed_out
from coopstreams.query.router import Place
from coopstreams.query.scan import plain_key, rows
from coopstreams.state.layout import window_start
from coopstreams.state.views import Row

CHECK_EVERY = 256
"""Entries between two looks at the clock."""

Wanted: TypeAlias = tuple[str, bytes, Place]
"""A key as it was given, its bytes, and where it lies."""


class LocalReader:
    """Answers from the stores of this instance."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def point(self, store: StoreInfo, wanted: Wanted) -> bytes:
        """Return the JSON of a key.

        Raises:
            QueryError: KEY_NOT_FOUND, or TASK_MOVING if the range was not open all the time.
        """
        fields, found = self._look_up(store, wanted)
        if found is None:
            raise key_not_found(store.name, wanted[0], {"store": store.name} | fields)
        return to_json({"store": store.name} | fields | found, _where(store, wanted[0]))

    def points(self, store: StoreInfo, wanted: Sequence[Wanted]) -> list[bytes]:
        """Return the JSON of several keys; those that are not there say so."""
        entries = []
        for one in wanted:
            fields, found = self._look_up(store, one)
            entries.append(to_json(fields | {"found": found is not None} | (found or {}), _where(store, one[0])))
        return entries

    def windows(self, store: StoreInfo, wanted: Wanted, times: tuple[int, int], limit: int) -> bytes:
        """Return the JSON of a key's windows that start within `times`, both inclusive, ascending; `more` if the limit cut them off."""
        text, key, at = wanted
        size = store.window_ms or 0
        with self._reading(store, at) as view:
            found = list(view.store.fetch(key, *times, limit=limit + 1))
            about = self._about(view)
        windows = [
            {"start": start, "end": start + size, "value": show_value(store.value, value, _where(store, text)), "timestamp": timestamp}
            for start, value, timestamp in found[:limit]
        ]
        answer = {"store": store.name, "key": show_key(store.key, key), "windows": windows, "more": len(found) > limit}
        return to_json(answer | about, _where(store, text))

    def part(self, store: StoreInfo, query: Query, timeout_s: float) -> Part:
        """Return what this instance has for a range query: the first `limit` entries of all its open ranges.

        Ranges that are not open are missing from `covers`: whoever puts the parts together sees the hole.

        Raises:
            QueryError: TIMED_OUT, or TASK_MOVING if a range moved while it was read.
        """
        deadline = time.monotonic() + timeout_s
        entries: list[Entry] = []
        more = False
        with self._reading_all(store.name) as views:
            covers = [self._cover(view) for view in views]
            for stored, partition, row in in_order((_scan(view, store, query) for view in views), query.reverse):
                if len(entries) == query.limit:
                    more = True
                    break
                entries.append((stored, partition, _shown(store, row, partition)))
                if len(entries) % CHECK_EVERY == 0 and time.monotonic() > deadline:
                    raise timed_out(f"reading {store.name} took longer than {timeout_s:g} s: ask for less with limit=, from=, to= or prefix=")
        return Part(covers, entries, more)

    def sizes(self) -> dict[str, int]:
        """Return about how many entries of each store this instance keeps."""
        sizes = {}
        for name in self._backend.stores():
            with self._reading_all(name) as views:
                sizes[name] = sum(view.store.approximate_count() for view in views)
        return sizes

    def _look_up(self, store: StoreInfo, wanted: Wanted) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return key and whereabouts, and value and timestamp if there are any."""
        text, key, at = wanted
        with self._reading(store, at) as view:
            found = view.store.get(key)
            about = self._about(view)
        fields = {"key": show_key(store.key, key)} | about
        return fields, None if found is None else {"value": show_value(store.value, found[0], _where(store, text)), "timestamp": found[1]}

    @contextmanager
    def _reading(self, store: StoreInfo, at: Place) -> Iterator[OpenView]:
        view = self._backend.view(store.name, at.partition, at.hash)
        if isinstance(view, NotOpen):
            raise moving(f"partition {at.partition} of {store.name} is not open on the owner of the key: {view.message}", view.retry_after_ms)
        with view, _owned_throughout([view]):
            yield view

    @contextmanager
    def _reading_all(self, store: str) -> Iterator[list[OpenView]]:
        with ExitStack() as stack:
            views = [stack.enter_context(view) for view in self._backend.views(store) if not isinstance(view, NotOpen)]
            with _owned_throughout(views):
                yield views

    def _about(self, view: OpenView) -> dict[str, Any]:
        return {
            "partition": view.task.partition,
            "key_range": str(view.task.range),
            "owner": self._backend.placement().here,
            "epoch": view.epoch,
            "lag": view.lag,
        }

    def _cover(self, view: OpenView) -> Cover:
        task = view.task
        return Cover(task.partition, task.range.start, task.range.end, self._backend.placement().here, view.epoch, view.lag)


@contextmanager
def _owned_throughout(views: Sequence[OpenView]) -> Iterator[None]:
    """Do nothing if the views are owned from their opening until the end of the block.

    Raises:
        QueryError: TASK_MOVING: one is not; what was read is void, and so is whatever a closed database said about it.
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


def _scan(view: OpenView, store: StoreInfo, query: Query) -> Iterator[tuple[bytes, int, Row]]:
    partition = view.task.partition
    return ((row.key, partition, row) for row in rows(view.store, store.kind, partition, query))


def _shown(store: StoreInfo, row: Row, partition: int) -> bytes:
    key = show_key(store.key, plain_key(store.kind, row.key))
    where = f"the value of key {key!r} in {store.name}"
    entry = {"key": key, "value": show_value(store.value, row.value, where), "timestamp": row.timestamp, "partition": partition}
    if store.kind == "window":
        start = window_start(row.key)
        entry["window"] = {"start": start, "end": start + (store.window_ms or 0)}
    return to_json(entry, where)


def _where(store: StoreInfo, text: str) -> str:
    return f'the value of key "{text}" in {store.name}'
