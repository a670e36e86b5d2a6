"""The stores that operators see, and the specification that the runtime makes them from.

Operators work on live objects in a write buffer; bytes appear when a commit writes them. Keys are serialised: the very
bytes that Kafka carried, so that the key hash of a store entry is the key hash of its record.

Invariant: an entry marked dirty is written (store, changelog) with the next commit or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from coopstreams.topology.columns import Headers
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.serdes import Serde

StoreKind = Literal["key_value", "window", "session", "buffer"]

ROCKS_DB = "rocksDB"
IN_MEMORY = "in_memory"
_OF_YOUR_OWN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """What the runtime needs to know to make a store.

    Shape: `key` is the serde of the plain key, also where store keys are more: "window": `window_key(...)`; "session":
    `session_key(...)`; "buffer": a plain, window or session key, whose last `suffix_bytes` are not of the plain key.
    `row_key` is the serde of store keys, None where they are plain.
    Units: `retention_ms` is how long a window stays readable after stream time has passed its start (sessions: its
    end); `window_ms` its size, None if they differ. `step_ms`: windows start at multiples of it, `lag_ms` before the
    newest record: then those that a store shows follow stream time; None: the windows that were put decide.
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
    """Of a versioned table: how far back versions are kept. Its values are histories, see `versions`."""
    logged: bool = True
    """Has a changelog topic `<application id>-<name>-changelog`."""
    cached: bool = True
    """With the record cache on, it holds updates of its table back."""
    store_type: str | None = None
    """Where it is kept: `rocksDB`, `in_memory`, or `package.module:Class` of an engine. None: as `default.dsl.store`
    says.
    """
    source: str | None = None
    """The topic that is its changelog, if it has none of its own: what it holds is what its task has read of it. See
    `optimizing`.
    """


def store_type_of(value: object) -> str:
    """Return what a user wrote for where stores are kept.

    Raises:
        ValueError: it can be none; says what it must be.
    """
    if not isinstance(value, str) or (value not in (ROCKS_DB, IN_MEMORY) and not _OF_YOUR_OWN.fullmatch(value)):
        raise ValueError(f"{ROCKS_DB}, {IN_MEMORY}, or package.module:Class of an engine")
    return value


def check_store_type(store: str, value: str | None) -> None:
    """Do nothing if a store can be kept there; None: wherever stores usually are.

    Raises:
        TopologyError: it names nothing that could be an engine.
    """
    if value is None:
        return
    try:
        store_type_of(value)
    except ValueError as error:
        raise TopologyError(f'store "{store}": store_type={value!r} must be {error}') from None


class Entry:
    """One key of a store, live: the value as an object, mutated in place by the operator that owns it.

    Shape: `value` None = no such key. `stored` is the serialised value as of the last commit (None: absent), which is
    also the last value forwarded when the record cache is on. `dirty`: changed since the last commit. `headers`, with
    the record cache on: of the record that changed it last, until it is forwarded.
    """

    __slots__ = ("dirty", "headers", "stored", "timestamp", "value")

    def __init__(self, value: Any, timestamp: int, stored: bytes | None) -> None:
        self.value = value
        self.timestamp = timestamp
        self.stored = stored
        self.dirty = False
        self.headers: Headers | None = None


class TableStore(Protocol):
    """A timestamped store of one task, behind its write buffer. Window stores use `window_key` bytes as keys.

    The hot path is: `entry = entries.get(key) or load(key)`; change `entry.value` and `entry.timestamp`; `if not
    entry.dirty: touch(key, entry)`.
    """

    spec: StoreSpec
    siblings: dict[str, Any]
    """What operators of all tasks over the same database share, by name. Several threads: hold the `guard`."""
    guard: AbstractContextManager[Any]
    entries: dict[bytes, Entry]
    """The buffer: what was loaded or changed lately. A miss says nothing: ask `load`. The same dict for ever: compiled
    code holds its `get`.
    """

    def load(self, key: bytes) -> Entry:
        """Return the entry of a key from the buffer or the database; one with value None if there is none. Kept in
        `entries`.
        """
        ...

    def touch(self, key: bytes, entry: Entry) -> None:
        """Mark an entry of `entries` as changed since the last commit. Call it once before or after the first
        change.
        """

    def dirty(self) -> list[tuple[bytes, Entry]]:
        """Return what changed since the last commit, in the order of the first change."""
        ...

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, Entry]]:
        """Yield the live entries with start <= key < end in key order, buffer over database. For operators that need
        order.
        """
        ...

    def advance(self, stream_time: int) -> None:
        """Let stream time reach this value: windows older than the retention become invisible and are dropped with the
        next commit.
        """


class WindowTableStore(TableStore, Protocol):
    """A store of windows in which those of a key can be found by time. Change it by `put` alone."""

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        """Set the value of a window key, None: delete it."""

    def fetch(self, key: bytes, first: int, last: int) -> list[tuple[bytes, Entry]]:
        """Return the windows of a plain key with first <= start <= last, by their starts."""
        ...

    @property
    def observed(self) -> int:
        """The time by which windows expire, as far as `advance` let it come; -1 if it never did."""
        ...


class SessionTableStore(TableStore, Protocol):
    """A store of sessions in which those of a key can be found by time. Change it by `put` alone."""

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        """Set the value of a session key, None: delete it."""

    def sessions(self, key: bytes, earliest_end: int, latest_start: int) -> list[tuple[bytes, Entry]]:
        """Return the sessions of a plain key with earliest_end <= end and start <= latest_start, by their ends."""
        ...


def window_key(key: bytes, start_ms: int) -> bytes:
    """Return the bytes under which a window store keeps the window of a key.

    Shape: serialised key, then the start as 8 bytes big-endian: what Kafka Streams' `TimeWindowedSerializer` writes to
    a topic.
    """
    return key + start_ms.to_bytes(8, "big", signed=True)


def split_window_key(data: bytes) -> tuple[bytes, int]:
    """Return the serialised key and the window start (ms) of a window key."""
    return data[:-8], int.from_bytes(data[-8:], "big", signed=True)


def session_key(key: bytes, start_ms: int, end_ms: int) -> bytes:
    """Return the bytes under which a session store keeps a session of a key.

    Shape: serialised key, then the end and the start as 8 bytes big-endian: what Kafka Streams'
    `SessionWindowedSerializer` writes.
    """
    return key + end_ms.to_bytes(8, "big", signed=True) + start_ms.to_bytes(8, "big", signed=True)


def split_session_key(data: bytes) -> tuple[bytes, int, int]:
    """Return the serialised key, the start and the end (ms) of a session key."""
    return data[:-16], int.from_bytes(data[-8:], "big", signed=True), int.from_bytes(data[-16:-8], "big", signed=True)
