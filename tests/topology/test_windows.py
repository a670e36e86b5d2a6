"""Tumbling windows: every timestamp in exactly one, aligned to the epoch."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.durations import duration_ms
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.processors import versioned_store, window_store
from coopstreams.topology.serdes import raw
from coopstreams.topology.suppression import until_time_limit
from coopstreams.topology.windows import (
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
)
from tests.durations import ms

TIMES = st.integers(0, 2**53)
SIZES = st.integers(1, 10**11)


@given(TIMES, SIZES)
def test_a_timestamp_lies_in_its_only_window(timestamp: int, size_ms: int) -> None:
    windows = TimeWindows(milliseconds=size_ms)
    (start,) = windows.starts(timestamp)
    assert start <= timestamp < windows.end(start)
    assert start % size_ms == 0


@given(TIMES, TIMES, SIZES)
def test_windows_of_two_timestamps_are_the_same_or_do_not_overlap(
    a: int, b: int, size_ms: int
) -> None:
    windows = TimeWindows(milliseconds=size_ms)
    (first,), (second,) = windows.starts(min(a, b)), windows.starts(max(a, b))
    assert first == second or windows.end(first) <= second


@given(TIMES, SIZES, st.integers(0, 10**11))
def test_a_window_closes_when_stream_time_reaches_its_end_and_grace(
    timestamp: int, size_ms: int, grace_ms: int
) -> None:
    windows = TimeWindows(milliseconds=size_ms, grace=ms(grace_ms))
    (start,) = windows.starts(timestamp)
    closes = windows.end(start) + grace_ms
    assert not windows.is_closed(start, closes - 1)
    assert windows.is_closed(start, closes)


def test_sizes_are_written_in_words_or_as_a_duration() -> None:
    hour = TimeWindows(hours=1)
    assert (
        hour
        == TimeWindows(size=timedelta(hours=1))
        == TimeWindows(minutes=60)
        == TimeWindows(milliseconds=3_600_000)
    )
    assert hour.grace_ms == 0
    assert TimeWindows(days=1, grace=timedelta(hours=6)).grace_ms == 6 * 3_600_000
    assert len({hour, TimeWindows(seconds=3600)}) == 1


def test_every_kind_of_windows_takes_its_length_in_words() -> None:
    assert SlidingWindows(minutes=1, seconds=30) == SlidingWindows(
        difference=timedelta(seconds=90)
    )
    assert SessionWindows(minutes=30) == SessionWindows(gap=timedelta(minutes=30))
    assert (
        JoinWindows(minutes=5)
        == JoinWindows(timedelta(minutes=5))
        == JoinWindows(before=timedelta(minutes=5), after=timedelta(minutes=5))
    )
    assert JoinWindows(0, after=timedelta(seconds=1)) == JoinWindows(
        before=0, after=timedelta(seconds=1)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {},
            r"TimeWindows: give the size either in days=.* as in TimeWindows\(minutes=5\), or as size=timedelta",
        ),
        ({"hours": 0}, "the size must be at least 1 ms, not 0 ms"),
        ({"milliseconds": -5}, "the size must be at least 1 ms, not -5 ms"),
        ({"hours": 1, "size": timedelta(5)}, "either in days=, hours=.*, or as size="),
        ({"weeks": 1}, "TimeWindows takes no weeks=: give the size in days=, hours="),
        ({"hours": 1, "grace": timedelta(-1)}, "grace must not be negative"),
        ({"size": timedelta(microseconds=1)}, "nothing finer than a millisecond"),
        (
            {"size": 5},
            r"the size is 5, a number without a unit. Write timedelta\(milliseconds=5\)",
        ),
        (
            {"hours": 1, "grace": 2.5},
            r"grace is 2.5, a number without a unit. Write timedelta\(milliseconds=2.5\)",
        ),
        (
            {"size": "1h"},
            r"must be a timedelta such as timedelta\(minutes=5\), not '1h'",
        ),
        ({"hours": 1, "grace": True}, "must be a timedelta .* not True"),
        ({"hours": 1, "grace": False}, "must be a timedelta .* not False"),
    ],
)
def test_windows_that_cannot_be_are_an_error(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(TopologyError, match=message):
        TimeWindows(**arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: TimeWindows(60),  # type: ignore[arg-type]
            "TimeWindows: the size is 60, a number without a unit",
        ),
        (
            lambda: SessionWindows(60),  # type: ignore[arg-type]
            "SessionWindows: the gap is 60, a number without a unit",
        ),
        (lambda: SlidingWindows(60), "SlidingWindows: the difference is 60, a number"),  # type: ignore[arg-type]
        (
            lambda: SlidingWindows(difference=10),  # type: ignore[arg-type]
            "SlidingWindows: the difference is 10, a number without a unit",
        ),
        (
            lambda: SessionWindows(gap=10),  # type: ignore[arg-type]
            "SessionWindows: the gap is 10, a number without a unit",
        ),
        (
            lambda: JoinWindows(10),  # type: ignore[arg-type]
            "JoinWindows: the difference is 10, a number without a unit",
        ),
        (
            lambda: JoinWindows(minutes=1, before=10),  # type: ignore[arg-type]
            "JoinWindows: before is 10, a number without a unit",
        ),
        (
            lambda: until_time_limit(10),  # type: ignore[arg-type]
            "until_time_limit: the limit is 10, a number without a unit",
        ),
        (
            lambda: window_store("s", key=raw, value=raw, size=10, retention=0),  # type: ignore[arg-type]
            'store "s": size is 10',
        ),
        (
            lambda: versioned_store("s", key=raw, value=raw, history=10),  # type: ignore[arg-type]
            'store "s": the history is 10',
        ),
        (
            lambda: StreamsBuilder("a").table("t", key=raw, value=raw, history=10),  # type: ignore[arg-type]
            r'table\("t"\): the history is 10',
        ),
        (
            lambda: UnlimitedWindows(start_ms=-1),
            "start_ms is a timestamp, milliseconds since the epoch, not -1",
        ),
    ],
)
def test_a_plain_number_is_no_duration(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(TopologyError, match=message):
        make()


@given(st.integers(-(10**12), 10**12))
def test_a_duration_is_whole_milliseconds(milliseconds: int) -> None:
    assert duration_ms(ms(milliseconds), "it") == milliseconds
