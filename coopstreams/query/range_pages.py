"""Pages of a range query: the part of one instance, and the merge of all parts into one
ordered page.

Order: the bytes of the stored keys, as in Kafka Streams; equal keys of two partitions
by partition. Every part has its first `limit` entries after the cursor, or fewer if
they are large. The page is the first `limit` entries of all parts together. It ends
earlier where the first part ends that has more entries.

Invariant: following the cursors returns every key that exists the whole time exactly
once.
Relies on: `scan` (the order of one view), `service` (asks for the parts).
Turned down: offsets as cursors (an entry that is added or deleted between two pages
shifts all others).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice, takewhile
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from coopstreams.query.problems import bad_request
from coopstreams.topology.keys import MAX_HASH, KeyRange

T = TypeVar("T")


class Cover(msgspec.Struct, array_like=True, frozen=True):
    """A key range that an instance read for a range query. `start` and `end` are
    hashes, both inclusive. `lag`: the records by which the owner was behind; None:
    unknown.
    """

    partition: int
    start: int
    end: int
    owner: str
    epoch: int
    lag: int | None
    standby: tuple[int, int, int] | None = None
    """If a standby was read: its `Staleness`."""

    @property
    def key_range(self) -> KeyRange:
        """The hashes from `start` to `end`."""
        return KeyRange(self.start, min(self.end, MAX_HASH))


Entry: TypeAlias = tuple[bytes, Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)], bytes]
"""The stored key, the partition, and the entry as JSON."""


class PartialPage(msgspec.Struct, array_like=True):
    """The part of a page that one instance read: its entries in order, and whether more
    follow.

    `closed`: why it cannot read some of its ranges, in words.
    """

    covers: list[Cover]
    entries: list[Entry]
    more: bool
    closed: list[str] = []


PARTS = msgspec.msgpack.Decoder(PartialPage)


class Page(msgspec.Struct):
    """A page of a range query: entries of all instances in order; `cursor` is None if
    no entries follow.
    """

    covers: list[Cover]
    entries: list[Entry]
    cursor: str | None


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A range query, its keys serialised.

    Shape: `first` and `last` are keys, both inclusive, None = unbounded; `after` is the
    stored key and the partition where the previous page ended.
    """

    first: bytes | None = None
    last: bytes | None = None
    prefix: bytes | None = None
    reverse: bool = False
    limit: int
    after: tuple[bytes, int] | None = None
    max_staleness_ms: int | None = None
    """How old the rows of standbys may be that answer for owners; None: only owners
    answer.
    """
    standing: tuple[tuple[int, int, int], ...] = ()
    """The (partition, first hash, last hash) to read of standbys; empty: all ranges that
    the instance owns.
    """

    def is_after(self, key: bytes, partition: int) -> bool:
        """Return whether an entry lies behind the cursor in the direction of the query."""
        if self.after is None:
            return True
        return (
            (key, partition) < self.after
            if self.reverse
            else (key, partition) > self.after
        )


QUERIES = msgspec.msgpack.Decoder(Query)


def page_of(parts: Sequence[PartialPage], query: Query) -> Page:
    """Return the first `limit` entries of all parts together. A part that has more
    entries ends the page at its last one.
    """
    found = in_order((part.entries for part in parts), query.reverse)
    ends = [_order(part.entries[-1]) for part in parts if part.more]
    entries = list(islice(_until(found, ends, query.reverse), query.limit))
    held = sum(len(part.entries) for part in parts)
    more = bool(entries) and (bool(ends) or held > len(entries))
    covers = [cover for part in parts for cover in part.covers]
    covers.sort(key=lambda cover: (cover.partition, cover.start))
    cursor = cursor_text(entries[-1][0], entries[-1][1]) if more else None
    return Page(covers, entries, cursor)


def _until(
    entries: Iterator[Entry],
    ends: Sequence[tuple[bytes, int]],
    reverse: bool,
) -> Iterator[Entry]:
    """Return the entries up to the first of these ends, inclusive."""
    if not ends:
        return entries
    if reverse:
        last = max(ends)
        return takewhile(lambda entry: _order(entry) >= last, entries)
    last = min(ends)
    return takewhile(lambda entry: _order(entry) <= last, entries)


def in_order(
    streams: Iterable[Iterable[tuple[bytes, int, T]]],
    reverse: bool,
) -> Iterator[tuple[bytes, int, T]]:
    """Return the (stored key, partition, value) of several ordered streams in order,
    lazily.
    """
    return iter(merge(*streams, key=_order, reverse=reverse))


def cursor_text(key: bytes, partition: int) -> str:
    """Return a cursor as text for a URL. Clients pass it back unchanged."""
    return (
        base64.urlsafe_b64encode(partition.to_bytes(4, "big") + key)
        .decode()
        .rstrip("=")
    )


def cursor_of(text: str) -> tuple[bytes, int]:
    """Return the stored key and partition of a cursor.

    Raises:
        QueryError: BAD_PARAMETER: the text is not a cursor.
    """
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) < 4:
        raise bad_request(
            "BAD_PARAMETER",
            "cursor is not one that an answer gave: leave it out to begin anew",
        )
    return data[4:], int.from_bytes(data[:4], "big")


def _order(entry: tuple[bytes, int, object]) -> tuple[bytes, int]:
    """Return the place of an entry in the order of a page."""
    return entry[0], entry[1]
