"""Filtered and mapped tables, as views or with a store of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.windows import TimeWindows
from tests.topology.operators.results import outputs

RECORDS: list[tuple[str, Any]] = [
    ("a", 1),
    ("a", 2),
    ("b", 1),
    ("a", 3),
    ("b", None),
    ("a", None),
]


def run(
    write: Callable[[Any], Any],
    *,
    source: str | None = None,
    ranges: int = 1,
    caching: bool = False,
) -> tuple[list[Any], TopologyTestDriver]:
    builder = StreamsBuilder("app")
    write(
        builder.table("in", key=serdes.text, value=serdes.json, store=source)
    ).to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), ranges, caching=caching)
    topic = driver.input("in", serdes.text, serdes.json)
    for at, (key, value) in enumerate(RECORDS):
        topic.send(key, value, at)
    driver.commit()
    return [
        (record.key, record.value, record.timestamp) for record in driver.outputs()
    ], driver


def rows(driver: TopologyTestDriver, store: str) -> list[tuple[Any, Any]]:
    with driver:
        return [(row.key, row.value) for row in driver.store(store).all()]


def even(_: str, value: int) -> bool:
    return value % 2 == 0


@pytest.mark.parametrize("ranges", [1, 4])
def test_a_filter_with_a_store_keeps_what_it_shows(ranges: int) -> None:
    builder = StreamsBuilder("app")
    builder.table("in", key=serdes.text, value=serdes.json).filter(even, store="even")
    driver = TopologyTestDriver(builder.build(), ranges)
    topic = driver.input("in", serdes.text, serdes.json)
    for key, value in [("a", 1), ("b", 2), ("c", 4), ("c", 5)]:
        topic.send(key, value)
    assert rows(driver, "even") == [("b", 2)]


def test_without_a_store_above_every_row_that_does_not_pass_is_told() -> None:
    outputs, driver = run(lambda table: table.filter(even, store="even"))
    assert [value for key, value, _ in outputs if key == "a"] == [None, 2, None, None]
    assert rows(driver, "even") == []


def test_with_a_store_above_a_row_that_never_passed_is_no_news() -> None:
    outputs, driver = run(lambda table: table.filter(even, store="even"), source="all")
    assert outputs == [("a", 2, 1), ("a", None, 3)]
    assert rows(driver, "even") == []


def test_a_mapper_with_a_store_keeps_what_it_makes_and_its_timestamp() -> None:
    builder = StreamsBuilder("app")
    builder.table("in", key=serdes.text, value=serdes.json).map_values(
        lambda value: value * 10, value=serdes.int64, store="tens"
    )
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in", serdes.text, serdes.json).send("a", 4, 123)
        row = driver.store("tens").row("a")
        assert row is not None
        assert (row.value, row.timestamp) == (40, 123)


def test_a_filter_below_a_kept_view_hears_what_the_view_said_before() -> None:
    outputs, _ = run(
        lambda table: table.map_values(
            lambda value: value + 1, value=serdes.json, store="more"
        ).filter(even)
    )
    assert outputs == [
        ("a", 2, 0),
        ("a", None, 1),
        ("b", 2, 2),
        ("a", 4, 3),
        ("b", None, 4),
        ("a", None, 5),
    ]


def test_with_the_record_cache_a_kept_view_tells_its_latest_row_once() -> None:
    outputs, driver = run(
        lambda table: table.filter(lambda _, value: value < 3, store="small"),
        source="all",
        caching=True,
    )
    assert outputs == []  # every row came and went between two commits
    assert rows(driver, "small") == []


def test_a_stream_joins_a_kept_view() -> None:
    builder = StreamsBuilder("app")
    view = builder.table("in", key=serdes.text, value=serdes.json).filter(
        even, store="even"
    )
    builder.stream("s", key=serdes.text, value=serdes.json).join(
        view, lambda left, right: [left, right], value=serdes.json
    ).to("out")
    events = [
        (topic, key, value, 0)
        for key, row in (("a", 1), ("b", 2))
        for topic, value in (("in", row), ("s", "x"))
    ]
    assert [value for _, value, _ in outputs(builder.build(), *events)] == [["x", 2]]


def test_a_view_of_windows_is_kept_by_window() -> None:
    builder = StreamsBuilder("app")
    grouped = builder.stream("in", key=serdes.text, value=serdes.text).group_by_key()
    grouped.windowed_by(TimeWindows(milliseconds=10)).count().filter(
        lambda key, count: count > 1 and key.start_ms > 0, store="many"
    )
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input("in", serdes.text, serdes.text)
        for at in (1, 2, 13, 14, 15):
            topic.send("a", "x", at)
        assert [
            (row.key.start_ms, row.value) for row in driver.store("many").all()
        ] == [(10, 3)]


def test_a_kept_view_needs_a_serde_for_its_values() -> None:
    table = StreamsBuilder("app").table("in", key=serdes.text, value=serdes.json)
    with pytest.raises(TopologyError, match="No serde is known"):
        table.map_values(str, store="texts")


@pytest.mark.parametrize("ranges", [1, 4])
def test_kept_windows_expire_with_those_that_they_show(ranges: int) -> None:
    builder = StreamsBuilder("app")
    grouped = builder.stream("in", key=serdes.text, value=serdes.text).group_by_key()
    counts = grouped.windowed_by(TimeWindows(milliseconds=10)).count(store="counts")
    counts.map_values(lambda count: count, value=serdes.int64, store="same")
    with TopologyTestDriver(builder.build(), ranges) as driver:
        topic = driver.input("in", serdes.text, serdes.text)
        for key, at in (("a", 1), ("b", 2), ("c", 13), ("d", 35)):
            topic.send(key, "x", at)
        assert driver.store("same").all() == driver.store("counts").all()
        assert [row.key.key for row in driver.store("same").all()] == ["d"]
