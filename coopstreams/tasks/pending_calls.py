"""The records of a task with asynchronous nodes, from the queue until they may be
processed.

    begin     takes records in: the part of the program above the asynchronous nodes finds their calls, which are begun
    ready     yields the records that may be processed now
    passed    notes that these were processed, and yields the times that the partition has reached by it

A record is *ready* when its calls have ended and every earlier record of its *line* was
processed. A line is the records of one key, where the order of each key suffices
(`call_order.keys_suffice`), or else all records of the task. So nothing of a record
happens before it is ready, and effects per key come in the order of offsets, however
long calls take. A commit has everything that was processed: positions, and done runs
above them (`commit.inflight`). After a crash only the other records come again.
`calling.lanes` makes the calls, and `draining` ends them when the task is given up.

Calls that read state, those of `process_async`, run one at a time for each key
(`Turns`). A call finds in its rows what every earlier record of its key has left there,
and what the earlier calls of its own record have recorded. Only these calls write the
rows, so the rows do not change until the call ends. Turned down: to begin the next call
of a key when the previous call has ended (its record may still fail, and the next call
would have read changes that are never made), and to read rows on the calls' thread
(stores belong to the task's thread).

Invariant: stream time does not run ahead of a record that waits. Where records overtake
each other, each has the operator times that the reader worked out for it, and windows
expire by the time up to which every record was processed.
Invariant: at most `MOST_RECORDS` records with `MOST_BYTES` wait, plus one step, however
many records overtake a stuck one. Records that were processed behind a stuck one are
held in the same order of magnitude. All other records stay in the queues, where the
dispatcher bounds them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from coopstreams.calling.lanes import Call, Lane, pauses_of
from coopstreams.commit.inflight import InFlight
from coopstreams.commit.progress import Progress
from coopstreams.commit.record import Segment
from coopstreams.common.host import Host
from coopstreams.log.log import Position
from coopstreams.tasks.queues import Step
from coopstreams.topology.columns import (
    NO_RECORDS,
    Columns,
    TopicPartition,
    joined,
)
from coopstreams.topology.compile.call_order import Wanted
from coopstreams.topology.compile.operator_time import OperatorTimes
from coopstreams.topology.compile.program import BoundProgram, Program
from coopstreams.topology.failures import Failure, OnFailure
from coopstreams.topology.graph.nodes import (
    Asynchronous,
    AsyncMap,
    AsyncProcessing,
    SubTopology,
)
from coopstreams.topology.processors import (
    Put,
    RecordMetadata,
    Row,
    Visit,
    awaited,
    called,
)
from coopstreams.topology.schemas import registry_is_away
from coopstreams.topology.stores import TableStore

if TYPE_CHECKING:
    from coopstreams.tasks.spans import RecordSpans

MOST_RECORDS = 10_000
MOST_BYTES = 64 << 20
"""The most bytes of values that wait."""
SPARE_BYTES = 1 << 20
"""How many more bytes may be held until steps are shortened again."""
ROW_BYTES = 100
"""The approximate memory of a record or a step beside the values."""
_ALL = b""
"""The line of all records, where keys do not suffice."""


@dataclass(slots=True, eq=False)
class Taken:
    """A step (records of one source to process) whose records have begun their calls.

    `began`: when they did (`Host.now`). `left`: how many of its records were not
    processed yet.
    """

    step: Step
    began: float
    left: int
    held: int
    """The bytes of the step's records, including those that were processed."""

    def keep(self, records: Sequence[WaitingRecord]) -> None:
        """Drop the step's records except these."""
        self.step = replace(
            self.step,
            columns=self.step.columns.pick([record.row for record in records]),
        )
        for row, record in enumerate(records):
            record.row = row
        self.held = bytes_of(self.step.columns)


@dataclass(slots=True, eq=False)
class WaitingRecord:
    """A record that waits for its calls or for earlier records of its line. `row`: its
    index in the columns of `taken`.

    `waits_for`: the number of its calls that have not ended.
    """

    taken: Taken
    row: int
    offset: int
    waits_for: int
    before: Position
    """The last position before this record with a known stream time. Records of sibling
    tasks may lie in between.
    """
    calls: list[NodeCall]
    line: bytes | None = None
    """The line in which the record waits; None: only for its calls."""
    turn: bytes | None = None
    """The key whose calls run one at a time, if the record has calls that read state.
    """


