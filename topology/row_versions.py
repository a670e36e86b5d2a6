"""Keeps the versions of the rows of a versioned table; a version is a timestamp and a
value.

A row holds its latest version. Earlier versions are in a store of their own
(`StoreSpec.past`), each under its key and its end: the timestamp of the next version. A
version is valid from its timestamp until its end; a value None is a deletion. So an
update writes two rows however long the history is. Versions that ended before the
history retention are not found, and are deleted with a later update of their row.

Invariant: the versions of a key have no gaps: each version except the latest ends where
the next begins. A second value with the same timestamp replaces the first.
Invariant: a committed version keeps its bytes when it is moved to the store of earlier
versions. So a program whose class has fewer fields than the bytes does not lose the
other fields.
Relies on: `stores` (`VersionTableStore.forget`: what may be deleted before a commit),
`operators.tables` and `operators.lookups` (call this).
Turned down: all versions in one row (each update would write all of them, and a row
larger than the changelog's largest record would stop the application). Turned down:
windows by the ends of versions (brokers delete a changelog of windows by the wall
clock, so an old history that is read again would be deleted as a whole).
Source: Kafka Streams `RocksDBVersionedStore`, which has segments by the ends of
versions, KIP-889, KIP-914.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

from coopstreams.topology.errors import SerdeError
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import (
    Entry,
    VersionTableStore,
    as_written,
    split_window_key,
    window_key,
)

Version: TypeAlias = tuple[int, Any]


class Held(NamedTuple):
    """A version and the time in which it is valid: `since <= moment < until`.

    Shape: `until` is None for the latest version.
    Units: milliseconds.
    """

    since: int
    until: int | None
    value: Any


@dataclass(frozen=True, slots=True, repr=False)
class Histories(Serde[list[Version]]):
    """The serde of lists of versions. `one`: the serde of a single version's value."""

    one: Serde[Any]


class _Written(list[Version]):
    """A list of versions, together with the serialised bytes from which it was read."""

    __slots__ = ("data",)

    def __init__(self, versions: list[Version], data: bytes) -> None:
        super().__init__(versions)
        self.data = data


_HEAD = Struct(">qi")
_DELETED = -1
_NO_VERSIONS = "these are no versions, each with its timestamp and length"
_FORGOTTEN = 8
"""How often within the history retention the expired versions of a row are deleted.
Each search for them costs a seek.
"""


