"""The examples of the design note, with hashes as per cent of the hash space; and the
view against a naive model.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.commit import view as view_module
from coopstreams.commit.record import (
    Ahead,
    CommitKey,
    Committed,
    CommitValue,
    Segment,
    consumer_metadata,
    decode_key,
    encode_key,
    encode_value,
    topic_number,
)
from coopstreams.commit.view import CommitView, Hole, Winner, combine
from coopstreams.log.log import Position
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from coopstreams.topology.keys import MAX_HASH, WHOLE, KeyRange

AT = TopicPartition("orders", 0)
START = Position(0)
CENT = MAX_HASH // 100


def cents(first: int, last: int) -> KeyRange:
    return KeyRange(first * CENT, MAX_HASH if last == 99 else (last + 1) * CENT - 1)


LEFT, RIGHT = cents(0, 49), cents(50, 99)


def key(key_range: KeyRange, term: int, generation: int = 1, group: str = "g") -> bytes:
    return encode_key(CommitKey(group, *AT, key_range, term, generation))


def value(*segments: Segment) -> bytes:
    return encode_value(CommitValue("t", segments))


def say(
    view: CommitView, key_range: KeyRange, term: int, position: int, generation: int = 1
) -> None:
    view.apply(key(key_range, term, generation), value(Segment(key_range, position)))


def positions(
    view: CommitView, key_range: KeyRange = WHOLE, committed: Committed | None = None
) -> list[tuple[KeyRange, int]]:
    return [
        (segment.key_range, segment.position)
        for segment in view.open(AT, key_range, committed, START).segments
    ]


def tombstones(view: CommitView, *mine: KeyRange) -> list[tuple[KeyRange, int]]:
    return [
        (decoded.key_range, decoded.term)
        for decoded in map(decode_key, view.garbage(AT, mine))
    ]


def test_after_a_split_the_parent_speaks_for_the_child_that_never_committed() -> None:
    view = CommitView("g")
    say(view, WHOLE, 1, 100)
    assert view.open(AT, LEFT, None, START).term == 2
    say(view, LEFT, 2, 150)
    assert positions(view) == [(LEFT, 150), (RIGHT, 100)]
    assert tombstones(view, WHOLE) == []
    say(view, RIGHT, 2, 130)
    assert positions(view) == [(LEFT, 150), (RIGHT, 130)]
    assert tombstones(view, LEFT) == [(WHOLE, 1)]
    assert tombstones(view, RIGHT) == []
    view.apply(key(WHOLE, 1), None)
    assert tombstones(view, WHOLE) == [], "one that was written is not written again"
    assert positions(view) == [(LEFT, 150), (RIGHT, 130)]


def test_a_merge_inherits_segments_and_covers_the_old_records() -> None:
    view = CommitView("g")
    say(view, LEFT, 2, 150)
    say(view, RIGHT, 2, 130)
    opening = view.open(AT, WHOLE, None, START)
    assert (opening.term, [(s.key_range, s.position) for s in opening.segments]) == (
        3,
        [(LEFT, 150), (RIGHT, 130)],
    )
    view.apply(key(WHOLE, 3), value(Segment(LEFT, 150), Segment(RIGHT, 140)))
    assert positions(view) == [(LEFT, 150), (RIGHT, 140)]
    assert sorted(tombstones(view, WHOLE)) == [(LEFT, 2), (RIGHT, 2)]
    say(view, WHOLE, 3, 160)
    assert positions(view) == [(WHOLE, 160)]


def test_merging_back_to_old_boundaries_is_another_key_so_a_late_tombstone_hits_nothing() -> (
    None
):
    view = CommitView("g")
    say(view, WHOLE, 1, 100)
    say(view, LEFT, 2, 150)
    say(view, RIGHT, 2, 150)
    say(view, WHOLE, 3, 500)
    view.apply(key(WHOLE, 1), None)
    assert positions(view) == [(WHOLE, 500)]
    view.apply(key(WHOLE, 1), None)
    assert positions(view) == [(WHOLE, 500)]


def test_a_zombie_that_writes_late_under_an_old_term_changes_nothing() -> None:
    view = CommitView("g")
    say(view, LEFT, 2, 150)
    say(view, RIGHT, 2, 150)
    say(view, LEFT, 3, 150)
    say(view, LEFT, 2, 180)
    assert positions(view) == [(WHOLE, 150)]
    assert tombstones(view, WHOLE) == [(LEFT, 2)]


def test_of_two_openers_with_the_same_term_the_later_generation_speaks_however_late_the_other_claims() -> (
    None
):
    view = CommitView("g")
    say(view, LEFT, 3, 200, generation=8)
    say(view, WHOLE, 3, 150, generation=7)
    assert positions(view) == [(LEFT, 200), (RIGHT, 150)]
    say(view, LEFT, 3, 150, generation=7)
    assert positions(view) == [(LEFT, 200), (RIGHT, 150)]
    assert tombstones(view, WHOLE) == [(LEFT, 3)]


def test_a_split_of_a_whole_range_task_goes_on_from_the_plain_offset_not_from_old_records() -> (
    None
):
    view = CommitView("g")
    say(view, LEFT, 1, 150)
    say(view, RIGHT, 1, 130)
    plain = Committed(1000, 77, 2)
    opening = view.open(AT, LEFT, plain, START)
    assert (opening.term, opening.segments) == (3, (Segment(LEFT, 1000, 77),))
    say(view, LEFT, 3, 1100)
    assert positions(view, WHOLE, plain) == [(LEFT, 1100), (RIGHT, 1000)]
    assert view.mirror(AT, plain) == Committed(1000, 77, 2, 3), (
        "the other half rests upon it"
    )
    say(view, RIGHT, 3, 1050)
    assert view.mirror(AT, plain) == Committed(1050, -1, 2, 3)


def test_while_a_whole_range_task_has_segments_the_larger_of_its_record_and_its_plain_offset_counts() -> (
    None
):
    view = CommitView("g")
    say(view, LEFT, 1, 150)
    say(view, RIGHT, 1, 130)
    view.apply(key(WHOLE, 2), value(Segment(LEFT, 150), Segment(RIGHT, 140)))
    assert positions(view, WHOLE, Committed(140, term=2)) == [(LEFT, 150), (RIGHT, 140)]
    assert positions(view, WHOLE, Committed(160, term=2)) == [(WHOLE, 160)]


def test_a_zombies_position_that_leaked_into_the_mirror_does_not_count_for_a_claimed_range() -> (
    None
):
    view, plain = CommitView("g"), Committed(100, 5, 1)
    say(view, LEFT, 2, 200)
    say(view, RIGHT, 2, 180)  # the zombie, after its successor read 130
    leaked = view.mirror(AT, plain)
    assert leaked
    assert (leaked.offset, leaked.term) == (180, 1)
    say(view, RIGHT, 3, 130, generation=2)
    assert positions(view, RIGHT, leaked) == [(RIGHT, 130)]


def test_a_foreign_offset_counts_where_it_is_larger_and_is_mirrored_over_only_when_nothing_rests_upon_it() -> (
    None
):
    view, foreign = CommitView("g"), Committed(140)
    assert positions(view, LEFT, foreign) == [(LEFT, 140)]
    say(view, LEFT, 1, 150)
    assert positions(view, WHOLE, foreign) == [(LEFT, 150), (RIGHT, 140)]
    assert view.mirror(AT, foreign) is None
    say(view, RIGHT, 1, 130)
    assert positions(view, WHOLE, foreign) == [(LEFT, 150), (RIGHT, 140)]
    assert view.mirror(AT, foreign) is None
    say(view, RIGHT, 1, 145)
    assert view.mirror(AT, foreign) == Committed(145, -1, 0, 1)


def test_an_operators_reset_of_a_whole_range_application_is_obeyed_in_both_directions() -> (
    None
):
    for offset in (3, 5000):
        opening = CommitView("g").open(AT, WHOLE, Committed(offset), START)
        assert (opening.segments, opening.claim) == ((Segment(WHOLE, offset),), False)


def test_where_nobody_committed_the_reset_position_counts_and_nothing_is_stable() -> (
    None
):
    view = CommitView("g")
    assert view.open(AT, WHOLE, None, Position(7, 3)).segments == (
        Segment(WHOLE, 7, 3),
    )
    assert view.stable(AT, None) is None
    say(view, LEFT, 1, 150)
    assert view.resolve(AT, WHOLE) == [Winner(Segment(LEFT, 150), 1), Hole(RIGHT)]
    assert view.stable(AT, None) is None
    assert view.mirror(AT, None) is None
    assert view.stable(AT, Committed(100, 9, 0)) == Position(100, 9)


def test_stable_is_the_lowest_position_with_the_stream_time_there() -> None:
    view = CommitView("g")
    view.apply(key(LEFT, 1), value(Segment(LEFT, 150, 60)))
    view.apply(key(RIGHT, 1), value(Segment(RIGHT, 130, 50)))
    assert view.stable(AT, None) == Position(130, 50)


def test_times_of_operators_go_with_the_position_that_counts() -> None:
    """Neighbours with one position have seen the same records: the larger time of each
    operator is right for both.
    """
    view = CommitView("g")
    behind, one, other = ((1, 5),), ((1, 20), (2, 10)), ((2, 30),)
    view.apply(
        key(cents(0, 49), 1), value(Segment(cents(0, 49), 130, 50, operator_times=one))
    )
    view.apply(
        key(cents(50, 99), 1),
        value(Segment(cents(50, 99), 130, 50, operator_times=other)),
    )
    (merged,) = view.open(AT, WHOLE, None, Position(0)).segments
    assert merged.operator_times == ((1, 20), (2, 30))
    plain = Committed(100, 9, 1, operator_times=behind)
    assert view.open(AT, WHOLE, plain, Position(0)).segments == (merged,)
    mirrored = view.mirror(AT, plain)
    assert mirrored is not None
    assert mirrored.operator_times == merged.operator_times
    (newer,) = view.open(AT, WHOLE, replace(plain, term=2), Position(0)).segments
    assert (newer.position, newer.operator_times) == (100, behind)


def test_only_a_whole_range_task_with_nothing_live_needs_no_claim() -> None:
    view = CommitView("g")
    assert not view.open(AT, WHOLE, Committed(5, 5, 5), START).claim
    assert view.open(AT, LEFT, None, START).claim
    say(view, LEFT, 1, 10)
    assert view.open(AT, WHOLE, None, START).claim


def test_records_of_other_groups_are_ignored_whatever_their_version() -> None:
    view = CommitView("g")
    view.apply(key(LEFT, 1, group="gg"), value(Segment(LEFT, 10)))
    view.apply(b"\7" + key(LEFT, 1, group="h")[1:], b"\7...")
    view.apply(b"", b"")
    assert view.live(AT) == []
    with pytest.raises(LogError, match="version 7"):
        view.apply(b"\7" + key(LEFT, 1)[1:], value(Segment(LEFT, 10)))


def test_done_runs_below_a_larger_plain_offset_are_dropped() -> None:
    spoken = Winner(Segment(WHOLE, 10, 5, ((12, 14), (20, 30))), 3)
    assert combine([spoken], Committed(25, 8, 3), START) == [
        Segment(WHOLE, 25, 8, ((25, 30),))
    ]


cuts = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(
    lambda pair: (min(pair), max(pair))
)
writes = st.lists(
    st.tuples(
        cuts,
        st.integers(1, 5),
        st.integers(1, 3),
        st.one_of(st.none(), st.integers(0, 50)),
    ),
    max_size=25,
)


@given(writes, cuts)
def test_resolving_hash_by_hash_gives_the_highest_rank_and_garbage_is_what_speaks_for_none(
    some: list[tuple[tuple[int, int], int, int, int | None]], asked: tuple[int, int]
) -> None:
    view, live = CommitView("g"), dict[tuple[int, int, tuple[int, int]], int]()
    for cut, term, generation, position in some:
        key_range = cents(cut[0] * 10, cut[1] * 10 + 9)
        view.apply(
            key(key_range, term, generation),
            None if position is None else value(Segment(key_range, position)),
        )
        assert list(view.whole(AT)) == view.resolve(AT, WHOLE)
        live.pop((term, generation, cut), None)
        if position is not None:
            live[term, generation, cut] = position

    def speaker(tenth: int) -> tuple[int, int, tuple[int, int]] | None:
        return max(
            (rank for rank in live if rank[2][0] <= tenth <= rank[2][1]), default=None
        )

    pieces = view.resolve(AT, cents(asked[0] * 10, asked[1] * 10 + 9))
    for tenth in range(asked[0], asked[1] + 1):
        (piece,) = [piece for piece in pieces if tenth * 10 * CENT in piece.key_range]
        rank = speaker(tenth)
        said = (
            (piece.segment.position, piece.term) if isinstance(piece, Winner) else None
        )
        assert said == (None if rank is None else (live[rank], rank[0]))
    silent = set(live) - {speaker(tenth) for tenth in range(10)}
    assert {
        (decoded.term, decoded.generation, decoded.key_range)
        for decoded in map(decode_key, view.garbage(AT, [WHOLE]))
    } == {
        (term, generation, cents(cut[0] * 10, cut[1] * 10 + 9))
        for term, generation, cut in silent
    }


def test_a_mirror_names_the_highest_individual_commit_and_terms_go_on_above_it_when_it_is_gone() -> (
    None
):
    view = CommitView("g")
    say(view, LEFT, 7, 150)
    say(view, RIGHT, 6, 130)
    mirror = view.mirror(AT, Committed(100, 5, 2))
    assert mirror == Committed(130, -1, 2, 7)
    assert not view.lacks(AT, mirror)
    anew = CommitView("g")
    assert anew.lacks(AT, mirror)
    assert anew.next_term(AT, mirror) == 8
    say(anew, RIGHT, 6, 130)
    assert anew.lacks(AT, mirror)
    assert not anew.lacks(AT, Committed(130, -1, 8))
    assert not anew.lacks(AT, None)


def test_the_mirror_of_a_partition_is_computed_anew_only_after_a_commit_there() -> None:
    """Tasks ask at each interval, and the commits of other partitions come all the
    time.
    """
    view, plain = CommitView("g"), Committed(100, -1, 0)
    say(view, LEFT, 1, 130)
    say(view, RIGHT, 2, 120)
    mirror = view.mirror(AT, plain)
    elsewhere = CommitKey("g", "orders", AT.partition + 1, WHOLE, 1, 1)
    view.apply(
        encode_key(elsewhere), encode_value(CommitValue("t", (Segment(WHOLE, 5),)))
    )
    assert view.mirror(AT, plain) is mirror
    say(view, RIGHT, 2, 140)
    assert view.mirror(AT, plain) == Committed(130, -1, 0, 2)


def test_a_partition_is_resolved_anew_only_after_a_commit_there() -> None:
    """Each process asks for all source partitions twice a second."""
    view = CommitView("g")
    say(view, LEFT, 1, 130)
    whole = view.whole(AT)
    assert list(whole) == [Winner(Segment(LEFT, 130), 1), Hole(RIGHT)]
    elsewhere = CommitKey("g", "orders", AT.partition + 1, WHOLE, 1, 1)
    view.apply(
        encode_key(elsewhere), encode_value(CommitValue("t", (Segment(WHOLE, 5),)))
    )
    assert view.whole(AT) is whole
    say(view, LEFT, 1, 140)
    assert view.whole(AT)[0] == Winner(Segment(LEFT, 140), 1)
    view.apply(key(LEFT, 1), None)
    assert list(view.whole(AT)) == [Hole(WHOLE)]


def test_no_more_partitions_are_kept_resolved_than_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(view_module, "WHOLES", 2)
    view = CommitView("g")
    for _ in range(2):
        for number in range(5):
            assert view.whole(TopicPartition("orders", number)) == (Hole(WHOLE),)
            assert len(view._wholes) <= 2


def test_a_consumers_commits_in_another_topic_count_for_no_hash_but_their_terms_do() -> (
    None
):
    view = CommitView("g")

    def say_in(topic_id: str, key_range: KeyRange, term: int, position: int) -> None:
        named = CommitValue(
            "t", (Segment(key_range, position),), consumer_metadata(topic_id, "mine")
        )
        view.apply(key(key_range, term), encode_value(named))

    old, new = (
        Committed(140, term=4, topic=topic_number(id_)) for id_ in ("old", "new")
    )
    view.tell("orders", "old")
    say_in("old", LEFT, 5, 150)
    say_in("old", RIGHT, 6, 170)
    assert positions(view, WHOLE, old) == [(LEFT, 150), (RIGHT, 170)]
    assert len(view.whole(AT)) == 2
    assert view.mirror(AT, old) == replace(old, offset=150, beside=6)

    view.tell("orders", "new")
    assert view.outlived(AT, LEFT)
    assert (view.of_this_topic(AT, old), view.of_this_topic(AT, new)) == (None, new)
    assert view.of_this_topic(AT, Committed(9)) == Committed(9), "an operator's reset"
    assert view.of_this_topic(AT, Committed(9, term=3)) == Committed(9, term=3), (
        "an earlier version's"
    )
    assert positions(view) == [(WHOLE, START.offset)]
    assert list(view.whole(AT)) == [Hole(LEFT), Hole(RIGHT)]
    assert view.mirror(AT, None) is None
    assert view.open(AT, LEFT, None, START).term == 7
    say_in("new", LEFT, 7, 20)
    assert not view.outlived(AT, LEFT)
    assert view.outlived(AT, WHOLE)
    assert positions(view) == [(LEFT, 20), (RIGHT, START.offset)]
    assert view.mirror(AT, None) is None, "the other half has not begun"
    assert tombstones(view, WHOLE) == [(LEFT, 5)]
    assert [said.metadata for said in view.live(AT)] == ["", "", "mine"]
    say_in("new", RIGHT, 8, 30)
    assert view.mirror(AT, None) == Committed(20, -1, 0, 8)


def test_an_applications_commits_and_those_of_earlier_versions_count_whatever_they_name() -> (
    None
):
    view = CommitView("g")
    view.tell("orders", "new")
    for metadata in ("", "old", "a user's"):
        view.apply(
            key(WHOLE, 1),
            encode_value(CommitValue("t", (Segment(WHOLE, 150),), metadata)),
        )
        assert positions(view) == [(WHOLE, 150)]
        assert not view.outlived(AT, WHOLE)


def test_in_the_order_of_births_the_stable_offset_has_the_earliest_time_of_all_parts() -> (
    None
):
    """The part with the lowest position may be the one that is furthest: its first
    record waits.
    """
    view = CommitView("g")
    far = Segment(LEFT, 27, 68, operator_times=((1, 68),), ahead=Ahead(90, 68, 90))
    near = Segment(RIGHT, 28, 11, operator_times=((1, 11),), ahead=Ahead(62, 11, 62))
    for part in (far, near):
        view.apply(key(part.key_range, 1), value(part))
    assert view.mirror(AT, None, in_birth_order=True) == Committed(
        27, 11, 0, 1, ((1, 11),)
    )


def test_in_the_order_of_births_parts_at_one_position_keep_their_times() -> None:
    """They stand at different births where records of another source wait."""
    view = CommitView("g")
    for part in (Segment(LEFT, 30, 50), Segment(RIGHT, 30, 60)):
        view.apply(key(part.key_range, 1), value(part))
    opening = view.open(AT, WHOLE, None, START, in_birth_order=True)
    assert opening.segments == (Segment(LEFT, 30, 50), Segment(RIGHT, 30, 60))
    assert view.mirror(AT, None, in_birth_order=True) == Committed(30, 50, 0, 1)
