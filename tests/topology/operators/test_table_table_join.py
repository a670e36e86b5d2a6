"""Table-table joins: an update of either side updates the joined row."""

from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.windows import (
    AnyWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
)
from tests.durations import ms
from tests.topology.operators.results import outputs

Event = tuple[str, str, Any]


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


@cache
def join_of(kind: str, store: str | None) -> Topology:
    builder = StreamsBuilder("app")
    left, right = (
        builder.table(topic, key=serdes.text, value=serdes.json)
        for topic in ("left", "right")
    )
    method: Any = {
        "inner": left.join,
        "left": left.left_join,
        "outer": left.outer_join,
    }[kind]
    method(right, pair, value=serdes.json, store=store).to_stream().to("out")
    return builder.build()


def joined(
    kind: str,
    *events: Event,
    ranges: int = 1,
    store: str | None = None,
    caching: bool = False,
) -> tuple[list[Any], dict[str, Any]]:
    """Return the outputs of a join after these events, (key, value, timestamp), and the
    latest value of each key.
    """
    with TopologyTestDriver(join_of(kind, store), ranges, caching=caching) as driver:
        for timestamp, (topic, key, value) in enumerate(events):
            driver.input(topic, serdes.text, serdes.json).send(key, value, timestamp)
        driver.commit()
        output = driver.output("out", serdes.text, serdes.json)
        if store is not None:
            assert {
                row.key: row.value for row in driver.store(store).all()
            } == output.latest()
        return [
            (record.key, record.value, record.timestamp) for record in output.records()
        ], output.latest()


@pytest.mark.parametrize("ranges", [1, 4])
def test_an_inner_join_has_a_row_while_both_sides_have_one(ranges: int) -> None:
    out, _ = joined(
        "inner",
        ("left", "a", 1),
        ("right", "a", "x"),
        ("left", "a", 2),
        ("right", "a", None),
        ("left", "a", 3),
        ranges=ranges,
    )
    assert out == [("a", [1, "x"], 1), ("a", [2, "x"], 2), ("a", None, 3)]


def test_a_left_join_has_a_row_while_the_left_side_has_one() -> None:
    out, _ = joined(
        "left",
        ("right", "a", "x"),
        ("left", "a", 1),
        ("right", "a", None),
        ("left", "a", None),
        ("right", "a", "y"),
    )
    assert out == [("a", [1, "x"], 1), ("a", [1, None], 2), ("a", None, 3)]


def test_an_outer_join_has_a_row_while_either_side_has_one() -> None:
    out, _ = joined(
        "outer",
        ("right", "a", "x"),
        ("left", "a", 1),
        ("right", "a", None),
        ("left", "a", None),
    )
    assert out == [
        ("a", [None, "x"], 0),
        ("a", [1, "x"], 1),
        ("a", [1, None], 2),
        ("a", None, 3),
    ]


@pytest.mark.parametrize("kind", ["inner", "left", "outer"])
def test_a_deletion_of_what_never_was_is_no_news(kind: str) -> None:
    assert joined(kind, ("left", "a", None), ("right", "b", None))[0] == []


def test_the_result_has_the_later_timestamp_of_both_rows() -> None:
    with TopologyTestDriver(join_of("inner", "kept")) as driver:
        driver.input("left", serdes.text, serdes.json).send("a", 1, 50)
        driver.input("right", serdes.text, serdes.json).send("a", "x", 10)
        assert [record.timestamp for record in driver.outputs()] == [50]
        assert [row.timestamp for row in driver.store("kept").all()] == [50]


def test_a_join_can_be_joined_again_without_being_kept() -> None:
    builder = StreamsBuilder("app")
    one, two, three = (
        builder.table(topic, key=serdes.text, value=serdes.json)
        for topic in ("one", "two", "three")
    )
    one.join(two, pair).outer_join(three, pair, value=serdes.json).to_stream().to("out")
    events = [
        (topic, "a", value, 0)
        for topic, value in (("three", 3), ("one", 1), ("two", 2), ("one", None))
    ]
    found = outputs(builder.build(), *events, ranges=3)
    assert [value for _, value, _ in found] == [[None, 3], [[1, 2], 3], [None, 3]]


