"""The stream time of an operator: the largest timestamp it has received, whatever the number of key ranges."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import SessionWindows, SlidingWindows, StreamsBuilder, TimeWindows, serdes, until_window_closes
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.graph.topology import Topology
from tests.durations import ms

Input: TypeAlias = tuple[str | None, int | None, int]

INPUTS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from("abcdef")), st.one_of(st.none(), st.integers(0, 5)), st.integers(0, 60)
    ),
    max_size=20,
)


def even(_: str, value: int | None) -> bool:
    return value is not None and value % 2 == 0


def halves(value: int | None) -> list[int]:
    return [] if value is None else [value // 2] * (value // 2)


def positive_or_none(value: int | None) -> int | None:
    return value or None


def program() -> Topology:
    """Windows behind every operator that may drop records."""
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.int64)
    hopping = TimeWindows(milliseconds=10, advance=ms(5), grace=ms(3))
    sliding = SlidingWindows(milliseconds=7)
    session = SessionWindows(milliseconds=4, grace=ms(2))
    stream.group_by_key().windowed_by(hopping).count(store="all", retention=ms(1000)).suppress(
        until_window_closes()
    ).to_stream().to("all")
    filtered = (
        stream.filter(even)
        .group_by_key()
        .windowed_by(TimeWindows(milliseconds=10))
        .count(store="filtered", retention=ms(1000))
    )
    filtered.suppress(until_window_closes()).to_stream().to("filtered")
    stream.flat_map_values(halves, value=serdes.int64).group_by_key().windowed_by(session).count(
        store="flat", retention=ms(1000)
    ).to_stream().to("flat")
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
            outputs[record.topic, record.key.key].append((record.key, record.value, record.timestamp))
        return outputs, {store: driver.store(store).all() for store in ("all", "filtered", "flat", "mapped")}


def test_a_record_that_was_filtered_out_closes_no_window() -> None:
    for ranges in (1, 4):
        with TopologyTestDriver(program(), ranges) as driver:
            topic = driver.input("in", serdes.text, serdes.int64)
            for key, value, timestamp in [("a", 2, 5), ("b", 3, 50), ("c", None, 50), (None, 2, 50), ("a", 2, 6)]:
                topic.send(key, value, timestamp)
            assert [row.value for row in driver.store("filtered").all()] == [2]


@settings(max_examples=60, deadline=None)
@given(INPUTS, st.sampled_from([2, 3, 8]), st.integers(0, 5))
def test_what_comes_out_for_a_key_does_not_depend_on_the_number_of_ranges_or_on_commits(
    inputs: list[Input], ranges: int, commit_every: int
) -> None:
    assert run(inputs, ranges, commit_every) == run(inputs, 1)
