"""What windows behind repartition topics hold is a function of the source topics alone:
of each source partition by itself, in whatever order partitions are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams import (
    KStream,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
    until_window_closes,
)
from coopstreams.testing import TopologyTestDriver

SIZE = 10
GRACE = 3
Windows = Counter[tuple[str, int]]
rows = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(0, 60)), min_size=1, max_size=25
)
"""Keys and timestamps of one partition."""
partitions = st.lists(rows, min_size=1, max_size=3)


def renamed(stream: KStream[str, str], name: str) -> KStream[str, str]:
    by_value = stream.select_key(lambda _, value: value[:1], key=serdes.text)
    return by_value.repartition(name=name, key=serdes.text, value=serdes.text)


def once(stream: KStream[str, str]) -> KStream[str, str]:
    return renamed(stream, "once")


def twice(stream: KStream[str, str]) -> KStream[str, str]:
    return renamed(renamed(stream, "first"), "second")


def topology(
    through: Callable[[KStream[str, str]], KStream[str, str]], *, final: bool
) -> Topology:
    builder = StreamsBuilder("app")
    source = builder.stream("in", key=serdes.text, value=serdes.text)
    windows = TimeWindows(
        size=timedelta(milliseconds=SIZE), grace=timedelta(milliseconds=GRACE)
    )
    counts = through(source).group_by_key().windowed_by(windows).count(store="counts")
    if final:
        counts = counts.suppress(until_window_closes(), name="held")
    counts.to_stream().to("out")
    return builder.build()


def expected(written: list[list[tuple[str, int]]]) -> Windows:
    """Return what each window holds: a record counts if its window was open at the
    time of its own partition.
    """
    counts: Windows = Counter()
    for records in written:
        time = -1
        for key, timestamp in records:
            time = max(time, timestamp)
            start = timestamp // SIZE * SIZE
            if start + SIZE + GRACE > time:
                counts[key, start] += 1
    return counts


def told(
    built: Topology,
    written: list[list[tuple[str, int]]],
    order: list[int],
    ranges: int,
    **more: Any,
) -> Windows:
    """Return the last result of each window, with partitions read in this order."""
    left = [list(records) for records in written]
    counts = {"in": len(written), "out": 1}
    found: Windows = Counter()
    with TopologyTestDriver(built, ranges=ranges, partitions=counts, **more) as driver:
        source = driver.input("in", serdes.text, serdes.text)
        for turn in [*order, *(p for p, some in enumerate(left) for _ in some)]:
            partition = turn % len(left)
            if left[partition]:
                key, timestamp = left[partition].pop(0)
                source.send("key", key, timestamp, partition=partition)
        for record in driver.output("out", serdes.raw, serdes.int64).read():
            start = int.from_bytes(record.key[-8:], "big")
            found[record.key[:-8].decode(), start] = record.value
    return found


@given(partitions, st.lists(st.integers(0, 2), max_size=80), st.sampled_from([1, 2, 5]))
@pytest.mark.parametrize("through", [once, twice])
def test_windows_hold_what_their_partitions_had_in_time(
    through: Callable[[KStream[str, str]], KStream[str, str]],
    written: list[list[tuple[str, int]]],
    order: list[int],
    ranges: int,
) -> None:
    built = topology(through, final=False)
    assert told(built, written, order, ranges) == expected(written)


@given(partitions, st.lists(st.integers(0, 2), max_size=80), st.sampled_from([1, 3]))
@pytest.mark.parametrize("through", [once, twice])
def test_final_results_are_told_once_all_partitions_have_passed(
    through: Callable[[KStream[str, str]], KStream[str, str]],
    written: list[list[tuple[str, int]]],
    order: list[int],
    ranges: int,
) -> None:
    clock = min(max(time for _, time in records) for records in written)
    closed = {
        window: count
        for window, count in expected(written).items()
        if window[1] + SIZE + GRACE <= clock
    }
    built = topology(through, final=True)
    assert told(built, written, order, ranges) == closed


@given(partitions, st.lists(st.integers(0, 2), max_size=80), st.sampled_from([1, 2, 5]))
def test_a_table_behind_the_topic_moves_no_time(
    written: list[list[tuple[str, int]]], order: list[int], ranges: int
) -> None:
    """Its rows are far ahead of the stream, or behind."""
    builder = StreamsBuilder("app")
    names = builder.table("names", key=serdes.text, value=serdes.text)
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    looked_up = once(stream).join(names, lambda value, _: value)
    windows = TimeWindows(
        size=timedelta(milliseconds=SIZE), grace=timedelta(milliseconds=GRACE)
    )
    counts = looked_up.group_by_key().windowed_by(windows).count(store="counts")
    counts.to_stream().to("out")
    left = [list(records) for records in written]
    counted = {"in": len(written), "out": 1, "names": 2}
    found: Windows = Counter()
    with TopologyTestDriver(
        builder.build(), ranges=ranges, partitions=counted
    ) as driver:
        table = driver.input("names", serdes.text, serdes.text)
        for key in "abcdef":
            table.send(key, "name", 0)
        source = driver.input("in", serdes.text, serdes.text)
        for turn in [*order, *(p for p, some in enumerate(left) for _ in some)]:
            partition = turn % len(left)
            if left[partition]:
                key, timestamp = left[partition].pop(0)
                source.send("key", key, timestamp, partition=partition)
                table.send("a", "again", 1000 * turn)
        for record in driver.output("out", serdes.raw, serdes.int64).read():
            start = int.from_bytes(record.key[-8:], "big")
            found[record.key[:-8].decode(), start] = record.value
    assert found == expected(written)


def test_a_late_record_is_counted_as_late_by_its_own_partition() -> None:
    with TopologyTestDriver(
        topology(once, final=False), partitions={"in": 2, "out": 1}
    ) as driver:
        source = driver.input("in", serdes.text, serdes.text)
        source.send("key", "a", 50, partition=0)
        source.send("key", "a", 5, partition=1)  # in time there
        source.send("key", "a", 5, partition=0)  # late
        assert sum(driver.dropped.values()) == 1
        assert len(driver.output("out", serdes.raw, serdes.int64).read()) == 2
