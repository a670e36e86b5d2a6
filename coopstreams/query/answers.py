"""Reads what other instances answer: of the right form, and never more than a bound.
Pure.

Invariant: bytes of another instance raise only `ValueError` here, whatever they are,
and what was read can be written into an answer of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from coopstreams.query.pages import PARTS, PartialPage

T = TypeVar("T")

MOST_DATA = 32 << 20
"""The most bytes of an answer with rows: an instance ends one at 16 MiB of values,
which JSON makes longer.
"""
MOST_REPORT = 8 << 20
"""The most bytes of an answer about an instance: it is read on the event loop."""
JSON = "application/json"
PACKED = "application/x-msgpack"
"""The media type of the parts of a range query."""


@dataclass(frozen=True, slots=True)
class Expected(Generic[T]):
    """What an instance is to answer: the media type, the most bytes, and how they are
    read.
    """

    media: str
    most: int
    read: Callable[[bytes], T]


class _Entries(msgspec.Struct):
    entries: list[msgspec.Raw]


class _Instances(msgspec.Struct):
    instances: list[msgspec.Raw]


class _Instance(msgspec.Struct):
    id: str


class SeenStore(msgspec.Struct):
    """What another instance says of a store."""

    name: str
    kind: str
    approximate_entries: Annotated[int, msgspec.Meta(ge=0, lt=1 << 50)] = 0
    misplaced: list[str] = []


class _Stores(msgspec.Struct):
    stores: list[SeenStore]


_ANY = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRIES = msgspec.json.Decoder(_Entries)
_INSTANCES = msgspec.json.Decoder(_Instances)
_INSTANCE = msgspec.json.Decoder(_Instance)
_STORES = msgspec.json.Decoder(_Stores)


def entries(count: int) -> Expected[list[bytes]]:
    """Return the expectation of so many entries, as JSON each."""
    return Expected(JSON, MOST_DATA, partial(_entries, count=count))


def status_of(instance: str) -> Expected[bytes]:
    """Return the expectation of the status of one instance, as JSON."""
    return Expected(JSON, MOST_REPORT, partial(_status, instance=instance))


def _object(body: bytes) -> bytes:
    _decoded(_ANY, body)
    return body


def _entries(body: bytes, count: int) -> list[bytes]:
    found = [_as_object(each) for each in _decoded(_ENTRIES, body).entries]
    if len(found) != count:
        raise ValueError(f"{len(found)} entries for {count} keys")
    return found


def _status(body: bytes, instance: str) -> bytes:
    found = [_as_object(each) for each in _decoded(_INSTANCES, body).instances]
    if [_decoded(_INSTANCE, each).id for each in found] != [instance]:
        raise ValueError("not the status of this one instance")
    return found[0]


def _stores(body: bytes) -> list[SeenStore]:
    stores: list[SeenStore] = _decoded(_STORES, body).stores
    return stores


def part_of(body: bytes) -> PartialPage:
    """Return a part of a range query; slow if it is large.

    Raises:
        ValueError: it is none.
    """
    part: PartialPage = _decoded(PARTS, body)
    for cover in part.covers:
        _ = cover.key_range  # one that cannot be is a ValueError
    for _, _, entry in part.entries:
        _decoded(_ANY, entry)
    if part.more and not part.entries:
        raise ValueError("a part without entries that has more")
    return part


def _as_object(raw: msgspec.Raw) -> bytes:
    """Return the bytes of a JSON object, which was read as a part of another one."""
    data = bytes(raw)
    if data[:1] != b"{":
        raise ValueError(f"no JSON object: {data[:40]!r}")
    return data


def _decoded(decoder: Any, data: bytes) -> Any:
    try:
        if isinstance(decoder, msgspec.json.Decoder):
            data.decode()  # what is skipped need not be UTF-8
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error


ROW = Expected(JSON, MOST_DATA, _object)
"""An answer for one key, which goes to the client as it is."""
STORES = Expected(JSON, MOST_REPORT, _stores)
PART = Expected(PACKED, MOST_DATA, bytes)
"""A part of a range query, which `part_of` reads on another thread."""
