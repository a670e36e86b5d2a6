"""Joins of a table with what is computed from it: one record changes both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.ktable import KTable
from coopstreams.topology.dsl.materialized import Materialized
from coopstreams.topology.graph.topology import Topology

Table = KTable[str, Any]
Rows = dict[str, Any]
JSON = serdes.json


def pair(one: Any, other: Any) -> list[Any]:
    return [one, other]


def odd(_: str, value: Any) -> bool:
    return bool(value % 2 == 1)


def few(_: str, value: Any) -> bool:
    return bool(value < 4)


def _odd(rows: Rows) -> Rows:
    return {key: value for key, value in rows.items() if odd(key, value)}


def _few(rows: Rows) -> Rows:
    return {key: value for key, value in rows.items() if few(key, value)}


def _more(rows: Rows) -> Rows:
    return {key: value + 1 for key, value in rows.items()}


def relational(kind: str, left: Rows, right: Rows) -> Rows:
    keys = {
        "inner": left.keys() & right.keys(),
        "left": left.keys(),
        "outer": left.keys() | right.keys(),
    }[kind]
    return {key: pair(left.get(key), right.get(key)) for key in keys}


Shape = tuple[Callable[[Table, Table, str], Table], Callable[[Rows, Rows, str], Rows]]


def join(
    left: Table, right: Table, kind: str, store: Materialized | None = None
) -> Table:
    methods: dict[str, Any] = {
        "inner": left.join,
        "left": left.left_join,
        "outer": left.outer_join,
    }
    joined: Table = methods[kind](right, pair, value=JSON, store=store)
    return joined


def stored(name: str) -> Materialized:
    return Materialized(name, cached=False)


SHAPES: dict[str, Shape] = {
    "itself": (
        lambda rows, _, kind: join(rows, rows, kind),
        lambda rows, _, kind: relational(kind, rows, rows),
    ),
    "a filter": (
        lambda rows, _, kind: join(rows, rows.filter(odd), kind),
        lambda rows, _, kind: relational(kind, rows, _odd(rows)),
    ),
    "a filter on the left": (
        lambda rows, _, kind: join(rows.filter(odd), rows, kind),
        lambda rows, _, kind: relational(kind, _odd(rows), rows),
    ),
    "two filters": (
        lambda rows, _, kind: join(rows.filter(odd), rows.filter(few), kind),
        lambda rows, _, kind: relational(kind, _odd(rows), _few(rows)),
    ),
    "a stored view": (
        lambda rows, _, kind: join(
            rows.map_values(lambda value: value + 1, value=JSON, store=stored("more")),
            rows.filter(few),
            kind,
        ),
        lambda rows, _, kind: relational(kind, _more(rows), _few(rows)),
    ),
    "two hops": (
        lambda rows, _, kind: join(join(rows, rows.filter(odd), kind), rows, kind),
        lambda rows, _, kind: relational(
            kind, relational(kind, rows, _odd(rows)), rows
        ),
    ),
    "two hops, stored": (
        lambda rows, _, kind: join(
            rows.filter(few),
            join(rows, rows.filter(odd), kind, stored("hop")),
            kind,
        ),
        lambda rows, _, kind: relational(
            kind, _few(rows), relational(kind, rows, _odd(rows))
        ),
    ),
    "with another table between": (
        lambda rows, others, kind: join(
            join(rows, others, "inner"), rows.filter(odd), kind
        ),
        lambda rows, others, kind: relational(
            kind, relational("inner", rows, others), _odd(rows)
        ),
    ),
    "behind which is an outer join": (
        lambda rows, others, kind: join(
            join(rows, rows.filter(odd), kind), others, "outer"
        ),
        lambda rows, others, kind: relational(
            "outer", relational(kind, rows, _odd(rows)), others
        ),
    ),
    "behind which is a filter": (
        lambda rows, others, kind: join(
            join(rows, rows.filter(few), kind).filter(
                lambda _, both: both[1] is not None
            ),
            others,
            "outer",
        ),
        lambda rows, others, kind: relational(
            "outer",
            {
                key: both
                for key, both in relational(kind, rows, _few(rows)).items()
                if both[1] is not None
            },
            others,
        ),
    ),
}
CACHES: dict[str, tuple[bool, dict[str, Any]]] = {
    "no cache": (False, {}),
    "cached": (True, {}),
    "a table that is not cached": (
        True,
        {"store": Materialized("rows", cached=False)},
    ),
    "a table with a history": (True, {"history": timedelta(hours=1)}),
}


def topology_of(shape: str, kind: str, cache: str) -> Topology:
    builder = StreamsBuilder("app")
    rows = builder.table("rows", key=serdes.text, value=JSON, **CACHES[cache][1])
    others = builder.table("others", key=serdes.text, value=JSON)
    joined = SHAPES[shape][0](rows, others, kind)
    joined.to_stream().to("out")
    # What is told below must be what was told before, each time: else groups keep what
    # is gone.
    joined.group_by(
        lambda key, value: (str(value), key), key=serdes.text, value=serdes.text
    ).count(store="groups")
    return builder.build()


def told(
    topology: Topology, events: Iterable[tuple[str, str, Any]], *, caching: bool
) -> tuple[Rows, Rows]:
    """Return the last result of each key, and the counts of results that are equal."""
    with TopologyTestDriver(topology, caching=caching) as driver:
        for number, (topic, key, value) in enumerate(events):
            if topic == "flush":
                driver.commit()
            else:
                driver.input(topic).send(key, value, number)
        driver.commit()
        rows = driver.store("groups").all()
        groups = {row.key: row.value for row in rows if row.value}
        return driver.output("out", serdes.text, JSON).latest(), groups


EVENT = st.tuples(
    st.sampled_from(["rows", "rows", "others"]),
    st.sampled_from("ab"),
    st.none() | st.integers(0, 5),
) | st.just(("flush", "", None))


@pytest.mark.ci
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("kind", ["inner", "left", "outer"])
@pytest.mark.parametrize("shape", SHAPES)
@settings(deadline=None, max_examples=10)
@given(events=st.lists(EVENT, max_size=20))
def test_a_join_with_views_of_its_own_is_the_relational_join(
    shape: str, kind: str, cache: str, events: list[tuple[str, str, Any]]
) -> None:
    tables: dict[str, Rows] = {"rows": {}, "others": {}, "flush": {}}
    for topic, key, value in events:
        tables[topic].pop(key, None)
        if value is not None:
            tables[topic][key] = value
    right = SHAPES[shape][1](tables["rows"], tables["others"], kind)
    groups: Rows = {}
    for value in right.values():
        groups[str(value)] = groups.get(str(value), 0) + 1
    topology = topology_of(shape, kind, cache)
    assert told(topology, events, caching=CACHES[cache][0]) == (right, groups)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_deletion_deletes_the_result(shape: str, cache: str) -> None:
    events: list[tuple[str, str, Any]] = [
        ("others", "a", 1),
        ("rows", "a", 1),
        ("rows", "a", 3),
    ]
    events += [("flush", "", None), ("rows", "a", None), ("others", "a", None)]
    topology = topology_of(shape, "inner", cache)
    assert told(topology, events, caching=CACHES[cache][0]) == ({}, {})
