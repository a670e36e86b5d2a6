"""The order in which a task takes records of several source partitions: by their
timestamps, as they come.

A join needs the table's records before later records of the stream. Each source
partition has a queue; the queue with the earliest *head time* goes next. The head time
is the timestamp of the record in front. But if that record, or a record of another key
range before it, has advanced the partition's stream time, the head time is that stream
time. A task of a whole partition takes records as a task of Kafka Streams does, which
compares the timestamps of the records in front.

    range 1      2   3               8           the head times of range 2 are 9 (8 was passed), 4, 10:
    range 2              9   4           10      9 waits until the other sources are there, and 4 comes with it

While each source has records that wait, this is the order of stream time. It is the
same for all key ranges, so the result does not depend on their number. After a source
was read to its end, its next records are compared by their own timestamps again: a
record that is far ahead of time holds up nothing once it was taken.

Where sources take turns, a step has a record or two. A run is some steps, after which a
task does once what it need not do after each of them: with steps alone, a join of two
streams cost 8 us more a record of 24 (measured).

Invariant: while a source's queue is empty, no record of the others passes. The wait
ends when the source was read to its end (the broker has no more records) and the time
for its producers (`max.task.idle.ms`) is over. While the reader holds the source,
because a sibling has too many of its records, records of the other sources pass up to
the stream time that the held source has reached: the sibling may wait for them. A
stream time that siblings' records have reached is applied only behind the batch's own
records. Applied at once, it would close windows, and expire join buffers, before
records of the other sources that wait here.
Source: KIP-353, KIP-695 (`max.task.idle.ms`: 0 waits for records that the broker has,
more for producers as well, -1 for nothing); Kafka Streams `PartitionGroup`. Turned
down: stream time alone (after one record far ahead, a partition's records wait for that
time: in a backlog they are joined with much later ones), timestamps alone (a record of
another range would change the order).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

from coopstreams.commit.record import Ahead
from coopstreams.log.log import NO_STREAM_TIME, Position, RecordBatch
from coopstreams.topology.columns import Columns, TopicPartition

STEP_S = 0.05
"""How long a step works before its thread checks the clock. It is far below a commit
interval, and far above the cost of the check.
"""
MOST_AT_ONCE = 2000
"""The most records of a step: few enough that their outputs are still in the
processor's cache when they are written.