@pytest.mark.parametrize("store", [None, "kept"])
@pytest.mark.parametrize("kind", ["inner", "left", "outer"])
def test_rows_that_go_on_both_sides_between_two_flushes_are_gone(
    kind: str, store: str | None
) -> None:
    """Each side finds the other row already deleted; the old values of both show that
    the result existed.
    """
    events = [
        (topic, "a", value, 0) for value in (1, 2, None) for topic in ("left", "right")
    ]
    found = outputs(join_of(kind, store), *events, caching=True, commit_every=2)
    assert [value for _, value, _ in found] == [[1, 1], [2, 2], None]


def test_under_the_record_cache_a_join_without_a_store_says_what_it_said_at_the_flush_before() -> (
    None
):
    builder = StreamsBuilder("app")
    left, right = (
        builder.table(topic, key=serdes.text, value=serdes.int64)
        for topic in ("left", "right")
    )
    joined = left.join(right, lambda one, other: one * 10 + other, value=serdes.int64)
    groups = joined.group_by(
        lambda _, value: ("all", value), key=serdes.text, value=serdes.int64
    )
    groups.aggregate(
        list,
        lambda _, value, seen: [*seen, value],
        lambda _, value, seen: [*seen, -value],
        value=serdes.json,
    ).to_stream().to("out")
    events = [
        (topic, "a", value, 0) for value in (1, 2, 3) for topic in ("left", "right")
    ]
    found = outputs(builder.build(), *events, caching=True, commit_every=2)
    assert [value for _, value, _ in found] == [
        [11],
        [11, -11, 22],
        [11, -11, 22, -22, 33],
    ]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["left", "right"]),
        st.sampled_from("abc"),
        st.none() | st.integers(0, 3),
    ),
    max_size=30,
)


@pytest.mark.ci
@settings(deadline=None)
@given(
    EVENTS,
    st.sampled_from(["inner", "left", "outer"]),
    st.sampled_from([1, 3]),
    st.booleans(),
    st.booleans(),
)
def test_the_table_is_the_relational_join_of_both_tables(
    events: list[Event], kind: str, ranges: int, kept: bool, caching: bool
) -> None:
    sides: dict[str, dict[str, Any]] = {"left": {}, "right": {}}
    for topic, key, value in events:
        sides[topic].pop(key, None)
        if value is not None:
            sides[topic][key] = value
    left, right = sides["left"], sides["right"]
    keys = {
        "inner": left.keys() & right.keys(),
        "left": set(left),
        "outer": left.keys() | right.keys(),
    }[kind]
    _, table = joined(
        kind, *events, ranges=ranges, store="kept" if kept else None, caching=caching
    )
    assert table == {key: [left.get(key), right.get(key)] for key in keys}


WINDOWS: dict[str, AnyWindows] = {
    "tumbling": TimeWindows(milliseconds=10, grace=ms(5)),
    "sliding": SlidingWindows(milliseconds=10, grace=ms(5)),
    "sessions": SessionWindows(milliseconds=5, grace=ms(5)),
}


@cache
def windows_join_of(windows: AnyWindows, kind: str, store: str | None) -> Topology:
    builder = StreamsBuilder("app")
    left, right = (
        builder.stream(topic, key=serdes.text, value=serdes.int64)
        .group_by_key()
        .windowed_by(windows)
        .count(store=topic)
        for topic in ("left", "right")
    )
    method: Any = {
        "inner": left.join,
        "left": left.left_join,
        "outer": left.outer_join,
    }[kind]
    method(right, pair, value=serdes.json, store=store).to_stream().to("out")
    return builder.build()


