"""A task takes each record once, in the order of births, whatever the batches, commits,
crashes, cuts and merges of key ranges are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.commit.progress import Author, Progress
from coopstreams.commit.record import Segment
from coopstreams.commit.view import PartitionStart, join
from coopstreams.log.log import Position, RecordBatch
from coopstreams.tasks.birth_order import BirthOrder, Own
from coopstreams.tasks.queues import Step
from coopstreams.topology.columns import NO_RECORDS, Columns, TopicPartition
from coopstreams.topology.keys import KeyRange, key_hash

TOPIC = TopicPartition("timed", 0)
WRITERS = 3
KEYS = [b"%d" % number for number in range(8)]
HALVES = KeyRange.split(2)
Record = tuple[int, int, bytes]
"""Birth, offset and key."""


@dataclass
class Log:
    """A partition of a timed topic: records, and marks as (writer, time)."""

    records: list[Record | None] = field(default_factory=list)
    marks: dict[int, tuple[int, int]] = field(default_factory=dict)

    @staticmethod
    def of(drawn: list[tuple[int, int, int, bool]]) -> Log:
        """Write as drawn: a writer, the step of its time, a key; or its mark."""
        log = Log()
        times = [0] * WRITERS
        for writer, step, key, is_mark in drawn:
            at = len(log.records)
            if is_mark:
                log.marks[at] = writer, times[writer]
                log.records.append(None)
            else:
                times[writer] += step
                log.records.append((times[writer], at, KEYS[key]))
        return log

    def clock(self, start: int, stop: int) -> int:
        """Return the clock of a reader that has read from one offset to another."""
        heard = [-1] * WRITERS
        for at, (writer, time) in self.marks.items():
            if start <= at < stop:
                heard[writer] = max(heard[writer], time)
        return min(heard)

    def born_up_to(self, clock: int) -> list[Record]:
        """Return the records that a clock has reached, in the order of births."""
        return sorted(each for each in self.records if each and each[0] <= clock)


class Owner:
    """A task of one key range, from its opening on."""

    def __init__(self, log: Log, segments: tuple[Segment, ...]) -> None:
        self._log = log
        self.key_range = KeyRange(
            segments[0].key_range.start, segments[-1].key_range.end
        )
        self.progress = Progress(
            self.key_range,
            {TOPIC: PartitionStart(0, segments, None, claim=False)},
            Author("group", 0, "writer"),
        )
        self.progress.by_birth = frozenset({TOPIC.topic})
        start = self.progress.lowest(TOPIC)
        self.begun = self.read_to = start.position
        at = Position(start.position, start.stream_time)
        # every second batch has no room in memory
        self.queue = BirthOrder([(TOPIC, at)], in_memory_bytes=1000)
        self.taken: list[Record] = []
        """What was taken since the last commit."""
        self.time = start.stream_time

    def read(self, count: int) -> None:
        """Read some offsets of the log."""
        stop = min(self.read_to + count, len(self._log.records))
        some = [
            record
            for record in self._log.records[self.read_to : stop]
            if record
            and self.key_range.start <= key_hash(record[2]) <= self.key_range.end
        ]
        births = [birth for birth, _, _ in some]
        columns = NO_RECORDS
        if some:
            columns = Columns(
                [key for _, _, key in some],
                [b""] * len(some),
                [birth // 2 for birth in births],
                [offset for _, offset, _ in some],
                [birth // 2 for birth in births],
                operator_times=[births],
                births=births,
            )
        unseen = self.progress.unseen(TOPIC, columns)
        clock = self._log.clock(self.begun, stop)
        self.queue.add(
            RecordBatch(
                TOPIC, 0, unseen, stop, -1, False, operator_times=[clock], clock=clock
            )
        )
        self.read_to = stop

    def work(self, most: int, steps: int) -> None:
        """Process some steps of at most so many records."""
        for _ in range(steps):
            step = self.queue.next(most, 0.0)
            if step is None:
                return
            self.process(step)

    def process(self, step: Step) -> None:
        columns = step.columns
        assert list(columns.timestamps) == [at // 2 for at in columns.stream_times]
        births = list(columns.stream_times)
        keys = [key or b"" for key in columns.keys]
        self.taken += zip(births, columns.offsets, keys, strict=True)
        times = [self.time, *births, step.stream_time]
        assert all(before <= after for before, after in pairwise(times))
        self.time = step.stream_time
        assert step.ahead is not None
        self.progress.born_up_to(TOPIC, step.next_offset, step.ahead)

    def commit(self) -> list[Record]:
        """Commit, and return what was taken since the last time."""
        self.progress.records(TOPIC)
        self.progress.committed()
        taken, self.taken = self.taken, []
        return taken

    def committed(self) -> tuple[Segment, ...]:
        return self.progress.committed_segments(TOPIC)


def cut(segments: tuple[Segment, ...]) -> Iterator[tuple[Segment, ...]]:
    """Yield the progress of the owners of each half."""
    for half in HALVES:
        yield tuple(
            Segment(part, each.position, each.stream_time, (), (), each.ahead)
            for each in segments
            if (part := each.key_range.intersect(half)) is not None
        )


written = st.lists(
    st.tuples(
        st.integers(0, WRITERS - 1), st.integers(0, 3), st.integers(0, 7), st.booleans()
    ),
    max_size=60,
)
moves = st.lists(
    st.tuples(
        st.sampled_from(["read", "work", "work", "commit", "crash", "cut", "merge"]),
        st.integers(1, 9),
        st.integers(0, 1),
    ),
    max_size=60,
)


@given(written, moves)
def test_each_record_is_taken_once_in_the_order_of_births(
    drawn: list[tuple[int, int, int, bool]], moved: list[tuple[str, int, int]]
) -> None:
    log = Log.of(drawn)
    done: list[Record] = []
    whole = KeyRange(HALVES[0].start, HALVES[1].end)
    owners = [Owner(log, (Segment(whole, 0),))]
    for what, number, which in moved:
        owner = owners[which % len(owners)]
        match what:
            case "read":
                owner.read(number)
            case "work":
                owner.work(number, 1 + number % 3)
            case "commit":
                done += owner.commit()
            case "crash":
                owners[owners.index(owner)] = Owner(log, owner.committed())
            case "cut" if len(owners) == 1:
                owners = [Owner(log, part) for part in cut(owner.committed())]
            case "merge" if len(owners) == 2:
                parts = [segment for each in owners for segment in each.committed()]
                owners = [Owner(log, tuple(join(parts)))]
    for owner in owners:
        last = Owner(log, owner.committed())
        last.begun = 0  # writers repeat their marks, so that each has heard all
        last.read(len(log.records))
        last.work(5, 1000)
        done += last.commit()
    reached = max([-1, log.clock(0, len(log.records))])
    expected = log.born_up_to(reached)
    assert sorted(done) == expected
    for key in KEYS:
        of_key = [record for record in done if record[2] == key]
        assert of_key == [record for record in expected if record[2] == key]


def test_records_in_memory_and_in_a_file_come_together() -> None:
    queue = BirthOrder([(TOPIC, Position(0))], in_memory_bytes=700)
    for first, births, clock in ((0, [5, 3], 0), (2, [4, 9], 0), (4, [6, 2], 6)):
        times = [birth - 1 for birth in births]
        columns = Columns(
            [b"k%d" % birth for birth in births],
            [b"v"] * 2,
            times,
            [first, first + 1],
            [99, 99],
            operator_times=[[0, 0]],
            births=births,
        )
        queue.add(
            RecordBatch(
                TOPIC, 0, columns, first + 2, 99, False, operator_times=[0], clock=clock
            )
        )
    step = queue.next(100)
    assert step is not None
    assert list(step.columns.keys) == [b"k2", b"k3", b"k4", b"k5", b"k6"]
    assert list(step.columns.timestamps) == [1, 2, 3, 4, 5]
    assert list(step.columns.stream_times) == [2, 3, 4, 5, 6]
    assert step.columns.operator_times == [[2, 3, 4, 5, 6]], "all are late"


CLICKS = TopicPartition("clicks", 0)
BOTH = (TOPIC, CLICKS)


@dataclass
class Topics:
    """A partition of a timed topic, and one of a topic of the user: records with the
    time of each.
    """

    timed: Log
    clicks: list[tuple[int, bytes]]
    written: int
    """How many records of the user's topic were written so far."""

    def births(self) -> list[int]:
        """Return the birth of each record of the user's topic."""
        times = [time for time, _ in self.clicks]
        return list(accumulate(times, max))

    def due(self) -> dict[bytes, list[tuple[int, str, int]]]:
        """Return the records of each key that the clocks of both topics reach when they
        are read to their ends, in the order of births, with their offsets.
        """
        births = self.births()
        clock = min(
            self.timed.clock(0, len(self.timed.records)), max(births, default=-1)
        )
        found: dict[bytes, list[tuple[int, str, int]]] = {key: [] for key in KEYS}
        for birth, offset, key in self.timed.born_up_to(clock):
            found[key].append((birth, TOPIC.topic, offset))
        for offset, (birth, (_, key)) in enumerate(
            zip(births, self.clicks, strict=True)
        ):
            if birth <= clock:
                found[key].append((birth, CLICKS.topic, offset))
        return {key: sorted(rows) for key, rows in found.items()}


