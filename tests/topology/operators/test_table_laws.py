"""A table and the stream of its updates are two views of one thing: at any moment, the
updates so far fold to the table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import (
    KTable,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
)
from coopstreams.testing import TopologyTestDriver
from tests.durations import ms

Change: TypeAlias = tuple[str, str, int | None, int]
"""Topic, key, value, timestamp."""
Write: TypeAlias = Callable[[KTable[str, int], KTable[str, int]], KTable[Any, Any]]

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["left", "right"]),
        st.sampled_from("ab"),
        st.one_of(st.none(), st.integers(0, 9)),
        st.integers(0, 40),
    ),
    max_size=16,
)
RANGES = st.sampled_from([1, 3])
YEAR = 10**10


def pair(left: int | None, right: int | None) -> list[int | None]:
    return [left, right]


def total(table: KTable[str, int]) -> KTable[int, int]:
    grouped = table.group_by(
        lambda _, value: (value % 3, value), key=serdes.int64, value=serdes.int64
    )
    return grouped.reduce(
        lambda one, value: one + value,
        lambda one, value: one - value or None,
        store="table",
    )


TABLES: dict[str, Write] = {
    "view": lambda left, _: left.filter(lambda _, value: value > 3, store="table"),
    "groups": lambda left, _: total(left),
    "inner join": lambda left, right: left.join(
        right, pair, value=serdes.json, store="table"
    ),
    "left join": lambda left, right: left.left_join(
        right, pair, value=serdes.json, store="table"
    ),
    "outer join": lambda left, right: left.outer_join(
        right, pair, value=serdes.json, store="table"
    ),
    "foreign key": lambda left, right: left.left_join(
        right,
        pair,
        foreign_key=lambda value: "ab"[value % 2],
        value=serdes.json,
        store="table",
    ),
    "count": lambda left, _: left.to_stream().group_by_key().count(store="table"),
    "tumbling": lambda left, _: (
        left.to_stream()
        .group_by_key()
        .windowed_by(TimeWindows(milliseconds=10, grace=ms(99)))
        .count(store="table", retention=ms(YEAR))
    ),
    "sliding": lambda left, _: (
        left.to_stream()
        .group_by_key()
        .windowed_by(SlidingWindows(milliseconds=9, grace=ms(99)))
        .count(store="table", retention=ms(YEAR))
    ),
    "sessions": lambda left, _: (
        left.to_stream()
        .group_by_key()
        .windowed_by(SessionWindows(milliseconds=5, grace=ms(99)))
        .count(store="table", retention=ms(YEAR))
    ),
    "of a table": lambda left, right: total(
        left.outer_join(
            right, lambda one, other: (one or 0) + (other or 0), value=serdes.int64
        )
    ),
}


def topology_of(write: Write) -> Any:
    builder = StreamsBuilder("app")
    left, right = (
        builder.table(topic, key=serdes.text, value=serdes.int64)
        for topic in ("left", "right")
    )
    write(left, right).to_stream().to("updates")
    return builder.build()


@pytest.mark.parametrize("name", TABLES)
def test_the_updates_so_far_fold_to_the_table(name: str) -> None:
    topology = topology_of(TABLES[name])

    @settings(max_examples=60, deadline=None)
    @given(CHANGES, RANGES, st.booleans(), st.integers(1, 6))
    def law(
        changes: list[Change], ranges: int, caching: bool, commit_every: int
    ) -> None:
        with TopologyTestDriver(topology, ranges, caching=caching) as driver:
            for number, (topic, key, value, timestamp) in enumerate(changes, 1):
                driver.input(topic, serdes.text, serdes.int64).send(
                    key, value, timestamp
                )
                if number % commit_every:
                    continue
                driver.commit()
                folded: dict[Any, Any] = {}
                for record in driver.outputs():
                    folded.pop(record.key, None)
                    if record.value is not None:
                        folded[record.key] = record.value
                assert folded == {
                    row.key: row.value for row in driver.store("table").all()
                }

    law()


@cache
def two_tables() -> Topology:
    builder = StreamsBuilder("app")
    for topic in ("left", "right"):
        builder.table(topic, key=serdes.text, value=serdes.int64, store=topic)
    return builder.build()


@settings(max_examples=60, deadline=None)
@given(CHANGES, RANGES, st.sampled_from(["none", "all"]))
def test_a_table_is_the_fold_of_any_prefix_of_its_topic(
    changes: list[Change], ranges: int, optimization: str
) -> None:
    folds: dict[str, dict[str, tuple[int, int]]] = {"left": {}, "right": {}}
    with TopologyTestDriver(
        two_tables(), ranges, {"topology.optimization": optimization}
    ) as driver:
        for topic, key, value, timestamp in changes:
            driver.input(topic, serdes.text, serdes.int64).send(key, value, timestamp)
            folds[topic].pop(key, None)
            if value is not None:
                folds[topic][key] = (
                    value,
                    timestamp,
                )  # the later offset wins, also with an older timestamp
            for store, fold in folds.items():
                assert {
                    row.key: (row.value, row.timestamp)
                    for row in driver.store(store).all()
                } == fold


@cache
def view_and_join() -> Topology:
    builder = StreamsBuilder("app")
    left, right = (
        builder.table(topic, key=serdes.text, value=serdes.int64)
        for topic in ("left", "right")
    )
    small = left.filter(lambda _, value: value < 7).map_values(
        lambda value: value + 100, value=serdes.int64
    )
    small.outer_join(right, pair, value=serdes.json, store="table")
    return builder.build()


@settings(max_examples=60, deadline=None)
@given(CHANGES, RANGES)
def test_a_view_and_a_join_are_those_of_the_folds(
    changes: list[Change], ranges: int
) -> None:
    folds: dict[str, dict[str, int]] = {"left": {}, "right": {}}
    with TopologyTestDriver(view_and_join(), ranges) as driver:
        for topic, key, value, timestamp in changes:
            driver.input(topic, serdes.text, serdes.int64).send(key, value, timestamp)
            folds[topic].pop(key, None)
            if value is not None:
                folds[topic][key] = value
            lefts, rights = (
                {key: value + 100 for key, value in folds["left"].items() if value < 7},
                folds["right"],
            )
            expected = {
                key: [lefts.get(key), rights.get(key)]
                for key in lefts.keys() | rights.keys()
            }
            assert {
                row.key: row.value for row in driver.store("table").all()
            } == expected