def put_version(
    row: Entry,
    past: VersionTableStore,
    key: bytes,
    timestamp: int,
    value: Any,
    oldest: int,
    history_ms: int,
) -> bool:
    """Insert a version into a row and return whether it is the latest. The caller marks
    the row as changed.

    `past`: the store of the row's earlier versions. `oldest`: versions that ended at
    this time or before are expired. At most eight times within `history_ms`, a new
    latest version deletes the expired versions of its row.

    Shape: `key` is the row's store key. The row's value is a list of one version. A row
    written by an older release has all versions in its list; they are moved to `past`.
    """
    past.old_ms = max(past.old_ms, oldest)  # before `forget`, which deletes by it
    versions = row.value or [(timestamp, value)]
    for version, following in pairwise(versions):
        _end(past, key, [version], following[0])
    latest = versions[-1]
    ended = _as_written(row) if len(versions) == 1 else [latest]
    row.value = ended
    row.timestamp = latest[0]
    if timestamp < latest[0]:
        _put_past(past, key, timestamp, value, latest[0])
        return False
    if timestamp > latest[0]:
        _end(past, key, ended, timestamp)
        step_ms = max(history_ms // _FORGOTTEN, 1)
        if timestamp // step_ms > latest[0] // step_ms:
            past.forget(key)
    row.value = [(timestamp, value)]
    row.timestamp = timestamp
    return True


def latest_value(versions: list[Version] | None) -> Any:
    """Return the value of the latest version; None if there is no version or the latest
    is a deletion.
    """
    return versions[-1][1] if versions else None


def latest_as_written(row: Entry) -> bytes | None:
    """Return the serialised value of a row's latest version, or None if the row has
    changed since the last commit.
    """
    versions = row.value
    data = versions.data if type(versions) is _Written else as_written(row)
    return data[_HEAD.size :] if data is not None and len(versions) == 1 else None


def version_at(
    versions: list[Version] | None,
    past: VersionTableStore,
    key: bytes,
    timestamp: int,
    oldest: int,
) -> Version | None:
    """Return the version of a row that was valid at a moment. None means that there was
    none, or that it was a deletion.

    The history before `oldest` may be incomplete. So a moment before `oldest` gives
    None, unless the latest version was already valid.
    """
    if not versions or (timestamp < oldest and timestamp < versions[-1][0]):
        return None
    if timestamp >= versions[0][0]:
        found = versions[bisect_right(versions, timestamp, key=_timestamp) - 1]
    else:
        row = past.first_from(key, timestamp + 1)
        if row is None or (found := row[1].value[0])[0] > timestamp:
            return None
    return None if found[1] is None else found


def value_at(
    versions: list[Version] | None,
    past: VersionTableStore,
    key: bytes,
    timestamp: int,
    oldest: int,
) -> Any:
    """Return the value of the version of a row that was valid at a moment (`timestamp`,
    ms). None: there was none, or it was a deletion, or `oldest` is later: see
    `version_at`.
    """
    version = version_at(versions, past, key, timestamp, oldest)
    return None if version is None else version[1]


def versions_within(
    versions: list[Version] | None,
    first: int,
    last: int,
    oldest: int,
) -> list[Held] | None:
    """Return the versions of a row that were valid at any moment of first..last
    (inclusive), oldest first.

    Deletions and versions that ended before `oldest` are left out. None: the history
    does not reach back to this time, because all of first..last is before `oldest` and
    the row has changed since.

    Source: Kafka Streams `MultiVersionedKeyQuery` (KIP-968), which returns no versions
    where this returns None.
    """
    if not versions:
        return []
    if last < min(oldest, versions[-1][0]):
        return None
    begin = bisect_right(versions, min(max(first, oldest), last), key=_timestamp) - 1
    ends = [since for since, _ in versions[1:]] + [None]
    held = [
        Held(since, until, value)
        for (since, value), until in zip(versions, ends, strict=True)
    ]
    return [
        one
        for one in held[max(begin, 0) : bisect_right(versions, last, key=_timestamp)]
        if one.value is not None
    ]


@cache
def versions_of(inner: Serde[Any]) -> Histories:
    """Return the serde of lists of versions, given the serde of one value.

    Shape: for each version its timestamp (8 bytes big-endian), the length of its value
    (4; -1 for a deletion), the value.
    """

    def encode(versions: list[Version]) -> bytes:
        if type(versions) is _Written:
            return versions.data
        parts: list[bytes] = []
        for timestamp, value in versions:
            data = None if value is None else inner.encode(value)
            parts += (
                [_HEAD.pack(timestamp, _DELETED)]
                if data is None
                else [_HEAD.pack(timestamp, len(data)), data]
            )
        return b"".join(parts)

    def decode(data: bytes) -> list[Version]:
        versions: list[Version] = []
        position = 0
        while position < len(data):
            if len(data) - position < _HEAD.size:
                raise SerdeError(_NO_VERSIONS)
            timestamp, length = _HEAD.unpack_from(data, position)
            position += _HEAD.size + max(length, 0)
            # A row without versions may look like one.
            if length < _DELETED or position > len(data):
                raise SerdeError(_NO_VERSIONS)
            versions.append(
                (
                    timestamp,
                    None
                    if length == _DELETED
                    else inner.decode(data[position - length : position]),
                )
            )
        return versions

    return Histories(f"versions({inner.name})", encode, decode, inner, parts=(inner,))


def _put_past(
    past: VersionTableStore,
    key: bytes,
    timestamp: int,
    value: Any,
    end: int,
) -> None:
    """Insert a version that is older than the latest one. `end`: the timestamp of the
    latest version.
    """
    row = past.first_from(key, timestamp + 1)
    if row is not None:
        following = split_window_key(row[0])[1]
        (version,) = row[1].value
        if version[0] > timestamp:  # it is the first one that is known
            end = version[0]
        else:
            end = following
            # At-least-once, a record may come again after a crash that left the first
            # rows of its batch in the changelog. One that ends here is such a row, and
            # newer than the version that was found.
            if (
                version[0] < timestamp
                and past.load(window_key(key, timestamp)).value is None
            ):
                _end(past, key, _as_written(row[1]), timestamp)
    _end(past, key, [(timestamp, value)], end)


def _end(
    past: VersionTableStore,
    key: bytes,
    version: list[Version],
    end: int,
) -> None:
    """Store a version that has ended, as a list of one version, under its key and its
    end.
    """
    past.put(window_key(key, end), version, end)


def _as_written(row: Entry) -> list[Version]:
    """Return the versions of a row, together with their bytes if the row is
    committed.
    """
    if row.dirty or row.stored is None or row.value is None:
        return row.value or []
    return _Written(row.value, row.stored)


def _timestamp(version: Version) -> int:
    return version[0]