class OwnerOfBoth:
    """A task of one key range that reads both topics, from its opening on.

    Shape: `taken` has what was taken since the last commit: birth, topic, offset, key.
    """

    def __init__(
        self, topics: Topics, segments: dict[TopicPartition, tuple[Segment, ...]]
    ) -> None:
        self._topics = topics
        self.key_range = KeyRange(
            segments[TOPIC][0].key_range.start, segments[TOPIC][-1].key_range.end
        )
        self.progress = Progress(
            self.key_range,
            {at: PartitionStart(0, segments[at], None, claim=False) for at in BOTH},
            Author("group", 0, "writer"),
        )
        self.progress.by_birth = frozenset({TOPIC.topic})
        self.read_to = {at: self.progress.position(at).offset for at in BOTH}
        self.begun = self.read_to[TOPIC]
        self._stream_time = self.progress.position(CLICKS).stream_time
        reached = [
            Position(
                part.position,
                max(
                    each.stream_time
                    for each in segments[TOPIC]
                    if each.key_range.intersect(part.key_range) is not None
                ),
            )
            for part in segments[CLICKS]
        ]
        self.queue = BirthOrder(
            [(at, self.progress.position(at)) for at in BOTH],
            in_memory_bytes=1000,
            own={CLICKS: Own(1, reached)},
        )
        self.taken: list[tuple[int, str, int, bytes]] = []

    def owns(self, key: bytes) -> bool:
        return self.key_range.start <= key_hash(key) <= self.key_range.end

    def read_timed(self, count: int) -> None:
        log = self._topics.timed
        stop = min(self.read_to[TOPIC] + count, len(log.records))
        some = [
            record
            for record in log.records[self.read_to[TOPIC] : stop]
            if record and self.owns(record[2])
        ]
        births = [birth for birth, _, _ in some]
        clock = log.clock(self.begun, stop)
        self._add(
            TOPIC,
            Columns(
                [key for _, _, key in some],
                [b""] * len(some),
                births,
                [offset for _, offset, _ in some],
                births,
                operator_times=[births],
                births=births,
            ),
            stop,
            -1,
            clock,
        )

    def read_clicks(self, count: int) -> None:
        start = self.read_to[CLICKS]
        stop = min(start + count, self._topics.written)
        some = self._topics.clicks[start:stop]
        times = list(
            accumulate((time for time, _ in some), max, initial=self._stream_time)
        )
        self._stream_time = times[-1]
        mine = [at for at, (_, key) in enumerate(some) if self.owns(key)]
        self._add(
            CLICKS,
            Columns(
                [some[at][1] for at in mine],
                [b""] * len(mine),
                [some[at][0] for at in mine],
                [start + at for at in mine],
                [times[1 + at] for at in mine],
            ),
            stop,
            times[-1],
            -1,
        )

    def _add(
        self,
        where: TopicPartition,
        columns: Columns,
        stop: int,
        stream_time: int,
        clock: int,
    ) -> None:
        unseen = self.progress.unseen(where, columns if len(columns) else NO_RECORDS)
        self.queue.add(
            RecordBatch(
                where,
                0,
                unseen,
                stop,
                stream_time,
                at_end=False,
                operator_times=[clock] if where == TOPIC else (),
                clock=clock,
            )
        )
        self.read_to[where] = stop

    def work(self, most: int, steps: int) -> None:
        for _ in range(steps):
            step = self.queue.next(most, 0.0)
            if step is None:
                return
            columns = step.columns
            topic = step.source.topic
            self.taken += [
                (birth, topic, offset, key or b"")
                for birth, offset, key in zip(
                    columns.stream_times, columns.offsets, columns.keys, strict=True
                )
            ]
            if step.ahead is None:
                self.progress.advance(step.source, step.next_offset, step.stream_time)
            else:
                self.progress.born_up_to(step.source, step.next_offset, step.ahead)

    def promise(self) -> None:
        """Promise the time of the timed topic, if the other one is silent."""
        clock = self._topics.timed.clock(self.begun, self.read_to[TOPIC])
        end = self._topics.written
        if (
            self.read_to[CLICKS] == end
            and self.progress.position(CLICKS).offset >= end
            and clock > self._stream_time
        ):
            self.queue.promise(CLICKS, clock)

    def commit(self) -> list[tuple[int, str, int, bytes]]:
        for where in BOTH:
            self.progress.records(where)
        self.progress.committed()
        taken, self.taken = self.taken, []
        return taken

    def committed(self) -> dict[TopicPartition, tuple[Segment, ...]]:
        return {at: self.progress.committed_segments(at) for at in BOTH}


