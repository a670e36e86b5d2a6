"""Reports of a group: key ranges with owners and progress, divided where owners or
commits differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.admin.group_description import (
    GroupReport,
    MemberReport,
    OwnedRange,
    PartitionReport,
    owned_ranges,
)
from coopstreams.commands.group import partitions_table
from coopstreams.commit.group_progress import OffsetAndRanges
from coopstreams.commit.record import Segment
from coopstreams.group.members import MemberInfo, MemberState, Runs
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import WHOLE, KeyRange, check_tiling

LEFT, RIGHT = KeyRange.split(2)


def test_a_range_that_changed_hands_shows_what_was_committed_of_its_parts() -> None:
    committed = OffsetAndRanges(
        40, key_ranges=(Segment(LEFT, 50, runs=((55, 59),)), Segment(RIGHT, 40))
    )
    assert owned_ranges(committed, [(WHOLE, "a")]) == [
        OwnedRange(LEFT, 50, ((55, 59),), "a"),
        OwnedRange(RIGHT, 40, (), "a"),
    ]
    assert owned_ranges(committed, [(RIGHT, "b")]) == [
        OwnedRange(LEFT, 50, ((55, 59),), None),
        OwnedRange(RIGHT, 40, (), "b"),
    ]


def test_a_range_that_has_committed_nothing_has_an_owner_and_no_offset() -> None:
    assert owned_ranges(None, [(LEFT, "a")]) == [
        OwnedRange(LEFT, None, (), "a"),
        OwnedRange(RIGHT, None, (), None),
    ]


@pytest.mark.parametrize(("topology", "shown"), [((Runs("f", 1),), False), ((), True)])
def test_only_key_ranges_of_consumers_have_a_column_for_their_owners(
    topology: tuple[Runs, ...], shown: bool
) -> None:
    member = MemberReport("m", "host", MemberState(MemberInfo("p", topology=topology)))
    rows = owned_ranges(OffsetAndRanges(7, key_ranges=(Segment(WHOLE, 7),)), [])
    partition = PartitionReport(
        TopicPartition("orders", 0), OffsetAndRanges(7), 7, tuple(rows)
    )
    table = partitions_table(GroupReport("Stable", (member,), (partition,)))
    assert ("member" in [column.header for column in table.columns]) == shown


cuts = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@given(cuts, cuts)
def test_what_is_told_tiles_the_hash_space_and_agrees_with_both_sides(
    positions: Sequence[int], owners: Sequence[int]
) -> None:
    segments = tuple(
        Segment(key_range, at)
        for key_range, at in zip(KeyRange.split(len(positions)), positions, strict=True)
    )
    owned = [
        (key_range, f"m{who}")
        for key_range, who in zip(KeyRange.split(len(owners)), owners, strict=True)
        if who
    ]
    rows = owned_ranges(OffsetAndRanges(min(positions), key_ranges=segments), owned)
    check_tiling([row.key_range for row in rows], "told")
    for row in rows:
        assert [
            segment.position
            for segment in segments
            if segment.key_range.covers(row.key_range)
        ] == [row.offset]
        assert [
            member for key_range, member in owned if key_range.covers(row.key_range)
        ] == ([row.member] if row.member else [])
