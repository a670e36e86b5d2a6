"""The cached records of one key range. A record is cached whole (with its value), or
bare (its key and offset, without its value).

    put, keep -> [whole] [bare] [bare] ... -> pop
                 ask, fill: the first bare records get their values, or are dropped

Records are cached bare unless their topic sets `reserve.message.value.range.fetch`.
`ask` returns the offsets of the first bare records, and `fill` replaces them by what
the log still has. Records that compaction has removed are skipped.

Invariant: offsets ascend. `bytes` is the size of all records that cannot be handed out
now, whole or bare. Turned down: asking for single records (each costs a round trip;
neighbours together cost one).
Relies on: `owned_range` (asks and fills), `range_reader` (drops what has no room, and
reads it again).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from coopstreams.topology.columns import NO_RECORDS, Columns

RECORD_BYTES = 200
"""The approximate memory of a record beside its key and value."""
BARE_BYTES = 64
"""The approximate memory of a bare record beside its key: an object, a reference, an
offset.
"""
BARE_RECORDS = 1000
"""The most neighbouring bare records that are cached in one batch and read again
together.
"""


@dataclass(slots=True)
class _Batch:
    """Neighbouring records. `next_offset` is the first offset after them. `bare`: the
    columns have keys and offsets only.
    """

    columns: Columns
    next_offset: int
    bare: bool = False
    bytes: int = 0
    """The batch's size counted against the cache; 0 while it is about to be handed out.
    """


class RangeCache:
    """The cached records of one key range, as a queue of batches. Belongs to the
    consumer's thread.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.asked: Sequence[int] | None = None
        """The offsets of the first bare records, while they are being read again; None:
        no request is under way.
        """
        self._batches: deque[_Batch] = deque()
        self._loose = False
        """Whether some batches are not counted in `bytes`, or have values that need not
        be cached.
        """

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def ready(self) -> bool:
        """Whether `pop` may be called as far as values are concerned: the first batch
        has its values (is not bare), or the cache is empty, so no value must be read
        again.
        """
        return not self._batches or not self._batches[0].bare

    @property
    def first(self) -> int | None:
        """The offset of the first record; None: there is no record."""
        return next(
            (batch.columns.offsets[0] for batch in self._batches if len(batch.columns)),
            None,
        )

    @property
    def all_asked(self) -> bool:
        """Whether all records that are cached without values are being read again."""
        bare = sum(len(batch.columns) for batch in self._batches if batch.bare)
        return self.asked is not None and len(self.asked) == bare

    def put(self, columns: Columns, next_offset: int) -> None:
        """Add records that are about to be handed out."""
        self._batches.append(_Batch(columns, next_offset))
        self._loose = True

    def keep(
        self,
        columns: Columns,
        next_offset: int,
        room: int,
        *,
        values: bool,
    ) -> bool:
        """Add records that cannot be handed out now. Return False, and change nothing,
        if they exceed `room` bytes.

        `values`: whether to cache the values of the records, too, or only keys and
        offsets.
        """
        batch = _kept(columns, next_offset, values=values)
        if batch.bytes > room:
            return False
        last = self._batches[-1] if self._batches else None
        if last is not None and not len(columns):
            last.next_offset = next_offset
        elif (
            last is not None
            and last.bare
            and batch.bare
            and len(last.columns) + len(columns) <= BARE_RECORDS
        ):
            last.columns = Columns(
                [*last.columns.keys, *columns.keys],
                (),
                (),
                array("q", [*last.columns.offsets, *columns.offsets]),
                (),
            )
            last.next_offset = next_offset
            last.bytes = last.bytes + batch.bytes
        else:
            self._batches.append(batch)
        self.bytes += batch.bytes
        self._loose = self._loose or values
        return True

    def settle(self, room: int, *, values: bool) -> bool:
        """Count every batch in `bytes`, and drop values unless `values` is set. Return
        False if this needs more than `room` bytes.

        The batches are kept in either case.
        """
        if self._loose and self.asked is None:
            before = self.bytes
            settled = [
                batch
                if batch.bare
                else _kept(batch.columns, batch.next_offset, values=values)
                for batch in self._batches
            ]
            self._batches = deque(settled)
            self.bytes = sum(batch.bytes for batch in settled)
            self._loose = False
            return self.bytes - before <= room
        return True

    def pop(self, most: int) -> tuple[Columns, int]:
        """Remove and return up to `most` of the first records, and the offset after
        them. `ready` must hold.
        """
        batch = self._batches.popleft()
        columns = batch.columns
        next_offset = batch.next_offset
        self.bytes -= batch.bytes
        if len(columns) > most:
            rest = columns.slice(most, len(columns))
            size = _size(rest) if batch.bytes else 0
            self._batches.appendleft(_Batch(rest, next_offset, bytes=size))
            self.bytes += size
            columns = columns.slice(0, most)
            next_offset = rest.offsets[0]
        return columns, next_offset

    def ask(self, most: int) -> Sequence[int] | None:
        """Return the offsets of up to `most` of the first records, if these have no
        values in the cache, and note the request.

        None: the first records have their values, there are none, or an earlier request
        is unanswered.
        """
        if self.ready or self.asked is not None:
            return None
        self.asked = self._batches[0].columns.offsets[: min(most, BARE_RECORDS)]
        return self.asked

    def fill(self, found: Columns) -> None:
        """Replace the requested records by those that the log still has at their
        offsets.
        """
        assert self.asked is not None
        batch = self._batches.popleft()
        count = len(self.asked)
        self.asked = None
        self.bytes -= batch.bytes
        rest = batch.columns.slice(count, len(batch.columns))
        if len(rest):
            left = _Batch(rest, batch.next_offset, bare=True, bytes=_size(rest))
            self._batches.appendleft(left)
            self.bytes += left.bytes
        self._batches.appendleft(
            _Batch(found, rest.offsets[0] if len(rest) else batch.next_offset)
        )
        self._loose = True

    def clear(self) -> None:
        """Drop all records, and forget the request."""
        self._batches.clear()
        self.bytes = 0
        self.asked = None
        self._loose = False


def _kept(
    columns: Columns,
    next_offset: int,
    *,
    values: bool,
) -> _Batch:
    """Return the batch of records that cannot be handed out now; without `values` it is
    bare.
    """
    if not len(columns):
        return _Batch(NO_RECORDS, next_offset)
    if not values:
        columns = Columns(list(columns.keys), (), (), array("q", columns.offsets), ())
    return _Batch(columns, next_offset, bare=not values, bytes=_size(columns))


def _size(columns: Columns) -> int:
    """Return the approximate memory of records, by which the cache is limited."""
    beside = RECORD_BYTES if len(columns.values) else BARE_BYTES
    return (
        beside * len(columns)
        + sum(map(len, filter(None, columns.keys)))
        + sum(map(len, filter(None, columns.values)))
    )