@dataclass(slots=True, eq=False)
class NodeCall(Call):
    """A call of a node for a record.

    `visit`: the input of a call that reads state; None for other calls.
    """

    node: str
    visit: Visit | None = None
    record: WaitingRecord | None = None
    """The record of the call; None before it is set, and once the call has ended."""


@dataclass(slots=True)
class SourceInFlight:
    """The records in flight of one source partition."""

    inflight: InFlight
    reached: Position
    """The position that the program has reached."""
    taken: Position
    """The position up to which steps were taken in."""
    taken_operator_times: list[int]
    """The operator times behind the last step that was taken in."""
    operator_times: Callable[[], OperatorTimes]
    """Returns the operator times that the program has reached."""
    partition_times: Sequence[int]
    """The indexes of the operator times that are the partition's stream time."""
    waiting: dict[int, WaitingRecord] = field(default_factory=dict)
    """The records that were not processed yet, by offset, in order."""
    segments: tuple[Segment, ...] | None = None
    """The result of `now`; None: not computed yet."""

    def now(self) -> tuple[Segment, ...]:
        """Return the progress of each part of the task's range."""
        if self.segments is None:
            self.segments = self.inflight.segments(self.reached, self.operator_times())
        return self.segments

    def passed(self, record: WaitingRecord) -> None:
        """Note that a record was processed."""
        self.inflight.done(record.offset)
        del self.waiting[record.offset]
        self.segments = None

    def operator_times_of(self, step: Step) -> list[list[int]]:
        """Return the operator times before each record of a step, and set
        `taken_operator_times` to those behind it.

        The reader's times begin again when an owner of the partition changes, so each
        is raised to the last known time. The program does not know that time, because a
        record that waits has not advanced it.
        """
        before = self.taken_operator_times
        if step.operator_times:
            self.taken_operator_times = list(map(max, before, step.operator_times))
        times = step.columns.operator_times
        return (
            [
                [max(time, least) for time in of]
                for of, least in zip(times, before, strict=True)
            ]
            if times
            else []
        )

    def over(self, step: Step) -> None:
        """Note that the program has processed a step and all records before it."""
        self.inflight.hand_out((), (), step.next_offset)
        self.reach(Position(step.next_offset, step.stream_time))

    def reach(self, position: Position) -> None:
        """Raise `reached` to this position. It may be further already, after a log went
        back.
        """
        self.reached = Position(
            max(self.reached.offset, position.offset),
            max(self.reached.stream_time, position.stream_time),
        )
        self.segments = None


def bytes_of(columns: Columns) -> int:
    """Return the approximate memory of a step with these records, in bytes."""
    return ROW_BYTES * (1 + len(columns)) + sum(map(len, filter(None, columns.values)))


@dataclass(slots=True, eq=False)
class _Turn:
    """The calls of one record that read state, in order.

    `rows`: the rows of its key, as the calls so far have left them.
    """

    calls: deque[NodeCall]
    rows: dict[str, Row] = field(default_factory=dict)


