"""A compiled sub-topology, and its instance for one task.

`compile_subtopology` makes a `Program` once. Every task of the sub-topology binds it to
its own stores and gets a `BoundProgram`: records in (`process`), records out
(`outputs`). No I/O, no clock, no thread.

Invariant: between two calls a bound program holds no record: all its state is in its
stores, its outputs and its stream times.
Invariant: for the same records in the same order a program gives the same outputs,
however they are cut into batches. Turned down: a callback for each output record, and
one pair of lists for all topics (a writer takes those of one).
"""

from __future__ import annotations

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
from sys import maxsize
from typing import Any

from coopstreams.topology.columns import (
    Advances,
    Columns,
    Headers,
    TopicPartition,
)
from coopstreams.topology.compile.call_order import Results, Wanted
from coopstreams.topology.compile.foreseen import Foreseen, Place
from coopstreams.topology.compile.operator_time import (
    Operator,
    OperatorTimeColumns,
    OperatorTimes,
    Part,
    operator_time_columns,
)
from coopstreams.topology.compile.outputs import Output
from coopstreams.topology.compile.punctuations import PunctuationQueue
from coopstreams.topology.compile.task_processor import Children, EffectsWork, Work
from coopstreams.topology.compile.timestamps import TimestampColumn, as_written, valid
from coopstreams.topology.failures import Failure, OnFailure, Phase
from coopstreams.topology.graph.nodes import (
    AsyncProcessing,
    Processing,
    Source,
    SubTopology,
)
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.naming import check_name
from coopstreams.topology.processors import PunctuationType, RecordMetadata
from coopstreams.topology.sinks import Applied
from coopstreams.topology.stores import Entry, TableStore


