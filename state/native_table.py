"""Stores whose write buffer is rows in native memory. They are for the aggregations that
`topology.graph.known_folds` recognises.

A `NativeTable` is a `Table` with the same bytes, but it has no entries: records are
added as columns to its `rows`, or change them one by one, and `load`, `dirty` and
`scan` return copies of rows. A row is a number, or an object of Python with its bytes.

Invariant: for the same records, changelog, database and updates are those of `Table`
and `WindowTable`, which are the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from coopstreams.state import layout
from coopstreams.state.database import Database
from coopstreams.state.engine import Change, Rows
from coopstreams.state.layout import SESSION_BYTES
from coopstreams.state.table import ChangelogBatch, PlacedEntry, Table
from coopstreams.state.window_table import VisibleWindows
from coopstreams.topology.columns import Headers, Int64s
from coopstreams.topology.errors import StateError
from coopstreams.topology.keys import KeyGroups
from coopstreams.topology.serdes import float64, int64
from coopstreams.topology.stores import Entry, StoreSpec

Updates: TypeAlias = tuple[list[bytes], list[bytes | None], list[int]]
"""Keys, serialised values and timestamps of rows."""
Added: TypeAlias = tuple[int, int, int, int, list[Exception], Updates | None]
"""The result of adding records: the operator time after them; how many had no key, had
no value, or were late; the reducer's errors, one for each record that failed; and the
updates of rows, in order, if requested.
"""
Load: TypeAlias = Callable[[bytes], bytes | None]


class NativeRows(Protocol):
    """The rows of one store, in native memory. One thread.

    Shape: store keys are plain keys, or window keys; a place is the key group (1 byte)
    and the store key.
    """

    by_record: bool
    """Whether rows change by `value` and `put`, for a function of the user; else by
    `add`.
    """
    row_bytes: int
    """The length of a row of numbers in the database."""
    stored_to: int
    """No window that starts later (ms) is in the database, unless it is in the buffer,
    too: it need not be looked up.
    """
    average: float
    """The average length of the values that Python has serialised."""
    odd: bool
    """Whether a row has a value that is no number of the serde. Records are then added
    one by one, to find the record that fails.
    """

    def add(  # noqa: PLR0913
        self,
        keys: Sequence[bytes | None],
        values: Sequence[Any] | None,
        timestamps: Int64s,
        before: Int64s | None,
        operator_time: int,
        load: Load,
        reduce: Callable[[Any, Any], Any] | None,
        *,
        drops_null_values: bool = False,
        headers: Sequence[Headers | tuple[()]] | None = None,
        updates: bool = False,
        births: Int64s | None = None,
    ) -> Added:
        """Aggregate records into their rows, in order.

        `before`: the operator time before each record. `load` returns the timestamp (8
        bytes) and value of a place in the database, or None. `headers`: the headers of
        each record, to keep with its row. `updates`: whether to return the updates of
        rows. `births`: for a timed topic, the time of each record that decides whether
        it is late (`timed_topics`).
        """
        ...

    def value(
        self,
        key: bytes,
        start: int | None,
        load: Callable[[bytes], Any],
    ) -> Any:
        """Return the value of the row of a key, or of its window that starts at `start`
        (ms); None: there is none. The row is the one that `put`, `restore` and `keep`
        change.

        `load`: see `NativeTable.loaded`.
        """

    def put(self, value: Any, timestamp: int) -> int:
        """Set the value of the row that `value` has returned; None deletes it. Return
        the row's timestamp, which is that of its latest record.
        """
        ...

    def restore(self, value: Any) -> None:
        """Set the value of the row that `value` has returned to what it was: a function
        has changed it in place, and then failed.
        """

    def keep(self, headers: Headers | tuple[()]) -> None:
        """Keep the headers of the record that has changed the row that `value` has
        returned.
        """

    def sessions(
        self,
        key: bytes,
        earliest_end: int,
        latest_start: int,
        scan: Callable[[bytes, int, int], Iterable[tuple[bytes, Any]]],
    ) -> list[tuple[Any, int, int]]:
        """Return value, start and end of the sessions of a key with earliest_end <= end
        and start <= latest_start (ms), ordered by end. They are those that `merge` may
        absorb. `scan`: see `NativeSessionTable.scan_sessions`.
        """
        ...

    def merge(
        self,
        key: bytes,
        start: int,
        end: int,
        value: Any,
        absorbs: bool,
        load: Callable[[bytes], Any],
    ) -> None:
        """Set the value of a session (ms); None deletes it. `absorbs`: the sessions
        that `sessions` has returned are deleted, each at its end. `load`: see
        `NativeTable.loaded`.
        """

    @property
    def first_open(self) -> int | None:
        """The start of the earliest open window (ms); None: no window is open."""

    def reopen(self, keys: list[bytes]) -> None:
        """Have these windows, by their store keys, be the open ones."""

    def closed(
        self,
        stream_time: int,
        load: Callable[[bytes], Any],
        encode: Callable[[Any], bytes] | None = None,
        is_row: bool = True,
    ) -> tuple[list[bytes], list[Any], list[int]] | None:
        """Return keys, values and timestamps of the windows that are closed at a stream
        time and have a value, ordered by start and key; they are open no more.

        `encode`, `is_row`: see `updates`; None: values are not serialised. If one
        cannot be, None is returned, and the windows stay open.
        """
        ...

    def newest(self) -> tuple[bytes, Any] | None:
        """Return key and value of the row that began to differ from the database last;
        None: no row does.
        """

    def row(self, key: bytes) -> tuple[Any, int, bytes | None] | None:
        """Return the value, timestamp and stored bytes of a row; None if it is not in
        the buffer.
        """

    def keys(self) -> list[bytes]:
        """Return the store keys of the buffer."""
        ...

    def dirty(
        self,
    ) -> list[tuple[bytes, Any, int, bytes | None, Headers | tuple[()] | None]]:
        """Return the changed rows in the order of their first change, and forget their
        headers.

        Shape: (key, value, timestamp, stored bytes, headers). The stored bytes are
        those of the database, None if it does not have the row. The headers are None if
        the row keeps none.
        """
        ...

    def updates(
        self,
        encode: Callable[[Any], bytes],
        is_row: bool,
    ) -> Updates | None:
        """Return the changed rows, serialised, in the order of their first change; None
        if the rows must go one by one: a value is no number of the serde, or cannot be
        serialised.

        `is_row`: whether `encode` makes the bytes of a row, so that `freeze` need not
        make them again; else those of what a table shows of it.
        """

    def stray(self, first: int, last: int) -> bytes | None:
        """Return the place of the first changed row outside of these key groups; None
        if there is none.
        """

    def freeze(
        self,
        encode: Callable[[Any], bytes],
        unwritable: Callable[[bytes, Exception], Exception],
        segment_ms: int,
        horizon: int,
    ) -> tuple[Updates, list[tuple[int | None, list[bytes], list[bytes | None]]]]:
        """Serialise the changed rows and mark them clean; return their changelog
        records, and (segment, places, rows) of each time segment. The segment is None
        in a store without time segments; a row is None if it was deleted.

        `segment_ms`: the length of a time segment. `horizon`: rows of earlier times get
        no place in a segment.
        """
        ...

    def clear(self) -> None:
        """Forget all rows."""

    def expire(self, horizon: int) -> None:
        """Forget the windows that start before `horizon`. A changed window is forgotten
        after the next commit.
        """

    def trim(self, excess: int) -> int | None:
        """Evict this many clean rows; return the latest start of their windows. None:
        no window was evicted.
        """

    def size_bytes(self) -> int:
        """Return the memory of the rows."""
        ...

    def __len__(self) -> int: ...


class NativeTable(Table):
    """The key-value store of one task over native rows: a `TableStore` of kind
    `key_value`. One thread.
    """

    def __init__(
        self,
        database: Database,
        spec: StoreSpec,
        groups: KeyGroups,
        rows: NativeRows,
    ) -> None:
        super().__init__(database, spec, groups)
        self.rows = rows
        self._objects = spec.value not in (int64, float64) and rows.by_record
        """Whether rows are objects, of any length in the database."""
        self._row_bytes = rows.row_bytes
        self.encode_row: Callable[[Any], bytes] = (
            self._encode if self._read_back is None else self._encode_and_read_back
        )
        """Serialises the value of a row, and reads it back if its serde asks for it:
        see `Table.freeze`.
        """

    def stored(self, place: bytes) -> bytes | None:
        """Return the database value of a row that is not in the buffer, for `rows.add`;
        None if the database does not have the row.

        Raises:
            SerdeError: the bytes of a row cannot be deserialised.
        """
        return self._checked(place, self._get(place))

    def loaded(self, place: bytes) -> Any:
        """Return a row that is not in the buffer, for `rows.value`: of a number its
        database value, of an object its value, timestamp and stored bytes; None if the
        database does not have the row.

        Raises:
            SerdeError: the bytes of a row cannot be deserialised.
        """
        return self._as_loaded(place, self.stored(place))

    def load(self, key: bytes) -> Entry:
        """Return a copy of a row of the buffer or the database. Its value is None if
        the store does not have the key.
        """
        at = self._database_key(key)
        found = self.rows.row(key)
        return (
            self._entry(at, self.stored(at))
            if found is None
            else PlacedEntry(at, *found)
        )

    def touch(self, key: bytes, entry: Entry) -> None:
        """Raise an error: entries are copies, so rows change only by `rows`."""
        raise StateError(
            f'rows of store "{self.spec.name}" change by `rows` alone, not that of {key!r} by {entry}'
        )

    def dirty(self) -> list[tuple[bytes, Entry]]:
        """Return copies of the rows that changed since the last commit, in the order of
        their first change.
        """
        changed = []
        for key, value, timestamp, stored, headers in self.rows.dirty():
            entry = Entry(value, timestamp, stored)
            entry.headers = headers or None
            changed.append((key, entry))
        return changed

    def freeze(self) -> ChangelogBatch | None:
        """Serialise the changed rows, mark them clean, and return them for the
        changelog; None if there are none: see `Table.freeze`.
        """
        stray = self.rows.stray(*self._groups)
        if stray is not None:
            raise self._stray(stray)
        (keys, values, timestamps), families = self.rows.freeze(
            self.encode_row,
            self._unwritable,
            *self._times_of_rows(),
        )
        self.frozen += [
            Change(
                layout.family_of(self.spec.name)
                if segment is None
                else layout.segment_family(self.spec.name, segment),
                places,
                rows,
            )
            for segment, places, rows in families
        ]
        return (
            ChangelogBatch(self.spec.name, keys, values, timestamps) if keys else None
        )

    @property
    def size_bytes(self) -> int:
        """The approximate memory of the buffer."""
        return self.rows.size_bytes()

    def weigh(self) -> None:
        """Update the average size of objects with the row that changed last: see
        `Table.weigh`. Numbers have one size.
        """
        newest = self.rows.newest() if self._objects else None
        if newest is None or newest[1] is None:
            return
        with suppress(Exception):  # `freeze` reports the error
            size = len(self._encode(newest[1]))
            average = self.rows.average
            self.rows.average = average + (size - average) / 8 if average else size

    def trim(self, share: float) -> None:
        """Remove clean rows until this share of the buffer is left. Rows of the latest
        commit go last.
        """
        self._evict(len(self.rows) - int(len(self.rows) * share))

    def discard(self) -> None:
        """Forget the rows: the state is again that of the database."""
        super().discard()
        self.rows.clear()

    def _buffered(self) -> Mapping[bytes, Entry]:
        return {key: self.load(key) for key in self.rows.keys()}  # noqa: SIM118 no mapping

    def _evict(self, excess: int) -> None:
        self.rows.trim(excess)

    def _as_loaded(self, place: bytes, data: bytes | None) -> Any:
        """Return a database value as `rows` takes it: see `loaded`."""
        if data is None or not self._objects:
            return self._checked(place, data)
        entry = self._entry(place, data)
        return entry.value, entry.timestamp, entry.stored

    def _checked(self, place: bytes, data: bytes | None) -> bytes | None:
        if data is not None and len(data) != self._row_bytes and not self._objects:
            self._entry(place, data)  # it names the error in them
        return data

    def _encode_and_read_back(self, value: Any) -> bytes:
        data = self._encode(value)
        self._decode(data)
        return data

    def _times_of_rows(self) -> tuple[int, int]:
        """Return the length of a time segment, and the earliest time of rows to write
        to the database.
        """
        return 1, 0


class NativeWindowTable(NativeTable):
    """The window store of one task over native rows, for windows that begin by stream
    time. One thread.
    """

    def __init__(
        self,
        database: Database,
        spec: StoreSpec,
        groups: KeyGroups,
        rows: NativeRows,
    ) -> None:
        super().__init__(database, spec, groups, rows)
        self._visible = VisibleWindows(database, spec, groups)
        self.rows.stored_to = self._visible.stored_to

    def begin(self, stream_time: int, *, by_birth: bool = False) -> None:
        """Set the stream time at which the operator begins: see `VisibleWindows.begin`."""
        self._visible.begin(stream_time, by_birth=by_birth)
        self.rows.stored_to = self._visible.stored_to

    def advance(self, stream_time: int) -> None:
        """Advance the stream time: windows older than the retention become invisible."""
        self._visible.advance(stream_time)
        self._visible.sweep()
        self.rows.expire(self._visible.horizon)

    def discard(self) -> None:
        """Forget the rows. The windows that were visible at the last commit are visible
        again.
        """
        super().discard()
        self._visible.reset()
        self.rows.stored_to = self._visible.stored_to

    @property
    def observed(self) -> int:
        """The start of the newest window that the store has observed."""
        return self._visible.observed

    def stored(self, place: bytes) -> bytes | None:
        """Return the database value of a window; None if it has expired or the database
        does not have it: see `NativeTable.stored`.
        """
        start = layout.time_of(self.spec.kind, place)
        visible = self._visible
        getter = visible.getter(start) if start >= visible.horizon else None
        return None if getter is None else self._checked(place, getter(place))

    def _evict(self, excess: int) -> None:
        latest = self.rows.trim(excess)
        if latest is not None:
            self._visible.evicted(latest)
            self.rows.stored_to = self._visible.stored_to

    def _stored_rows(self, start: bytes | None, end: bytes | None) -> Rows:
        return self._visible.rows(start, end)

    def _times_of_rows(self) -> tuple[int, int]:
        return self._visible.segment_ms, self._visible.horizon


class NativeSessionTable(NativeWindowTable):
    """The session store of one task over native rows. One thread."""

    @property
    def horizon(self) -> int:
        """The earliest visible end (ms): sessions before it have expired."""
        return self._visible.horizon

    def observe(self, end: int) -> None:
        """Note that a session with this end (ms) was put."""
        self._visible.put(end)

    def scan_sessions(
        self,
        key: bytes,
        first: int,
        last: int,
    ) -> Iterator[tuple[bytes, Any]]:
        """Yield the sessions of a key in the database with first <= end <= last (ms),
        for `rows.sessions`: end and start as bytes, and what `loaded` returns.
        """
        first = max(first, self.horizon, 0)
        for row, data in self._database.windows_of(self.spec.name, key, first, last):
            place = self._database_key(row)
            yield row[-SESSION_BYTES:], self._as_loaded(place, data)
