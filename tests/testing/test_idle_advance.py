"""`idle_advance` in the test driver: windows close when its clock advances, for all
keys alike.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import (
    JoinWindows,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
    until_window_closes,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import TopologyError
from tests.durations import ms

IDLE = timedelta(seconds=30)


Marked = Literal["source", "repartition", "both"]


@cache
def final_counts(
    idle: timedelta | None = IDLE, *, marked: Marked = "source"
) -> Topology:
    """Count in windows of a minute; `marked`: which topic has the marks."""
    builder = StreamsBuilder("app")
    of_source = None if marked == "repartition" else idle
    stream = builder.stream(
        "in", key=serdes.text, value=serdes.int64, idle_advance=of_source
    )
    if marked != "source":
        stream = stream.repartition(name="r", idle_advance=idle)
    windows = (
        stream.filter(lambda _, value: value > 0)
        .group_by_key()
        .windowed_by(TimeWindows(minutes=1))
    )
    windows.count(store="counts").suppress(until_window_closes()).to_stream().to("out")
    return builder.build()


def closed(driver: TopologyTestDriver) -> list[tuple[str, int]]:
    return sorted((str(record.key), record.value) for record in driver.outputs())


@pytest.mark.parametrize("marked", ["source", "repartition", "both"])
@pytest.mark.parametrize("ranges", [1, 2, 4])
def test_windows_close_when_the_silence_has_lasted_as_long_as_they_have_to_go(
    ranges: int, marked: Marked
) -> None:
    with TopologyTestDriver(final_counts(marked=marked), ranges) as driver:
        for number, key in enumerate("abcdef"):
            driver.input("in").send(key, 1, 20_000 + number)
        driver.advance(timedelta(seconds=35))  # stream time is 55 s: the window is open
        assert closed(driver) == []
        driver.advance(timedelta(seconds=29))  # less than 30 s since the last advance
        assert closed(driver) == []
        driver.advance(timedelta(seconds=1))
        assert closed(driver) == [(f"[{key}@0/60000]", 1) for key in "abcdef"]
        driver.input("in").send("a", 1, 30_000)
        assert sum(driver.dropped.values()) == 1, (
            "the window is closed: the record is late"
        )


def test_without_it_a_silent_topic_closes_nothing() -> None:
    with TopologyTestDriver(final_counts(None)) as driver:
        driver.input("in").send("a", 1, 0)
        driver.advance(timedelta(days=1))
        assert closed(driver) == []


def test_each_partition_has_a_silence_of_its_own() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream(
        "in", key=serdes.text, value=serdes.int64, idle_advance=IDLE
    )
    stream.group_by_key().windowed_by(TimeWindows(minutes=1)).emit_strategy(
        "on_window_close"
    ).count().to_stream().to("out")
    with TopologyTestDriver(builder.build(), 2, partitions=2) as driver:
        silent, busy = driver.input("in"), driver.input("in")
        silent.send("a", 1, 0, partition=0)
        for second in range(4):
            busy.send("b", 1, second, partition=1)
            driver.advance(timedelta(seconds=20))
        assert closed(driver) == [("[a@0/60000]", 1)]


def test_sessions_and_records_without_a_match_end_too() -> None:
    builder = StreamsBuilder("app")
    left = builder.stream("left", key=serdes.text, value=serdes.text, idle_advance=IDLE)
    right = builder.stream(
        "right", key=serdes.text, value=serdes.text, idle_advance=IDLE
    )
    sessions = (
        left.group_by_key()
        .windowed_by(SessionWindows(gap=timedelta(seconds=10)))
        .count(store="sessions")
    )
    sessions.suppress(until_window_closes()).to_stream().to("sessions")
    left.left_join(
        right,
        lambda a, b: f"{a}+{b}",
        windows=JoinWindows(seconds=5),
        value=serdes.text,
    ).to("joined")
    with TopologyTestDriver(builder.build(), 2) as driver:
        driver.input("left").send("a", "x", 1000)
        driver.input("right").send("b", "y", 1000)
        driver.advance(timedelta(seconds=40))
        assert [
            (str(record.key), record.value)
            for record in driver.output("sessions").records()
        ] == [("[a@1000/1000]", 1)]
        assert [
            (record.key, record.value) for record in driver.output("joined").records()
        ] == [("a", "x+None")]


happenings = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("abcd"), st.integers(0, 100_000)),
        st.tuples(
            st.just("advance"), st.sampled_from([1_000, 20_000, 30_000, 45_000, 90_000])
        ),
    ),
    min_size=5,
    max_size=25,
)


@settings(max_examples=30, deadline=None)
@given(happenings, st.sampled_from(["source", "repartition", "both"]))
def test_what_comes_out_of_each_key_does_not_depend_on_the_number_of_ranges(
    some: list[tuple[str, int]], marked: Marked
) -> None:
    def play(ranges: int) -> tuple[list[tuple[str, int]], int]:
        with TopologyTestDriver(final_counts(marked=marked), ranges) as driver:
            for what, time in some:
                if what == "advance":
                    driver.advance(ms(time))
                else:
                    driver.input("in").send(what, time % 3, time)
            return closed(driver), sum(driver.dropped.values())

    assert play(1) == play(2) == play(4)


@pytest.mark.parametrize(
    ("idle", "says"), [(ms(999), "at least"), (30, "a number without a unit")]
)
def test_a_silence_that_makes_no_sense_is_an_error_with_its_place(
    idle: timedelta, says: str
) -> None:
    with pytest.raises(TopologyError, match=f"idle_advance.*{says}"):
        final_counts(idle)
