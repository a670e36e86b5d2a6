"""The history of a row of a versioned table: which value it had when.

A row is the list of its versions, oldest first: (timestamp, value), with None for a deletion. A version is valid from
its timestamp until that of the next. Versions older than the history retention are removed with the next change of the
row.

Invariant: timestamps ascend strictly; a second value of one moment replaces the first.
Turned down: Kafka Streams' segments by time (its changelog has a record for each version, ours one for each row: a
restored row is whole).
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
    """A version and when it held: `since <= moment < until`; `until` None: it still does. Units: ms."""

    since: int
    until: int | None
    value: Any


@dataclass(frozen=True, slots=True, repr=False)
class Histories(Serde[list[Version]]):
    """The serde of histories. `one`: that of a single version's value."""

    one: Serde[Any]


_HEAD = Struct(">qi")
_DELETED = -1


def put_version(versions: list[Version], timestamp: int, value: Any, oldest: int) -> bool:
    """File a value into a history; return whether it is the latest. What was replaced before `oldest` is forgotten."""
    at = bisect_left(versions, timestamp, key=_timestamp)
    there = at < len(versions) and versions[at][0] == timestamp
    versions[at : at + there] = [(timestamp, value)]
    is_latest = at == len(versions) - 1
    del versions[: max(0, bisect_right(versions, oldest, key=_timestamp) - 1)]
    return is_latest


def latest_value(versions: list[Version] | None) -> Any:
    """Return the value of the latest version, None if there is none or it is a deletion."""
    return versions[-1][1] if versions else None


def version_at(versions: list[Version] | None, timestamp: int, oldest: int) -> Version | None:
    """Return the version that held at a moment; None if there was none, it was a deletion, or a past before `oldest` is
    asked for.
    """
    if not versions:
        return None
    at = bisect_right(versions, timestamp, key=_timestamp) - 1
    if at < 0 or versions[at][1] is None or (timestamp < oldest and at < len(versions) - 1):
        return None
    return versions[at]


def value_at(versions: list[Version] | None, timestamp: int, oldest: int) -> Any:
    """Return the value that held at a moment; None as `version_at`."""
    version = version_at(versions, timestamp, oldest)
    return None if version is None else version[1]


def versions_within(versions: list[Version] | None, first: int, last: int, oldest: int) -> list[Held] | None:
    """Return the versions that held at some moment of first..last, oldest first, without deletions and without what
    ended before `oldest`.

    None: nobody knows, because all of that time is before `oldest` and the row has changed since.
    Source: Kafka Streams `MultiVersionedKeyQuery` (KIP-968), which answers with nothing where we say that it is
    forgotten.
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
    """Return the serde of histories: for each version its timestamp (8 bytes big-endian), length (4; -1 for a
    deletion), value.
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

    return Histories(f"versions({inner.name})", encode, decode, inner)


def _timestamp(version: Version) -> int:
    return version[0]
