"""The reader for all key ranges of a consumer: it fetches each partition once and
routes each record to its key range.

A key range here is an `OwnedRange`: `taken` is the next offset that it takes, and
`behind` says that the reader is past it, because records were dropped. `owned_range.py`
has the rules of both.

A key range that is paused or has too many records in flight does not hold up the other
key ranges of its partition. Its records are cached, up to `max.bytes.key.range.cache`
in total, and leave the cache when they are handed out. Of a topic that does not reserve
values, the cache keeps only keys and offsets, and a second reader (`ValueReader`)
fetches the values later. Records that do not fit are dropped, and the first reader goes
back for them.

Invariant: a key range gets every record from its opening position on, in order, once,
whatever the other key ranges of its partition do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from dataclasses import dataclass, field

from coopstreams.consumer.filters import RecordFilter
from coopstreams.consumer.owned_range import ConsumerRecord, OwnedRange
from coopstreams.consumer.range_cache import RangeCache
from coopstreams.log.log import Position, Reader
from coopstreams.topology.columns import Columns, TopicPartition, joined
from coopstreams.topology.errors import LogError

JUMP = 5000
"""The largest gap of offsets that is read instead of skipped: both take a few
milliseconds.
"""


@dataclass(slots=True)
class _Partition:
    """A partition of which this consumer reads key ranges."""

    owned_ranges: list[OwnedRange] = field(default_factory=list)
    """The key ranges of the partition, in the order of the reader's slots."""
    at: int | None = None
    """The next offset that the reader fetches; None: it does not read the partition."""

    def go_back(self) -> None:
        """Sort the key ranges, and set `at` to the first offset that one of them takes
        next.
        """
        self.owned_ranges.sort(key=lambda owned: owned.id)
        for owned in self.owned_ranges:
            # While nothing is read (`at` is None), the reader needs a position, also if
            # all ranges are stuck. What waits goes out before its range takes again.
            if owned.takes_again or (self.at is None and not owned.waiting):
                owned.behind = False
        taken = [owned.taken for owned in self.owned_ranges if not owned.behind]
        if taken:
            self.at = min(taken)


class RangeReader:
    """Moves fetched records to key ranges, and from them to the user. Belongs to one
    thread.
    """

    def __init__(
        self,
        make_reader: Callable[[], Reader],
        most_bytes: int,
        reserves: Callable[[str], bool],
        filter_: RecordFilter | None,
    ) -> None:
        """Make a reader of no partition.

        `most_bytes`: the size of the cache. `reserves`: whether values of a topic's
        records may be cached.
        """
        self._reader = make_reader()
        self._values = ValueReader(make_reader)
        self._most_bytes = most_bytes
        self._reserves = reserves
        self._filter = filter_
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._changed: set[TopicPartition] = set()
        """The partitions whose key ranges have changed since the last fetch. The next
        fetch updates the reader.
        """
        self._paused: set[TopicPartition] = set()
        self._remade: set[TopicPartition] = set()
        """The partitions of which the reader may still have records of a deleted topic.
        The next fetch drops these.
        """

    def open(self, owned: OwnedRange) -> None:
        """Read a key range from its opening position on."""
        partition = self._partitions.setdefault(owned.at, _Partition())
        owned.paused = owned.at in self._paused
        partition.owned_ranges.append(owned)
        owned.behind = True
        self._changed.add(owned.at)

    def close(
        self, owned_ranges: Iterable[OwnedRange], *, remade: bool = False
    ) -> None:
        """Stop reading these key ranges, and drop their waiting records.

        `remade`: whether their topic was deleted and made anew, so that records fetched
        from it are useless.
        """
        for owned in owned_ranges:
            if remade:
                self._remade.add(owned.at)
            owned.live = False
            owned.waiting.clear()
            partition = self._partitions.get(owned.at)
            if partition is not None and owned in partition.owned_ranges:
                partition.owned_ranges.remove(owned)
                self._changed.add(owned.at)
                if not partition.owned_ranges:
                    del self._partitions[owned.at]

    def fetch(self, most: int, timeout_s: float) -> None:
        """Fetch once. Block up to `timeout_s`, and only while no record has arrived.

        Raises:
            LogError: a partition cannot be read, or not from its position. The next
                call tries again.
        """
        self._place()
        for owned in self._owned_ranges():
            if (offsets := owned.ask()) is not None:
                self._values.ask(Refetch(owned.at, offsets, owned.waiting))
        batches = self._reader.fetch(most, 0.0 if self._values else timeout_s)
        for batch in batches:
            partition = self._partitions.get(batch.partition)
            if partition is not None:
                partition.at = batch.next_offset
                columns = (
                    batch.columns
                    if self._filter is None
                    else self._filter.columns(batch.columns)
                )
                partition.owned_ranges[batch.slot].take(
                    columns,
                    batch.next_offset,
                    self._room,
                    values=self._reserves(batch.partition.topic),
                )
        self._values.fetch(0.0 if batches else timeout_s)

    def records(self, most: int) -> list[ConsumerRecord]:
        """Return up to `most` records that can be handed out now."""
        records: list[ConsumerRecord] = []
        for owned in self._owned_ranges():
            if len(records) < most:
                records += owned.hand_out(most - len(records))
            owned.settle(self._room, values=self._reserves(owned.at.topic))
        return records

    def pause(self, at: TopicPartition, paused: bool) -> None:
        """Stop or resume fetching a partition and handing out its records. This also
        applies to key ranges that are opened later.
        """
        if paused:
            self._paused.add(at)
        else:
            self._paused.discard(at)
        partition = self._partitions.get(at)
        if partition is not None:
            for owned in partition.owned_ranges:
                owned.paused = paused
            self._reader.hold(at, paused)

    def close_reader(self) -> None:
        """Close both readers."""
        self._reader.close()
        self._values.close()

    def _room(self) -> int:
        return self._most_bytes - sum(
            owned.waiting.bytes for owned in self._owned_ranges()
        )

    def _owned_ranges(self) -> Iterator[OwnedRange]:
        for partition in self._partitions.values():
            yield from partition.owned_ranges

    def _place(self) -> None:
        """Set the reader's positions and the key range of each of its slots, in
        partitions that have changed.

        This moves the reader back for key ranges whose records were dropped, and which
        can take records again.
        """
        self._changed |= {
            owned.at for owned in self._owned_ranges() if owned.takes_again
        }
        if not self._changed:
            return
        changed = {
            at: self._partitions[at] for at in self._changed & self._partitions.keys()
        }
        for partition in changed.values():
            partition.go_back()
        positions = {
            at: Position(partition.at or 0)
            for at, partition in self._partitions.items()
        }
        if self._remade:
            # First without them: a partition whose position stays the same would go on
            # with what was fetched of it.
            kept = {at: positions[at] for at in positions if at not in self._remade}
            self._reader.assign(kept)
            self._remade.clear()
        self._reader.assign(positions)
        for at, partition in changed.items():
            self._reader.route(
                at, [owned.id.key_range for owned in partition.owned_ranges]
            )
            self._reader.hold(at, at in self._paused)
        self._changed.clear()


