"""Reading of the stores of this instance. Reads block on the disk, so they run in the
server's reader threads.

    `Views.of` a key -> its row -> owned all the time? -> JSON

Invariant: after every read it is checked that the instance owned the range during the
whole read. Only then is "not found" an answer; otherwise the answer is TASK_MOVING. A
global table has no owner: it can be read once it is loaded.
Relies on: `backend` (`OpenView.owned`), `router`, `scan` and `range_pages` (the order of
rows, and where a part ends).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from itertools import chain, takewhile
from typing import (
    Any,
    NamedTuple,
    Self,
    TypeAlias,
)

from coopstreams.query.backend import (
    Backend,
    NotOpen,
    OpenView,
    Peer,
    Placement,
    StoreInfo,
)
from coopstreams.query.formats import (
    history_of,
    row_headers,
    row_value,
    show_key,
    show_value,
    shown,
    to_json,
    window_of,
)
from coopstreams.query.parameters import KeyQuery, Times
from coopstreams.query.problems import (
    forgotten,
    key_not_found,
    moving,
    not_owner,
    timed_out,
    too_large,
)
from coopstreams.query.range_pages import (
    Cover,
    Entry,
    PartialPage,
    Query,
    in_order,
)
from coopstreams.query.router import (
    Asked,
    Elsewhere,
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
"""The rows that are read between two checks of the time limit."""
MOST_BYTES = 16 << 20
"""The most bytes of values in one answer, which an instance has in memory as a whole. A
part of a range query or a list of windows ends there; a request for several keys fails.
"""

About: TypeAlias = dict[str, Any]
"""The fields of an answer about the owner of its key."""

_Rows: TypeAlias = Iterable[tuple[bytes, int, StoredRow]]


class Lookup(NamedTuple):
    """A key to look up: its text in the request, its bytes, and its location."""

    text: str
    key: bytes
    at: KeyLocation


class KeyRow(NamedTuple):
    """The row that was read for a key, as (value, timestamp), and the fields about the
    key's owner.

    `row` is None if there is no such key.
    """

    store: StoreInfo
    wanted: Lookup
    about: About
    row: tuple[bytes, int] | None

    def body(self) -> bytes:
        """Return the JSON of an answer for this key only.

        Raises:
            QueryError: KEY_NOT_FOUND, or UNREADABLE.
        """
        store = self.store
        fields, found = self._found()
        if found is None:
            details = {"store": store.name} | fields
            raise key_not_found(store.name, self.wanted.text, details, store.misplaced)
        where = _where(store, self.wanted.text)
        return to_json({"store": store.name} | fields | found, where)

    def entry(self) -> bytes:
        """Return the JSON of this key in an answer for several keys; `found` is false
        if the key is missing.
        """
        fields, found = self._found()
        told = fields | {"found": found is not None} | (found or {})
        return to_json(told, _where(self.store, self.wanted.text))

    def _found(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return the fields about the key and its owner, and the fields about value and
        timestamp: None if the key is missing.
        """
        store = self.store
        where = _where(store, self.wanted.text)
        value = None if self.row is None else row_value(store, self.row[0], where)
        fields = {"key": show_key(store.key, self.wanted.key)} | self.about
        if self.row is None or value is None:
            return fields, None
        data, timestamp = self.row
        headers = row_headers(store, data)
        return fields, {"value": value[0], **headers, "timestamp": timestamp}


