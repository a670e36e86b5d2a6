"""The clock of a timed topic: the least time that all of its writers have told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.log.batches import Routes, make_batches, raw_columns
from coopstreams.log.clocks import Clock, Clocks, Mark, clock_marks_in
from coopstreams.log.log import NO_STREAM_TIME
from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.compile.births import HEADER, births_in, with_births
from coopstreams.topology.compile.operator_time import Arrivals
from coopstreams.topology.keys import GROUPS, WHOLE, KeyRange

PARTITION = TopicPartition("t", 0)
WRITERS = 3
groups = st.tuples(st.integers(0, GROUPS - 1), st.integers(0, GROUPS - 1)).map(sorted)
marks = st.builds(
    lambda partition, ends, time: Mark(partition, ends[0], ends[1], time),
    st.integers(0, WRITERS - 1),
    groups,
    st.integers(0, 50),
)


@given(st.lists(marks, max_size=40))
def test_the_clock_is_the_least_of_what_each_key_group_has_heard(
    heard: list[Mark],
) -> None:
    clock = Clock(WRITERS)
    times = {(p, g): -1 for p in range(WRITERS) for g in range(GROUPS)}
    now = -1
    for mark in heard:
        clock.hear(mark)
        for group in range(mark.first_group, mark.last_group + 1):
            at = mark.partition, group
            times[at] = max(times[at], mark.time)
        now = max(now, min(times.values()))
        assert clock.now == now
    waits = clock.waits_for
    assert waits is not None
    awaited = {times[waits.partition, group] for group in waits.groups.numbers}
    assert awaited == {waits.time} == {min(times.values())}
    after = times.get((waits.partition, waits.groups.last + 1))
    assert after != waits.time


def test_marks_of_half_a_partition_do_not_move_the_clock() -> None:
    first, second = KeyRange.split(2)
    clock = Clock(1)
    clock.hear(Mark.of(0, first, 10))
    assert clock.now == -1
    clock.hear(Mark.of(0, second, 7))
    assert clock.now == 7


def test_a_partition_that_is_not_known_yet_says_nothing() -> None:
    clock = Clock(1)
    clock.hear(Mark.of(1, WHOLE, 10))
    assert clock.now == -1


def test_a_reader_that_goes_back_hears_all_marks_anew() -> None:
    clocks = Clocks()
    clock = clocks.of(PARTITION, 1)
    assert clock is not None
    clock.hear(Mark.of(0, WHOLE, 10))
    assert clocks.of(PARTITION, 1) is clock
    clocks.forget(PARTITION)
    assert clock.now == -1
    assert clocks.of(PARTITION, 2) is not clock
    assert clocks.of(TopicPartition("other", 0), None) is None


times = st.integers(0, 1 << 50)
given_headers = st.one_of(st.none(), st.just([("own", b"1"), ("own", None)]))


@given(st.lists(st.tuples(times, times, given_headers), max_size=8))
def test_births_are_read_as_they_were_written(
    rows: list[tuple[int, int, Headers | None]],
) -> None:
    timestamps = [timestamp for timestamp, _, _ in rows]
    births = [max(timestamp, birth) for timestamp, birth, _ in rows]
    headers = [own for _, _, own in rows]
    written = with_births(headers if any(headers) else None, births, timestamps)
    read, left = births_in(written, timestamps)
    assert (timestamps if read is None else read) == births
    assert (left or [None] * len(rows)) == headers


def test_a_partition_in_order_has_no_headers_of_births() -> None:
    assert with_births(None, [1, 2, 3], [1, 2, 3]) is None
    assert with_births(None, [], [1, 2, 3]) is None


def test_a_header_of_another_length_is_no_birth() -> None:
    read, left = births_in([[(HEADER, b"1")]], [7])
    assert read is None
    assert left == [[(HEADER, b"1")]]


def rows_of(*some: tuple[bytes, int, int] | Mark) -> Columns:
    """Return columns of records (key, timestamp, birth) and marks."""
    keys = [None if isinstance(row, Mark) else row[0] for row in some]
    timestamps = [1000 if isinstance(row, Mark) else row[1] for row in some]
    births = [1000 if isinstance(row, Mark) else row[2] for row in some]
    headers = with_births(None, births, timestamps) or [None] * len(some)
    return raw_columns(
        keys,
        [None if key is None else b"v" for key in keys],
        timestamps,
        list(range(len(some))),
        [
            row.headers if isinstance(row, Mark) else given
            for row, given in zip(some, headers, strict=True)
        ],
    )


def arrivals(_: Columns) -> list[Arrivals]:
    """Two operators, which all records reach."""
    return [None, None]


def test_the_records_of_all_ranges_have_the_clock_in_front_of_them() -> None:
    first, second = KeyRange.split(2)
    clock = Clock(1)
    routes = Routes([first, second], None, arrivals, clock=clock)
    rows = rows_of(
        (b"a", 5, 5),
        Mark.of(0, first, 8),
        (b"b", 3, 9),
        Mark.of(0, second, 6),
        (b"c", 9, 9),
        Mark.of(0, second, 9),
    )
    assert len(clock_marks_in(rows)) == 3
    batches = make_batches(PARTITION, rows, routes, NO_STREAM_TIME, 6, at_end=True)
    told = {
        key: (birth, *operator_times)
        for batch in batches
        for key, birth, *operator_times in zip(
            batch.columns.keys,
            batch.columns.births or batch.columns.timestamps,
            *batch.columns.operator_times,
            strict=True,
        )
    }
    assert told == {b"a": (5, -1, -1), b"b": (9, -1, -1), b"c": (9, 6, 6)}
    assert all(list(batch.operator_times) == [8, 8] for batch in batches)
    assert all(batch.columns.headers is None for batch in batches)
    assert all(batch.stream_time == 9 for batch in batches)


def test_the_operators_are_asked_once_however_many_marks_there_are() -> None:
    asked = list[int]()

    def asking(records: Columns) -> list[Arrivals]:
        asked.append(len(records))
        return arrivals(records)

    routes = Routes([WHOLE], None, asking, clock=Clock(1))
    marks = [Mark.of(0, WHOLE, time) for time in range(20)]
    for _ in range(2):
        rows = rows_of((b"a", 5, 5), *marks, (b"b", 5, 5))
        (batch,) = make_batches(PARTITION, rows, routes, 0, 22, at_end=True)
        assert list(batch.columns.offsets) == [0, 21]
        assert list(batch.operator_times) == [19, 19]
    assert asked == [0]


def test_times_that_were_reached_before_count_from_their_offset_on() -> None:
    clock = Clock(1)
    routes = Routes([WHOLE], None, arrivals, clock=clock)
    rows = rows_of((b"a", 5, 5), (b"b", 6, 6), (b"c", 7, 7))
    (batch,) = make_batches(PARTITION, rows, routes, NO_STREAM_TIME, 3, at_end=True)
    raised = batch.reached(1, [50, -1])
    assert raised.columns.operator_times == [[-1, 50, 50], [-1, -1, -1]]
    assert raised.operator_times == [50, -1]


def test_a_task_without_the_clock_gets_no_marks_and_its_time_is_that_of_the_records() -> (
    None
):
    routes = Routes([WHOLE], None, arrivals)
    rows = rows_of((b"a", 5, 5), Mark.of(0, WHOLE, 800), (b"b", 7, 7))
    (batch,) = make_batches(PARTITION, rows, routes, NO_STREAM_TIME, 3, at_end=True)
    assert list(batch.columns.keys) == [b"a", b"b"]
    assert list(batch.columns.stream_times) == [5, 7], "the mark is dated 1000"
    assert batch.operator_times == [7, 7]


def test_a_header_that_begins_like_that_of_a_mark_stops_nobody_elsewhere() -> None:
    named = raw_columns([None], [None], [5], [0], [[("__coopstreams.time.9", b"")]])
    routes = Routes([WHOLE], None, arrivals)
    (batch,) = make_batches(PARTITION, named, routes, NO_STREAM_TIME, 1, at_end=True)
    assert len(batch.columns) == 1
