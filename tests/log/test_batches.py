"""Cutting a partition's records by key range, and its stream times: the laws behind the
results of a topology.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.log.batches import Routes, make_batches, raw_columns, stream_times
from coopstreams.log.kafka import native
from coopstreams.log.log import NO_STREAM_TIME
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.keys import MAX_HASH, WHOLE, KeyRange, key_hashes
from tests.conftest import needs_native

PARTITION = TopicPartition("t", 0)
keys = st.lists(st.one_of(st.none(), st.binary(max_size=4)), max_size=60)
bounds_ = st.one_of(
    st.integers(1, 255).map(lambda group: group << 55),
    st.integers(1, 255 << 20).map(lambda part: part << 35),
)
cuts = st.lists(bounds_, max_size=6, unique=True).map(sorted)


def columns_of(names: list[bytes | None]) -> Columns:
    count = len(names)
    columns = raw_columns(
        names,
        [f"v{i}".encode() for i in range(count)],
        list(range(count)),
        list(range(7, 7 + count)),
        [None] * count,
    )
    columns.stream_times = columns.timestamps
    return columns


def tiles(bounds: list[int]) -> list[KeyRange]:
    starts = [0, *bounds]
    return [
        KeyRange(start, end - 1)
        for start, end in zip(starts, [*bounds, MAX_HASH + 1], strict=True)
    ]


@given(keys, cuts, st.randoms())
def test_ranges_that_tile_the_space_give_each_record_to_exactly_one_slot(
    names: list[bytes | None], bounds: list[int], random: Random
) -> None:
    ranges = tiles(bounds)
    random.shuffle(ranges)
    columns = columns_of(names)
    parts = Routes(ranges).split(columns)
    assert sorted(offset for part in parts for offset in part.offsets) == list(
        columns.offsets
    )
    for piece, part in zip(ranges, parts, strict=True):
        assert all(hash_ in piece for hash_ in key_hashes(part.keys, part.offsets))
        assert list(part.offsets) == sorted(part.offsets)
        assert [columns.values[offset - 7] for offset in part.offsets] == list(
            part.values
        )


@needs_native
@given(keys, cuts, st.data())
def test_the_extension_cuts_as_pure_python_does(
    names: list[bytes | None], bounds: list[int], data: st.DataObject
) -> None:
    router = native.router()
    assert router is not None
    ranges = data.draw(
        st.lists(st.sampled_from(tiles(bounds)), min_size=1, unique=True)
    )
    columns = columns_of(names)
    for suffix in (0, 3):
        native_ones = Routes(ranges, suffix=suffix, router=router).split(columns)
        assert native_ones == Routes(ranges, suffix=suffix).split(columns)


@given(keys, cuts, st.data())
def test_what_some_ranges_get_does_not_depend_on_the_others(
    names: list[bytes | None], bounds: list[int], data: st.DataObject
) -> None:
    ranges = tiles(bounds)
    chosen = data.draw(
        st.lists(st.sampled_from(range(len(ranges))), min_size=1, unique=True)
    )
    together = Routes(ranges).split(columns_of(names))
    alone = Routes([ranges[i] for i in chosen]).split(columns_of(names))
    assert [list(part.offsets) for part in alone] == [
        list(together[i].offsets) for i in chosen
    ]


@given(keys, st.integers(1, 256))
def test_cutting_at_key_groups_is_the_same_as_cutting_anywhere(
    names: list[bytes | None], parts: int
) -> None:
    ranges = KeyRange.split(parts)
    by_group = Routes(ranges).split(columns_of(names))
    uneven = [
        *ranges[:-1],
        KeyRange(ranges[-1].start, MAX_HASH - 1),
    ]  # cut within a key group, so not by the table
    by_bound = Routes(uneven).split(columns_of(names))
    assert [list(part.offsets) for part in by_group] == [
        list(part.offsets) for part in by_bound
    ]


@given(st.lists(st.integers(-2, 50), min_size=1), st.integers(NO_STREAM_TIME, 60))
def test_stream_time_is_the_running_maximum(timestamps: list[int], before: int) -> None:
    assert list(stream_times(timestamps, before)) == [
        max(before, *timestamps[: i + 1]) for i in range(len(timestamps))
    ]


@given(st.lists(st.integers(-2, 50)), st.integers(1, 8), st.data())
def test_runs_tell_the_same_stream_times_for_any_cut_into_batches(
    timestamps: list[int], parts: int, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(timestamps)), max_size=4)))
    routes = Routes(KeyRange.split(parts))
    told: dict[int, int] = {}
    before, at = NO_STREAM_TIME, 0
    for cut in [*cuts, len(timestamps)]:
        span = range(at, cut)
        batch = raw_columns(
            [None] * len(span),
            [None] * len(span),
            timestamps[at:cut],
            list(span),
            [None] * len(span),
        )
        batches = make_batches(PARTITION, batch, routes, before, cut, at_end=False)
        assert len(batches) == parts
        assert len({fetched.stream_time for fetched in batches}) == 1
        before, at = batches[0].stream_time, cut
        for fetched in batches:
            told.update(
                zip(fetched.columns.offsets, fetched.columns.stream_times, strict=True)
            )
    assert told == {
        i: max(NO_STREAM_TIME, *timestamps[: i + 1]) for i in range(len(timestamps))
    }


def test_one_whole_range_hashes_nothing_and_copies_nothing() -> None:
    columns = columns_of([b"a", None])
    assert Routes([WHOLE]).split(columns) == [columns]


@pytest.mark.parametrize(
    "ranges",
    [
        [KeyRange(0, 5), KeyRange(5, 9)],
        [KeyRange(3, 9), KeyRange(0, MAX_HASH)],
        [WHOLE, WHOLE],
    ],
)
def test_overlapping_ranges_are_refused(ranges: list[KeyRange]) -> None:
    with pytest.raises(ValueError, match="overlaps"):
        Routes(ranges)


def test_no_ranges_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Routes([])
