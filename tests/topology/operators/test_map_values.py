"""`map_values`, `map_values_with_key`: a new value, the same key and timestamp."""

from typing import Any

from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from tests.topology.operators.results import outputs


def test_each_value_is_replaced(flow: Any) -> None:
    out = flow(
        lambda stream: stream.map_values(lambda value: value * 2, value=serdes.json),
        ("a", 1, 7),
        ("b", 2, 3),
    )
    assert out == [("a", 2, 7), ("b", 4, 3)]


def test_the_mapper_may_see_the_key(flow: Any) -> None:
    assert flow(
        lambda stream: stream.map_values_with_key(
            lambda key, value: f"{key}{value}", value=serdes.json
        ),
        ("a", 1, 7),
    ) == [("a", "a1", 7)]


def test_a_stream_hands_null_values_to_the_mapper(flow: Any) -> None:
    assert flow(
        lambda stream: stream.map_values(
            lambda value: "none" if value is None else value, value=serdes.json
        ),
        ("a", None, 0),
    ) == [("a", "none", 0)]


def test_a_value_mapped_to_none_is_a_null_value(flow: Any) -> None:
    assert flow(
        lambda stream: stream.map_values(lambda _: None, value=serdes.json), ("a", 1, 0)
    ) == [("a", None, 0)]


def test_a_table_keeps_its_tombstones_from_the_mapper() -> None:
    builder = StreamsBuilder("app")
    rows = builder.table("rows", key=serdes.text, value=serdes.int64)
    rows.map_values(lambda value: value + 1, value=serdes.int64).to_stream().to("out")
    assert outputs(builder.build(), ("rows", "a", 1, 0), ("rows", "a", None, 0)) == [
        ("a", 2, 0),
        ("a", None, 0),
    ]
