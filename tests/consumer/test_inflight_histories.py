"""Any interleaving of commits, torn commits, restarts and new cuts: complete <= covered
<= processed.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.consumer.history import Group


@pytest.mark.ci
@given(st.randoms(use_true_random=False), st.booleans())
def test_no_complete_commit_is_lost_and_nothing_is_covered_that_was_not_processed(
    dice: Random, alone: bool
) -> None:
    live(dice, alone)


@pytest.mark.slow
@settings(
    max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(st.integers(0, 2**64), st.booleans())
def test_ten_thousand_histories(seed: int, alone: bool) -> None:
    live(Random(seed), alone)


def live(dice: Random, alone: bool) -> None:
    group = Group(dice, alone=alone)
    for _ in range(40):
        group.step()
