"""An open task: its program, its state and its progress, used by the one thread that
owns it.

The way of a record:

    add          into the queue: `queues`, or `birth_order` behind timed topics
    step         in the order of the queue, through `program`; with asynchronous operators
                 first through `pending_calls`; then `progress` is behind it
    apply        external sinks get their records: `sink_transactions`
    flush        record caches let their updates go, changed rows become changelog records
    commit       rows go into the database; `discard` ends an interval without effects

The owner writes the program's outputs after each `step` and `flush`. The owner is a stream
thread of an instance, the test driver or a backfill. It decides where records come
from, where outputs go and what time it is; the order of records, and all other
processing, is the same for every owner.

Invariant: between two commits the database is unchanged; the effects of `step` are in
memory and in the open transaction.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import (
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
from typing import TYPE_CHECKING

from coopstreams.commit.sink_transactions import Applying
from coopstreams.log.log import NO_STREAM_TIME, Position, RecordBatch
from coopstreams.state.checkpoints import NEVER_TRUE
from coopstreams.state.task_state import ChangelogBatch
from coopstreams.tasks.birth_order import BirthOrder, Own
from coopstreams.tasks.hot_key_groups import Heat
from coopstreams.tasks.incarnation import (
    Incarnation,
    TaskServices,
    TaskSettings,
    committed_positions,
    parts_of,
    store_times,
)
from coopstreams.tasks.mark_schedule import MarkSchedule
from coopstreams.tasks.pending_calls import PendingCalls
from coopstreams.tasks.promised_times import read_time_of
from coopstreams.tasks.queues import (
    MOST_AT_ONCE,
    STEP_S,
    Pace,
    SourceQueues,
    Step,
    next_run,
)
from coopstreams.tasks.tally import Tally
from coopstreams.tasks.task_figures import TaskFigures
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.program import BoundProgram, Program, ProgramServices
from coopstreams.topology.compile.timestamps import as_written
from coopstreams.topology.external_sinks import SinkSession
from coopstreams.topology.failures import Failure, OnFailure
from coopstreams.topology.graph.nodes import Sink
from coopstreams.topology.keys import KeyRange

if TYPE_CHECKING:
    pass

MOST_TAKEN = 1000
"""The most records whose calls begin at once. Then the limit on their bytes is checked.
"""

APPLIED_S = 1.0
"""How long a transaction of an external sink may take. Units: seconds.

