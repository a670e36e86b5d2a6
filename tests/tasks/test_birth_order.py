"""A task takes each record once, in the order of births, whatever the batches, commits,
crashes, cuts and merges of key ranges are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.commit.progress import Author, Progress
from coopstreams.commit.record import Segment
from coopstreams.commit.view import PartitionStart, join
from coopstreams.log.log import Position, RecordBatch
from coopstreams.tasks.birth_order import BirthOrder
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
        self.progress.in_birth_order = True
        start = self.progress.lowest(TOPIC)
        self._begun = self.read_to = start.position
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
        clock = self._log.clock(self._begun, stop)
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
        # all are read again at last, so that each has heard all marks
        last = Owner(log, owner.committed())
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