class Views:
    """The open views of one read, or of one batch of reads. A key range is opened when
    it is first needed, and stays open until the end.

    As a context manager it checks at the end that all ranges were owned all the time.
    """

    def __init__(self, backend: Backend, max_staleness_ms: int | None = None) -> None:
        """`max_staleness_ms`: how old the rows of standbys may be, which are read instead
        of tasks; None: tasks are read.
        """
        self._backend = backend
        self._stale_ms = max_staleness_ms
        self.here = backend.placement().here
        self.bytes = 0
        """The total bytes of the values that were read by key."""
        self._open: dict[tuple[str, int], list[tuple[OpenView, About]]] = {}
        self._stack = ExitStack()

    def of(self, store: StoreInfo, at: KeyLocation) -> tuple[OpenView, About]:
        """Return the view of the task that has a key, and the fields about the key's
        owner.

        Raises:
            QueryError: TASK_MOVING: no open task of this instance has the key.
        """
        opened = self._open.setdefault((store.name, at.partition), [])
        for one in opened:
            if at.hash in one[0].task.key_range:
                return one
        view = self._view(store.name, at)
        if isinstance(view, NotOpen):
            raise moving(
                f"partition {at.partition} of {store.name} cannot be read on {self._where}: {view.message}",
                view.retry_after_ms,
            )
        self._stack.enter_context(view)
        about: About = {
            "partition": view.task.partition,
            "key_range": _shown(view.task.key_range),
            "owner": self.here,
            "epoch": view.epoch,
            "lag": view.lag,
        }
        if view.standby is not None:
            about["standby"] = view.standby._asdict()
        opened.append((view, about))
        return opened[-1]

    @property
    def _where(self) -> str:
        return "the owner of the key" if self._stale_ms is None else "a standby"

    def _view(self, store: str, at: KeyLocation) -> OpenView | NotOpen:
        if self._stale_ms is None:
            return self._backend.view(store, at.partition, at.hash)
        only = KeyRange(at.hash, at.hash)
        return self._backend.standby_view(
            store,
            at.partition,
            only,
            self._stale_ms,
            cut=False,
        )

    def standing(
        self,
        store: str,
        ranges: Iterable[tuple[int, KeyRange]],
    ) -> tuple[list[OpenView], list[str]]:
        """Return the views of key ranges of standbys, and for each other range why it
        cannot be read.
        """
        views = (
            self._backend.standby_view(
                store,
                partition,
                key_range,
                self._stale_ms or 0,
                cut=True,
            )
            for partition, key_range in ranges
        )
        return self._entered(store, views)

    def all_of(self, store: str) -> tuple[list[OpenView], list[str]]:
        """Return the views of all open tasks of a store, and for each other task why it
        is not open.
        """
        return self._entered(store, self._backend.views(store))

    def _entered(
        self,
        store: str,
        views: Iterable[OpenView | NotOpen],
    ) -> tuple[list[OpenView], list[str]]:
        """Enter views of a store; return those that are open, and why others are not."""
        closed: list[str] = []
        opened = self._open.setdefault((store, -1), [])
        for view in views:
            if isinstance(view, NotOpen):
                closed.append(view.message)
            else:
                opened.append((self._stack.enter_context(view), {}))
        return [view for view, _ in opened], closed

    def lost(self) -> str:
        """Return which task was given up while its view was open, in words; empty:
        none.
        """
        for opened in self._open.values():
            for view, _ in opened:
                if not view.owned():
                    return f"task {view.task} was given up while it was read"
        return ""

    def close(self) -> None:
        """Close the views."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: object,
        error: BaseException | None,
        _: object,
    ) -> None:
        """Close the views.

        Raises:
            QueryError: TASK_MOVING: a range was given up during the block. The result
                is void, and so is an error of the block: a closed database may have
                raised it.
        """
        with self._stack:
            failed = error is None or isinstance(error, Exception)
            if failed and (lost := self.lost()):
                raise moving(lost) from error


def key_rows(
    backend: Backend,
    views: Views,
    store: StoreInfo,
    wanted: Iterable[Lookup],
) -> list[KeyRow]:
    """Return the rows of keys that this instance owns, in the order of `wanted`.

    Raises:
        QueryError: TASK_MOVING; TOO_LARGE: the values of several keys exceed
            `MOST_BYTES`.
    """
    found: list[KeyRow] = []
    size = 0
    table = global_table(backend, store) if store.kind == "global" else None
    about = _ABOUT_GLOBAL | {"owner": views.here}
    for one in wanted:
        if table is not None:
            row = table.get(one.key)
        else:
            view, about = views.of(store, one.at)
            row = view.store.get(one.key)
        more = 0 if row is None else len(row[0])
        if size and size + more > MOST_BYTES:
            raise too_large(store.name, MOST_BYTES)
        size += more
        found.append(KeyRow(store, one, about, row))
    views.bytes += size
    return found


_ABOUT_GLOBAL: About = dict.fromkeys(
    ("partition", "key_range", "owner", "epoch", "lag")
)
"""The fields about the owner of a global table, all None: every instance has all of it.
"""


def global_table(backend: Backend, store: StoreInfo) -> GlobalView:
    """Return a global table of this instance.

    Raises:
        QueryError: TASK_MOVING: it is still being read.
    """
    table = backend.global_view(store.name)
    if table is None:
        raise moving(f"global table {store.name} is still being read")
    return table


class LocalReader:
    """Answers to queries, read from the stores of this instance."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def one(
        self,
        query: KeyQuery,
        wanted: Lookup,
        max_staleness_ms: int | None = None,
    ) -> bytes:
        """Return the JSON of the answer to a query for one key; with `max_staleness_ms`,
        from a standby.

        Raises:
            QueryError: KEY_NOT_FOUND, FORGOTTEN, UNREADABLE; TASK_MOVING if the range
                was not open all the time.
        """
        if query.what == "versions":
            return self._versions(query, wanted)
        if query.what != "keys":
            return self._timed(query, wanted, max_staleness_ms)
        with Views(self._backend, max_staleness_ms) as views:
            (found,) = key_rows(self._backend, views, query.store, [wanted])
        return found.body()

    def entries(
        self,
        store: StoreInfo,
        wanted: Sequence[Lookup],
        max_staleness_ms: int | None = None,
    ) -> list[bytes]:
        """Return the JSON of each of several keys; `found` is false for a missing one.
        With `max_staleness_ms`, from standbys.

        Raises:
            QueryError: TASK_MOVING; TOO_LARGE.
        """
        with Views(self._backend, max_staleness_ms) as views:
            found = key_rows(self._backend, views, store, wanted)
        return [row.entry() for row in found]

    def _timed(
        self,
        query: KeyQuery,
        wanted: Lookup,
        max_staleness_ms: int | None,
    ) -> bytes:
        """Return the JSON of a key's windows that start within the times of the query,
        or of its sessions that overlap them.

        Shape: ascending; `more`: windows were left out, by the limit or by
        `MOST_BYTES`.
        """
        store = query.store
        with Views(self._backend, max_staleness_ms) as views:
            view, about = views.of(store, wanted.at)
            found, more = _first(
                rows_of(view.store, wanted.key, *query.times),
                query.limit,
            )
        where = _where(store, wanted.text)
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
            "key": show_key(store.key, wanted.key),
            query.what: shown,
            "more": more,
        }
        return to_json(told | about, where)

    def _versions(self, query: KeyQuery, wanted: Lookup) -> bytes:
        """Return the JSON of the versions of a key that were valid at some moment of
        the query's times, ascending.

        Shape: `more`: versions were left out, by the limit or by `MOST_BYTES`.

        Raises:
            QueryError: FORGOTTEN: the history begins later; TASK_MOVING.
        """
        store = query.store
        history = store.history
        first, last = query.times
        assert history is not None

        def known_since(view: OpenView) -> int:
            return max(
                0,
                max(map(view.stream_time, history.topics)) - history.history_ms,
            )

        where = _where(store, wanted.text)
        with Views(self._backend) as views:
            view, about = views.of(store, wanted.at)
            oldest = known_since(view)
            while True:
                times = (max(first, oldest), last)
                found, answered = _versions(view, wanted.key, times, query.limit, where)
                # Read stream time after the rows: in the other order, a commit in
                # between could shorten the history, and the answer would seem complete.
                oldest = known_since(view)
                if answered >= min(
                    oldest,
                    last,
                ):  # else a commit meanwhile has made all that was read forgotten
                    break
        held = versions_within(found, first, answered, oldest)
        if held is None:
            raise forgotten(store.name, wanted.text, last, oldest)
        told = {
            "store": store.name,
            "key": show_key(store.key, wanted.key),
            "versions": [
                {
                    "since": one.since,
                    "until": one.until,
                    "value": show_value(store.value, one.value, where),
                }
                for one in held
            ],
            "more": answered < last,
            "known_since": oldest,
        }
        return to_json(told | about, where)

    def part(
        self,
        store: StoreInfo,
        query: Query,
        timeout_s: float,
    ) -> PartialPage:
        """Return this instance's part of a range query: the first `limit` entries of
        all its open ranges together; or of those ranges of standbys that the query names.

        Ranges that are not open are missing from `covers`, and `closed` says why. The
        merge of all parts detects what is missing.

        Raises:
            QueryError: TIMED_OUT, or TASK_MOVING if a range moved during the read.
        """
        if store.kind == "global":
            table = global_table(self._backend, store)
            stored = ((row.key, 0, row) for row in rows(table, store.kind, 0, query))
            return _collected(store, query, timeout_s, stored)
        stale_ms = query.max_staleness_ms if query.standing else None
        with Views(self._backend, stale_ms) as views:
            ranges = [(at, KeyRange(low, high)) for at, low, high in query.standing]
            opened, closed = (
                views.standing(store.name, ranges)
                if ranges
                else views.all_of(store.name)
            )
            scans = (_scan(view, store, query) for view in opened)
            found = in_order(scans, query.reverse)
            page = _collected(store, query, timeout_s, found)
            page.covers = [
                Cover(
                    view.task.partition,
                    view.task.key_range.start,
                    view.task.key_range.end,
                    views.here,
                    view.epoch,
                    view.lag,
                    view.standby,
                )
                for view in opened
            ]
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
            with Views(self._backend) as views:
                opened, _ = views.all_of(name)
                sizes[name] = sum(view.store.approximate_count() for view in opened)
        return sizes


