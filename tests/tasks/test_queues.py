"""The order in which a task takes records of several sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, compress, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.log.log import NO_STREAM_TIME, Position, RecordBatch
from coopstreams.tasks.queues import SourceQueues, Step, next_run
from coopstreams.topology.columns import Columns, TopicPartition

TABLE = TopicPartition("customers", 0)
STREAM = TopicPartition("orders", 0)
START = Position(0, NO_STREAM_TIME)


def log_of(timestamps: list[int]) -> list[tuple[int, int, int]]:
    """A partition: (offset, timestamp, stream time) of each record."""
    return [
        (offset, time, high)
        for offset, (time, high) in enumerate(
            zip(timestamps, accumulate(timestamps, max), strict=True)
        )
    ]


def run_of(
    source: TopicPartition,
    records: list[tuple[int, int, int]],
    next_offset: int,
    stream_time: int,
    *,
    at_end: bool = False,
) -> RecordBatch:
    columns = Columns(
        [b"k%d" % offset for offset, _, _ in records],
        [None] * len(records),
        [time for _, time, _ in records],
        [offset for offset, _, _ in records],
        [high for _, _, high in records],
    )
    return RecordBatch(source, 0, columns, next_offset, stream_time, at_end)


def steps_of(queues: SourceQueues, most: int, now: float) -> Iterator[Step]:
    while (step := queues.next(most, now)) is not None:
        yield step


def taken(queues: SourceQueues, now: float = 0.0) -> list[tuple[str, int]]:
    return [
        (step.source.topic, offset)
        for step in steps_of(queues, 1 << 20, now)
        for offset in step.columns.offsets
    ]


def feed(
    queues: SourceQueues,
    source: TopicPartition,
    records: list[tuple[int, int, int]],
    *,
    upto: int,
    at_end: bool,
) -> None:
    queues.add(
        run_of(
            source,
            records,
            upto,
            records[-1][2] if records else NO_STREAM_TIME,
            at_end=at_end,
        )
    )


def test_a_stream_waits_until_its_table_was_read() -> None:
    queues = SourceQueues([(TABLE, START), (STREAM, START)])
    feed(queues, STREAM, log_of([5, 6]), upto=2, at_end=True)
    assert taken(queues) == []
    feed(queues, TABLE, log_of([1, 2]), upto=2, at_end=True)
    assert taken(queues) == [
        ("customers", 0),
        ("customers", 1),
        ("orders", 0),
        ("orders", 1),
    ]


def test_an_empty_table_that_was_read_to_its_end_does_not_hold_the_stream() -> None:
    queues = SourceQueues([(TABLE, START), (STREAM, START)])
    feed(queues, TABLE, [], upto=0, at_end=True)
    feed(queues, STREAM, log_of([5]), upto=1, at_end=False)
    assert taken(queues) == [("orders", 0)]


def test_the_first_source_goes_first_at_equal_times() -> None:
    queues = SourceQueues([(TABLE, START), (STREAM, START)])
    feed(queues, STREAM, log_of([5, 5]), upto=2, at_end=True)
    feed(queues, TABLE, log_of([5, 7]), upto=2, at_end=True)
    assert taken(queues) == [
        ("customers", 0),
        ("orders", 0),
        ("orders", 1),
        ("customers", 1),
    ]


def test_records_that_come_again_after_the_reader_went_back_are_dropped() -> None:
    queues = SourceQueues([(STREAM, START)])
    feed(queues, STREAM, log_of([1, 2, 3]), upto=3, at_end=False)
    assert len(taken(queues)) == 3
    feed(queues, STREAM, log_of([1, 2, 3, 4]), upto=4, at_end=False)
    assert taken(queues) == [("orders", 3)]


def test_a_batch_from_below_what_was_received_changes_nothing() -> None:
    queues = SourceQueues([(STREAM, START)])
    feed(queues, STREAM, log_of([1, 2, 3]), upto=3, at_end=False)
    feed(queues, STREAM, log_of([1, 2]), upto=2, at_end=True)
    feed(queues, STREAM, [], upto=3, at_end=False)
    assert (queues.received(STREAM), queues.waiting(STREAM)) == (3, 3)
    assert [
        (step.next_offset, len(step.columns)) for step in steps_of(queues, 1 << 20, 0.0)
    ] == [(3, 3)]


def test_a_batch_that_reports_the_end_again_is_a_step_without_records() -> None:
    queues = SourceQueues([(STREAM, START)])
    feed(queues, STREAM, log_of([1]), upto=1, at_end=True)
    assert taken(queues) == [("orders", 0)]
    feed(queues, STREAM, [], upto=1, at_end=True)
    assert [
        (step.next_offset, len(step.columns)) for step in steps_of(queues, 1 << 20, 0.0)
    ] == [(1, 0)]


def test_a_step_says_where_the_source_stands_when_part_of_a_batch_waits() -> None:
    queues = SourceQueues([(TABLE, START), (STREAM, START)])
    feed(queues, STREAM, log_of([1, 9]), upto=2, at_end=True)
    feed(queues, TABLE, log_of([4]), upto=1, at_end=False)
    steps = list(steps_of(queues, 1 << 20, 0.0))
    assert [
        (step.source.topic, step.next_offset, step.stream_time) for step in steps
    ] == [
        ("orders", 1, 1),
        ("customers", 1, 4),
    ]
    assert queues.waiting(STREAM) == 1


@given(
    tables=st.lists(st.integers(0, 30), max_size=40),
    orders=st.lists(st.integers(0, 30), max_size=40),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=8),
)
def test_steps_of_any_sizes_have_each_record_once_and_in_the_same_order(
    tables: list[int], orders: list[int], sizes: list[int]
) -> None:
    def filled() -> SourceQueues:
        queues = SourceQueues([(TABLE, START), (STREAM, START)])
        for source, times in ((TABLE, tables), (STREAM, orders)):
            feed(queues, source, log_of(times), upto=len(times), at_end=True)
        return queues

    queues, found, count = filled(), list[tuple[str, int]](), 0
    while (
        step := next(steps_of(queues, sizes[count % len(sizes)], 0.0), None)
    ) is not None:
        assert len(step.columns) <= sizes[count % len(sizes)]
        found += [(step.source.topic, offset) for offset in step.columns.offsets]
        count += 1
    assert found == taken(filled())
    assert sorted(found) == sorted(
        [("customers", offset) for offset in range(len(tables))]
        + [("orders", offset) for offset in range(len(orders))]
    )


@given(
    tables=st.lists(st.integers(0, 30), max_size=40),
    orders=st.lists(st.integers(0, 30), max_size=40),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=8),
)
def test_runs_have_the_records_of_the_steps_and_no_more_than_is_asked_for(
    tables: list[int], orders: list[int], sizes: list[int]
) -> None:
    def filled() -> SourceQueues:
        queues = SourceQueues([(TABLE, START), (STREAM, START)])
        for source, times in ((TABLE, tables), (STREAM, orders)):
            feed(queues, source, log_of(times), upto=len(times), at_end=True)
        return queues

    queues, found, count = filled(), list[tuple[str, int]](), 0
    while run := next_run(queues, sizes[count % len(sizes)], 0.0):
        offsets = [
            (step.source.topic, offset)
            for step in run
            for offset in step.columns.offsets
        ]
        assert len(offsets) <= sizes[count % len(sizes)]
        found += offsets
        count += 1
    assert found == taken(filled())


def test_a_stream_waits_for_the_producers_of_its_table_for_as_long_as_it_may() -> None:
    queues = SourceQueues([(TABLE, START), (STREAM, START)], max_idle_ms=500)
    feed(queues, TABLE, log_of([5]), upto=1, at_end=True)
    feed(queues, STREAM, log_of([4, 6]), upto=2, at_end=True)
    assert taken(queues, 10.0) == [("orders", 0), ("customers", 0)]
    assert queues.waits_until == 10.5
    assert taken(queues, 10.4) == []
    feed(queues, TABLE, [(1, 5, 5)], upto=2, at_end=True)
    assert taken(queues, 10.45) == [("customers", 1)]
    assert queues.waits_until == 10.95, "it is waited for anew"
    assert taken(queues, 10.9) == []
    assert taken(queues, 10.95) == [("orders", 1)]
    feed(queues, STREAM, [(2, 7, 7)], upto=3, at_end=True)
    assert taken(queues, 20.0) == [("orders", 2)], "it has been silent all the time"


def test_what_moves_no_record_is_not_waited_for_again() -> None:
    queues = SourceQueues([(TABLE, START), (STREAM, START)], max_idle_ms=500)
    feed(queues, TABLE, [], upto=0, at_end=True)
    feed(queues, STREAM, log_of([5]), upto=1, at_end=True)
    assert taken(queues, 10.0) == []
    feed(queues, TABLE, [], upto=1, at_end=True)  # the marker of a transaction
    assert taken(queues, 10.2) == []
    assert queues.waits_until == 10.5
    assert taken(queues, 10.5) == [("orders", 0)]
    assert queues.waits_until is None


def test_a_task_that_may_not_wait_takes_what_is_there() -> None:
    queues = SourceQueues([(TABLE, START), (STREAM, START)], max_idle_ms=-1)
    feed(queues, STREAM, log_of([5]), upto=1, at_end=False)
    assert taken(queues) == [("orders", 0)]
    feed(queues, STREAM, [(1, 9, 9)], upto=2, at_end=False)
    feed(queues, TABLE, log_of([7]), upto=1, at_end=False)
    assert taken(queues) == [("customers", 0), ("orders", 1)], (
        "what is there is still taken in order"
    )


def pieces(
    logs: Mapping[TopicPartition, Sequence[object]], random: Random
) -> Iterator[tuple[TopicPartition, int, int]]:
    """Yield the two logs in pieces of any sizes, in any order: partition, first offset,
    end of each.
    """
    at = dict.fromkeys(logs, 0)
    while at:
        source = random.choice(list(at))
        first, end = (
            at[source],
            min(len(logs[source]), at[source] + random.randint(0, 5)),
        )
        yield source, first, end
        at[source] = end
        if end == len(logs[source]):
            del at[source]


times = st.lists(st.integers(0, 50), max_size=30)


@pytest.mark.ci
@given(times, times, st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_batches(
    left: list[int], right: list[int], random: Random
) -> None:
    """For any batches of the two logs, records come out in the order of (stream time,
    source).
    """
    logs = {TABLE: log_of(left), STREAM: log_of(right)}
    queues = SourceQueues([(TABLE, START), (STREAM, START)])
    seen: list[tuple[str, int]] = []
    for source, first, upto in pieces(logs, random):
        feed(
            queues,
            source,
            logs[source][first:upto],
            upto=upto,
            at_end=upto == len(logs[source]),
        )
        seen += taken(queues)
    expected = [
        (s.topic, offset)
        for _, _, s, offset in sorted(
            (high, order, s, offset)
            for order, s in enumerate(logs)
            for offset, _, high in logs[s]
        )
    ]
    assert seen == expected


@pytest.mark.ci
@given(times, times, st.randoms(use_true_random=False))
def test_a_task_of_a_whole_partition_takes_what_kafka_streams_takes(
    left: list[int], right: list[int], random: Random
) -> None:
    """`PartitionGroup`: the earliest record in front, once each source has one or was
    read to its end.

    Records come while the task works: a source that was read to its end gets more.
    """
    logs = {TABLE: left, STREAM: right}
    queues = SourceQueues([(TABLE, START), (STREAM, START)])
    fetched, ended = {s: list[int]() for s in logs}, dict.fromkeys(logs, False)
    done = dict.fromkeys(logs, 0)
    for source, first, upto in pieces(logs, random):
        ended[source] = upto == len(logs[source]) or random.random() < 0.4
        reached = max(
            logs[source][:upto], default=NO_STREAM_TIME
        )  # also that of a batch without records
        queues.add(
            run_of(
                source,
                log_of(logs[source])[first:upto],
                upto,
                reached,
                at_end=ended[source],
            )
        )
        fetched[source] += logs[source][first:upto]
        expected = []
        while all(done[s] < len(fetched[s]) or ended[s] for s in logs):
            heads = [
                (fetched[s][done[s]], order, s)
                for order, s in enumerate(logs)
                if done[s] < len(fetched[s])
            ]
            if not heads:
                break
            _, _, best = min(heads)
            expected.append((best.topic, done[best]))
            done[best] += 1
        assert taken(queues) == expected


def test_after_a_record_far_ahead_of_time_the_next_ones_are_compared_by_their_own_timestamps() -> (
    None
):
    queues = SourceQueues(
        [(TABLE, Position(7, 3_600_000)), (STREAM, START)]
    )  # it was processed before a restart
    feed(queues, STREAM, log_of([1000, 3000]), upto=2, at_end=True)
    assert taken(queues) == [], "also the table is fetched first"
    queues.add(
        run_of(
            TABLE,
            [(7, 2000, 3_600_000), (8, 4000, 3_600_000)],
            9,
            3_600_000,
            at_end=True,
        )
    )
    assert taken(queues) == [
        ("orders", 0),
        ("customers", 7),
        ("orders", 1),
        ("customers", 8),
    ]


def test_a_source_that_is_held_because_of_a_sibling_lets_the_others_pass_up_to_its_time() -> (
    None
):
    queues = SourceQueues([(TABLE, START), (STREAM, START)])
    feed(queues, TABLE, [(0, 5, 5)], upto=1, at_end=False)
    feed(queues, STREAM, log_of([7, 4, 6]), upto=3, at_end=False)
    queues.hold(STREAM, True)
    assert taken(queues) == [("customers", 0)]
    queues.hold(TABLE, True)
    queues.add(run_of(TABLE, [], 2, 9))
    assert taken(queues) == [("orders", 0), ("orders", 1), ("orders", 2)]
    feed(queues, STREAM, [(3, 8, 8), (4, 10, 10)], upto=5, at_end=False)
    assert taken(queues) == [("orders", 3)]


owned = st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=30)


@pytest.mark.ci
@given(owned, owned, st.randoms(use_true_random=False))
def test_each_range_takes_its_records_in_the_order_of_the_whole_partition(
    left: list[tuple[int, bool]], right: list[tuple[int, bool]], random: Random
) -> None:
    """As long as no source is read to its end before the other: then the order is also
    one of time.
    """
    logs = {
        TABLE: log_of([time for time, _ in left]),
        STREAM: log_of([time for time, _ in right]),
    }
    mine = {TABLE: [own for _, own in left], STREAM: [own for _, own in right]}
    whole, part = (SourceQueues([(TABLE, START), (STREAM, START)]) for _ in range(2))
    every, some = list[tuple[str, int]](), list[tuple[str, int]]()
    for source, first, upto in pieces(logs, random):
        end, time = (
            upto == len(logs[source]),
            logs[source][upto - 1][2] if upto else NO_STREAM_TIME,
        )
        whole.add(run_of(source, logs[source][first:upto], upto, time, at_end=end))
        part.add(
            run_of(
                source,
                list(compress(logs[source][first:upto], mine[source][first:])),
                upto,
                time,
                at_end=end,
            )
        )
        every, some = every + taken(whole), some + taken(part)
    assert some == [
        (topic, offset)
        for topic, offset in every
        if mine[TABLE if topic == TABLE.topic else STREAM][offset]
    ]


@pytest.mark.ci
@given(owned, owned, st.randoms(use_true_random=False))
def test_no_source_tells_a_time_to_which_another_has_not_come(
    left: list[tuple[int, bool]], right: list[tuple[int, bool]], random: Random
) -> None:
    """Some records are siblings': their times take effect at their place in the queue,
    or at its end.

    Each step has the stream time of all records below its position.
    """
    mine = {TABLE: [own for _, own in left], STREAM: [own for _, own in right]}
    logs = {
        TABLE: log_of([time for time, _ in left]),
        STREAM: log_of([time for time, _ in right]),
    }
    queues = SourceQueues([(TABLE, START), (STREAM, START)])
    told = dict.fromkeys(logs, START)
    for source, first, upto in pieces(logs, random):
        records = list(compress(logs[source][first:upto], mine[source][first:]))
        time, end = (
            logs[source][upto - 1][2] if upto else NO_STREAM_TIME,
            upto == len(logs[source]),
        )
        queues.add(run_of(source, records, upto, time, at_end=end))
        for step in steps_of(queues, random.choice((1, 3, 1 << 20)), 0.0):
            begins = (
                step.columns.stream_times[0] if len(step.columns) else step.stream_time
            )
            assert all(
                position.stream_time <= begins
                for other, position in told.items()
                if other != step.source
            )
            assert (
                not step.next_offset
                or step.stream_time == logs[step.source][step.next_offset - 1][2]
            )
            told[step.source] = Position(step.next_offset, step.stream_time)
    assert told == {
        source: Position(len(log), log[-1][2] if log else NO_STREAM_TIME)
        for source, log in logs.items()
    }


@given(
    st.lists(st.integers(0, 40), max_size=12),
    st.lists(st.integers(0, 3), max_size=12),
    st.booleans(),
)
def test_a_source_that_waits_keeps_one_batch_of_nothing_and_says_what_all_of_them_said(
    times: list[int], nothings: list[int], ended: bool
) -> None:
    """Fetches without a record come after records; the last one may only report the end
    of the partition, without operator times.
    """
    queues, log = SourceQueues([(TABLE, START), (STREAM, START)]), log_of(times)
    upto, time = 0, NO_STREAM_TIME
    for record, count in zip(log, [*nothings, *[0] * len(log)], strict=False):
        upto, time = upto + 1, max(time, record[2])
        queues.add(
            replace(
                run_of(STREAM, [(upto - 1, record[1], time)], upto, time),
                operator_times=[time],
            )
        )
        for _ in range(count):
            upto, time = upto + 1, time + 1
            queues.add(replace(run_of(STREAM, [], upto, time), operator_times=[time]))
    if ended and upto:
        queues.add(RecordBatch.ended(STREAM, 0, Position(upto + 1, time)))
        upto += 1
    assert taken(queues) == []
    batches = queues._sources[STREAM].waiting
    assert not any(not one.left and not other.left for one, other in pairwise(batches))
    feed(queues, TABLE, log_of([1000]), upto=1, at_end=False)
    steps = [step for step in steps_of(queues, 1 << 20, 0.0) if step.source == STREAM]
    assert sum(len(step.columns) for step in steps) == len(log)
    if steps:
        assert (steps[-1].next_offset, steps[-1].stream_time) == (upto, time)
        assert [step.operator_times for step in steps if step.operator_times][-1] == [
            time
        ]


def test_what_the_log_still_has_of_a_source_is_waited_for_however_late_it_is() -> None:
    """Found by a simulated history: the thread polled without a pause, because of a
    past time that it no longer waited for.
    """
    queues = SourceQueues([(TABLE, START), (STREAM, START)], max_idle_ms=500)
    feed(queues, TABLE, [], upto=0, at_end=True)
    feed(queues, STREAM, log_of([5]), upto=1, at_end=True)
    assert taken(queues, 10.0) == []
    assert queues.waits_until == 10.5
    feed(queues, TABLE, [], upto=1, at_end=False)
    assert taken(queues, 11.0) == []
    assert queues.waits_until is None
