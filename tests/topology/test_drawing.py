"""The topology as a picture: invariants of the layers for any graph, and the content of
a drawing.
"""

from __future__ import annotations

import math
import re
from itertools import combinations
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.graph.drawing import Box, Drawing, Frame, drawn
from coopstreams.topology.graph.layers import place, ranks
from coopstreams.topology.graph.topology import Topology

VERTICES = [f"v{number}" for number in range(9)]
edges_of_graphs = st.lists(
    st.tuples(st.sampled_from(VERTICES), st.sampled_from(VERTICES)), max_size=20
)
sizes_of_graphs = st.fixed_dictionaries(
    {vertex: st.tuples(st.floats(1, 200), st.floats(1, 60)) for vertex in VERTICES}
)


@given(edges_of_graphs, sizes_of_graphs, st.booleans())
def test_vertices_of_any_graph_do_not_overlap_and_lie_in_the_picture(
    edges: list[tuple[str, str]], sizes: dict[str, tuple[float, float]], near: bool
) -> None:
    placed = place(sizes, edges, ranks(VERTICES, edges, near=near), gap=(10, 10))
    assert placed == place(
        sizes, edges, ranks(VERTICES, edges, near=near), gap=(10, 10)
    )
    for vertex, (x, y) in placed.centres.items():
        width, height = sizes[vertex]
        assert -0.01 <= x - width / 2 <= x + width / 2 <= placed.width + 0.01
        assert -0.01 <= y - height / 2 <= y + height / 2 <= placed.height + 0.01
    for one, other in combinations(VERTICES, 2):
        (x, y), (ox, oy) = placed.centres[one], placed.centres[other]
        beside = abs(x - ox) >= (sizes[one][0] + sizes[other][0]) / 2 + 9.9
        below = abs(y - oy) >= (sizes[one][1] + sizes[other][1]) / 2 + 9.9
        assert beside or below


@given(edges_of_graphs, st.booleans())
def test_edges_go_down_if_there_is_no_cycle(
    edges: list[tuple[str, str]], near: bool
) -> None:
    acyclic = [(min(edge), max(edge)) for edge in edges if edge[0] != edge[1]]
    rank = ranks(VERTICES, acyclic, near=near)
    assert all(rank[start] < rank[end] for start, end in acyclic)
    placed = place(dict.fromkeys(VERTICES, (10.0, 10.0)), acyclic, rank, gap=(10, 10))
    for edge, route in placed.routes.items():
        ys = [
            placed.centres[edge[0]][1],
            *(y for _, y in route),
            placed.centres[edge[1]][1],
        ]
        assert ys == sorted(set(ys))
        assert len(route) == rank[edge[1]] - rank[edge[0]] - 1


def test_parallel_chains_have_no_crossings() -> None:
    edges = [("a", "y"), ("b", "x"), ("y", "q"), ("x", "p")]
    names = ["a", "b", "x", "y", "p", "q"]
    placed = place(
        dict.fromkeys(names, (10.0, 10.0)), edges, ranks(names, edges), gap=(10, 10)
    )
    assert placed.centres["a"][0] == placed.centres["y"][0] == placed.centres["q"][0]
    assert placed.centres["b"][0] == placed.centres["x"][0] == placed.centres["p"][0]


def shop() -> Topology:
    builder = StreamsBuilder("shop")
    customers = builder.table(
        "customers", key=serdes.text, value=serdes.json, store="customers"
    )
    orders = builder.stream("orders", key=serdes.text, value=serdes.json)
    known = orders.map_values(dict).join(
        customers, lambda order, customer: order | customer, value=serdes.json
    )
    known.to("known")
    counts = known.group_by(
        lambda _, order: order["city"], key=serdes.text, name="by-city"
    ).count(store="cities")
    counts.to_stream().map_values(str, name="shown").to(
        "city-counts", value=serdes.text
    )
    orders.filter(lambda _, order: order["large"]).to("large")
    return builder.build()


def inside(box: Box, frame: Frame) -> bool:
    return (
        frame.x <= box.x
        and frame.y <= box.y
        and box.x + box.width <= frame.x + frame.width
        and box.y + box.height <= frame.y + frame.height
    )


