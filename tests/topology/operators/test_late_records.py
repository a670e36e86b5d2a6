"""Late records as a stream: those that windows and versioned tables drop, once each, by
the owner of the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams import (
    KStream,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    UnlimitedWindows,
    Windows,
    serdes,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.topology import Topology
from tests.durations import ms

Input: TypeAlias = tuple[str, int | None, int]

RANGES = pytest.mark.parametrize("ranges", [1, 4])


class Tens(Windows):
    """User-defined windows: [0, 10), [10, 20), …, and none before 5."""

    size_ms = 10
    grace_ms = 0

    def starts(self, timestamp: int) -> Sequence[int]:
        return () if timestamp < 5 else (timestamp // 10 * 10,)

    def end(self, start_ms: int) -> int:
        return start_ms + 10


def numbers(builder: StreamsBuilder, topic: str = "in") -> KStream[str, int]:
    return builder.stream(topic, key=serdes.text, value=serdes.int64)


def adding(_: str, number: int, total: int) -> int:
    return total + number


@cache
def counted(windows: Any, emit: Any = "on_window_update") -> Topology:
    builder = StreamsBuilder("app")
    windowed = numbers(builder).group_by_key().windowed_by(windows).emit_strategy(emit)
    windowed.count().to_stream().to("counts")
    windowed.late().to("late")
    return builder.build()


def late_of(
    topology: Topology, *records: Input, ranges: int = 1, caching: bool = False
) -> tuple[list[Input], int]:
    """Return the late records, and the number of records counted as dropped for it."""
    with TopologyTestDriver(topology, ranges, caching=caching) as driver:
        for key, value, timestamp in records:
            driver.input("in", serdes.text, serdes.int64).send(key, value, timestamp)
        late = driver.output("late", serdes.text, serdes.int64).records()
        return [(record.key, record.value, record.timestamp) for record in late], sum(
            n for (_, why), n in driver.dropped.items() if why == "late"
        )


@RANGES
@pytest.mark.parametrize("emit", ["on_window_update", "on_window_close"])
@pytest.mark.parametrize(
    "windows",
    [
        TimeWindows(milliseconds=10, grace=ms(5)),
        TimeWindows(milliseconds=10, advance=ms(4), grace=ms(5)),
        SlidingWindows(milliseconds=10, grace=ms(4)),
        SessionWindows(milliseconds=5, grace=ms(9)),
    ],
    ids=["tumbling", "hopping", "sliding", "sessions"],
)
def test_a_record_that_no_window_takes_any_more_is_late(
    windows: Any, emit: Any, ranges: int
) -> None:
    records = [
        ("a", 1, 5),
        ("b", 2, 24),
        ("a", 3, 5),
        ("b", 4, 12),
        ("c", 5, 40),
        ("a", 6, 24),
    ]
    late, dropped = late_of(counted(windows, emit), *records, ranges=ranges)
    assert late == [("a", 3, 5), ("a", 6, 24)]
    assert dropped >= 2


@RANGES
def test_a_record_that_one_of_its_windows_still_takes_is_not_late(ranges: int) -> None:
    late, dropped = late_of(
        counted(TimeWindows(milliseconds=10, advance=ms(5))),
        ("a", 1, 19),
        ("a", 2, 11),
        ("a", 3, 9),
        ("b", 4, 12),
        ranges=ranges,
    )
    assert late == [("a", 3, 9)]
    assert dropped == 2 + 1 + 1, (
        "each of its windows is counted: [0, 10) and [5, 15) of 9, [5, 15) of 11, [5, 15) of 12 are closed"
    )


def test_windows_of_ones_own_have_late_records_too_but_what_is_in_no_window_is_not_late() -> (
    None
):
    assert late_of(
        counted(Tens()), ("a", 1, 20), ("a", 2, 15), ("a", 3, 3), ("a", 4, 20)
    ) == ([("a", 2, 15)], 1)


def test_windows_without_an_end_are_never_late_for() -> None:
    assert late_of(counted(UnlimitedWindows()), ("a", 1, 20), ("a", 2, 0)) == ([], 0)


def test_a_record_that_comes_near_to_an_open_session_is_in_time() -> None:
    records = [("a", 1, 12), ("b", 1, 16), ("a", 2, 8), ("c", 3, 8)]
    assert late_of(counted(SessionWindows(milliseconds=5)), *records, ranges=3) == (
        [("c", 3, 8)],
        1,
    )


@RANGES
def test_it_comes_as_it_was_with_its_value_and_headers_also_if_the_record_cache_is_on(
    ranges: int,
) -> None:
    with TopologyTestDriver(
        counted(TimeWindows(milliseconds=10)), ranges, caching=True
    ) as driver:
        topic = driver.input("in", serdes.text, serdes.int64)
        topic.send("a", 1, 30)
        topic.send("b", 2, 5, headers=[("trace", b"7")])
        topic.send("a", None, 6, headers=[("trace", b"8")])
        late = driver.output("late", serdes.text, serdes.int64).records()
        assert [(record.key, record.value, record.timestamp) for record in late] == [
            ("b", 2, 5),
            ("a", None, 6),
        ]
        assert [record.headers for record in late] == [
            [("trace", b"7")],
            [("trace", b"8")],
        ]


@RANGES
def test_behind_a_change_of_keys_it_has_the_new_key(ranges: int) -> None:
    builder = StreamsBuilder("app")
    windowed = (
        numbers(builder)
        .group_by(lambda key, value: f"{key}{value % 2}", key=serdes.text)
        .windowed_by(TimeWindows(milliseconds=10))
    )
    windowed.reduce(max)
    windowed.late().map_values(lambda value: -value, value=serdes.int64).to("late")
    assert late_of(builder.build(), ("a", 1, 30), ("a", 3, 5), ranges=ranges)[0] == [
        ("a1", -3, 5)
    ]


@RANGES
def test_a_versioned_table_has_late_records_beyond_its_history(ranges: int) -> None:
    builder = StreamsBuilder("app")
    table = builder.table("in", key=serdes.text, value=serdes.int64, history=ms(10))
    table.to_stream().to("updates")
    table.late().to("late")
    assert late_of(
        builder.build(),
        ("a", 1, 30),
        ("b", 2, 20),
        ("b", 3, 19),
        ("c", None, 0),
        ranges=ranges,
    ) == (
        [("b", 3, 19), ("c", None, 0)],
        2,
    )


@RANGES
def test_each_stream_of_a_cogroup_has_late_records_of_its_own(ranges: int) -> None:
    builder = StreamsBuilder("app")
    paid = numbers(builder).group_by_key()
    names = builder.stream("names", key=serdes.text, value=serdes.text).group_by_key()
    windowed = (
        paid.cogroup(adding)
        .cogroup(names, lambda _, name, total: total + len(name))
        .windowed_by(TimeWindows(milliseconds=10))
    )
    windowed.aggregate(int, value=serdes.int64)
    windowed.late(names).to("late-names")
    with TopologyTestDriver(builder.build(), ranges) as driver:
        for key, timestamp in [("a", 30), ("b", 1)]:
            driver.input("in", serdes.text, serdes.int64).send(key, 1, timestamp)
            driver.input("names", serdes.text, serdes.text).send(
                key, key * 3, timestamp
            )
        assert [
            (record.key, record.value)
            for record in driver.output(
                "late-names", serdes.text, serdes.text
            ).records()
        ] == [("b", "bbb")]


@RANGES
def test_late_records_are_counted_in_larger_windows_behind_a_topic_of_their_own(
    ranges: int,
) -> None:
    builder = StreamsBuilder("app")
    minutes = numbers(builder).group_by_key().windowed_by(TimeWindows(milliseconds=10))
    minutes.count().to_stream().to("counts")
    minutes.late().group_by_key(name="late").windowed_by(
        TimeWindows(milliseconds=100, grace=ms(100))
    ).count(store="late").to_stream().to("late-counts")
    with TopologyTestDriver(builder.build(), ranges) as driver:
        for key, timestamp in [
            ("a", 199),
            ("a", 105),
            ("b", 106),
            ("a", 107),
            ("a", 5),
        ]:
            driver.input("in", serdes.text, serdes.int64).send(key, 1, timestamp)
        assert {str(row.key): row.value for row in driver.store("late").all()} == {
            "[a@0/100]": 1,
            "[a@100/200]": 2,
            "[b@100/200]": 1,
        }


def test_a_program_that_does_not_ask_for_late_records_pays_nothing() -> None:
    def code(*, asks: bool) -> str:
        builder = StreamsBuilder("app")
        windowed = (
            numbers(builder)
            .group_by_key()
            .windowed_by(TimeWindows(milliseconds=10, advance=ms(5)))
        )
        windowed.count(name="count", store="counts")
        if asks:
            windowed.late(name="late").to("late")
        topology = builder.build()
        return (
            compile_subtopology(topology, topology.subtopologies[0])
            .compiled(False, False)
            .text
        )

    assert "late" not in code(asks=False)
    assert "# late" in code(asks=True)


def test_it_is_drawn_below_what_drops_it() -> None:
    assert (
        "Processor: KSTREAM-AGGREGATE-0000000002 (stores: [KSTREAM-AGGREGATE-STATE-STORE-0000000001])\n"
        in counted(TimeWindows(milliseconds=10)).describe()
    )
    assert (
        "      --> KTABLE-TOSTREAM-0000000003, KSTREAM-LATE-0000000005\n"
        in counted(TimeWindows(milliseconds=10)).describe()
    )


def closing(windowed: Any) -> Any:
    return windowed.emit_strategy("on_window_close")


@pytest.mark.parametrize(
    "windows", [TimeWindows(milliseconds=10), SessionWindows(milliseconds=10)]
)
@pytest.mark.parametrize("of_the_first", [True, False])
def test_the_late_records_of_windows_are_those_of_each_emit_strategy(
    windows: Any, of_the_first: bool
) -> None:
    """late() of the one object did not know that count() of the other was called."""
    builder = StreamsBuilder("app")
    first = numbers(builder).group_by_key().windowed_by(windows)
    other = closing(first)
    (other if of_the_first else first).count()
    (first if of_the_first else other).late().to("late")
    with TopologyTestDriver(builder.build()) as driver:
        for value, at in ((1, 0), (2, 100), (3, 5)):
            driver.input("in").send("a", value, at)
        assert [record.value for record in driver.output("late").records()] == [3]


def test_what_drops_nothing_has_no_late_records() -> None:
    builder = StreamsBuilder("app")
    grouped = numbers(builder).group_by_key()
    with pytest.raises(TopologyError, match="on these windows first"):
        grouped.windowed_by(TimeWindows(milliseconds=10)).late()
    with pytest.raises(TopologyError, match="on these windows first"):
        grouped.cogroup(adding).windowed_by(TimeWindows(milliseconds=10)).late(grouped)
    with pytest.raises(TopologyError, match="one of the grouped streams"):
        grouped.cogroup(adding).windowed_by(TimeWindows(milliseconds=10)).late(
            numbers(builder, "other").group_by_key()
        )
    for table in (
        grouped.count(),
        grouped.windowed_by(TimeWindows(milliseconds=10)).count(),
        builder.table("rows", key=serdes.text, value=serdes.text),
    ):
        with pytest.raises(TopologyError, match="not a table with history="):
            table.late()


def test_late_records_need_values_where_a_count_does_not() -> None:
    builder = StreamsBuilder("app")
    changed = (
        numbers(builder)
        .map_values(lambda value: [value])
        .group_by(lambda key, _: key, key=serdes.text)
    )
    windowed = changed.windowed_by(TimeWindows(milliseconds=10))
    windowed.count()
    with pytest.raises(TopologyError, match="Write value=serdes"):
        windowed.late()


@pytest.mark.ci
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 60)),
        max_size=25,
    ),
    st.sampled_from([2, 3, 8]),
)
def test_every_record_is_either_counted_or_late_whatever_the_number_of_ranges(
    records: list[Input], ranges: int
) -> None:
    def run(ranges: int) -> tuple[int, dict[str, list[Input]]]:
        with TopologyTestDriver(
            counted(TimeWindows(milliseconds=10, grace=ms(3))), ranges
        ) as driver:
            for key, value, timestamp in records:
                driver.input("in", serdes.text, serdes.int64).send(
                    key, value, timestamp
                )
            late = [
                (record.key, record.value, record.timestamp)
                for record in driver.output("late", serdes.text, serdes.int64).records()
            ]
            updates = driver.output("counts", serdes.raw, serdes.raw).records()
            return len(updates), {
                key: [record for record in late if record[0] == key] for key in "abc"
            }

    updates, late = run(1)
    assert updates + sum(map(len, late.values())) == len(records)
    assert run(ranges) == (updates, late)
