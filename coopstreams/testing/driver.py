"""A topology at work without a broker, one record at a time, with every result at hand.

The program, the stores, the routing by key range are those of production; log and database are in memory. Each input is processed to
its end, through all repartition topics, before `send` returns, so that results come in the order in which they were forwarded.

    with TopologyTestDriver(topology, ranges=4) as driver:
        driver.input("lines", serdes.raw, serdes.text).send(b"", "to be or not to be")
        assert driver.output("word-counts", serdes.text, serdes.int64).latest() == {"to": 2, "be": 2, "or": 1, "not": 1}
        assert driver.store("counts").get("be") == 2

Invariant: the same inputs give the same tables and, for each key, the same outputs for every number of ranges.
Time stands still at 0 until `advance` moves it; it is the timestamp of records that are sent without one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from coopstreams.config import Config
from coopstreams.log.log import Position, Run, TopicSpec
from coopstreams.log.memory import MemoryLog
from coopstreams.state.database import Database
from coopstreams.state.engines import open_database, open_engine
from coopstreams.state.global_updates import rows_of
from coopstreams.state.memory import Memory
from coopstreams.state.task_state import TaskState
from coopstreams.tasks.failures import handler
from coopstreams.tasks.repeats import Sayings
from coopstreams.testing.fronts import Fronts
from coopstreams.testing.ordered import ordered
from coopstreams.testing.views import InputTopic, OutputRecord, OutputTopic, StoreView
from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.compile import compile_subtopology
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.failures import Failure, OnFailure
from coopstreams.topology.keys import WHOLE, KeyRange, partition_of
from coopstreams.topology.naming import changelog_topic, internal_topic
from coopstreams.topology.nodes import DynamicSink, Sink, SubTopology, Topology
from coopstreams.topology.outputs import ANY_PARTITION, Output
from coopstreams.topology.partitions import check_partitions
from coopstreams.topology.patterns import matched
from coopstreams.topology.program import BoundProgram, Program
from coopstreams.topology.serdes import Serde, raw
from coopstreams.topology.task_id import TaskId
from coopstreams.topology.windows import duration_ms

K = TypeVar("K")
V = TypeVar("V")
AnySerde: TypeAlias = Serde[Any] | None

_CACHE_BYTES = 1 << 40


class TopologyTestDriver:
    """Runs a topology in this thread, on a log and stores in memory.

    `ranges`: into how many key ranges, and so tasks, each partition is split. `partitions`: of each topic that is not internal, or by topic.
    `config`: settings by name, for example the exception handlers. `caching`: table updates are held back until `commit`, as by the
    record cache in production. `state_dir`: an empty folder for stores that are kept as in production; without it they are all in memory.
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
    ) -> None:
        self.now_ms = 0
        self.failures: list[Failure] = []
        """What failed and was dropped, or sent to the dead-letter topic, because a handler said so."""
        self._config = Config.of({"bootstrap.servers": "in-memory", **(config or {})}, topology.application_id)
        self._built = self.topology = topology
        self._given_partitions = partitions
        self._caching = caching
        dead_letters = self._config["errors.dead.letter.queue.topic.name"]
        self._dead_letters = [] if dead_letters is None else [dead_letters]
        self._state_dir = state_dir
        self._sayings = Sayings()
        self._log = MemoryLog()
        self._writer = self._log.writer()
        self._reader = self._log.reader()
        self._forwarded: list[OutputRecord[bytes | None, bytes | None]] = []
        self._waiting: dict[TopicPartition, deque[list[Run]]] = {}
        self._fronts: Fronts[TopicPartition] = Fronts(self._front)
        self._tasks: dict[TopicPartition, list[_Task]] = {}
        self._globals = {table.store.name: rows_of(table, lambda: self.now_ms) for table in topology.global_tables}
        self._parts: dict[int, list[list[_Task]]] = {}
        self._databases: dict[tuple[int, int], Database] = {}
        self._dropped_before: Counter[tuple[str, str]] = Counter()
        self._ranges = KeyRange.split(ranges)
        self._partitions: dict[str, int] = {}
        self._serdes = {node.topic: node for part in topology.subtopologies for node in part.nodes if isinstance(node, Sink)}
        self._dynamic = next((node for part in topology.subtopologies for node in part.nodes if isinstance(node, DynamicSink)), None)
        self._begin()

    def __enter__(self) -> TopologyTestDriver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of everything; nothing is left anywhere."""
        self._sayings.close()
        for task in self._all_tasks():
            task.program.close()
        self._reader.close()
        self._writer.close()
        for database in self._databases.values():
            database.close()
        for rows in self._globals.values():
            rows.close()

    def advance(self, time: timedelta | int) -> None:
        """Move the driver's clock on, by a timedelta or milliseconds; what is due by it is done. Stream time moves with records only."""
        self.now_ms += duration_ms(time, "advance: the time")
        for task in self._all_tasks():
            try:
                task.program.punctuate(self.now_ms)
            finally:
                self._collect(task)
        self._work()

    def input(self, topic: str, key: Serde[K], value: Serde[V]) -> InputTopic[K, V]:
        """Return a topic to send records to. One that a pattern of the topology matches is there from now on.

        Raises:
            TopologyError: the topology does not read it.
        """
        if topic not in self.topology.source_topics and topic in matched(self._built, [topic]).source_topics:
            self.commit()
            self._begin(topic)
        return InputTopic(self._send, _one_of(topic, self.topology.source_topics, "reads no topic"), key, value)

    def output(self, topic: str, key: Serde[K], value: Serde[V]) -> OutputTopic[K, V]:
        """Return a topic to read results from.

        Raises:
            TopologyError: the topology does not write it.
        """
        if self._dynamic is None:
            _one_of(topic, [*self._serdes, *self._dead_letters], "writes no topic")
        return OutputTopic(lambda: [self._read(record, key, value) for record in self._forwarded if record.topic == topic])

    def outputs(self) -> list[OutputRecord[Any, Any]]:
        """Return all that was written, to any topic that is not internal, in the order in which it was forwarded."""
        internal = {topic.name for topic in self.topology.internal_topics}
        return [self._read(record) for record in self._forwarded if record.topic not in internal]

    @property
    def forwarded(self) -> int:
        """How many records `outputs` has; asked by a function of the topology, those written up to that call of it."""
        internal = {topic.name for topic in self.topology.internal_topics}
        written = [record.topic for record in self._forwarded] + [output.topic for task in self._all_tasks() for output in task.order]
        return sum(topic not in internal for topic in written)

    def store(self, name: str) -> StoreView:
        """Return a store to look into: what is in it now, committed or not.

        Raises:
            TopologyError: there is no such store.
        """
        if name in self._globals:
            return StoreView(self._globals[name].spec, [[(WHOLE, self._globals[name])]])
        specs = {spec.name: (part.id, spec) for part in self.topology.subtopologies for spec in part.stores}
        number, spec = specs[_one_of(name, list(specs), "has no store")]
        return StoreView(spec, [[(task.id.range, task.state.stores[name]) for task in siblings] for siblings in self._parts[number]])

    @property
    def dropped(self) -> dict[tuple[str, str], int]:
        """How many records each node dropped, and why: (node name, `null key` | `null value` | `late` | `timestamp` | `no partition`) to count."""
        total = Counter(self._dropped_before)
        for task in self._all_tasks():
            total.update(task.program.dropped)
        return dict(total)

    def commit(self) -> None:
        """Forward what the record caches hold back, to the end, and write the stores and their changelogs."""
        while True:
            before = len(self._forwarded)
            for task in self._all_tasks():
                try:
                    task.program.flush()
                finally:
                    self._collect(task)
                self._write_state(task)
                self._work()
            if len(self._forwarded) == before:
                return

    def _send(self, topic: str, key: bytes | None, value: bytes | None, *, timestamp: int | None, headers: Headers | None, at: int | None) -> None:
        timestamps = [self.now_ms if timestamp is None else timestamp]
        rows_of_it = [self._globals[table.store.name] for table in self.topology.global_tables if table.topic == topic]
        if rows_of_it and at is None:
            at = partition_of(key or b"", self._partitions[topic])
        self._writer.append(topic, [key], [value], timestamps, partitions=at, headers=[headers])
        for rows in rows_of_it:
            source = TopicPartition(topic, at or 0)
            columns = Columns([key], [value], timestamps, [self._log.end_offset(source) - 1], timestamps, headers=[headers])
            rows.apply(source, columns, self._on_failure(None))
        self._work()

    def _begin(self, *topics: str) -> None:
        """Have these topics besides those that the topology names, and tasks that read them."""
        counts, read = self._create_topics(topics), set(self._tasks)
        for part, count in zip(self.topology.subtopologies, counts, strict=True):
            opened = self._parts.setdefault(part.id, [])
            if len(opened) != count or (opened and opened[0][0].compiled.subtopology.topics != part.topics):
                self._open(part, count)
        self._reader.assign({source: Position(self._log.end_offset(source) if source in read else 0) for source in self._tasks})
        self._route(set(self._tasks) - read)

    def _create_topics(self, more: Sequence[str]) -> tuple[int, ...]:
        """Return how many partitions each sub-topology has."""
        sinks = [node.topic for part in self._built.subtopologies for node in part.nodes if isinstance(node, Sink) and not node.internal]
        named = [*sinks, *self._dead_letters, *more]
        self.topology = matched(self._built, [*named, *self._partitions]).optimized(self._config["topology.optimization"])
        given = self._partitions | {topic: self._count(topic) for topic in [*self.topology.source_topics, *named]}
        resolved = check_partitions(self.topology, given)
        self._log.create_topics([TopicSpec(topic, count) for topic, count in given.items()])
        self._log.create_topics([TopicSpec(plan.name, plan.partitions, plan.config) for plan in resolved.internal])
        self._partitions = {topic: count for topic, count in (given | dict(resolved.partitions)).items() if count}
        return resolved.tasks

    def _count(self, topic: str) -> int:
        """Return how many partitions a topic has, or will have when something is written to it."""
        given = self._given_partitions
        return self._partitions.get(topic) or (given.get(topic, 1) if isinstance(given, Mapping) else given)

    def _open(self, part: SubTopology, partitions: int) -> None:
        """Open the tasks of a sub-topology: for each partition, one a key range, over one database. Those that were open end here."""
        program, before = compile_subtopology(self.topology, part), self._parts[part.id]
        self._parts[part.id] = []
        for partition in range(partitions):
            tasks = [self._task(program, TaskId(part.id, partition, piece), self._database(part, partition)) for piece in self._pieces(part)]
            self._parts[part.id].append(tasks)
            for old, task in zip(before[partition] if partition < len(before) else [], tasks, strict=False):
                old.program.close()
                self._dropped_before.update(old.program.dropped)
                for topic in old.compiled.subtopology.topics:
                    task.program.resume(TopicPartition(topic, partition), old.program.stream_time([topic]))
            self._tasks |= {TopicPartition(topic, partition): tasks for topic in part.topics if partition < self._partitions[topic]}

    def _database(self, part: SubTopology, partition: int) -> Database:
        if (part.id, partition) not in self._databases:
            where = None if self._state_dir is None else partial(open_engine, self._state_dir / f"{part.id}_{partition}")
            default = self._config["default.dsl.store"]
            self._databases[part.id, partition] = open_database(part.stores, default, where) if where else Database(Memory(), part.stores)
        return self._databases[part.id, partition]

    def _task(self, program: Program, task_id: TaskId, database: Database) -> _Task:
        state = TaskState(database, program.subtopology.stores, task_id.range, _CACHE_BYTES if self._state_dir is None else 0)
        order: list[Output] = []
        bound = program.bind(
            {**state.stores, **self._globals},
            self._on_failure(task_id),
            caching=self._caching,
            shared=not task_id.range.is_whole,
            output=lambda topic: ordered(topic, order),
            clock=lambda: self.now_ms,
            partitions=self._count,
        )
        bound.elsewhere = False
        return _Task(task_id, program, bound, state, order)

    def _on_failure(self, task: TaskId | None) -> OnFailure:
        handle = handler(task, self._config, lambda *_: None, self._dead_letter, self._sayings)

        def on_failure(failure: Failure) -> None:
            handle(failure)
            self.failures.append(failure)

        return on_failure

    def _pieces(self, part: SubTopology) -> list[KeyRange]:
        return self._ranges if part.divisible else KeyRange.split(1)

    def _route(self, sources: Collection[TopicPartition]) -> None:
        for source in sources:
            compiled = self._tasks[source][0].compiled
            self._reader.route(source, self._pieces(compiled.subtopology), compiled.timestamp_of.get(source.topic), compiled.clocks_of(source.topic))
            self._waiting[source] = deque()

    def _all_tasks(self) -> Iterator[_Task]:
        """Yield the tasks, those of earlier sub-topologies first."""
        return (task for siblings in self._parts.values() for tasks in siblings for task in tasks)

    def _work(self) -> None:
        """Process records until none is left: of those in front, the one with the lowest timestamp first, as a task of Kafka Streams."""
        while (source := self._next_source()) is not None:
            runs = self._waiting[source].popleft()
            if self._waiting[source]:
                self._fronts.offer(source)
            # The task that has the record first: the others hear of the time.
            for run, task in sorted(zip(runs, self._tasks[source], strict=True), key=lambda pair: not len(pair[0].columns)):
                try:
                    task.program.process(source, run.columns)
                finally:
                    self._collect(task)
                try:
                    task.program.advance(source, run.stream_time, run.clocks)
                finally:
                    self._collect(task)

    def _next_source(self) -> TopicPartition | None:
        while runs := self._reader.fetch(1, 0.0):
            # One record at most, so all runs with records are of one partition: the slots of its ranges.
            if any(len(run.columns) for run in runs):
                source = next(run.partition for run in runs if len(run.columns))
                self._waiting[source].append([run for run in runs if run.partition == source])
                if len(self._waiting[source]) == 1:
                    self._fronts.offer(source)
        return self._fronts.poll() if self._fronts else None

    def _front(self, source: TopicPartition) -> int:
        """Return the timestamp of the first record of a source that waits."""
        return max(run.columns.timestamps[0] for run in self._waiting[source][0] if len(run.columns))

    def _collect(self, task: _Task) -> None:
        """Put what a task wrote into the log, in the order in which it was forwarded."""
        taken: Counter[str] = Counter()
        for output in task.order:
            i, headers, partitions = taken[output.topic], output.headers, output.partitions
            taken[output.topic] += 1
            self._forward(
                output.topic,
                output.keys[i],
                output.values[i],
                output.timestamps[i],
                headers[i] if headers is not None else None,
                partitions[i] if partitions is not None else ANY_PARTITION,
            )
        for output in task.program.outputs.values():
            output.clear()
        task.order.clear()

    def _forward(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, at: int = ANY_PARTITION) -> None:
        self._forwarded.append(OutputRecord(topic, key, value, timestamp, list(headers or ()), None if at == ANY_PARTITION else at))
        if topic not in self._partitions:
            self._partitions[topic] = self._count(topic)
            self._log.create_topics([TopicSpec(topic, self._partitions[topic])])
        self._writer.append(topic, [key], [value], [timestamp], partitions=[at], headers=[headers])

    def _dead_letter(self, failure: Failure, headers: Headers) -> None:
        self._forward(self._dead_letters[0], failure.key, failure.value, max(0, failure.timestamp), headers)

    def _read(self, record: OutputRecord[bytes | None, bytes | None], key: AnySerde = None, value: AnySerde = None) -> OutputRecord[Any, Any]:
        """Return a record with key and value as objects, by these serdes or those of the sink."""
        sink = self._serdes.get(record.topic) or self._dynamic
        read_key, read_value = key or (sink.key if sink else raw), value or (sink.value if sink else raw)
        return replace(
            record,
            key=None if record.key is None else read_key.deserialize(record.key),
            value=None if record.value is None else read_value.deserialize(record.value),
        )

    def _write_state(self, task: _Task) -> None:
        checkpoints = {}
        for batch in task.state.changes():
            changelog = TopicPartition(internal_topic(self.topology.application_id, changelog_topic(batch.store)), task.id.partition)
            self._writer.append(changelog.topic, batch.keys, batch.values, batch.timestamps, partitions=changelog.partition)
            checkpoints[batch.store] = self._writer.delivered_to(changelog)
        task.state.commit(checkpoints)


@dataclass(frozen=True, slots=True)
class _Task:
    id: TaskId
    compiled: Program
    program: BoundProgram
    state: TaskState
    order: list[Output]
    """The output of each record that was forwarded since the last look, in order."""


def _one_of(name: str, known: Sequence[str], lacks: str) -> str:
    if name in known:
        return name
    near = get_close_matches(name, known, n=1)
    raise TopologyError(f'the topology {lacks} "{name}"' + (f'; did you mean "{near[0]}"?' if near else f"; it knows {', '.join(known) or 'none'}"))
