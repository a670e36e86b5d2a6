"""The order in which a task takes records of several source partitions: by stream time, as soon as it can be known.

A join needs its table's records before the stream's that came later. Each source partition has a queue; the one whose
head has the smallest *stream time* goes next. Stream time (the running maximum over all records of the partition) and
not the record's own timestamp, because it never goes back and does not depend on which key range one looks at: so the
order, and with it the result, is the same for every number of ranges.

Invariant: while a source's queue is empty, records of the others pass only up to the stream time that source has
reached, unless that source was read to its end (there is nothing on the broker to wait for) and has been there for as
long as producers are waited for. So do the times that siblings' records have reached: in its turn, behind a batch's own
records. Told at once, the time that one fetch brought would close windows, and forget what joins remember, for records
of the other sources that wait here.
Source: KIP-353, KIP-695 (`max.task.idle.ms`: 0 waits for what the broker has, more for producers as well, -1 for
nothing).
Turned down: the head's own timestamp (a late record of another key would change the order).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from coopstreams.log.log import Position, RecordBatch
from coopstreams.topology.columns import Columns, TopicPartition


@dataclass(slots=True)
class _Source:
    received: int
    """Next offset to take in; what lies below was taken before the reader went back for a sibling."""
    stream_time: int
    at_end: bool = False
    waiting: deque[tuple[Columns, int, int, Sequence[int]]] = field(default_factory=deque)
    """Batches with the position, stream time and operator times that hold once they are processed."""
    records: int = 0
    waited_for_until: float | None = None
    """While it has nothing and was read to its end: how long its producers may take. Units: seconds."""


@dataclass(frozen=True, slots=True)
class Step:
    """Records to process now, and where the source stands once they are done."""

    source: TopicPartition
    columns: Columns
    next_offset: int
    stream_time: int
    operator_times: Sequence[int] = ()

    def singles(self) -> Iterator[Step]:
        """Yield the step record by record. What others have done to stream time and operator times comes with the
        last.
        """
        columns, last = self.columns, len(self.columns) - 1
        for i in range(last):
            yield Step(self.source, columns.slice(i, i + 1), columns.offsets[i + 1], columns.stream_times[i])
        yield Step(
            self.source, columns.slice(max(last, 0), last + 1), self.next_offset, self.stream_time, self.operator_times
        )


class SourceQueues:
    """The queues of one task.

    Shape: sources in the order of the topology, tables first where the topology has them first: it breaks ties.
    """

    def __init__(self, positions: Sequence[tuple[TopicPartition, Position]], max_idle_ms: int = 0) -> None:
        self.waits_until: float | None = None
        """When `steps` may have more although nothing was added; None: it will not. Units: seconds."""
        self._idle_s = None if max_idle_ms < 0 else max_idle_ms / 1000
        self._sources = {source: _Source(at.offset, at.stream_time) for source, at in positions}
        self._single = len(self._sources) == 1

    def received(self, source: TopicPartition) -> int:
        """Return the next offset this task wants of a source."""
        return self._sources[source].received

    def waiting(self, source: TopicPartition) -> int:
        """Return how many records of a source were taken in but not handed out."""
        return self._sources[source].records

    def add(self, batch: RecordBatch) -> None:
        """Take in a batch of the reader, less what was taken in before the reader went back.

        One that says anew where the end is gets its turn: what waits for the time may be due by now although no time
        has passed.
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
        if source.waiting and not len(columns) and not len(source.waiting[-1][0]):
            # A source that waits for long while its siblings' records come would keep a batch of nothing for each
            # fetch.
            *_, operator_times = source.waiting.pop()
            source.waiting.append(
                (columns, batch.next_offset, batch.stream_time, batch.operator_times or operator_times)
            )
            return
        source.waiting.append((columns, batch.next_offset, batch.stream_time, batch.operator_times))

    def steps(self, most: int, now: float) -> Iterator[Step]:
        """Yield what may be processed now, in order, at most so many records in each step; what must wait for another
        source stays.

        Units: `now` in seconds of a clock that never goes back.
        """
        if self._single:
            for name, source in self._sources.items():
                while source.waiting:
                    yield self._take(name, source, None, most, ties=False)
            return
        while (step := self._next(most, now)) is not None:
            yield step

    def _next(self, most: int, now: float) -> Step | None:
        """The source with the smallest head, up to where another one has the word."""
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
                )  # what the log still has is no matter of time
            return None
        return self._take(name, chosen, limit, most, ties=best[1] < limit_order)

    def _head(self, source: _Source, now: float) -> int | None:
        """The stream time at which this source has the word; None: it has nothing, and nothing is to be waited for."""
        while source.waiting and not len(source.waiting[0][0]) and len(source.waiting) > 1:
            columns, _, stream_time, _ = source.waiting.popleft()
            source.stream_time = stream_time
        if source.waiting:
            columns, _, stream_time, _ = source.waiting[0]
            return columns.stream_times[0] if len(columns) else stream_time
        if self._idle_s is None:
            return None
        if not source.at_end:
            return source.stream_time
        if source.waited_for_until is None:
            source.waited_for_until = now + self._idle_s
        return source.stream_time if now < source.waited_for_until else None

    @staticmethod
    def _take(name: TopicPartition, source: _Source, limit: int | None, most: int, ties: bool) -> Step:
        columns, next_offset, stream_time, operator_times = source.waiting[0]
        count = len(columns)
        if limit is not None and count:
            cut = bisect_right if ties else bisect_left
            count = max(1, cut(columns.stream_times, limit))
        count = min(count, most)
        if not count or (count == len(columns) and (limit is None or stream_time < limit + ties)):
            source.waiting.popleft()
            source.records -= count
            source.stream_time = stream_time
            return Step(name, columns, next_offset, stream_time, operator_times)
        taken, rest = columns.slice(0, count), columns.slice(count, len(columns))
        # What is left may be no record, but the time that siblings' records have reached: it, too, waits for its turn.
        source.waiting[0] = (rest, next_offset, stream_time, operator_times)
        source.records -= count
        source.stream_time = taken.stream_times[-1]
        return Step(name, taken, rest.offsets[0] if len(rest) else taken.offsets[-1] + 1, source.stream_time)
