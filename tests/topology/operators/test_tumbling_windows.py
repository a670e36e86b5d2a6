"""Tumbling windows: an aggregate for each key and window, closed by stream time."""

from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.testing import Row, TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.serdes import Windowed
from coopstreams.topology.windows import TimeWindows
from tests.durations import ms


@cache
def counts(size: int, grace: int = 0) -> Topology:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    stream.group_by_key().windowed_by(
        TimeWindows(milliseconds=size, grace=ms(grace))
    ).count(store="counts", retention=ms(1 << 40)).to_stream().to("out")
    return builder.build()


def test_a_record_counts_in_the_window_of_its_timestamp() -> None:
    with TopologyTestDriver(counts(10)) as driver:
        topic = driver.input("in", serdes.text, serdes.text)
        for key, timestamp in [("a", 3), ("b", 9), ("a", 9), ("a", 10)]:
            topic.send(key, "x", timestamp)
        assert [
            (str(record.key), record.value, record.timestamp)
            for record in driver.outputs()
        ] == [
            ("[a@0/10]", 1, 3),
            ("[b@0/10]", 1, 9),
            ("[a@0/10]", 2, 9),
            ("[a@10/20]", 1, 10),
        ]
        assert driver.store("counts").get(Windowed("a", 0, 10)) == 2
        assert driver.store("counts").fetch("a") == [
            Row(Windowed("a", 0, 10), 2, 9),
            Row(Windowed("a", 10, 20), 1, 10),
        ]
        assert driver.store("counts").fetch("a", 1, 10) == [
            Row(Windowed("a", 10, 20), 1, 10)
        ]


def test_a_window_takes_late_records_until_its_end_and_grace_are_reached_by_any_key() -> (
    None
):
    with TopologyTestDriver(counts(10, grace=5), ranges=4) as driver:
        topic = driver.input("in", serdes.text, serdes.text)
        for key, timestamp in [
            ("a", 3),
            ("b", 14),
            ("a", 4),
            ("c", 15),
            ("a", 5),
            ("a", 11),
        ]:
            topic.send(key, "x", timestamp)
        assert {str(row.key): row.value for row in driver.store("counts").all()} == {
            "[a@0/10]": 2,
            "[a@10/20]": 1,
            "[b@10/20]": 1,
            "[c@10/20]": 1,
        }
        assert [(reason, count) for (_, reason), count in driver.dropped.items()] == [
            ("late", 1)
        ]


def test_null_values_count_in_a_window_and_null_keys_do_not() -> None:
    with TopologyTestDriver(counts(10)) as driver:
        topic = driver.input("in", serdes.text, serdes.text)
        topic.send("a", None, 1)
        topic.send(None, "x", 1)
        assert [row.value for row in driver.store("counts").all()] == [1]


def test_the_key_of_a_window_is_the_keys_bytes_and_its_start() -> None:
    with TopologyTestDriver(counts(1000)) as driver:
        driver.input("in", serdes.text, serdes.text).send("a", "x", 2500)
        (record,) = driver.output("out", serdes.raw, serdes.raw).records()
        assert record.key == b"a" + (2000).to_bytes(8, "big")


def test_reduce_and_aggregate_work_in_windows(flow: Any) -> None:
    def both(stream: Any) -> Any:
        windowed = stream.group_by_key().windowed_by(TimeWindows(milliseconds=10))
        reduced = windowed.reduce(lambda old, new: old + new).to_stream()
        folded = windowed.aggregate(
            lambda: "",
            lambda key, value, total: f"{total}{key}{value}",
            value=serdes.json,
        ).to_stream()
        return reduced.map(
            lambda window, value: (str(window), value),
            key=serdes.text,
            value=serdes.json,
        ).merge(
            folded.map(
                lambda window, value: (str(window), value),
                key=serdes.text,
                value=serdes.json,
            )
        )

    assert flow(both, ("a", 1, 1), ("a", 2, 8), ("a", 3, 12)) == [
        ("[a@0/10]", 1, 1),
        ("[a@0/10]", "a1", 1),
        ("[a@0/10]", 3, 8),
        ("[a@0/10]", "a1a2", 8),
        ("[a@10/20]", 3, 12),
        ("[a@10/20]", "a3", 12),
    ]


def test_a_window_expires_from_the_store_when_its_retention_is_over() -> None:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.text).group_by_key().windowed_by(
        TimeWindows(milliseconds=10)
    ).count(store="counts", retention=ms(20))
    with TopologyTestDriver(builder.build(), ranges=2) as driver:
        topic = driver.input("in", serdes.text, serdes.text)
        for timestamp in (5, 15, 25):
            topic.send("a", "x", timestamp)
        assert [row.key.start_ms for row in driver.store("counts").all()] == [10, 20]


@pytest.mark.ci
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 100)), max_size=30),
    st.integers(1, 40),
    st.sampled_from([1, 2, 3, 8]),
)
def test_windows_equal_a_group_by_of_the_records_that_were_in_time(
    records: list[tuple[str, int]], size: int, ranges: int
) -> None:
    expected: Counter[tuple[str, int]] = Counter()
    stream_time = -1
    for key, timestamp in records:
        stream_time = max(stream_time, timestamp)
        start = timestamp // size * size
        if start + size > stream_time:
            expected[key, start] += 1
    with TopologyTestDriver(counts(size), ranges) as driver:
        for key, timestamp in records:
            driver.input("in", serdes.text, serdes.text).send(key, "x", timestamp)
        assert {
            (row.key.key, row.key.start_ms): row.value
            for row in driver.store("counts").all()
        } == expected
