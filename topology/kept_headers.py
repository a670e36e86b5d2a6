"""Stores headers with rows: the serde of rows that keep the headers of the record that
wrote them.

The headers precede the value, in the store and in the changelog. So restores,
snapshots, backfills and queries move them with the rows, without further code.

A record that an operator holds back (`suppress`, a join with grace) may be stored with
its topic, partition and offset, if a processor below may ask for them. They are in an
additional last header, which is removed when the record is forwarded.

Relies on: `operators.suppress_operators` and `operators.grace_joins` (hold records
back), `compile.processor_stores`.
Turned down: the headers of changelog records, as in Kafka Streams. Changelog readers
and writers would carry one more column for each row, and the database would need a
second layout.
Source: Kafka Streams `ValueTimestampHeaders`, KIP-1271.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from struct import Struct
from typing import (
    Any,
    NamedTuple,
    Protocol,
    TypeAlias,
)

from coopstreams.topology.columns import Headers
from coopstreams.topology.serde import wrong_length
from coopstreams.topology.serdes import Serde


class Headed(NamedTuple):
    """A value, and the headers of the record that wrote it."""

    value: Any
    headers: Headers


@dataclass(frozen=True, slots=True, repr=False)
class KeptHeaders(Serde[Headed]):
    """The serde of rows with headers. `one`: the serde of the value alone."""

    one: Serde[Any]


Place: TypeAlias = tuple[str, int, int]
"""The topic, partition and offset of a record. Offset -1 means that they are not
known.
"""


class Bound(Protocol):
    """The part of `BoundProgram` that operators which hold records back use."""

    headers: Headers | None
    place: Place | None

    def where(self) -> Place | None:
        """Return where the current record was read, or None if no source record is
        being processed.
        """
        ...

    def under_headers(
        self,
        headers: Headers | None,
        call: Callable[[], object],
    ) -> None:
        """Call `call`; the records that it forwards get these headers."""


UNKNOWN: Place = ("", -1, -1)
_PLACE = "\0place"
_A_PLACE = re.compile(rb"([\w.-]+) (\d{1,10}) (\d{1,19})")


def placed_headers(process: Bound) -> Headers | None:
    """Return the headers of the current record, with an additional last header that
    says where the record was read. While no source record is processed, return the
    headers alone, which may be None.
    """
    where = process.where()
    if where is None:
        return process.headers
    topic, partition, offset = where
    return [
        *(process.headers or ()),
        (_PLACE, f"{topic} {partition} {offset}".encode()),
    ]


def as_read(
    process: Bound,
    headers: Headers | None,
    call: Callable[[], object],
) -> None:
    """Forward a held record by `call`, with its headers and the place where it was read
    as those of the current record.

    The header with the place (see `placed_headers`) is removed.
    """
    before = process.place
    process.place = UNKNOWN
    last = headers[-1] if headers else None
    # A producer may write a header of this name, too: what is no place is one of its
    # headers.
    if last and last[0] == _PLACE and (place := _A_PLACE.fullmatch(last[1] or b"")):
        process.place = (place[1].decode(), int(place[2]), int(place[3]))
        headers = headers and headers[:-1]
    try:
        process.under_headers(headers or None, call)
    finally:
        process.place = before


_LENGTH = Struct(">i")
_NULL = -1
_LEAST_BYTES = 8
"""The least number of bytes of a header: its two lengths."""


@cache
def with_headers(inner: Serde[Any]) -> KeptHeaders:
    """Return the serde of rows with headers, given the serde of the value.

    Shape: the number of headers (4 bytes big-endian); for each header the length of its
    name (4), the name, the length of its value (4; -1 for null), the value; then the
    row's value.
    """

    def encode(row: Headed) -> bytes:
        parts = [_LENGTH.pack(len(row.headers))]
        for name, value in row.headers:
            data = name.encode()
            parts += [
                _LENGTH.pack(len(data)),
                data,
                _LENGTH.pack(_NULL if value is None else len(value)),
                value or b"",
            ]
        return b"".join([*parts, inner.encode(row.value)])

    def decode(data: bytes) -> Headed:
        headers, value = split_headers(data)
        return Headed(inner.decode(value), headers)

    return KeptHeaders(f"headers({inner.name})", encode, decode, inner, parts=(inner,))


def split_headers(data: bytes) -> tuple[Headers, bytes]:
    """Return the headers of a serialised row, and its serialised value.

    Raises:
        ValueError: a count or a length is negative, or larger than the bytes that
            follow.
        struct.error: the bytes end within a count or a length.
    """
    headers: Headers = []
    (count,) = _LENGTH.unpack_from(data)
    at = _LENGTH.size
    if not 0 <= count <= (len(data) - at) // _LEAST_BYTES:
        raise ValueError(f"{count} headers, where {len(data) - at} bytes are left")
    for _ in range(count):
        name, at = _part(data, at)
        value, at = _part(data, at)
        headers.append(((name or b"").decode(), value))
    return headers, data[at:]


def _part(data: bytes, at: int) -> tuple[bytes | None, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    begin = at + _LENGTH.size
    if length == _NULL:
        return None, begin
    if not 0 <= length <= len(data) - begin:
        raise wrong_length(length, len(data) - begin)
    return data[begin : begin + length], begin + length
