"""Defines records as objects, for user functions that need more than key and value.

Invariant: a record object is made for one call and not kept; batches are columns (see
`columns`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from coopstreams.topology.columns import Headers

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")

_CONTENT = (bytes, str, type(None))
"""The types of a header's value. The Kafka client encodes a str."""
_LATEST_MS = (1 << 63) - 1
"""The largest timestamp that a record can have."""


@dataclass(slots=True)
class Record(Generic[K, V]):
    """A record as a processor takes and forwards it. Do not mutate a record, make
    another: `record.with_value(1)`.

    Units: `timestamp` in milliseconds. Null keys and values are None, whatever the type
    parameters are.
    """

    key: K
    value: V
    timestamp: int
    headers: Headers = field(default_factory=list)

    def with_key(self, key: K2) -> Record[K2, V]:
        """Return the record with another key."""
        return Record(key, self.value, self.timestamp, self.headers)

    def with_value(self, value: V2) -> Record[K, V2]:
        """Return the record with another value."""
        return Record(self.key, value, self.timestamp, self.headers)

    def with_timestamp(self, timestamp: int) -> Record[K, V]:
        """Return the record with another timestamp."""
        return replace(self, timestamp=timestamp)

    def with_header(self, name: str, value: bytes | None) -> Record[K, V]:
        """Return the record with one more header."""
        return replace(self, headers=[*self.headers, (name, value)])


def check_writable(record: Record[Any, Any]) -> None:
    """Check that the timestamp and the headers of a forwarded record can be written to
    Kafka.

    Raises:
        TypeError: the timestamp or a header is not valid. Keys and values are left to
            the serdes.
    """
    if record.timestamp.__class__ is not int and not hasattr(
        record.timestamp,
        "__index__",
    ):
        raise TypeError(
            f"a timestamp is a whole number of milliseconds, not {record.timestamp!r}"
        )
    if record.timestamp > _LATEST_MS:
        raise TypeError(
            f"a timestamp has 63 bits at most: {record.timestamp!r} is none"
        )
    headers: Iterable[Any] = record.headers  # type checkers are not the only callers
    for header in headers:
        if not _is_header(header):
            raise TypeError(
                f'headers are a list of names and bytes, [("trace", b"1")], not {record.headers!r}'
            )
        # confluent-kafka cuts a name at a NUL character, and crashes the process at a
        # lone surrogate (2.16).
        if "\0" in header[0] or not all(map(_is_utf8, header)):
            raise TypeError(
                f"a header is UTF-8, and its name has no NUL character: {header!r} cannot be written"
            )


def _is_header(header: Any) -> bool:
    return (
        isinstance(header, tuple)
        and len(header) == 2
        and isinstance(header[0], str)
        and isinstance(header[1], _CONTENT)
    )


def _is_utf8(part: str | bytes | None) -> bool:
    """Return whether a part of a header can be encoded: it has no lone surrogate."""
    return (
        not isinstance(part, str)
        or part.isascii()
        or not any("\ud800" <= character <= "\udfff" for character in part)
    )


@dataclass(slots=True)  # not frozen: frozen costs 700 ns a record
class TimestampedRecord(Generic[K, V]):
    """The input of a timestamp extractor: `timestamp=lambda record:
    record.value.time_ms if record.value else None`.

    An extractor is also called for records without key or value.

    Units: `timestamp` is the record's own, as written; `stream_time` is the largest of
    the partition so far (-1: none). Both are in milliseconds.
    """

    key: K | None
    value: V | None
    timestamp: int
    topic: str
    partition: int
    offset: int
    stream_time: int = -1
    headers: Headers | None = None
