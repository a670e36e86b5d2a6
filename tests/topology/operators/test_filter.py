"""`filter` and `filter_not`: keep or drop a record; in a table, keep a row or turn it
into a tombstone.
"""

from typing import Any

from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from tests.topology.operators.results import outputs


def even(_: str, value: int | None) -> bool:
    return value is not None and value % 2 == 0


def test_a_filter_keeps_what_passes(flow: Any) -> None:
    assert flow(
        lambda stream: stream.filter(even), ("a", 1, 0), ("b", 2, 5), ("a", 4, 3)
    ) == [("b", 2, 5), ("a", 4, 3)]


def test_a_filter_not_keeps_what_does_not_pass(flow: Any) -> None:
    assert flow(lambda stream: stream.filter_not(even), ("a", 1, 0), ("b", 2, 5)) == [
        ("a", 1, 0)
    ]


def test_null_keys_and_values_go_through_the_predicate(flow: Any) -> None:
    assert flow(
        lambda stream: stream.filter(lambda key, value: key is None or value is None),
        (None, 1, 0),
        ("a", None, 1),
        ("a", 1, 2),
    ) == [
        (None, 1, 0),
        ("a", None, 1),
    ]


def table_filter(store: str | None, *values: int | None) -> list[int | None]:
    builder = StreamsBuilder("app")
    builder.table("rows", key=serdes.text, value=serdes.int64, store=store).filter(
        even
    ).to_stream().to("out")
    return [
        value
        for _, value, _ in outputs(
            builder.build(), *(("rows", "a", value, 0) for value in values)
        )
    ]


def test_a_row_that_stops_passing_becomes_a_tombstone() -> None:
    assert table_filter("kept", 2, 4, 5) == [2, 4, None]


def test_a_row_that_never_passed_is_no_news_where_the_row_before_is_known() -> None:
    assert table_filter("kept", 1, 3, None, 2) == [2]


def test_a_row_that_never_passed_is_a_tombstone_where_the_row_before_is_not_known() -> (
    None
):
    assert table_filter(None, 1, 3, None, 2) == [None, None, None, 2]


def test_the_row_before_is_known_below_a_mapper_and_another_filter() -> None:
    builder = StreamsBuilder("app")
    rows = builder.table("rows", key=serdes.text, value=serdes.int64, store="kept")
    rows.filter(even).map_values(lambda value: value + 1, value=serdes.int64).filter(
        lambda _, value: value > 10
    ).to_stream().to("out")
    found = outputs(
        builder.build(), *(("rows", "a", value, 0) for value in (2, 3, 10, 11, 4))
    )
    assert [value for _, value, _ in found] == [11, None]


def test_a_list_that_an_aggregator_changes_in_place_is_compared_with_what_it_was(
    flow: Any,
) -> None:
    def add(_: str, value: int, total: list[int]) -> list[int]:
        total.append(value)
        return total

    out = flow(
        lambda stream: (
            stream.group_by_key()
            .aggregate(list, add, value=serdes.json(list[int]))
            .filter(lambda _, values: len(values) == 2)
        ),
        *(("a", value, 0) for value in (7, 8, 9, 10)),
    )
    assert [value for _, value, _ in out] == [[7, 8], None]
