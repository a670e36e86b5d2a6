"""The level of formats that a group writes, by what its members announce."""

from __future__ import annotations

import pytest

from coopstreams.group.codec import decode_subscription, encode_subscription
from coopstreams.group.format_level import LEVEL, in_words, level_of
from coopstreams.group.members import Cluster, Member, MemberInfo, MemberState

OLD = MemberInfo("1f2e-old", "host-1")
NEW = MemberInfo("3a4b-new", "host-2", level=LEVEL)


def cluster(*members: MemberInfo) -> Cluster:
    return Cluster(tuple(Member(info.process, info, ()) for info in members))


@pytest.mark.parametrize(
    ("members", "recorded", "level"),
    [
        ((NEW, NEW), 1, LEVEL),
        ((NEW, OLD, NEW), 1, 1),
        ((NEW, OLD), 0, 1),
        ((NEW,), 0, LEVEL),
        ((), 1, LEVEL),
        ((MemberInfo("later", level=LEVEL + 1), NEW), 1, LEVEL),
    ],
)
def test_the_group_writes_the_least_level_that_a_member_announces(
    members: tuple[MemberInfo, ...], recorded: int, level: int
) -> None:
    assert level_of(cluster(*members), recorded) == level


def test_a_member_that_comes_back_does_not_take_the_group_below_its_record() -> None:
    assert level_of(cluster(NEW, OLD), LEVEL) == LEVEL


def test_it_says_who_holds_the_new_formats_back() -> None:
    assert in_words(LEVEL, cluster(NEW)) == "0.2"
    said = in_words(1, cluster(NEW, OLD))
    assert said == "0.1, until these members run a newer release: 1f2e-old on host-1"


def test_the_level_is_announced_and_a_member_of_release_0_1_announces_none() -> None:
    announced = encode_subscription(MemberState(NEW), 0, [], {})
    assert decode_subscription(announced, "m").info.level == LEVEL
    early = encode_subscription(MemberState(OLD), 0, [], {})
    assert decode_subscription(early, "m").info.level == 1
