"""Defines the interface of stores for operators, and the specification from which the
runtime makes a store.

Operators work on live objects in a write buffer; a commit serialises them. Store keys
are already serialised: they are the key bytes that Kafka carried, so the key hash of a
store entry is the key hash of its record.

Invariant: the next commit writes every dirty entry to store and changelog, or none.
Relies on: `state.layout` (the bytes of each kind), `state.table`, `state.window_table`
and `state.native_table` (implement this).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from xxhash import xxh3_64_digest

from coopstreams.topology.columns import Headers
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.naming import past_name
from coopstreams.topology.serdes import Serde

StoreKind = Literal[
    "key_value", "window", "session", "buffer", "subscribers", "versions"
]

ROCKS_DB = "rocksDB"
IN_MEMORY = "in_memory"
END_BYTES = 8
"""The number of bytes of the end time at the end of an ended version's store key."""
SUBSCRIBER_BYTES = 8
"""The number of bytes of the hash at the end of a subscriber key."""
_OF_YOUR_OWN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """The specification of a store, from which the runtime makes it.

    Shape: `key` is the serde of the plain key. Store keys may be longer: in a "window"
    store they are `window_key(...)`, in a "session" store `session_key(...)`; in a
    "buffer" store they are plain, window or session keys whose last `suffix_bytes` are
    not part of the plain key, in a "subscribers" store `subscriber_key(...)`, and in a
    "versions" store `window_key(...)` of the plain key and the version's end. `row_key`
    is the serde of store keys, None where they are plain keys.
    Units: `retention_ms` is how long a window stays readable after stream time has
    passed its start (sessions: its end). `window_ms` is the window size, None if
    windows differ in size. With `step_ms`, windows start at its multiples, the newest
    one `lag_ms` before the newest record, so the visible windows follow stream time.
    Without `step_ms`, they follow the windows that were put.
    """

    name: str
    kind: StoreKind
    key: Serde[Any]
    value: Serde[Any]
    window_ms: int | None = None
    retention_ms: int | None = None
    row_key: Serde[Any] | None = None
    suffix_bytes: int = 0
    step_ms: int | None = None
    lag_ms: int = 0
    history_ms: int | None = None
    """For a versioned table: how far back it keeps versions. Its values are lists of
    versions, see `row_versions`.
    """
    logged: bool = True
    """Whether the store has a changelog topic of its own, `<application
    id>-<name>-changelog`.
    """
    cached: bool = True
    """Whether the record cache, if it is on, holds back the updates of the store's
    table.
    """
    store_type: str | None = None
    """The engine: `rocksDB`, `in_memory`, or `package.module:Class`. None means the
    setting `default.dsl.store`.
    """
    source: str | None = None
    """The source topic that serves as the store's changelog, or None if the store has
    its own changelog. With a source topic, the store holds the records that its task
    has read from it. See `optimization`.
    """
    ttl_ms: int | None = None
    """How long after its timestamp a row of a "key_value" store expires, in stream
    time. None: rows never expire.
    """

    @property
    def past(self) -> StoreSpec | None:
        """The specification of the store of ended row versions, or None if no versions
        are kept.
        """
        if self.history_ms is None:
            return None
        return StoreSpec(
            past_name(self.name),
            "versions",
            self.key,
            self.value,
            suffix_bytes=END_BYTES,
            logged=self.logged,
            store_type=self.store_type,
        )


def store_type_of(value: object) -> str:
    """Return the value, checked to be a store type.

    Raises:
        ValueError: it is not a store type. The message lists the store types.
    """
    if not isinstance(value, str) or (
        value not in (ROCKS_DB, IN_MEMORY) and not _OF_YOUR_OWN.fullmatch(value)
    ):
        raise ValueError(
            f"{ROCKS_DB}, {IN_MEMORY}, or package.module:Class of an engine"
        )
    return value


