"""Aggregations of tables: when a row changes, its old value is subtracted from its
group and its new value added.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams import KTable, StreamsBuilder, TimeWindows, serdes
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.graph.topology import Topology
from tests.topology.operators.results import outputs


def team_and_points(_: str, value: str) -> tuple[str | None, str | None]:
    team, _, points = value.partition(":")
    return team or None, points or None


def topology(view: Any = None) -> Topology:
    """Trace the inputs and outputs of each row's group."""
    builder = StreamsBuilder("app")
    table: KTable[str, str] = builder.table("in", key=serdes.text, value=serdes.text)
    grouped = (view(table) if view else table).group_by(
        team_and_points, key=serdes.text, value=serdes.text
    )
    grouped.aggregate(
        str,
        lambda _, value, text: f"{text}+{value}",
        lambda _, value, text: f"{text}-{value}",
        value=serdes.text,
        store="groups",
    ).to_stream().to("out")
    return builder.build()


def run(program: Topology, *records: tuple[str, str | None]) -> list[tuple[Any, Any]]:
    found = outputs(
        program, *(("in", *record, at) for at, record in enumerate(records))
    )
    return [(key, value) for key, value, _ in found]


def test_a_row_that_changes_within_its_group_is_one_update() -> None:
    assert run(topology(), ("a", "red:1"), ("a", "red:2")) == [
        ("red", "+1"),
        ("red", "+1-1+2"),
    ]


def test_groups_whose_keys_are_equal_but_written_differently_are_several() -> None:
    builder = StreamsBuilder("app")
    table = builder.table("in", key=serdes.text, value=serdes.json)
    table.group_by(
        lambda _, value: (value, value), key=serdes.json, value=serdes.json
    ).count(store="counts")
    with TopologyTestDriver(builder.build()) as driver:
        for timestamp, value in enumerate([1, 1.0, True, {"a": [1]}, {"a": [1.0]}, 2]):
            driver.input("in", serdes.text, serdes.json).send("row", value, timestamp)
        assert [
            (row.key, row.value) for row in driver.store("counts").all() if row.value
        ] == [(2, 1)]


def test_a_row_that_changes_its_group_leaves_one_and_then_enters_the_other() -> None:
    assert run(topology(), ("a", "red:1"), ("a", "blue:2")) == [
        ("red", "+1"),
        ("red", "+1-1"),
        ("blue", "+2"),
    ]


def test_a_deleted_row_leaves_and_what_has_no_key_or_no_value_is_in_no_group() -> None:
    records = [("a", "red:1"), ("b", "red"), ("c", ":3"), ("a", None), ("a", None)]
    assert run(topology(), *records) == [("red", "+1"), ("red", "+1-1")]


def test_a_view_says_what_it_said_before() -> None:
    def view(table: KTable[str, str]) -> KTable[str, str]:
        return table.filter(lambda _, value: not value.endswith("0")).map_values(
            str.upper, value=serdes.text
        )

    assert run(topology(view), ("a", "red:1"), ("a", "red:0"), ("a", "red:3")) == [
        ("RED", "+1"),
        ("RED", "+1-1"),
        ("RED", "+1-1+3"),
    ]


def test_reduce_begins_with_the_first_value_and_none_deletes_the_row() -> None:
    builder = StreamsBuilder("app")
    table = builder.table("in", key=serdes.text, value=serdes.int64)
    grouped = table.group_by(
        lambda _, value: ("all", value), key=serdes.text, value=serdes.int64
    )
    grouped.reduce(
        lambda total, value: total + value,
        lambda total, value: total - value or None,
        store="sum",
    ).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input("in", serdes.text, serdes.int64)
        for key, value in [("a", 1), ("b", 2), ("a", None), ("b", None)]:
            topic.send(key, value)
        assert [record.value for record in driver.outputs()] == [1, 3, 2, None]
        assert driver.store("sum").all() == []


@pytest.mark.parametrize(
    ("caching", "keys"), [(True, [("0", 2), ("10", 1)]), (False, [("0", 1), ("10", 1)])]
)
def test_a_windowed_table_is_grouped_like_any_other_but_without_record_cache_a_count_was_0_before_it_began(
    caching: bool, keys: list[tuple[str, int]]
) -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.int64)
    counts = stream.group_by_key().windowed_by(TimeWindows(milliseconds=10)).count()
    counts.group_by(
        lambda window, count: (str(window.start_ms), window.key),
        key=serdes.text,
        value=serdes.text,
    ).count(store="keys")
    with TopologyTestDriver(builder.build(), caching=caching) as driver:
        for key, timestamp in [("a", 1), ("b", 2), ("a", 3), ("a", 12)]:
            driver.input("in").send(key, 1, timestamp)
        driver.commit()
        assert [(row.key, row.value) for row in driver.store("keys").all()] == keys


CHANGES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 9))),
    max_size=25,
)


@cache
def groups() -> Topology:
    builder = StreamsBuilder("app")
    table = builder.table("in", key=serdes.text, value=serdes.int64)
    grouped = table.group_by(
        lambda _, value: (value % 3, value), key=serdes.int64, value=serdes.int64
    )
    grouped.count(store="counts")
    grouped.aggregate(
        int,
        lambda _, value, total: total + value,
        lambda _, value, total: total - value,
        value=serdes.int64,
        store="sums",
    )
    return builder.build()


@pytest.mark.ci
@given(CHANGES, st.sampled_from([1, 3]), st.booleans())
def test_groups_equal_a_group_by_of_the_table_as_it_is(
    changes: list[tuple[str, int | None]], ranges: int, caching: bool
) -> None:
    live: dict[str, int] = {}
    with TopologyTestDriver(groups(), ranges, caching=caching) as driver:
        topic = driver.input("in", serdes.text, serdes.int64)
        for key, value in changes:
            topic.send(key, value)
            live.pop(key, None)
            if value is not None:
                live[key] = value
        driver.commit()
        counts = {
            row.key: row.value for row in driver.store("counts").all() if row.value
        }
        sums = {
            row.key: row.value
            for row in driver.store("sums").all()
            if row.key in counts
        }
    living = {value % 3 for value in live.values()}
    assert counts == {
        group: sum(value % 3 == group for value in live.values()) for group in living
    }
    assert sums == {
        group: sum(value for value in live.values() if value % 3 == group)
        for group in living
    }
