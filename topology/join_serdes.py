"""How a join of two streams writes what it remembers: several values of one moment, and records that wait for a match."""

from __future__ import annotations

from functools import cache
from struct import Struct
from typing import Any

from coopstreams.topology.serdes import Serde

_LENGTH = Struct(">i")
_WAITING = Struct(">qBi")


@cache
def values_of(inner: Serde[Any]) -> Serde[list[Any]]:
    """Return the serde of several values: each after its length (4 bytes big-endian)."""

    def encode(values: list[Any]) -> bytes:
        written = [inner.encode(value) for value in values]
        return b"".join(part for data in written for part in (_LENGTH.pack(len(data)), data))

    def decode(data: bytes) -> list[Any]:
        values, at = [], 0
        while at < len(data):
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size + length
            values.append(inner.decode(data[at - length : at]))
        return values

    return Serde(f"values({inner.name})", encode, decode)


@cache
def waiting_of(left: Serde[Any], right: Serde[Any]) -> Serde[list[tuple[int, int, Any]]]:
    """Return the serde of records that wait, (timestamp, side, value): timestamp (8 bytes), side (1), length (4), value."""

    def encode(rows: list[tuple[int, int, Any]]) -> bytes:
        written = [(at, side, (left, right)[side].encode(value)) for at, side, value in rows]
        return b"".join(part for at, side, data in written for part in (_WAITING.pack(at, side, len(data)), data))

    def decode(data: bytes) -> list[tuple[int, int, Any]]:
        rows, position = [], 0
        while position < len(data):
            at, side, length = _WAITING.unpack_from(data, position)
            position += _WAITING.size + length
            rows.append((at, side, (left, right)[side].decode(data[position - length : position])))
        return rows

    return Serde(f"waiting({left.name}, {right.name})", encode, decode)