def check_store_type(store: str, value: str | None) -> None:
    """Check that `value` is a store type, or None for the default.

    Raises:
        TopologyError: it is not a store type.
    """
    if value is None:
        return
    try:
        store_type_of(value)
    except ValueError as error:
        raise TopologyError(
            f'store "{store}": store_type={value!r} must be {error}'
        ) from None


class Entry:
    """One row of a store as a live object; the operator that owns it mutates the value
    in place.

    Shape: `value` None means that the row does not exist. `stored` is the serialised
    value at the last commit (None: absent); with the record cache on, it is also the
    value that was forwarded last. `dirty`: changed since the last commit.
    `headers`: with the record cache on, the headers of the record that changed the row
    last, until the row is forwarded.
    """

    __slots__ = ("dirty", "headers", "stored", "timestamp", "value")

    def __init__(
        self,
        value: Any,
        timestamp: int,
        stored: bytes | None,
    ) -> None:
        self.value = value
        self.timestamp = timestamp
        self.stored = stored
        self.dirty = False
        self.headers: Headers | None = None


def as_written(row: Entry) -> bytes | None:
    """Return the serialised bytes of a row in the store, or None if the row has changed
    since the last commit or does not exist.
    """
    return None if row.dirty else row.stored


class TableStore(Protocol):
    """The timestamped store of one task, behind its write buffer. Window stores use
    `window_key` bytes as keys.

    Operators follow this pattern: `entry = entries.get(key) or load(key)`; change
    `entry.value` and `entry.timestamp`; `if not entry.dirty: touch(key, entry)`.
    """

    spec: StoreSpec
    siblings: dict[str, Any]
    """Named objects that operators of all tasks of the database share. Hold the
    `guard`, because the tasks may run on different threads.
    """
    guard: AbstractContextManager[Any]
    entries: dict[bytes, Entry]
    """The write buffer: entries that were recently loaded or changed. A missing key may
    still be in the database: `load` it. The dict is never replaced, because compiled
    code holds its `get`.
    """

    def load(self, key: bytes) -> Entry:
        """Return the entry of a key from the buffer or the database, and keep it in
        `entries`.

        The entry has the value None if the row does not exist.
        """
        ...

    def touch(self, key: bytes, entry: Entry) -> None:
        """Mark an entry of `entries` as changed since the last commit. Call it once,
        before or after the first change.
        """

    def dirty(self) -> list[tuple[bytes, Entry]]:
        """Return the entries that changed since the last commit, in the order of their
        first change.
        """
        ...

    def scan(
        self,
        start: bytes | None,
        end: bytes | None,
    ) -> Iterator[tuple[bytes, Entry]]:
        """Yield the live entries with start <= key < end in key order. Entries of the
        buffer replace those of the database.
        """
        ...

    def advance(self, stream_time: int) -> None:
        """Raise the stream time. Windows older than the retention become invisible, and
        the next commit deletes them.
        """


class BufferStore(TableStore, Protocol):
    """A store of kind `buffer`, whose operator knows which rows it has."""

    def insert(self, key: bytes) -> Entry:
        """Return the entry of a key that the store does not have, and keep it in
        `entries`. The database is not asked.
        """
        ...


class ExpiringTableStore(TableStore, Protocol):
    """A key-value store with a time to live (`ttl_ms`). Call `note` after each change
    of a row.
    """

    due_ms: int
    """The stream time from which `expired` may find rows to delete."""

    def note(self, key: bytes, entry: Entry) -> None:
        """Note the timestamp of a row that was changed, so that the row expires in
        time.
        """

    def expired(self, stream_time: int) -> list[tuple[bytes, Any, int]]:
        """Delete the rows that have expired. Return their keys, values and times of
        expiry, the earliest first.
        """
        ...


