"""`reduce`: the first value is kept, later ones are combined with it."""

from typing import Any

import pytest


def test_the_reducer_is_not_called_for_the_first_value(flow: Any) -> None:
    def joined(aggregate: str, value: str) -> str:
        assert aggregate
        return aggregate + value

    assert flow(
        lambda stream: stream.group_by_key().reduce(joined),
        ("a", "x", 3),
        ("b", "y", 4),
        ("a", "z", 1),
    ) == [
        ("a", "x", 3),
        ("b", "y", 4),
        ("a", "xz", 3),
    ]


@pytest.mark.parametrize("caching", [False, True])
def test_a_row_reduced_to_none_is_deleted_and_begins_anew(
    flow: Any, caching: bool
) -> None:
    def total(aggregate: int, value: int) -> int | None:
        return aggregate + value or None

    out = flow(
        lambda stream: stream.group_by_key().reduce(total),
        ("a", 2, 9),
        ("a", -2, 1),
        ("a", 5, 4),
        caching=caching,
    )
    assert out == (
        [("a", 5, 4)] if caching else [("a", 2, 9), ("a", None, 9), ("a", 5, 4)]
    )


def test_null_values_are_not_reduced(flow: Any) -> None:
    assert flow(
        lambda stream: stream.group_by_key().reduce(max), ("a", 2, 0), ("a", None, 1)
    ) == [("a", 2, 0)]
