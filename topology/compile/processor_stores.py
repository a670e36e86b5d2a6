"""Provides the stores of a processor: keys and values as objects, over the tables of
its task.

Invariant: a change becomes durable with the next commit, or is discarded if there is
none. Turned down: copying values (each `get` would cost a deserialisation). `get`
returns the store's own object: do not mutate it, `put` a new one.
Relies on: `stores.TableStore`, of which `state/table.py`, `state/window_table.py` and
`state/expiring_table.py` are the tables; `row_versions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from coopstreams.topology.columns import Headers
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.kept_headers import Headed
from coopstreams.topology.row_versions import latest_value, put_version, value_at
from coopstreams.topology.stores import (
    Entry,
    ExpiringTableStore,
    SessionTableStore,
    TableStore,
    VersionTableStore,
    WindowTableStore,
    check_range,
    session_key,
    split_session_key,
    split_window_key,
    window_key,
)

K = TypeVar("K")
V = TypeVar("V")

_LATEST_MS = (1 << 63) - 2


class KeyValueStore(Generic[K, V]):
    """A store with one value for each key. `now()`: the timestamp of a change, which is
    that of the current record.
    """

    def __init__(self, table: TableStore, now: Callable[[], int]) -> None:
        self._table = table
        self._now = now
        self._write = table.spec.key.for_keys().serialize
        self._read = table.spec.key.deserialize

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None if it has none."""
        value: V | None = self._table.load(self._write(key)).value
        return value

    def timestamp(self, key: K) -> int | None:
        """Return the timestamp of a key's latest change, or None if the key has no
        value.
        """
        entry = self._table.load(self._write(key))
        return None if entry.value is None else entry.timestamp

    def put(self, key: K, value: V | None) -> None:
        """Set the value of a key. None deletes the key."""
        put_row(self._table, self._write(key), value, self._now())

    def headers(self, key: K) -> Headers | None:
        """Return the headers of the record that wrote the row of a key, or None if the
        key has no value.

        Raises:
            TopologyError: the store does not keep headers.
        """
        raise TopologyError(
            f'store "{self._table.spec.name}" keeps no headers ({key!r}): make it with key_value_store(…, headers=True)'
        )

    def put_if_absent(self, key: K, value: V) -> V | None:
        """Set the value of a key if it has none. Return the previous value, or None."""
        had = self.get(key)
        if had is None:
            self.put(key, value)
        return had

    def delete(self, key: K) -> V | None:
        """Delete a key and return its previous value, or None."""
        had = self.get(key)
        self.put(key, None)
        return had

    def all(self, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Return all entries as they are at this call, in the order of the serialised
        keys.

        Entries may be changed and deleted during iteration. The iteration still returns
        a deleted entry, with the value that it had at the call.
        """
        return self._scan(None, None, reverse=reverse)

    def range(
        self,
        first: K | None = None,
        last: K | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[tuple[K, V]]:
        """Return the entries from first to last, in the order of the serialised keys.

        Entries may be changed and deleted during iteration, as with `all`.

        Shape: both bounds are inclusive; None: no bound.

        Raises:
            ValueError: first comes after last in that order, as -2 does after 2 in
                `serdes.int64`. Exchange them, or read `all` and compare the keys.
        """
        start = None if first is None else self._write(first)
        end = None if last is None else self._write(last)
        check_range(start, end, repr(first), repr(last))
        return self._scan(
            start,
            None if end is None else end + b"\x00",
            reverse=reverse,
        )

    def prefix(self, prefix: bytes) -> Iterator[tuple[K, V]]:
        """Return the entries whose serialised keys begin with these bytes, in the order
        of the serialised keys.
        """
        return self._scan(prefix, None, reverse=False, prefix=prefix)

    def _scan(
        self,
        start: bytes | None,
        end: bytes | None,
        *,
        reverse: bool,
        prefix: bytes = b"",
    ) -> Iterator[tuple[K, V]]:
        found = []
        for key, entry in self._table.scan(start, end):
            if not key.startswith(prefix):
                break
            if self._lives(entry):
                found.append((self._read(key), entry.value))
        return iter(found[::-1] if reverse else found)

    def _lives(self, entry: Entry) -> bool:
        """Return whether a row exists."""
        return entry.value is not None


class ExpiringKeyValueStore(KeyValueStore[K, V]):
    """A key-value store whose rows expire. A row that has expired by `stream_time()` is
    not found, even if it is not deleted yet.
    """

    def __init__(
        self,
        table: ExpiringTableStore,
        now: Callable[[], int],
        stream_time: Callable[[], int],
    ) -> None:
        super().__init__(table, now)
        self._expiring = table
        self._stream_time = stream_time
        self._ttl_ms = table.spec.ttl_ms or 0

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None if it has none or has expired."""
        entry = self._table.load(self._write(key))
        value: V | None = entry.value
        return value if self._lives(entry) else None

    def timestamp(self, key: K) -> int | None:
        """Return the timestamp of a key's latest change, or None if the key has no
        value.
        """
        entry = self._table.load(self._write(key))
        return entry.timestamp if self._lives(entry) else None

    def put(self, key: K, value: V | None) -> None:
        """Set the value of a key. None deletes the key."""
        data = self._write(key)
        self._expiring.note(data, put_row(self._table, data, value, self._now()))

    def _lives(self, entry: Entry) -> bool:
        return (
            entry.value is not None
            and entry.timestamp + self._ttl_ms > self._stream_time()
        )


class HeadedKeyValueStore(KeyValueStore[K, V]):
    """A key-value store whose rows keep the headers of the record that wrote them.
    `at_hand()`: the headers of the current record.
    """

    def __init__(
        self,
        rows: KeyValueStore[K, Headed],
        at_hand: Callable[[], Headers | None],
    ) -> None:
        super().__init__(rows._table, rows._now)
        self._rows = rows
        self._at_hand = at_hand

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None if it has none."""
        row = self._rows.get(key)
        return None if row is None else row.value

    def timestamp(self, key: K) -> int | None:
        """Return the timestamp of a key's latest change, or None if the key has no
        value.
        """
        return self._rows.timestamp(key)

    def headers(self, key: K) -> Headers | None:
        """Return the headers of the record that wrote the row of a key, or None if the
        key has no value.
        """
        row = self._rows.get(key)
        return None if row is None else list(row.headers)

    def put(self, key: K, value: V | None) -> None:
        """Set the value of a key, with the headers of the current record. None deletes
        the key.
        """
        self._rows.put(
            key,
            None if value is None else Headed(value, list(self._at_hand() or ())),
        )

    def _scan(
        self,
        start: bytes | None,
        end: bytes | None,
        *,
        reverse: bool,
        prefix: bytes = b"",
    ) -> Iterator[tuple[K, V]]:
        found = self._rows._scan(start, end, reverse=reverse, prefix=prefix)
        return ((key, row.value) for key, row in found)


class WindowStore(Generic[K, V]):
    """A store with one value for each key and window start. An expired window can be
    neither put nor read.
    """

    def __init__(self, table: WindowTableStore, now: Callable[[], int]) -> None:
        self._table = table
        self._now = now
        self._write = table.spec.key.for_keys().serialize
        self._read = table.spec.key.deserialize

    def get(self, key: K, start_ms: int) -> V | None:
        """Return the value of a key's window that starts at `start_ms`, or None if
        there is none.
        """
        value: V | None = self._table.load(window_key(self._write(key), start_ms)).value
        return value

    def put(
        self,
        key: K,
        value: V | None,
        start_ms: int,
    ) -> None:
        """Set the value of a key's window that starts at `start_ms`. None deletes the
        window; an expired window is ignored.
        """
        self._table.put(window_key(self._write(key), start_ms), value, self._now())
        self._table.advance(start_ms)

    def fetch(
        self,
        key: K,
        from_ms: int,
        to_ms: int,
        *,
        reverse: bool = False,
    ) -> Iterator[tuple[int, V]]:
        """Return (start, value) of a key's windows that start from from_ms to to_ms,
        both inclusive.
        """
        rows = (
            self._table.fetch(self._write(key), from_ms, min(to_ms, _LATEST_MS))
            if to_ms >= 0
            else []
        )
        found = [
            (int.from_bytes(row[-8:], "big", signed=True), entry.value)
            for row, entry in rows
        ]
        return iter(found[::-1] if reverse else found)

    def all(self) -> Iterator[tuple[tuple[K, int], V]]:
        """Return ((key, start), value) of all windows, in the order of the serialised
        keys.
        """
        found = [
            (split_window_key(row), entry.value)
            for row, entry in self._table.scan(None, None)
        ]
        return iter(
            [((self._read(key), start_ms), value) for (key, start_ms), value in found]
        )


class SessionStore(Generic[K, V]):
    """A store with one value for each key and session. An expired session can be
    neither put nor read.

    Shape: start and end of a session are inclusive.
    """

    def __init__(self, table: SessionTableStore) -> None:
        self._table = table
        self._write = table.spec.key.for_keys().serialize
        self._read = table.spec.key.deserialize

    def get(
        self,
        key: K,
        start_ms: int,
        end_ms: int,
    ) -> V | None:
        """Return the value of a session, or None if there is none."""
        value: V | None = self._table.load(
            session_key(self._write(key), start_ms, end_ms)
        ).value
        return value

    def put(
        self,
        key: K,
        value: V | None,
        start_ms: int,
        end_ms: int,
    ) -> None:
        """Set the value of a session, with the session's end as timestamp. None deletes
        the session.
        """
        self._table.put(session_key(self._write(key), start_ms, end_ms), value, end_ms)
        self._table.advance(end_ms)

    def sessions(
        self,
        key: K,
        earliest_end_ms: int = 0,
        latest_start_ms: int = _LATEST_MS,
    ) -> Iterator[tuple[tuple[int, int], V]]:
        """Return ((start, end), value) of a key's sessions with earliest_end <= end and
        start <= latest_start, ordered by end.
        """
        found = self._table.sessions(self._write(key), earliest_end_ms, latest_start_ms)
        return iter([(split_session_key(row)[1:], entry.value) for row, entry in found])

    def all(self) -> Iterator[tuple[tuple[K, int, int], V]]:
        """Return ((key, start, end), value) of all sessions, in the order of the
        serialised keys.
        """
        found = [
            (split_session_key(row), entry.value)
            for row, entry in self._table.scan(None, None)
        ]
        return iter(
            [
                ((self._read(key), start_ms, end_ms), value)
                for (key, start_ms, end_ms), value in found
            ]
        )


class VersionedStore(Generic[K, V]):
    """A store with the values of each key and the times in which they were valid,
    within the history. `now()`: the stream time.
    """

    def __init__(
        self,
        table: TableStore,
        past: VersionTableStore,
        now: Callable[[], int],
    ) -> None:
        self._table = table
        self._past = past
        self._now = now
        self._write = table.spec.key.for_keys().serialize
        self._history_ms = table.spec.history_ms or 0

    def get(self, key: K) -> V | None:
        """Return the latest value of a key, or None if it has none."""
        value: V | None = latest_value(self._table.load(self._write(key)).value)
        return value

    def as_of(self, key: K, timestamp: int) -> V | None:
        """Return the value that a key had at a moment, or None if it had none.

        If the moment is before the history, the result is None as well, unless the
        value has not changed since.
        """
        data = self._write(key)
        value: V | None = value_at(
            self._table.load(data).value,
            self._past,
            data,
            timestamp,
            self._oldest,
        )
        return value

    def put(
        self,
        key: K,
        value: V | None,
        timestamp: int,
    ) -> bool:
        """Set the value that a key has from `timestamp` until its next version. None
        deletes it.

        If `timestamp` is before the history, return False and change nothing; else
        return True.

        Raises:
            ValueError: `timestamp` is negative (before 1970); versions are ordered by
                non-negative times.
        """
        if timestamp < self._oldest:
            return False
        if timestamp < 0:
            raise ValueError(
                f'store "{self._table.spec.name}": a version cannot begin at {timestamp} ms, before 1970. Put the '
                "first one at 0."
            )
        data = self._write(key)
        entry = self._table.load(data)
        put_version(
            entry,
            self._past,
            data,
            timestamp,
            value,
            self._oldest,
            self._history_ms,
        )
        if not entry.dirty:
            self._table.touch(data, entry)
        return True

    @property
    def _oldest(self) -> int:
        return self._now() - self._history_ms


def put_row(
    table: TableStore,
    key: bytes,
    value: object,
    timestamp: int,
) -> Entry:
    """Set the value of a row and return the row. None deletes it."""
    entry = table.load(key)
    if not entry.dirty:
        table.touch(
            key,
            entry,
        )  # before the change: a global table raises here, and its rows are shared
    entry.value = value
    entry.timestamp = timestamp
    return entry
