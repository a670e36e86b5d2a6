"""The order of births: how a task takes the records of timed topics whose order matters
(`timed_topics.reads_in_birth_order`).

A record waits until the clock of each source has reached its birth. No record that is
still to come is born earlier, so records come in the order of their births, as if all
source partitions and key ranges were one partition, and the birth of each is
the time of all operators. Equal births keep the order of their offsets, those of several
sources the order of the sources.

A source that is a topic of the user has no marks. There a record is born at the stream
time of its partition, so births ascend with offsets, and the clock is the stream time
up to which the partition was read. It may be silent: then its task promises the time of
the other sources (`promise`).

    log       offset 0: born 10   1: born 3   mark: clock 5   3: born 7   mark: clock 10
    taken                                     1 (3)                       3 (7), 0 (10)

Waiting records are in memory, beyond `IN_MEMORY_BYTES` in temporary files, and in no
store: the log has them. A commit says how far
the partition was read, and the birth in front of which everything is done (`Ahead`). Its
position is in front of the first record that may wait, so a successor reads from there,
and drops what is done.

Invariant: a commit between two steps describes exactly the records that were taken.
Under at-least-once a record may be repeated behind marks that have passed its birth: it
is taken at once, at the time that was reached, and no commit counts it as done before.
Invariant: the stream time at the position of a user's topic is not later than the time
of the operators. So what others make of a position is true of it, too.
Relies on: `timed_topics` (who is born when), `log/clocks.py` (marks), `commit.record`
(`Ahead`: how a commit says what is done), `queues` (`SourceQueues`, which has the same
methods for other tasks; `Step`), `instance/dispatch.py` (when a silent topic is promised).
Why so: docs/internals/timed_topics.md, "The order of births".
Turned down: a buffer as a store with a changelog (nearly every record would be written
to it, and deleted, because it waits for the next mark of the slowest writer), the
offsets of done records in commits (each second one, where two writers take turns), and
a promise in the commit of the user's topic: the births that the timed topics have
reached, which are in their commits, say the same.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from sys import maxsize
from tempfile import TemporaryFile
from typing import NamedTuple

from coopstreams.commit.record import Ahead
from coopstreams.log.log import NO_STREAM_TIME, Position, RecordBatch
from coopstreams.tasks.queues import Step
from coopstreams.topology.columns import (
    NO_RECORDS,
    Columns,
    TopicPartition,
    joined,
)

IN_MEMORY_BYTES = 32 << 20
"""About how many bytes of waiting records a task keeps in memory."""
FILE_BYTES = 64 << 20
"""The size from which on a further temporary file is begun."""
_RECORD_BYTES = 300
"""The approximate memory of a record beside its key and value."""


class _File:
    """A temporary file of batches, which has no name: it is gone with the process."""

    def __init__(self, folder: Path | None) -> None:
        # It is closed with the last batch.
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115
        self.size = 0
        self._batches = 0

    def put(self, columns: Columns) -> Callable[[], Columns]:
        """Write a batch, and return the function that reads it, once."""
        data = pickle.dumps(columns, pickle.HIGHEST_PROTOCOL)
        at = self.size
        self._file.seek(at)
        self._file.write(data)
        self.size += len(data)
        self._batches += 1
        return partial(self._take, at, len(data))

    def _take(self, at: int, length: int) -> Columns:
        self._file.seek(at)
        columns: Columns = pickle.loads(self._file.read(length))
        self._batches -= 1
        if not self._batches:
            self._file.seek(0)
            self._file.truncate()
            self.size = 0
        return columns


class _Files:
    """The temporary files of a task. `folder`: where they are; None: where the system
    has them.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._file: _File | None = None

    def put(self, columns: Columns) -> Callable[[], Columns]:
        """Write a batch, and return the function that reads it, once."""
        if self._file is None or self._file.size >= FILE_BYTES:
            # A full file is closed when nobody has a function for it any more.
            self._file = _File(self._folder)
        return self._file.put(columns)


