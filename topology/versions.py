"""The history of a row of a versioned table: its versions, each a timestamp and a value.

A history is a list of (timestamp, value), oldest first, with None for a deletion. A version is valid from its timestamp
until that of the next version. Each change of the row removes the versions older than the history retention.

Invariant: timestamps ascend strictly; a second value with the same timestamp replaces the first.
Turned down: Kafka Streams' segments by time. Its changelog has a record for each version, ours has one for each row, so
that one record restores a whole row.
Source: Kafka Streams `RocksDBVersionedStore`, KIP-889, KIP-914.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cache
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

from coopstreams.topology.serdes import Serde

Version: TypeAlias = tuple[int, Any]


class Held(NamedTuple):
    """A version and its validity: `since <= moment < until`; `until` is None for the latest version. Units: ms."""

    since: int
    until: int | None
    value: Any


@dataclass(frozen=True, slots=True, repr=False)
class Histories(Serde[list[Version]]):
    """The serde of histories. `one` is the serde of a single version's value."""

    one: Serde[Any]


_HEAD = Struct(">qi")
_DELETED = -1


def put_version(versions: list[Version], timestamp: int, value: Any, oldest: int) -> bool:
    """Insert a version into a history and return whether it is the latest.

    Removes the versions whose validity ended before `oldest`.
    """
    at = bisect_left(versions, timestamp, key=_timestamp)
    there = at < len(versions) and versions[at][0] == timestamp
    versions[at : at + there] = [(timestamp, value)]
    is_latest = at == len(versions) - 1
    del versions[: max(0, bisect_right(versions, oldest, key=_timestamp) - 1)]
    return is_latest


def latest_value(versions: list[Version] | None) -> Any:
    """Return the value of the latest version; None if there is no version or the latest is a deletion."""
    return versions[-1][1] if versions else None


def version_at(versions: list[Version] | None, timestamp: int, oldest: int) -> Version | None:
    """Return the version that was valid at a moment, None if there was none or it was a deletion.

    A moment before `oldest` gives None, too, unless the latest version was valid then: the history may be incomplete.
    """
    if not versions:
        return None
    at = bisect_right(versions, timestamp, key=_timestamp) - 1
    if at < 0 or versions[at][1] is None or (timestamp < oldest and at < len(versions) - 1):
        return None
    return versions[at]


def value_at(versions: list[Version] | None, timestamp: int, oldest: int) -> Any:
    """Return the value that was valid at a moment; None as in `version_at`."""
    version = version_at(versions, timestamp, oldest)
    return None if version is None else version[1]


def versions_within(versions: list[Version] | None, first: int, last: int, oldest: int) -> list[Held] | None:
    """Return the versions that were valid at some moment of first..last (inclusive), oldest first.

    Leaves out deletions and versions whose validity ended before `oldest`. None: the history does not reach back to
    this time, because all of it is before `oldest` and the row has changed since.

    Source: Kafka Streams `MultiVersionedKeyQuery` (KIP-968), which returns no versions where this returns None.
    """
    if not versions:
        return []
    if last < min(oldest, versions[-1][0]):
        return None
    begin = bisect_right(versions, min(max(first, oldest), last), key=_timestamp) - 1
    ends = [since for since, _ in versions[1:]] + [None]
    held = [Held(since, until, value) for (since, value), until in zip(versions, ends, strict=True)]
    return [one for one in held[max(begin, 0) : bisect_right(versions, last, key=_timestamp)] if one.value is not None]


@cache
def versions_of(inner: Serde[Any]) -> Histories:
    """Return the serde of histories.

    Shape: for each version its timestamp (8 bytes big-endian), the length of its value (4; -1 for a deletion), value.
    """

    def encode(versions: list[Version]) -> bytes:
        parts: list[bytes] = []
        for timestamp, value in versions:
            data = None if value is None else inner.encode(value)
            parts += [_HEAD.pack(timestamp, _DELETED)] if data is None else [_HEAD.pack(timestamp, len(data)), data]
        return b"".join(parts)

    def decode(data: bytes) -> list[Version]:
        versions: list[Version] = []
        position = 0
        while position < len(data):
            timestamp, length = _HEAD.unpack_from(data, position)
            position += _HEAD.size + max(length, 0)
            versions.append(
                (timestamp, None if length == _DELETED else inner.decode(data[position - length : position]))
            )
        return versions

    return Histories(f"versions({inner.name})", encode, decode, inner, parts=(inner,))


def _timestamp(version: Version) -> int:
    return version[0]
