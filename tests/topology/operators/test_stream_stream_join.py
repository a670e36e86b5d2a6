"""Stream-stream joins: records of equal keys that are near in time, whichever comes
first.
"""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.join_windows import JoinWindows
from tests.durations import ms
from tests.topology.operators.results import Event, outputs

Result = tuple[str | None, Any, int]


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


@cache
def join_of(kind: str, windows: JoinWindows) -> Topology:
    builder = StreamsBuilder("app")
    left, right = (
        builder.stream(topic, key=serdes.text, value=serdes.json)
        for topic in ("left", "right")
    )
    method: Any = {
        "inner": left.join,
        "left": left.left_join,
        "outer": left.outer_join,
    }[kind]
    method(right, pair, windows=windows, value=serdes.json, store="j").to("out")
    return builder.build()


def joined(
    kind: str, windows: JoinWindows, *events: Event, **options: Any
) -> list[Result]:
    """Return the outputs of a join after these events."""
    return outputs(join_of(kind, windows), *events, **options)


@pytest.mark.parametrize("ranges", [1, 4])
def test_a_joiner_that_fails_on_one_waiting_record_joins_the_others(
    ranges: int,
) -> None:
    builder = StreamsBuilder("app")
    left, right = (
        builder.stream(topic, key=serdes.text, value=serdes.int64)
        for topic in ("left", "right")
    )
    left.left_join(
        right,
        lambda one, other: 6 // one + (other or 0),
        windows=JoinWindows(ms(10)),
        value=serdes.int64,
    ).to("out")
    program, config = builder.build(), {"processing.exception.handler": "continue"}
    with TopologyTestDriver(program, ranges, config=config) as driver:
        for topic, key, value, timestamp in [
            ("left", "a", 0, 0),
            ("left", "b", 1, 1),
            ("left", "c", 2, 2),
            ("right", "d", 4, 90),
            ("left", "d", 3, 95),
        ]:
            driver.input(topic, serdes.text, serdes.int64).send(key, value, timestamp)
        out = [(record.key, record.value) for record in driver.outputs()]
        assert sorted(out) == [("b", 6), ("c", 3), ("d", 6)]
        assert [type(failure.error) for failure in driver.failures] == [
            ZeroDivisionError
        ]


@pytest.mark.parametrize("ranges", [1, 4])
def test_both_ends_of_the_window_are_inside_and_the_later_timestamp_counts(
    ranges: int,
) -> None:
    events: list[Event] = [
        ("left", "a", 1, 100),
        ("right", "a", 2, 90),
        ("right", "a", 3, 105),
        ("right", "a", 4, 89),
        ("right", "a", 5, 106),
    ]
    out = joined(
        "inner",
        JoinWindows(before=ms(10), after=ms(5), grace=ms(50)),
        *events,
        ranges=ranges,
    )
    assert out == [("a", [1, 2], 100), ("a", [1, 3], 105)]


def test_records_of_one_key_and_one_moment_all_survive_in_the_order_of_arrival() -> (
    None
):
    out = joined(
        "inner",
        JoinWindows(0, grace=ms(10)),
        ("left", "a", 1, 5),
        ("left", "a", 1, 5),
        ("left", "a", 2, 5),
        ("right", "a", "x", 5),
    )
    assert [value for _, value, _ in out] == [[1, "x"], [1, "x"], [2, "x"]]


def test_a_left_join_tells_of_what_has_no_match_when_its_window_has_closed() -> None:
    events: list[Event] = [
        ("left", "a", 1, 0),
        ("left", "b", 2, 3),
        ("right", "b", 9, 4),
        ("right", "a", 7, 20),
        ("left", "c", 3, 21),
    ]
    assert joined("left", JoinWindows(milliseconds=5, grace=ms(5)), *events) == [
        ("b", [2, 9], 4),
        ("a", [1, None], 0),
    ]


def test_a_late_record_takes_back_a_wait() -> None:
    assert joined(
        "left",
        JoinWindows(milliseconds=5, grace=ms(20)),
        ("left", "a", 1, 0),
        ("left", "z", 1, 20),
        ("right", "a", 2, 4),
    ) == [("a", [1, 2], 4)]


def test_an_outer_join_tells_of_both_sides_right_before_left() -> None:
    events: list[Event] = [
        ("left", "a", 1, 0),
        ("right", "b", 2, 0),
        ("right", "z", 0, 50),
    ]
    assert joined("outer", JoinWindows(milliseconds=5), *events) == [
        ("b", [None, 2], 0),
        ("a", [1, None], 0),
    ]


def test_what_comes_after_its_window_has_closed_is_told_of_at_once() -> None:
    assert joined(
        "left", JoinWindows(milliseconds=5), ("left", "z", 0, 50), ("left", "a", 1, 10)
    ) == [("a", [1, None], 10)]


def test_an_eager_join_does_not_wait() -> None:
    events: list[Event] = [("left", "a", 1, 0), ("right", "a", 2, 1)]
    assert joined(
        "left", JoinWindows(milliseconds=5, grace=ms(10), eager=True), *events
    ) == [
        ("a", [1, None], 0),
        ("a", [1, 2], 1),
    ]


