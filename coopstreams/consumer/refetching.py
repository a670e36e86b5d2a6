"""A second reader that reads records again whose values were not cached, one request
after the other.

    a key range wants the values at some offsets -> `ask` -> the reader seeks and reads
    -> `fetch` fills the records in

Offsets that lie near each other are read in one go, together with what lies between
them; the reader seeks over gaps of more than `JUMP` offsets.

Invariant: a request is answered once, with the records that the log still has;
compaction may have removed some. An offset that retention has deleted raises the same
error as on the first read. Turned down: sending the first reader back (it would read
again for all key ranges of the partition).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coopstreams.consumer.waiting import WaitingRecords
from coopstreams.log.log import Position, Reader
from coopstreams.topology.columns import Columns, TopicPartition, joined
from coopstreams.topology.errors import LogError

JUMP = 5000
"""Reading this many records takes about as long as seeking: a few milliseconds."""


@dataclass(slots=True)
class Refetch:
    """A request to read records of a partition again.

    Shape: `offsets` ascend; `waiting` is the queue of the key range that needs them.
    """

    at: TopicPartition
    offsets: Sequence[int]
    waiting: WaitingRecords
    next: int = 0
    """The first offset that was not read yet."""
    found: list[Columns] = field(default_factory=list)

    @property
    def wanted(self) -> bool:
        """Whether the key range still waits for it; a seek or a rebalance cancels it."""
        return self.waiting.asked is self.offsets


class Refetching:
    """Reads records again by offset. Belongs to one thread."""

    def __init__(self, make_reader: Callable[[], Reader]) -> None:
        """Make no reader yet: the first request does."""
        self._make_reader = make_reader
        self._reader: Reader | None = None
        self._reading: tuple[TopicPartition, int] | None = None
        """The partition that the reader reads, and its next offset."""
        self._requests: deque[Refetch] = deque()

    def __bool__(self) -> bool:
        return bool(self._requests)

    def ask(self, request: Refetch) -> None:
        """Add a request behind the earlier ones."""
        self._requests.append(request)

    def fetch(self, timeout_s: float) -> None:
        """Fetch once, for the first request; block only while no record has arrived.
        Without requests, fetch nothing.

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
        """Stop reading for good."""
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
    """Return the first and last of the offsets, from `start` on, that are read in one
    go.
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
