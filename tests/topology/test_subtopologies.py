"""A graph is cut at topics; keyed operators behind a new key share a repartition topic."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.kstream import KStream
from coopstreams.topology.graph.nodes import (
    Aggregate,
    DropNullKeys,
    FlatMapValues,
    Node,
    Sink,
    Source,
    StreamTableJoin,
    TableSource,
)
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.windows import TimeWindows
from tests.durations import ms

Stream = KStream[str, str]


def text(builder: StreamsBuilder, *topics: str) -> Stream:
    return builder.stream(topics, key=serdes.text, value=serdes.text)


def kinds(topology: Topology) -> list[list[str]]:
    return [
        [type(node).__name__ for node in subtopology.nodes]
        for subtopology in topology.subtopologies
    ]


def repartitions(topology: Topology) -> list[str]:
    return [
        topic.name for topic in topology.internal_topics if topic.kind == "repartition"
    ]


def built(program: Callable[[StreamsBuilder], object]) -> Topology:
    builder = StreamsBuilder("app")
    program(builder)
    return builder.build()


def test_unconnected_streams_are_sub_topologies_of_their_own_in_order_of_their_first_node() -> (
    None
):
    def program(builder: StreamsBuilder) -> None:
        first, second = text(builder, "a"), text(builder, "b")
        second.to("y")
        first.to("x")

    topology = built(program)
    assert [subtopology.topics for subtopology in topology.subtopologies] == [
        ("a",),
        ("b",),
    ]
    assert [subtopology.id for subtopology in topology.subtopologies] == [0, 1]


def test_a_merge_connects_what_was_apart() -> None:
    topology = built(
        lambda builder: (
            text(builder, "a")
            .merge(text(builder, "b"))
            .merge(text(builder, "c", "d"))
            .to("x")
        )
    )
    assert [subtopology.topics for subtopology in topology.subtopologies] == [
        ("a", "b", "c", "d")
    ]


def test_a_join_connects_stream_and_table() -> None:
    def program(builder: StreamsBuilder) -> None:
        table = builder.table("rows", key=serdes.text, value=serdes.text)
        text(builder, "a").join(table.map_values(str.upper), lambda a, b: a)

    topology = built(program)
    assert kinds(topology) == [
        ["Source", "TableSource", "Source", "MapValues", "StreamTableJoin"]
    ]
    (subtopology,) = topology.subtopologies
    join = subtopology.nodes[-1]
    assert isinstance(join, StreamTableJoin)
    assert join.parents == ("KSTREAM-SOURCE-0000000003", "KTABLE-MAPVALUES-0000000004")
    assert [join.store] == list(subtopology.stores)
    assert topology.copartitioned == (('join at "a → join(rows)"', ("a", "rows")),)


def test_a_repartition_cuts_and_drops_records_without_a_key() -> None:
    topology = built(
        lambda builder: (
            text(builder, "a")
            .group_by(lambda k, v: v, key=serdes.text)
            .count(store="n")
            .to_stream()
            .to("x")
        )
    )
    assert kinds(topology) == [
        ["Source", "SelectKey", "DropNullKeys", "Sink"],
        ["Source", "Aggregate", "ToStream", "Sink"],
    ]
    sink, source = (
        topology.subtopologies[0].nodes[-1],
        topology.subtopologies[1].nodes[0],
    )
    assert isinstance(sink, Sink)
    assert isinstance(source, Source)
    assert sink.internal
    assert source.internal
    assert (sink.topic, sink.key, sink.value) == (
        *source.topics,
        source.key,
        source.value,
    )
    assert topology.internal_topics[0].partitions_from == ("a",)
    assert topology.internal_topics[1].partitions_from == ("app-n-repartition",)


def test_nothing_is_repartitioned_while_the_key_is_the_one_it_came_with() -> None:
    def program(builder: StreamsBuilder) -> None:
        stream = (
            text(builder, "a")
            .filter(lambda k, v: True)
            .map_values(str.upper, value=serdes.text)
            .peek(print)
        )
        stream.group_by_key().count(store="n")
        stream.repartition(name="r").group_by_key().count(store="m")

    assert repartitions(built(program)) == ["app-r-repartition"]


def test_operators_behind_one_new_key_share_its_repartition() -> None:
    def program(builder: StreamsBuilder) -> None:
        group = (
            text(builder, "a")
            .select_key(lambda k, v: v, key=serdes.text)
            .group_by_key()
        )
        group.count(store="n")
        group.reduce(lambda a, b: b, store="last")
        group.windowed_by(TimeWindows(hours=1)).count(store="hourly")

    topology = built(program)
    assert repartitions(topology) == ["app-n-repartition"]
    assert [store.name for store in topology.subtopologies[1].stores] == [
        "n",
        "last",
        "hourly",
    ]


def test_a_join_and_an_aggregation_behind_one_new_key_share_its_repartition() -> None:
    def program(builder: StreamsBuilder) -> None:
        table = builder.table("rows", key=serdes.text, value=serdes.text)
        stream = text(builder, "a").select_key(lambda k, v: v, key=serdes.text)
        stream.join(table, lambda a, b: a).group_by_key().count(store="joined")
        stream.group_by_key().count(store="all")

    assert repartitions(built(program)) == [
        "app-KSTREAM-KEY-SELECT-0000000004-repartition"
    ]


def test_different_bytes_and_different_names_do_not_share() -> None:
    def program(builder: StreamsBuilder) -> None:
        stream = text(builder, "a").select_key(lambda k, v: v)
        stream.group_by_key(key=serdes.text).count(store="a")
        stream.group_by_key(key=serdes.json).count(store="b")
        stream.group_by_key(key=serdes.text, name="mine").count(store="c")
        stream.filter(lambda k, v: True).group_by_key(key=serdes.text).count(store="d")

    assert repartitions(built(program)) == [
        "app-a-repartition",
        "app-b-repartition",
        "app-mine-repartition",
        "app-d-repartition",
    ]


def test_a_left_join_takes_records_without_a_key_through_its_repartition() -> None:
    def program(builder: StreamsBuilder) -> None:
        table = builder.table("rows", key=serdes.text, value=serdes.text)
        text(builder, "a").select_key(lambda k, v: v).left_join(table, lambda a, b: a)

    assert not any(
        isinstance(node, DropNullKeys)
        for subtopology in built(program).subtopologies
        for node in subtopology.nodes
    )


def test_the_keys_of_windows_are_repartitioned_before_they_are_grouped_again() -> None:
    def program(builder: StreamsBuilder) -> None:
        windows = (
            text(builder, "a")
            .group_by_key()
            .windowed_by(TimeWindows(hours=1))
            .count(store="hourly")
            .to_stream()
        )
        windows.group_by_key().reduce(max, store="peak")

    assert repartitions(built(program)) == ["app-peak-repartition"]


def test_one_topic_read_twice_has_one_source() -> None:
    def program(builder: StreamsBuilder) -> None:
        text(builder, "a").to("x")
        text(builder, "a").to("y")
        builder.table("a", key=serdes.text, value=serdes.text, store="a", name="rows")

    topology = built(program)
    assert kinds(topology) == [["Source", "Sink", "Sink", "TableSource"]]


def test_a_topic_may_have_the_name_that_an_internal_one_has_before_the_application_id() -> (
    None
):
    def program(builder: StreamsBuilder) -> None:
        text(builder, "a").group_by(lambda k, v: v, key=serdes.text).count(store="n")
        text(builder, "n-repartition").to("n-changelog")

    topology = built(program)
    assert topology.source_topics == ("a", "n-repartition")
    assert repartitions(topology) == ["app-n-repartition"]


def test_a_table_that_nobody_looks_into_keeps_nothing() -> None:
    def stores(
        program: Callable[[StreamsBuilder, Any], object], **more: Any
    ) -> list[str]:
        def whole(builder: StreamsBuilder) -> None:
            program(
                builder,
                builder.table("rows", key=serdes.text, value=serdes.text, **more),
            )

        topology = built(whole)
        tables = [
            node
            for subtopology in topology.subtopologies
            for node in subtopology.nodes
            if isinstance(node, TableSource)
        ]
        assert [node.store for node in tables if node.store] == [
            store
            for subtopology in topology.subtopologies
            for store in subtopology.stores
        ]
        return [topic.name for topic in topology.internal_topics]

    assert stores(lambda builder, table: table.to_stream().to("x")) == []
    assert stores(lambda builder, table: table.to_stream().to("x"), store="kept") == [
        "app-kept-changelog"
    ]
    joined = stores(
        lambda builder, table: text(builder, "a").join(table, lambda a, b: a)
    )
    assert joined == ["app-rows-STATE-STORE-0000000000-changelog"]


def test_a_window_store_keeps_size_and_grace_or_what_was_asked_for() -> None:
    def hourly(**more: Any) -> Any:
        windows = TimeWindows(milliseconds=1000, grace=ms(500))
        topology = built(
            lambda builder: (
                text(builder, "a")
                .group_by_key()
                .windowed_by(windows)
                .count(store="n", **more)
            )
        )
        (store,) = topology.subtopologies[0].stores
        assert topology.internal_topics[0].retention_ms == store.retention_ms
        return store

    assert (hourly().kind, hourly().window_ms, hourly().retention_ms) == (
        "window",
        1000,
        1500,
    )
    assert hourly(retention=ms(5000)).retention_ms == 5000


def test_aggregations_of_topics_read_together_need_them_copartitioned() -> None:
    topology = built(
        lambda builder: text(builder, "a", "b").group_by_key().count(store="n")
    )
    assert topology.copartitioned == (('table at "a, b → n"', ("a", "b")),)


def test_a_node_has_what_it_was_given() -> None:
    topology = built(
        lambda builder: text(builder, "a").flat_map_values(str.split, name="words")
    )
    assert topology.subtopologies[0].nodes[1] == FlatMapValues(
        name="words", parents=("KSTREAM-SOURCE-0000000000",), mapper=str.split
    )


def test_building_twice_gives_the_same_topology_and_writing_on_another() -> None:
    builder = StreamsBuilder("app")
    stream = text(builder, "a")
    first = builder.build()
    assert builder.build() == first
    stream.to("x")
    assert builder.build() != first
    assert replace(first) == first


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9),
            st.sampled_from(
                ["filter", "values", "key", "merge", "count", "join", "to", "new"]
            ),
        ),
        max_size=20,
    )
)
def test_whatever_is_written_every_node_is_in_one_place_behind_its_parents(
    steps: list[tuple[int, str]],
) -> None:
    builder = StreamsBuilder("app")
    table = builder.table("rows", key=serdes.text, value=serdes.text)
    streams: list[Any] = [text(builder, "t")]
    for at, (which, step) in enumerate(steps):
        stream = streams[which % len(streams)]
        if step == "new":
            streams.append(text(builder, f"t{at}"))
        elif step == "merge":
            streams.append(stream.merge(streams[0]))
        elif step == "count":
            stream.group_by_key().count()
        elif step == "to":
            stream.to("out")
        elif step == "join":
            streams.append(stream.join(table, lambda a, b: a, value=serdes.text))
        elif step == "key":
            streams.append(stream.select_key(lambda k, v: v, key=serdes.text))
        else:
            streams.append(
                stream.map_values(str.upper, value=serdes.text)
                if step == "values"
                else stream.filter(lambda k, v: True)
            )
    check_law(builder.build())


def check_law(topology: Topology) -> None:
    pieces = topology.subtopologies
    names = [node.name for piece in pieces for node in piece.nodes]
    assert len(set(names)) == len(names)
    for piece in pieces:
        above: dict[str, Node] = {}
        for node in piece.nodes:
            assert set(node.parents) <= set(above)
            above[node.name] = node
            if isinstance(node, Aggregate):
                assert node.store in piece.stores
    read = {topic for piece in pieces for topic in piece.topics}
    internal = {
        topic.name for topic in topology.internal_topics if topic.kind == "repartition"
    }
    written = {
        node.topic
        for piece in pieces
        for node in piece.nodes
        if isinstance(node, Sink) and node.internal
    }
    assert internal == written == read - set(topology.source_topics)
    assert {store.name for piece in pieces for store in piece.stores} == {
        topic.name.removeprefix("app-").removesuffix("-changelog")
        for topic in topology.internal_topics
        if topic.kind == "changelog"
    }
