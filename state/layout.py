"""The layout of keys and values in a database, and of changelog records.

    database key    key group (1 byte, of the hash of the plain key) + store key
    store key       plain key; window stores: plain key + window start (8 bytes); session stores: plain key + end +
                    start (8 bytes each); versions that have ended: plain key + end (8
                    bytes)
    changelog key   store key; window stores: store key + sequence number 0 (4 bytes), as Kafka Streams writes it
    value           timestamp (8 bytes) + serialised value; the changelog has the serialised value alone

A *family* is an ordered map in a database: one for each time segment of a window or
session store, one for each other store, and a second one for each store with a time to
live, which has its rows by their timestamps (`expiry_key`).

Invariant: in every family, the keys of a key range are a contiguous run of key groups:
cheap to scan, drop or ship. Turned down: the key group in changelog keys (other tools
could not read them), and the window start before the key (a fetch by key would visit
every window).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from coopstreams.topology.keys import (
    GROUPS,
    HASH_BITS,
    KeyGroups,
    KeyRange,
    key_hash,
)
from coopstreams.topology.stores import StoreKind, StoreSpec

GROUP_SHIFT: Final = HASH_BITS - 8
"""`key_hash(key) >> GROUP_SHIFT` is the key group."""

PREFIXES: Final = tuple(bytes([group]) for group in range(GROUPS))
"""The first byte of the database keys of each key group."""

START_BYTES: Final = 8
"""The length of the window start at the end of a window key."""

SESSION_BYTES: Final = 16
"""The length of end and start at the end of a session key."""

SEGMENTED: Final = frozenset({"window", "session"})
"""The kinds of stores whose rows expire, one time segment at a time."""

TIMESTAMP: Final = Struct(">q")

_SEQUENCE = bytes(4)
_SHORTEST_SEGMENT_MS = 60_000


def database_key(plain_key: bytes, store_key: bytes) -> bytes:
    """Return the database key of a store key: one byte with the key group of its plain
    key (the record's key), then the store key.
    """
    return PREFIXES[key_hash(plain_key) >> GROUP_SHIFT] + store_key


def groups_of(key_range: KeyRange) -> KeyGroups:
    """Return the key groups of a range.

    Raises:
        ValueError: the range does not begin and end with a key group, as the ranges of
            tasks with state do.
    """
    if not key_range.is_cut_at_groups:
        raise ValueError(
            f"key range {key_range} is not cut at key groups: a task with state cannot own it"
        )
    return key_range.groups


def group_bounds(groups: KeyGroups) -> tuple[bytes, bytes | None]:
    """Return the half-open range of the database keys of these key groups. An end of
    None means that there is no upper bound.
    """
    return PREFIXES[groups.first], PREFIXES[
        groups.last + 1
    ] if groups.last + 1 < GROUPS else None


def after(key: bytes) -> bytes:
    """Return the smallest key that sorts after a key."""
    return key + b"\x00"


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the smallest key that sorts after all keys with a prefix; None if there is
    none.
    """
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def changelog_key(kind: StoreKind, store_key: bytes) -> bytes:
    """Return the key of the changelog record of a store key."""
    return store_key + _SEQUENCE if kind == "window" else store_key


def store_key(kind: StoreKind, key: bytes) -> bytes:
    """Return the store key of a changelog key."""
    return key[: -len(_SEQUENCE)] if kind == "window" else key


def suffix_bytes(spec: StoreSpec) -> int:
    """Return how many bytes a store key adds behind the plain key, such as the time of
    a window.
    """
    return (
        START_BYTES
        if spec.kind == "window"
        else SESSION_BYTES
        if spec.kind == "session"
        else spec.suffix_bytes
    )


def changelog_suffix_bytes(spec: StoreSpec) -> int:
    """Return how many bytes a changelog key adds behind the plain key, such as the time
    of a window.
    """
    return suffix_bytes(spec) + len(changelog_key(spec.kind, b""))


def plain_key(spec: StoreSpec, store_key: bytes) -> bytes:
    """Return the plain key within a store key: the serialised key of the record,
    without the time of a window, session or version.
    """
    suffix = suffix_bytes(spec)
    return store_key[:-suffix] if suffix else store_key


def time_of(kind: StoreKind, store_key: bytes) -> int:
    """Return the time (ms) in a store key by which its row expires: the start of a
    window, the end of a session or version.
    """
    at = SESSION_BYTES if kind == "session" else START_BYTES
    time: int = TIMESTAMP.unpack_from(store_key, len(store_key) - at)[0]
    return time


def window_start(store_key: bytes) -> int:
    """Return the window start (ms) of a window key."""
    start: int = TIMESTAMP.unpack_from(store_key, len(store_key) - START_BYTES)[0]
    return start


def unpack(data: bytes) -> tuple[bytes, int]:
    """Return the serialised value and the timestamp of a database's value."""
    return data[START_BYTES:], TIMESTAMP.unpack_from(data)[0]


def family_of(store: str) -> str:
    """Return the family of a key-value store."""
    return f"store/{store}"


def segment_family(store: str, segment: int) -> str:
    """Return the family of a time segment of a window store."""
    return f"window/{store}/{segment}"


def parse_segment_family(family: str) -> tuple[str, int] | None:
    """Return the store and the segment number in the name of a segment's family; None
    for another family.
    """
    kind, _, rest = family.partition("/")
    if kind != "window":
        return None
    store, _, segment = rest.rpartition("/")
    return store, int(segment)


def expiry_family(store: str) -> str:
    """Return the family that orders the rows of a store with a time to live by their
    timestamps.
    """
    return f"expiry/{store}"


def expiry_key(place: bytes, timestamp: int) -> bytes:
    """Return the key under which the `expiry_family` lists a row.

    `place`: the database key of the row.
    Shape: key group, timestamp (8 bytes big-endian, not negative), store key. The value
    is empty.
    """
    return place[:1] + TIMESTAMP.pack(max(0, timestamp)) + place[1:]


def store_of(family: str) -> str:
    """Return the store to which a family belongs."""
    segment = parse_segment_family(family)
    return family.partition("/")[2] if segment is None else segment[0]


def retention_ms(spec: StoreSpec) -> int:
    """Return how long (ms) the windows of a store are kept."""
    if spec.retention_ms is None:
        raise ValueError(f'window store "{spec.name}" has no retention')
    return spec.retention_ms


def segment_ms(spec: StoreSpec) -> int:
    """Return the length (ms) of a time segment of a window store.

    Source: Kafka Streams `Stores.persistentWindowStore`: half the retention, at least a
    minute.
    """
    return max(retention_ms(spec) // 2, _SHORTEST_SEGMENT_MS)


def shape(spec: StoreSpec) -> str:
    """Return a text that names what determines the database keys of a store: its kind,
    the length of its segments, and whether rows expire.

    How long rows live is not part of it: they are ordered by their timestamps, so the
    time to live may change.
    """
    if spec.kind in SEGMENTED:
        return f"{spec.kind} {segment_ms(spec)}"
    return spec.kind if spec.ttl_ms is None else f"{spec.kind} whose rows expire"


def horizon(spec: StoreSpec, observed: int) -> int:
    """Return the smallest window start that is still visible once a store has observed
    the window start `observed`.

    Source: Kafka Streams' strict retention: `start >= observed - retention + 1`.
    """
    return observed - retention_ms(spec) + 1


def horizon_at(spec: StoreSpec, stream_time: int) -> int:
    """Return the smallest window start that is still visible at a stream time, even if
    the newest window has not been put yet.
    """
    newest = max(0, stream_time - spec.lag_ms)
    step_ms = spec.step_ms or spec.window_ms or 1
    return horizon(spec, newest - newest % step_ms)
