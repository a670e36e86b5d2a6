"""The order in which a task takes records of several source partitions: by stream time, as soon as it is known.

A join needs the table's records before later records of the stream. Each source partition has a queue; the one whose
head has the smallest *stream time* goes next. Stream time (the running maximum over all records of the partition),
unlike the record's own timestamp, never goes back and is the same for all key ranges: so the order, and with it the
result, does not depend on the number of ranges.

Invariant: while a source's queue is empty, records of the others pass only up to the stream time that source has
reached. The wait ends when the source was read to its end (the broker has no more records) and the time for its
producers (`max.task.idle.ms`) is over. The stream times that siblings' records have reached wait their turn as well,
behind a batch's own records. Applied at once, the time that one fetch brought would close windows, and expire join
buffers, before records of the other sources that wait here.
Source: KIP-353, KIP-695 (`max.task.idle.ms`: 0 waits for records that the broker has, more for producers as well, -1
for nothing).
Turned down: the head's own timestamp (a late record of another key would change the order).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from coopstreams.log.log import Position, RecordBatch
from coopstreams.topology.columns import Columns, TopicPartition

STEP_S = 0.05
"""How long a step works before its thread checks the clock: far below a commit interval, far above the check's cost."""
MOST_AT_ONCE = 2000
"""The most records of a step: few enough that their outputs are still in the processor's cache when they are written.

Without such a bound, a record of the stateless benchmark cost a seventh more than with 1000 (measured).
"""
FIRST_STEP = 1
"""Records of the first step, before the functions' speed is known; doubled while a step fits into the time."""


@dataclass(slots=True)
class _Batch:
    """Records that wait; the position, stream time and operator times that hold once they are processed."""

    columns: Columns
    next_offset: int
    stream_time: int
    operator_times: Sequence[int]
    begun: int = 0
    """How many of the records were yielded. The rest is not copied for each step: there are many in a batch."""

    def __len__(self) -> int:
        return len(self.columns) - self.begun

    @property
    def first_time(self) -> int:
        """The stream time at the batch's first record; without records, that of the batch."""
        return self.columns.stream_times[self.begun] if len(self) else self.stream_time

    def take(self, count: int) -> Columns:
        """Return the next records."""
        begun, self.begun = self.begun, self.begun + count
        return self.columns if count == len(self.columns) else self.columns.slice(begun, self.begun)


@dataclass(slots=True)
class _Source:
    received: int
    """Next offset to take in; records below it were taken in before the reader went back for a sibling."""
    stream_time: int
    at_end: bool = False
    waiting: deque[_Batch] = field(default_factory=deque)
    records: int = 0
    waited_for_until: float | None = None
    """The end of the wait for the source's producers, while the queue is empty and the source read to its end (s)."""


@dataclass(frozen=True, slots=True)
class Step:
    """Records to process now, and the position and stream time of the source once they are done.

    Invariant: the stream time is that of all records below the position. Records of siblings may lie between two of
    this task: a position behind them would skip their time, if another owner goes on there.
    """

    source: TopicPartition
    columns: Columns
    next_offset: int
    stream_time: int
    operator_times: Sequence[int] = ()

    def singles(self) -> Iterator[Step]:
        """Yield the step record by record."""
        last = len(self.columns) - 1
        for i in range(last):
            yield self.part(i, i + 1)
        yield self.part(max(last, 0), last + 1)

    def part(self, start: int, stop: int) -> Step:
        """Return the records start..stop; stream time and operator times of siblings come with the last."""
        columns = self.columns
        if stop == len(columns):
            times = self.next_offset, self.stream_time, self.operator_times
            return self if not start else Step(self.source, columns.slice(start, stop), *times)
        return Step(
            self.source, columns.slice(start, stop), columns.offsets[stop - 1] + 1, columns.stream_times[stop - 1]
        )


