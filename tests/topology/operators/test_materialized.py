"""`store=Materialized(...)`: storage options of a table, which do not change its rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import (
    KTable,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    key_value_store,
    serdes,
    session_store,
    versioned_store,
    window_store,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import TopologyError
from tests.durations import ms

Tables: TypeAlias = tuple[KTable[str, int], KTable[str, int]]
Write: TypeAlias = Callable[
    [KTable[str, int], KTable[str, int], Materialized], KTable[Any, Any]
]

CHANGES: list[tuple[str, str, int | None]] = [
    ("left", "a", 1), ("right", "a", 5), ("left", "b", 2), ("left", "a", 3),
    ("right", "b", 6), ("right", "a", None), ("left", "b", None), ("left", "b", 4),
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
    "filter": lambda left, _, store: left.filter(
        lambda _, value: value > 1, store=store
    ),
    "map_values": lambda left, _, store: left.map_values(
        lambda value: -value, value=serdes.int64, store=store
    ),
    "to_table": lambda left, _, store: left.to_stream().to_table(store=store),
    "count": lambda left, _, store: left.to_stream().group_by_key().count(store=store),
    "reduce": lambda left, _, store: (
        left.to_stream().group_by_key().reduce(add, store=store)
    ),
    "aggregate": lambda left, _, store: (
        left.to_stream()
        .group_by_key()
        .aggregate(int, added, value=serdes.int64, store=store)
    ),
    "windows": lambda left, _, store: (
        left.to_stream()
        .group_by_key()
        .windowed_by(TimeWindows(milliseconds=3))
        .count(store=store)
    ),
    "sessions": lambda left, _, store: (
        left.to_stream()
        .group_by_key()
        .windowed_by(SessionWindows(milliseconds=2))
        .count(store=store)
    ),
    "cogroup": lambda left, right, store: (
        left.to_stream()
        .group_by_key()
        .cogroup(added)
        .cogroup(right.to_stream().group_by_key(), taken)
        .aggregate(int, value=serdes.int64, store=store)
    ),
    "groups": lambda left, _, store: left.group_by(
        lambda _, value: (value % 2, value), key=serdes.int64, value=serdes.int64
    ).reduce(add, subtract, store=store),
    "inner join": lambda left, right, store: left.join(
        right, add, value=serdes.int64, store=store
    ),
    "outer join": lambda left, right, store: left.outer_join(
        right, add, value=serdes.int64, store=store
    ),
    "foreign key": lambda left, right, store: left.join(
        right,
        add,
        foreign_key=lambda value: "ab"[value % 2],
        value=serdes.int64,
        store=store,
    ),
}


def topology_of(name: str, store: Materialized, *, cached: bool = True) -> Topology:
    """Return a topology of two tables and a third from them, stored as `store`.
    `cached`: whether the two are.
    """
    builder = StreamsBuilder("app")
    left, right = (
        builder.table(
            topic,
            key=serdes.text,
            value=serdes.int64,
            store=Materialized(topic, cached=cached),
        )
        for topic in ("left", "right")
    )
    TABLES[name](left, right, store).to_stream().to("out")
    return builder.build()


def run(
    topology: Topology, ranges: int, *, caching: bool = False, commit_every: int = 3
) -> tuple[list[Any], list[Any]]:
    """Return the output, and the table at the end."""
    with TopologyTestDriver(topology, ranges, caching=caching) as driver:
        for number, (topic, key, value) in enumerate(CHANGES, 1):
            driver.input(topic, serdes.text, serdes.int64).send(key, value, number)
            if number % commit_every == 0:
                driver.commit()
        driver.commit()
        return [
            (str(record.key), record.value) for record in driver.outputs()
        ], driver.store("table").all()


def changelogs(topology: Topology) -> set[str]:
    return {
        topic.name for topic in topology.internal_topics if topic.kind == "changelog"
    }


@pytest.mark.parametrize("ranges", [1, 4])
@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_not_logged_is_the_same_without_its_changelog(
    name: str, ranges: int
) -> None:
    logged, unlogged = (
        topology_of(name, Materialized("table", logged=logged))
        for logged in (True, False)
    )
    assert changelogs(logged) - changelogs(unlogged) == {"app-table-changelog"}
    assert changelogs(unlogged) < changelogs(logged)
    written, table = run(logged, ranges)
    assert table
    assert run(unlogged, ranges) == (written, table)


def test_a_table_of_a_topic_need_not_be_logged() -> None:
    builder = StreamsBuilder("app")
    builder.table(
        "in",
        key=serdes.text,
        value=serdes.int64,
        store=Materialized("table", logged=False),
    )
    assert changelogs(builder.build()) == set()


@pytest.mark.parametrize("ranges", [1, 4])
@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_not_cached_tells_of_each_update_whether_the_record_cache_is_on_or_not(
    name: str, ranges: int
) -> None:
    topology = topology_of(name, Materialized("table", cached=False), cached=False)
    assert run(topology, ranges, caching=True) == run(topology, ranges)


def test_a_kept_view_has_options_of_its_own() -> None:
    builder = StreamsBuilder("app")
    options = Materialized(
        "rows", logged=False, cached=False, store_type="in_memory", ttl=ms(5)
    )
    rows = builder.table("in", key=serdes.text, value=serdes.int64, store=options)
    rows.filter(lambda _, value: value > 1, store="kept")
    (kept,) = (
        store
        for store in builder.build().subtopologies[0].stores
        if store.name == "kept"
    )
    assert (kept.logged, kept.cached, kept.store_type, kept.ttl_ms) == (
        True,
        True,
        None,
        None,
    )


@pytest.mark.parametrize("ranges", [1, 4])
def test_beside_it_other_tables_are_cached(ranges: int) -> None:
    builder = StreamsBuilder("app")
    words = builder.stream("in", key=serdes.text, value=serdes.text).group_by_key()
    words.count(store="held-back").to_stream().to("held-back")
    words.count(store=Materialized("at-once", cached=False)).to_stream().to("at-once")
    with TopologyTestDriver(builder.build(), ranges, caching=True) as driver:
        for _ in range(3):
            driver.input("in", serdes.text, serdes.text).send("a", "x")
        driver.commit()
        counts = {
            topic: [
                record.value
                for record in driver.output(topic, serdes.text, serdes.int64).records()
            ]
            for topic in ("held-back", "at-once")
        }
    assert counts == {"held-back": [3], "at-once": [1, 2, 3]}


JOINS: dict[str, Callable[[int | None, int | None], int | None]] = {
    "join": lambda one, other: None if one is None or other is None else one + other,
    "left_join": lambda one, other: None if one is None else one + (other or 0),
    "outer_join": lambda one, other: (
        None if one is None and other is None else add(one, other)
    ),
}
SIDES: dict[str, dict[str, Any]] = {
    "not cached": {"store": Materialized("left", cached=False)},
    "versioned": {"history": ms(1000)},
}
UPDATES = st.lists(
    st.tuples(
        st.sampled_from(["left", "right"]),
        st.sampled_from("ab"),
        st.one_of(st.none(), st.integers(0, 9)),
    ),
    max_size=16,
)


@pytest.mark.ci
@pytest.mark.parametrize("store", [None, "table"])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("method", JOINS)
def test_a_join_with_one_side_that_is_not_cached_tells_of_the_relational_join(
    method: str, side: str, store: str | None
) -> None:
    builder = StreamsBuilder("app")
    left = builder.table("left", key=serdes.text, value=serdes.int64, **SIDES[side])
    right = builder.table("right", key=serdes.text, value=serdes.int64)
    getattr(left, method)(right, add, value=serdes.int64, store=store).to_stream().to(
        "out"
    )
    topology = builder.build()

    @settings(max_examples=60, deadline=None)
    @given(UPDATES, st.sampled_from([1, 3]), st.integers(1, 6))
    def law(
        updates: list[tuple[str, str, int | None]], ranges: int, commit_every: int
    ) -> None:
        sides: dict[str, dict[str, int | None]] = {"left": {}, "right": {}}
        with TopologyTestDriver(topology, ranges, caching=True) as driver:
            for number, (topic, key, value) in enumerate(updates, 1):
                driver.input(topic, serdes.text, serdes.int64).send(key, value, number)
                sides[topic][key] = value
                if number % commit_every:
                    continue
                driver.commit()
                results = {
                    key: JOINS[method](sides["left"].get(key), sides["right"].get(key))
                    for key in "ab"
                }
                assert driver.output("out", serdes.text, serdes.int64).latest() == {
                    key: value for key, value in results.items() if value is not None
                }

    law()


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    "store_type", ["in_memory", "tests.state.sqlite_engine:Sqlite"]
)
def test_a_table_says_the_same_wherever_it_is_kept(
    name: str, store_type: str, tmp_path: Path
) -> None:
    found = []
    for number, store in enumerate(
        [Materialized("kept"), Materialized("kept", store_type=store_type)]
    ):
        topology = topology_of(name, store)
        assert {
            spec.store_type
            for part in topology.subtopologies
            for spec in part.stores
            if spec.name == "kept"
        } == {store.store_type}
        with TopologyTestDriver(
            topology, 4, state_dir=tmp_path / str(number)
        ) as driver:
            for time, (topic, key, value) in enumerate(CHANGES):
                driver.input(topic, serdes.text, serdes.int64).send(key, value, time)
                driver.commit()
            windowed = name in ("windows", "sessions")
            rows = (
                driver.store("kept").fetch_all()
                if windowed
                else driver.store("kept").all()
            )
            found.append(
                (
                    rows,
                    [
                        (record.topic, record.key, record.value, record.timestamp)
                        for record in driver.outputs()
                    ],
                )
            )
    assert found[0] == found[1]
    assert list((tmp_path / "1").glob("*Sqlite")) or store_type == "in_memory"


@pytest.mark.parametrize(
    "store_type",
    [
        "",
        "rocksdb",
        "memory",
        "module",
        "module:",
        ":Class",
        "a b:C",
        "module:Class.inner",
        3,
    ],
)
def test_a_store_type_that_can_be_none_is_refused_where_it_is_written(
    store_type: Any,
) -> None:
    with pytest.raises(
        TopologyError,
        match=r'store "kept": store_type=.* must be rocksDB, in_memory, or package.module:Class',
    ):
        Materialized("kept", store_type=store_type)
    for make in (
        key_value_store,
        partial(window_store, size=ms(1), retention=ms(1)),
        partial(session_store, retention=ms(1)),
        partial(versioned_store, history=ms(1)),
    ):
        with pytest.raises(TopologyError, match=r'store "kept": store_type='):
            make("kept", key=serdes.text, value=serdes.text, store_type=store_type)
