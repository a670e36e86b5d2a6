"""The assignors of consumer groups: which consumer reads which key ranges of which
partitions. Pure functions, run by the group's leader.

If more members of a group opt into sharing than a topic has partitions, its partitions
are cut, and each is assigned to several members (the proposal's *reverse-assign*:
members are assigned to partitions, not partitions to members). Otherwise partitions
stay whole.

    key_range_round_robin   member after member takes the next partition                       `roundrobin`
    key_range_range         neighbouring members share a partition, neighbouring partitions a member   `range`
    sticky                  fair like those, and a range moves only for balance                `cooperative-sticky`

Each returns the target: the key ranges of each member once all hand-overs are done.
`group/claims.py` withholds a range from its new owner until the old one has released
it. So all three are cooperative.

Invariant: `checked` holds for the result: no overlap, no hole, no topic that the member
did not subscribe to, no part of a partition that may not be shared.
Source: the proposal's `KeyRangeBasedRoundRobinAssignor`; Kafka's RangeAssignor,
RoundRobinAssignor, and KIP-429 for the third.
Turned down: giving whole partitions to members that do not share while others share the
rest (the load of a member would be unpredictable).
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import cycle, pairwise
from typing import TypeAlias

from coopstreams.group.assignor import settle
from coopstreams.group.claims import claims_of
from coopstreams.group.members import NO_GENERATION, MemberInfo, MemberState
from coopstreams.group.slots import Layout
from coopstreams.topology.errors import AssignmentError
from coopstreams.topology.keys import (
    GROUPS,
    WHOLE,
    KeyRange,
    check_tiling,
)
from coopstreams.topology.task_id import TaskId

Held: TypeAlias = Mapping[str, tuple[tuple[int, KeyRange], ...]]
"""Key ranges by topic, each as (partition, range), ascending."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member of a group, as an assignor sees it.

    Source: Kafka's `ConsumerPartitionAssignor.Subscription`, with the proposal's
    `allowKeyShare`.
    """

    topics: frozenset[str]
    allow_key_share: bool = True
    held: Held = field(default_factory=dict)
    """The key ranges that the member reads now, or has not released yet."""
    promised: Held = field(default_factory=dict)
    """The member's target in the last assignment."""
    generation: int = NO_GENERATION
    """The generation of the member's last assignment. If two members claim a range, the
    higher generation counts.
    """


Members: TypeAlias = Mapping[str, Subscription]
Assignor: TypeAlias = Callable[
    [Mapping[str, int], Members, Collection[str]], Mapping[str, Held]
]
"""A function of the partition counts by topic, the members by id, and the topics that
may be shared. It returns the target of each member.
"""


def key_range_round_robin(
    partitions: Mapping[str, int],
    members: Members,
    shareable: Collection[str],
) -> Mapping[str, Held]:
    """Return each member's key ranges, assigned in turn.

    The partitions of a shared topic take its members in turn. Whole partitions are
    given to the members in turn, over all topics together.

    Shape: turns follow the order of the members' ids.

    Raises:
        AssignmentError: a bug in this function.
    """
    assigned = _Assigned(members)
    circle = cycle(sorted(members))
    for topic, readers, share in _topics(partitions, members, shareable):
        count = partitions[topic]
        if share:
            for partition in range(count):
                assigned.share(topic, partition, readers[partition::count])
        else:
            for partition in range(count):
                assigned.give(
                    topic,
                    partition,
                    next(member for member in circle if member in readers),
                )
    return checked(partitions, members, shareable, assigned.ranges())


def key_range_range(
    partitions: Mapping[str, int],
    members: Members,
    shareable: Collection[str],
) -> Mapping[str, Held]:
    """Return each member's key ranges: neighbouring members share a partition, or
    neighbouring partitions go to one member.

    Shape: members are in the order of their ids, in each topic. Without an even split,
    the first ones get one more.

    Raises:
        AssignmentError: a bug in this function.
    """
    assigned = _Assigned(members)
    for topic, readers, share in _topics(partitions, members, shareable):
        count = partitions[topic]
        if share:
            for partition, (first, end) in enumerate(_blocks(len(readers), count)):
                assigned.share(topic, partition, readers[first:end])
        else:
            for member, (first, end) in zip(
                readers,
                _blocks(count, len(readers)),
                strict=True,
            ):
                for partition in range(first, end):
                    assigned.give(topic, partition, member)
    return checked(partitions, members, shareable, assigned.ranges())


def sticky(
    partitions: Mapping[str, int],
    members: Members,
    shareable: Collection[str],
) -> Mapping[str, Held]:
    """Return each member's key ranges, balanced with few moves: the last target if it
    still fits, else close to what is held.

    The decision is that for shared tasks (`group/assignor.py`), with a topic in the
    place of a sub-topology.

    Raises:
        AssignmentError: a bug in this function.
    """
    index = {topic: i for i, topic in enumerate(sorted(partitions))}
    claims = claims_of(
        {
            id_: MemberState(
                MemberInfo(id_),
                _tasks(member.held, index),
                member.generation,
            )
            for id_, member in members.items()
        }
    )
    promised = {id_: _tasks(member.promised, index) for id_, member in members.items()}
    load = dict.fromkeys(members, Fraction(0))
    assigned = _Assigned(members)
    for topic, readers, share in _topics(partitions, members, shareable):
        layout = Layout(partitions[topic], dict.fromkeys(readers, 1), share=share)
        for member, tasks in settle(
            layout,
            index[topic],
            promised,
            claims,
            load,
        ).items():
            for task in tasks:
                assigned.give(topic, task.partition, member, task.key_range)
    return checked(partitions, members, shareable, assigned.ranges())