@dataclass(frozen=True, slots=True)
class ProgramServices:
    """What a program asks of its task."""

    output: Callable[[str], Output] = Output
    """Makes the output of a topic."""
    clock: Callable[[], int] = lambda: 0
    """The wall clock of processors, in milliseconds."""
    partitions: Callable[[str], int] = lambda _: 1
    """The partition count of a topic, for partitioners."""
    parts: Mapping[str, Sequence[Part]] = field(default_factory=dict)
    """The parts of the task's range, by topic."""


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled sub-topology: made once, bound by each of its tasks.

    Shape: `sinks` are the topics that it writes. `timestamp_of` has the source topics
    with a timestamp extractor.
    """

    subtopology: SubTopology
    sinks: tuple[str, ...]
    timestamp_of: Mapping[str, TimestampColumn]
    compiled: Callable[..., Compiled]
    """(record cache on, partition shared with other tasks, records in the order of
    their keys only, names of the stores with rows in native memory) -> the code,
    generated on the first call.
    """
    ahead: Program | None = None
    """The part that runs ahead, to find the calls that records need; None: no node is
    asynchronous.
    """
    keys_suffice: bool = False
    """Whether records of other keys may pass one that waits for a call: see
    `calls.keys_suffice`.
    """
    foresees: bool = False
    """Whether tasks are to be told where stream time advances: see `foreseen.foresees`.
    """
    idle_ms: Mapping[str, int] = field(default_factory=dict)
    """The silence after which a topic's stream time advances. With any, whole
    partitions get operator times, too.
    """
    clocked: bool = False
    """Whether all its times are the clock of its topic: see `timed_topics`."""
    timed_sinks: Mapping[str, str] = field(default_factory=dict)
    """The topics that it writes to with births and time marks, and the node of each."""

    @property
    def told_times(self) -> bool:
        """Whether its tasks are told operator times, also those of whole partitions."""
        return bool(self.idle_ms or self.timed_sinks) or self.clocked

    def operator_times_of(
        self,
        topic: str,
        *,
        may_drop: bool = True,
    ) -> OperatorTimeColumns | None:
        """Return the function by which the reader computes a shared topic's operator
        times; None if it has none.

        `may_drop`: whether a record that fails may be dropped, so that others go on.
        """
        nodes = self.compiled(False, True, False).operator_times[topic]
        return (
            operator_time_columns(self.subtopology, topic, nodes, may_drop=may_drop)
            if nodes
            else None
        )

    def bind(
        self,
        stores: Mapping[str, TableStore],
        on_failure: OnFailure,
        services: ProgramServices | None = None,
        *,
        caching: bool,
        shared: bool = False,
        by_key: bool = False,
    ) -> BoundProgram:
        """Return the program over these stores (by name), for use by one thread.

        `caching`: each `flush` forwards the latest update of a table's row, instead of
        every update at once. `shared`: the task has only part of the keys of its
        partitions, so `advance` must give it the operator times of all.
        `by_key`: its records come in the order of their keys only, with the operator
        times that each has in the order of the partition; `advance` gives it those up
        to which every record was processed.
        """
        shared = shared or by_key or self.told_times
        native = frozenset(
            name
            for name, store in stores.items()
            if getattr(store, "rows", None) is not None
        )
        return BoundProgram(
            self,
            self.compiled(caching, shared, by_key, native),
            stores,
            on_failure,
            services or ProgramServices(),
            shared=shared,
        )


class BoundProgram:
    """A program bound to one task.

    Shape: `outputs` by topic; the writer of the outputs calls `clear` on each.
    `shared`: the task is given only part of the records of its partitions, and is told
    the operator times. `elsewhere`: records that advance stream time go to tasks that
    run at their own speed, or time marks advance it. The owner of the task sets it; a
    test driver, which gives each record to one task and its time to all others, does
    not. `applied`: the records for the external sink, until their owner takes them.
    """

    def __init__(
        self,
        program: Program,
        compiled: Compiled,
        stores: Mapping[str, TableStore],
        on_failure: OnFailure,
        services: ProgramServices,
        *,
        shared: bool,
    ) -> None:
        self.outputs: dict[str, Output] = {
            topic: services.output(topic) for topic in program.sinks
        }
        self._output = services.output
        self.shared = self.elsewhere = shared
        self._on_failure = on_failure
        self._compiled = compiled
        self._stream_times = dict.fromkeys(program.subtopology.topics, -1)
        self._foreseen = Foreseen(program.subtopology.topics)
        self.foresees = program.foresees
        self._clocked = program.clocked
        self._timed_sinks = program.timed_sinks
        self._promised = -1
        """The time that was promised for all records to come: see `promise`."""
        self._sources = {
            topic: node
            for node in program.subtopology.nodes
            if isinstance(node, Source)
            for topic in node.topics
        }
        self._untimed: Counter[tuple[str, str]] = Counter()
        """Records dropped for their timestamp, by node and reason."""
        self._rows: list[int] | None = None
        """The indexes of the current records in the batch as it came; None: they are
        all of it.
        """
        self._source = TopicPartition("", -1)
        self._columns: Columns | None = None
        self._entries: list[tuple[bytes, Entry]] = []
        self.held_row: tuple[bytes | None, int] | None = None
        """Key and timestamp of the row at hand among those of `held`; None: the current
        record is.
        """
        self.place: tuple[str, int, int] | None = None
        self._cursor: Iterator[object] = iter(())
        self.wall_clock = services.clock
        self.partitions = services.partitions
        self._parts = services.parts
        self.headers: Headers | None = None
        self._headed = False
        self.ending: BaseException | None = None
        self.punctuations: dict[PunctuationType, PunctuationQueue] = {
            "stream_time": PunctuationQueue(),
            "wall_clock": PunctuationQueue(),
        }
        self._works: list[Work] = []
        self.wanted: list[Wanted] = []
        self.results = Results()
        self.applied: list[Applied] = []
        self._code = compiled.make(self, stores, self.outputs)
        order = [node.name for node in program.subtopology.nodes]
        self._works.sort(
            key=lambda work: order.index(work.name)
        )  # as Kafka Streams does: parents first

    def begin(self) -> None:
        """Make the processors, and initialise them: on the thread that runs them,
        before the first record.

        Raises:
            Whatever they raise.
        """
        for work in self._works:
            work.begin()

    @property
    def dropped(self) -> dict[tuple[str, str], int]:
        """How many records were dropped since the binding, by node and reason."""
        by_operators = {
            drop: count
            for drop, count in zip(
                self._compiled.drops,
                self._code.dropped,
                strict=True,
            )
            if count
        }
        return by_operators | dict(self._untimed)

    def process(self, source: TopicPartition, columns: Columns) -> None:
        """Run the records through the nodes, one after the other, each to its end.

        Raises:
            Whatever the failure handler raises. The batch is then processed in part:
            discard state and outputs.
        """
        if not columns.keys:
            return
        reached = columns.stream_times[-1]
        self.held_row = self.ending = None
        self._rows = None
        # One look at a batch: a branch in the generated loop would cost each record.
        if columns.earliest < 0:
            node = self._sources[source.topic]
            self._rows = valid(node, source, columns, self._hand_over, self._untimed)
            columns = columns.pick(self._rows)
        if len(columns):
            self._run(source, columns)
        self.advance(source, reached)

    def _run(self, source: TopicPartition, columns: Columns) -> None:
        run = self._code.sources[source.topic]
        self._source = source
        self._columns = columns
        nodes = self._compiled.operator_times[source.topic] if self.shared else ()
        operator_times = (
            (columns.operator_times or [[-1] * len(columns)] * len(nodes),)
            if nodes
            else ()
        )
        births = (
            (columns.timestamps if columns.births is None else columns.births,)
            if self._clocked
            else ()
        )
        values = iter(columns.values)
        self._cursor = values
        keys: Iterable[bytes | None] = (
            columns.keys if not self._works else self._punctuating(columns)
        )
        if columns.headers is not None:
            if not self._headed:
                self._headed = True
                self._code.headers_come()
            keys = self._giving_headers(keys, columns.headers)
        try:
            run(
                keys,
                values,
                columns.timestamps,
                columns.stream_times,
                *births,
                *operator_times,
            )
        except BaseException:
            self._give_headers(
                self.headers
            )  # what was written for the record before it failed
            raise
        finally:
            self._columns = self.headers = None

    def advance(
        self,
        source: TopicPartition,
        stream_time: int,
        operator_times: Sequence[int] = (),
    ) -> None:
        """Advance the partition's stream time, also by records of other key ranges, and
        forward the results then due.

        Windows follow only the topics whose records reach them: a joined table may be
        years ahead of the stream. `operator_times`: where tasks share the partition,
        the values of `Compiled.operator_times` as the reader knows them.

        Raises:
            Whatever the failure handler raises.
        """
        self.held_row = self.ending = None
        self._punctuate_before(source.topic, stream_time, maxsize)
        if stream_time > self._stream_times[source.topic]:
            self._stream_times[source.topic] = stream_time
        if operator_times and self.shared:
            self._source = source
            self._entries = []
            self._code.reached[source.topic](operator_times, True)
        self._code.expired()
        self._code.observed()
        if self._works:
            for work in self._works:
                work.observe(self.task_time())
            self._punctuate("stream_time", self.task_time())

    def foresee(self, topic: str, advances: Iterable[Advances]) -> None:
        """Take in where the stream time of a topic's partition advances: also at
        records of other key ranges.
        """
        self._foreseen.add(topic, advances, self._stream_times[topic])

    def punctuate(self, now_ms: int) -> bool:
        """Call the punctuations that are due by the wall clock; return whether there
        were any.

        Raises:
            Whatever the failure handler raises.
        """
        return self._punctuate("wall_clock", now_ms)

    @property
    def may_punctuate(self) -> bool:
        """Whether there are processors, which may schedule punctuations at any time."""
        return bool(self._works)

    @property
    def next_punctuation_ms(self) -> int | None:
        """The time at which `punctuate` has something to do next; None if there is no
        such punctuation.
        """
        return self.punctuations["wall_clock"].next_ms

    def close(self) -> None:
        """Close the processors, each of them, whatever another one raises."""
        with ExitStack() as closing:
            for work in reversed(self._works):
                closing.callback(work.close)

    def resume(
        self,
        source: TopicPartition,
        stream_time: int,
        operator_times: OperatorTimes = (),
    ) -> None:
        """Set the partition's times to those at which an earlier run stopped, which has
        forwarded all results due by then.

        Call it before the first record.
        """
        self._stream_times[source.topic] = max(
            stream_time,
            self._stream_times[source.topic],
        )
        if times := self.resumed(source, stream_time, operator_times):
            self._code.reached[source.topic](times, False)
            self._code.observed()

    def resumed(
        self,
        source: TopicPartition,
        stream_time: int,
        operator_times: OperatorTimes = (),
    ) -> list[int]:
        """Return the operator times of a topic's nodes, given the times at which an
        earlier run stopped.
        """
        operators = self._compiled.operators
        nodes = self._compiled.operator_times[source.topic]
        return [operators[node].time(operator_times, stream_time) for node in nodes]

    def keep_promises(
        self,
        source: TopicPartition,
        stream_time: int,
        operator_times: OperatorTimes,
    ) -> None:
        """Let commits tell what an earlier run has promised for timed topics, which the
        stream time does not reach.
        """
        times = self.resumed(source, -1, operator_times)
        nodes = self._compiled.operator_times[source.topic]
        for node, time in zip(nodes, times, strict=True):
            if time > stream_time and node in self._timed_sinks.values():
                self._promised = max(self._promised, time)

    def operator_times(self, topic: str) -> OperatorTimes:
        """Return the times for a commit."""
        if not (nodes := self._compiled.operator_times[topic]):
            return ()
        times = zip(nodes, self._code.times[topic](), strict=True)
        most = (
            maxsize if self._clocked else max(self._stream_times[topic], self._promised)
        )
        # What is later than the partition comes from another topic. Where all records
        # were dropped, it is 0: without a time, the operator would go on at the
        # partition's.
        known = [
            (self._compiled.operators[node], min(time, most)) for node, time in times
        ]
        return tuple(
            sorted(
                (operator.id, max(0, time))
                for operator, time in known
                if time >= 0 or (operator.follows and most >= 0)
            )
        )

    def marks(self) -> dict[str, int]:
        """Return the time mark of each timed topic that the program writes to: a lower
        bound of the births of all that it will still write. -1: no bound is known.
        """
        known = {
            node: time
            for topic, times in self._code.times.items()
            for node, time in zip(
                self._compiled.operator_times[topic],
                times(),
                strict=True,
            )
        }
        return {topic: known[node] for topic, node in self._timed_sinks.items()}

    def reached(self, topic: str, operator_times: Sequence[int]) -> dict[str, int]:
        """Return the times that a batch of a source topic has reached on the way to
        each timed topic. Any thread.
        """
        times = dict(
            zip(self._compiled.operator_times[topic], operator_times, strict=False)
        )
        return {
            sink: times[node]
            for sink, node in self._timed_sinks.items()
            if node in times
        }

    def promise(self, source: TopicPartition, times: Mapping[str, int]) -> None:
        """Advance the times of what a silent partition writes to timed topics: no record
        to come will be born before.
        """
        self._promised = max(self._promised, *times.values())
        by_node = {self._timed_sinks[topic]: time for topic, time in times.items()}
        nodes = self._compiled.operator_times[source.topic]
        self.advance(source, -1, [by_node.get(node, -1) for node in nodes])

    def parts_of(
        self,
        node: str,
        topics: Sequence[str],
    ) -> list[list[tuple[KeyRange, int]]]:
        """Return the parts of the task's range on each topic, with the first stream
        time of each for a node; -1: unknown.
        """
        operator = self._compiled.operators[node]
        return [
            [
                (part.key_range, operator.time(part.operator_times, part.stream_time))
                for part in self._parts.get(topic, ())
            ]
            for topic in topics
        ]

    def flush(self) -> None:
        """Forward the updates that the record caches hold. Call it once before each
        commit; without caching, a no-op.

        Raises:
            Whatever the failure handler raises.
        """
        self.held_row = self.ending = None
        for flush in self._code.flushes:
            flush()
            # what is forwarded next may be of other rows: a suppression's, or one that
            # has expired
            self._entries = []

    def stream_time(self, topics: Sequence[str]) -> int:
        """Return the largest stream time that any of these topics has reached; -1 if
        none has a record.
        """
        return max((self._stream_times[topic] for topic in topics), default=-1)

    def begin_output(self, topic: str) -> Output:
        """Return a new output for a topic that has none yet.

        Raises:
            TopologyError: the topic's name is not legal in Kafka.
        """
        self.outputs[check_name(topic, "the topic")] = output = self._output(topic)
        return output

    def begin_work(
        self,
        node: Processing,
        stores: Mapping[str, TableStore],
        children: Children,
        by_name: Mapping[str, Children],
    ) -> Work | EffectsWork:
        """Return the work of a processor node in this task."""
        if isinstance(node, AsyncProcessing):
            return EffectsWork(stores, self, children, by_name)
        work = Work(node, stores, self, children, by_name)
        self._works.append(work)
        return work

    def task_time(self) -> int:
        """Return the largest timestamp of the records taken in, the current one
        included; -1 if there is none.
        """
        known = max(self._stream_times.values())
        return (
            known
            if self._columns is None
            else max(known, self._columns.stream_times[self._index(len(self._columns))])
        )

    def where(self) -> RecordMetadata | None:
        """Return where the current record was read; None in a punctuation or a flush."""
        if self.place is not None:
            return RecordMetadata(*self.place) if self.place[2] >= 0 else None
        if self._columns is None:
            return None
        source, columns, i = self.at_hand()
        return RecordMetadata(source.topic, source.partition, columns.offsets[i])

    def under_headers(
        self,
        headers: Headers | None,
        call: Callable[[], object],
    ) -> None:
        """Make a call; the records that it writes get these headers."""
        if headers == (before := self.headers):
            call()
            return
        self._give_headers(before)
        self.headers = headers
        try:
            call()
        finally:
            self._give_headers(headers)
            self.headers = before

    def pass_on(self, headers: Headers | None, call: Callable[[], object]) -> None:
        """Make a call of the nodes below a processor, under these headers. What it
        raises is no failure of the processor: it ends the batch.
        """
        try:
            self.under_headers(headers, call)
        except BaseException as ending:
            self.ending = ending
            raise

    def fail_punctuation(
        self,
        node: str,
        error: Exception,
        now_ms: int,
    ) -> None:
        """Hand an error of a punctuation to the failure handler."""
        self._hand_over(
            Failure(
                "processing",
                node,
                error,
                self._source,
                None,
                None,
                None,
                now_ms,
                None,
            )
        )

    def fail(self, site: int, error: Exception) -> None:
        """Hand the current record, or table entry, to the failure handler."""
        if error is self.ending:
            raise error  # the error ends the batch, and passes through a processor
        phase, node = self._compiled.sites[site]
        record: tuple[
            TopicPartition, int | None, bytes | None, bytes | None, int, Headers | None
        ]
        if self.held_row is not None or self._columns is None:
            key, timestamp = self.held_row or self._flushed()
            record = self._source, None, key, None, timestamp, None
        else:
            source, columns, i = self.at_hand()
            headers = columns.headers[i] if columns.headers is not None else None
            timestamp = as_written(columns.timestamps[i])
            record = (
                source,
                columns.offsets[i],
                columns.keys[i],
                columns.values[i],
                timestamp,
                headers,
            )
        self._hand_over(Failure(phase, node, error, *record))

    def _hand_over(self, failure: Failure) -> None:
        try:
            self._on_failure(failure)
        except BaseException as ending:
            self.ending = ending
            raise

    def held(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield rows (key first, timestamp last) that were held back until now: what
        fails meanwhile is theirs.
        """
        before = self.held_row
        for row in rows:
            self.held_row = row[0], row[-1]
            yield row
        self.held_row = before

    def want(
        self,
        node: str,
        key: Any,
        value: Any,
    ) -> None:
        """Note in `wanted` that a node is to be called for the current record."""
        i = self.at_hand()[2]
        row = i if self._rows is None else self._rows[i]
        self.wanted.append(Wanted(row, node, key, value))

    def result(self, node: str) -> Any:
        """Return the result of a node's call for the current record.

        Raises:
            Exception: the call's error.
        """
        _, columns, i = self.at_hand()
        return self.results.take(node, columns.offsets[i])

    def at_hand(self) -> tuple[TopicPartition, Columns, int]:
        """Return the current partition and batch, and the index of the current record."""
        assert self._columns is not None
        return self._source, self._columns, self._index(len(self._columns))

    def flushing(
        self,
        entries: list[tuple[bytes, Entry]],
    ) -> Iterator[tuple[bytes, Entry]]:
        """Return an iterator over table entries; the current entry is the one that it
        returned last.
        """
        self._entries = entries
        at_hand = iter(entries)
        self._cursor = at_hand
        return self._giving_their_headers(at_hand) if self._headed else at_hand

    def _flushed(self) -> tuple[bytes | None, int]:
        """Return key and timestamp of the entry that is being flushed."""
        if not self._entries:
            return None, -1
        key, entry = self._entries[self._index(len(self._entries))]
        return key, entry.timestamp

    def _index(self, length: int) -> int:
        """Return the index of the current record, from the length of the cursor's rest:
        no loop needs a counter.
        """
        return length - self._cursor.__length_hint__() - 1  # type: ignore[attr-defined, no-any-return]

    def _giving_headers(
        self,
        keys: Iterable[bytes | None],
        headers: Sequence[Headers | None],
    ) -> Iterator[bytes | None]:
        """Yield the keys; after each, set its headers on the records that were written
        for it.

        So compiled code needs no code for headers, and a batch without headers costs
        nothing.
        """
        self._give_headers(None)
        for key, self.headers in zip(keys, headers, strict=True):
            yield key
            self._give_headers(self.headers)

    def _giving_their_headers(
        self,
        entries: Iterator[tuple[bytes, Entry]],
    ) -> Iterator[tuple[bytes, Entry]]:
        """Yield the entries, and after each give its headers to the records that were
        written for it.
        """
        self._give_headers(None)
        for key, entry in entries:
            self.headers = entry.headers
            entry.headers = None
            yield key, entry
            self._give_headers(self.headers)
        self.headers = None

    def _give_headers(self, headers: Headers | None) -> None:
        for output in self.outputs.values():
            output.give_headers(headers)

    def _punctuating(self, columns: Columns) -> Iterator[bytes | None]:
        """Yield the keys. Call what other ranges' records have made due before each,
        what its own has, after it.
        """
        topic = self._source.topic
        queue = self.punctuations["stream_time"]
        for key, now, offset in zip(
            columns.keys,
            columns.stream_times,
            columns.offsets,
            strict=True,
        ):
            if queue.due(now):
                self._punctuate_before(topic, now, offset)
            yield key
            if queue.due(now):
                self._stream_times[topic] = max(now, self._stream_times[topic])
                self._punctuate("stream_time", self.task_time())

    def _punctuate_before(
        self,
        topic: str,
        now_ms: int,
        offset: int,
    ) -> None:
        """Call the punctuations that records of any key range in front of a place have
        made due, each at its time.
        """
        queue = self.punctuations["stream_time"]
        times = self._stream_times
        while (due := queue.next_ms) is not None and due <= now_ms:
            if (
                found := self._foreseen.first(due, times, Place(topic, now_ms, offset))
            ) is None:
                return
            advanced_ms, where = found
            times[where] = advanced_ms
            self._punctuate("stream_time", advanced_ms)

    def _punctuate(self, type_: PunctuationType, now_ms: int) -> bool:
        if not self.punctuations[type_].due(now_ms):
            return False
        columns = self._columns
        headers = self.headers
        self._give_headers(headers)
        self._columns = None
        self.headers = None
        self._entries = []
        self.held_row = self.ending = None
        try:
            return self.punctuations[type_].punctuate(now_ms)
        finally:
            self._give_headers(None)
            self._columns = columns
            self.headers = headers


