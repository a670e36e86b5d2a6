"""From the history of a topic's partition to the rows of its tasks: timestamps, stream time, clocks, key ranges, as a live reader gives them.

A Spark partition holds the records of one topic partition in offset order. `make_runs`, which both readers of a log use, does the rest:
so the rules cannot differ between a live run and a backfill.

Invariant: within a source, the order by time and then offset is the order by offset; so sorting a task's rows by (time, source, offset), where
time is stream time, is exactly the order in which `SourceQueues` takes records that are all there. For topics that are placed, see `rounds`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from coopstreams.log.log import NO_STREAM_TIME, Run
from coopstreams.log.runs import Routes, make_runs
from coopstreams.spark.progress import Reporter
from coopstreams.spark.rounds import turn_of
from coopstreams.spark.rows import END, ROUTED, batch, columns_of, record_columns
from coopstreams.spark.shipping import unship
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile import compile_subtopology
from coopstreams.topology.keys import KeyRange


@dataclass(frozen=True, slots=True)
class Routing:
    """Cuts a topic of a sub-topology into the rows of its tasks: HISTORY batches in, ROUTED batches out.

    Shape: task = partition * ranges + number of the range. `source` counts the topics of the sub-topology. `numbered`: the offsets are
    those of the topic; else records are numbered in the order in which they come.
    """

    shipped: bytes
    subtopology: int
    topic: str
    ranges: int
    numbered: bool = True
    cut: Mapping[int, tuple[int, int]] | None = None
    """By partition the offsets [start, end), if that is known."""
    reports: str | None = None
    """Where to say how far it is."""
    round: int = 1

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the tasks, and a last one for each of them that says what time it is."""
        topology = unship(self.shipped)
        turn = turn_of(topology, self.subtopology, self.round)
        program = compile_subtopology(topology, turn.part)
        source = program.subtopology.topics.index(self.topic)
        routes = Routes(KeyRange.split(self.ranges), program.timestamp_of.get(self.topic), program.clocks_of(self.topic))
        partition, reporter, stream_time, next_offset = None, None, NO_STREAM_TIME, 0
        place = NO_STREAM_TIME
        for rows in batches:
            if not rows.num_rows:
                continue
            at = _only_partition(rows)
            if partition is not None and at != partition:
                raise ValueError(f"a Spark partition holds records of {partition} and of {at}: it must have one topic partition")
            partition = at
            reporter = reporter or self._reporter(at)
            offsets = rows.column("offset").to_pylist() if self.numbered else range(next_offset, next_offset + rows.num_rows)
            if offsets[0] < next_offset:
                raise ValueError(f"{partition}: offset {offsets[0]} comes after {next_offset - 1}; a source must give a partition in offset order")
            next_offset = offsets[-1] + 1
            runs = make_runs(partition, columns_of(rows, offsets), routes, stream_time, next_offset, at_end=False)
            stream_time = runs[0].stream_time
            # What is placed has its time where others have their offset.
            places = dict(zip(offsets, rows.column("offset").to_pylist(), strict=True)) if self.topic in turn.placed else None
            place = stream_time if places is None else places[offsets[-1]]
            for run in runs:
                if len(run.columns):
                    yield self._records(source, run, places)
            reporter.took(0, rows.num_rows, next_offset)
        if partition is not None and reporter is not None:
            reporter.end()
            yield self._ends(source, partition.partition, place, stream_time, routes.now)

    def _reporter(self, at: TopicPartition) -> Reporter:
        return Reporter(self.reports, "history", str(at), str(at), [None if self.cut is None else self.cut[at.partition]])

    def _records(self, source: int, run: Run, places: Mapping[int, int] | None) -> pa.RecordBatch:
        columns, count = run.columns, len(run.columns)
        clocks: Any = [list(row) for row in zip(*columns.clocks, strict=True)] if columns.clocks else pa.nulls(count, ROUTED.field("clocks").type)
        task = run.partition.partition * self.ranges + run.slot
        times = columns.stream_times if places is None else [places[offset] for offset in columns.offsets]
        return batch(ROUTED, [[task] * count, [source] * count, times, columns.stream_times, columns.offsets, *record_columns(columns), clocks])

    def _ends(self, source: int, partition: int, place: int, stream_time: int, clocks: list[int]) -> pa.RecordBatch:
        count = self.ranges
        nothing = [pa.nulls(count, field.type) for field in list(ROUTED)[5:-1]]
        tasks = [partition * self.ranges + slot for slot in range(count)]
        return batch(ROUTED, [tasks, [source] * count, [place] * count, [stream_time] * count, [END] * count, *nothing, [clocks] * count])


def _only_partition(rows: pa.RecordBatch) -> TopicPartition:
    topics, partitions = rows.column("topic").unique(), rows.column("partition").unique()
    if len(topics) != 1 or len(partitions) != 1:
        raise ValueError(f"a Spark partition holds records of {topics.to_pylist()}, {partitions.to_pylist()}: it must have one topic partition")
    return TopicPartition(topics[0].as_py(), partitions[0].as_py())
