"""The stream time of an operator: the largest timestamp it has received, whatever the
number of key ranges.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import (
    JoinWindows,
    KStream,
    KTable,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    serdes,
    until_window_closes,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.compile.operator_time import before_and_after
from coopstreams.topology.graph.topology import Topology
from tests.durations import ms

Input: TypeAlias = tuple[str | None, int | None, int]

INPUTS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from("abcdef")),
        st.one_of(st.none(), st.integers(0, 5)),
        st.integers(0, 60),
    ),
    max_size=20,
)


def even(_: str, value: int | None) -> bool:
    return value is not None and value % 2 == 0


def halves(value: int | None) -> list[int]:
    return [] if value is None else [value // 2] * (value // 2)


def positive_or_none(value: int | None) -> int | None:
    return value or None


@cache
def program() -> Topology:
    """Windows behind every operator that may drop records."""
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.int64)
    hopping = TimeWindows(milliseconds=10, advance=ms(5), grace=ms(3))
    sliding = SlidingWindows(milliseconds=7)
    session = SessionWindows(milliseconds=4, grace=ms(2))
    stream.group_by_key().windowed_by(hopping).count(
        store="all", retention=ms(1000)
    ).suppress(until_window_closes()).to_stream().to("all")
    filtered = (
        stream.filter(even)
        .group_by_key()
        .windowed_by(TimeWindows(milliseconds=10))
        .count(store="filtered", retention=ms(1000))
    )
    filtered.suppress(until_window_closes()).to_stream().to("filtered")
    stream.flat_map_values(halves, value=serdes.int64).group_by_key().windowed_by(
        session
    ).count(store="flat", retention=ms(1000)).to_stream().to("flat")
    present = stream.map_values(positive_or_none, value=serdes.int64)  # type: ignore[arg-type]
    present.group_by_key().windowed_by(sliding).emit_strategy("on_window_close").count(
        store="mapped", retention=ms(1000)
    ).to_stream().to("mapped")
    return builder.build()


def run(inputs: list[Input], ranges: int, commit_every: int = 0) -> Any:
    with TopologyTestDriver(program(), ranges) as driver:
        for number, (key, value, timestamp) in enumerate(inputs, start=1):
            driver.input("in", serdes.text, serdes.int64).send(key, value, timestamp)
            if commit_every and number % commit_every == 0:
                driver.commit()
        outputs = defaultdict(list)
        for record in driver.outputs():
            outputs[record.topic, record.key.key].append(
                (record.key, record.value, record.timestamp)
            )
        return outputs, {
            store: driver.store(store).all()
            for store in ("all", "filtered", "flat", "mapped")
        }


def test_a_record_that_was_filtered_out_closes_no_window() -> None:
    for ranges in (1, 4):
        with TopologyTestDriver(program(), ranges) as driver:
            topic = driver.input("in", serdes.text, serdes.int64)
            for key, value, timestamp in [
                ("a", 2, 5),
                ("b", 3, 50),
                ("c", None, 50),
                (None, 2, 50),
                ("a", 2, 6),
            ]:
                topic.send(key, value, timestamp)
            assert [row.value for row in driver.store("filtered").all()] == [2]


@pytest.mark.ci
@settings(max_examples=60, deadline=None)
@given(INPUTS, st.sampled_from([2, 3, 8]), st.integers(0, 5))
def test_what_comes_out_for_a_key_does_not_depend_on_the_number_of_ranges_or_on_commits(
    inputs: list[Input], ranges: int, commit_every: int
) -> None:
    assert run(inputs, ranges, commit_every) == run(inputs, 1)


def checked_counts(
    inputs: list[Input], ranges: int, config: dict[str, str]
) -> tuple[list[int], list[Any]]:
    """Return the values on which a mapper below a filter is called, and the rows of the
    windows below it.
    """
    calls = list[int]()

    def checked(value: int) -> int:
        calls.append(value)
        if value < 0:
            raise ValueError("negative")
        return value

    builder = StreamsBuilder("app")
    small = builder.stream("in", key=serdes.text, value=serdes.int64).filter(
        lambda _, value: value < 3
    )
    checked_ones = small.map_values(checked).peek(lambda *_: None)
    checked_ones.group_by_key().windowed_by(TimeWindows(milliseconds=10)).count(
        store="counts"
    )
    with TopologyTestDriver(builder.build(), ranges, config=config) as driver:
        for key, value, timestamp in inputs:
            driver.input("in", serdes.text, serdes.int64).send(key, value, timestamp)
        return calls, driver.store("counts").all()


def test_the_reader_does_not_call_a_mapper_that_can_drop_no_record() -> None:
    """It would do so in each process of the partition, on the thread that fetches for
    all of its tasks.
    """
    inputs: list[Input] = [("a", 1, 5), ("b", 3, 50), ("b", 2, 7), ("a", 1, 8)]
    for ranges in (1, 4):
        calls, rows = checked_counts(inputs, ranges, {})
        assert calls == [1, 2, 1]
        assert [row.value for row in rows] == [2, 1]


def test_a_record_that_fails_and_is_dropped_above_a_window_does_not_close_it() -> None:
    inputs: list[Input] = [("a", 1, 5), ("b", -1, 50), ("a", 2, 6)]
    for ranges in (1, 4):
        _, rows = checked_counts(
            inputs, ranges, {"processing.exception.handler": "continue"}
        )
        assert [row.value for row in rows] == [2]


TUMBLING = TimeWindows(milliseconds=10)


def counted(stream: KStream[str, Any]) -> KTable[Any, Any]:
    return stream.group_by_key().windowed_by(TUMBLING).count()


def counted_beside(stream: KStream[str, Any]) -> KTable[Any, Any]:
    stream.filter(lambda _, value: value == 1).to("ones")
    stream.map_values(str, value=serdes.text).to("texts")
    return counted(stream)


BELOW: dict[str, Callable[[KStream[str, Any]], KTable[Any, Any]]] = {
    "reduced": lambda stream: (
        stream.group_by_key()
        .windowed_by(TUMBLING)
        .reduce(lambda one, other: one or other)
    ),
    "slid": lambda stream: (
        stream.group_by_key()
        .windowed_by(SlidingWindows(milliseconds=10))
        .reduce(lambda one, other: one + other)
    ),
    "keyed": lambda stream: (
        stream.group_by_key()
        .windowed_by(TUMBLING)
        .aggregate(str, lambda key, _, text: text + key, value=serdes.text)
    ),
    "peeked": lambda stream: counted(
        stream.peek(lambda key, value: [key, value].clear())
    ),
    "named": lambda stream: counted(stream.filter(lambda key, _: key != "b")),
    "chosen": lambda stream: counted(
        stream.split()
        .branch(lambda _, value: not value, name="no")
        .no_default_branch()["no"]
    ),
    "beside": counted_beside,
}
"""Windows below what reads keys or values that may be unreadable or null, and beside
others that read them.
"""


@cache
def below() -> Topology:
    builder = StreamsBuilder("app")
    for name, add in BELOW.items():
        add(
            builder.stream(f"in-{name}", key=serdes.text, value=serdes.json)
        ).to_stream().to(name)
    left, right = (
        builder.stream(f"in-{side}", key=serdes.text, value=serdes.json)
        for side in ("left", "right")
    )
    left.outer_join(
        right,
        lambda *both: both,
        windows=JoinWindows(milliseconds=10),
        value=serdes.json,
    ).to("joined")
    return builder.build()


@pytest.mark.ci
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, b"a", b"b", b"c", b"\xff"]),
            st.sampled_from([None, b"null", b"0", b"1", b"unreadable"]),
            st.integers(0, 60),
        ),
        max_size=20,
    )
)
def test_records_that_cannot_be_read_and_are_dropped_move_time_alike_for_any_number_of_ranges(
    inputs: list[tuple[bytes | None, bytes | None, int]],
) -> None:
    program, seen = below(), []
    config = {
        f"{phase}.exception.handler": "continue"
        for phase in ("deserialization", "processing")
    }
    for ranges in (1, 4):
        with TopologyTestDriver(program, ranges, config=config) as driver:
            for key, value, timestamp in inputs:
                for topic in program.source_topics:
                    driver.input(topic, serdes.raw, serdes.raw).send(
                        key, value, timestamp
                    )
            out = {
                topic: Counter(
                    map(str, driver.output(topic, serdes.raw, serdes.raw).records())
                )
                for topic in program.sink_topics
            }
            seen.append((driver.dropped, out))
    assert seen[0] == seen[1]


@given(
    st.lists(st.tuples(st.integers(-1, 9), st.booleans(), st.booleans())),
    st.integers(-1, 5),
)
def test_no_more_arrivals_are_asked_for_than_the_times_need(
    records: list[tuple[int, bool, bool]], operator_time: int
) -> None:
    """Records are (timestamp, whether it arrives, whether a task here takes it)."""
    timestamps, taken = (
        [time for time, _, _ in records],
        [mine for _, _, mine in records],
    )
    asked = list[int]()

    def arrives(i: int) -> bool:
        asked.append(i)
        return records[i][1]

    before, after = before_and_after(timestamps, operator_time, arrives, taken)
    times = list(
        accumulate(
            (time if there else -1 for time, there, _ in records),
            max,
            initial=operator_time,
        )
    )
    assert after == times[-1]
    assert [time for time, mine in zip(before, taken, strict=True) if mine] == [
        time for time, mine in zip(times, taken, strict=False) if mine
    ]
    assert len(set(asked)) == len(asked)
    assert all(timestamps[i] > times[i] or not taken[i] for i in asked)
    assert sum(records[i][1] for i in asked) <= sum(taken) + 1
