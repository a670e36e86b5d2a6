"""`store=Materialized(...)`: how a table is kept, which does not change what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from coopstreams import KTable, Materialized, SessionWindows, StreamsBuilder, TimeWindows, Topology, serdes
from coopstreams.testing import TopologyTestDriver

Tables: TypeAlias = tuple[KTable[str, int], KTable[str, int]]
Write: TypeAlias = Callable[[KTable[str, int], KTable[str, int], Materialized], KTable[Any, Any]]

CHANGES: list[tuple[str, str, int | None]] = [
    ("left", "a", 1), ("right", "a", 5), ("left", "b", 2), ("left", "a", 3), ("right", "b", 6), ("right", "a", None), ("left", "b", None), ("left", "b", 4)
]  # fmt: skip


def add(one: int | None, other: int | None) -> int:
    return (one or 0) + (other or 0)


def added(_: str, value: int, total: int) -> int:
    return total + value


def taken(_: str, value: int, total: int) -> int:
    return total - value


def subtract(one: int, other: int) -> int:
    return one - other


TABLES: dict[str, Write] = {
    "filter": lambda left, _, store: left.filter(lambda _, value: value > 1, store=store),
    "map_values": lambda left, _, store: left.map_values(lambda value: -value, value=serdes.int64, store=store),
    "to_table": lambda left, _, store: left.to_stream().to_table(store=store),
    "count": lambda left, _, store: left.to_stream().group_by_key().count(store=store),
    "reduce": lambda left, _, store: left.to_stream().group_by_key().reduce(add, store=store),
    "aggregate": lambda left, _, store: left.to_stream().group_by_key().aggregate(int, added, value=serdes.int64, store=store),
    "windows": lambda left, _, store: left.to_stream().group_by_key().windowed_by(TimeWindows(size=3)).count(store=store),
    "sessions": lambda left, _, store: left.to_stream().group_by_key().windowed_by(SessionWindows(gap=2)).count(store=store),
    "cogroup": lambda left, right, store: (
        left.to_stream().group_by_key().cogroup(added)
        .cogroup(right.to_stream().group_by_key(), taken).aggregate(int, value=serdes.int64, store=store)
    ),
    "groups": lambda left, _, store: left.group_by(lambda _, value: (value % 2, value), key=serdes.int64, value=serdes.int64).reduce(add, subtract, store=store),
    "inner join": lambda left, right, store: left.join(right, add, value=serdes.int64, store=store),
    "outer join": lambda left, right, store: left.outer_join(right, add, value=serdes.int64, store=store),
    "foreign key": lambda left, right, store: left.join(right, add, foreign_key=lambda value: "ab"[value % 2], value=serdes.int64, store=store),
}  # fmt: skip


def topology_of(name: str, store: Materialized) -> Topology:
    builder = StreamsBuilder("app")
    left, right = (builder.table(topic, key=serdes.text, value=serdes.int64, store=topic) for topic in ("left", "right"))
    TABLES[name](left, right, store).to_stream().to("out")
    return builder.build()


def run(topology: Topology, ranges: int, *, caching: bool = False, commit_every: int = 3) -> tuple[list[Any], list[Any]]:
    """Return what was written, and the table in the end."""
    with TopologyTestDriver(topology, ranges, caching=caching) as driver:
        for number, (topic, key, value) in enumerate(CHANGES, 1):
            driver.input(topic, serdes.text, serdes.int64).send(key, value, number)
            if number % commit_every == 0:
                driver.commit()
        driver.commit()
        return [(str(record.key), record.value) for record in driver.outputs()], driver.store("table").all()


def changelogs(topology: Topology) -> set[str]:
    return {topic.name for topic in topology.internal_topics if topic.kind == "changelog"}


@pytest.mark.parametrize("ranges", [1, 4])
@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_not_logged_is_the_same_without_its_changelog(name: str, ranges: int) -> None:
    logged, unlogged = (topology_of(name, Materialized("table", logged=logged)) for logged in (True, False))
    assert changelogs(logged) - changelogs(unlogged) == {"app-table-changelog"}
    assert changelogs(unlogged) < changelogs(logged)
    written, table = run(logged, ranges)
    assert table
    assert run(unlogged, ranges) == (written, table)


def test_a_table_of_a_topic_need_not_be_logged() -> None:
    builder = StreamsBuilder("app")
    builder.table("in", key=serdes.text, value=serdes.int64, store=Materialized("table", logged=False))
    assert changelogs(builder.build()) == set()