@dataclass(slots=True)
class _Born:
    """Records in the order of births, of which the first `begun` were taken.

    Shape: `births` has the birth of each. `first`: the least of their offsets.
    `stored`: reads the records; None: they are in `columns`.
    """

    columns: Columns
    births: Sequence[int]
    first: int
    begun: int = 0
    stored: Callable[[], Columns] | None = None
    bytes: int = 0
    """The approximate memory of the records, when they came."""

    @staticmethod
    def of(columns: Columns) -> _Born:
        """Return records, given in the order of offsets, in the order of births."""
        births = columns.born
        first = columns.offsets[0]
        # Their times come when they are taken; until then no column is carried for them.
        columns = replace(columns, stream_times=columns.timestamps, operator_times=())
        in_order = sorted(births)
        if in_order == list(births):
            return _Born(columns, in_order, first)
        by_birth = sorted(range(len(births)), key=births.__getitem__)
        return _Born(columns.ordered(by_birth), in_order, first)

    @property
    def left(self) -> int:
        """The number of records that were not taken."""
        return len(self.births) - self.begun

    @property
    def head(self) -> int:
        """The birth of the next record. There must be one."""
        return self.births[self.begun]

    def store(self, files: _Files) -> None:
        """Move the records to a file."""
        columns = self.columns
        timestamps = list(columns.timestamps)
        lists = Columns(
            list(columns.keys),
            list(columns.values),
            timestamps,
            list(columns.offsets),
            timestamps,
            columns.headers,
            births=self.births,
        )
        self.stored = files.put(lists)
        self.columns = NO_RECORDS

    def take(self, stop: int) -> Columns:
        """Return the records in front of an index, and count them as taken."""
        if self.stored is not None:
            self.columns = self.stored()
            self.stored = None
        taken = self.columns.slice(self.begun, stop)
        self.begun = stop
        return taken


class Own(NamedTuple):
    """A source that is a topic of the user. `operators`: the number of its operator
    times.
    """

    operators: int
    reached: Sequence[Position]
    """From these offsets on no record is born before these times: earlier owners have
    reached them there.
    """


@dataclass(slots=True)
class _Source:
    """A source partition. `received`: the next offset to take in. `at`: how far records
    are done, in the order of births.
    """

    received: int
    at: Ahead
    waiting: list[_Born] = field(default_factory=list)
    """The batches whose records wait for the clock, in the order of offsets."""
    due: _Born = field(default_factory=lambda: _Born(NO_RECORDS, (), 0))
    """The records whose births the clock has reached."""
    clock: int = NO_STREAM_TIME
    operators: int = 0
    """The number of the topic's operator times."""
    untold: bool = False
    """Whether the source has got on since the last step without records."""
    own: bool = False
    """Whether it is a topic of the user."""
    stream_time: int = NO_STREAM_TIME
    """The stream time of a user's topic where it was read to."""
    reached: list[Position] = field(default_factory=list)
    """From which offset on no record of a user's topic is born before which time."""
    ends: deque[Position] = field(default_factory=deque)
    """The ends of the batches of a user's topic whose times were not reached yet, with
    these times.
    """

    @property
    def position(self) -> int:
        """The offset in front of the first record that may wait."""
        first = self.waiting[0].first if self.waiting else self.received
        return min(first, self.due.first) if self.due.left else first

    def born(self, batch: RecordBatch) -> Columns:
        """Return the records of a batch with their births, and advance the clock. The
        source is a topic of the user.
        """
        columns = batch.columns
        births = list(columns.stream_times)
        time = batch.stream_time
        for at in self.reached:
            first = bisect_left(columns.offsets, at.offset)
            births[first:] = [max(birth, at.stream_time) for birth in births[first:]]
            if batch.next_offset > at.offset:
                time = max(time, at.stream_time)
        # Later records are born by the stream time alone where it has passed these.
        self.reached = [at for at in self.reached if at.stream_time > batch.stream_time]
        self.stream_time = max(self.stream_time, batch.stream_time)
        self.clock = max(self.clock, time)
        if self.ends and self.ends[-1].stream_time >= time:
            time = self.ends.pop().stream_time
        self.ends.append(Position(batch.next_offset, time))
        return replace(columns, births=births)

    def told(self, time: int) -> Position:
        """Return the last position of a user's topic whose stream time was reached.
        There must be one that was not told before.
        """
        last = self.ends.popleft()
        while self.ends and self.ends[0].stream_time <= time:
            last = self.ends.popleft()
        return last

    def release(self, clock: int) -> None:
        """Move the records whose births the clock has reached to `due`."""
        parts = list[Columns]()
        for batch in self.waiting:
            if batch.head <= clock:
                parts.append(batch.take(bisect_right(batch.births, clock)))
        if not parts:
            return
        first = self.position
        self.waiting = [batch for batch in self.waiting if batch.left]
        # Batches come in the order of offsets, so equal births keep theirs.
        self.due = replace(_Born.of(joined(parts)), first=first)


