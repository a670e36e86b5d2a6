"""A shared task inside Spark: a `Task` like a live one, over all its rows from the
first to the cut.

It takes ROUTED batches of one task, in the order in which a live task would take them,
and returns RESULTS batches. Its state is in a RocksDB of this attempt, in a temporary
folder. At the end the state becomes slices of a snapshot, records of changelogs, or
both.

Invariant: the same rows give the same results, so that an attempt can be discarded at
any time. Its outside effects (files under new names, one transaction) count once.
Relies on: `history/arrow_rows.py` (ROUTED, RESULTS), `rounds` (placed records), `outbox`
(the transaction), `cached_tables` (when updates are forwarded).
Turned down: applyInArrow and transformWithState (a group in memory at once; no order by
offset; 29,000 records a second: measured).
"""

from __future__ import annotations

import logging
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from coopstreams.commit.progress import Progress
from coopstreams.common.config import Config
from coopstreams.common.host import Timed
from coopstreams.log.kafka.native import native_parts, native_tables
from coopstreams.log.log import NO_STREAM_TIME, Position, RecordBatch
from coopstreams.spark.cached_tables import holds_back
from coopstreams.spark.changelog_repair import Differences, Rebuilt, Repair
from coopstreams.spark.changelog_rows import (
    KEPT_FOR_EVER,
    Expiry,
    horizon_of,
    record_of,
    visible,
)
from coopstreams.spark.history.arrow_rows import (
    BEGIN,
    END,
    RESULTS,
    batch,
    check_task,
    columns_of,
    headers_column,
    runs_of,
)
from coopstreams.spark.history.kafka_source import KafkaParts, read_options
from coopstreams.spark.outbox import Outbox, Seeds, partitions_of
from coopstreams.spark.plan import Outputs
from coopstreams.spark.rounds import round_of
from coopstreams.spark.workers.stage_progress import Reporter
from coopstreams.state.database import Database
from coopstreams.state.global_table import GlobalRows
from coopstreams.state.global_updates import rows_of
from coopstreams.state.manifest import Slice
from coopstreams.state.rocks import Rocks
from coopstreams.state.snapshot import SnapshotWriter
from coopstreams.state.task_state import MakeTable, TaskState
from coopstreams.tasks.birth_order import BirthOrder
from coopstreams.tasks.failure_handlers import (
    FATES,
    Answer,
    FailureHandler,
    dead_letter_topics,
    may_drop,
)
from coopstreams.tasks.incarnation import Incarnation, TaskServices, TaskSettings
from coopstreams.tasks.repeated_warnings import Sayings
from coopstreams.tasks.tally import Tally
from coopstreams.tasks.task import Task
from coopstreams.topology.columns import (
    NO_RECORDS,
    Columns,
    Headers,
    TopicPartition,
)
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.compile.operator_time import OperatorTimes
from coopstreams.topology.compile.outputs import ANY_PARTITION, Output
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.failures import Failure
from coopstreams.topology.graph.fingerprint import global_tables_of
from coopstreams.topology.graph.nodes import SubTopology
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import KeyRange, offset_hash, partition_of
from coopstreams.topology.naming import changelog_topic
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId

BUFFER_BYTES = 64 << 20
"""The size of a task's write buffers at which they are flushed to its database."""

