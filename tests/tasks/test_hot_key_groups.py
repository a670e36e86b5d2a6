"""Hot key groups: found by samples, forgotten after a while."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.tasks.hot_key_groups import EVERY, HALF_LIFE_S, MOST, Heat
from coopstreams.topology.keys import GROUPS, key_group, key_hash

COLD = [b"key-%d" % number for number in range(5000)]
HOT = b"hot"
GROUP = key_group(key_hash(HOT))


def test_keys_that_are_alike_make_no_group_hot() -> None:
    heat = Heat(GROUPS)
    for second in range(20):
        heat.look(COLD, float(second))
    assert heat.hot() == ()


def test_a_key_with_a_third_of_the_records_makes_its_group_hot() -> None:
    heat = Heat(GROUPS)
    for second in range(20):
        heat.look(
            [key for cold in COLD for key in (cold, HOT, cold)][: len(COLD)],
            float(second),
        )
    [(group, share)] = heat.hot()
    assert group == GROUP
    assert share == pytest.approx(1 / 3, abs=0.05)


def test_a_group_cools_down() -> None:
    heat = Heat(GROUPS)
    heat.look([HOT] * 10_000, 0.0)
    assert heat.hot()[0][0] == GROUP
    for second in range(int(6 * HALF_LIFE_S)):
        heat.look(COLD, float(second))
    assert heat.hot() == ()


def test_a_year_of_samples_neither_overflows_nor_changes_the_answer() -> None:
    heat = Heat(GROUPS)
    for day in range(365):
        heat.look([HOT] * 2000, 86_400.0 * day)
    [(group, share)] = heat.hot()
    assert group == GROUP
    assert share == pytest.approx(1.0)


def test_few_samples_and_records_without_a_key_make_no_group_hot() -> None:
    heat = Heat(GROUPS)
    heat.look([HOT] * (7 * EVERY), 0.0)
    heat.look([None] * 10_000, 1.0)
    assert heat.hot() == ()


@given(st.lists(st.integers(0, 300), max_size=30))
def test_samples_do_not_depend_on_how_records_are_cut_into_batches(
    lengths: list[int],
) -> None:
    keys = [
        HOT if number % 2 else COLD[number % 5000] for number in range(sum(lengths))
    ]
    whole, cut = Heat(GROUPS), Heat(GROUPS)
    whole.look(keys, 0.0)
    at = 0
    for length in lengths:
        cut.look(keys[at : at + length], 0.0)
        at += length
    assert whole.hot() == cut.hot()
    assert len(cut.hot()) <= MOST