class WindowTableStore(TableStore, Protocol):
    """A window store that finds the windows of a key by time. Change it with `put`
    only.
    """

    def put(
        self,
        key: bytes,
        value: Any,
        timestamp: int,
    ) -> None:
        """Set the value of a window key. None deletes it."""

    def fetch(
        self,
        key: bytes,
        first: int,
        last: int,
    ) -> list[tuple[bytes, Entry]]:
        """Return the windows of a key with first <= start <= last (ms), ordered by
        start. `key`: the key without the window.
        """
        ...

    @property
    def observed(self) -> int:
        """The stream time by which windows expire, as raised by `advance`; -1 before
        its first call.
        """
        ...


class VersionTableStore(TableStore, Protocol):
    """A store of ended row versions, ordered by their ends. Change it with `put` and
    `forget` only.
    """

    old_ms: int
    """The time of expiry: versions that ended at this time or before are expired. The
    operator raises it.
    """

    def put(
        self,
        key: bytes,
        value: Any,
        timestamp: int,
    ) -> None:
        """Set the value of a version's key. None deletes it."""

    def first_from(self, key: bytes, time: int) -> tuple[bytes, Entry] | None:
        """Return the first version of a key that ended at `time` (ms) or later, with
        its store key; None if there is none.
        """
        ...

    def forget(self, key: bytes) -> None:
        """Delete the committed rows of a plain key that were already expired at the
        last commit.

        Records since the last commit may be repeated after a crash and still read the
        others.
        """


class SessionTableStore(TableStore, Protocol):
    """A session store that finds the sessions of a key by time. Change it with `put`
    only.
    """

    def put(
        self,
        key: bytes,
        value: Any,
        timestamp: int,
    ) -> None:
        """Set the value of a session key. None deletes it."""

    def sessions(
        self,
        key: bytes,
        earliest_end: int,
        latest_start: int,
    ) -> list[tuple[bytes, Entry]]:
        """Return the sessions of a key with earliest_end <= end and start <=
        latest_start (ms), ordered by end. `key`: the key without the session's ends.
        """
        ...


def check_range(first: bytes | None, last: bytes | None, *asked: object) -> None:
    """Check that the first bound of a range is not above the last, in the order of the
    serialised keys.

    `asked`: both bounds as the caller has given them, for the message.

    Raises:
        ValueError: the first bound comes after the last, so that the range would be
            empty. Exchange them, or read all entries and compare their keys.
    """
    if first is not None and last is not None and first > last:
        one, other = asked or (first, last)
        raise ValueError(
            f"{one} comes after {other} in the order of the serialised keys, which is that of their bytes (of numbers, "
            "negative ones come last). Exchange the bounds, or read all entries and compare their keys"
        )


def window_key(key: bytes, start_ms: int) -> bytes:
    """Return the window store key of a key's window.

    Shape: the serialised key, then the start as 8 bytes big-endian, as Kafka Streams'
    `TimeWindowedSerializer` writes it.
    """
    return key + start_ms.to_bytes(8, "big", signed=True)


def split_window_key(data: bytes) -> tuple[bytes, int]:
    """Return the serialised key and the window start (ms) of a window key."""
    return data[:-8], int.from_bytes(data[-8:], "big", signed=True)


def session_key(
    key: bytes,
    start_ms: int,
    end_ms: int,
) -> bytes:
    """Return the session store key of a key's session.

    Shape: the serialised key, then the end and the start, 8 bytes big-endian each, as
    Kafka Streams' `SessionWindowedSerializer` writes it.
    """
    return (
        key
        + end_ms.to_bytes(8, "big", signed=True)
        + start_ms.to_bytes(8, "big", signed=True)
    )


def subscriber_key(key: bytes, subscriber: bytes) -> bytes:
    """Return the store key under which a foreign-key join keeps a subscriber's row.

    Shape: the serialised key, then 8 bytes of the subscriber's hash. Subscribers whose
    hashes are equal share the row.
    """
    return key + xxh3_64_digest(subscriber)


def split_session_key(data: bytes) -> tuple[bytes, int, int]:
    """Return the serialised key, the start and the end (ms) of a session key."""
    return (
        data[:-16],
        int.from_bytes(data[-8:], "big", signed=True),
        int.from_bytes(data[-16:-8], "big", signed=True),
    )
