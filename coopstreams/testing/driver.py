"""`TopologyTestDriver`: runs a topology without a broker, one record at a time, and
returns its results.

The tasks (`Task`) and the routing by key range are those of production; log and
database are in memory. The driver owns the clock. It gives each partition's next record
to its tasks, and first runs the tasks with the oldest record. A record that is the only
one goes to its tasks directly, see `direct_source`. `send` returns when its record has
passed through all repartition topics, so results come in the order in which they were
forwarded.

    with TopologyTestDriver(topology, ranges=4) as driver:
        driver.input("lines").send(b"", "to be or not to be")
        counts = driver.output("word-counts").latest()
        assert counts == {"to": 2, "be": 2, "or": 1, "not": 1}
        assert driver.store("counts").get("be") == 2

Invariant: the same inputs give the same tables and, for each key, the same outputs for
every number of ranges.
Invariant: a row that a function changes in place raises `StateError`, see
`changed_rows`.
Invariant: the clock stays at 0 until `advance` moves it. Records without a timestamp
get its time.
Relies on: `direct_source` (which records pass the log by), `write_order` (which
partition's record is next), `silences` (idle partitions), `held_calls`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import (
    Any,
    TypeAlias,
    TypeVar,
    overload,
)

from coopstreams.commit.progress import Progress
from coopstreams.common.config import Config
from coopstreams.common.host import Timed
from coopstreams.log.clocks import Mark
from coopstreams.log.kafka.native import native_parts
from coopstreams.log.log import Position, RecordBatch, TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.log.time_marks import HEADER as TIME_MARK
from coopstreams.preflight.schema_checks import bind_in_memory
from coopstreams.state.database import Database
from coopstreams.state.engines import open_database, open_engine
from coopstreams.state.global_updates import rows_of
from coopstreams.state.memory_engine import Memory
from coopstreams.state.task_state import TaskState
from coopstreams.tasks.birth_order import BirthOrder
from coopstreams.tasks.failure_handlers import (
    FailureHandler,
    dead_letter_topics,
    may_drop,
)
from coopstreams.tasks.incarnation import Incarnation, TaskServices, TaskSettings
from coopstreams.tasks.repeated_warnings import Sayings
from coopstreams.tasks.resolved_topology import as_it_runs
from coopstreams.tasks.tally import Tally
from coopstreams.tasks.task import Task
from coopstreams.testing.changed_rows import ChangedRows
from coopstreams.testing.compiled_programs import Identity, compiled, tables
from coopstreams.testing.direct_source import DirectSource
from coopstreams.testing.driver_views import (
    InputTopic,
    OutputRecord,
    OutputTopic,
    StoreView,
    view_of,
)
from coopstreams.testing.held_calls import HeldCalls
from coopstreams.testing.memory_sink import Sinks
from coopstreams.testing.silences import Silences
from coopstreams.testing.topic_serdes import (
    decoded,
    one_of,
    read_with,
    written_with,
)
from coopstreams.testing.write_order import (
    Forwarded,
    as_written,
    by_turn,
    in_order,
    ordered,
)
from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.compile.outputs import ANY_PARTITION, Output
from coopstreams.topology.compile.program import Program
from coopstreams.topology.durations import Duration, duration_ms
from coopstreams.topology.failures import Failure, OnFailure
from coopstreams.topology.graph.nodes import SubTopology
from coopstreams.topology.graph.partitions import check_partitions
from coopstreams.topology.graph.timed_topics import timed_topics, writers_of
from coopstreams.topology.graph.topic_patterns import matched
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE, KeyRange, partition_of
from coopstreams.topology.naming import changelog_topic
from coopstreams.topology.serdes import Serde
from coopstreams.topology.task_id import TaskId

K = TypeVar("K")
V = TypeVar("V")
AnySerde: TypeAlias = Serde[Any] | None
_CACHE_BYTES = 1 << 40


class TopologyTestDriver:
    """A topology that runs in this thread, on a log and stores in memory.

    `ranges`: the number of key ranges, and so tasks, of each partition.
    `partitions`: the partition count of topics that are not internal, or a count by
    topic.
    `config`: settings by name, for example the exception handlers.
    `caching`: hold table updates back until `commit`, as the record cache does in
    production.
    `state_dir`: an empty folder for stores in their production engines; without it, all
    stores are in memory.
    `calls_seed`: keep calls of asynchronous operators under way until `settle`; the
    seed chooses the order in which they end. Without it, `send` waits for each call.
    """

    def __init__(
        self,
        topology: Topology,
        ranges: int = 1,
        config: Mapping[str, Any] | None = None,
        *,
        caching: bool = False,
        partitions: int | Mapping[str, int] = 1,
        state_dir: Path | None = None,
        calls_seed: int | None = None,
    ) -> None:
        self.now_ms = 0
        self.failures: list[Failure] = []
        """The failures that a handler dropped, or sent to the dead-letter topic."""
        self._config = Config.of(
            {"bootstrap.servers": "in-memory", **(config or {})},
            topology.application_id,
        )
        self._built = self.topology = bind_in_memory(topology)
        self._given_partitions = partitions
        self._caching = caching
        self._dead_letters = dead_letter_topics(topology, self._config)
        self._state_dir = state_dir
        self._sayings = Sayings()
        self._log = MemoryLog()
        self._writer = self._log.writer()
        self._reader = self._log.reader()
        self._forwarded: list[Forwarded] = []
        self._by_topic: dict[str, list[Forwarded]] = {}
        """The forwarded records of each topic."""
        self._fetched = 0
        """The number of forwarded records that have been fetched from their topics."""
        self._unread: set[str] = set()
        """The topics whose partitions may have records that were not fetched."""
        self._read_topics: set[str] = set()
        """The topics that tasks read. Records for other topics are not appended to the
        log.
        """
        self._order: list[Output] = []
        """The output of each forwarded record since the last `_collect`, in order."""
        self._host = Timed(lambda: self.now_ms)
        self._programs: dict[int, Program] = {}
        self._tasks: dict[TopicPartition, list[Task]] = {}
        """The tasks that read each partition, in the order of the reader's slots."""
        self._at_hand: dict[TopicPartition, Position] = {}
        """The position of each partition after the record that its tasks process next.
        """
        self._direct: dict[TopicPartition, DirectSource] = {}
        """The partitions whose records may go directly to their tasks."""
        self._ahead: dict[TopicPartition, DirectSource] = {}
        """The partitions with records that went directly to their tasks, and are not
        yet in the log.
        """
        self._more: set[TopicPartition] = set()
        """The partitions in `_at_hand` that may have more records to fetch."""
        self._silences = Silences(self._writer)
        self._held = None if calls_seed is None else HeldCalls(calls_seed)
        self._globals = {
            table.store.name: rows_of(
                table,
                lambda: self.now_ms,
                self._config.extractor,
            )
            for table in topology.global_tables
        }
        self._changed_rows = ChangedRows()
        self._changed_rows.watch(*self._globals.values())
        self._parts: dict[int, list[list[Task]]] = {}
        """The tasks of each sub-topology, by partition, then by key range."""
        self._sinks = Sinks(topology)
        self._databases: dict[tuple[int, int], Database] = {}
        self._dropped_before: Counter[tuple[str, str]] = Counter()
        self._ranges = KeyRange.split(ranges)
        self._partitions: dict[str, int] = {}
        self._writers: dict[str, int] = {}
        """The timed topics, with the number of their writers' source partitions."""
        self._begin()

    def __enter__(self) -> TopologyTestDriver:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        """Close the driver. If the test has not failed, first serialise the uncommitted
        rows, so that a row that does not fit its serde raises.
        """
        try:
            for task in () if failed else self._all_tasks():
                task.state.changes()
        finally:
            self.close()

    def close(self) -> None:
        """Close tasks, stores and log. State is lost, except in `state_dir`."""
        opened: list[Any] = [
            self._sayings,
            *self._all_tasks(),
            self._reader,
            self._writer,
        ]
        for each in [*opened, *self._databases.values(), *self._globals.values()]:
            each.close()

    def advance(self, time: Duration) -> None:
        """Advance the driver's clock, and run the punctuations, windows and calls that
        become due.

        Stream time moves with records, and in the idle partitions of sources with
        `idle_advance`.
        """
        self.now_ms += duration_ms(time, "advance: the time")
        self._silences.advance(self.now_ms)
        self._unread |= self._read_topics
        self._work()
        for task in self._all_tasks():
            with self._collecting("when the clock was advanced"):
                task.punctuate(self.now_ms)
        self._work()

    def settle(self) -> None:
        """End all calls under way, one by one in the order of `calls_seed`, including
        calls that begin meanwhile.
        """
        while self._held is not None and (task := self._held.tell_one()) is not None:
            with self._collecting("when a call had ended"):
                while task.step(single=True):
                    pass
                task.apply()
            self._work()

    @overload
    def input(
        self,
        topic: str,
        key: Serde[K],
        value: Serde[V],
    ) -> InputTopic[K, V]: ...
    @overload
    def input(
        self,
        topic: str,
        key: AnySerde = None,
        value: AnySerde = None,
    ) -> InputTopic[Any, Any]: ...
    def input(
        self,
        topic: str,
        key: AnySerde = None,
        value: AnySerde = None,
    ) -> InputTopic[Any, Any]:
        """Return an input topic. Its serdes are the given ones, or by default those
        with which the topology reads it.

        A topic that a pattern of the topology matches is created by this call. Tasks
        that read it are opened anew, so calls under way end.

        Raises:
            TopologyError: the topology does not read it.
        """
        if (
            topic not in self.topology.source_topics
            and topic in matched(self._built, [topic]).source_topics
        ):
            self.settle()
            self.commit()
            self._begin(topic)
        return InputTopic(
            self._send,
            topic,
            *read_with(self.topology, topic, key, value),
        )

    @overload
    def output(
        self,
        topic: str,
        key: Serde[K],
        value: Serde[V],
    ) -> OutputTopic[K, V]: ...
    @overload
    def output(
        self,
        topic: str,
        key: AnySerde = None,
        value: AnySerde = None,
    ) -> OutputTopic[Any, Any]: ...
    def output(
        self,
        topic: str,
        key: AnySerde = None,
        value: AnySerde = None,
    ) -> OutputTopic[Any, Any]:
        """Return an output topic. Its serdes are the given ones, or by default those
        with which the topology writes it.

        The default for dead letters is raw bytes.

        Raises:
            TopologyError: the topology does not write it, or writes it with several
                serdes and none is given.
        """
        serdes = written_with(self.topology, topic, self._dead_letters, key, value)

        def records(first: int) -> list[OutputRecord[Any, Any]]:
            forwarded = self._by_topic.get(topic, [])
            return [decoded(record, *serdes) for record in forwarded[first:]]

        return OutputTopic(records)

    def outputs(self) -> list[OutputRecord[Any, Any]]:
        """Return all records written to topics that are not internal, in the order in
        which they were forwarded.

        Raises:
            TopologyError: several sinks write one of the topics, with different serdes;
                use `output` with serdes.
        """
        internal = {topic.name for topic in self.topology.internal_topics}
        topics = self._by_topic.keys() - internal
        serdes = {
            topic: written_with(self.topology, topic, self._dead_letters)
            for topic in topics
        }
        return [
            decoded(record, *serdes[record.topic])
            for record in self._forwarded
            if record.topic in topics
        ]

    @property
    def forwarded(self) -> int:
        """The number of records in `outputs`. A function of the topology sees the
        number before its own call.
        """
        internal = {topic.name for topic in self.topology.internal_topics}
        before = sum(
            len(records)
            for topic, records in self._by_topic.items()
            if topic not in internal
        )
        return before + sum(output.topic not in internal for output in self._order)

    def sink(self, name: str) -> OutputTopic[Any, Any]:
        """Return the records that `to_sink(name=...)` has applied. The driver applies
        them to a list.

        Raises:
            TopologyError: there is no external sink of this name.
        """
        return self._sinks.view(one_of(name, self._sinks.names, "has no external sink"))

    def store(self, name: str) -> StoreView:
        """Return a view of a store's current rows, committed or not.

        Raises:
            TopologyError: there is no store of this name.
        """
        if name in self._globals:
            return StoreView(self._globals[name].spec, [[(WHOLE, self._globals[name])]])
        specs = {
            spec.name: (part.id, spec)
            for part in self.topology.subtopologies
            for spec in part.stores
        }
        number, spec = specs[one_of(name, list(specs), "has no store")]
        return view_of(
            spec,
            [
                [(task.id.key_range, task.state.stores) for task in part]
                for part in self._parts[number]
            ],
        )

    @property
    def dropped(self) -> dict[tuple[str, str], int]:
        """The number of dropped records, by (node name, reason).

        The reason is `null-key`, `null-value`, `late`, `timestamp`, `no-partition`,
        `not-the-latest` or `stale-answer`.
        """
        total = Counter(self._dropped_before)
        for task in self._all_tasks():
            total.update(task.program.dropped)
        for rows in self._globals.values():
            total.update(rows.dropped)
        return dict(total)

    def commit(self) -> None:
        """Flush the record caches, and write the stores and their changelogs."""
        while True:
            before = len(self._forwarded)
            for task in self._all_tasks():
                self._commit(task)
                self._work()
            if len(self._forwarded) == before:
                return

    def _send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        timestamp: int | None,
        headers: Headers | None,
        at: int | None,
    ) -> None:
        """Send a record, and process all that follows from it. `at`: its partition,
        None: that of the key.
        """
        if timestamp is None:
            timestamp = self.now_ms
        if not (self._at_hand or self._unread):
            partition = ANY_PARTITION if at is None else at
            record = Forwarded(topic, key, value, timestamp, headers, partition)
            if (direct := self._direct_of(record)) is not None:
                self._log.check(topic, [key], [value])
                self._deliver(direct, record)
                return
        timestamps = [timestamp]
        tables = self._global_tables.get(topic, ())
        if tables and at is None:
            at = partition_of(key or b"", self._partitions[topic])
        self._append(
            topic,
            [key],
            [value],
            timestamps,
            partitions=at,
            headers=[headers],
        )
        for rows in tables:
            source = TopicPartition(topic, at or 0)
            columns = Columns(
                [key],
                [value],
                timestamps,
                [self._log.end_offset(source) - 1],
                timestamps,
                headers=[headers],
            )
            rows.apply(source, columns, self._on_failure(None))
        self._work()

    def _direct_of(self, record: Forwarded) -> DirectSource | None:
        """Return the partition of a record; None: the record must go through the log."""
        if record.headers and record.headers[0][0] == TIME_MARK:
            return None
        partition = record.partition
        if partition == ANY_PARTITION:
            count = self._partitions[record.topic]
            if count > 1 and record.key is None:
                return None
            partition = 0 if count == 1 else partition_of(record.key or b"", count)
        return self._direct.get(TopicPartition(record.topic, partition))

    def _deliver(self, direct: DirectSource, record: Forwarded) -> None:
        """Process a record directly, then the records that are written for it."""
        source = direct.source
        if source not in self._ahead:
            direct.begin(self._reader.position(source))
            self._ahead[source] = direct
        self._changed_rows.begin()
        following = None
        try:
            _, key, value, timestamp, headers, _ = record
            direct.process(key, value, timestamp, headers)
            self._changed_rows.check(lambda: _with_record(source, direct.end - 1))
            following = self._single()
        finally:
            if following is None:
                self._collect()
        if following is not None:
            self._deliver(*following)
        elif self._unread:
            self._work()

    def _single(self) -> tuple[DirectSource, Forwarded] | None:
        """Return the only record that a task has written, with the source by which its
        reader takes it directly. None: there are several records, or this record has to
        go through its topic.
        """
        if len(self._order) != 1:
            return None
        (output,) = self._order
        if output.topic not in self._read_topics:
            return None
        (record,) = in_order(self._order)
        direct = self._direct_of(record)
        if direct is None:
            return None
        self._order.clear()
        self._forward([record])
        output.clear()
        self._log.check(record.topic, [record.key], [record.value])
        return direct, record

    def _land(self) -> None:
        """Bring the log, the reader and the queues up to date with the records that
        went directly to their tasks.
        """
        ahead = self._ahead
        self._ahead = {}
        for direct in ahead.values():
            direct.land(self._writer, self._reader)

    def _may_be_direct(self, source: TopicPartition) -> bool:
        """Whether records of a partition may go directly to their tasks when no other
        record waits.
        """
        tasks = self._tasks[source]
        waits = self._config["max.task.idle.ms"] > 0 and len(tasks[0].sources) > 1
        return not (
            waits
            or source.topic in self._global_tables
            or tasks[0].calls is not None
            or source.topic in tasks[0].idle_ms
            or tasks[0].timed
            or tasks[0].progress.by_birth
            or source.topic in self._writers
        )

    def _begin(self, *topics: str) -> None:
        """Create the given topics and those that the topology names, and open or reopen
        the tasks that read them.
        """
        self._land()  # first: the positions and ends below are those of the log
        counts = self._create_topics(topics)
        parts = self.topology.subtopologies
        self._writers = writers_of(timed_topics(parts), parts, counts)
        read = set(self._tasks)
        for part, count in zip(self.topology.subtopologies, counts, strict=True):
            if self._must_open(part, count):
                self._open(part, count)
        positions = {
            source: tasks[0].progress.position(source)
            for source, tasks in self._tasks.items()
        }
        self._reader.assign(positions)
        self._append_unread()
        for source in self._tasks.keys() - read:
            self._route(source)
        for source, at in positions.items():
            # The reader reports the end of a partition once, perhaps to tasks that are
            # closed by now.
            if at.offset == self._log.end_offset(source):
                for slot, task in enumerate(self._tasks[source]):
                    task.add(RecordBatch.ended(source, slot, at))
        self._direct = {
            source: DirectSource(source, tasks, self._reader.routes(source))
            for source, tasks in self._tasks.items()
            if self._may_be_direct(source)
        }

    def _must_open(self, part: SubTopology, partitions: int) -> bool:
        """Whether a sub-topology has other topics or partitions than its open tasks."""
        opened = self._parts.setdefault(part.id, [])
        if len(opened) != partitions:
            return True
        if not opened:
            return False
        return tuple(source.topic for source in opened[0][0].sources) != part.topics

    def _append_unread(self) -> None:
        """Append to the log the earlier records of topics that no task has read until
        now.
        """
        read_topics = {source.topic for source in self._tasks}
        for topic in read_topics - self._read_topics:
            for record in self._by_topic.get(topic, ()):
                self._append_one(record)
        self._read_topics = read_topics
        self._unread |= read_topics

    def _create_topics(self, more: Sequence[str]) -> tuple[int, ...]:
        """Create all topics that do not exist; return the partition count of each
        sub-topology.
        """
        named = [*self._built.sink_topics, *self._dead_letters, *more]
        self.topology = as_it_runs(
            self._built,
            [*named, *self._partitions],
            self._config,
        )
        given = self._partitions | {
            topic: self._count(topic)
            for topic in [*self.topology.source_topics, *named]
        }
        resolved = check_partitions(self.topology, given)
        self._log.create_topics(
            [TopicSpec(topic, count) for topic, count in given.items()]
        )
        self._log.create_topics(
            [
                TopicSpec(plan.name, plan.partitions, plan.config)
                for plan in resolved.internal
            ]
        )
        self._partitions = {
            topic: count
            for topic, count in (given | dict(resolved.partitions)).items()
            if count
        }
        self._global_tables = {
            topic: [
                self._globals[table.store.name]
                for table in self.topology.global_tables
                if table.topic == topic
            ]
            for topic in {table.topic for table in self.topology.global_tables}
        }
        return resolved.tasks

    def _count(self, topic: str) -> int:
        """Return the partition count of a topic, or the count that it gets when it is
        created.
        """
        given = self._given_partitions
        return self._partitions.get(topic) or (
            given.get(topic, 1) if isinstance(given, Mapping) else given
        )

    def _open(self, part: SubTopology, partitions: int) -> None:
        """Open the tasks of a sub-topology: for each partition one database, and a task
        for each key range.

        They replace earlier tasks, and continue from their positions.
        """
        before = self._parts[part.id]
        self._parts[part.id] = []
        identity = Identity(self.topology, part, self._config)
        self._programs[part.id] = compiled(identity, native_parts())
        for old in (task for siblings in before for task in siblings):
            old.program.close()
            self._dropped_before.update(old.program.dropped)
        for partition in range(partitions):
            earlier = before[partition][0] if partition < len(before) else None
            tasks = self._siblings(part, partition, earlier)
            self._parts[part.id].append(tasks)
            self._tasks |= dict.fromkeys(tasks[0].sources, tasks)

    def _siblings(
        self,
        part: SubTopology,
        partition: int,
        earlier: Task | None,
    ) -> list[Task]:
        """Return new tasks of a partition, which continue from the positions of an
        earlier task.
        """
        positions = {
            TopicPartition(topic, partition): Position(0)
            for topic in part.topics
            if partition < self._partitions[topic]
        }
        times = {}
        if earlier is not None:
            for source in earlier.sources:
                positions[source] = earlier.progress.position(source)
                times[source] = earlier.program.operator_times(source.topic)
        database = self._database(part, partition)
        ranges = self._ranges if part.divisible else KeyRange.split(1)
        return [
            self._task(
                TaskId(part.id, partition, each),
                Progress.beginning(each, positions, times),
                database,
            )
            for each in ranges
        ]

    def _database(self, part: SubTopology, partition: int) -> Database:
        """Return the database of a partition of a sub-topology; made at the first call."""
        if (part.id, partition) not in self._databases:
            made = Database(Memory(), part.stores)
            if (folder := self._state_dir) is not None:
                where = partial(open_engine, folder / f"{part.id}_{partition}")
                made = open_database(
                    part.stores,
                    self._config["default.dsl.store"],
                    where,
                )
            self._databases[part.id, partition] = made
        return self._databases[part.id, partition]

    def _task(
        self,
        task_id: TaskId,
        progress: Progress,
        database: Database,
    ) -> Task:
        """Return a task; its rows are watched for changes in place."""
        program = self._programs[task_id.subtopology]
        native = tables(program.subtopology, self._config, caching=self._caching)
        cache_bytes = _CACHE_BYTES if self._state_dir is None else 0
        state = TaskState(
            database,
            program.subtopology.stores,
            task_id.key_range,
            cache_bytes,
            native,
        )
        self._changed_rows.watch(
            *(state.stores[name] for name in state.stores.keys() - native.keys())
        )
        session = self._sinks.session(program.subtopology, task_id.partition)
        # With one source partition nobody is behind: as in Kafka Streams' driver.
        topics = program.subtopology.topics
        as_sent = all(
            self._writers.get(topic, self._partitions[topic]) == 1 for topic in topics
        )
        task = Task(
            Incarnation(
                task_id,
                tuple(progress.partitions),
                state,
                progress,
                sink=session,
            ),
            program,
            self._on_failure(task_id),
            Tally(),
            TaskSettings(
                caching=self._caching,
                by_key=self._held is not None,
                max_idle_ms=self._config["max.task.idle.ms"],
                as_sent=as_sent,
            ),
            TaskServices(
                partitions=self._count,
                global_tables=self._globals,
                output=lambda topic: ordered(topic, self._order),
                host=self._host,
            ),
        )
        task.begin()
        # Behind a clock, tasks of one partition have no record to do in turn.
        task.program.elsewhere = bool(program.idle_ms) or (
            program.in_birth_order and not as_sent
        )
        if self._held is not None:
            task.program.elsewhere |= task.calls is not None and program.keys_suffice
            self._held.watch(task)
        return task

    def _on_failure(self, task: TaskId | None) -> OnFailure:
        """Return the failure handler of a task (None: of global tables), which keeps
        failures for the test.
        """
        topics = self._built.dead_letter_topics
        handle = FailureHandler(
            task,
            self._config,
            lambda *_: None,
            self._dead_letter,
            self._sayings,
            topics=topics,
        )

        def on_failure(failure: Failure) -> None:
            handle(failure)
            self.failures.append(failure)

        return on_failure

    def _route(self, source: TopicPartition) -> None:
        """Have the reader split a source partition for its tasks."""
        tasks = self._tasks[source]
        drops = may_drop(self._config)
        program = self._programs[tasks[0].id.subtopology]
        ranges = [task.id.key_range for task in tasks]
        operator_times = (
            program.operator_times_of(source.topic, may_drop=drops)
            if tasks[0].program.shared
            else None
        )
        marked = self._silences.listen(source, program.idle_ms.get(source.topic))
        if source.topic in self._writers:
            self._silences.expect_marks(source)
        timestamps = program.timestamp_of.get(source.topic)
        self._reader.route(
            source,
            ranges,
            timestamps,
            operator_times,
            time_marks=marked,
            advances=program.foresees,
            writers=self._writers.get(source.topic),
        )

    def _all_tasks(self) -> Iterator[Task]:
        """Yield the tasks, those of earlier sub-topologies first."""
        return (
            task
            for siblings in self._parts.values()
            for tasks in siblings
            for task in tasks
        )

    def _work(self) -> None:
        """Process records until none is left, or all that are left wait for another
        topic (`max.task.idle.ms`).
        """
        self._land()
        self._fetch()
        while any(
            self._go_on(source)
            for source in by_turn(self._at_hand, self._tasks)
            if source in self._at_hand  # not if one before it has found it done
        ):
            self._fetch()

    def _fetch(self) -> None:
        """Give the next record of each partition to its tasks. Partitions come in the
        order in which they were written.
        """
        self._release()
        at_hand = self._at_hand
        if not self._unread:
            return
        unread = self._unread
        self._unread = set()
        self._more |= {source for source in at_hand if source.topic in unread}
        found: dict[TopicPartition, Position] = {}
        for runs in self._reader.one_by_one(unread):
            self._tell_births(runs)
            for run in runs:
                self._tasks[run.partition][run.slot].add(run)
                if self._silences.heard(run, self.now_ms) or len(run.columns):
                    found[run.partition] = Position(
                        run.next_offset,
                        min([run.stream_time, *run.columns.timestamps]),
                    )
                    self._hold(run.partition, True)
                    if not run.at_end:
                        self._more.add(run.partition)
        if found:
            written = self._forwarded[self._fetched :]
            at_hand |= as_written(found, written, self._partitions)
        self._fetched = len(self._forwarded)

    def _tell_births(self, runs: Sequence[RecordBatch]) -> None:
        """Tell all tasks of a partition that take records as they are sent the birth of
        its last record. `runs`: the batches of all key ranges.
        """
        queues = self._tasks[runs[0].partition][0].queues
        if not isinstance(queues, BirthOrder) or not queues.as_sent:
            return
        born = [birth for run in runs for birth in run.columns.born]
        for run in runs if born else ():
            queues = self._tasks[run.partition][run.slot].queues
            assert isinstance(queues, BirthOrder)
            queues.reach(max(born), run.partition)

    def _release(self) -> None:
        """Let partitions read their next record once their last one, with all that
        follows from it, is processed.
        """
        for source, at in [*self._at_hand.items()]:
            if self._silences.over(source, at, self._tasks[source]):
                del self._at_hand[source]
                self._hold(source, False)
                if source in self._more:
                    self._more.remove(source)
                    self._unread.add(source.topic)

    def _hold(self, source: TopicPartition, held: bool) -> None:
        self._reader.hold(source, held)
        for task in self._tasks[source]:
            task.queues.hold(source, held)

    def _go_on(self, source: TopicPartition) -> bool:
        """Run the tasks of a partition until its record is processed; return whether
        they made progress.
        """
        until = self._at_hand[source].offset
        tasks = self._tasks[source]
        if len(tasks) > 1:
            # First the task that has the record; the others only advance their stream
            # time.
            tasks = sorted(tasks, key=lambda task: not task.queues.waiting(source))
        moved = False
        self._changed_rows.begin()
        try:
            try:
                for task in tasks:
                    waiting = task.queues.waiting(source)
                    while not task.is_through(source, until):
                        if task.step(single=True):
                            moved = True
                        elif self._held is not None or not task.wait_for_calls():
                            break
                    task.apply()
                    # Calls that have begun are progress, too.
                    moved = moved or task.queues.waiting(source) != waiting
            finally:
                # of two records with the same time, the existing one goes before one
                # that is written now
                self._fetch()
            self._changed_rows.check(lambda: _with_record(source, until - 1))
        finally:
            self._collect()
        self._mark_time(tasks)
        return moved

    def _mark_time(self, tasks: Sequence[Task]) -> None:
        """Append the time marks of tasks whose times have advanced."""
        for task in tasks:
            if not task.timed:
                continue
            due = task.marks.due(task.program.marks(), 0.0, 0.0)
            task.marks.stage(due, 0.0)
            task.marks.committed()
            for topic, time in due.items():
                mark = Mark.of(task.id.partition, task.id.key_range, time)
                count = self._partitions[topic]
                self._append(
                    topic,
                    [None] * count,
                    [None] * count,
                    [time] * count,
                    partitions=list(range(count)),
                    headers=[mark.headers] * count,
                )

    @contextmanager
    def _collecting(self, when: str) -> Iterator[None]:
        """Append the records that a task writes in the body to the log. `when`: the
        time in words, for the error of a row changed in place.
        """
        self._changed_rows.begin()
        try:
            yield
            self._changed_rows.check(lambda: when)
        finally:
            self._collect()

    def _collect(self) -> None:
        """Append the records that a task has written to the log, in the order in which
        they were forwarded.
        """
        if not self._order:
            return
        self._forward(in_order(self._order))
        outputs = dict.fromkeys(self._order)
        self._order.clear()
        for output in outputs:
            try:
                if output.topic in self._read_topics:
                    output.append_to(self._append)
                else:
                    self._log.check(output.topic, output.keys, output.values)
            finally:
                output.clear()

    def _forward(self, records: Sequence[Forwarded]) -> None:
        """Note records as outputs, and create the topics that do not exist, because a
        topic extractor chose them.
        """
        self._forwarded += records
        for record in records:
            if record.topic not in self._by_topic:
                self._by_topic[record.topic] = []
            self._by_topic[record.topic].append(record)
            if record.topic not in self._partitions:
                self._partitions[record.topic] = self._count(record.topic)
                self._log.create_topics(
                    [TopicSpec(record.topic, self._partitions[record.topic])]
                )

    def _append_one(self, record: Forwarded) -> None:
        """Append one record to the log."""
        topic, key, value, timestamp, headers, partition = record
        self._append(
            topic,
            [key],
            [value],
            [timestamp],
            partitions=[partition],
            headers=[headers],
        )

    def _append(self, topic: str, *columns: Any, **more: Any) -> None:
        """Append records to the log, after those that went directly to their tasks."""
        self._land()
        self._unread.add(topic)
        self._writer.append(topic, *columns, **more)

    def _dead_letter(
        self,
        failure: Failure,
        headers: Headers,
        topic: str,
    ) -> None:
        """Forward a dead letter, which the topology itself may read."""
        record = Forwarded(
            topic,
            failure.key,
            failure.value,
            failure.timestamp,
            headers,
            ANY_PARTITION,
        )
        self._forward([record])
        if topic in self._read_topics:
            self._append_one(record)
        else:
            self._log.check(topic, [record.key], [record.value])

    def _commit(self, task: Task) -> None:
        """Commit a task: its changelogs first, so that checkpoints name what is there."""
        checkpoints = {}
        with self._collecting("when the record caches were flushed"):
            batches = task.flush()
        for batch in batches:
            topic = changelog_topic(self.topology.application_id, batch.store)
            at = task.id.partition
            self._writer.append(
                topic,
                batch.keys,
                batch.values,
                batch.timestamps,
                partitions=at,
            )
            checkpoints[batch.store] = self._writer.delivered_to(
                TopicPartition(topic, at)
            )
        task.commit(checkpoints)


def _with_record(source: TopicPartition, offset: int) -> str:
    return f"with the record at {source.topic} partition {source.partition} offset {offset}"