Without this limit, a record of the stateless benchmark cost a seventh more than with a
limit of 1000 (measured).
"""
FIRST_STEP = 1
"""The records of the first step, before the functions' speed is known. The number is
doubled while a step fits into its time.
"""
_AWAITED = -(1 << 63)
"""The head time of an empty source whose next record is waited for, whatever its
timestamp will be.
"""


@dataclass(slots=True)
class _Batch:
    """A batch of queued records, with the position, stream time and operator times that
    hold once the batch is processed.
    """

    columns: Columns
    next_offset: int
    stream_time: int
    operator_times: Sequence[int]
    left: int
    """The number of records not yet yielded."""
    begun: int = 0
    """The number of records already yielded. The rest is not copied for each step: a
    batch has many.
    """
    head_times: Sequence[int] | None = None
    """The head times of the records behind the first; None: not computed yet."""

    def first_time(self, reached: int) -> int:
        """Return the head time of the batch in a source of stream time `reached`;
        without records, the stream time of the batch.
        """
        if not self.left:
            return self.stream_time if self.stream_time > reached else NO_STREAM_TIME
        now = self.columns.stream_times[self.begun]
        return now if now > reached else self.columns.timestamps[self.begun]

    def count_before(self, time: int, most: int) -> int:
        """Return how many records have a head time before `time`, that of another
        source. The first record is always counted.
        """
        if self.head_times is None:
            self.head_times = _head_times(self.columns)
        times = self.head_times
        behind = self.begun + 1
        if behind < len(times) and times[behind] >= time:
            return 1  # sources that take turns: no search
        if times is self.columns.stream_times:
            return bisect_left(times, time, behind) - self.begun
        last = min(self.begun + most, len(times))
        return (
            next((at for at in range(behind, last) if times[at] >= time), last)
            - self.begun
        )

    def take(self, count: int) -> Columns:
        """Return the next `count` records, and count them as yielded."""
        begun = self.begun
        self.begun = self.begun + count
        self.left -= count
        return (
            self.columns
            if not (begun or self.left)
            else self.columns.slice(begun, self.begun)
        )


@dataclass(slots=True)
class _Source:
    """The queue of one source partition of a task. `waiting`: its batches; `records`:
    the number of records in them. `at_end`: whether the reader was at the end of the
    partition with the last batch.
    """

    received: int
    """The next offset to take in. Records below it were taken in before the reader went
    back for a sibling.
    """
    stream_time: int
    at_end: bool = False
    waiting: deque[_Batch] = field(default_factory=deque)
    records: int = 0
    waited_for_until: float | None = None
    """The end of the wait for the source's producers, while the queue is empty and the
    source was read to its end. Units: seconds.
    """
    held: bool = False
    """Whether the reader holds the source: it does not read the partition."""


@dataclass(slots=True)
class Step:
    """Records to process now, with the position and stream time of the source once they
    are processed.

    Invariant: the stream time is that of all records below the position. Records of
    siblings may lie between two records of this task; a position behind those records
    would skip their time, if another owner goes on there.
    """

    source: TopicPartition
    columns: Columns
    next_offset: int
    stream_time: int
    operator_times: Sequence[int] = ()
    ahead: Ahead | None = None
    """What is done in the order of births once the step is processed; None: all below
    the position is done.
    """

    def singles(self) -> Iterator[Step]:
        """Yield the step as steps of one record each."""
        last = len(self.columns) - 1
        for i in range(last):
            yield self.part(i, i + 1)
        yield self.part(max(last, 0), last + 1)

    def part(self, start: int, stop: int) -> Step:
        """Return the records [start, stop) as a step. Stream time and operator times of
        siblings' records come with the last part.
        """
        columns = self.columns
        if not start and stop == len(columns):
            return self
        part = columns.slice(start, stop)
        if stop == len(columns):
            return replace(self, columns=part)
        next_offset = columns.offsets[stop - 1] + 1
        reached = columns.stream_times[stop - 1]
        if self.ahead is None:
            return Step(self.source, part, next_offset, reached)
        ahead = Ahead(self.ahead.read_to, reached, next_offset)
        return replace(
            self, columns=part, stream_time=reached, operator_times=(), ahead=ahead
        )


class Steps(Protocol):
    """What gives steps: `SourceQueues`, `birth_order.BirthOrder`."""

    def next(self, most: int, now: float, /) -> Step | None:
        """Return the first step, of at most `most` records; None: there is none."""


def next_run(queues: Steps, most: int, now: float) -> list[Step]:
    """Return the next steps, of at most `most` records together. Empty: there is none.

    A step without records counts as one: who asks for one record gets one step.
    """
    run: list[Step] = []
    room = most
    while room > 0 and (step := queues.next(room, now)) is not None:
        run.append(step)
        room -= max(1, len(step.columns))
    return run


class SourceQueues:
    """The queues of one task.

    Shape: sources are in the order of the topology, tables first where the topology has
    them first. This order breaks ties.
    """

    def __init__(
        self,
        positions: Sequence[tuple[TopicPartition, Position]],
        max_idle_ms: int = 0,
    ) -> None:
        self.waits_until: float | None = None
        """The time at which `next` may return more without further records; None:
        never. Units: seconds.
        """
        self._idle_s = None if max_idle_ms < 0 else max_idle_ms / 1000
        self._sources = {
            source: _Source(at.offset, at.stream_time) for source, at in positions
        }
        self._in_order = list(self._sources.items())

    def received(self, source: TopicPartition) -> int:
        """Return the next offset of a source that was not taken in."""
        return self._sources[source].received

    def waiting(self, source: TopicPartition) -> int:
        """Return how many records of a source were taken in and not yet yielded."""
        return self._sources[source].records

    def hold(self, source: TopicPartition, held: bool) -> None:
        """Note whether the reader holds a source. Called by the control thread: it sets
        one flag.
        """
        self._sources[source].held = held

    def add(self, batch: RecordBatch) -> None:
        """Queue a batch of the reader, without records that were taken in before the
        reader went back.

        An empty batch that reports the end of the log again is kept: operators that
        wait for stream time may be due by now although it has not advanced.
        """
        source = self._sources[batch.partition]
        columns = batch.columns
        source.at_end = batch.at_end
        if batch.next_offset < source.received or (
            batch.next_offset == source.received and not batch.at_end
        ):
            return
        if len(columns) and columns.offsets[0] < source.received:
            columns = columns.slice(
                bisect_left(columns.offsets, source.received),
                len(columns),
            )
        source.received = batch.next_offset
        source.records += len(columns)
        if len(columns):
            source.waited_for_until = None
        operator_times = batch.operator_times
        if source.waiting and not len(columns) and not source.waiting[-1].left:
            # Replace the last empty batch: a source that waits for long while its
            # siblings' records come would keep one for each fetch.
            before = source.waiting.pop()
            operator_times = operator_times or before.operator_times
        source.waiting.append(
            _Batch(
                columns,
                batch.next_offset,
                batch.stream_time,
                operator_times,
                len(columns),
            )
        )

    def pass_by(
        self,
        partition: TopicPartition,
        next_offset: int,
        stream_time: int,
    ) -> None:
        """Note that the source was read and processed up to this position, its end,
        without the queue.

        No record may be queued.
        """
        source = self._sources[partition]
        assert not source.records
        source.waiting.clear()
        source.received = next_offset
        source.stream_time = stream_time
        source.at_end = True

    def next(self, most: int, now: float) -> Step | None:
        """Return the records that may be processed now, in order, at most `most` of one
        source; None: there are none. Records that must wait for another source stay
        queued.

        Units: `now` in seconds of a monotonic clock.
        """
        if len(self._in_order) > 1:
            return self._next(most, now)
        name, source = self._in_order[0]
        return (
            self._take(name, source, None, most, ties=False) if source.waiting else None
        )

    def _next(self, most: int, now: float) -> Step | None:
        """Return a step of the source with the earliest head time, up to the head time
        of the next source. None: no source has records to process now.
        """
        self.waits_until = None
        first: int | None = None
        limit: int | None = None
        best = limit_order = -1
        order = -1
        for _, source in self._in_order:
            order += 1
            waiting = source.waiting
            head = (
                waiting[0].first_time(source.stream_time)
                if waiting and waiting[0].left  # the usual case, without a call
                else self._head(source, now)
            )
            if head is None:
                continue
            if first is None or head < first:
                limit = first
                limit_order = best
                first = head
                best = order
            elif limit is None or head < limit:
                limit = head
                limit_order = order
        if first is None:
            return None
        name, chosen = self._in_order[best]
        if not chosen.waiting:
            if chosen.at_end and any(
                source.waiting for source in self._sources.values()
            ):
                self.waits_until = (
                    chosen.waited_for_until
                )  # with records left in the log, it waits for these
            return None
        return self._take(name, chosen, limit, most, ties=best < limit_order)

    def _head(self, source: _Source, now: float) -> int | None:
        """Return the head time of a source. For an empty source, return the time up to
        which other sources may pass; None: it is not waited for.
        """
        waiting = source.waiting
        while waiting:
            if waiting[0].left or len(waiting) == 1:
                return waiting[0].first_time(source.stream_time)
            waiting.popleft()
        if self._idle_s is None:
            return None
        if not source.at_end:
            return source.stream_time if source.held else _AWAITED
        if source.waited_for_until is None:
            source.waited_for_until = now + self._idle_s
        return _AWAITED if now < source.waited_for_until else None

    @staticmethod
    def _take(
        name: TopicPartition,
        source: _Source,
        limit: int | None,
        most: int,
        ties: bool,
    ) -> Step:
        """Take up to `most` records from the front batch of a source, and return them
        as a step.

        `limit`: the time of the next record of another source, up to which records are
        taken: also those at that very time where `ties`. None: there is no other.
        A batch that is taken to its end gives the step its position and its times.
        """
        batch = source.waiting[0]
        count = min(batch.left, most)
        if limit is not None and count:
            count = min(count, batch.count_before(limit + ties, most))
        source.records -= count
        taken = batch.take(count)
        reached = taken.stream_times[-1] if count else source.stream_time
        # The rest may have no records, only the stream time that siblings' records have
        # reached: it waits as well.
        waits = (
            limit is not None
            and batch.stream_time > reached
            and batch.stream_time >= limit + ties
        )
        if not count or not (batch.left or waits):
            source.waiting.popleft()
            source.stream_time = batch.stream_time
            return Step(
                name,
                taken,
                batch.next_offset,
                batch.stream_time,
                batch.operator_times,
            )
        source.stream_time = reached
        return Step(name, taken, taken.offsets[-1] + 1, reached)


def _head_times(columns: Columns) -> Sequence[int]:
    """Return the head times of records. That of the first is not valid: it depends on
    the records before.
    """
    times = columns.timestamps
    reached = columns.stream_times
    if times is reached or times == reached:
        return reached
    later = (
        now if now > before else time
        for time, (before, now) in zip(times[1:], pairwise(reached), strict=True)
    )
    return [times[0], *later]


class Pace:
    """The size of the next step: as many records as fit into a time, and no more than
    `MOST_AT_ONCE`.
    """

    def __init__(self, within_s: float = STEP_S) -> None:
        self.most = FIRST_STEP
        self._within_s = within_s

    def took(self, records: int, seconds: float) -> None:
        """Adjust the size to the duration of a step."""
        if seconds > self._within_s:
            self.most = max(1, int(records * self._within_s / seconds))
        elif records >= self.most:
            self.most = min(2 * self.most, MOST_AT_ONCE)