def test_records_without_a_key_find_no_match_and_records_without_a_value_are_dropped() -> (
    None
):
    events: list[Event] = [
        ("left", None, 1, 0),
        ("right", None, 2, 0),
        ("left", "a", None, 0),
        ("right", "a", None, 0),
    ]
    assert joined("inner", JoinWindows(milliseconds=5), *events) == []
    assert joined("left", JoinWindows(milliseconds=5), *events) == [
        (None, [1, None], 0)
    ]
    assert joined("outer", JoinWindows(milliseconds=5), *events) == [
        (None, [1, None], 0),
        (None, [None, 2], 0),
    ]


def test_a_stream_can_be_joined_with_itself() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.json)
    stream.join(
        stream, pair, windows=JoinWindows(before=ms(5), after=0), value=serdes.json
    ).to("out")
    found = outputs(builder.build(), ("in", "a", 1, 0), ("in", "a", 2, 3))
    assert [value for _, value, _ in found] == [[1, 1], [2, 1], [2, 2]]


def test_changed_keys_meet_through_repartition_topics() -> None:
    builder = StreamsBuilder("app")
    left = builder.stream("left", key=serdes.text, value=serdes.json).select_key(
        lambda _, value: str(value % 2), key=serdes.text
    )
    right = builder.stream("right", key=serdes.text, value=serdes.json)
    left.join_with_key(
        right,
        lambda key, a, b: [key, a, b],
        windows=JoinWindows(milliseconds=5),
        value=serdes.json,
        name="odd",
    ).to("out")
    topology = builder.build()
    assert [
        topic.name for topic in topology.internal_topics if topic.kind == "repartition"
    ] == ["app-odd-left-repartition"]
    assert outputs(topology, ("left", "x", 3, 0), ("right", "1", "r", 1), ranges=2) == [
        ("1", ["1", 3, "r"], 1)
    ]


def test_the_stores_are_named_as_kafka_streams_names_them() -> None:
    assert [
        store.name
        for store in join_of("inner", JoinWindows(milliseconds=1))
        .subtopologies[0]
        .stores
    ] == [
        "j-this-join-store",
        "j-other-join-store",
    ]
    outer = [
        "j-outer-this-join-store",
        "j-outer-other-join-store",
        "j-outer-shared-join-store",
    ]
    assert [
        store.name
        for store in join_of("outer", JoinWindows(milliseconds=1))
        .subtopologies[0]
        .stores
    ] == outer


@pytest.mark.ci
@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["left", "right"]),
            st.sampled_from("abc"),
            st.none() | st.integers(0, 9),
            st.integers(0, 40),
        ),
        max_size=25,
    ),
    st.sampled_from(["left", "outer"]),
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(0, 9),
)
def test_what_each_key_gets_and_when_does_not_depend_on_the_number_of_ranges(
    events: list[Event], kind: str, before: int, after: int, grace: int
) -> None:
    windows = JoinWindows(before=ms(before), after=ms(after), grace=ms(grace))
    one, four = joined(kind, windows, *events), joined(kind, windows, *events, ranges=4)
    for key in "abc":
        assert [result for result in four if result[0] == key] == [
            result for result in one if result[0] == key
        ]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["left", "right"]),
        st.sampled_from("abc"),
        st.integers(0, 9),
        st.integers(0, 60),
    ),
    max_size=25,
)


@pytest.mark.ci
@settings(deadline=None)
@given(
    EVENTS,
    st.sampled_from(["inner", "left", "outer"]),
    st.integers(0, 8),
    st.integers(0, 8),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_once_all_windows_are_closed_the_results_are_those_of_the_relational_join(
    events: list[Event], kind: str, before: int, after: int, ranges: int, commit: bool
) -> None:
    windows = JoinWindows(before=ms(before), after=ms(after), grace=ms(60))
    if kind != "inner":
        # a record after the end of its window is emitted at once, and again with a
        # match
        events.sort(key=lambda event: event[3])
    # Kafka Streams searches for unmatched records when time advances, and not each
    # time: the end records advance it far enough.
    ends: list[Event] = [
        ("left", f"end{n}", 0, at) for n, at in enumerate((500, 1000, 1500))
    ]
    out = [
        result
        for result in joined(
            kind,
            windows,
            *events,
            *ends,
            ranges=ranges,
            commit_every=1 if commit else 1000,
        )
        if not str(result[0]).startswith("end")
    ]
    lefts, rights = (
        [event[1:] for event in events if event[0] == side]
        for side in ("left", "right")
    )
    near = [
        (one, other)
        for one in lefts
        for other in rights
        if one[0] == other[0] and one[2] - before <= other[2] <= one[2] + after
    ]
    expected = [
        (one[0], [one[1], other[1]], max(one[2], other[2])) for one, other in near
    ]
    if kind != "inner":
        expected += [
            (key, [value, None], at)
            for key, value, at in lefts
            if (key, at) not in {(one[0], one[2]) for one, _ in near}
        ]
    if kind == "outer":
        expected += [
            (key, [None, value], at)
            for key, value, at in rights
            if (key, at) not in {(other[0], other[2]) for _, other in near}
        ]
    assert sorted(out, key=repr) == sorted(expected, key=repr)
