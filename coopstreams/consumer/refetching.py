"""Values that were not kept are read again, when their records can be handed out: a second reader, one request after
the other.

    a key range wants the values at some offsets -> `ask` -> the reader goes there and reads -> `fetch` returns what the
    log has at them

Offsets that lie near each other are read in one go, together with what lies between them; the reader jumps over more
than `JUMP` offsets.

Invariant: a request is answered once, with what the log has: fewer records where compaction has removed some. What
retention has deleted is the error that reading it the first time would have been.
Turned down: sending the first reader back (it has gone on for the other key ranges of the partition, and would read for
all of them again).
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
"""Reading so many records takes as long as going elsewhere, about: a few milliseconds."""


@dataclass(slots=True)
class Refetch:
    """Records to read again. Shape: `offsets` ascend, and are what `waiting` has asked for."""

    at: TopicPartition
    offsets: Sequence[int]
    waiting: WaitingRecords
    next: int = 0
    """The first offset that was not looked at."""
    found: list[Columns] = field(default_factory=list)

    @property
    def wanted(self) -> bool:
        """Whether it is still waited for: a seek or a rebalance may have ended that."""
        return self.waiting.asked is self.offsets


class Refetching:
    """Reads records again by offset. One thread."""

    def __init__(self, make_reader: Callable[[], Reader]) -> None:
        """Make no reader before there is something to read."""
        self._make_reader = make_reader
        self._reader: Reader | None = None
        self._reading: tuple[TopicPartition, int] | None = None
        """What the reader reads, and where it stands."""
        self._requests: deque[Refetch] = deque()

    def __bool__(self) -> bool:
        return bool(self._requests)

    def ask(self, request: Refetch) -> None:
        """Read this when all that was asked for before is read."""
        self._requests.append(request)

    def fetch(self, timeout_s: float) -> None:
        """Fetch once, for the first request; wait only for the first record. Without requests, fetch nothing ahead.

        Raises:
            OffsetOutOfRangeError: the log does not have the offset any more.
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
        if self._reading is None or self._reading[0] != request.at or not 0 <= first - self._reading[1] <= JUMP:
            self._reader.assign({request.at: Position(first)})
            self._reading = request.at, first
        try:
            # Not one record more than that: the next request goes on from there.
            batches = self._reader.fetch(last + 1 - self._reading[1], timeout_s)
        except LogError:
            self._reading = None
            raise
        for batch in batches:
            self._reading = request.at, batch.next_offset
            request.next = batch.next_offset
            request.found.append(batch.columns.pick(_indexes(batch.columns.offsets, request.offsets)))
        if request.next > request.offsets[-1]:
            self._requests.popleft()
            request.waiting.fill(joined(request.found))


def span(offsets: Sequence[int], start: int) -> tuple[int, int]:
    """Return the first and last of the offsets, from `start` on, that are read in one go."""
    first = bisect_left(offsets, start)
    last = first
    while last + 1 < len(offsets) and offsets[last + 1] - offsets[last] <= JUMP:
        last += 1
    return offsets[first], offsets[last]


def _indexes(offsets: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """The indices of those that are wanted."""
    found = []
    for i, offset in enumerate(offsets):
        at = bisect_left(wanted, offset)
        if at < len(wanted) and wanted[at] == offset:
            found.append(i)
    return found
