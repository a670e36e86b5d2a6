"""Stream-table joins: each stream record is joined with the current row of its key."""

from typing import Any

import pytest

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from tests.topology.operators.results import outputs

Event = tuple[str, str | None, Any]


def joined(
    *events: Event, left: bool = False, ranges: int = 1, view: Any = lambda table: table
) -> list[tuple[str | None, Any, int]]:
    """Return the outputs of a join after these events: (topic, key, value), each a
    millisecond after the one before.
    """
    builder = StreamsBuilder("app")
    orders = builder.stream("orders", key=serdes.text, value=serdes.json)
    names = view(builder.table("names", key=serdes.text, value=serdes.json))

    def pair(order: Any, name: Any) -> list[Any]:
        return [order, name]

    (orders.left_join if left else orders.join)(names, pair, value=serdes.json).to(
        "out"
    )
    return outputs(
        builder.build(),
        *((*event, at) for at, event in enumerate(events)),
        ranges=ranges,
    )


@pytest.mark.parametrize("ranges", [1, 4])
def test_an_inner_join_drops_what_has_no_row_and_never_fires_on_the_table(
    ranges: int,
) -> None:
    out = joined(
        ("orders", "a", 1),
        ("names", "a", "Ann"),
        ("orders", "a", 2),
        ("names", "a", "Anna"),
        ("orders", "b", 3),
        ranges=ranges,
    )
    assert out == [("a", [2, "Ann"], 2)]


def test_a_left_join_has_none_where_there_is_no_row() -> None:
    out = joined(
        ("orders", "a", 1),
        ("names", "a", "Ann"),
        ("orders", "a", 2),
        ("names", "a", None),
        ("orders", "a", 3),
        left=True,
    )
    assert out == [("a", [1, None], 0), ("a", [2, "Ann"], 2), ("a", [3, None], 4)]


def test_the_output_has_the_timestamp_of_the_stream_record_even_if_the_row_is_newer() -> (
    None
):
    assert joined(("names", "a", "Ann"), ("orders", "a", 1))[0][2] == 1


def test_records_without_value_are_dropped_by_both_joins() -> None:
    events: list[Event] = [("names", "a", "Ann"), ("orders", "a", None)]
    assert joined(*events) == []
    assert joined(*events, left=True) == []


def test_records_without_key_are_dropped_by_an_inner_and_unmatched_in_a_left_join() -> (
    None
):
    assert joined(("orders", None, 1)) == []
    assert joined(("orders", None, 1), left=True) == [(None, [1, None], 0)]


def test_a_table_may_be_a_filtered_and_mapped_view() -> None:
    def view(table: Any) -> Any:
        return table.filter(lambda key, name: key != "b" and name != "Bob").map_values(
            str.upper, value=serdes.json
        )

    events: list[Event] = [
        ("names", "a", "Ann"),
        ("names", "b", "Bea"),
        ("names", "c", "Bob"),
    ]
    events += [("orders", key, 1) for key in "abcd"]
    assert joined(*events, left=True, view=view) == [
        ("a", [1, "ANN"], 3),
        ("b", [1, None], 4),
        ("c", [1, None], 5),
        ("d", [1, None], 6),
    ]


def test_an_aggregate_may_be_the_table() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.int64)
    totals = stream.group_by_key().reduce(
        lambda total, value: total + value, store="totals"
    )
    stream.join(totals, lambda value, total: value / total, value=serdes.json).to("out")
    with TopologyTestDriver(builder.build(), caching=True) as driver:
        for value in (1, 3, 4):
            driver.input("in", serdes.text, serdes.int64).send("a", value)
        assert [record.value for record in driver.outputs()] == [1.0, 0.75, 0.5]


def test_the_joiner_may_see_the_key() -> None:
    builder = StreamsBuilder("app")
    names = builder.table("names", key=serdes.text, value=serdes.text)
    orders = builder.stream("orders", key=serdes.text, value=serdes.text)
    orders.join_with_key(
        names, lambda key, order, name: f"{key}:{order}:{name}", value=serdes.text
    ).to("out")
    assert outputs(
        builder.build(), ("names", "a", "Ann", 0), ("orders", "a", "tea", 0)
    ) == [("a", "a:tea:Ann", 0)]