def of_parts(
    parts: Sequence[dict[TopicPartition, tuple[Segment, ...]]],
) -> dict[TopicPartition, tuple[Segment, ...]]:
    """Return the progress of a task that takes over from these."""
    return {
        at: tuple(
            join(
                [segment for part in parts for segment in part[at]],
                in_birth_order=at == TOPIC,
            )
        )
        for at in BOTH
    }


clicked = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 7)), max_size=40
)
moves_of_both = st.lists(
    st.tuples(
        st.sampled_from(
            ["timed", "clicks", "work", "work", "commit", "crash", "cut", "merge"]
        ),
        st.integers(1, 9),
        st.integers(0, 1),
    ),
    max_size=60,
)


def topics_of(
    drawn: list[tuple[int, int, int, bool]], clicks: list[tuple[int, int, int]]
) -> Topics:
    times = accumulate(step for step, _, _ in clicks)
    rows = [
        (max(0, time - late), KEYS[key])
        for time, (_, late, key) in zip(times, clicks, strict=True)
    ]
    return Topics(Log.of(drawn), rows, len(rows))


def worked(
    topics: Topics, moved: list[tuple[str, int, int]]
) -> tuple[list[tuple[int, str, int, bytes]], list[OwnerOfBoth]]:
    """Return what was committed by the end of these moves, and who is there then."""
    done: list[tuple[int, str, int, bytes]] = []
    whole = KeyRange(HALVES[0].start, HALVES[1].end)
    owners = [OwnerOfBoth(topics, {at: (Segment(whole, 0),) for at in BOTH})]
    for what, number, which in moved:
        owner = owners[which % len(owners)]
        match what:
            case "write":
                topics.written = min(topics.written + number, len(topics.clicks))
            case "timed":
                owner.read_timed(number)
            case "clicks":
                owner.read_clicks(number)
            case "work":
                owner.work(number, 1 + number % 3)
            case "promise":
                owner.promise()
            case "commit":
                done += owner.commit()
            case "crash":
                owners[owners.index(owner)] = OwnerOfBoth(topics, owner.committed())
            case "cut" if len(owners) == 1:
                halves = {at: list(cut(owner.committed()[at])) for at in BOTH}
                owners = [
                    OwnerOfBoth(topics, {at: halves[at][half] for at in BOTH})
                    for half in (0, 1)
                ]
            case "merge" if len(owners) == 2:
                parts = [each.committed() for each in owners]
                owners = [OwnerOfBoth(topics, of_parts(parts))]
    return done, owners


