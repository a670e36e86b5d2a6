"""Sliding windows: one for each set of records of a key that lie at most `difference`
apart, both ends inside.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coopstreams import SlidingWindows, StreamsBuilder, serdes
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.graph.topology import Topology
from tests.durations import ms
from tests.topology.operators.results import outputs


@cache
def lists(difference: int, grace: int = 0) -> Topology:
    """Return each window as the list of its values; the aggregator changes its
    aggregate in place.
    """
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.int64)
    windows = stream.group_by_key().windowed_by(
        SlidingWindows(milliseconds=difference, grace=ms(grace))
    )
    windows.aggregate(
        list, appended, value=serdes.json, store="lists", retention=ms(1 << 40)
    ).to_stream().to("out")
    return builder.build()


def appended(_: str, value: int, values: list[int]) -> list[int]:
    values.append(value)
    return values


def test_a_window_ends_at_each_record_and_begins_behind_each_that_others_follow() -> (
    None
):
    assert outputs(lists(10), *(("in", "a", at, at) for at in (20, 25, 33))) == [
        ("[a@10/20]", [20], 20),
        ("[a@21/31]", [25], 25),
        ("[a@15/25]", [20, 25], 25),
        ("[a@26/36]", [33], 33),
        ("[a@23/33]", [25, 33], 33),
    ]


def test_null_values_are_dropped_and_late_records_when_their_windows_are_closed() -> (
    None
):
    with TopologyTestDriver(lists(5, grace=2)) as driver:
        topic = driver.input("in", serdes.text, serdes.int64)
        topic.send("a", None, 50)
        topic.send("b", 1, 20)
        topic.send("a", 1, 12)
        assert sorted(
            (reason, count) for (_, reason), count in driver.dropped.items()
        ) == [
            ("late", 1),
            ("null-value", 1),
        ]
        assert {str(row.key): row.value for row in driver.store("lists").all()} == {
            "[b@15/20]": [1]
        }


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), max_size=14),
    st.integers(1, 15),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_windows_hold_the_records_between_their_ends_and_there_is_one_for_each_record(
    records: list[tuple[str, int]], difference: int, ranges: int, commits: bool
) -> None:
    with TopologyTestDriver(lists(difference, grace=1000), ranges) as driver:
        for key, timestamp in records:
            driver.input("in", serdes.text, serdes.int64).send(
                key, timestamp, timestamp
            )
            if commits:
                driver.commit()
        found: dict[tuple[str, int], Any] = {
            (row.key.key, row.key.start_ms): sorted(row.value)
            for row in driver.store("lists").all()
        }
    for (key, start), values in found.items():
        assert values == sorted(
            at for k, at in records if k == key and start <= at <= start + difference
        )
    for key, timestamp in records:
        assert (key, max(0, timestamp - difference)) in found
        followed = any(
            k == key and timestamp < at <= timestamp + 1 + difference
            for k, at in records
        )
        assert not followed or (key, timestamp + 1) in found