@dataclass(frozen=True, slots=True)
class Compiled:
    """The code of a program for one setting of the record cache, not yet bound to a
    task.
    """

    text: str
    """The generated source, for people and tracebacks."""
    sites: tuple[tuple[Phase, str], ...]
    """Phase and node of each place where a record can fail."""
    drops: tuple[tuple[str, str], ...]
    """Node and reason of each place that drops a record.

    Shape: the reason is `null-key`, `null-value`, `late`, `timestamp`, `no-partition`,
    `not-the-latest` or `stale-answer`.
    """
    make: Callable[[Any, Mapping[str, TableStore], Mapping[str, Output]], Code]
    """Given the `program.BoundProgram` that the code calls, its stores and its outputs,
    returns the code.
    """
    operator_times: Mapping[str, tuple[str, ...]]
    """Topic to the nodes whose stream time its records advance."""
    operators: Mapping[str, Operator]
    """The nodes with a stream time, which is in the commits: some records of their
    topics may not reach them.
    """


@dataclass(frozen=True, slots=True)
class Code:
    """Generated code, closed over the stores and outputs of one task."""

    sources: Mapping[str, Callable[..., None]]
    """Topic to the function over `(keys, values, timestamps, stream_times)` and the
    columns of operator times, if any.
    """
    flushes: Sequence[Callable[[], None]]
    """The functions that forward the record caches' updates, parents before children.
    """
    dropped: list[int]
    """How many records were dropped, in the order of `Compiled.drops`."""
    reached: Mapping[str, Callable[[Sequence[int], bool], None]]
    """Topic to the function that advances the operator times of its nodes without a
    record; with True it forwards the results that are then due.
    """
    times: Mapping[str, Callable[[], list[int]]]
    """Topic to the function that returns the operator times of its nodes, up to which
    every record was processed.
    """
    observed: Callable[[], None]
    """Advances the window stores to the operator times."""
    expired: Callable[[], None]
    """Deletes the rows that have expired by the stream times of the partitions, and
    forwards the deletions.
    """
    headers_come: Callable[[], None]
    """Makes record caches keep the headers of records with the rows that they hold
    back.
    """
