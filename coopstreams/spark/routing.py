"""Routes the history of a topic's partition to its tasks: timestamps, stream time,
operator times, key ranges.

A Spark partition holds the records of one topic partition in offset order.
`make_batches`, which both readers of a log use, does the rest, so the rules of a live
run and of a backfill are the same.

Invariant: within a source, the order by time and then offset is the order by offset. So
a task's rows, sorted by (time, source, offset), where time is stream time, have the
order in which `SourceQueues` takes records if all are present. For placed topics, see
`rounds`.
Relies on: `history/arrow_rows.py` (ROUTED), `committed_records` (`Cut`), `log/batches.py`.
"""

from __future__ import annotations

from collections.abc import (
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from coopstreams.commit.record import Segment
from coopstreams.log.batches import Routes, make_batches
from coopstreams.log.log import NO_STREAM_TIME
from coopstreams.log.time_marks import marks_in
from coopstreams.spark.committed_records import ALL, Cut, Now
from coopstreams.spark.history.arrow_rows import (
    END,
    ROUTED,
    batch,
    columns_of,
    lists_column,
    record_columns,
)
from coopstreams.spark.rounds import round_of
from coopstreams.spark.workers.stage_progress import Reporter
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import KeyRange


@dataclass(frozen=True, slots=True)
class Routing:
    """Turns the records of a topic into rows of a sub-topology's tasks: takes HISTORY
    batches, yields ROUTED batches.

    Shape: task = partition * ranges + number of the range. `source` is the index of the
    topic within the sub-topology. `numbered`: whether the offsets are those of the
    topic; otherwise records are numbered in the order in which they come.
    """

    topology: Topology
    subtopology: int
    topic: str
    ranges: int
    numbered: bool = True
    cut: Mapping[int, tuple[int, int]] | None = None
    """By partition the offsets [start, end), if known."""
    reports: str | None = None
    """The folder for progress reports; None: no reports."""
    round: int = 1
    committed: Mapping[int, tuple[Segment, ...]] | None = None
    """By partition the committed segments, which also decide at what time a task ends;
    None: all records count.
    """
    may_drop: bool = True
    """Whether a record that fails may be dropped, so that later records are processed.
    If not, fewer functions are called here.
    """

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the tasks; at each time mark and at the end, also a row for
        each task with the time that it has reached.
        """
        filled = (rows for rows in batches if rows.num_rows)
        first = next(filled, None)
        if first is None:
            return
        routed = _RoutedPartition(self, _only_partition(first))
        for rows in chain([first], filled):
            yield from routed.take(rows)
        yield routed.finish()


class _RoutedPartition:
    """Makes the rows of a partition's tasks, and keeps the times that the partition has
    reached.
    """

    def __init__(self, routing: Routing, partition: TopicPartition) -> None:
        topic = routing.topic
        round_ = round_of(routing.topology, routing.subtopology, routing.round)
        program = compile_subtopology(routing.topology, round_.part)
        self._partition = partition
        self._numbered = routing.numbered
        self._source = program.subtopology.topics.index(topic)
        self._first_task = partition.partition * routing.ranges
        self._is_placed = topic in round_.placed or topic in program.timed_sources
        self._stream_time = NO_STREAM_TIME
        self._next_offset = 0
        committed = routing.committed
        self._cut = Cut(
            KeyRange.split(routing.ranges),
            ALL if committed is None else committed[partition.partition],
        )
        key_ranges = [each.key_range for each in self._cut.segment_ranges]
        operator_times = None
        told = program.told_times or len(key_ranges) > 1
        if told and topic not in program.timed_sources:  # the task has the clock
            operator_times = program.operator_times_of(topic, may_drop=routing.may_drop)
        self._routes = Routes(
            key_ranges,
            program.timestamp_of.get(topic),
            operator_times,
            time_marks=topic in program.idle_ms,
        )
        name = str(partition)
        bounds = None if routing.cut is None else routing.cut[partition.partition]
        self._reporter = Reporter(routing.reports, "history", name, name, [bounds])

    def take(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the tasks for the next records of the partition."""
        if (at := _only_partition(rows)) != self._partition:
            raise ValueError(
                f"a Spark partition holds records of {self._partition} and of {at}: it must have one topic partition"
            )
        offsets = self._offsets(rows)
        # Placed records have their time in the offset column; those of timed topics
        # their birth.
        places = None
        if self._is_placed:
            times = rows.column("offset").to_pylist()
            places = dict(zip(offsets, times, strict=True))
        columns = columns_of(rows, offsets)
        marks = set[int]()
        if self._routes.time_marks:
            marks = {at + 1 for at, _ in marks_in(columns)}
        for start, end in self._cut.spans(offsets, marks):
            last = offsets[end - 1]
            runs = make_batches(
                self._partition,
                columns.slice(start, end),
                self._routes,
                self._stream_time,
                last + 1,
                at_end=False,
            )
            self._stream_time = runs[0].stream_time
            time = self._stream_time if places is None else places[last]
            now = Now(time, self._stream_time, self._routes.now)
            going_on = self._cut.tell(last, now)
            for run in runs:
                # Only now: what is not committed has advanced the time, too.
                counted = self._cut.committed(run.slot, run.columns)
                if len(counted):
                    slot = self._cut.segment_ranges[run.slot].slot
                    yield self._records(slot, counted, places)
            if end in marks:
                yield self._times([(slot, now) for slot in going_on], last)
        self._reporter.took(0, rows.num_rows, self._next_offset)

    def finish(self) -> pa.RecordBatch:
        """Return a row for each task with the time that it has reached at the end."""
        self._reporter.end()
        ends = [
            (slot, now) for slot, now in enumerate(self._cut.ends) if now is not None
        ]
        return self._times(ends, END)

    def _offsets(self, rows: pa.RecordBatch) -> Sequence[int]:
        """Return the offsets of records: those of the topic, or numbers in the order in
        which records come.
        """
        offsets: Sequence[int] = range(
            self._next_offset,
            self._next_offset + rows.num_rows,
        )
        if self._numbered:
            offsets = rows.column("offset").to_pylist()
        if offsets[0] < self._next_offset:
            raise ValueError(
                f"{self._partition}: offset {offsets[0]} comes after {self._next_offset - 1}; a source must give a "
                "partition in offset order"
            )
        self._next_offset = offsets[-1] + 1
        return offsets

    def _records(
        self,
        slot: int,
        columns: Columns,
        places: Mapping[int, int] | None,
    ) -> pa.RecordBatch:
        """Return records of a task as ROUTED rows. `slot`: the number of its key range;
        `places`: the time of each offset, if it is not the stream time.
        """
        count = len(columns)
        told = (
            [list(row) for row in zip(*columns.operator_times, strict=True)]
            if columns.operator_times
            else None
        )
        operator_times = lists_column(told, count, ROUTED.field("operator_times").type)
        times = (
            columns.stream_times
            if places is None
            else [places[offset] for offset in columns.offsets]
        )
        return batch(
            ROUTED,
            [
                [self._first_task + slot] * count,
                [self._source] * count,
                times,
                columns.stream_times,
                columns.offsets,
                *record_columns(columns, null_headers=False),
                operator_times,
            ],
        )

    def _times(self, reached: Sequence[tuple[int, Now]], offset: int) -> pa.RecordBatch:
        """Return rows with the times that the partition has reached at an offset, for
        the tasks of these slots.
        """
        told = [(self._first_task + slot, *now) for slot, now in reached]
        count = len(told)
        nothing = [pa.nulls(count, field.type) for field in list(ROUTED)[5:-1]]
        tasks, times, stream_times, operator_times = (
            [list(column) for column in zip(*told, strict=True)]
            if told
            else [[], [], [], []]
        )
        return batch(
            ROUTED,
            [
                tasks,
                [self._source] * count,
                times,
                stream_times,
                [offset] * count,
                *nothing,
                operator_times,
            ],
        )


def _only_partition(rows: pa.RecordBatch) -> TopicPartition:
    """Return the topic partition that all these rows are of.

    Raises:
        ValueError: they are of several.
    """
    topics = rows.column("topic").unique()
    partitions = rows.column("partition").unique()
    if len(topics) != 1 or len(partitions) != 1:
        raise ValueError(
            f"a Spark partition holds records of {topics.to_pylist()}, {partitions.to_pylist()}: it must have one "
            "topic partition"
        )
    return TopicPartition(topics[0].as_py(), partitions[0].as_py())
