"""Names of nodes, stores and topics: those that Kafka Streams generates for the same
program, and those that Kafka allows.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.kstream import KStream
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import Names, check_name
from coopstreams.topology.windows import TimeWindows


def node_names(topology: Topology) -> list[str]:
    return [
        node.name
        for subtopology in topology.subtopologies
        for node in subtopology.nodes
    ]


def lines(builder: StreamsBuilder) -> KStream[str, str]:
    return builder.stream("lines", key=serdes.text, value=serdes.text)


def test_every_operator_counts_one() -> None:
    builder = StreamsBuilder("app")
    stream = (
        lines(builder)
        .filter(lambda k, v: True)
        .filter_not(lambda k, v: True)
        .map(lambda k, v: (k, v))
        .flat_map(lambda k, v: [(k, v)])
    )
    stream = (
        stream.map_values(lambda v: v)
        .map_values_with_key(lambda k, v: v)
        .flat_map_values(lambda v: [v])
    )
    stream = (
        stream.flat_map_values_with_key(lambda k, v: [v])
        .select_key(lambda k, v: k)
        .peek(lambda k, v: None)
    )
    stream.foreach(lambda k, v: None)
    stream.merge(stream).to("out", key=serdes.text, value=serdes.text)
    assert node_names(builder.build()) == [
        "KSTREAM-SOURCE-0000000000",
        "KSTREAM-FILTER-0000000001",
        "KSTREAM-FILTER-0000000002",
        "KSTREAM-MAP-0000000003",
        "KSTREAM-FLATMAP-0000000004",
        "KSTREAM-MAPVALUES-0000000005",
        "KSTREAM-MAPVALUES-0000000006",
        "KSTREAM-FLATMAPVALUES-0000000007",
        "KSTREAM-FLATMAPVALUES-0000000008",
        "KSTREAM-KEY-SELECT-0000000009",
        "KSTREAM-PEEK-0000000010",
        "KSTREAM-FOREACH-0000000011",
        "KSTREAM-MERGE-0000000012",
        "KSTREAM-SINK-0000000013",
    ]


def test_a_store_without_a_name_counts_one_before_its_node() -> None:
    builder = StreamsBuilder("app")
    lines(builder).select_key(lambda k, v: v, key=serdes.text).group_by_key().count()
    topology = builder.build()
    assert node_names(topology) == [
        "KSTREAM-SOURCE-0000000000",
        "KSTREAM-KEY-SELECT-0000000001",
        "KSTREAM-FILTER-0000000005",
        "KSTREAM-SINK-0000000004",
        "KSTREAM-SOURCE-0000000006",
        "KSTREAM-AGGREGATE-0000000003",
    ]
    assert [topic.name for topic in topology.internal_topics] == [
        "app-KSTREAM-AGGREGATE-STATE-STORE-0000000002-repartition",
        "app-KSTREAM-AGGREGATE-STATE-STORE-0000000002-changelog",
    ]


def test_a_named_store_names_the_repartition_and_its_nodes() -> None:
    builder = StreamsBuilder("app")
    lines(builder).group_by(lambda k, v: v, key=serdes.text).reduce(
        lambda a, b: b, store="last"
    )
    topology = builder.build()
    assert node_names(topology) == [
        "KSTREAM-SOURCE-0000000000",
        "KSTREAM-KEY-SELECT-0000000001",
        "last-repartition-filter",
        "last-repartition-sink",
        "last-repartition-source",
        "KSTREAM-REDUCE-0000000002",
    ]
    assert [topic.name for topic in topology.internal_topics] == [
        "app-last-repartition",
        "app-last-changelog",
    ]


def test_a_named_group_names_the_repartition_instead() -> None:
    builder = StreamsBuilder("app")
    lines(builder).group_by(lambda k, v: v, key=serdes.text, name="by-word").count(
        store="counts"
    )
    topology = builder.build()
    assert [topic.name for topic in topology.internal_topics] == [
        "app-by-word-repartition",
        "app-counts-changelog",
    ]
    assert node_names(topology)[1] == "by-word"


def test_a_table_counts_its_store_source_and_itself() -> None:
    builder = StreamsBuilder("app")
    table = builder.table("rows", key=serdes.text, value=serdes.text)
    table.filter(lambda k, v: True).map_values(str.upper).to_stream().to(
        "out", value=serdes.text
    )
    named = builder.table(
        "named", key=serdes.text, value=serdes.text, store="kept", name="mine"
    )
    named.filter_not(lambda k, v: True)
    assert node_names(builder.build()) == [
        "KSTREAM-SOURCE-0000000001",
        "KTABLE-SOURCE-0000000002",
        "KTABLE-FILTER-0000000003",
        "KTABLE-MAPVALUES-0000000004",
        "KTABLE-TOSTREAM-0000000005",
        "KSTREAM-SINK-0000000006",
        "mine-source",
        "mine",
        "KTABLE-FILTER-0000000009",
    ]


def test_a_join_after_a_new_key_names_its_repartition_after_the_node_above() -> None:
    builder = StreamsBuilder("app")
    table = builder.table("rows", key=serdes.text, value=serdes.text)
    rekeyed = lines(builder).select_key(lambda k, v: v, key=serdes.text)
    rekeyed.join(table, lambda a, b: a)
    rekeyed.left_join(table, lambda a, b: a, name="looked-up")
    assert [topic.name for topic in builder.build().internal_topics] == [
        "app-KSTREAM-KEY-SELECT-0000000004-repartition",
        "app-looked-up-repartition",
        "app-rows-STATE-STORE-0000000000-changelog",
    ]


def test_an_explicit_repartition_is_named_by_the_user_or_the_counter() -> None:
    builder = StreamsBuilder("app")
    lines(builder).repartition().repartition(name="spread", partitions=4)
    topology = builder.build()
    assert [topic.name for topic in topology.internal_topics] == [
        "app-KSTREAM-REPARTITION-0000000001-repartition",
        "app-spread-repartition",
    ]


def test_the_window_of_a_store_is_not_part_of_its_name() -> None:
    builder = StreamsBuilder("app")
    lines(builder).group_by_key().windowed_by(TimeWindows(hours=1)).count(
        store="hourly"
    )
    assert [topic.name for topic in builder.build().internal_topics] == [
        "app-hourly-changelog"
    ]


@given(st.lists(st.sampled_from(["KSTREAM-FILTER-", "KSTREAM-MAP-"]), max_size=50))
def test_generated_names_are_all_different(prefixes: list[str]) -> None:
    names = Names()
    assert len({names.node(prefix) for prefix in prefixes}) == len(prefixes)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a b", "a/b", "wörter", "a" * 250, "a\n", "a:b"]
)
def test_a_name_that_kafka_refuses_is_refused_here(name: str) -> None:
    with pytest.raises(TopologyError, match="the topic"):
        check_name(name, "the topic")


@given(
    st.text("abcXYZ019._-", min_size=1, max_size=249).filter(
        lambda name: name not in {".", ".."}
    )
)
def test_a_name_that_kafka_takes_is_taken(name: str) -> None:
    assert check_name(name, "the topic") == name


def test_an_internal_name_that_becomes_too_long_is_an_error() -> None:
    builder = StreamsBuilder("a" * 200)
    lines(builder).group_by_key().count(store="s" * 60)
    with pytest.raises(TopologyError, match="longer than 249 characters"):
        builder.build()
