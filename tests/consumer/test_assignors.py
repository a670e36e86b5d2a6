"""The assignors of the cooperative consumer: the proposal's examples, Kafka's own, and
their laws.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.consumer.assignors import (
    ASSIGNORS,
    Assignor,
    Held,
    Subscription,
    checked,
    key_range_range,
    key_range_round_robin,
    sticky,
)
from coopstreams.topology.errors import AssignmentError
from coopstreams.topology.keys import GROUPS, MAX_HASH, WHOLE, KeyRange, check_tiling

LOW, HIGH = KeyRange.split(2)

everybody = pytest.mark.parametrize(
    "assignor", list(ASSIGNORS.values()), ids=list(ASSIGNORS)
)


def group(
    *names: str, topics: str = "t", share: bool = True
) -> dict[str, Subscription]:
    return {name: Subscription(frozenset(topics.split()), share) for name in names}


def readers(given_: Mapping[str, Held]) -> dict[str, list[str]]:
    """Return the readers of each partition, in the order of the hash space, as the
    proposal prints an assignment.
    """
    found: dict[str, list[tuple[KeyRange, str]]] = {}
    for member, held in given_.items():
        for topic, pieces in held.items():
            for partition, piece in pieces:
                found.setdefault(f"{topic}p{partition}", []).append((piece, member))
    return {
        at: [member for _, member in sorted(row)] for at, row in sorted(found.items())
    }


def again(
    members: Mapping[str, Subscription], given_: Mapping[str, Held], generation: int
) -> dict[str, Subscription]:
    """Return the members after all hand-overs."""
    return {
        id_: Subscription(
            m.topics, m.allow_key_share, given_[id_], given_[id_], generation
        )
        for id_, m in members.items()
        if id_ in given_
    }


# --- the proposal's examples ---------------------------------------------------


@pytest.mark.parametrize("assignor", [key_range_round_robin, sticky])
def test_five_consumers_of_three_partitions_are_dealt_as_the_proposal_has_it(
    assignor: Assignor,
) -> None:
    assert assignor({"t": 3}, group("M1", "M2", "M3", "M4", "M5"), {"t"}) == {
        "M1": {"t": ((0, LOW),)},
        "M2": {"t": ((1, LOW),)},
        "M3": {"t": ((2, WHOLE),)},
        "M4": {"t": ((0, HIGH),)},
        "M5": {"t": ((1, HIGH),)},
    }


def test_five_consumers_of_topics_with_two_and_three_partitions_are_reverse_assigned() -> (
    None
):
    given_ = key_range_range(
        {"t1": 2, "t2": 3},
        group("c1", "c2", "c3", "c4", "c5", topics="t1 t2"),
        {"t1", "t2"},
    )
    assert readers(given_) == {
        "t1p0": ["c1", "c2", "c3"],
        "t1p1": ["c4", "c5"],
        "t2p0": ["c1", "c2"],
        "t2p1": ["c3", "c4"],
        "t2p2": ["c5"],
    }
    assert given_["c2"] == {"t1": ((0, KeyRange.split(3)[1]),), "t2": ((0, HIGH),)}


# --- where nothing is shared, they are Kafka's ----------------------------------


def test_range_gives_neighbouring_partitions_as_kafka_does() -> None:
    given_ = key_range_range(
        {"t0": 3, "t1": 3}, group("c0", "c1", topics="t0 t1"), {"t0", "t1"}
    )
    assert readers(given_) == {
        "t0p0": ["c0"],
        "t0p1": ["c0"],
        "t0p2": ["c1"],
        "t1p0": ["c0"],
        "t1p1": ["c0"],
        "t1p2": ["c1"],
    }


def test_round_robin_gives_partition_after_partition_as_kafka_does() -> None:
    given_ = key_range_round_robin(
        {"t0": 3, "t1": 3}, group("c0", "c1", topics="t0 t1"), {"t0", "t1"}
    )
    assert readers(given_) == {
        "t0p0": ["c0"],
        "t0p1": ["c1"],
        "t0p2": ["c0"],
        "t1p0": ["c1"],
        "t1p1": ["c0"],
        "t1p2": ["c1"],
    }


def test_round_robin_passes_by_who_does_not_subscribe_as_kafka_does() -> None:
    members = (
        group("c0", topics="t0")
        | group("c1", topics="t0 t1")
        | group("c2", topics="t0 t1 t2")
    )
    given_ = key_range_round_robin({"t0": 1, "t1": 2, "t2": 3}, members, ())
    assert readers(given_) == {
        "t0p0": ["c0"],
        "t1p0": ["c1"],
        "t1p1": ["c2"],
        "t2p0": ["c2"],
        "t2p1": ["c2"],
        "t2p2": ["c2"],
    }


# --- restrictions ---------------------------------------------------------------


@everybody
def test_a_topic_that_may_not_be_shared_keeps_its_partitions_whole(
    assignor: Assignor,
) -> None:
    given_ = assignor({"no": 1, "yes": 1}, group("a", "b", topics="no yes"), {"yes"})
    assert len(readers(given_)["nop0"]) == 1
    assert len(readers(given_)["yesp0"]) == 2


@everybody
def test_who_does_not_share_gets_nothing_of_a_topic_that_others_share(
    assignor: Assignor,
) -> None:
    members = group("a", "b", "c") | group("alone", share=False)
    assert {
        id_: bool(held) for id_, held in assignor({"t": 2}, members, {"t"}).items()
    } == {
        "a": True,
        "b": True,
        "c": True,
        "alone": False,
    }


@everybody
def test_too_few_sharers_leave_partitions_whole_for_everybody(
    assignor: Assignor,
) -> None:
    members = group("a", "b") | group("alone", share=False)
    given_ = assignor({"t": 2}, members, {"t"})
    assert all(
        piece.is_whole for held in given_.values() for _, piece in held.get("t", ())
    )
    assert sorted(readers(given_)) == ["tp0", "tp1"]


@everybody
def test_a_topic_that_nobody_reads_or_that_has_no_partitions_is_left_out(
    assignor: Assignor,
) -> None:
    assert assignor(
        {"t": 1, "other": 2, "empty": 0}, group("a", topics="t empty missing"), {"t"}
    ) == {"a": {"t": ((0, WHOLE),)}}
    assert assignor({"t": 1}, {}, {"t"}) == {}


@everybody
def test_more_sharers_than_key_groups_leave_the_last_ones_idle(
    assignor: Assignor,
) -> None:
    given_ = assignor({"t": 1}, group(*(f"m{i:03}" for i in range(GROUPS + 2))), {"t"})
    assert (
        sorted(len(held.get("t", ())) for held in given_.values())
        == [0, 0] + [1] * GROUPS
    )


# --- what is checked ------------------------------------------------------------


@pytest.mark.parametrize(
    ("assigned", "problem"),
    [
        (
            {"a": {"t": ((0, LOW),)}, "b": {"t": ((0, WHOLE),)}},
            "t/0: key range 128..255 overlaps|t/0: key range 0..255 overlaps",
        ),
        ({"a": {"t": ((0, LOW),)}}, "t/0: no key range has the hashes"),
        ({}, "t/0: no key range has the hashes"),
        (
            {"a": {"t": ((0, WHOLE),)}, "b": {"t": ((1, WHOLE),)}},
            "b is assigned t/1; t has 1 partitions",
        ),
        ({"x": {"t": ((0, WHOLE),)}}, "x, which is no member"),
        (
            {"a": {"u": ((0, WHOLE),), "t": ((0, WHOLE),)}},
            "a is assigned u/0, and did not subscribe to u",
        ),
        (
            {"a": {"t": ((0, LOW),)}, "alone": {"t": ((0, HIGH),)}},
            "alone is assigned the part 128..255 of t/0, and it does not share",
        ),
    ],
)
def test_a_wrong_assignment_is_an_error_that_says_where(
    assigned: Mapping[str, Held], problem: str
) -> None:
    members = group("a", "b") | group("alone", share=False)
    with pytest.raises(AssignmentError, match=problem):
        checked({"t": 1, "u": 1}, members, {"t"}, assigned)


def test_a_part_of_a_topic_that_does_not_share_is_an_error() -> None:
    with pytest.raises(
        AssignmentError, match=r"the part 0\.\.127 of t/0, and t does not share"
    ):
        checked(
            {"t": 1},
            group("a", "b"),
            (),
            {"a": {"t": ((0, LOW),)}, "b": {"t": ((0, HIGH),)}},
        )


# --- laws -----------------------------------------------------------------------

topics = st.dictionaries(
    st.sampled_from(["t0", "t1", "t2"]), st.integers(1, 9), min_size=1
)
subscriptions = st.builds(
    Subscription,
    st.frozensets(st.sampled_from(["t0", "t1", "t2"]), min_size=1),
    st.sampled_from([True, True, True, False]),
)
groups = st.dictionaries(
    st.sampled_from([f"m{i}" for i in range(14)]), subscriptions, min_size=1
)
policies = st.frozensets(st.sampled_from(["t0", "t1", "t2"]))


@given(st.sampled_from(list(ASSIGNORS.values())), topics, groups, policies)
def test_every_hash_of_what_is_read_has_one_reader(
    assignor: Assignor,
    partitions: dict[str, int],
    members: dict[str, Subscription],
    shareable: frozenset[str],
) -> None:
    given_ = assignor(partitions, members, shareable)
    assert set(given_) == set(members)
    read = {
        topic
        for topic in partitions
        if any(topic in m.topics for m in members.values())
    }
    for topic in read:
        for partition in range(partitions[topic]):
            pieces = [
                piece
                for held in given_.values()
                for at, piece in held.get(topic, ())
                if at == partition
            ]
            check_tiling(pieces, topic)
            assert topic in shareable or pieces == [WHOLE]
    assert {topic for held in given_.values() for topic in held} == read


@given(st.sampled_from(list(ASSIGNORS.values())), topics, groups, policies)
def test_the_members_that_read_a_topic_have_alike_much_of_it(
    assignor: Assignor,
    partitions: dict[str, int],
    members: dict[str, Subscription],
    shareable: frozenset[str],
) -> None:
    """In parts of a partition, their shares differ by the one more member of some
    partitions, and by the grain of key groups.
    """
    given_ = assignor(partitions, members, shareable)
    for topic, count in partitions.items():
        sharers = [
            id_ for id_, m in members.items() if topic in m.topics and m.allow_key_share
        ]
        if topic in shareable and len(sharers) > count:
            sizes = [
                sum(
                    Fraction(p.end - p.start + 1, MAX_HASH + 1)
                    for _, p in given_[id_][topic]
                )
                for id_ in sharers
            ]
            fewest = len(sharers) // count
            assert Fraction(GROUPS // (fewest + 1), GROUPS) <= min(sizes)
            assert max(sizes) <= Fraction(-(-GROUPS // fewest), GROUPS)


@given(st.sampled_from(list(ASSIGNORS.values())), topics, groups, policies)
def test_the_same_group_is_dealt_the_same_again(
    assignor: Assignor,
    partitions: dict[str, int],
    members: dict[str, Subscription],
    shareable: frozenset[str],
) -> None:
    given_ = assignor(partitions, members, shareable)
    assert assignor(partitions, again(members, given_, 1), shareable) == given_
    backwards = dict(reversed(members.items()))
    assert assignor(dict(reversed(partitions.items())), backwards, shareable) == given_


@given(topics, st.integers(2, 9), st.integers(0, 8))
def test_sticky_moves_nothing_of_those_who_stay_when_whole_partitions_stay_fair(
    partitions: dict[str, int], size: int, gone: int
) -> None:
    members = group(*(f"m{i}" for i in range(size)), topics="t0 t1 t2")
    before = sticky(partitions, members, ())
    left = again(members, before, 1)
    left.pop(f"m{gone % size}")
    after = sticky(partitions, left, ())
    for id_ in left:
        for topic, pieces in before[id_].items():
            assert set(pieces) <= set(after[id_].get(topic, ()))


def test_sticky_keeps_three_quarters_in_place_when_a_fifth_sharer_comes() -> None:
    members = group("a", "b", "c", "d")
    before = sticky({"t": 2}, members, {"t"})
    after = sticky({"t": 2}, again(members, before, 1) | group("e"), {"t"})
    kept = sum(
        both.end - both.start + 1
        for id_, held in before.items()
        for at, old in held["t"]
        for to, new in after[id_].get("t", ())
        if at == to and (both := old.intersect(new))
    )
    assert Fraction(kept, 2 * (MAX_HASH + 1)) >= Fraction(3, 4)


def test_sticky_believes_the_newer_of_two_claims() -> None:
    """A returning member claims a range that the group has since given to another: the
    other keeps it.
    """
    topic = frozenset({"t"})
    mine: Held = {"t": ((0, WHOLE), (1, WHOLE))}
    members = {
        "away": Subscription(topic, True, mine, mine, 3),
        "here": Subscription(
            topic, True, {"t": ((0, WHOLE),)}, {"t": ((0, WHOLE),)}, 7
        ),
    }
    assert sticky({"t": 2}, members, ()) == {
        "away": {"t": ((1, WHOLE),)},
        "here": {"t": ((0, WHOLE),)},
    }