class SourceQueues:
    """The queues of one task.

    Shape: sources in the order of the topology, tables first where the topology has them first: it breaks ties.
    """

    def __init__(self, positions: Sequence[tuple[TopicPartition, Position]], max_idle_ms: int = 0) -> None:
        self.waits_until: float | None = None
        """The time at which `steps` may yield more without further records; None: never. Units: seconds."""
        self._idle_s = None if max_idle_ms < 0 else max_idle_ms / 1000
        self._sources = {source: _Source(at.offset, at.stream_time) for source, at in positions}
        self._single = len(self._sources) == 1

    def received(self, source: TopicPartition) -> int:
        """Return the next offset that this task needs of a source."""
        return self._sources[source].received

    def waiting(self, source: TopicPartition) -> int:
        """Return how many records of a source were taken in and not yet yielded."""
        return self._sources[source].records

    def add(self, batch: RecordBatch) -> None:
        """Take in a batch of the reader, less the records taken in before the reader went back.

        An empty batch that reports the end of the log again is kept: operators that wait for stream time may be due by
        now although it has not advanced.
        """
        source, columns = self._sources[batch.partition], batch.columns
        source.at_end = batch.at_end
        if batch.next_offset < source.received or (batch.next_offset == source.received and not batch.at_end):
            return
        if len(columns) and columns.offsets[0] < source.received:
            columns = columns.slice(bisect_left(columns.offsets, source.received), len(columns))
        source.received = batch.next_offset
        source.records += len(columns)
        if len(columns):
            source.waited_for_until = None
        operator_times = batch.operator_times
        if source.waiting and not len(columns) and not len(source.waiting[-1]):
            # Replace the last empty batch: a source that waits for long while its siblings' records come would keep one
            # for each fetch.
            before = source.waiting.pop()
            operator_times = operator_times or before.operator_times
        source.waiting.append(_Batch(columns, batch.next_offset, batch.stream_time, operator_times))

    def steps(self, most: int, now: float) -> Iterator[Step]:
        """Yield the steps that may be processed now, in order, of at most `most` records each.

        Records that must wait for another source stay. Units: `now` in seconds of a monotonic clock.
        """
        if self._single:
            for name, source in self._sources.items():
                while source.waiting:
                    yield self._take(name, source, None, most, ties=False)
            return
        while (step := self._next(most, now)) is not None:
            yield step

    def _next(self, most: int, now: float) -> Step | None:
        """Return the next step of the source with the smallest head, up to the head of the next source."""
        self.waits_until = None
        best: tuple[int, int] | None = None
        limit, limit_order = None, -1
        for order, source in enumerate(self._sources.values()):
            head = self._head(source, now)
            if head is None:
                continue
            if best is None or head < best[0]:
                if best is not None:
                    limit, limit_order = best
                best = (head, order)
            elif limit is None or head < limit:
                limit, limit_order = head, order
        if best is None:
            return None
        name, chosen = list(self._sources.items())[best[1]]
        if not chosen.waiting:
            if any(source.waiting for source in self._sources.values()):
                self.waits_until = (
                    chosen.waited_for_until if chosen.at_end else None
                )  # with records left in the log, it waits for these
            return None
        return self._take(name, chosen, limit, most, ties=best[1] < limit_order)

    def _head(self, source: _Source, now: float) -> int | None:
        """Return the stream time at a source's head, or the reached one while it is waited for; None: neither."""
        while source.waiting and not len(source.waiting[0]) and len(source.waiting) > 1:
            source.stream_time = source.waiting.popleft().stream_time
        if source.waiting:
            return source.waiting[0].first_time
        if self._idle_s is None:
            return None
        if not source.at_end:
            return source.stream_time
        if source.waited_for_until is None:
            source.waited_for_until = now + self._idle_s
        return source.stream_time if now < source.waited_for_until else None

    @staticmethod
    def _take(name: TopicPartition, source: _Source, limit: int | None, most: int, ties: bool) -> Step:
        batch = source.waiting[0]
        count = len(batch)
        if limit is not None and count:
            cut = bisect_right if ties else bisect_left
            count = max(1, cut(batch.columns.stream_times, limit, batch.begun) - batch.begun)
        count = min(count, most)
        source.records -= count
        if not count or (count == len(batch) and (limit is None or batch.stream_time < limit + ties)):
            source.waiting.popleft()
            source.stream_time = batch.stream_time
            return Step(name, batch.take(count), batch.next_offset, batch.stream_time, batch.operator_times)
        # The rest may have no records, only the stream time that siblings' records have reached: it waits as well.
        taken = batch.take(count)
        source.stream_time = taken.stream_times[-1]
        return Step(name, taken, taken.offsets[-1] + 1, source.stream_time)


class Pace:
    """How many records the next step takes: as many as fit into the time, no more than `MOST_AT_ONCE`."""

    def __init__(self, within_s: float = STEP_S) -> None:
        self.most = FIRST_STEP
        self._within_s = within_s

    def took(self, records: int, seconds: float) -> None:
        """Adjust the size to the duration of a step."""
        if seconds > self._within_s:
            self.most = max(1, int(records * self._within_s / seconds))
        elif records >= self.most:
            self.most = min(2 * self.most, MOST_AT_ONCE)
