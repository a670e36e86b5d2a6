from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.commit.offset_runs import (
    Runs,
    above,
    advance,
    common,
    contains,
    merge,
    normalise,
    runs_of,
)

offsets = st.integers(0, 60)
pairs = st.lists(
    st.tuples(offsets, st.integers(0, 6)).map(
        lambda pair: (pair[0], pair[0] + pair[1])
    ),
    max_size=12,
)


def members(runs: Runs) -> set[int]:
    return {offset for start, end in runs for offset in range(start, end + 1)}


def is_normal(runs: Runs) -> bool:
    return all(start <= end for start, end in runs) and all(
        a[1] + 1 < b[0] for a, b in pairwise(runs)
    )


@given(pairs)
def test_normalising_keeps_the_offsets_and_joins_neighbours(
    some: list[tuple[int, int]],
) -> None:
    runs = normalise(some)
    assert is_normal(runs)
    assert members(runs) == members(tuple(some))


@given(st.sets(offsets))
def test_offsets_become_runs(some: set[int]) -> None:
    assert runs_of(some) == normalise((offset, offset) for offset in some)


@given(pairs, pairs)
def test_merging_is_union(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    merged = merge(normalise(left), normalise(right))
    assert is_normal(merged)
    assert members(merged) == members(tuple(left)) | members(tuple(right))


@given(pairs, pairs)
def test_what_is_common_is_the_intersection(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    both = common(normalise(left), normalise(right))
    assert is_normal(both)
    assert members(both) == members(tuple(left)) & members(tuple(right))


@given(pairs, offsets)
def test_above_cuts_at_the_position(some: list[tuple[int, int]], position: int) -> None:
    kept = above(normalise(some), position)
    assert is_normal(kept)
    assert members(kept) == {
        offset for offset in members(tuple(some)) if offset >= position
    }


@given(pairs, offsets)
def test_a_position_advances_to_the_first_offset_that_is_not_done(
    some: list[tuple[int, int]], position: int
) -> None:
    done = members(tuple(some))
    reached, rest = advance(position, normalise(some))
    assert reached == next(
        offset for offset in range(position, 200) if offset not in done
    )
    assert members(rest) == {offset for offset in done if offset > reached}


@given(pairs, offsets)
def test_contains_is_membership(some: list[tuple[int, int]], offset: int) -> None:
    assert contains(normalise(some), offset) == (offset in members(tuple(some)))


def test_a_run_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[5, 4\] ends before it starts"):
        normalise([(5, 4)])