def windows_joined(
    windows: AnyWindows,
    kind: str,
    inputs: list[tuple[str, str, int]],
    *,
    ranges: int,
    caching: bool,
    store: str | None,
) -> tuple[dict[str, list[Any]], list[Any]]:
    """Return the outputs of a join of counts in windows, by key, and the rows of its
    store.
    """
    found: dict[str, list[Any]] = {}
    with TopologyTestDriver(
        windows_join_of(windows, kind, store), ranges, caching=caching
    ) as driver:
        for topic, key, timestamp in inputs:
            driver.input(topic).send(key, 1, timestamp)
        driver.commit()
        for record in driver.outputs():
            found.setdefault(str(record.key), []).append(
                (record.value, record.timestamp)
            )
        return found, [] if store is None else driver.store(store).all()


@pytest.mark.parametrize("windows", WINDOWS)
@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["inner", "left", "outer"]),
    st.lists(
        st.tuples(
            st.sampled_from(["left", "right"]),
            st.sampled_from("abcd"),
            st.integers(0, 40),
        ),
        max_size=20,
    ),
    st.booleans(),
    st.sampled_from([2, 7]),
)
def test_a_kept_join_of_windows_is_the_same_for_any_number_of_ranges(
    windows: str,
    kind: str,
    inputs: list[tuple[str, str, int]],
    caching: bool,
    ranges: int,
) -> None:
    kept = windows_joined(
        WINDOWS[windows], kind, inputs, ranges=1, caching=caching, store="kept"
    )
    assert (
        windows_joined(
            WINDOWS[windows], kind, inputs, ranges=ranges, caching=caching, store="kept"
        )
        == kept
    )
    if not caching:
        assert (
            windows_joined(
                WINDOWS[windows], kind, inputs, ranges=1, caching=False, store=None
            )[0]
            == kept[0]
        )


def test_a_join_of_windows_is_kept_by_window_as_long_as_either_side() -> None:
    builder = StreamsBuilder("app")
    left, right = (
        builder.stream(topic, key=serdes.text, value=serdes.int64)
        .group_by_key()
        .windowed_by(TimeWindows(milliseconds=10))
        .count(store=topic, retention=retention)
        for topic, retention in (("left", ms(20)), ("right", ms(50)))
    )
    left.join(
        right, pair, value=serdes.json, store="kept"
    ).to_stream().group_by_key().count(store="n")
    topology = builder.build()
    (kept,) = (
        store for store in topology.subtopologies[0].stores if store.name == "kept"
    )
    assert (kept.kind, kept.key, kept.retention_ms) == ("window", serdes.text, 50)
    assert topology.subtopologies[1].topics == (
        "app-n-repartition",
    )  # by the windows themselves


def test_windows_in_the_keys_of_a_topic_are_not_where_windows_of_keys_are() -> None:
    def program(*, moved: bool) -> StreamsBuilder:
        builder = StreamsBuilder("app")
        read = builder.table(
            "read",
            key=serdes.windowed(serdes.text, timedelta(milliseconds=10)),
            value=serdes.int64,
        )
        numbers = builder.stream("in", key=serdes.text, value=serdes.int64)
        made = (
            numbers.group_by_key()
            .windowed_by(TimeWindows(milliseconds=10))
            .count(store="made")
        )
        (made.to_stream().to_table() if moved else made).join(
            read, pair, value=serdes.json
        ).to_stream().to("out")
        return builder

    with pytest.raises(
        TopologyError,
        match=r"one side aggregates in windows, .* Write \.to_stream\(\)\.to_table\(\) before",
    ):
        program(moved=False)
    with TopologyTestDriver(program(moved=True).build(), ranges=4) as driver:
        for key in "abcdefgh":
            driver.input("in").send(key, 1, 5)
            driver.input("read").send(serdes.Windowed(key, 0, 10), 7, 5)
        assert {
            str(key): value for key, value in driver.output("out").latest().items()
        } == {f"[{key}@0/10]": [1, 7] for key in "abcdefgh"}