@dataclass(slots=True)
class Refetch:
    """A request to read records of a partition again.

    Shape: `offsets` ascend. `waiting` is the cache of the key range that needs them.
    """

    at: TopicPartition
    offsets: Sequence[int]
    waiting: RangeCache
    next: int = 0
    """The first offset that was not read yet."""
    found: list[Columns] = field(default_factory=list)

    @property
    def wanted(self) -> bool:
        """Whether the key range still waits for the answer. A seek or a rebalance
        cancels the request.
        """
        return self.waiting.asked is self.offsets


class ValueReader:
    """The reader of records whose values were not cached. It handles one request after
    the other. Belongs to one thread.

    Offsets that lie near each other are read in one go, together with the records
    between them. The reader seeks over gaps of more than `JUMP` offsets.

    Invariant: a request is answered once, with the records that the log still has;
    compaction may have removed some. An offset that retention has deleted raises the
    same error as on the first read.
    Turned down: sending the first reader back (it would read again for all key ranges
    of the partition).
    """

    def __init__(self, make_reader: Callable[[], Reader]) -> None:
        """Make no reader yet: the first request does."""
        self._make_reader = make_reader
        self._reader: Reader | None = None
        self._reading: tuple[TopicPartition, int] | None = None
        """The partition that the reader reads, and its next offset; None: none."""
        self._requests: deque[Refetch] = deque()

    def __bool__(self) -> bool:
        return bool(self._requests)

    def ask(self, request: Refetch) -> None:
        """Add a request behind the earlier ones."""
        self._requests.append(request)

    def fetch(self, timeout_s: float) -> None:
        """Fetch once for the first request, if there is one. Block only while no record
        has arrived.

        Raises:
            OffsetOutOfRangeError: the log no longer has the offset.
        """
        while self._requests and not self._requests[0].wanted:
            self._requests.popleft()
        if self._requests:
            self._read(self._requests[0], timeout_s)
        elif self._reader is not None and self._reading is not None:
            self._reader.assign({})
            self._reading = None

    def close(self) -> None:
        """Drop all requests, and close the reader."""
        self._requests.clear()
        if self._reader is not None:
            self._reader.close()

    def _read(self, request: Refetch, timeout_s: float) -> None:
        self._reader = self._reader or self._make_reader()
        first, last = span(request.offsets, request.next)
        if (
            self._reading is None
            or self._reading[0] != request.at
            or not 0 <= first - self._reading[1] <= JUMP
        ):
            self._reader.assign({request.at: Position(first)})
            self._reading = request.at, first
        try:
            # Read no record beyond `last`: the next request may continue from there.
            batches = self._reader.fetch(last + 1 - self._reading[1], timeout_s)
        except LogError:
            self._reading = None
            raise
        for batch in batches:
            self._reading = request.at, batch.next_offset
            request.next = batch.next_offset
            request.found.append(
                batch.columns.pick(_indexes(batch.columns.offsets, request.offsets))
            )
        if request.next > request.offsets[-1]:
            self._requests.popleft()
            request.waiting.fill(joined(request.found))


def span(offsets: Sequence[int], start: int) -> tuple[int, int]:
    """Return the first and the last of the offsets, from `start` on, that are read
    without a seek.
    """
    first = bisect_left(offsets, start)
    last = first
    while last + 1 < len(offsets) and offsets[last + 1] - offsets[last] <= JUMP:
        last += 1
    return offsets[first], offsets[last]


def _indexes(offsets: Sequence[int], wanted: Sequence[int]) -> list[int]:
    found = []
    for i, offset in enumerate(offsets):
        at = bisect_left(wanted, offset)
        if at < len(wanted) and wanted[at] == offset:
            found.append(i)
    return found
