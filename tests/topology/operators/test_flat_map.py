"""`flat_map`, `flat_map_values`: any number of records for one."""

from collections.abc import Iterator
from typing import Any

from coopstreams.topology import serdes


def test_each_value_becomes_any_number_of_values(flow: Any) -> None:
    out = flow(
        lambda stream: stream.flat_map_values(str.split, value=serdes.json),
        ("a", "to be or", 4),
        ("b", "", 5),
        ("c", "not", 6),
    )
    assert out == [("a", "to", 4), ("a", "be", 4), ("a", "or", 4), ("c", "not", 6)]


def test_the_mapper_of_values_may_see_the_key(flow: Any) -> None:
    out = flow(
        lambda stream: stream.flat_map_values_with_key(
            lambda key, value: [key, value], value=serdes.json
        ),
        ("a", "x", 1),
    )
    assert out == [("a", "a", 1), ("a", "x", 1)]


def test_a_generator_will_do(flow: Any) -> None:
    def countdown(value: int) -> Iterator[int]:
        while value:
            yield value
            value -= 1

    assert flow(
        lambda stream: stream.flat_map_values(countdown, value=serdes.json), ("a", 3, 0)
    ) == [
        ("a", 3, 0),
        ("a", 2, 0),
        ("a", 1, 0),
    ]


def test_each_record_becomes_any_number_of_pairs(flow: Any) -> None:
    out = flow(
        lambda stream: stream.flat_map(
            lambda key, value: {key: value, key * 2: value + 1}.items(),
            key=serdes.text,
            value=serdes.json,
        ),
        ("a", 1, 9),
    )
    assert out == [("a", 1, 9), ("aa", 2, 9)]


def test_flat_maps_nest_as_deep_as_anybody_likes(flow: Any) -> None:
    def write(stream: Any) -> Any:
        for _ in range(30):
            stream = stream.flat_map_values(
                lambda value: [value + 1], value=serdes.json
            )
        return stream.flat_map_values(lambda value: [value, value], value=serdes.json)

    assert flow(write, ("a", 0, 0)) == [("a", 30, 0), ("a", 30, 0)]


def test_one_of_several_children_may_be_a_flat_map_that_nobody_listens_to(
    flow: Any,
) -> None:
    def write(stream: Any) -> Any:
        stream.flat_map(lambda _, value: [("x", value)])
        stream.flat_map_values(lambda value: [value, value])
        return stream.filter(lambda _, value: value > 1)

    assert flow(write, ("a", 1, 0), ("a", 2, 1)) == [("a", 2, 1)]
