"""Hopping windows: a record counts in each open window that holds it. Windows that
never end; user-defined windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams import (
    StreamsBuilder,
    TimeWindows,
    UnlimitedWindows,
    Windowed,
    Windows,
    serdes,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.topology import Topology
from tests.durations import ms
from tests.topology.operators.results import outputs

HOUR = 3_600_000


@cache
def counts(windows: Windows, retention: timedelta | None = ms(1 << 41)) -> Topology:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    stream.group_by_key().windowed_by(windows).count(
        store="counts", retention=retention
    ).to_stream().to("out")
    return builder.build()


def test_a_record_that_no_window_can_take_fails_once() -> None:
    builder = StreamsBuilder("app")
    windowed = (
        builder.stream("in", key=serdes.text, value=serdes.int64)
        .group_by_key()
        .windowed_by(TimeWindows(milliseconds=10, advance=ms(2)))
    )
    windowed.aggregate(
        lambda: 0,
        lambda _, value, total: total + 6 // value,
        value=serdes.int64,
        store="totals",
    )
    with TopologyTestDriver(
        builder.build(), config={"processing.exception.handler": "continue"}
    ) as driver:
        topic = driver.input("in", serdes.text, serdes.int64)
        for value in (1, 0, 2):
            topic.send("a", value, 20)
        assert [failure.offset for failure in driver.failures] == [1]
        assert [row.value for row in driver.store("totals").all()] == [9] * 5


def test_a_record_counts_in_every_window_that_holds_it_in_the_order_of_their_starts() -> (
    None
):
    hopping = counts(TimeWindows(milliseconds=10, advance=ms(4)))
    assert outputs(hopping, ("in", "a", "x", 3), ("in", "a", "x", 13)) == [
        ("[a@0/10]", 1, 3),
        ("[a@4/14]", 1, 13),
        ("[a@8/18]", 1, 13),
        ("[a@12/22]", 1, 13),
    ]


def test_a_late_record_counts_in_the_windows_that_are_still_open() -> None:
    with TopologyTestDriver(
        counts(TimeWindows(milliseconds=10, advance=ms(5)))
    ) as driver:
        topic = driver.input("in", serdes.text, serdes.text)
        topic.send("b", "x", 12)
        topic.send("a", "x", 8)
        assert [
            (str(record.key), record.value)
            for record in driver.outputs()
            if record.key.key == "a"
        ] == [("[a@5/15]", 1)]
        assert [(reason, count) for (_, reason), count in driver.dropped.items()] == [
            ("late", 1)
        ]


@pytest.mark.ci
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=20),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(0, 10),
    st.sampled_from([1, 3]),
)
def test_windows_equal_a_group_by_of_the_records_that_were_in_time(
    records: list[tuple[str, int]], size: int, advance: int, grace: int, ranges: int
) -> None:
    advance = min(size, advance)
    expected: Counter[tuple[str, int]] = Counter()
    stream_time = -1
    for key, timestamp in records:
        stream_time = max(stream_time, timestamp)
        for start in range(0, timestamp + 1, advance):
            if start + size > timestamp and start + size + grace > stream_time:
                expected[key, start] += 1
    with TopologyTestDriver(
        counts(TimeWindows(milliseconds=size, advance=ms(advance), grace=ms(grace))),
        ranges,
    ) as driver:
        for key, timestamp in records:
            driver.input("in", serdes.text, serdes.text).send(key, "x", timestamp)
        assert {
            (row.key.key, row.key.start_ms): row.value
            for row in driver.store("counts").all()
        } == expected


def test_an_unlimited_window_takes_everything_from_its_start_on() -> None:
    with TopologyTestDriver(
        counts(UnlimitedWindows(start_ms=100), retention=None)
    ) as driver:
        topic = driver.input("in", serdes.text, serdes.text)
        for timestamp in (99, 100, 1 << 40, 101):
            topic.send("a", "x", timestamp)
        key = Windowed("a", 100, (1 << 63) - 1)
        assert [
            (record.key, record.value, record.timestamp) for record in driver.outputs()
        ] == [
            (key, 1, 100),
            (key, 2, 1 << 40),
            (key, 3, 1 << 40),
        ]
        assert driver.store("counts").get(key) == 3


class Days(Windows):
    """Days of a time zone: 23, 24 or 25 hours long."""

    size_ms = 25 * HOUR
    grace_ms = 0

    def __init__(self, zone: str) -> None:
        self.zone = ZoneInfo(zone)

    def starts(self, timestamp: int) -> Sequence[int]:
        day = datetime.fromtimestamp(timestamp / 1000, UTC).astimezone(self.zone).date()
        return (
            int(
                datetime(day.year, day.month, day.day, tzinfo=self.zone).timestamp()
                * 1000
            ),
        )

    def end(self, start_ms: int) -> int:
        day = datetime.fromtimestamp(start_ms / 1000, UTC).astimezone(
            self.zone
        ).date() + timedelta(days=1)
        return int(
            datetime(day.year, day.month, day.day, tzinfo=self.zone).timestamp() * 1000
        )


def test_days_of_a_time_zone_are_windows_of_ones_own_and_may_differ_in_length() -> None:
    # daylight saving time begins
    midnight = int(
        datetime(2024, 3, 31, tzinfo=ZoneInfo("Europe/Berlin")).timestamp() * 1000
    )
    with TopologyTestDriver(counts(Days("Europe/Berlin"))) as driver:
        topic = driver.input("in", serdes.text, serdes.text)
        for timestamp in (
            midnight - 1,
            midnight,
            midnight + 23 * HOUR - 1,
            midnight + 23 * HOUR,
        ):
            topic.send("a", "x", timestamp)
        rows = driver.store("counts").all()
        assert [(row.key.end_ms - row.key.start_ms, row.value) for row in rows] == [
            (24 * HOUR, 1),
            (23 * HOUR, 2),
            (24 * HOUR, 1),
        ]


@pytest.mark.parametrize(
    "wrong", [{"advance": ms(11)}, {"advance": 0}, {"grace": ms(-1)}]
)
def test_windows_with_gaps_or_without_progress_are_refused(
    wrong: dict[str, Any],
) -> None:
    with pytest.raises(
        TopologyError,
        match=r"TimeWindows: .* (leave gaps|at least 1 ms|not be negative)",
    ):
        TimeWindows(milliseconds=10, **wrong)


@pytest.mark.parametrize("ranges", [1, 4])
def test_a_record_for_which_such_windows_raise_fails_like_one_at_which_a_function_raises(
    ranges: int,
) -> None:
    """A timestamp in microseconds lies in no year of a calendar."""
    config = {"processing.exception.handler": "continue"}
    with TopologyTestDriver(counts(Days("Europe/Berlin")), ranges, config) as driver:
        for timestamp in (HOUR, 1_700_000_000_000_000):
            driver.input("in", serdes.text, serdes.text).send("a", "x", timestamp)
        (failure,) = driver.failures
        assert (failure.phase, failure.offset) == ("processing", 1)
        # as Python words it, and since 3.14
        assert str(failure.error) in (
            "year 55840 is out of range",
            "year must be in 1..9999, not 55840",
        )
        assert len(driver.store("counts").all()) == 1
