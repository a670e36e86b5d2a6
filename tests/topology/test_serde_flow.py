"""Serdes follow the types: a sink or a repartition topic has the serde that was named
for its records.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.kstream import KStream
from coopstreams.topology.dsl.ktable import KTable
from coopstreams.topology.dsl.repartition import PRESENT
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.nodes import Aggregate, Sink
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.serdes import Serde
from coopstreams.topology.windows import TimeWindows

Stream = KStream[Any, Any]
Table = KTable[Any, Any]


def sinks(topology: Topology) -> dict[str, tuple[Serde[Any], Serde[Any]]]:
    nodes = [
        node for subtopology in topology.subtopologies for node in subtopology.nodes
    ]
    return {
        node.topic: (node.key, node.value) for node in nodes if isinstance(node, Sink)
    }


def build(program: Callable[[Stream, Table], object]) -> Topology:
    """A stream of (int64, text), a table of (text, json), and the program over them."""
    builder = StreamsBuilder("app")
    stream = builder.stream("numbers", key=serdes.int64, value=serdes.text)
    table = builder.table("rows", key=serdes.text, value=serdes.json, store="rows")
    program(stream, table)
    return builder.build()


SAME: list[Callable[[Stream], Stream]] = [
    lambda stream: stream,
    lambda stream: stream.filter(lambda k, v: True),
    lambda stream: stream.filter_not(lambda k, v: True),
    lambda stream: stream.peek(lambda k, v: None),
    lambda stream: stream.merge(stream.filter(lambda k, v: True)),
    lambda stream: stream.repartition(),
]


@pytest.mark.parametrize("operator", SAME)
def test_what_is_not_changed_keeps_its_serde(
    operator: Callable[[Stream], Stream],
) -> None:
    topology = build(lambda stream, _: operator(stream).to("out"))
    assert sinks(topology)["out"] == (serdes.int64, serdes.text)


NEW_VALUES: list[Callable[[Stream, Serde[Any] | None], Stream]] = [
    lambda stream, value: stream.map_values(len, value=value),
    lambda stream, value: stream.map_values_with_key(lambda k, v: 1, value=value),
    lambda stream, value: stream.flat_map_values(lambda v: [1], value=value),
    lambda stream, value: stream.flat_map_values_with_key(
        lambda k, v: [1], value=value
    ),
]


@pytest.mark.parametrize("operator", NEW_VALUES)
def test_new_values_have_the_serde_named_with_them(
    operator: Callable[[Stream, Serde[Any] | None], Stream],
) -> None:
    topology = build(lambda stream, _: operator(stream, serdes.float64).to("out"))
    assert sinks(topology)["out"] == (serdes.int64, serdes.float64)


@pytest.mark.parametrize("operator", NEW_VALUES)
def test_new_values_can_have_the_serde_named_at_the_sink(
    operator: Callable[[Stream, Serde[Any] | None], Stream],
) -> None:
    topology = build(
        lambda stream, _: (
            operator(stream, None)
            .filter(lambda k, v: True)
            .to("out", value=serdes.float64)
        )
    )
    assert sinks(topology)["out"] == (serdes.int64, serdes.float64)


@pytest.mark.parametrize("operator", NEW_VALUES)
def test_new_values_without_a_serde_are_an_error_that_says_where_and_what_to_write(
    operator: Callable[[Stream, Serde[Any] | None], Stream],
) -> None:
    message = (
        r'to\("out"\): how do values become bytes\? No serde is known for them since (flat_)?map_values(_with_key)? '
        r'\(KSTREAM-(FLAT)?MAPVALUES-0000000003\)\. Write value=serdes\.… there or in to\("out"\)\.'
    )
    with pytest.raises(TopologyError, match=message):
        build(
            lambda stream, _: operator(stream, None).peek(lambda k, v: None).to("out")
        )


NEW_KEYS: list[Callable[[Stream, Serde[Any] | None], Stream]] = [
    lambda stream, key: stream.select_key(lambda k, v: v, key=key),
    lambda stream, key: stream.map(lambda k, v: (v, v), key=key, value=serdes.text),
    lambda stream, key: stream.flat_map(
        lambda k, v: [(v, v)], key=key, value=serdes.text
    ),
]


@pytest.mark.parametrize("operator", NEW_KEYS)
def test_new_keys_have_the_serde_named_with_them(
    operator: Callable[[Stream, Serde[Any] | None], Stream],
) -> None:
    topology = build(
        lambda stream, _: (
            operator(stream, serdes.json)
            .group_by_key()
            .count(store="n")
            .to_stream()
            .to("out")
        )
    )
    assert sinks(topology) == {
        "app-n-repartition": (serdes.json, serdes.text),
        "out": (serdes.json, serdes.int64),
    }


@pytest.mark.parametrize("operator", NEW_KEYS)
def test_new_keys_can_have_the_serde_named_at_the_grouping(
    operator: Callable[[Stream, Serde[Any] | None], Stream],
) -> None:
    topology = build(
        lambda stream, _: (
            operator(stream, None)
            .group_by_key(key=serdes.json)
            .count(store="n")
            .to_stream()
            .to("out")
        )
    )
    assert sinks(topology)["out"] == (serdes.json, serdes.int64)


@pytest.mark.parametrize("operator", NEW_KEYS)
def test_new_keys_without_a_serde_are_an_error_where_bytes_are_made(
    operator: Callable[[Stream, Serde[Any] | None], Stream],
) -> None:
    with pytest.raises(
        TopologyError,
        match=r'count into "n": how do keys become bytes\? .* Write key=serdes\.… there or in the group_by_key',
    ):
        build(lambda stream, _: operator(stream, None).group_by_key().count(store="n"))
    with pytest.raises(TopologyError, match=r'to\("out"\): how do keys become bytes\?'):
        build(lambda stream, _: operator(stream, None).to("out"))


def test_a_count_needs_no_serde_for_values_it_does_not_read() -> None:
    topology = build(
        lambda stream, _: (
            stream.map_values(len)
            .group_by(lambda k, v: v, key=serdes.json)
            .count(store="n")
        )
    )
    assert sinks(topology)["app-n-repartition"] == (serdes.json, PRESENT)
    assert PRESENT.serialize(object()) == b""
    assert PRESENT.deserialize(b"") is True


@pytest.mark.parametrize("method", ["reduce", "aggregate"])
def test_who_reads_the_values_needs_their_serde(method: str) -> None:
    def program(stream: Stream, _: Table) -> None:
        group = stream.map_values(len).group_by(lambda k, v: v, key=serdes.json)
        if method == "reduce":
            group.reduce(lambda a, b: a, value=serdes.int64, store="n")
        else:
            group.aggregate(int, lambda k, v, a: a, value=serdes.int64, store="n")

    with pytest.raises(
        TopologyError,
        match=rf'{method} into "n": how do values become bytes\? .* since map_values \(KSTREAM-MAPVALUES',
    ):
        build(program)


def test_a_group_names_the_serde_of_values_for_the_repartition() -> None:
    topology = build(
        lambda stream, _: (
            stream.map_values(len)
            .group_by(lambda k, v: v, key=serdes.json, value=serdes.int64)
            .reduce(max, store="n")
        )
    )
    assert sinks(topology)["app-n-repartition"] == (serdes.json, serdes.int64)


def test_the_table_of_a_reduce_has_the_serde_of_the_values_unless_told() -> None:
    def stores(topology: Topology) -> list[Serde[Any]]:
        nodes = [
            node for subtopology in topology.subtopologies for node in subtopology.nodes
        ]
        return [node.store.value for node in nodes if isinstance(node, Aggregate)]

    assert stores(
        build(lambda stream, _: stream.group_by_key().reduce(lambda a, b: b))
    ) == [serdes.text]
    assert stores(
        build(
            lambda stream, _: stream.group_by_key().reduce(
                lambda a, b: b, value=serdes.json
            )
        )
    ) == [serdes.json]


def test_windowed_keys_are_written_with_their_start() -> None:
    topology = build(
        lambda stream, _: (
            stream.group_by_key()
            .windowed_by(TimeWindows(seconds=1))
            .count(store="n")
            .to_stream()
            .to("out")
        )
    )
    assert sinks(topology)["out"] == (
        serdes.windowed(serdes.int64, timedelta(milliseconds=1000)),
        serdes.int64,
    )
    assert topology.subtopologies[0].stores[0].key == serdes.int64


def test_a_view_of_a_table_keeps_and_loses_serdes_as_a_stream_does() -> None:
    assert sinks(
        build(lambda _, table: table.filter(lambda k, v: True).to_stream().to("out"))
    )["out"] == (
        serdes.text,
        serdes.json,
    )
    assert sinks(
        build(
            lambda _, table: (
                table.map_values(len, value=serdes.int64).to_stream().to("out")
            )
        )
    )["out"] == (
        serdes.text,
        serdes.int64,
    )
    with pytest.raises(
        TopologyError, match=r"since map_values_with_key \(KTABLE-MAPVALUES"
    ):
        build(
            lambda _, table: (
                table.map_values_with_key(lambda k, v: v).to_stream().to("out")
            )
        )


def test_a_joined_value_has_the_serde_named_with_it() -> None:
    def joined(value: Serde[Any] | None) -> Callable[[Stream, Table], object]:
        return lambda stream, table: (
            stream.select_key(lambda k, v: v, key=serdes.text)
            .join(table, lambda a, b: a, value=value)
            .to("out")
        )

    assert sinks(build(joined(serdes.json)))["out"] == (serdes.text, serdes.json)
    with pytest.raises(TopologyError, match=r"since join \(KSTREAM-JOIN-"):
        build(joined(None))


def test_new_keys_that_meet_a_table_are_written_as_the_tables_keys() -> None:
    topology = build(
        lambda stream, table: (
            stream.select_key(lambda k, v: v)
            .join(table, lambda a, b: a, name="j")
            .to("out", value=serdes.text)
        )
    )
    assert sinks(topology) == {
        "app-j-repartition": (serdes.text, serdes.text),
        "out": (serdes.text, serdes.text),
    }


def test_merged_streams_keep_what_they_have_in_common() -> None:
    def program(stream: Stream, table: Table) -> None:
        other = stream.map_values(len, value=serdes.int64)
        stream.merge(other).to("out", value=serdes.json)

    assert sinks(build(program))["out"] == (serdes.int64, serdes.json)


def test_merged_streams_with_different_values_have_no_serde() -> None:
    with pytest.raises(
        TopologyError,
        match=r"since merge \(KSTREAM-MERGE-0000000004\) of text and int64",
    ):
        build(
            lambda stream, _: stream.merge(
                stream.map_values(len, value=serdes.int64)
            ).to("out")
        )


def test_merged_streams_with_different_keys_are_repartitioned_under_one() -> None:
    def merged(stream: Stream, table: Table) -> Stream:
        return stream.merge(table.to_stream().map_values(str, value=serdes.text))

    with pytest.raises(
        TopologyError,
        match=r"keys become bytes\? No serde is known for them since merge",
    ):
        build(
            lambda stream, table: merged(stream, table).group_by_key().count(store="n")
        )
    topology = build(
        lambda stream, table: (
            merged(stream, table).group_by_key(key=serdes.json).count(store="n")
        )
    )
    assert sinks(topology)["app-n-repartition"] == (serdes.json, serdes.text)
