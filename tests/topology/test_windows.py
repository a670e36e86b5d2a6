"""Tumbling windows: every timestamp in exactly one, aligned to the epoch."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.topology.errors import TopologyError
from coopstreams.topology.windows import TimeWindows, duration_ms

TIMES = st.integers(0, 2**53)
SIZES = st.integers(1, 10**11)


@given(TIMES, SIZES)
def test_a_timestamp_lies_in_its_only_window(timestamp: int, size_ms: int) -> None:
    windows = TimeWindows(size=size_ms)
    (start,) = windows.starts(timestamp)
    assert start <= timestamp < windows.end(start)
    assert start % size_ms == 0


@given(TIMES, TIMES, SIZES)
def test_windows_of_two_timestamps_are_the_same_or_do_not_overlap(a: int, b: int, size_ms: int) -> None:
    windows = TimeWindows(size=size_ms)
    (first,), (second,) = windows.starts(min(a, b)), windows.starts(max(a, b))
    assert first == second or windows.end(first) <= second


@given(TIMES, SIZES, st.integers(0, 10**11))
def test_a_window_closes_when_stream_time_reaches_its_end_and_grace(
    timestamp: int, size_ms: int, grace_ms: int
) -> None:
    windows = TimeWindows(size=size_ms, grace=grace_ms)
    (start,) = windows.starts(timestamp)
    closes = windows.end(start) + grace_ms
    assert not windows.is_closed(start, closes - 1)
    assert windows.is_closed(start, closes)


def test_sizes_are_written_in_words_or_as_a_duration() -> None:
    hour = TimeWindows(hours=1)
    assert hour == TimeWindows(size=timedelta(hours=1)) == TimeWindows(minutes=60) == TimeWindows(size=3_600_000)
    assert hour.grace_ms == 0
    assert TimeWindows(days=1, grace=timedelta(hours=6)).grace_ms == 6 * 3_600_000
    assert len({hour, TimeWindows(seconds=3600)}) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "the size must be at least 1 ms, not 0 ms"),
        ({"size": -5}, "the size must be at least 1 ms, not -5 ms"),
        ({"hours": 1, "size": 5}, "either as size= or in days="),
        ({"hours": 1, "grace": -1}, "grace must not be negative"),
        ({"size": timedelta(microseconds=1)}, "nothing finer than a millisecond"),
        ({"size": "1h"}, "must be a timedelta or whole milliseconds, not '1h'"),
        ({"hours": 1, "grace": True}, "must be a timedelta or whole milliseconds, not True"),
    ],
)
def test_windows_that_cannot_be_are_an_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        TimeWindows(**arguments)


@given(st.integers(-(10**12), 10**12))
def test_a_duration_is_the_same_in_milliseconds_and_as_a_timedelta(milliseconds: int) -> None:
    assert duration_ms(milliseconds, "it") == duration_ms(timedelta(milliseconds=milliseconds), "it") == milliseconds
