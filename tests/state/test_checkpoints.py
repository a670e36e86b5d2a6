from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.state.checkpoints import NOTHING_OBSERVED, Checkpoint, Checkpoints
from coopstreams.topology.errors import StateCorruptError
from coopstreams.topology.keys import GROUPS, KeyGroups

GROUP = st.integers(0, GROUPS - 1)
RUN = st.tuples(GROUP, GROUP).map(lambda ends: KeyGroups(*sorted(ends)))
PUTS = st.lists(
    st.tuples(RUN, st.integers(0, 5), st.integers(-1, 2), st.booleans()), max_size=12
)


def played(
    puts: list[tuple[KeyGroups, int, int, bool]],
) -> tuple[Checkpoints, dict[int, tuple[int, int]]]:
    """Put or remove runs, in the value and in a dict from group to (offset, observed)."""
    checkpoints, model = Checkpoints(), dict[int, tuple[int, int]]()
    for groups, offset, observed, keep in puts:
        if keep:
            checkpoints = checkpoints.put([Checkpoint(*groups, offset, observed, 1)])
            model |= dict.fromkeys(groups.numbers, (offset, observed))
        else:
            checkpoints = checkpoints.without(groups)
            model = {
                group: known
                for group, known in model.items()
                if group not in groups.numbers
            }
    return checkpoints, model


@given(PUTS)
def test_every_group_stands_where_it_was_put_last(
    puts: list[tuple[KeyGroups, int, int, bool]],
) -> None:
    checkpoints, model = played(puts)
    at = {
        group: found
        for group, found in enumerate(checkpoints.by_group())
        if found is not None
    }
    assert {
        group: (found.offset, found.observed) for group, found in at.items()
    } == model


@given(PUTS)
def test_runs_are_ascending_disjoint_and_as_few_as_possible(
    puts: list[tuple[KeyGroups, int, int, bool]],
) -> None:
    runs = played(puts)[0].put([]).runs
    for one, two in pairwise(runs):
        assert one.last < two.first
        assert one.last + 1 < two.first or (one.offset, one.observed) != (
            two.offset,
            two.observed,
        )


@given(PUTS, RUN)
def test_a_range_is_restored_from_its_smallest_offset_and_from_the_start_if_a_group_has_none(
    puts: list[tuple[KeyGroups, int, int, bool]], groups: KeyGroups
) -> None:
    checkpoints, model = played(puts)
    known = [model[group] for group in groups.numbers if group in model]
    assert checkpoints.offset(groups) == (
        min(known)[0] if len(known) == len(groups.numbers) else None
    )
    assert checkpoints.observed(groups) == min(
        (observed for _, observed in known), default=NOTHING_OBSERVED
    )


@given(PUTS)
def test_checkpoints_come_back_from_their_bytes(
    puts: list[tuple[KeyGroups, int, int, bool]],
) -> None:
    checkpoints, _ = played(puts)
    assert Checkpoints.decode(checkpoints.encode()) == checkpoints


def test_a_task_that_opens_another_range_leaves_what_is_outside_alone() -> None:
    before = Checkpoints().put([Checkpoint(0, 127, 100), Checkpoint(128, 255, 90)])
    after = before.put([Checkpoint(64, 191, 120)])
    assert [(run.first, run.last, run.offset) for run in after] == [
        (0, 63, 100),
        (64, 191, 120),
        (192, 255, 90),
    ]


@pytest.mark.parametrize(
    "data",
    [b"abc", Checkpoints((Checkpoint(0, 255, 5, topic_id="id-1"),)).encode()[:-1]],
)
def test_bytes_that_are_no_checkpoints_are_reported(data: bytes) -> None:
    with pytest.raises(StateCorruptError, match="delete the folder"):
        Checkpoints.decode(data)
