"""What a replay leaves beside its position tells the next one which letters were
written.
"""

from __future__ import annotations

import pytest

from coopstreams.admin.replay_metadata import (
    Turn,
    Wanted,
    continued,
    is_passed,
    metadata_of,
    turns_of,
    was_wanted,
)
from coopstreams.commit.group_progress import OffsetAndRanges
from coopstreams.commit.record import Segment
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash


def test_turns_are_read_as_they_were_written() -> None:
    turns = (Turn(Wanted(), 0), Turn(Wanted("a", "processing"), 7))
    assert turns_of(metadata_of(turns)) == turns


@pytest.mark.parametrize("text", ["", "somebody's", "7", "[7]", '[["a", null]]', "{"])
def test_metadata_of_others_has_no_turns(text: str) -> None:
    assert turns_of(text) == ()


def test_a_replay_that_wants_other_letters_begins_a_turn_where_it_goes_on() -> None:
    first = continued(None, Wanted("a"))
    assert first == (Turn(Wanted("a"), 0),)
    stands = OffsetAndRanges(5, metadata_of(first))
    assert continued(stands, Wanted("a")) == first
    turns = continued(stands, Wanted("b"))
    assert turns == (*first, Turn(Wanted("b"), 5))
    assert [was_wanted(turns, offset, {"node": "a"}) for offset in (4, 5)] == [
        True,
        False,
    ]


def test_a_letter_is_passed_if_its_key_range_has_passed_it() -> None:
    at = key_hash(b"k")
    own, rest = (
        Segment(KeyRange(at, at), 3, runs=((5, 6),)),
        [KeyRange(0, at - 1), KeyRange(at + 1, WHOLE.end)],
    )
    stands = OffsetAndRanges(3, "", (), (own, *(Segment(one, 9) for one in rest)))
    assert [is_passed(stands, b"k", offset) for offset in range(2, 8)] == [
        True,
        False,
        False,
        True,
        True,
        False,
    ]
    assert is_passed(stands, b"another", 8)
