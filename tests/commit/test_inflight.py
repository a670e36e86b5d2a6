"""Records of one key range in flight: the proposal's examples, and the content of
commits.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.commit.inflight import InFlight
from coopstreams.commit.offset_runs import Runs
from coopstreams.commit.record import CommitValue, Segment, encode_value
from coopstreams.log.log import Position
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash

LEFT, RIGHT = KeyRange.split(2)


def standing(position: int, *runs: tuple[int, int], most: int = 100) -> InFlight:
    return InFlight([Segment(WHOLE, position, runs=runs)], most)


def fetched(inflight: InFlight, first: int, last: int) -> list[int]:
    offsets = list(range(first, last + 1))
    return [
        offsets[i] for i in inflight.hand_out([b"k"] * len(offsets), offsets, last + 1)
    ]


def stand(inflight: InFlight) -> tuple[int, Runs]:
    (segment,) = inflight.segments()
    return segment.position, segment.runs


def test_gaps_are_amended_as_in_the_proposal() -> None:
    # "stable: 40, IC: [43-45], [48-49], fetched range: [40-50]": 40 is the last done
    # offset there, 41 the position here.
    inflight = standing(41, (43, 45), (48, 49))
    given_out = fetched(inflight, 40, 50)
    assert given_out == [41, 42, 46, 47, 50]
    for offset in given_out:
        assert inflight.done(offset)
    assert inflight.news() == ((41, 42), (46, 47), (50, 50))
    assert stand(inflight) == (51, ())


def test_neighbours_are_joined_as_in_the_proposal() -> None:
    # Stable 42, [45,47] and [50,50] are committed; [48,49] joins them into [45,50].
    inflight = standing(43, (45, 47), (50, 50))
    assert fetched(inflight, 43, 50) == [43, 44, 48, 49]
    inflight.done(48)
    inflight.done(49)
    assert stand(inflight) == (43, ((45, 50),))


def test_the_position_swallows_what_it_reaches_as_in_the_proposal() -> None:
    # Stable 42, [45,47] is committed; [43,44] moves the stable offset to 47 (the
    # position to 48) and [45,47] is gone.
    inflight = standing(43, (45, 47), (50, 50))
    fetched(inflight, 43, 50)
    inflight.done(44)
    inflight.done(43)
    assert stand(inflight) == (48, ((50, 50),))


def test_offsets_of_other_key_ranges_do_not_break_runs() -> None:
    inflight = InFlight([Segment(LEFT, 0)], 100)
    mine = [offset for offset in range(100) if key_hash(b"%d" % offset) in LEFT]
    inflight.hand_out([b"%d" % offset for offset in mine], mine, 100)
    for offset in mine[1:]:
        inflight.done(offset)
    assert inflight.segments() == (Segment(LEFT, mine[0], runs=((mine[0] + 1, 99),)),)


def test_after_a_merge_each_part_goes_on_from_where_it_stands() -> None:
    inflight = InFlight([Segment(LEFT, 10), Segment(RIGHT, 4)], 100)
    keys = [b"%d" % offset for offset in range(12)]
    picked = inflight.hand_out(keys, range(12), 12)
    assert picked == [
        offset
        for offset in range(12)
        if offset >= (10 if key_hash(keys[offset]) in LEFT else 4)
    ]


def test_a_part_that_was_ahead_stays_where_its_time_is_known() -> None:
    """Records 10 and 11 are not of the left part. The time after them is unknown until
    record 4 has passed.
    """
    inflight = InFlight([Segment(LEFT, 10, 300), Segment(RIGHT, 4, 100)], 100)
    left, right = (
        next(key for i in range(100) if key_hash(key := b"%d" % i) in part)
        for part in (LEFT, RIGHT)
    )
    inflight.hand_out([right, right, left], [4, 11, 12], 13)
    inflight.done(11)
    assert inflight.segments(Position(4, 200)) == (
        Segment(LEFT, 10, 300, ((10, 11),)),
        Segment(RIGHT, 4, 100, ((5, 12),)),
    )
    inflight.done(4)
    assert inflight.segments(Position(12, 400)) == (Segment(WHOLE, 12, 400),)


def test_times_advance_while_the_position_stays() -> None:
    """The flush of a record cache advances the time of operators below it, after all
    records have passed.
    """
    inflight = InFlight([Segment(WHOLE, 0)], 100)
    inflight.hand_out([b"k"], [0], 1)
    inflight.done(0)
    assert inflight.segments(Position(1, 100), ((7, 50),)) == (
        Segment(WHOLE, 1, 100, (), ((7, 50),)),
    )
    assert inflight.segments(Position(1, 100), ((7, 80),)) == (
        Segment(WHOLE, 1, 100, (), ((7, 80),)),
    )


def test_what_was_found_is_forgotten_once_all_of_it_has_passed_although_there_is_always_a_record_in_flight() -> (
    None
):
    odd = tuple((offset, offset) for offset in range(1, 100, 2))
    inflight = InFlight([Segment(LEFT, 0, 300, odd), Segment(RIGHT, 50, 100)], 100)
    for offset in range(200):
        fetched(inflight, offset, offset)
        inflight.done(offset - 1)
    assert inflight.segments() == (Segment(WHOLE, 199, 300),)
    assert not any(found.runs for found in inflight._found), (
        "each later record is looked for in them"
    )


def test_a_task_stays_where_its_program_has_come_to() -> None:
    """The program has to process a record of another source first, so the times after
    the done records are unknown.
    """
    inflight = InFlight([Segment(LEFT, 4, 100)], 100)
    left = next(key for i in range(100) if key_hash(key := b"%d" % i) in LEFT)
    inflight.hand_out([left, left], [6, 9], 10)
    inflight.done(6)
    assert inflight.segments(Position(5, 200)) == (Segment(LEFT, 5, 200, ((5, 8),)),)
    assert inflight.segments() == (Segment(LEFT, 9, 100),)


def test_what_was_committed_by_name_is_not_handed_out() -> None:
    inflight = standing(0)
    inflight.done_by_name(((3, 5),))
    assert stand(inflight) == (0, ((3, 5),))
    assert fetched(inflight, 0, 7) == [0, 1, 2, 6, 7]


def test_a_million_finished_records_behind_a_slow_one_are_one_run() -> None:
    inflight = standing(0, most=2_000_000)
    fetched(inflight, 0, 999_999)
    for offset in range(1, 1_000_000):
        inflight.done(offset)
    assert stand(inflight) == (0, ((1, 999_999),))


def test_too_much_in_flight_blocks_until_half_of_it_is_done() -> None:
    inflight = standing(0, most=10)
    fetched(inflight, 0, 8)
    assert not inflight.blocked()
    fetched(inflight, 9, 9)
    assert inflight.blocked()
    for offset in range(5):
        inflight.done(offset)
        assert inflight.blocked()
    inflight.done(5)
    assert not inflight.blocked()


def test_a_commit_of_what_is_out_is_taken_however_much_is_held() -> None:
    inflight = standing(0, most=3)
    inflight.done_by_name(((9, 9),))
    assert fetched(inflight, 0, 2) == [0, 1, 2]
    fetched(inflight, 3, 4)
    inflight.done_by_name(((0, 0),))
    assert inflight.missing == 4


def test_more_named_runs_than_may_be_held_are_refused_and_nothing_is_noted() -> None:
    inflight = standing(0, most=3)
    with pytest.raises(OverflowError, match="4 runs"):
        inflight.done_by_name(((1, 1), (3, 3), (5, 5), (7, 7)))
    assert stand(inflight) == (0, ())


def test_a_prefix_beyond_all_that_is_out_may_be_named_however_much_that_is() -> None:
    inflight = standing(0, most=3)
    fetched(inflight, 0, 2)
    inflight.done_by_name(((0, 9),))
    assert stand(inflight) == (10, ())


def test_a_seek_back_hands_out_again_and_takes_nothing_back() -> None:
    inflight = standing(0)
    fetched(inflight, 0, 5)
    for offset in (0, 1, 3):
        inflight.done(offset)
    inflight.seek(1)
    assert fetched(inflight, 1, 7) == [1, 2, 3, 4, 5, 6, 7]
    assert not inflight.done(1)
    assert stand(inflight) == (2, ((3, 3),))


def test_a_seek_forward_counts_what_it_skips_as_done() -> None:
    inflight = standing(0)
    fetched(inflight, 0, 2)
    inflight.seek(10)
    assert fetched(inflight, 3, 11) == [10, 11]
    for offset in (0, 1, 2, 10):
        inflight.done(offset)
    assert stand(inflight) == (11, ())


@given(st.lists(st.integers(0, 199), unique=True), st.integers(0, 50))
def test_news_are_counted_as_ranges(done: list[int], most: int) -> None:
    inflight = standing(0, most=1000)
    fetched(inflight, 0, 199)
    for offset in done:
        inflight.done(offset)
    ranges = sum(offset - 1 not in done for offset in done)
    assert inflight.many_news(most) == (ranges > most)
    assert len(inflight.news()) == ranges


def test_records_that_are_done_in_order_are_a_position_without_runs() -> None:
    """Between them are transaction markers, or records of other key ranges."""
    inflight = InFlight([Segment(WHOLE, 0)], 100, in_order=True)
    inflight.hand_out([b"a", b"b"], [10, 12], 13)
    assert inflight.segments(Position(10, 5)) == (Segment(WHOLE, 10, 5),)
    inflight.done(10)
    assert inflight.segments(Position(11, 6)) == (Segment(WHOLE, 11, 6),)
    inflight.done(12)
    assert inflight.segments(Position(13, 7)) == (Segment(WHOLE, 13, 7),)


def test_what_an_earlier_owner_did_out_of_order_stays_done() -> None:
    inflight = InFlight(
        [Segment(WHOLE, 0, runs=((4, 4), (20, 20)))], 100, in_order=True
    )
    offsets = [2, 4, 10, 12]
    assert inflight.hand_out([b"k"] * 4, offsets, 13) == [0, 2, 3]
    inflight.done(2)
    (segment,) = inflight.segments(Position(3, 5))
    assert (segment.position, segment.runs) == (3, ((4, 4), (20, 20)))
    inflight.done(10)
    (segment,) = inflight.segments(Position(11, 6))
    assert (segment.position, segment.runs) == (11, ((20, 20),))


def test_many_parts_with_many_records_that_wait_are_a_small_commit() -> None:
    """A missing record breaks the runs of its own part: 64 times 10,000 runs did not
    fit a record of Kafka.
    """
    parts = KeyRange.split(64)
    found = [Segment(part, number * 100) for number, part in enumerate(parts)]
    inflight = InFlight(found, 10_000)
    keys = [b"%d" % offset for offset in range(30_000)]
    out = inflight.hand_out(keys, range(30_000), 30_000)
    for offset in out:
        if offset % 3:
            inflight.done(offset)
    assert inflight.missing > 8_000
    segments = inflight.segments(Position(0, 5))
    assert sum(len(segment.runs) for segment in segments) <= inflight.missing + 64
    for offset in out:
        part = next(
            each for each in segments if key_hash(keys[offset]) in each.key_range
        )
        assert part.has_done(offset) == bool(offset % 3)
    value = encode_value(CommitValue("id", segments))
    assert len(value) < 100_000
