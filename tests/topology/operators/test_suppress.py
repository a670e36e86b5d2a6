"""Suppress: only the latest update of a row is forwarded, when its window has closed or
some time has passed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams import (
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    serdes,
    until_time_limit,
    until_window_closes,
)
from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.state.task_state import TaskState
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.errors import ProcessingError, TopologyError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE
from tests.durations import ms
from tests.topology.operators.results import outputs

RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=20)


@cache
def closed(windows: Any) -> Topology:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    stream.group_by_key().windowed_by(windows).count(
        store="counts", retention=ms(1 << 40)
    ).suppress(until_window_closes()).to_stream().to("out")
    return builder.build()


def limited(limit: int, **bounds: Any) -> Topology:
    builder = StreamsBuilder("app")
    table = builder.table("in", key=serdes.text, value=serdes.text)
    table.suppress(until_time_limit(ms(limit), **bounds)).to_stream().to("out")
    return builder.build()


def run(
    topology: Topology, *records: tuple[str, str | None, int], **options: Any
) -> list[tuple[str, Any, int]]:
    return outputs(
        topology, *(("in", *record) for record in records), commit_every=1, **options
    )


def test_a_window_is_forwarded_once_when_it_is_closed_in_the_order_of_ends_and_keys() -> (
    None
):
    records = [
        ("b", "", 1),
        ("a", "", 2),
        ("b", "", 3),
        ("a", "", 12),
        ("c", "", 14),
        ("a", "", 4),
        ("c", "", 15),
    ]
    assert run(closed(TimeWindows(milliseconds=10, grace=ms(5))), *records) == [
        ("[a@0/10]", 2, 4),
        ("[b@0/10]", 2, 3),
    ]


def test_with_ranges_a_window_closes_by_records_of_other_keys() -> None:
    found = run(
        closed(TimeWindows(milliseconds=10)),
        *[(key, "", 1) for key in "abcdefgh"],
        ("z", "", 10),
        ranges=4,
    )
    assert sorted(found) == [(f"[{key}@0/10]", 1, 1) for key in "abcdefgh"]


def test_a_session_is_forwarded_once_and_what_it_absorbed_never() -> None:
    records = [("a", "", 1), ("a", "", 4), ("b", "", 11), ("b", "", 12)]
    assert run(closed(SessionWindows(milliseconds=5)), *records) == [("[a@1/4]", 2, 4)]


def test_after_the_limit_the_latest_update_goes_and_keeps_the_place_of_the_first() -> (
    None
):
    records = [
        ("a", "1", 0),
        ("b", "1", 3),
        ("a", "2", 9),
        ("c", "1", 10),
        ("c", "2", 12),
        ("b", None, 13),
    ]
    assert run(limited(10), *records) == [("a", "2", 9), ("b", None, 13)]


def test_more_rows_than_may_wait_push_the_earliest_out() -> None:
    assert run(
        limited(1000, max_records=2),
        ("a", "1", 0),
        ("b", "1", 3),
        ("a", "2", 4),
        ("c", "1", 5),
    ) == [("a", "2", 4)]


def test_more_bytes_than_may_wait_push_the_earliest_out() -> None:
    """Keys and values count: the longer value of a row takes the place of the shorter."""
    records = [
        ("a", "12", 0),
        ("b", "1", 3),
        ("a", "1234", 4),
        ("b", "123", 5),
        ("c", "1", 6),
        ("d", "1234567", 7),
    ]
    assert run(limited(1000, max_bytes=9), *records) == [
        ("a", "1234", 4),
        ("b", "123", 5),
        ("c", "1", 6),
    ]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("bounds", [{"max_records": 2}, {"max_bytes": 4}])
def test_where_nothing_may_go_before_its_time_the_application_stops(
    bounds: dict[str, int], caching: bool
) -> None:
    records = [
        ("a", "1", 0),
        ("b", "1", 3),
        ("a", "2", 4),
        ("c", "1", 1000),
        ("d", "1", 1004),
    ]
    within = run(
        limited(1000, when_full="shut_down", **bounds), *records, caching=caching
    )
    assert within == [
        ("a", "2", 4),
        ("b", "1", 3),
    ]  # due updates go before the limit is checked
    with pytest.raises(
        ProcessingError,
        match=r"KTABLE-SUPPRESS-\d+: 3 rows with 6 bytes wait, more than suppress\(\) was told to hold",
    ):
        run(
            limited(1000, when_full="shut_down", **bounds),
            *records[:3],
            ("c", "1", 5),
            caching=caching,
        )


def test_windows_are_final_or_the_application_stops() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    counts = stream.group_by_key().windowed_by(TimeWindows(milliseconds=10)).count()
    counts.suppress(until_window_closes(max_records=2)).to_stream().to("out")
    topology = builder.build()
    assert run(
        topology, ("a", "", 0), ("b", "", 1), ("a", "", 2), ("c", "", 10), ("d", "", 11)
    ) == [
        ("[a@0/10]", 2, 2),
        ("[b@0/10]", 1, 1),
    ]
    with pytest.raises(ProcessingError, match="3 rows"):
        run(topology, ("a", "", 0), ("b", "", 1), ("c", "", 2))


def test_how_much_waits_is_known_after_a_restart() -> None:
    part = limited(1000, max_bytes=5).subtopologies[0]
    program = compile_subtopology(limited(1000, max_bytes=5), part)
    database, outputs = Database(Memory(), part.stores), []
    for key, value in (
        (b"a", b"12"),
        (b"b", b"12"),
    ):  # the second does not fit beside the first
        state = TaskState(database, part.stores, WHOLE, 1 << 20)
        bound = program.bind(state.stores, lambda failure: None, caching=False)
        bound.process(TopicPartition("in", 0), Columns([key], [value], [0], [0], [0]))
        outputs += bound.outputs["out"].keys
        state.changes()
        state.commit({})
    assert outputs == [b"a"]


@pytest.mark.parametrize(
    "bounds", [{"max_records": 0}, {"max_bytes": 0}, {"when_full": "wait"}]
)
def test_bounds_that_cannot_be_are_an_error(bounds: dict[str, Any]) -> None:
    with pytest.raises(TopologyError, match=r"until_time_limit: (max|when_full)"):
        until_time_limit(ms(10), **bounds)


def test_what_goes_has_the_headers_of_its_update() -> None:
    with TopologyTestDriver(limited(10)) as driver:
        topic = driver.input("in", serdes.text, serdes.text)
        topic.send("a", "1", 0, [("h", b"first")])
        topic.send("b", "1", 20, [("h", b"second")])
        assert [(record.key, record.headers) for record in driver.outputs()] == [
            ("a", [("h", b"first")])
        ]


def test_below_it_the_old_value_is_what_was_forwarded_before() -> None:
    builder = StreamsBuilder("app")
    table = builder.table("in", key=serdes.text, value=serdes.int64).suppress(
        until_time_limit(ms(10))
    )
    sums = table.group_by(
        lambda key, value: ("all", value), key=serdes.text, value=serdes.int64
    )
    sums.reduce(
        lambda total, value: total + value, lambda total, value: total - value
    ).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input("in", serdes.text, serdes.int64)
        for key, value, timestamp in [
            ("a", 1, 0),
            ("a", 5, 5),
            ("b", 0, 10),
            ("a", 6, 11),
            ("a", 7, 12),
            ("b", 0, 30),
        ]:
            topic.send(key, value, timestamp)
        assert driver.output("out", serdes.text, serdes.int64).latest() == {"all": 7}


@pytest.mark.parametrize("store", [None, "kept"])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("ranges", [1, 4])
def test_a_join_of_windows_is_forwarded_when_both_sides_are_closed(
    ranges: int, caching: bool, store: str | None
) -> None:
    builder = StreamsBuilder("app")
    left, right = (
        builder.stream(topic, key=serdes.text, value=serdes.text)
        .group_by_key()
        .windowed_by(TimeWindows(milliseconds=10, grace=ms(grace)))
        .count(store=topic)
        for topic, grace in (("left", 5), ("right", 0))
    )
    joined = left.join(
        right, lambda one, other: [one, other], value=serdes.json, store=store
    )
    joined.suppress(until_window_closes()).to_stream().to("out")
    with TopologyTestDriver(builder.build(), ranges, caching=caching) as driver:
        for topic, at in (
            ("left", 5),
            ("right", 5),
            ("left", 6),
            ("left", 14),
            ("right", 14),
        ):
            for key in "abcd":
                driver.input(topic).send(key, "", at)
        driver.commit()
        assert driver.outputs() == []
        driver.input("left").send("a", "", 15)
        driver.commit()
        assert sorted(
            (str(record.key), record.value, record.timestamp)
            for record in driver.outputs()
        ) == [(f"[{key}@0/10]", [2, 1], 6) for key in "abcd"]


def test_a_table_without_windows_cannot_wait_for_them() -> None:
    builder = StreamsBuilder("app")
    with pytest.raises(TopologyError, match="no windows that could close"):
        builder.table("in", key=serdes.text, value=serdes.text).suppress(
            until_window_closes()
        )


@given(RECORDS, st.integers(0, 10), st.sampled_from([1, 3]), st.booleans())
def test_each_closed_window_is_forwarded_once_with_its_last_value(
    records: list[tuple[str, int]], grace: int, ranges: int, caching: bool
) -> None:
    windows = TimeWindows(milliseconds=10, advance=ms(5), grace=ms(grace))
    latest: dict[str, int] = {}
    stream_time = -1
    for key, timestamp in records:
        stream_time = max(stream_time, timestamp)
        for start in windows.starts(timestamp):
            if not windows.is_closed(start, stream_time):
                latest[f"[{key}@{start}/{start + 10}]"] = (
                    latest.get(f"[{key}@{start}/{start + 10}]", 0) + 1
                )
    found = run(
        closed(windows),
        *[(key, "", timestamp) for key, timestamp in records],
        ranges=ranges,
        caching=caching,
    )
    assert len({key for key, _, _ in found}) == len(found)
    assert {key: value for key, value, _ in found} == {
        key: value
        for key, value in latest.items()
        if windows.is_closed(int(key[key.index("@") + 1 : key.index("/")]), stream_time)
    }


def test_a_filter_above_forwards_no_deletion_of_what_never_was() -> None:
    builder = StreamsBuilder("app")
    table = builder.table("in", key=serdes.text, value=serdes.text).filter(
        lambda _, value: value == "x"
    )
    table.suppress(until_time_limit(0)).to_stream().to("out")
    assert run(
        builder.build(), ("a", "y", 0), ("a", "x", 1), ("a", "y", 2), ("a", "z", 3)
    ) == [
        ("a", "x", 1),
        ("a", None, 2),
    ]
