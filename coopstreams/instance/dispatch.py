"""The dispatcher: one reader for the instance, which gives each record to the task that
owns its key range.

Each partition is fetched once and hashed once.

Invariant: a running task gets every record of its range from the position at which it
was opened, in order, once. When a task opens below the reader's position, the reader
goes back; its siblings drop the records that they have already received. When that task
closes before the reader has caught up, the reader goes forward again: the task's next
owner may process and delete the records in between (repartition topics).
Invariant: the records fetched and not processed are bounded. A partition is held while
too many of its records wait for a thread, or for another source of their task. Each
partition is held on its own, so that a full stream never keeps its table's records
back.
Relies on: `log.log.Reader` (slots, routes, holds), `tasks/silence.py` and
`source_times` (what a silent partition's tasks may say), `tasks/time_waits.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident

from coopstreams.common.host import SYSTEM, Host
from coopstreams.common.metrics import Metrics
from coopstreams.instance.source_times import SourceTimes
from coopstreams.log.clocks import UNHEARD, Awaited
from coopstreams.log.log import (
    NO_STREAM_TIME,
    Position,
    Reader,
    RecordBatch,
)
from coopstreams.tasks.failure_handlers import place_in
from coopstreams.tasks.silence import Silence
from coopstreams.tasks.stream_thread import StreamThread
from coopstreams.tasks.task import Task
from coopstreams.tasks.time_waits import ClockWait, HeldBack, ReadTime, looked_at
from coopstreams.topology.columns import NO_RECORDS, Columns, TopicPartition
from coopstreams.topology.compile.operator_time import Arrivals, OperatorTimeColumns
from coopstreams.topology.compile.timestamps import TimestampColumn
from coopstreams.topology.keys import ALL_GROUPS

FETCH_RECORDS = 10_000
CLOCKS_EVERY_S = 1.0
"""How often to look what clocks wait for."""
HELD_WAIT_S = 0.01
"""How often to check whether a held partition may be released. A fast thread processes
the waiting records in 15 ms.
"""
MOST_WAITING = 4 * FETCH_RECORDS
"""The most small records that wait for a thread or in a source's queue. Above it the
partition is held, until half of it is left.
"""
FRESH_S = 5.0
"""How long the last answer of the reader counts. A control thread that works asks the
reader several times a second.
"""
RECORD_BYTES = 200
"""The approximate overhead of a record beside its key and value."""


@dataclass(slots=True)
class _Route:
    """The way of a partition's records to one task: the task, and the stream thread
    that runs it.
    """

    task: Task
    thread: StreamThread
    next: Position
    """The next offset to send to the task. If the reader goes back, the task drops
    records below it.
    """


@dataclass(slots=True)
class _Partition:
    """A source partition that the dispatcher reads, with its routes and what it knows
    of the partition's times.
    """

    routes: list[_Route] = field(default_factory=list)
    """The routes to the partition's tasks, in the order of their key ranges, as the
    reader's slots.
    """
    at: Position | None = None
    """The reader's position; None: the partition is not being read."""
    at_end: bool = False
    """Whether the reader had reached the end of the partition with its last batch."""
    held: bool = False
    """Whether the reader holds the partition, because it is full or held back."""
    full: bool = False
    """Whether too many of the partition's records wait."""
    held_back: HeldBack | None = None
    """Why the partition is not read: it is too far ahead of the slowest source
    partition. None: it is read.
    """
    reached: dict[str, int] = field(default_factory=dict)
    """The times that the partition's records have reached on the way to timed topics.
    """
    newest: int = NO_STREAM_TIME
    """The latest birth of the partition's records, if its topic is timed."""
    own: bool = False
    """Whether its topic is one of the user that is read in the order of births."""
    clock: ClockWait | None = None
    """What the partition's clock waited for at the last look; None: its topic is not
    timed.
    """
    record_bytes: int = RECORD_BYTES
    """The average size of a record in the last batch."""
    silence: Silence | None = None
    """The silence of the partition; None: its stream time advances with records only.
    """
    silent_since: float | None = None
    """Since when the partition, read to its end, has had no record that advances the
    times of what its tasks write; None: it is not silent in this way.
    """
    times: Sequence[int] = ()
    """The times that count for the silence, after the last batch: the operator times;
    of a topic of the user in the order of births, its stream time.
    """

    def listen(self, batch: RecordBatch, now: float) -> None:
        """Update `silent_since` after a batch. A partition is silent even if it has
        records, as long as they do not reach a topic behind it.
        """
        times = batch.operator_times or (batch.stream_time,)
        if times != self.times:
            self.times = times
            # The end may come with the last records, and is not told again.
            self.silent_since = now if batch.at_end else None
        elif batch.at_end and self.silent_since is None:
            self.silent_since = now

    def place(self) -> None:
        """Order the routes, and set the position to the first offset that a task needs.

        The position may go forward: the owner of the records in between may have
        processed and deleted them.
        """
        self.routes.sort(key=lambda route: route.task.id)
        first = min((route.next for route in self.routes), key=lambda at: at.offset)
        if self.at is None or first.offset != self.at.offset:
            self.at = first
            self.at_end = False
            self.silent_since = None
            self.reached = {}
            if self.silence is not None:
                self.silence.broken()


