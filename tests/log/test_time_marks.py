"""Time marks in a partition: no task gets one, and they advance time for all key ranges
at the same record.
"""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.log.batches import Routes, make_batches, raw_columns
from coopstreams.log.log import NO_STREAM_TIME, RecordBatch
from coopstreams.log.time_marks import HEADER, headers_of, marks_in
from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.compile.operator_time import Arrivals
from coopstreams.topology.keys import KeyRange, key_hashes

PARTITION = TopicPartition("t", 0)
MARK = None
record = st.tuples(st.sampled_from([b"a", b"b", b"c", b"d", None]), st.integers(0, 50))
"""A key and a timestamp."""
mark = st.tuples(st.just(MARK), st.integers(0, 50))
rows = st.lists(st.tuples(st.booleans(), st.one_of(record, record, mark)), max_size=30)
"""Records: whether each is a mark, its key and time."""
Rows = list[tuple[bool, tuple[bytes | None, int]]]


def columns_of(some: Rows, start: int = 0, *, native: bool = False) -> Columns:
    """Return the columns of records and marks. `native`: with the stream times of the
    extension, which count all.
    """
    columns = raw_columns(
        [None if marked else key for marked, (key, _) in some],
        [None if marked else b"v" for marked, _ in some],
        [
            1000 if marked else time for marked, (_, time) in some
        ],  # the broker may have set another timestamp
        list(range(start, start + len(some))),
        [headers_of(time) if marked else None for marked, (_, time) in some],
    )
    if native:
        columns.stream_times = list(
            accumulate(columns.timestamps, max, initial=NO_STREAM_TIME)
        )[1:]
    return columns


def even(records: Columns) -> list[Arrivals]:
    """Records of even times reach the only operator."""
    return [lambda i: records.timestamps[i] % 2 == 0]


def fetched(
    some: Rows,
    cuts: list[int],
    ranges: list[KeyRange],
    *,
    time_marks: bool,
    native: bool = False,
) -> list[RecordBatch]:
    """Return the batches of a partition that is fetched in these parts."""
    routes = Routes(ranges, None, even, time_marks=time_marks)
    batches, before, start = list[RecordBatch](), NO_STREAM_TIME, 0
    for end in [*sorted(cuts), len(some)]:
        columns = columns_of(some[start:end], start, native=native)
        batches += make_batches(PARTITION, columns, routes, before, end, at_end=False)
        before, start = batches[-1].stream_time, end
    return batches


@given(
    rows,
    st.lists(st.integers(0, 30), max_size=3),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)
def test_each_record_has_the_time_of_all_records_and_marks_before_it_for_any_ranges_and_fetches(
    some: Rows, cuts: list[int], pieces: int, mine: int, time_marks: bool, native: bool
) -> None:
    ranges = KeyRange.split(pieces)[:mine]
    batches = fetched(
        some,
        [min(cut, len(some)) for cut in cuts],
        ranges,
        time_marks=time_marks,
        native=native,
    )
    stream_time = operator_time = NO_STREAM_TIME
    expected = {}
    for offset, (marked, (key, time)) in enumerate(some):
        if not marked:
            before = operator_time
            stream_time = max(stream_time, time)
            operator_time = max(operator_time, time if time % 2 == 0 else -1)
            (hash_,) = key_hashes([key], [offset])
            for slot in (
                slot for slot, key_range in enumerate(ranges) if hash_ in key_range
            ):
                expected[offset] = key, slot, stream_time, before
        elif time_marks:
            stream_time, operator_time = (
                max(stream_time, time),
                max(operator_time, time),
            )
    found = {
        offset: (key, batch.slot, time, before)
        for batch in batches
        if len(batch.columns)
        for offset, key, time, before in zip(
            batch.columns.offsets,
            batch.columns.keys,
            batch.columns.stream_times,
            batch.columns.operator_times[0],
            strict=True,
        )
    }
    assert found == expected
    assert {batch.stream_time for batch in batches[-len(ranges) :]} == {stream_time}
    for batch in batches[-len(ranges) :]:
        assert list(batch.operator_times) in ([operator_time], [])


def test_a_mark_far_in_the_future_counts_up_to_its_own_timestamp_only() -> None:
    """It may belong to another application, which takes other timestamps from the
    records.
    """
    columns = raw_columns(
        [b"a", None, b"b"],
        [b"v", None, b"v"],
        [10, 70, 20],
        [0, 1, 2],
        [None, headers_of(10**15), None],
    )
    routes = Routes(KeyRange.split(1), None, even, time_marks=True)
    (batch,) = make_batches(PARTITION, columns, routes, NO_STREAM_TIME, 3, at_end=True)
    assert list(batch.columns.stream_times) == [10, 70]
    assert batch.columns.operator_times == [[-1, 70]]


@given(rows)
def test_marks_alone_do_not_keep_a_partition_busy(some: Rows) -> None:
    (batch,) = fetched(some, [], KeyRange.split(1), time_marks=True)
    assert batch.busy is any(not marked for marked, _ in some)


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (b"k", None, headers_of(5)),
        (None, b"v", headers_of(5)),
        (None, None, [(HEADER, b"soon")]),
        (None, None, [(HEADER, None)]),
        (None, None, [("other", b"5"), *headers_of(5)]),
        (None, None, [("other", b"5")]),
    ],
)
def test_what_only_looks_like_a_mark_is_a_record(
    key: bytes | None, value: bytes | None, headers: Headers
) -> None:
    assert marks_in(raw_columns([key], [value], [0], [0], [headers])) == []