NOT_WRITTEN = "left out; no dead letter is written, because the run has outputs none"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What one task of a Spark run has done.

    `task`: its number within the run. `name`: its task id as text. `read`: the number
    of records read, by source topic. `written`: the number of records written, by
    topic. `dropped`: the number of records left out, by "node: reason". `stream_times`,
    `operator_times`: where stream time (ms) and operator times stand after the last
    record, by source topic.

    By store: `seeded` is the number of rows that were written to its changelog.
    `slices` are its files in the snapshot. `differences` counts the rows that a rebuild
    from the source found equal or repaired in its changelog; empty unless the run is
    such a rebuild.
    """

    task: int
    name: str
    subtopology: int
    partition: int
    read: dict[str, int]
    written: dict[str, int]
    dropped: dict[str, int]
    stream_times: dict[str, int]
    seeded: dict[str, int]
    slices: dict[str, list[Slice]]
    differences: dict[str, Differences] = field(default_factory=dict)
    operator_times: dict[str, OperatorTimes] = field(default_factory=dict)
    expired: dict[str, int] = field(default_factory=dict)
    """For each store, the number of expired rows that were left out of its changelog."""


Cut = Mapping[str, Mapping[int, tuple[int, int]]]
"""By topic and partition, the offsets [start, end)."""


@dataclass(frozen=True, slots=True)
class TaskWork:
    """The work of one sub-topology's tasks: sent to the workers, and called there with
    the rows of one task.

    Shape: task = partition * ranges + number of the range. `first` is the number of the
    first task within the run. `forwarded` are the repartition topics, with their
    partition counts: records for them become RESULTS rows.
    """

    topology: Topology
    subtopology: int
    ranges: int
    run: str
    first: int
    config: Config
    forwarded: tuple[tuple[str, int], ...] = ()
    outputs: Outputs = "none"
    """Where records for topics outside the application go.

    `topic`: to the topic, in the task's transaction; `table`: into RESULTS rows.
    """
    seed: bool = False
    """Whether the state is written to the changelogs, in the task's transaction."""
    repair: Repair | None = None
    """The repair of changelogs that are not empty: only the differences between them
    and the state are written. None: no repair.
    """
    oldest_ms: tuple[tuple[str, int], ...] = ()
    """By store, the earliest timestamp that the changelog's retention would not delete
    at once.
    """
    reached_ms: int = NO_STREAM_TIME
    """The latest stream time that earlier stages of the run have reached."""
    snapshots: str | None = None
    cut: Cut = field(default_factory=dict)
    """The offsets [start, end) of the topics read from Kafka, by partition."""
    global_tables: Cut = field(default_factory=dict)
    """The offsets [start, end) of the topics of global tables, by partition."""
    reports: str | None = None
    """The folder for the tasks' progress reports; None: no reports."""
    round: int = 1
    """The number of the round within the sub-topology."""
    clocks: tuple[int, ...] | None = None
    """The clock of each task at the end of its timed topic; None if the sub-topology
    reads no timed topic.
    """

    @property
    def writes(self) -> bool:
        """Whether a task writes to Kafka."""
        return self.outputs == "topic" or self.seed

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records that the task forwards, and its result."""
        return attempt(batches, partial(TaskAttempt, self))


def attempt(
    batches: Iterable[pa.RecordBatch],
    begin: Callable[[int, ExitStack], TaskAttempt],
) -> Iterator[pa.RecordBatch]:
    """Yield the results of a task's rows. `begin` gets the task's number, and the stack
    that closes its resources.
    """
    rows = (each for each in batches if each.num_rows)
    first = next(rows, None)
    if first is None:
        return  # a Spark partition without a task
    with ExitStack() as closing:
        running = begin(first.column("task")[0].as_py(), closing)
        yield from running.take(first)
        for each in rows:
            yield from running.take(each)
        yield from running.finish()


class TaskAttempt:
    """One attempt by Spark to run one task: the task, its state and its transaction."""

    def __init__(
        self,
        work: TaskWork,
        number: int,
        closing: ExitStack,
        *,
        tables: Mapping[str, MakeTable] | None = None,
    ) -> None:
        """Open the state and the task. `tables`: factories of stores by name; None:
        native ones for known folds, where possible.
        """
        topology = work.topology
        round_ = round_of(topology, work.subtopology, work.round)
        drops = may_drop(work.config, ["processing"])
        program = compile_subtopology(
            topology,
            round_.part,
            parts=native_parts(),
            may_drop=drops,
        )
        partition, slot = divmod(number, work.ranges)
        self._work = work
        self._number = number
        self.id = TaskId(work.subtopology, partition, KeyRange.split(work.ranges)[slot])
        self._application = topology.application_id
        self._specs = program.subtopology.stores
        self._topics = [
            TopicPartition(topic, partition) for topic in program.subtopology.topics
        ]
        self._forwarded = dict(work.forwarded)
        self._outbox: Outbox | None = None
        if work.writes:
            self._outbox = Outbox(work.config, work.run, work.first + number)
            closing.callback(self._outbox.close)
        folder = closing.enter_context(
            tempfile.TemporaryDirectory(prefix="coopstreams-backfill-")
        )
        self._database = Database(Rocks(Path(folder)), self._specs)
        closing.callback(self._database.close)
        caching = holds_back(topology, round_, work.config)
        if tables is None:
            # Native updates may follow the records of a batch, but a placed record needs
            # its own time.
            tables = (
                {}
                if round_.placed
                else native_tables(program.subtopology, work.config, caching=caching)
            )
        self._state = TaskState(
            self._database,
            self._specs,
            self.id.key_range,
            BUFFER_BYTES,
            tables,
        )
        self._read = Counter[str]()
        self._clock = NO_STREAM_TIME if work.clocks is None else work.clocks[number]
        self._clocked = program.clocked
        times = program.compiled(False, True).operator_times
        self._operators = {topic: len(times[topic]) for topic in program.timed_sources}
        """How many operators of each timed topic follow its clock, or births."""
        self._dropped = Counter[str]()
        self._stream_times = dict[str, int]()
        self._times = dict[str, int]()
        self._at_hand: tuple[TopicPartition, list[int], list[int]] = (
            self._topics[0],
            [BEGIN],
            [-1],
        )
        self._dead_letters = {
            topic: Output(topic) for topic in dead_letter_topics(topology, work.config)
        }
        self._sayings = Sayings()
        closing.callback(self._sayings.close)
        tally = Tally()
        rows = self._global_rows(program.subtopology, tally)
        for each in rows.values():
            closing.callback(each.close)
        progress = Progress.beginning(
            self.id.key_range,
            dict.fromkeys(self._topics, Position(0)),
        )
        self._task = Task(
            Incarnation(self.id, tuple(self._topics), self._state, progress),
            program,
            self._failure_handler(self.id, tally, topology.dead_letter_topics),
            tally,
            # the rows come in processing order: never wait for another source
            TaskSettings(caching=caching, max_idle_ms=-1),
            TaskServices(
                partitions=cache(self._partitions),
                global_tables=rows,
                output=lambda topic: (
                    PlacedOutput(topic, self._time)
                    if topic in round_.placed
                    else Output(topic)
                ),
                host=Timed(lambda: 0),
            ),
        )
        closing.callback(self._task.close)
        self._task.begin()
        # A punctuation has the place of the record that made it due, which is the last
        # one of its step.
        self._single = bool(round_.placed) and self._task.program.may_punctuate
        self._counts = round_.is_last
        bounds = [
            work.cut[topic].get(partition, (0, 0)) if topic in work.cut else None
            for topic in program.subtopology.topics
        ]
        self._reporter = Reporter(
            work.reports,
            "task",
            str(number),
            str(self.id),
            bounds,
        )

    def _failure_handler(
        self,
        task: TaskId | None,
        tally: Tally,
        topics: Mapping[str, str],
    ) -> FailureHandler:
        """Return the handler that counts the records that fail in a task, or in a
        global table if `task` is None.
        """
        fates: Mapping[Answer, str] = FATES
        if self._work.outputs == "none":
            fates = {**FATES, "dead-letter": NOT_WRITTEN}
        # All tasks read the global tables: a record that fails there is counted, and
        # has a letter, of the first one.
        tells = task is not None or self._number == 0
        return FailureHandler(
            task,
            self._work.config,
            tally.failure if tells else _nothing,
            self._dead_letter if tells else _nothing,
            self._sayings,
            fates,
            topics=topics,
        )

    def _global_rows(self, part: SubTopology, tally: Tally) -> dict[str, GlobalRows]:
        """Return the rows of a sub-topology's global tables at the cut, by store.

        Raises:
            LogError: a topic has lost records since the cut was taken, or a transaction
            is open below the cut.
        """
        config = self._work.config
        on_failure = self._failure_handler(None, tally, {})
        found = dict[str, GlobalRows]()
        for table in global_tables_of(self._work.topology, part):
            # All tasks of a run see the same rows, and a global store's processor the
            # same wall clock. Turned down: Spark's broadcast (missing in Spark Connect;
            # the rows would go through the driver), and following the topic while the
            # task works (live, that order is random; it cannot be reproduced).
            kept = rows_of(table, lambda: 0, config.extractor)
            found[table.store.name] = kept
            bounds = {
                TopicPartition(table.topic, number): each
                for number, each in self._work.global_tables[table.topic].items()
            }
            parts = KafkaParts(read_options(config.client, bounds))
            for source in parts.partitions():
                for rows in parts.read(source):
                    kept.apply(
                        TopicPartition(
                            table.topic,
                            rows.column("partition")[0].as_py(),
                        ),
                        columns_of(rows, rows.column("offset").to_pylist()),
                        on_failure,
                    )
        return found

    def take(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Process rows of this task; yield the records that it forwards."""
        check_task(rows, self._number)
        offsets = rows.column("offset").to_pylist()
        times = rows.column("time").to_pylist()
        # Whole columns, once: where sources take turns, a slice of Arrow for each run
        # costs more than its records.
        columns = columns_of(rows, offsets)
        operator_times = rows.column("operator_times")
        columns.stream_times = rows.column("stream_time").to_pylist()
        if self._operators:
            columns.births = times
        sources: list[int] = rows.column("source").to_pylist()
        timestamps: Sequence[int | None] = columns.timestamps
        markers = [
            (source, offset if timestamp is None else None)
            for source, offset, timestamp in zip(
                sources,
                offsets,
                timestamps,
                strict=True,
            )
        ]
        timed = len(operator_times.flatten()) > 0
        for start, end in runs_of(markers):
            number, told_at = markers[start]
            source = self._topics[number]
            if told_at == BEGIN:
                continue  # it is there so that a task without records has a row
            self._at_hand = source, offsets[start:end], times[start:end]
            told = (
                operator_times.slice(start, end - start).flatten().to_pylist()
                if timed
                else []
            )
            part = columns.slice(start, end)
            received = self._run if told_at is None else self._told
            self._process(received(source, part, told))
            if told_at is None:
                self._reporter.took(number, end - start, offsets[end - 1] + 1)
        yield from self._forward()
        yield from self._relieve()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Write the state; yield the last forwarded records, and the result.

        Raises:
            TopologyError: a stream-time punctuator feeds a foreign-key join: the next
                round would call it at other times.
            GroupError: the application has begun beside the run.
        """
        if self._clocked:
            self._tell_clock()
        self._write_state()
        if (
            not self._counts
            and self._task.program.punctuations["stream_time"].next_ms is not None
        ):
            raise TopologyError(
                f"sub-topology {self.id.subtopology}: a processor that is called by stream time feeds a foreign-key "
                "join, or what waits for another sub-topology: in the next round it would be called at other times. "
                "Start the application live."
            )
        yield from self._forward()
        result = self._outbox.mark if self._outbox is not None else None
        if result is None:
            result = msgspec.json.encode(self._result()).decode()
            if self._outbox is not None:
                # Behind the rows of `_result`: see the invariants of `outbox`.
                if self._work.repair is None:
                    self._outbox.check_alone(self._topics)
                self._outbox.commit(result)
        else:
            log.info("%s: an earlier attempt has committed", self.id)
        nothing = [pa.nulls(1, field.type) for field in list(RESULTS)[2:-1]]
        yield batch(RESULTS, [[self._number], [None], *nothing, [result]])
        self._reporter.end()

    def _process(self, received: RecordBatch) -> None:
        """Process the records of a batch, and all that becomes ready by it."""
        self._task.add(received)
        if isinstance(self._task.queues, BirthOrder):
            # Rows come in the order of births: none is born before this one.
            self._task.queues.reach(received.clock)
        while self._task.step(single=self._single) or self._task.wait_for_calls():
            pass

    def _tell_clock(self) -> None:
        """Advance the task to the clock at the end of its topic, even if no record has
        come so far.

        A live task continues at this clock, and does not repeat results that were due
        before it.
        """
        (source,) = (each for each in self._topics if each.topic in self._operators)
        self._process(
            RecordBatch(
                source,
                0,
                NO_RECORDS,
                self._task.queues.received(source),
                self._stream_times.get(source.topic, NO_STREAM_TIME),
                at_end=True,
                operator_times=[self._clock] * self._operators[source.topic],
            )
        )

    def _relieve(self) -> Iterator[pa.RecordBatch]:
        """Write the state to the database if the buffers are full; yield the records
        that this forwards.
        """
        if self._state.full:
            self._write_state()
            yield from self._forward()

    def _time(self) -> int:
        """Return the current record's time in the task's processing order."""
        at = self._task.program.where()
        (source, offsets, times) = self._at_hand
        if at is None:  # between two records, or behind the last one
            return times[len(times) - self._task.queues.waiting(source) - 1]
        return times[bisect_left(offsets, at.offset)]

    def _run(
        self,
        source: TopicPartition,
        columns: Columns,
        operator_times: list[int],
    ) -> RecordBatch:
        """Return rows of records as a record batch, as a reader makes them."""
        if not any(columns.headers or ()):
            columns.headers = None
        width = len(operator_times) // len(columns)  # each record has as many
        columns.operator_times = [
            operator_times[number::width] for number in range(width)
        ]
        count = self._operators.get(source.topic, 0)
        if count and self._clocked:
            # All that was born before has come.
            clock = [min(birth, self._clock) for birth in columns.births or ()]
            columns.operator_times = [clock] * count
        self._read[source.topic] += len(columns)
        return RecordBatch(
            source,
            0,
            columns,
            columns.offsets[-1] + 1,
            columns.stream_times[-1],
            at_end=False,
            operator_times=() if self._clocked else [NO_STREAM_TIME] * count,
            clock=(columns.births or columns.stream_times)[-1],
        )

    def _told(
        self,
        source: TopicPartition,
        columns: Columns,
        operator_times: list[int],
    ) -> RecordBatch:
        """Return the times that a partition has reached, at a time mark or at its end,
        as a record batch without records.
        """
        (stream_time,) = columns.stream_times
        (offset,) = columns.offsets
        self._stream_times[source.topic] = stream_time
        at_end = offset == END
        at = self._task.queues.received(source) if at_end else offset + 1
        return RecordBatch(
            source,
            0,
            NO_RECORDS,
            at,
            stream_time,
            at_end=at_end,
            operator_times=operator_times,
        )

    def _forward(self) -> Iterator[pa.RecordBatch]:
        """Yield the outputs so far as rows, or write them to Kafka. An attempt whose
        mark is there writes nothing: its outputs are in the log.
        """
        for output in (
            *self._task.program.outputs.values(),
            *self._dead_letters.values(),
        ):
            if not len(output):
                continue
            if output.topic in self._forwarded or self._work.outputs == "table":
                yield self._rows(output)
            elif (
                self._work.outputs == "topic"
                and self._outbox is not None
                and self._outbox.mark is None
            ):
                self._outbox.write(output)
            self._task.tally.written[output.topic] += len(output)
            output.clear()

    def _rows(self, output: Output) -> pa.RecordBatch:
        """Return records as rows, each with its place in a total order over all tasks.

        The order is by time, then task, then number. The time of a record in a timed
        topic is its birth.
        """
        count = len(output)
        first = self._task.tally.written[output.topic]
        times = (
            output.times
            if isinstance(output, PlacedOutput)
            else list(output.births) or self._reached(output)
        )
        numbers = range(first, first + count)
        return batch(
            RESULTS,
            [
                [self._number] * count,
                [output.topic] * count,
                self._places(output, numbers),
                times,
                list(numbers),
                list(output.timestamps),
                list(output.keys),
                list(output.values),
                headers_column(output.headers, count),
                [None] * count,
            ],
        )

    def _reached(self, output: Output) -> list[int]:
        """Return the stream time of the output's topic after each record."""
        times = list(
            accumulate(
                output.timestamps,
                max,
                initial=self._times.get(output.topic, -1),
            )
        )[1:]
        self._times[output.topic] = times[-1]
        return times

    def _places(self, output: Output, numbers: range) -> list[int | None]:
        """Return the partitions of forwarded records; None for records of a table of
        outputs, which has no partitions.
        """
        partitions = self._forwarded.get(output.topic)
        if partitions is None:
            return [None] * len(output)
        # The partition that a partitioner chose, else the producer's: murmur2 of the
        # key. A record without a key may go anywhere, here always to the same
        # partition.
        chosen = output.partitions or [ANY_PARTITION] * len(output)
        return [
            place
            if place != ANY_PARTITION
            else partition_of(key, partitions)
            if key is not None
            else offset_hash(number) % partitions
            for number, key, place in zip(numbers, output.keys, chosen, strict=True)
        ]

    def _write_state(self) -> None:
        self._task.flush()
        self._task.commit({spec.name: 0 for spec in self._specs})

    def _result(self) -> TaskResult:
        """Return the task's result; write its state to changelogs and snapshots first."""
        work = self._work
        writer = None
        if work.snapshots is not None:
            writer = SnapshotWriter(work.snapshots, self._application, work.run)
        expired = Counter[str]()
        seeded: dict[str, int] = {}
        slices: dict[str, list[Slice]] = {}
        differences: dict[str, Differences] = {}
        if work.repair is not None:
            rebuilt = self._rebuilt()
            if writer is not None:
                slices = work.repair.export(rebuilt, writer)
            expiries = {spec.name: self._expiry(spec) for spec in self._specs}
            differences = work.repair.write(
                work.config,
                rebuilt,
                expiries,
                expired,
                self._outbox,
            )
        else:
            # A store without a changelog is in no snapshot.
            for spec in (spec for spec in self._specs if spec.logged):
                if work.seed and self._outbox is not None:
                    seeded[spec.name] = self._seed(spec, self._outbox, expired)
                if writer is not None:
                    slices[spec.name] = writer.export(
                        self._database,
                        spec,
                        self.id.partition,
                        self.id.key_range,
                    )
        dropped = self._task.program.dropped | self._task.tally.failed
        self._dropped.update(
            {f"{node}: {reason}": count for (node, reason), count in dropped.items()}
        )
        counts = dict(self._read), dict(self._task.tally.written), dict(self._dropped)
        return TaskResult(
            self._number,
            str(self.id),
            self.id.subtopology,
            self.id.partition,
            *counts,
            self._stream_times,
            seeded,
            slices,
            differences,
            self._operator_times(),
            dict(expired),
        )

    def _rebuilt(self) -> Rebuilt:
        """Return the task's state, to be compared with its changelogs."""
        tables = self._state.stores.items()
        horizons = {name: horizon_of(table) for name, table in tables}
        return Rebuilt(self.id, self._database, self._specs, horizons)

    def _seed(
        self,
        spec: StoreSpec,
        outbox: Outbox,
        expired: Counter[str],
    ) -> int:
        """Write the rows of a store to its changelog; return how many were written.

        Expired rows are left out, and counted in `expired` by the name of the store.
        """
        changelog = TopicPartition(
            changelog_topic(self._application, spec.name),
            self.id.partition,
        )
        return outbox.seed(Seeds(changelog, self._changelog_rows(spec, expired)))

    def _operator_times(self) -> dict[str, OperatorTimes]:
        return {
            source.topic: self._task.program.operator_times(source.topic)
            for source in self._topics
        }

    def _expiry(self, spec: StoreSpec) -> Expiry:
        return Expiry(
            dict(self._work.oldest_ms).get(spec.name, KEPT_FOR_EVER),
            max([self._work.reached_ms, *self._stream_times.values()]),
        )

    def _changelog_rows(
        self,
        spec: StoreSpec,
        expired: Counter[str],
    ) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield the changelog records of a store; count in `expired` the rows that are
        left out.
        """
        expiry = self._expiry(spec)
        changelog = changelog_topic(self._application, spec.name)
        horizon = horizon_of(self._state.stores[spec.name])
        rows = visible(self._database, spec, self.id.key_range, horizon)
        for key, row in expiry.kept(spec, rows, expired):
            yield record_of(spec, key, row, expiry.oldest_ms, changelog)

    def _partitions(self, topic: str) -> int:
        """Return the partition count of a topic that the task writes to."""
        return self._forwarded.get(topic) or partitions_of(self._work.config, topic)

    def _dead_letter(
        self,
        failure: Failure,
        headers: Headers,
        topic: str,
    ) -> None:
        """Note a dead letter among the outputs."""
        letters: Any = self._dead_letters[topic]
        letters.keys.append(failure.key)
        letters.values.append(failure.value)
        letters.timestamps.append(failure.timestamp)
        letters.give_headers(headers)


def _nothing(*_: object) -> None:
    """Do nothing."""


class PlacedOutput(Output):
    """An output that stores the task's time at which each record was forwarded.

    If records between mutually dependent sub-topologies were ordered by timestamp, an
    answer could come before the record that it answers: it has the timestamp of its
    row, which may be late.

    Shape: `times` is a column like the others; `now` returns the time.
    """

    __slots__ = ("times",)

    def __init__(self, topic: str, now: Callable[[], int]) -> None:
        super().__init__(topic)
        self.times: list[int] = []
        self.timestamps: list[int] = _Noting(self.times, now)

    def clear(self) -> None:
        """Forget the records, which the caller has taken."""
        super().clear()
        self.times.clear()


class _Noting(list[int]):
    """A list of timestamps that notes the time of each append. Compiled code knows only
    a list and its `append`.
    """

    def __init__(self, times: list[int], now: Callable[[], int]) -> None:
        super().__init__()
        self._note = times.append
        self._now = now

    def append(self, timestamp: int) -> None:
        super().append(timestamp)
        self._note(self._now())