Kafka's transaction stays open meanwhile, and its broker waits for neither.
"""

log = logging.getLogger(__name__)


class Task:
    """An open task.

    Shape: `processed` counts records since the opening. `leaving`: the task is being
    closed, and takes no more records.
    """

    def __init__(
        self,
        opened: Incarnation,
        program: Program,
        on_failure: OnFailure,
        tally: Tally,
        settings: TaskSettings,
        services: TaskServices,
    ) -> None:
        self._services = services
        self._host = services.host
        self._spans = services.spans
        self._on_failure = (
            on_failure if self._spans is None else self._spans.noting(on_failure)
        )
        self.id = opened.id
        self.sources = opened.sources
        self.state = opened.state
        self.progress = opened.progress
        self.epoch = opened.epoch
        self.tally = tally
        self.processed = 0
        self.closed = False
        self.leaving = False
        self.drains_until: float | None = None
        """Until when the task, which is being closed, waits for its calls at the longest
        (`Host.now`); None: it does not wait.
        """
        # In this order: the stores begin at the times of the progress, which the order of
        # births reads otherwise; the program has the stores; the queues begin where the
        # progress is, and calls look at all of them.
        self.progress.by_birth = program.by_birth
        self.own_sources = tuple(
            source
            for source in (opened.sources if program.in_birth_order else ())
            if source.topic not in program.by_birth
        )
        """The sources in the order of births that are topics of the user: while they
        are silent, the task promises their times to itself.
        """
        self.heat = Heat(len(opened.id.key_range.groups.numbers))
        self.state.begin(
            store_times(program.subtopology, opened.progress),
            by_birth=program.in_birth_order and not settings.as_sent,
        )
        by_key = settings.by_key and program.keys_suffice
        self.program = self._bound(program, settings, by_key=by_key)
        self._resume()
        self.queues = self._queues(program, settings)
        self.timed = bool(program.timed_sinks)
        """Whether the task writes to timed topics."""
        self.promises = self.timed and not program.timed_sources
        """Whether the task promises times to readers while its sources are silent."""
        keeps_promises = self.timed and not program.in_birth_order
        self._reached_later = {
            source: ahead
            for source in (opened.sources if keeps_promises else ())
            if (ahead := self._times_ahead(source))
        }
        """Per source, the operator times that parts of the range have reached, with
        their offsets.
        """
        self.calls = self._pending_calls(program, by_key=by_key)
        """The records that wait for calls; None: no node is asynchronous."""
        self.applying = self._applying(program, opened.sink)
        """Applies the task's records to its external sink; None: it has none."""
        self.idle_ms = program.idle_ms
        self.marks = MarkSchedule()
        self.progress.tells_times = self.promises or bool(self.own_sources)
        self._pace = Pace()
        self._applying_pace = Pace(APPLIED_S)
        self._sinks = {
            node.topic: node.name
            for node in program.subtopology.nodes
            if isinstance(node, Sink)
        }
        self._singles: deque[Step] = deque()
        """Steps of one record each, taken from the queues and not yet processed."""
        self._at_most = MOST_AT_ONCE
        """About how many records the current `step` may process."""
        self._at: Step | None = None
        """The step that was processed last; None if a flush or a punctuation made the
        outputs.
        """
        self.figures = TaskFigures.of(self)
        """The figures that other threads read. `publish` replaces them as a whole."""

    def publish(self) -> None:
        """Replace `figures`, which other threads read."""
        self.figures = TaskFigures.of(self)

    def _resume(self) -> None:
        """Let the windows of the program close as they would have for the earlier
        owners.
        """
        for source in self.sources:
            start = self.progress.lowest(source)
            self.program.resume(source, start.stream_time, start.operator_times)
            for part in self.progress.segments(source):
                self.program.keep_promises(
                    source,
                    part.stream_time,
                    part.operator_times,
                )

    def _queues(
        self,
        program: Program,
        settings: TaskSettings,
    ) -> SourceQueues | BirthOrder:
        """Return the queues of the sources, at the lowest positions."""
        positions = [
            (source, self.progress.position(source)) for source in self.sources
        ]
        if not program.in_birth_order:
            return SourceQueues(positions, settings.max_idle_ms)
        return BirthOrder(
            positions,
            self._services.folder,
            own={source: self._own(source) for source in self.own_sources},
            as_sent=settings.as_sent,
        )

    def _pending_calls(
        self,
        program: Program,
        *,
        by_key: bool,
    ) -> PendingCalls | None:
        """Return the calls of the asynchronous nodes; None: there is none."""
        if program.ahead is None:
            return None
        return PendingCalls(
            program,
            self.program,
            self.state.stores,
            self.progress,
            self._on_failure,
            self._host,
            by_key=by_key,
            spans=self._spans,
        )

    def _applying(
        self,
        program: Program,
        session: SinkSession | None,
    ) -> Applying | None:
        """Return what applies records to the external sink; None: there is none."""
        sink = program.subtopology.applies_to
        if session is None or sink is None:
            return None
        return Applying(
            session,
            sink.name,
            self.sources[0],
            self.progress,
            self._on_failure,
        )

    def _bound(
        self,
        program: Program,
        settings: TaskSettings,
        *,
        by_key: bool,
    ) -> BoundProgram:
        """Return the program, bound to the task's stores and to the times of its
        earlier owners.
        """
        services = self._services
        parts = {
            source.topic: parts_of(
                self.progress.segments(source),
                apart=not settings.exactly_once,
            )
            for source in self.sources
        }
        # It skips some records of a partition, at least at first.
        shared = not self.id.key_range.is_whole or self.progress.parted
        return program.bind(
            {**self.state.stores, **services.global_tables},
            self._on_failure,
            ProgramServices(
                output=services.output,
                clock=self._host.wall_ms,
                partitions=services.partitions,
                parts=parts,
            ),
            caching=settings.caching,
            shared=shared,
            by_key=by_key,
        )

    def begin(self) -> None:
        """Create and initialise the processors.

        Call it first, on the thread that owns the task.

        Raises:
            Whatever the processors raise.
        """
        self.program.begin()

    def _times_ahead(self, source: TopicPartition) -> list[tuple[int, list[int]]]:
        """Return the position and the operator times of each part of the key range that
        was committed further than the part with the lowest position.

        These times may come from a time that the task has promised to readers of timed
        topics (`promised_times`), so the records alone would not give them.
        """
        lowest = self.progress.lowest(source).position
        return [
            (
                part.position,
                self.program.resumed(source, part.stream_time, part.operator_times),
            )
            for part in self.progress.segments(source)
            if part.position > lowest
        ]

    def _with_times_ahead(self, batch: RecordBatch) -> RecordBatch:
        """Return the batch with the operator times that parts of the range had reached
        up to its end.
        """
        source = batch.partition
        left: list[tuple[int, list[int]]] = []
        for offset, times in self._reached_later[source]:
            if batch.next_offset < offset:
                left.append((offset, times))
            else:
                batch = batch.reached(offset, times)
        if left:
            self._reached_later[source] = left
        else:
            del self._reached_later[source]
        return batch

    def add(self, batch: RecordBatch) -> None:
        """Queue a batch of records that the reader has fetched."""
        if self.progress.by_birth:
            unseen = self.progress.unseen(batch.partition, batch.columns)
            batch = replace(batch, columns=unseen)
        if batch.partition in self._reached_later:
            batch = self._with_times_ahead(batch)
        self.program.foresee(batch.partition.topic, batch.advances)
        self.queues.add(batch)

    def _own(self, source: TopicPartition) -> Own:
        """Return what the order of births needs of a topic of the user."""
        operators = self.program.resumed(source, NO_STREAM_TIME)
        return Own(
            len(operators),
            [
                Position(part.position, self._reached_with(part.key_range))
                for part in self.progress.segments(source)
            ],
        )

    def _reached_with(self, key_range: KeyRange) -> int:
        """Return the latest birth that earlier owners of this range have reached."""
        return max(
            part.stream_time
            for source in self.sources
            if source.topic in self.progress.by_birth
            for part in self.progress.segments(source)
            if part.key_range.intersect(key_range) is not None
        )

    def clock(self, source: TopicPartition) -> int:
        """Return the time before which no further record of a source is born, in the
        order of births. Callable on any thread.
        """
        assert isinstance(self.queues, BirthOrder)
        return self.queues.clock(source)

    def read_to(self, source: TopicPartition) -> int:
        """Return the offset below which each record of a source is done, or waits until
        its birth is reached.
        """
        if source in self.own_sources:
            return self.queues.received(source)
        return self.progress.read_to(source)

    def is_through(self, source: TopicPartition, offset: int) -> bool:
        """Return whether all records of a source below an offset were processed, or wait
        for the clock of a timed topic.
        """
        if not isinstance(self.queues, BirthOrder):
            return self.progress.position(source).offset >= offset
        reached = self.read_to(source) >= offset
        return reached and not self._singles and not self.queues.has_steps(source)

    def promise(self, source: TopicPartition, times: Mapping[str, int]) -> None:
        """Promise that no record of a silent source that is still to come will be born
        before these times, by topic: those to which the task writes, or else the source
        itself.
        """
        if isinstance(self.queues, BirthOrder):
            self.queues.promise(source, times[source.topic])
        else:
            self.program.promise(source, times)

    def step(self, *, single: bool = False, most: int = MOST_AT_ONCE) -> bool:
        """Process records for about `STEP_S`; return whether there may be more. Outputs
        collect in `program.outputs`.

        `single`: process one record at most, so that `refused` knows the source record
        of an output. `most`: stop after about this many records.
        """
        self._at_most = min(most, MOST_AT_ONCE)
        began = now = self._host.now()
        first_ms = -1
        more = False
        done = 0
        for run in self._runs(now, single=single):
            records = self._process(run, now)
            first = run[0].columns
            if first_ms < 0 and len(first):
                first_ms = first.timestamps[0]
            before = now
            now = self._host.now()
            self._pace.took(records, now - before)
            done += records
            full = len(self.program.applied) >= self._most_applied
            if single or full or done >= self._at_most or now - began > STEP_S:
                more = True
                break
        # Once a batch: the clock and the histogram cost as much as a few records.
        if first_ms >= 0:
            self._services.latency(max(0, self._host.wall_ms() - first_ms) / 1000)
        return more

    def process_now(self, batch: RecordBatch) -> None:
        """Process a batch of at most one record at once, past the queues, which must be
        empty. There may be no asynchronous operators.

        Raises:
            Whatever the failure handler raises.
        """
        assert self.calls is None
        self.program.foresee(batch.partition.topic, batch.advances)
        step = Step(
            batch.partition,
            batch.columns,
            batch.next_offset,
            batch.stream_time,
            batch.operator_times,
        )
        self._process([step], self._host.now())
        self.apply()

    def pass_by(
        self,
        source: TopicPartition,
        next_offset: int,
        stream_time: int,
    ) -> None:
        """Note that a source was read up to its end, and processed by `process_now`."""
        assert isinstance(self.queues, SourceQueues)
        self.queues.pass_by(source, next_offset, stream_time)

    def _process(self, run: Sequence[Step], now: float) -> int:
        """Process the steps of a run; return how many records they have.

        The progress moves behind the last step. A run that fails is in part in the state
        and the outputs, as a step that fails: they are discarded.
        """
        done: dict[TopicPartition, Step] = {}
        unseen_from: dict[TopicPartition, int] = {}
        records = 0
        for step in run:
            self._at = step
            records += len(step.columns)
            columns = self._unseen(step, unseen_from)
            if len(columns):
                self._call_functions(step.source, columns, now)
            if self.calls is not None:
                for reached in self.calls.passed(len(columns)):
                    self.program.advance(*reached)
                continue
            self._reach_end_of(step, columns)
            done[step.source] = step
        for source, last in done.items():
            if last.ahead is None:
                self.progress.advance(source, last.next_offset, last.stream_time)
            else:
                self.progress.born_up_to(source, last.next_offset, last.ahead)
        return records

    def _unseen(self, step: Step, unseen_from: dict[TopicPartition, int]) -> Columns:
        """Return the records of a step without those that were processed before the
        reader went back.

        `unseen_from`: for sources of which the run had a step, the offset from which on
        no record was processed before the run.
        """
        columns = step.columns
        # Pending calls and the order of births have left them out.
        if self.calls is not None or self.progress.by_birth or not len(columns):
            return columns
        source = step.source
        if source not in unseen_from:
            unseen_from[source] = self.progress.unseen_from(source)
        if columns.offsets[0] >= unseen_from[source]:
            return columns
        return self.progress.unseen(source, columns)

    def _reach_end_of(self, step: Step, columns: Columns) -> None:
        """Advance the program's stream time to that of a step. `columns`: the records of
        it that were processed; the program has advanced to the last of them by itself.
        """
        is_there = len(columns) and columns.stream_times[-1] == step.stream_time
        if not is_there or step.operator_times:
            self.program.advance(step.source, step.stream_time, step.operator_times)

    def _call_functions(
        self, source: TopicPartition, columns: Columns, now: float
    ) -> None:
        """Process records of a step with the program."""
        if self._spans is None:
            self.program.process(source, columns)
        else:
            self._spans.process(
                self.program,
                source,
                columns,
                taken=self.calls is not None,
            )
        self.processed += len(columns)
        self.heat.look(columns.keys, now)
        if self._services.placing is not None:
            self._services.placing.look(source, columns.keys)

    def _runs(self, now: float, *, single: bool) -> Iterator[Sequence[Step]]:
        """Yield the steps that may be processed now, in order, in runs: sources that
        take turns have many short steps, so what may be done once a run is not done
        once a step. Steps of one record that are left from an earlier call come first.
        """
        yield from self._left()
        if self.calls is None:
            while run := next_run(self.queues, self._size(single=single), now):
                yield run
            return
        for step in self._called(self.calls, now, single=single):
            if single and len(step.columns) > 1:
                self._singles.extend(step.singles())
                yield from self._left()
            else:
                yield [step]

    def _left(self) -> Iterator[Sequence[Step]]:
        while self._singles:
            yield [self._singles.popleft()]

    def _called(
        self,
        calls: PendingCalls,
        now: float,
        *,
        single: bool,
    ) -> Iterator[Step]:
        """Yield the steps whose calls have ended; begin the calls of the records behind
        them.
        """
        self._begin_calls(calls, now)
        while calls.look():
            yield from calls.ready(self._size(single=single))
            self._begin_calls(calls, now)

    def _size(self, *, single: bool) -> int:
        if single:
            return 1
        return min(self._pace.most, self._most_applied, self._at_most)

    @property
    def _most_applied(self) -> int:
        """The most records that the external sink may get next; without a sink, the
        most records of a step.
        """
        if self.applying is None:
            return MOST_AT_ONCE
        return max(self._applying_pace.most, min(self.applying.ahead, MOST_AT_ONCE))

    def _begin_calls(self, calls: PendingCalls, now: float) -> None:
        """Begin the calls of as many queued records as `calls` has room for."""
        while (
            not self.leaving
            and (room := min(calls.room, MOST_TAKEN))
            and (step := self.queues.next(room, now)) is not None
        ):
            calls.begin(step)

    def waits_for_calls(self) -> bool:
        """Begin calls for which there is room; return whether all records taken in wait
        for calls.
        """
        if self.calls is None or self._singles:
            return False
        self._begin_calls(self.calls, self._host.now())
        return self.calls.oldest is not None and not self.calls.look()

    def wait_for_calls(self) -> bool:
        """Block until a call has ended, a second at most; return False if no call is
        being made.
        """
        return self.calls is not None and self.calls.wait(1.0)

    @property
    def retries(self) -> int:
        """The number of repeated calls of asynchronous operators."""
        return 0 if self.calls is None else self.calls.retries

    @property
    def last_step(self) -> str:
        """The records of the last step, in words."""
        if self._at is None or not len(self._at.columns):
            return "windows that closed by stream time"
        source = self._at.source
        offsets = self._at.columns.offsets
        which = (
            f"the record at offset {offsets[0]}"
            if len(offsets) == 1
            else f"the records from offset {offsets[0]} to {offsets[-1]}"
        )
        return f'{which} of "{source.topic}" partition {source.partition}'

    @property
    def last_key(self) -> bytes | None:
        """The key of the last step's record; None: it has no key, or the step has not
        exactly one record.
        """
        if self._at is None or len(self._at.columns) != 1:
            return None
        return self._at.columns.keys[0]

    def refused(
        self,
        topic: str,
        key: bytes | None,
        timestamp: int,
        error: Exception,
    ) -> None:
        """Pass an output that its topic refuses to the failure handler.

        The failure names the last step's record, or, if the step had several, only the
        key of the output.

        Raises:
            Whatever the failure handler raises.
        """
        step = self._at
        node = self._sinks.get(topic, topic)
        if step is None or len(step.columns) != 1:
            at = self.sources[0], None, key, None, timestamp, None
            self._on_failure(Failure("production", node, error, *at))
            return
        records = step.columns
        self._on_failure(
            Failure(
                "production",
                node,
                error,
                step.source,
                records.offsets[0],
                records.keys[0],
                records.values[0],
                as_written(records.timestamps[0]),
                None if records.headers is None else records.headers[0],
            )
        )

    @property
    def uncommitted(self) -> str:
        """The records processed since the last commit, in words."""
        between = [
            (
                source,
                self.progress.durable(source),
                self.progress.position(source).offset,
            )
            for source in self.sources
        ]
        return ", ".join(
            f'"{source.topic}" partition {source.partition} offsets {start} to {end - 1}'
            for source, start, end in between
            if start < end
        )

    def punctuate(self, now_ms: int) -> None:
        """Run the wall-clock punctuations that are due. Outputs collect in
        `program.outputs`.
        """
        self._at = None
        self.program.punctuate(now_ms)

    def punctuation_due(self, now_ms: int) -> bool:
        """Return whether a wall-clock punctuation is due.

        Call it often: it notices when the clock is set back.
        """
        queue = self.program.punctuations["wall_clock"]
        queue.look(now_ms)
        return queue.due(now_ms)

    def apply(self, *, all_of_it: bool = False) -> int:
        """Apply the records noted in `program.applied` to the external sink; return how
        many it applied.

        `all_of_it`: see `Applying.apply`.

        Raises:
            Whatever `Applying.apply` raises.
        """
        if self.applying is None:
            return 0
        began = self._host.now()
        try:
            applied = self.applying.apply(self.program.applied, all_of_it=all_of_it)
        finally:
            self.program.applied.clear()
        self._applying_pace.took(applied, self._host.now() - began)
        return applied

    def flush(self) -> Sequence[ChangelogBatch]:
        """Forward the updates of the record caches to `program.outputs`; return the
        changelog records to write.
        """
        self._at = None
        if self.calls is not None:
            for reached in self.calls.reached():
                self.program.advance(*reached)
        self.program.flush()
        if self.calls is None:
            for source in self.sources:
                self.progress.tell(source, self.program.operator_times(source.topic))
        if isinstance(self.queues, BirthOrder):
            for source in self.own_sources:
                time = self.queues.stream_time(source)
                self.progress.note(source, read_time_of(source.topic), time)
        return self.state.changes()

    def commit(self, checkpoints: Mapping[str, int], true_ms: int = NEVER_TRUE) -> None:
        """Write all effects since the last commit to the database, in one batch, and
        begin a new interval.

        Call it once they are durable in the log. `true_ms`: as for `TaskState.commit`.
        """
        self.state.commit(
            checkpoints,
            committed_positions(
                self.id,
                [table.spec for table in self.state.stores.values()],
                self.progress,
            ),
            true_ms,
        )
        self.progress.committed()
        self.marks.committed()

    def close(self) -> None:
        """Cancel the task's calls and close its processors."""
        if self.calls is not None:
            self.calls.cancel()
        if self.applying is not None:
            self.applying.close()
        if self._spans is not None:
            self._spans.close()
        self.program.close()

    def discard(self) -> None:
        """Drop all effects since the last commit, and close the task. Idempotent.

        The task must then be opened again from the log.
        """
        if self.closed:
            return  # its database may be closed by now
        self.closed = True
        try:
            self.close()
        except Exception:
            log.exception("%s: a processor failed while it was closed", self)
        self.state.discard()

    def __str__(self) -> str:
        return f"task {self.id}"