class Turns:
    """Runs the calls that read state, one at a time for each key of a task.

    `add`, `ended` and `passed` return the call to begin next, if there is one. Its rows
    are read when it begins.
    """

    def __init__(
        self,
        subtopology: SubTopology,
        stores: Mapping[str, TableStore],
    ) -> None:
        self._nodes = {
            node.name: node
            for node in subtopology.nodes
            if isinstance(node, AsyncProcessing)
        }
        self._below = {
            name: tuple(node.name for node in subtopology.nodes if name in node.parents)
            for name in self._nodes
        }
        self._stores = stores
        self._of_keys: dict[bytes, deque[_Turn]] = {}
        """For each key, the calls of its unprocessed records, in order."""

    def call(
        self,
        wanted: Wanted,
        source: TopicPartition,
        columns: Columns,
    ) -> NodeCall:
        """Return the call that a record needs of a node that reads state."""
        row = wanted.row
        node = self._nodes[wanted.node]
        visit = Visit(
            node.name,
            self._below[node.name],
            RecordMetadata(source.topic, source.partition, columns.offsets[row]),
            wanted.key,
            wanted.value,
            columns.timestamps[row],
            columns.headers[row] if columns.headers is not None else None,
        )
        return NodeCall(
            awaited if node.calling.coroutine else called,
            (),
            columns.keys[row],
            node.name,
            visit,
        )

    def add(self, calls: Sequence[NodeCall]) -> NodeCall | None:
        """Queue the calls of a record behind those of earlier records of its key.
        Return the call to begin now; None: earlier records have to be processed first.
        """
        key = calls[0].key
        assert key is not None, "records without a key need no such call"
        turns = self._of_keys.setdefault(key, deque())
        turns.append(_Turn(deque(calls)))
        if len(turns) == 1:
            return self._next(turns)
        _hurry(turns)
        return None

    def ended(self, call: NodeCall) -> NodeCall | None:
        """Note that a call has ended; return the next call of the same record, None if
        it was the last.
        """
        assert call.key is not None
        turns = self._of_keys[call.key]
        turn = turns[0]
        turn.calls.popleft()
        if not turn.calls:
            return None
        assert call.visit is not None
        for effect in call.value if call.error is None else ():
            if isinstance(effect, Put):
                turn.rows[effect.store] = effect.value, call.visit.timestamp
        return self._next(turns)

    def passed(self, key: bytes) -> NodeCall | None:
        """Note that a key's first queued record was processed; return the first call of
        the next record, None if no record of the key is queued.
        """
        turns = self._of_keys[key]
        turns.popleft()
        if turns:
            return self._next(turns)
        del self._of_keys[key]
        return None

    def clear(self) -> None:
        """Drop all queued calls."""
        self._of_keys.clear()

    def _next(self, turns: deque[_Turn]) -> NodeCall:
        """Return the next call to make, with the rows that it reads."""
        turn = turns[0]
        call = turn.calls[0]
        node = self._nodes[call.node]
        assert call.key is not None
        for name in node.store_names:
            if name not in turn.rows:
                entry = self._stores[name].load(call.key)
                turn.rows[name] = entry.value, entry.timestamp
        rows = {name: turn.rows[name] for name in node.store_names}
        call.arguments = node.supplier, call.visit, rows
        _hurry(turns)
        return call


def _hurry(turns: deque[_Turn]) -> None:
    """Have the running call wake the task as soon as it ends, if other calls of its key
    wait.
    """
    if turns[0].calls and (len(turns) > 1 or len(turns[0].calls) > 1):
        turns[0].calls[0].prompt = True


