"""Routes the history of a topic's partition to its tasks: timestamps, stream time,
operator times, key ranges.

A Spark partition holds the records of one topic partition in offset order.
`make_batches`, which both readers of a log use, does the rest, so the rules of a live
run and of a backfill are the same.

Invariant: within a source, the order by time and then offset is the order by offset. So
sorting a task's rows by (time, source, offset), where time is stream time, is the order
in which `SourceQueues` takes records if all are present. For placed topics, see
`rounds`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from coopstreams.commit.record import Segment
from coopstreams.log.batches import Routes, make_batches
from coopstreams.log.log import NO_STREAM_TIME
from coopstreams.log.time_marks import marks_in
from coopstreams.spark.committed import ALL, Cut, Now
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
    """Cuts a topic of a sub-topology into the rows of its tasks: HISTORY batches in,
    ROUTED batches out.

    Shape: task = partition * ranges + number of the range. `source` is the index of the
    topic within the sub-topology.
    `numbered`: the offsets are those of the topic; else records are numbered in the
    order in which they come.
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
    """Whether a record that fails may be dropped, so that others go on; else fewer
    functions are called here.
    """

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the tasks, and for each task a row with its time at each
        time mark, and at the end.
        """
        round_ = round_of(self.topology, self.subtopology, self.round)
        program = compile_subtopology(self.topology, round_.part)
        source = program.subtopology.topics.index(self.topic)
        filled = (rows for rows in batches if rows.num_rows)
        first = next(filled, None)
        if first is None:
            return
        partition = _only_partition(first)
        stream_time = NO_STREAM_TIME
        next_offset = 0
        cut = Cut(
            KeyRange.split(self.ranges),
            ALL if self.committed is None else self.committed[partition.partition],
        )
        idle = bool(program.idle_ms)
        operator_times = (
            program.operator_times_of(self.topic, may_drop=self.may_drop)
            if idle or len(cut.segment_ranges) > 1
            else None
        )
        routes = Routes(
            [segment_range.key_range for segment_range in cut.segment_ranges],
            program.timestamp_of.get(self.topic),
            operator_times,
            time_marks=self.topic in program.idle_ms,
        )
        reporter = self._reporter(partition)
        for rows in chain([first], filled):
            if (at := _only_partition(rows)) != partition:
                raise ValueError(
                    f"a Spark partition holds records of {partition} and of {at}: it must have one topic partition"
                )
            offsets = (
                rows.column("offset").to_pylist()
                if self.numbered
                else range(next_offset, next_offset + rows.num_rows)
            )
            if offsets[0] < next_offset:
                raise ValueError(
                    f"{partition}: offset {offsets[0]} comes after {next_offset - 1}; a source must give a partition "
                    "in offset order"
                )
            next_offset = offsets[-1] + 1
            # Placed records have their time in the offset column.
            places = (
                dict(zip(offsets, rows.column("offset").to_pylist(), strict=True))
                if self.topic in round_.placed
                else None
            )
            columns = columns_of(rows, offsets)
            marks = (
                {at + 1 for at, _ in marks_in(columns)}
                if routes.time_marks
                else set[int]()
            )
            for start, end in cut.spans(offsets, marks):
                last = offsets[end - 1]
                span = columns.slice(start, end)
                batches = make_batches(
                    partition, span, routes, stream_time, last + 1, at_end=False
                )
                stream_time = batches[0].stream_time
                now = Now(
                    stream_time if places is None else places[last],
                    stream_time,
                    routes.now,
                )
                going_on = cut.tell(last, now)
                for fetched in batches:
                    counted = cut.committed(fetched.slot, fetched.columns)
                    if len(counted):
                        yield self._records(
                            source,
                            partition.partition * self.ranges
                            + cut.segment_ranges[fetched.slot].slot,
                            counted,
                            places,
                        )
                if end in marks:
                    yield self._times(
                        source,
                        partition.partition,
                        [(slot, now) for slot in going_on],
                        last,
                    )
            reporter.took(0, rows.num_rows, next_offset)
        reporter.end()
        ends = [(slot, now) for slot, now in enumerate(cut.ends) if now is not None]
        yield self._times(source, partition.partition, ends, END)

    def _reporter(self, at: TopicPartition) -> Reporter:
        return Reporter(
            self.reports,
            "history",
            str(at),
            str(at),
            [None if self.cut is None else self.cut[at.partition]],
        )

    def _records(
        self, source: int, task: int, columns: Columns, places: Mapping[int, int] | None
    ) -> pa.RecordBatch:
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
                [task] * count,
                [source] * count,
                times,
                columns.stream_times,
                columns.offsets,
                *record_columns(columns, null_headers=False),
                operator_times,
            ],
        )

    def _times(
        self,
        source: int,
        partition: int,
        reached: Sequence[tuple[int, Now]],
        offset: int,
    ) -> pa.RecordBatch:
        """Return rows that tell tasks, by their slots, the times that the partition
        reaches at an offset.
        """
        told = [(partition * self.ranges + slot, *now) for slot, now in reached]
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
                [source] * count,
                times,
                stream_times,
                [offset] * count,
                *nothing,
                operator_times,
            ],
        )


def _only_partition(rows: pa.RecordBatch) -> TopicPartition:
    topics = rows.column("topic").unique()
    partitions = rows.column("partition").unique()
    if len(topics) != 1 or len(partitions) != 1:
        raise ValueError(
            f"a Spark partition holds records of {topics.to_pylist()}, {partitions.to_pylist()}: it must have one "
            "topic partition"
        )
    return TopicPartition(topics[0].as_py(), partitions[0].as_py())
