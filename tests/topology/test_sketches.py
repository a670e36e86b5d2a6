"""Summaries in little space: they depend on the values alone, and are as accurate as
they say.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.topology.sketches import (
    FEW,
    NOTHING,
    POWERS,
    Distinct,
    Spread,
    SpreadState,
    distinct_of,
    parts_for,
    spread_of,
    value_hash,
)

HASHES = st.lists(st.integers(0, (1 << 64) - 1), max_size=40)
NUMBERS = st.lists(
    st.one_of(st.integers(-(10**6), 10**6), st.floats(-1e9, 1e9)), max_size=60
)
NEAR = st.one_of(
    st.integers(-(10**6), 10**6), st.floats(1e-6, 1e9), st.floats(-1e9, -1e-6)
)
"""Numbers that are less than 10¹⁹ apart."""


def distinct(*hashes: int, start: Distinct = NOTHING) -> Distinct:
    for hash_ in hashes:
        start = start.add(hash_)
    return start


def many(count: int, first: int = 0) -> list[int]:
    return [value_hash(number) for number in range(first, first + count)]


def spread(numbers: list[Any], parts: int = 50) -> Spread:
    made = Spread(parts)
    for number in numbers:
        made.add(number)
    return made


def again(one: Spread) -> Spread:
    data = msgspec.msgpack.encode(one.state())
    return spread_of(msgspec.msgpack.decode(data, type=SpreadState), one.parts)


@settings(max_examples=60, deadline=None)
@given(
    HASHES,
    HASHES,
    st.sampled_from([[], many(250), many(300)]),
    st.sampled_from([[], many(250, 100), many(600, 100)]),
)
def test_distinct_values_depend_neither_on_order_nor_on_merges_nor_on_bytes(
    one: list[int], other: list[int], before: list[int], more: list[int]
) -> None:
    whole = distinct(*before, *one, *more, *other)
    assert distinct(*other, *more, *reversed(one), *before, *one) == whole
    merged = distinct(*before, *one).merge(distinct(*more, *other))
    assert merged == whole
    assert distinct_of(merged.state()) == whole
    stored = distinct_of(distinct(*before, *one).state())
    assert distinct(*more, *other, start=stored) == whole
    assert merged.estimate() == whole.estimate()
    if whole.few is None:
        assert sum(whole.of_value) == len(whole.registers)
        assert whole.of_value == distinct_of(whole.state()).of_value == merged.of_value


def test_up_to_256_distinct_values_are_counted_exactly() -> None:
    for count in 0, 1, 17, FEW:
        assert distinct(*many(count), *many(count)).estimate() == count


@pytest.mark.parametrize("count", [257, 400, 1000, 3000, 10_000, 50_000])
def test_more_distinct_values_are_estimated(count: int) -> None:
    errors = [
        distinct(*many(count, first)).estimate() / count - 1.0
        for first in (0, 10**6, 2 * 10**6)
    ]
    assert max(map(abs, errors)) < 0.06  # the standard error is 1.6 %


def test_values_that_are_equal_in_json_are_one() -> None:
    assert value_hash(1) == value_hash(1.0)
    assert value_hash({"a": 1, "b": 2}) == value_hash({"b": 2, "a": 1})
    others = [1, 1.5, "1", True, None, [1], (1, 2), b"1", "", 2**63]
    assert len({value_hash(each) for each in others}) == len(others)
    with pytest.raises(TypeError):
        value_hash(object())


@pytest.mark.parametrize(
    "state",
    [
        b"1234567",
        b"\xff" * 4097,
        b"\0" * 4096 + b"\1",
        b"".join(number.to_bytes(8, "big") for number in range(257)),
    ],
)
def test_what_is_no_state_of_distinct_values_is_refused(state: bytes) -> None:
    with pytest.raises(Exception, match=r"registers|buffer|many"):
        distinct_of(state)


@settings(max_examples=60, deadline=None)
@given(NUMBERS, NUMBERS)
def test_counts_depend_neither_on_order_nor_on_merges_nor_on_bytes(
    one: list[Any], other: list[Any]
) -> None:
    whole = spread(one + other)
    assert spread(other + one) == whole
    assert spread(one).merged(spread(other)) == whole
    stored = again(spread(one))
    for number in other:
        stored.add(number)
    assert stored == whole == again(whole)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(NEAR, max_size=60),
    st.lists(NEAR, max_size=60),
    st.floats(0, 1),
)
def test_numbers_that_are_taken_out_again_leave_the_same_quantiles(
    kept: list[Any], others: list[Any], share: float
) -> None:
    both = spread(kept + others)
    for number in others:
        both.subtract(number)
    assert both.quantiles([share]) == spread(kept).quantiles([share])


@settings(max_examples=80, deadline=None)
@given(
    st.lists(NEAR, min_size=1, max_size=60),
    st.floats(0, 1),
    st.sampled_from([0.001, 0.01, 0.1]),
)
def test_a_quantile_is_as_accurate_as_it_says(
    numbers: list[float], share: float, accuracy: float
) -> None:
    found = spread(numbers, parts_for(accuracy)).quantiles([share])
    assert found is not None
    exact = sorted(numbers)[max(0, math.ceil(share * len(numbers)) - 1)]
    assert found[0] == pytest.approx(exact, rel=accuracy * 1.000001, abs=0.0)


def test_no_numbers_have_no_quantile() -> None:
    assert Spread(50).quantiles([0.5]) is None
    emptied = spread([3])
    emptied.subtract(3)
    assert emptied.quantiles([0.5]) is None


@given(st.permutations([1e-300, 1e300, 5.0, 1e200, -1e-300, -7, 0, 5e-324]))
def test_numbers_too_far_below_the_largest_are_counted_together(
    numbers: list[float],
) -> None:
    made = spread(numbers)
    assert made == spread(sorted(numbers))
    assert len(made.positive) <= 50 * POWERS
    assert sum(made.positive) == 5
    largest = made.quantiles([1.0])
    assert largest is not None
    assert largest[0] == pytest.approx(1e300, rel=0.01)


@given(st.lists(st.floats(1e-9, 1e9), min_size=2, max_size=30))
def test_buckets_are_in_the_order_of_their_numbers(numbers: list[float]) -> None:
    made = Spread(50)
    ordered = [made._bucket(number) for number in sorted(numbers)]
    assert all(one <= other for one, other in pairwise(ordered))


def test_more_buckets_than_there_can_be_are_refused() -> None:
    with pytest.raises(ValueError, match="no counts of numbers"):
        spread_of((0, 0, [1] * (50 * POWERS + 1), 0, []), 50)