def counts(drawing: Drawing) -> dict[tuple[str, str], list[str]]:
    titles = {box.id: box.title for box in drawing.boxes}
    return {
        (titles[arrow.start], titles[arrow.end]): [
            " ".join(count) for count in arrow.counts
        ]
        for arrow in drawing.arrows
    }


def test_operators_are_in_the_frame_of_their_sub_topology_and_topics_in_none() -> None:
    drawing = drawn(shop())
    assert [frame.title for frame in drawing.frames] == [
        "Sub-topology 0",
        "Sub-topology 1",
    ]
    for box in drawing.boxes:
        around = [frame.subtopology for frame in drawing.frames if inside(box, frame)]
        assert len(around) == (box.kind == "operator"), box
    ends = {box.id: box for box in drawing.boxes}
    for arrow in drawing.arrows:
        start, end = ends[arrow.start], ends[arrow.end]
        assert (
            math.dist(
                arrow.points[0], (start.x + start.width / 2, start.y + start.height)
            )
            < 0.01
        )
        assert math.dist(arrow.points[-1], (end.x + end.width / 2, end.y)) < 0.01


def test_an_arrow_says_which_counters_are_the_records_that_pass_it() -> None:
    found = counts(drawn(shop()))
    assert (
        found["orders", "map values"]
        == found["map values", "stream table join"]
        == ["consumed 0 orders"]
    )
    assert (
        found["stream table join", "known"]
        == found["stream table join", "select key"]
        == ["produced 0 known"]
    )
    assert found["filter", "large"] == ["produced 0 large"]
    assert found["orders", "filter"] == ["consumed 0 orders"]
    assert found["table source", "stream table join"] == []
    assert found["drop null keys", "by-city-repartition"] == [
        "produced 0 shop-by-city-repartition"
    ]
    assert (
        found["aggregate", "to stream"]
        == found["map values", "city-counts"]
        == ["produced 1 city-counts"]
    )
    [cities] = [
        line
        for box in drawn(shop()).boxes
        for line in box.lines
        if line.store == "cities"
    ]
    assert cities.counts == (("produced", "1", "shop-cities-changelog"),)


def test_what_a_stream_writes_without_an_operator_is_an_arrow_between_topics() -> None:
    builder = StreamsBuilder("copy")
    builder.stream("from", key=serdes.raw, value=serdes.raw).to("to")
    drawing = drawn(builder.build())
    assert drawing.frames == ()
    assert counts(drawing) == {("from", "to"): ["produced 0 to"]}


def test_a_topology_that_writes_into_its_own_source_can_be_drawn() -> None:
    builder = StreamsBuilder("again")
    stream = builder.stream("work", key=serdes.text, value=serdes.text)
    stream.map_values(str.upper, value=serdes.text).to("work")
    assert counts(drawn(builder.build())).keys() == {
        ("work", "map values"),
        ("map values", "work"),
    }


def test_a_global_table_is_drawn_with_its_topic() -> None:
    builder = StreamsBuilder("names")
    names = builder.global_table(
        "names", key=serdes.text, value=serdes.text, store="names-of-all"
    )
    stream = builder.stream("ids", key=serdes.text, value=serdes.text)
    stream.join(
        names,
        lambda value, name: value + name,
        on=lambda _, value: value,
        value=serdes.text,
    ).to("named")
    drawing = drawn(builder.build())
    assert ("names", "global table") in counts(drawing)
    [join] = [box for box in drawing.boxes if box.title == "stream global join"]
    assert [line.text for line in join.lines] == ["reads names-of-all"]


def test_the_file_is_xml_with_every_box_and_quotes_what_users_wrote() -> None:
    builder = StreamsBuilder("quoted")
    stream = builder.stream(re.compile("in|<&>"), key=serdes.raw, value=serdes.raw)
    stream.filter(lambda _, value: value is not None, name="some").to("out")
    root = ET.fromstring(builder.build().describe("svg"))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["Sub-topology 0", "in|<&>", "out", "filter", "some"]
