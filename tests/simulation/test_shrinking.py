"""Shrinking a failing list."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tests.simulation.shrinking import shrunk


def test_what_is_needed_is_left_in_order_and_nothing_else() -> None:
    for seed in range(200):
        rng = Random(seed)
        needed = {rng.randrange(31) for _ in range(rng.randint(0, 5))}
        asked = 0

        def fails(items: Sequence[int], needed: set[int] = needed) -> bool:
            nonlocal asked
            asked += 1
            return needed <= set(items)

        assert shrunk(range(31), fails) == sorted(needed)
        assert asked < 31 * 10


def test_of_several_reasons_one_is_left() -> None:
    def fails(items: Sequence[int]) -> bool:
        return {3, 17} <= set(items) or {4, 5, 6} <= set(items) or 30 in items

    assert shrunk(range(31), fails) in ([3, 17], [4, 5, 6], [30])


def test_each_that_is_left_is_needed_whatever_else_is() -> None:
    def fails(
        items: Sequence[int],
    ) -> bool:  # a superset of a failing list need not fail
        return len(items) % 2 == 1 and 7 in items

    left = shrunk(range(31), fails)
    assert fails(left)
    assert not any(fails([item for item in left if item != each]) for each in left)