@dataclass(frozen=True, slots=True)
class _Read:
    """How far a partition was read. Units: `silent_since` in seconds of `Host.now`."""

    offset: int | None = None
    at_end: bool = False
    silent_since: float | None = None

    @classmethod
    def of(cls, partition: _Partition) -> _Read:
        silence = partition.silence
        return cls(
            None if partition.at is None else partition.at.offset,
            partition.at_end,
            None if silence is None else silence.since,
        )


class Dispatcher:
    """Moves records from a reader to the tasks of an instance, on the control thread.

    Thread-safe are `behind`, `asking_for`, `asking_s`, `silent_s`, `all_read`,
    `may_not_read`, `clocks` and `held_back`, which read one value that each fetch
    replaces; and `wake`.
    """

    def __init__(
        self,
        reader: Reader,
        timestamp_of: Callable[[str], TimestampColumn | None],
        operator_times_of: Callable[[str], OperatorTimeColumns | None],
        writers_of: Callable[[str], int | None],
        source_times: SourceTimes | None,
        most_bytes: int,
        metrics: Metrics,
        host: Host = SYSTEM,
    ) -> None:
        self._reader = reader
        self._host = host
        self._timestamp_of = timestamp_of
        self._operator_times_of = operator_times_of
        self._writers_of = writers_of
        self._source_times = source_times
        self._most_bytes = most_bytes
        self._metrics = metrics
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._promising: list[_Route] = []
        """The routes of tasks that write from source topics to timed topics: they may
        promise. Kept, because each fetch needs them.
        """
        self._promising_own: list[_Route] = []
        """The routes of tasks that read topics of the user in the order of births: they
        may promise the times of these.
        """
        self._read: dict[TopicPartition, _Read] = {}
        self._published: tuple[float, Mapping[TopicPartition, _Read]] = (
            float("-inf"),
            {},
        )
        """When the reader answered last, and how far each partition was read at that
        time.
        """
        self.clocks: Mapping[TopicPartition, ClockWait] = {}
        """What the clocks of partitions of timed topics waited for at the last look."""
        self._look_at = 0.0
        """The time of the next look at the clocks."""
        self.held_back: Mapping[TopicPartition, HeldBack] = {}
        """The partitions that are not read because they are too far ahead of the
        slowest.
        """
        self._asking: tuple[TopicPartition, int, float, int] | None = None
        """The record on which functions of the program run in the reader: its partition
        and offset, since when, and the thread's id. None: none run.
        """

    def open(self, task: Task, thread: StreamThread) -> None:
        """Route the records of a task's range to it, from the position at which it was
        opened.
        """
        for source in task.sources:
            partition = self._partitions.setdefault(source, _Partition())
            partition.routes.append(
                _Route(task, thread, task.progress.position(source))
            )
            task.queues.hold(source, partition.held)
            if (
                partition.silence is None
                and (idle_ms := task.idle_ms.get(source.topic)) is not None
            ):
                partition.silence = Silence(idle_ms)
        self._place(task.sources)

    def close(self, task: Task) -> None:
        """Stop routing records to a task."""
        for source in task.sources:
            partition = self._partitions.get(source)
            if partition is None:
                continue
            partition.routes = [
                route for route in partition.routes if route.task is not task
            ]
            if not partition.routes:
                del self._partitions[source]
        self._place(task.sources)

    def __bool__(self) -> bool:
        return bool(self._partitions)

    def move(self, timeout_s: float) -> int:
        """Fetch once and deliver the batches; return the number of records.

        Waits at most `timeout_s`, or until `wake`.
        """
        # Before the fetch: what is held is not read, and what is due ends the wait.
        self._look_at_times()
        self._hold()
        self._promise()
        moved = 0
        wait_s = min(self._advance_time(), timeout_s, self._held_wait_s())
        batches = self._reader.fetch(FETCH_RECORDS, wait_s)
        read_at = self._host.now()
        for batch in batches:
            partition = self._partitions.get(batch.partition)
            if partition is None:
                continue
            if partition.silence is not None:
                partition.silence.heard(batch, read_at)
            partition.listen(batch, read_at)
            partition.at = Position(batch.next_offset, batch.stream_time)
            partition.at_end = batch.at_end
            if partition.clock is not None or partition.own:
                partition.newest = max(partition.newest, _newest(batch))
            self._note_reached(partition, batch)
            self._read[batch.partition] = _Read.of(partition)
            route = partition.routes[batch.slot]
            if batch.next_offset > route.next.offset:
                route.next = partition.at
            if len(batch.columns):
                moved += len(batch.columns)
                partition.record_bytes = _record_bytes(batch.columns)
                self._metrics.consumed(
                    route.task.id,
                    batch.partition.topic,
                    len(batch.columns),
                )
            route.thread.deliver(route.task, batch)
        self._published = read_at, dict(self._read)
        self._look_at_clocks(read_at)
        return moved

    @property
    def behind(self) -> bool:
        """Whether a partition has records that were not fetched."""
        return not all(read.at_end for read in self._published[1].values())

    @property
    def asking_s(self) -> float:
        """For how long functions of the program have run in the reader on one record;
        0: none run. Units: seconds.
        """
        return 0.0 if (asking := self._asking) is None else self._host.now() - asking[2]

    @property
    def asking_for(self) -> str:
        """The record for which all tasks wait, because functions above a window run on
        it in the reader, in words; empty: there is none.
        """
        if (asking := self._asking) is None:
            return ""
        source, offset, since, thread = asking
        return (
            f"functions above a window have run for {self._host.now() - since:.0f} s on the record at {source} offset "
            f"{offset}{place_in(thread)}, and all tasks of this process wait for them"
        )

    def wake(self) -> None:
        """End the wait of a running `move`."""
        self._reader.wake()

    def silent_s(self, source: TopicPartition) -> float | None:
        """Return for how long a partition has been silent; None: it is not silent, or
        its time advances with records only.
        """
        read = self._published[1].get(source)
        if read is None or read.silent_since is None:
            return None
        return self._host.now() - read.silent_since

    def position(self, source: TopicPartition) -> Position | None:
        """Return the reader's position in a partition; None: it is not read."""
        partition = self._partitions.get(source)
        return partition.at if partition is not None else None

    def all_read(self, source: TopicPartition, position: int) -> bool:
        """Return whether all committed records of a partition were read and lie below
        this position.

        False if the reader was not asked lately. Otherwise a control thread that is
        stuck would hide behind its last answer.
        """
        read_at, all_read = self._published
        read = all_read.get(source)
        if read is None or self._host.now() - read_at > FRESH_S:
            return False
        return read.at_end and read.offset is not None and read.offset <= position

    def may_not_read(self, source: TopicPartition, position: int) -> bool:
        """Return whether a task at this position has no records only because
        `max.time.skew.ms` holds the partition back.
        """
        read = self._published[1].get(source)
        return (
            source in self.held_back
            and read is not None
            and read.offset is not None
            and read.offset <= position
        )

    def close_reader(self) -> None:
        """Close the reader."""
        self._reader.close()

    def _place(self, sources: tuple[TopicPartition, ...]) -> None:
        """Set the reader's positions and routes after the tasks of these partitions
        have changed.
        """
        partitions = self._partitions
        read = [source for source in sources if source in partitions]
        for source in read:
            partitions[source].place()
        self._promising = [
            route
            for partition in partitions.values()
            for route in partition.routes
            if route.task.promises
        ]
        self._promising_own = [
            route
            for source, partition in partitions.items()
            for route in partition.routes
            if source in route.task.own_sources[:1]
        ]
        self._read = {at: _Read.of(each) for at, each in partitions.items()}
        self._published = self._published[0], dict(self._read)
        self._reader.assign(
            {
                source: partition.at or Position(0, NO_STREAM_TIME)
                for source, partition in partitions.items()
            }
        )
        for source in read:
            self._route(source, partitions[source])

    def _route(self, source: TopicPartition, partition: _Partition) -> None:
        """Have the reader give the records of a partition to its tasks by key range."""
        tasks = [route.task for route in partition.routes]
        for task in tasks:
            task.program.elsewhere = (
                not task.id.key_range.is_whole
                or bool(task.idle_ms)
                # time goes on by the records of all partitions
                or bool(task.progress.by_birth)
            )
        operator_times = None
        if any(task.program.shared for task in tasks):
            operator_times = self._noting(source, self._operator_times_of(source.topic))
        partition.own = source in tasks[0].own_sources
        writers = self._writers_of(source.topic)
        if writers is not None and partition.clock is None and partition.at is not None:
            partition.newest = partition.at.stream_time
            partition.clock = ClockWait(UNHEARD, partition.newest)
        self._reader.route(
            source,
            [task.id.key_range for task in tasks],
            self._timestamp_of(source.topic),
            operator_times,
            time_marks=partition.silence is not None,
            advances=any(task.program.foresees for task in tasks),
            writers=writers,
        )
        # The reader tells an end once, perhaps before this task was there.
        if partition.at_end and partition.at is not None:
            for slot, route in enumerate(partition.routes):
                ended = RecordBatch.ended(source, slot, partition.at)
                route.thread.deliver(route.task, ended)

    def _noting(
        self,
        source: TopicPartition,
        reached: OperatorTimeColumns | None,
    ) -> OperatorTimeColumns | None:
        """Return the function `reached`, extended to set `_asking` while functions of
        the program run on a record; None: `reached` is None.
        """
        if reached is None:
            return None

        def noting(records: Columns) -> list[Arrivals]:
            return [
                arrives and partial(self._ask, source, records, arrives)
                for arrives in reached(records)
            ]

        return noting

    def _ask(
        self,
        source: TopicPartition,
        records: Columns,
        arrives: Callable[[int], bool],
        at: int,
    ) -> bool:
        """Return whether the record with the index `at` arrives, which may call the
        user's functions, and publish meanwhile that this is asked.
        """
        self._asking = source, records.offsets[at], self._host.now(), get_ident()
        try:
            return arrives(at)
        finally:
            self._asking = None

    def _advance_time(self) -> float:
        """Have the tasks that own key hash 0 advance the time of silent partitions;
        return in how many seconds the next advance may be due.
        """
        now = self._host.now()
        next_s = math.inf
        for source, partition in self._partitions.items():
            owner = partition.routes[0]
            if partition.silence is None or owner.task.id.key_range.start:
                continue
            if (stream_time := partition.silence.advance(now)) is not None:
                owner.thread.advance_time(owner.task, source, stream_time)
                self._metrics.time_marked(owner.task.id, source.topic)
            if (due_s := partition.silence.due_in(now)) is not None:
                next_s = min(next_s, due_s)
        return next_s

    def _note_reached(self, partition: _Partition, batch: RecordBatch) -> None:
        """Note the times that a batch has reached on the way to timed topics."""
        times = self._source_times
        task = partition.routes[batch.slot].task
        if times is None or not times.bounded or not task.promises:
            return
        topic = batch.partition.topic
        for sink, time in task.program.reached(topic, batch.operator_times).items():
            before = partition.reached.get(sink, NO_STREAM_TIME)
            partition.reached[sink] = max(before, time)

    def _look_at_clocks(self, now: float) -> None:
        """Publish what clocks wait for, if it is time."""
        if now < self._look_at:
            return
        self._look_at = now + CLOCKS_EVERY_S
        clocks: dict[TopicPartition, ClockWait] = {}
        for source, partition in self._partitions.items():
            clock = self._reader.clock(source) or self._read_time(source, partition)
            if clock is None:
                continue
            newest = self._newest_of(partition)
            waits = looked_at(clock, newest, partition.clock, now)
            partition.clock = clocks[source] = waits
            for route in () if partition.own else partition.routes:
                self._metrics.clock_lag(route.task.id, source.topic, waits.lag_ms)
        self.clocks = clocks

    @staticmethod
    def _read_time(source: TopicPartition, partition: _Partition) -> ReadTime | None:
        """Return how far a topic of the user was read in the order of births, or the
        time that was promised since; None: it is not read in that order.
        """
        if not partition.own:
            return None
        time = min(route.task.clock(source) for route in partition.routes)
        return ReadTime(time, Awaited(source.partition, ALL_GROUPS, time))

    def _newest_of(self, partition: _Partition) -> int:
        """Return the latest birth among the records of all topics that wait for the
        clock of a partition.
        """
        return max(
            self._partitions[source].newest
            for route in partition.routes
            for source in route.task.sources
        )

    def _look_at_times(self) -> None:
        """Take in the times that all source partitions have reached, if it is time."""
        if self._source_times is not None and self._promising:
            self._source_times.look(
                {route.task.id.subtopology for route in self._promising}
            )

    def _promise(self) -> None:
        """Have tasks whose sources are all silent promise the time of the other
        partitions, and those with a silent topic of the user the time of their other
        sources.
        """
        times = self._source_times
        if times is None:
            return
        silent_before = self._host.now() - times.idle_s
        silent = {
            route.task.id: route
            for route in self._promising
            if all(self._is_silent(each, silent_before) for each in route.task.sources)
        }
        own = {
            route.task.id: (route, known)
            for route in self._promising_own
            if (known := self._own_times(route.task, silent_before))
        }
        if (sure := times.sure()) is not None:
            for route in silent.values():
                ends = self._read_to(route.task.sources)
                if new := sure.promised(route.task.id, ends):
                    route.thread.promise(route.task, ends, new)
            for route, known in own.values():
                ends = self._read_to(known)
                if new := sure.promised(route.task.id, ends):
                    ends = {at: end for at, end in ends.items() if at.topic in new}
                    route.thread.promise(route.task, ends, new)
        times.make_sure(
            {task: route.task.sources for task, route in silent.items()},
            {task: known for task, (_, known) in own.items()},
        )

    def _own_times(self, task: Task, silent_before: float) -> dict[TopicPartition, int]:
        """Return the silent topics of the user that hold up a task in the order of
        births, each with the time that it may promise: the least time of the sources
        that are not silent.
        """
        silent = [
            source
            for source in task.own_sources
            if self._is_silent(source, silent_before)
        ]
        if not silent:
            return {}
        others = [source for source in task.sources if source not in silent]
        time = min(map(self._time_of, others))
        return {source: time for source in silent if time > task.clock(source)}

    def _time_of(self, source: TopicPartition) -> int:
        """Return the time before which no further record of a source is born, in the
        order of births.
        """
        clock = self._reader.clock(source)
        if clock is not None:
            return clock.now
        at = self._partitions[source].at
        return NO_STREAM_TIME if at is None else at.stream_time

    def _read_to(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset up to which each of these sources was read."""
        read = ((source, self._partitions[source].at) for source in sources)
        return {source: at.offset for source, at in read if at is not None}

    def _is_silent(self, source: TopicPartition, since: float) -> bool:
        """Return whether a partition has been silent since `since` or longer."""
        began = self._partitions[source].silent_since
        return began is not None and began <= since

    def _held_wait_s(self) -> float:
        """Return how long a fetch may wait until held partitions are checked. Units:
        seconds.
        """
        if any(partition.full for partition in self._partitions.values()):
            return HELD_WAIT_S
        times = self._source_times
        return math.inf if times is None or not self.held_back else times.look_every_s

    def _hold(self) -> None:
        """Hold the partitions that are full or too far ahead, release the others, and
        tell their tasks.
        """
        held_back: dict[TopicPartition, HeldBack] = {}
        for source, partition in self._partitions.items():
            waiting = max(
                max(route.thread.backlog, route.task.queues.waiting(source))
                for route in partition.routes
            )
            limit = min(
                MOST_WAITING,
                self._most_bytes // (partition.record_bytes * len(self._partitions)),
            )
            partition.full = waiting > (limit // 2 if partition.full else limit)
            if self._source_times is not None:
                partition.held_back = self._source_times.held_back(
                    partition.reached,
                    partition.held_back,
                )
            if partition.held_back is not None:
                held_back[source] = partition.held_back
            held = partition.full or partition.held_back is not None
            if held != partition.held:
                partition.held = held
                # What comes while it is held is not read: it is not silent then.
                silent = partition.at_end and not held
                partition.silent_since = self._host.now() if silent else None
                self._reader.hold(source, held)
                self._tell_held(source, partition)
        self.held_back = held_back

    def _tell_held(self, source: TopicPartition, partition: _Partition) -> None:
        """Tell the tasks of a partition whether it is held. Records of another source
        may wait for its records.
        """
        for slot, route in enumerate(partition.routes):
            route.task.queues.hold(source, partition.held)
            if (
                partition.held
                and partition.at is not None
                and len(route.task.sources) > 1
            ):
                batch = RecordBatch(
                    source,
                    slot,
                    NO_RECORDS,
                    partition.at.offset,
                    partition.at.stream_time,
                    partition.at_end,
                )
                route.thread.deliver(route.task, batch)


def _newest(batch: RecordBatch) -> int:
    """Return the latest birth of a batch's records; without births, the stream time
    after the batch.
    """
    births = batch.columns.births
    return max(births) if births else batch.stream_time


def _record_bytes(columns: Columns) -> int:
    """Return the approximate memory of an average record of a batch, by a sample."""
    some = columns.values[:: 1 + len(columns) // 32]
    return RECORD_BYTES + sum(len(value) for value in some if value is not None) // len(
        some
    )