ASSIGNORS: Mapping[str, Assignor] = {
    "cooperative-sticky": sticky,
    "range": key_range_range,
    "roundrobin": key_range_round_robin,
}
"""The assignors by librdkafka's names in `partition.assignment.strategy`."""


def checked(
    partitions: Mapping[str, int],
    members: Members,
    shareable: Collection[str],
    assigned: Mapping[str, Held],
) -> Mapping[str, Held]:
    """Return `assigned` unchanged, after checking it. Users may pass an assignor of
    their own.

    Raises:
        AssignmentError: an overlap, a hole, an unknown member, a topic that the member
            did not subscribe to, or a part of a partition where sharing is not allowed.
    """
    owned: dict[tuple[str, int], list[KeyRange]] = {}
    for member, held in assigned.items():
        if member not in members:
            raise AssignmentError(
                f"the assignor assigns to {member}, which is no member"
            )
        for topic, ranges in held.items():
            for partition, key_range in ranges:
                _check_assigned(
                    topic,
                    partition,
                    key_range,
                    member,
                    members[member],
                    partitions,
                    shareable,
                )
                owned.setdefault((topic, partition), []).append(key_range)
    for topic, _, _ in _topics(partitions, members, shareable):
        for partition in range(partitions[topic]):
            check_tiling(owned.get((topic, partition), []), f"{topic}/{partition}")
    return assigned


def _check_assigned(
    topic: str,
    partition: int,
    key_range: KeyRange,
    id_: str,
    member: Subscription,
    partitions: Mapping[str, int],
    shareable: Collection[str],
) -> None:
    if topic not in member.topics:
        raise AssignmentError(
            f"{id_} is assigned {topic}/{partition}, and did not subscribe to {topic}"
        )
    if not 0 <= partition < partitions.get(topic, 0):
        raise AssignmentError(
            f"{id_} is assigned {topic}/{partition}; {topic} has {partitions.get(topic, 0)} partitions"
        )
    if not key_range.is_whole and not (topic in shareable and member.allow_key_share):
        who = "it" if topic in shareable else topic
        raise AssignmentError(
            f"{id_} is assigned the part {key_range} of {topic}/{partition}, and {who} does not share"
        )


class _Assigned:
    """The key ranges of each member that an assignor has assigned so far."""

    def __init__(self, members: Iterable[str]) -> None:
        self._of: dict[str, dict[str, list[tuple[int, KeyRange]]]] = {
            member: {} for member in members
        }

    def give(
        self,
        topic: str,
        partition: int,
        member: str,
        key_range: KeyRange = WHOLE,
    ) -> None:
        self._of[member].setdefault(topic, []).append((partition, key_range))

    def share(
        self,
        topic: str,
        partition: int,
        members: list[str],
    ) -> None:
        """Cut a partition for these members, in their order. Members beyond the number
        of key groups get no part.
        """
        members = members[:GROUPS]
        for member, key_range in zip(
            members,
            KeyRange.split(len(members)),
            strict=True,
        ):
            self.give(topic, partition, member, key_range)

    def ranges(self) -> dict[str, Held]:
        return {
            member: {
                topic: tuple(sorted(ranges)) for topic, ranges in sorted(of.items())
            }
            for member, of in self._of.items()
        }


def _topics(
    partitions: Mapping[str, int],
    members: Members,
    shareable: Collection[str],
) -> Iterator[tuple[str, list[str], bool]]:
    """Yield each topic that has readers, with these readers and whether its partitions
    are cut.

    Members that do not share read no topic whose partitions are cut.
    """
    for topic in sorted(partitions):
        readers = sorted(
            id_ for id_, member in members.items() if topic in member.topics
        )
        sharers = [id_ for id_ in readers if members[id_].allow_key_share]
        share = topic in shareable and len(sharers) > partitions[topic]
        if readers and partitions[topic]:
            yield topic, sharers if share else readers, share


def _blocks(items: int, parts: int) -> Iterator[tuple[int, int]]:
    """Yield the half-open bounds of `parts` neighbouring blocks. Without an even split,
    the first blocks are larger by one.
    """
    size, larger = divmod(items, parts)
    return pairwise(size * i + min(i, larger) for i in range(parts + 1))


def _tasks(held: Held, index: Mapping[str, int]) -> tuple[TaskId, ...]:
    return tuple(
        TaskId(index[topic], partition, key_range)
        for topic, ranges in held.items()
        if topic in index
        for partition, key_range in ranges
    )
