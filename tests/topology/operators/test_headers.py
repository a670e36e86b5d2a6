"""The headers of a record are those of every record that results from it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import (
    KGroupedStream,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    until_time_limit,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.graph.topology import Topology

Grouped: TypeAlias = KGroupedStream[str, str]


def test_headers_go_with_a_record_through_every_operator_and_topic() -> None:
    builder = StreamsBuilder("app")
    lines = builder.stream("lines", key=serdes.text, value=serdes.text)
    words = lines.flat_map_values(str.split, value=serdes.text)
    words.to("words")
    words.group_by(lambda _, word: word, key=serdes.text).count(
        store="counts"
    ).to_stream().to("counts")
    with TopologyTestDriver(builder.build(), ranges=2) as driver:
        topic = driver.input("lines", serdes.text, serdes.text)
        topic.send("k", "a b", 1, [("trace", b"1"), ("trace", None)])
        topic.send("k", "a", 2)
        topic.send("k", "b", 3, [("trace", b"3")])
        got = [
            (record.topic, record.value, record.headers) for record in driver.outputs()
        ]
    first, third = [("trace", b"1"), ("trace", None)], [("trace", b"3")]
    assert got == [
        ("words", "a", first),
        ("words", "b", first),
        ("counts", 1, first),
        ("counts", 1, first),
        ("words", "a", []),
        ("counts", 2, []),
        ("words", "b", third),
        ("counts", 2, third),
    ]


def program(table: Callable[[Grouped], Any]) -> Topology:
    builder = StreamsBuilder("app")
    table(
        builder.stream("in", key=serdes.text, value=serdes.text).group_by_key()
    ).to_stream().to("out")
    return builder.build()


def regrouped(grouped: Grouped) -> Any:
    return (
        grouped.count()
        .group_by(
            lambda key, count: (key[:1], count), key=serdes.text, value=serdes.int64
        )
        .reduce(max, min)
    )


def joined(grouped: Grouped, store: str | None = None) -> Any:
    return grouped.count().join(
        grouped.reduce(lambda _, new: new),
        lambda count, latest: latest,
        value=serdes.text,
        store=store,
    )


def appended(_: str, value: str, total: str) -> str:
    return total + value


TABLES: dict[str, Callable[[Grouped], Any]] = {
    "count": lambda grouped: grouped.count(),
    "view": lambda grouped: grouped.count().filter(lambda _, count: count > 0),
    "kept view": lambda grouped: grouped.count().map_values(
        str, value=serdes.text, store="kept"
    ),
    "of a table": regrouped,
    "join": partial(joined, store="joined"),
    "join without a store": joined,
    "tumbling": lambda grouped: grouped.windowed_by(
        TimeWindows(milliseconds=100)
    ).count(),
    "sliding": lambda grouped: grouped.windowed_by(
        SlidingWindows(milliseconds=100)
    ).reduce(lambda _, new: new),
    "cogroup": lambda grouped: grouped.cogroup(appended).aggregate(
        str, value=serdes.text
    ),
    "suppressed": lambda grouped: grouped.count().suppress(until_time_limit(0)),
}


def headers_of(
    topology: Topology,
    *records: tuple[str, bytes | None],
    ranges: int = 1,
    caching: bool,
    commit: bool = False,
) -> list[Any]:
    """Send keys with a header (None: without any); return the header of each result."""
    with TopologyTestDriver(topology, ranges, caching=caching) as driver:
        for at, (key, header) in enumerate(records):
            driver.input("in", serdes.text, serdes.text).send(
                key, "x", at, None if header is None else [("h", header)]
            )
            if commit:
                driver.commit()
        driver.commit()
        return [(str(record.key), record.headers) for record in driver.outputs()]


@pytest.mark.parametrize("ranges", [1, 4])
@pytest.mark.parametrize("table", TABLES)
def test_an_update_that_the_record_cache_held_back_has_the_headers_of_the_last_record_of_its_row(
    table: str, ranges: int
) -> None:
    records = [("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", None), ("b", None)]
    found = headers_of(program(TABLES[table]), *records, ranges=ranges, caching=True)
    latest = {
        key[1] if key.startswith("[") else key[0]: headers for key, headers in found
    }
    assert latest == {"a": [("h", b"3")], "b": [], "c": []}


@pytest.mark.parametrize("of_stream", [False, True])
def test_a_row_of_a_topic_that_the_record_cache_held_back_has_the_headers_of_its_last_record(
    of_stream: bool,
) -> None:
    builder = StreamsBuilder("app")
    if of_stream:
        table = builder.stream("in", key=serdes.text, value=serdes.text).to_table(
            store="rows"
        )
    else:
        table = builder.table("in", key=serdes.text, value=serdes.text, store="rows")
    table.to_stream().to("out")
    records = [("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", None), ("b", None)]
    assert dict(headers_of(builder.build(), *records, caching=True)) == {
        "a": [("h", b"3")],
        "b": [],
        "c": [],
    }


@pytest.mark.parametrize(
    "table", [table for table in TABLES if "join" not in table]
)  # which get both sides at once
@settings(max_examples=20, deadline=None)
@given(
    records=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([None, b"1", b"2"])),
        max_size=8,
    )
)
def test_with_a_commit_after_each_record_headers_are_those_without_a_cache(
    table: str, records: list[tuple[str, bytes | None]]
) -> None:
    topology = program(TABLES[table])
    assert headers_of(topology, *records, caching=True, commit=True) == headers_of(
        topology, *records, caching=False, commit=True
    )


def test_headers_do_not_outlive_the_update_that_they_belong_to() -> None:
    topology = program(TABLES["count"])
    with TopologyTestDriver(topology, caching=True) as driver:
        topic = driver.input("in", serdes.text, serdes.text)
        topic.send("a", "x", 1, [("h", b"1")])
        driver.commit()
        topic.send("a", "x", 2)
        driver.commit()
        assert [record.headers for record in driver.outputs()] == [[("h", b"1")], []]


def test_updates_of_sessions_have_headers_only_where_the_record_cache_holds_them_back_as_in_kafka_streams() -> (
    None
):
    sessions = program(
        lambda grouped: grouped.windowed_by(SessionWindows(milliseconds=10)).count()
    )
    records = [("a", b"1"), ("a", b"2")]
    assert [
        headers for _, headers in headers_of(sessions, *records, caching=False)
    ] == [[], [], []]
    assert headers_of(sessions, *records, caching=True) == [("[a@0/1]", [("h", b"2")])]