def instance_to_ask(
    placement: Placement,
    store: StoreInfo,
    at: KeyLocation,
    asked: Asked,
) -> Peer | None:
    """Return the instance that has to be asked for a key; None: the key is read here.

    Raises:
        QueryError: TASK_MOVING: no instance owns the key now; NOT_OWNER: another
            instance owns it, and the request may not be forwarded.
    """
    if store.kind == "global":
        return None
    decision = route(placement, store, at, asked)
    if isinstance(decision, Moving):
        raise moving(decision.reason)
    if isinstance(decision, Elsewhere):
        raise not_owner(decision.owner.instance.id, decision.url)
    return decision.owner.instance if isinstance(decision, There) else None


@lru_cache(maxsize=1024)
def _shown(key_range: KeyRange) -> str:
    """Return a key range as text, cached because each answer has one."""
    return str(key_range)


def _scan(
    view: OpenView,
    store: StoreInfo,
    query: Query,
) -> Iterator[tuple[bytes, int, StoredRow]]:
    partition = view.task.partition
    return (
        (row.key, partition, row)
        for row in rows(view.store, store.kind, partition, query)
    )


def _first(
    rows: Iterable[tuple[int, StoredRow]],
    limit: int,
) -> tuple[list[StoredRow], bool]:
    """Return the first `limit` rows, or fewer if they exceed `MOST_BYTES`, and whether
    more follow.

    Large rows are cut between two different times, so that the client can go on behind
    the last one.
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
    store: StoreInfo,
    query: Query,
    timeout_s: float,
    found: _Rows,
) -> PartialPage:
    """Return the first `limit` entries of these rows, or fewer if they exceed
    `MOST_BYTES`. The caller sets `covers`.
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
    view: OpenView,
    key: bytes,
    times: Times,
    limit: int,
    where: str,
) -> tuple[list[Version], int]:
    """Return the versions of a row that may have been valid within `times`, oldest
    first, and the last moment for which they are complete.

    The version that follows them is included: it tells when the last one ended. The
    moment is earlier than `times[1]` if more than `limit` versions have a value, or if
    their values exceed `MOST_BYTES`.

    The row is read before its past: in the other order, a commit in between could move
    its version to the past unseen. So the past may be newer than the row, because of a
    commit in between or, under at-least-once, of a crash during a commit. A past
    version that began with the row's version, or later, is left out: the newest of them
    has ended, and its successor is not known.
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
        takewhile(lambda one: one[0] < latest[0][0], past),
        latest,
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