def read_to_the_ends(
    topics: Topics, owners: list[OwnerOfBoth]
) -> Iterator[tuple[OwnerOfBoth, list[tuple[int, str, int, bytes]]]]:
    """Yield successors that have read everything again, and what they have committed."""
    topics.written = len(topics.clicks)
    for owner in owners:
        last = OwnerOfBoth(topics, owner.committed())
        last.begun = 0  # writers repeat their marks, so that each has heard all
        last.read_timed(len(topics.timed.records))
        last.read_clicks(len(topics.clicks))
        last.work(5, 1000)
        yield last, last.commit()


@given(written, clicked, moves_of_both)
def test_a_topic_of_the_user_is_taken_in_the_order_of_births(
    drawn: list[tuple[int, int, int, bool]],
    clicks: list[tuple[int, int, int]],
    moved: list[tuple[str, int, int]],
) -> None:
    topics = topics_of(drawn, clicks)
    done, owners = worked(topics, moved)
    for last, more in read_to_the_ends(topics, owners):
        done += more
        position = last.progress.lowest(CLICKS)
        births = [-1, *topics.births()]
        assert position.stream_time == births[position.position]
    due = topics.due()
    for key in KEYS:
        taken = [row[:3] for row in done if row[3] == key]
        assert sorted(taken) == due[key]
        assert [birth for birth, _, _ in taken] == [birth for birth, _, _ in due[key]]