class BirthOrder:
    """The queues of one task whose records come in the order of births.

    Shape: sources are in the order of the topology.
    """

    waits_until: float | None = None
    """Never: only further records and marks make more of them due."""

    def __init__(
        self,
        positions: Sequence[tuple[TopicPartition, Position]],
        folder: Path | None = None,
        in_memory_bytes: int = IN_MEMORY_BYTES,
        *,
        own: Mapping[TopicPartition, Own] | None = None,
        as_sent: bool = False,
    ) -> None:
        """Begin at these positions. `folder`: where records wait that have no room in
        memory; None: where the system has temporary files. `own`: the sources that are
        topics of the user. `as_sent`: the test driver's: records are taken as they
        come, each source at its own time.
        """
        self.as_sent = as_sent
        self._files = _Files(folder)
        self._in_memory_bytes = in_memory_bytes
        self._sources = {
            source: _Source(
                at.offset,
                Ahead(at.offset, at.stream_time, at.offset),
                clock=at.stream_time,
            )
            for source, at in positions
        }
        for name, given in (own or {}).items():
            source = self._sources[name]
            source.own = True
            source.operators = given.operators
            source.reached = list(given.reached)
        self._in_order = list(self._sources.items())

    def received(self, source: TopicPartition) -> int:
        """Return the next offset of a source that was not taken in."""
        return self._sources[source].received

    def clock(self, source: TopicPartition) -> int:
        """Return the time before which no further record of a source is born. Callable
        on any thread: it reads one number.
        """
        return self._sources[source].clock

    def stream_time(self, source: TopicPartition) -> int:
        """Return the stream time up to which a user's topic was read."""
        return self._sources[source].stream_time

    def waiting(self, source: TopicPartition) -> int:
        """Return how many records of a source may be taken. Those that wait for the
        clock are left out: the marks that release them are still to be read.
        """
        return self._sources[source].due.left

    def has_steps(self, source: TopicPartition) -> bool:
        """Return whether `next` would return something of a source, or tell the time of
        any.
        """
        untold = (self._is_untold(each) for each in self._sources.values())
        return bool(self.waiting(source)) or any(untold)

    def hold(self, source: TopicPartition, held: bool) -> None:
        """Do nothing: whether the reader holds a source does not change the order."""

    def add(self, batch: RecordBatch) -> None:
        """Take in a batch of the reader, without records that were taken in before the
        reader went back.
        """
        source = self._sources[batch.partition]
        if batch.next_offset < source.received:
            return
        columns = batch.columns
        if len(columns) and columns.offsets[0] < source.received:
            seen = bisect_left(columns.offsets, source.received)
            columns = columns.slice(seen, len(columns))
        source.received = batch.next_offset
        source.untold = True
        if source.own:
            columns = source.born(replace(batch, columns=columns))
        else:
            source.clock = max(source.clock, batch.clock)
            source.operators = len(batch.operator_times) or source.operators
        if len(columns):
            self._keep(source, _Born.of(columns))
        if self.as_sent:
            source.release(maxsize)

    def _keep(self, source: _Source, born: _Born) -> None:
        """Let records wait, in a file if there is no room in memory. Those that are due
        need none.
        """
        columns = born.columns
        cells = chain(filter(None, columns.keys), filter(None, columns.values))
        born.bytes = _RECORD_BYTES * len(columns) + sum(map(len, cells))
        waiting = source.waiting
        waiting.append(born)
        in_memory = sum(each.bytes for each in waiting if each.stored is None)
        if in_memory > self._in_memory_bytes and born.births[-1] > self._clock:
            born.store(self._files)

    @property
    def _clock(self) -> int:
        """The time up to which all sources were read."""
        return min(source.clock for _, source in self._in_order)

    def reach(self, clock: int, *sources: TopicPartition) -> None:
        """Advance the clock of these sources, else of all, of which nothing will be born
        earlier.
        """
        for name in sources or self._sources:
            source = self._sources[name]
            source.clock = max(source.clock, clock)

    def promise(self, name: TopicPartition, time: int) -> None:
        """Promise that no further record of a user's topic is born before a time.

        Nothing of it may wait. Commits have the promise once the timed topics have
        reached the time: a successor lets no record of it be born before that.
        """
        source = self._sources[name]
        assert source.own
        assert not source.waiting
        source.clock = max(source.clock, time)
        source.reached = [
            *(at for at in source.reached if at.offset > source.received),
            Position(source.received, source.clock),
        ]

    def next(self, most: int, _now: float = 0.0) -> Step | None:
        """Return the records that come next, at most `most` of one source; None: none is
        due.
        """
        found = self._first_due()
        if found is None:
            clock = self._clock
            for _, source in self._in_order:
                source.release(clock)
            found = self._first_due()
            if found is None:
                return self._told()
        order, limit, ties = found
        name, source = self._in_order[order]
        births = source.due.births
        stop = min(source.due.begun + most, len(births))
        if limit is not None:
            find = bisect_right if ties else bisect_left
            stop = min(stop, find(births, limit, source.due.begun))
        return self._taken(name, source, stop)

    def _first_due(self) -> tuple[int, int | None, bool] | None:
        """Return the number of the source whose record comes next, the birth of the next
        record of another source, None if there is none, and whether records with that
        birth come before it. None: no record is due.
        """
        heads = sorted(
            (source.due.head, order)
            for order, (_, source) in enumerate(self._in_order)
            if source.due.left
        )
        if not heads:
            return None
        _, order = heads[0]
        if len(heads) == 1:
            return order, None, False
        limit, other = heads[1]
        return order, limit, order < other

    @staticmethod
    def _taken(name: TopicPartition, source: _Source, stop: int) -> Step:
        """Return the due records of a source in front of an index as a step."""
        due = source.due
        position = source.position
        reached = source.at.birth
        if due.head < reached:  # repeated behind their time: no commit counts these
            stop = min(stop, bisect_left(due.births, reached))
            at = source.at
        else:
            at = Ahead(
                source.received,
                due.births[stop - 1],
                due.columns.offsets[stop - 1] + 1,
            )
        births = [max(birth, reached) for birth in due.births[due.begun : stop]]
        columns = due.take(stop)
        # A record whose own time is its birth is one that advances time. It meets what
        # is open just before it: its operator time is one less.
        before = [
            birth - (birth == timestamp)
            for birth, timestamp in zip(births, columns.timestamps, strict=True)
        ]
        columns = replace(
            columns,
            stream_times=births,
            operator_times=[before] * source.operators,
            births=None,
        )
        source.at = at
        source.untold = True
        if source.own:  # births ascend with offsets: all below is done
            return Step(name, columns, columns.offsets[-1] + 1, births[-1])
        return Step(name, columns, position, births[-1], (), at)

    def _told(self) -> Step | None:
        """Return a step without records that brings a source to its time; None: each
        one is there.
        """
        for name, source in self._in_order:
            if not self._is_untold(source):
                continue
            now = self._time_of(source)
            if source.own:
                end = source.told(now)
                reached = [end.stream_time] * source.operators
                return Step(name, NO_RECORDS, end.offset, end.stream_time, reached)
            source.untold = False
            birth = max(now, source.at.birth)
            source.at = Ahead(source.received, birth, source.received)
            return Step(
                name,
                NO_RECORDS,
                source.position,
                birth,
                [birth] * source.operators,
                source.at,
            )
        return None

    def _time_of(self, source: _Source) -> int:
        """Return the time that a source has reached once its due records are taken."""
        return source.clock if self.as_sent else self._clock

    def _is_untold(self, source: _Source) -> bool:
        """Return whether a source is to be told that it has got on. A timed topic gets
        on by the clocks of others, too.
        """
        now = self._time_of(source)
        if source.own:
            return bool(source.ends) and source.ends[0].stream_time <= now
        return source.untold or now > source.at.birth
