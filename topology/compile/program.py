"""Defines a compiled sub-topology, and its instance for one task.

`compile_subtopology` makes a `Program` once. Every task of the sub-topology binds it to
its own stores and gets a `BoundProgram`: records in (`process`), records out
(`outputs`). It has no I/O, no clock and no thread.

Invariant: between two calls a bound program holds no record: all its state is in its
stores, its outputs and its stream times.
Invariant: for the same records in the same order a program gives the same outputs,
whatever the batches are. Turned down: a callback for each output record, and one pair
of lists for all topics (a writer takes the lists of one topic).

Generated code (`topology/operators`, `task_processor`) calls a `BoundProgram` by the
name `process`: what only it uses is public as well, such as `held`, `want` and `place`.
Relies on: `operator_time` and `timed_topics` (what times mean), `coming_advances`.
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
from coopstreams.topology.compile.coming_advances import Foreseen, Place
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
from coopstreams.topology.external_sinks import Applied
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
from coopstreams.topology.stores import Entry, TableStore


@dataclass(frozen=True, slots=True)
class ProgramServices:
    """The functions and values that a task provides to its program."""

    output: Callable[[str], Output] = Output
    """A function that makes the output of a topic."""
    clock: Callable[[], int] = lambda: 0
    """A function that returns the wall-clock time of processors, in milliseconds."""
    partitions: Callable[[str], int] = lambda _: 1
    """A function that returns the partition count of a topic, for partitioners."""
    parts: Mapping[str, Sequence[Part]] = field(default_factory=dict)
    """The parts of the task's range that earlier runs had, by topic."""


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
    """A function from the parts of a `Variant` to the code, which the first call
    generates.
    """
    ahead: Program | None = None
    """The part of the program that runs ahead to find the calls that records need.
    None: no node is asynchronous.
    """
    keys_suffice: bool = False
    """Whether records of other keys may overtake a record that waits for a call: see
    `call_order.keys_suffice`.
    """
    foresees: bool = False
    """Whether tasks need the moments at which stream time advances: see
    `coming_advances.foresees`.
    """
    idle_ms: Mapping[str, int] = field(default_factory=dict)
    """The silence after which a topic's stream time advances. If any topic has one,
    tasks of whole partitions get operator times as well.
    """
    timed_sources: frozenset[str] = frozenset()
    """The timed topics that it reads, whose records have births."""
    in_birth_order: bool = False
    """Whether its tasks get records in the order of their births, with these as
    operator times: see `timed_topics`.
    """
    timed_sinks: Mapping[str, str] = field(default_factory=dict)
    """The timed topics that it writes, with births and time marks, and the node that
    writes each.
    """

    @property
    def by_birth(self) -> frozenset[str]:
        """The topics whose records are done in the order of births, not of offsets. In
        a topic of the user both are the same.
        """
        return self.timed_sources if self.in_birth_order else frozenset()

    @property
    def clocked(self) -> bool:
        """Whether the clock of its timed topic is the time of all its operators: see
        `timed_topics`.
        """
        return bool(self.timed_sources) and not self.in_birth_order

    @property
    def told_times(self) -> bool:
        """Whether its tasks get operator times from outside even if they have whole
        partitions.
        """
        return bool(self.idle_ms or self.timed_sinks or self.timed_sources)

    def operator_times_of(
        self,
        topic: str,
        *,
        may_drop: bool = True,
    ) -> OperatorTimeColumns | None:
        """Return the function by which the reader computes a shared topic's operator
        times, or None if the topic has none.

        `may_drop`: whether a failed record may be dropped while the task goes on.
        """
        if self.in_birth_order and topic not in self.timed_sources:
            return None  # each record's time is its birth
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
        partitions, so `advance` must give it the operator times of all keys.
        `by_key`: only the records of each key come in order. Each record has the
        operator times that it has in the order of the partition; `advance` gives the
        times up to which every record was processed.
        """
        shared = shared or by_key or self.told_times
        native: dict[bool, set[str]] = {True: set(), False: set()}
        for name, store in stores.items():
            rows = getattr(store, "rows", None)
            if rows is not None:
                native[rows.by_record].add(name)
        code = self.compiled(
            caching,
            shared,
            by_key,
            frozenset(native[False]),
            frozenset(native[True]),
        )
        return BoundProgram(
            self,
            code,
            stores,
            on_failure,
            services or ProgramServices(),
            shared=shared,
        )


class BoundProgram:
    """A program bound to one task.

    Shape: `outputs` by topic; the writer of the outputs calls `clear` on each.
    `shared`: the task gets only part of the records of its partitions, and gets the
    operator times from the reader. `elsewhere`: stream time may be advanced by time
    marks, or by records of tasks that run at their own speed. The owner of the task
    sets it. A test driver, which gives each record to one task and its time to all
    others, does not. `applied`: the records for the external sink, until their owner
    takes them.
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
        """The largest time below which no later record will be born: see `promise`."""
        self._sources = {
            topic: node
            for node in program.subtopology.nodes
            if isinstance(node, Source)
            for topic in node.topics
        }
        self._untimed: Counter[tuple[str, str]] = Counter()
        """The number of records dropped for their timestamp, by node and reason."""
        self._rows: list[int] | None = None
        """The indexes of the current records in the batch as it was read. None: no
        record of the batch was removed.
        """
        self._source = TopicPartition("", -1)
        self._columns: Columns | None = None
        self._entries: list[tuple[bytes, Entry]] = []
        self.held_row: tuple[bytes | None, int] | None = None
        """Key and timestamp of the held row that is being forwarded (see `held`). None:
        a record of the batch is being processed.
        """
        self.place: tuple[str, int, int] | None = None
        """Topic, partition and offset of the held row's record (`kept_headers`). None:
        those of the current record.
        """
        self._cursor: Iterator[object] = iter(())
        self.wall_clock = services.clock
        self.partitions = services.partitions
        self._parts = services.parts
        self.headers: Headers | None = None
        self._headed = False
        """Whether a batch with headers has come."""
        self.ending: BaseException | None = None
        """The exception that ends the batch: on its way it is no failure of a record."""
        self.punctuations: dict[PunctuationType, PunctuationQueue] = {
            "stream_time": PunctuationQueue(),
            "wall_clock": PunctuationQueue(),
        }
        self._works: list[Work] = []
        self.wanted: list[Wanted] = []
        """The calls that records need, in the part that runs ahead."""
        self.results = Results()
        self.applied: list[Applied] = []
        self._code = compiled.make(self, stores, self.outputs)
        order = [node.name for node in program.subtopology.nodes]
        self._works.sort(
            key=lambda work: order.index(work.name)
        )  # as Kafka Streams does: parents first

    def begin(self) -> None:
        """Make and initialise the processors. Call it on the thread that runs them,
        before the first record.

        Raises:
            Whatever the processors raise.
        """
        for work in self._works:
            work.begin()

    @property
    def dropped(self) -> dict[tuple[str, str], int]:
        """The number of records dropped since the binding, by node and reason."""
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
        """Process the records through the nodes, one after the other, each to its end.

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
        """Run the generated loop of `source` over these records."""
        run = self._code.sources[source.topic]
        self._source = source
        self._columns = columns
        nodes = self._compiled.operator_times[source.topic] if self.shared else ()
        operator_times = (
            (columns.operator_times or [[-1] * len(columns)] * len(nodes),)
            if nodes
            else ()
        )
        births = (columns.born,) if self._clocked else ()
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
        """Advance the partition's stream time, which records of other key ranges may
        have raised, and forward the results then due.

        Windows follow only the topics whose records reach them: a joined table may be
        years ahead of the stream. `operator_times`: where tasks share the partition,
        the times of the nodes in `Compiled.operator_times`, as the reader knows them.

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
        """Note the records, of any key range, at which the stream time of a topic's
        partition will advance.
        """
        self._foreseen.add(topic, advances, self._stream_times[topic])

    def punctuate(self, now_ms: int) -> bool:
        """Call the punctuations that are due by the wall clock. Return whether any was
        due.

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
        """The wall-clock time at which the next punctuation is due, or None if none is
        scheduled.
        """
        return self.punctuations["wall_clock"].next_ms

    def close(self) -> None:
        """Close all processors, even if some of them raise."""
        with ExitStack() as closing:
            for work in reversed(self._works):
                closing.callback(work.close)

    def resume(
        self,
        source: TopicPartition,
        stream_time: int,
        operator_times: OperatorTimes = (),
    ) -> None:
        """Set the partition's times to those at which an earlier run stopped. That run
        has forwarded all results due by then.

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
        """Restore the times that an earlier run has promised for timed topics beyond
        the stream time, so that commits include them.
        """
        times = self.resumed(source, -1, operator_times)
        nodes = self._compiled.operator_times[source.topic]
        for node, time in zip(nodes, times, strict=True):
            if time > stream_time and node in self._timed_sinks.values():
                self._promised = max(self._promised, time)

    def operator_times(self, topic: str) -> OperatorTimes:
        """Return the operator times of a topic for a commit."""
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
        """Return the time mark of each timed topic that the program writes: a lower
        bound of the births of all records that it will still write. -1: no bound is
        known.
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
        """Return, for each timed topic, the time that records of a source topic have
        reached on the way to it. Callable on any thread.

        `operator_times`: the operator times of the source topic.
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
        """Advance the times for the timed topics that a silent partition writes: no
        later record will be born before these times.
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
        """Return the parts of the task's range on each topic, with the time at which a
        node resumes in each part; -1: unknown.
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
        commit; without caching it does nothing.

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
        """Make and return the output of a topic that has none yet.

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
        """Return the object that runs a processor node in this task."""
        if isinstance(node, AsyncProcessing):
            return EffectsWork(stores, self, children, by_name)
        work = Work(node, stores, self, children, by_name)
        self._works.append(work)
        return work

    def task_time(self) -> int:
        """Return the largest timestamp of the records processed so far, including the
        current record; -1 if there is none.
        """
        known = max(self._stream_times.values())
        return (
            known
            if self._columns is None
            else max(known, self._columns.stream_times[self._index(len(self._columns))])
        )

    def where(self) -> RecordMetadata | None:
        """Return where the current record was read, or None in a punctuation or a
        flush.
        """
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
        """Call `call`; the records that it writes get these headers."""
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
        """Call the nodes below a processor, under these headers. An exception from them
        ends the batch; it is not a failure of the processor.
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
        """Pass an error of a punctuation to the failure handler."""
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
        """Pass the failure of the current record, or of the row being forwarded, to the
        failure handler.

        `site`: the index in `Compiled.sites`.
        """
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
        """Pass a failure to the handler. What that raises is kept as `ending`: on its
        way up `fail` meets it again, and lets it pass.
        """
        try:
            self._on_failure(failure)
        except BaseException as ending:
            self.ending = ending
            raise

    def held(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield rows (key first, timestamp last) that an operator held back. A failure
        before the next yield is reported for the yielded row.
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
        """Add the call of a node for the current record to `wanted`."""
        i = self.at_hand()[2]
        row = i if self._rows is None else self._rows[i]
        self.wanted.append(Wanted(row, node, key, value))

    def result(self, node: str) -> Any:
        """Return the result of a node's call for the current record.

        Raises:
            Exception: the error of the call.
        """
        _, columns, i = self.at_hand()
        return self.results.take(node, columns.offsets[i])

    def at_hand(self) -> tuple[TopicPartition, Columns, int]:
        """Return the current partition and batch, and the index of the current
        record.
        """
        assert self._columns is not None
        return self._source, self._columns, self._index(len(self._columns))

    def flushing(
        self,
        entries: list[tuple[bytes, Entry]],
    ) -> Iterator[tuple[bytes, Entry]]:
        """Return an iterator over table entries. The entry that it returned last is the
        current one, which failures name.
        """
        self._entries = entries
        at_hand = iter(entries)
        self._cursor = at_hand
        return self._giving_their_headers(at_hand) if self._headed else at_hand

    def _flushed(self) -> tuple[bytes | None, int]:
        """Return key and timestamp of the table entry that is being flushed; None and
        -1 if no entries are being flushed.
        """
        if not self._entries:
            return None, -1
        key, entry = self._entries[self._index(len(self._entries))]
        return key, entry.timestamp

    def _index(self, length: int) -> int:
        """Return the index of the current record or entry, from the number of items
        left in the cursor. So no loop needs a counter.
        """
        return length - self._cursor.__length_hint__() - 1  # type: ignore[attr-defined, no-any-return]

    def _giving_headers(
        self,
        keys: Iterable[bytes | None],
        headers: Sequence[Headers | None],
    ) -> Iterator[bytes | None]:
        """Yield the keys. After each, set its record's headers on the records that were
        written for it.

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
        """Yield the entries. After each, set its headers on the records that were
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
        """Yield the keys. Punctuations that other ranges' records have made due are
        called before each key, those that the key's own record makes due after it.
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
        """Call the punctuations that are due by records of any key range before an
        offset, each with the time that made it due.
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
    """The code that was generated for a program under the conditions of one
    `operators.compiler.Variant` (record cache or none, siblings or none), not yet bound
    to a task.
    """

    text: str
    """The generated source, for people and tracebacks."""
    sites: tuple[tuple[Phase, str], ...]
    """The phase and node of each place in the code where a record can fail."""
    drops: tuple[tuple[str, str], ...]
    """The node and reason of each place in the code that drops a record.

    Shape: the reason is `null-key`, `null-value`, `late`, `timestamp`, `no-partition`,
    `not-the-latest` or `stale-answer`.
    """
    make: Callable[[Any, Mapping[str, TableStore], Mapping[str, Output]], Code]
    """A function that binds the code to one task, given the `BoundProgram` that the
    code calls, its stores and its outputs.
    """
    operator_times: Mapping[str, tuple[str, ...]]
    """For each topic, the nodes whose stream time its records advance."""
    operators: Mapping[str, Operator]
    """The nodes with a stream time of their own, which commits contain because some
    records of their topics may not reach them.
    """


@dataclass(frozen=True, slots=True)
class Code:
    """The generated code of one task, closed over the task's stores and outputs."""

    sources: Mapping[str, Callable[..., None]]
    """For each topic, the function that processes `(keys, values, timestamps,
    stream_times)` and the columns of operator times, if any.
    """
    flushes: Sequence[Callable[[], None]]
    """The functions that forward the record caches' updates, parents before children.
    """
    dropped: list[int]
    """The number of dropped records, in the order of `Compiled.drops`."""
    reached: Mapping[str, Callable[[Sequence[int], bool], None]]
    """For each topic, the function that advances the operator times of its nodes
    without a record. With True, it forwards the results that are then due.
    """
    times: Mapping[str, Callable[[], list[int]]]
    """For each topic, the function that returns the times up to which its nodes have
    processed every record.
    """
    observed: Callable[[], None]
    """The function that advances the window stores to the operator times."""
    expired: Callable[[], None]
    """The function that deletes the rows that have expired by the stream times of the
    partitions, and forwards the deletions.
    """
    headers_come: Callable[[], None]
    """The function that makes record caches keep the headers of records with the rows
    that they hold back.
    """