class PendingCalls:
    """The records and calls of one task that wait. Used by the task's thread, except
    `ended`, which other threads call.
    """

    def __init__(
        self,
        program: Program,
        bound: BoundProgram,
        stores: Mapping[str, TableStore],
        progress: Progress,
        on_failure: OnFailure,
        host: Host,
        *,
        by_key: bool,
        spans: RecordSpans | None = None,
    ) -> None:
        nodes = {
            node.name: node
            for node in program.subtopology.nodes
            if isinstance(node, Asynchronous)
        }
        self._nodes = nodes
        self._mappers = {
            name: node for name, node in nodes.items() if isinstance(node, AsyncMap)
        }
        self._lanes = {
            name: Lane(node.calling, self._tell_of, host)
            for name, node in nodes.items()
        }
        self._turns = Turns(program.subtopology, stores)
        ahead = program.ahead
        assert ahead is not None, "a program without asynchronous nodes has no calls"
        self._ahead = ahead.bind(
            {},
            partial(_leave_to_the_program, on_failure),
            caching=False,
        )
        self._topics = frozenset(ahead.subtopology.topics)
        self._results = bound.results
        self._host = host
        self._by_key = by_key
        self._spans = spans
        self._sources = {}
        for source in progress.partitions:
            start = progress.lowest(source)
            self._sources[source] = SourceInFlight(
                InFlight(progress.segments(source), MOST_RECORDS, in_order=not by_key),
                Position(start.position, start.stream_time),
                Position(start.position, start.stream_time),
                bound.resumed(source, start.stream_time, start.operator_times),
                partial(bound.operator_times, source.topic),
                [at for at, time in enumerate(bound.resumed(source, 0)) if time == 0],
            )
            progress.follow(source, self._sources[source].now)
        self._steps: deque[Taken] = deque()
        """The steps taken in, in order, from the first that is not processed."""
        self._lines: dict[bytes, deque[WaitingRecord]] = {}
        """The records of each line, in order, from the first that is not ready."""
        self._ready: deque[WaitingRecord] = deque()
        """The records that are ready."""
        self._given: deque[WaitingRecord] = deque()
        """The records that `ready` has yielded and that were not processed yet."""
        # Calls that have not ended; records that wait, and the bytes of their values;
        # the bytes of the steps that have them.
        self._calls = self._records = self._bytes = self._held = 0
        self.begun = 0
        """The number of calls begun."""
        self.told: Callable[[Collection[NodeCall]], None] = self.ended
        """Called with ended calls, on the thread that ended them. A test driver delays
        them.
        """
        self._most_held = SPARE_BYTES
        self._done: deque[NodeCall] = deque()
        """Calls that have ended since the last `look`: other threads add them."""
        self._news = host.signal()
        self._told = False
        self.tell: Callable[[], None] = self._news.set
        """Called on another thread when `ready` may have something to yield: once,
        until the next `look`.
        """

    def __len__(self) -> int:
        """Return the number of calls that have not ended."""
        return self._calls

    @property
    def retries(self) -> int:
        """The number of calls that were made again."""
        return sum(lane.retried for lane in self._lanes.values())

    @property
    def under_way(self) -> int:
        """The number of calls that are being made, a batch counted as one. An operator
        makes at most `max_in_flight` at once.
        """
        return sum(lane.under_way for lane in self._lanes.values())

    @property
    def not_begun(self) -> int:
        """The number of calls that wait for another call of their key, or because
        `max_in_flight` calls are being made.
        """
        return max(0, self._calls - sum(lane.begun for lane in self._lanes.values()))

    @property
    def blocked(self) -> int:
        """The number of lines in which records wait behind another record. A line is a
        key, or all records of the task.
        """
        return sum(len(line) > 1 for line in self._lines.values())

    @property
    def pauses(self) -> str:
        """Why calls are not begun, in words; empty if they are begun."""
        return pauses_of(self._lanes)

    @property
    def within_limits(self) -> bool:
        """Whether a call is being made that ends, or is made again, within its
        time-out.
        """
        return any(lane.within_limits for lane in self._lanes.values())

    @property
    def room(self) -> int:
        """The number of records that may be taken in now."""
        full = self._bytes >= MOST_BYTES or len(self._steps) >= 2 * MOST_RECORDS
        return 0 if full else max(0, MOST_RECORDS - self._records)

    @property
    def oldest(self) -> float | None:
        """Since when the first record has waited; None: none waits. Units: `Host.now`."""
        return self._steps[0].began if self._steps else None

    def begin(self, step: Step) -> None:
        """Take in the records of a step, and begin their calls."""
        source = self._sources[step.source]
        taken = self._take(step, source)
        columns = taken.step.columns
        calls = self._wanted(step.source, columns)
        begun: list[NodeCall] = []
        behind = source.taken
        rows = zip(
            columns.keys,
            columns.offsets,
            columns.timestamps,
            columns.stream_times,
            strict=True,
        )
        for row, (key, offset, timestamp, stream_time) in enumerate(rows):
            made = calls.get(row, [])
            # A record below the stream time did not raise it. Otherwise only the
            # position before this record is known.
            before = (
                Position(offset, stream_time) if timestamp < stream_time else behind
            )
            record = WaitingRecord(taken, row, offset, len(made), before, made)
            source.waiting[offset] = record
            begun += self._first_calls(record, key)
            self._line_up(record, key if self._by_key else _ALL)
            behind = Position(offset + 1, stream_time)
        source.taken = Position(
            max(source.taken.offset, step.next_offset),
            max(source.taken.stream_time, step.stream_time),
        )
        self._calls += sum(map(len, calls.values()))
        self._begin(begun)

    def _take(self, step: Step, source: SourceInFlight) -> Taken:
        """Take in a step, without its records that were done before; return it."""
        columns = replace(step.columns, operator_times=source.operator_times_of(step))
        end = columns.offsets[-1] + 1 if len(columns) else 0
        columns = columns.pick(
            source.inflight.hand_out(columns.keys, columns.offsets, end)
        )
        if self._spans is not None:
            columns = self._spans.take(step.source, columns)
        taken = Taken(
            replace(step, columns=columns),
            self._host.now(),
            len(columns),
            bytes_of(columns),
        )
        self._steps.append(taken)
        self._held += taken.held
        if self._held >= self._most_held or len(self._steps) >= 2 * MOST_RECORDS:
            self._shorten()
        self._records += len(columns)
        self._bytes += sum(map(len, filter(None, columns.values)))
        source.segments = None
        return taken

    def _first_calls(self, record: WaitingRecord, key: bytes | None) -> list[NodeCall]:
        """Return the calls of a record that may begin now. Calls that read state begin
        one at a time for each key.
        """
        begun: list[NodeCall] = []
        turn: list[NodeCall] = []
        for call in record.calls:
            call.record = record
            (begun if call.visit is None else turn).append(call)
        if turn:
            record.turn = key
            begun += _some(self._turns.add(turn))
        return begun

    def ready(self, most: int) -> Iterator[Step]:
        """Yield steps of at most `most` records that are ready, and give the program
        the results of their calls.

        Call `passed` for each step before taking the next. A step without records
        carries the time that a partition has reached.
        """
        while self.look():
            records: list[WaitingRecord] = []
            if not self._over():  # else the step's time comes first
                while self._ready and len(records) < most and self._fits(records):
                    records.append(self._ready.popleft())
            if self._by_key:
                records.sort(key=_offset)
            self._given.extend(records)
            self._hand_over(records)
            step = records[0].taken.step if records else self._steps[0].step
            yield replace(step, columns=_gathered(records))

    def passed(self, count: int) -> Iterator[tuple[TopicPartition, int, Sequence[int]]]:
        """Note that the first `count` records from `ready` were processed. Yield each
        source whose time has advanced, with its stream time and operator times.
        """
        begun: list[NodeCall] = []
        for _ in range(count):
            record = self._given.popleft()
            taken = record.taken
            taken.left -= 1
            self._sources[taken.step.source].passed(record)
            self._records -= 1
            self._bytes -= len(taken.step.columns.values[record.row] or b"")
            if record.turn is not None:
                begun += _some(self._turns.passed(record.turn))
        self._begin(begun)
        while self._over():
            taken = self._steps.popleft()
            self._held -= taken.held
            step = taken.step
            self._sources[step.source].over(step)
            yield step.source, step.stream_time, step.operator_times

    def reached(self) -> Iterator[tuple[TopicPartition, int, Sequence[int]]]:
        """Yield, as `passed` does, the times before the first record that waits. A
        commit states these times.

        Records of other ranges may have advanced the times in the middle of a step. The
        times of other sources do not change: their next records come later.
        """
        for each in self._sources.values():
            # the program's own times advance with these records, and at flushes of
            # record caches
            each.segments = None
        if not self._steps or not self._steps[0].left:
            return
        step = self._steps[0].step
        source = self._sources[step.source]
        first = next(iter(source.waiting.values()))
        times = step.columns.operator_times or ()
        source.reach(first.before)
        before = first.before.stream_time
        yield (
            step.source,
            before,
            [
                before if at in source.partition_times else of[first.row]
                for at, of in enumerate(times)
            ],
        )

    def look(self) -> bool:
        """Take in the calls that have ended; return whether `ready` has something to
        yield.

        If it returns False, `tell` is called when that changes.
        """
        # Before the calls are taken: one that ends from now on tells again.
        self._told = False
        begun: list[NodeCall] = []
        while self._done:
            call = self._done.popleft()
            # else they would hold each other, for the garbage collector
            record = call.record
            call.record = None
            assert record is not None
            self._calls -= 1
            record.waits_for -= 1
            if call.visit is not None:
                begun += _some(self._turns.ended(call))
            if not record.waits_for:
                self._release(record)
        self._begin(begun)
        return bool(self._ready) or self._over()

    def wait(self, timeout_s: float) -> bool:
        """Block until a call has ended since the last `look`; return False if no call
        is being made.
        """
        if not self._calls:
            return False
        self._news.wait(timeout_s)
        self._news.clear()
        return True

    def drain(self) -> None:
        """Begin no more calls: the task is being closed."""
        for lane in self._lanes.values():
            lane.drain()

    def drained(self) -> bool:
        """Return whether all calls have ended since `drain` and nothing is ready.

        If it returns False, `tell` is called when that may change.
        """
        return all(lane.drained for lane in self._lanes.values()) and not self.look()

    def cancel(self) -> None:
        """Cancel all calls, and drop all records."""
        for lane in self._lanes.values():
            lane.cancel()
        for each in (self._steps, self._ready, self._given, self._done):
            each.clear()
        self._lines.clear()
        self._turns.clear()
        self._calls = self._records = self._bytes = self._held = 0

    def _shorten(self) -> None:
        """Drop processed records, and join steps without waiting records. Both collect
        behind a stuck record.
        """
        for each in self._sources.values():
            for taken, records in groupby(each.waiting.values(), attrgetter("taken")):
                if 2 * taken.left < len(taken.step.columns):
                    taken.keep(list(records))
        kept: list[Taken] = []
        over: dict[TopicPartition, Taken] = {}
        """The last steps of `kept`, if all their records were processed, by source.
        Where the order of all records counts, only the last step.
        """
        for taken in self._steps:
            source = taken.step.source
            if taken.left:
                kept.append(taken)
                over = {}
            elif (before := over.get(source)) is not None:
                times = taken.step.operator_times or before.step.operator_times
                before.step = replace(
                    taken.step,
                    columns=NO_RECORDS,
                    operator_times=times,
                )
            else:
                taken.keep(())
                kept.append(taken)
                over = {**over, source: taken} if self._by_key else {source: taken}
        self._steps = deque(kept)
        self._held = sum(taken.held for taken in kept)
        self._most_held = 2 * self._held + SPARE_BYTES

    def _wanted(
        self,
        source: TopicPartition,
        columns: Columns,
    ) -> Mapping[int, list[NodeCall]]:
        """Return the calls that the records need, by row."""
        of_rows: dict[int, list[NodeCall]] = {}
        if len(columns) and source.topic in self._topics:
            self._ahead.wanted.clear()
            self._ahead.process(source, columns)
            for wanted in self._ahead.wanted:
                row, name, key, value = wanted
                if (node := self._mappers.get(name)) is None:
                    call = self._turns.call(wanted, source, columns)
                else:
                    call = NodeCall(
                        node.function,
                        (key, value) if node.with_key else (value,),
                        columns.keys[row],
                        name,
                    )
                of_rows.setdefault(row, []).append(call)
            if self._spans is not None:
                for row, made in of_rows.items():
                    for each in made:
                        self._spans.call(
                            source,
                            columns.offsets[row],
                            each,
                            self._nodes[each.node],
                        )
        return of_rows

    def _begin(self, calls: Iterable[NodeCall]) -> None:
        """Begin calls, all calls of one node together."""
        of_nodes: dict[str, list[NodeCall]] = {}
        for call in calls:
            of_nodes.setdefault(call.node, []).append(call)
        for name, each in of_nodes.items():
            self.begun += len(each)
            self._lanes[name].begin(each)

    def _line_up(self, record: WaitingRecord, line: bytes | None) -> None:
        """Queue a record in this line, or make it ready if it waits for nothing. Line
        None: it waits only for its calls.
        """
        if line is not None and (record.waits_for or line in self._lines):
            record.line = line
            self._lines.setdefault(line, deque()).append(record)
        elif not record.waits_for:
            self._ready.append(record)

    def _release(self, record: WaitingRecord) -> None:
        """Make a record ready whose calls have ended, if it is the first of its line,
        and then those behind it that wait for no call.
        """
        if record.line is None:
            self._ready.append(record)
            return
        line = self._lines[record.line]
        while line and not line[0].waits_for:
            self._ready.append(line.popleft())
        if not line:
            del self._lines[record.line]

    def _over(self) -> bool:
        """Return whether all records of the first step (a batch that was taken in
        together) were processed.
        """
        return bool(self._steps) and not self._steps[0].left

    def _fits(self, records: Sequence[WaitingRecord]) -> bool:
        """Return whether the next ready record may be in one step with these.

        Where the order of all records is kept, only records of one step may: times of
        other sources may lie between steps.
        """
        if not records:
            return True
        before = records[0].taken
        then = self._ready[0].taken
        return (
            before.step.source == then.step.source if self._by_key else before is then
        )

    def _tell_of(self, calls: Collection[NodeCall]) -> None:
        self.told(calls)

    def ended(self, calls: Collection[NodeCall]) -> None:
        """Take in calls that have ended; called on the thread of the calls."""
        if self._spans is not None:
            self._spans.ended(calls)
        self._done.extend(calls)  # first: see `look`
        if not self._told:
            self._told = True
            self.tell()

    def _hand_over(self, records: Iterable[WaitingRecord]) -> None:
        """Give the program the results of these records' calls."""
        self._results.clear()
        for record in records:
            for call in record.calls:
                self._results.give(call.node, record.offset, call)


_offset = attrgetter("offset")


def _some(call: NodeCall | None) -> Iterable[NodeCall]:
    return () if call is None else (call,)


def _gathered(records: Iterable[WaitingRecord]) -> Columns:
    """Return records of one partition, in the order of their offsets, as columns."""
    return joined(
        taken.step.columns.pick([record.row for record in each])
        for taken, each in groupby(records, attrgetter("taken"))
    )


def _leave_to_the_program(on_failure: OnFailure, failure: Failure) -> None:
    """Ignore a failure above an asynchronous node: the program meets it again, and
    reports it.

    While the schema registry does not answer, report it at once. Otherwise the program
    might find the registry answering, and miss the call.
    """
    if registry_is_away(failure.error):
        on_failure(failure)