@given(
    written,
    clicked,
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    *("write", "timed", "clicks", "work", "work", "promise"),
                    *("commit", "crash", "cut", "merge"),
                ]
            ),
            st.integers(1, 9),
            st.integers(0, 1),
        ),
        max_size=60,
    ),
)
def test_a_promised_time_holds_for_later_records_whoever_takes_them(
    drawn: list[tuple[int, int, int, bool]],
    clicks: list[tuple[int, int, int]],
    moved: list[tuple[str, int, int]],
) -> None:
    """Each record is taken once, and those of a key in the order of births: what comes
    after a promise is born at its time or later.
    """
    topics = topics_of(drawn, clicks)
    topics.written = 0
    done, owners = worked(topics, moved)
    for last, more in read_to_the_ends(topics, owners):
        done += more
        last.promise()
        last.work(5, 1000)
        done += last.commit()
    clock = topics.timed.clock(0, len(topics.timed.records))
    timed = topics.timed.born_up_to(max(clock, -1))
    assert sorted(
        (row[0], row[2], row[3]) for row in done if row[1] == TOPIC.topic
    ) == (timed)
    births = topics.births()
    mine = [row for row in done if row[1] == CLICKS.topic]
    assert sorted(offset for _, _, offset, _ in mine) == [
        offset for offset, birth in enumerate(births) if birth <= clock
    ]
    assert all(birth >= births[offset] for birth, _, offset, _ in mine)
    for key in KEYS:
        of_key = [birth for birth, *_, by in done if by == key]
        assert of_key == sorted(of_key)
