"""Describes a group for administrators: members, owners of key ranges, positions, and
done runs above the stable offset.

The group is one of cooperative consumers, or of an application. Invariant: for each
partition the key ranges shown tile the hash space, whatever is assigned and committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coopstreams.commit.group_progress import (
    OffsetAndRanges,
    group_offsets,
    individual_commits,
)
from coopstreams.commit.offset_runs import Runs
from coopstreams.commit.record import Segment
from coopstreams.consumer.group_assignment import topic_number
from coopstreams.group.admin import GroupAdmin
from coopstreams.group.codec import decode_assignment, decode_subscription
from coopstreams.group.members import Assignment, MemberState
from coopstreams.log.log import Log
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import GroupError
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.task_id import TaskId


@dataclass(frozen=True, slots=True)
class OwnedRange:
    """A key range of a partition, with its commit and its owner.

    `offset`: its position; None: it has committed nothing. `ranges`: the done runs
    above. `member`: the consumer that owns it; None: nobody.
    """

    key_range: KeyRange
    offset: int | None
    ranges: Runs
    member: str | None


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The progress of a group in a partition.

    `committed` None: some key range has never committed. `end`: the offset after the
    last record that can be read. Units: `lag` in records, from the stable offset to the
    end of the log.
    """

    partition: TopicPartition
    committed: OffsetAndRanges | None
    end: int
    key_ranges: tuple[OwnedRange, ...]

    @property
    def lag(self) -> int | None:
        """The lag; None: some key range has committed nothing."""
        return (
            None if self.committed is None else max(0, self.end - self.committed.offset)
        )


@dataclass(frozen=True, slots=True)
class MemberReport:
    """A member of a group. `state` None: the member does not run coopstreams, and has
    no key ranges.
    """

    id: str
    host: str
    state: MemberState | None
    tasks: tuple[TaskId, ...] = ()
    waits: str = ""
    """Why the leader withholds the member's key ranges for now."""


@dataclass(frozen=True, slots=True)
class GroupReport:
    """A group. Shape: `state` is Kafka's word. `members_text` describes the members in
    words; empty: there are none.
    """

    state: str
    members: tuple[MemberReport, ...]
    partitions: tuple[PartitionReport, ...]
    members_text: str = ""


def describe_group(log: Log, admin: GroupAdmin) -> GroupReport:
    """Return the current state of a group.

    Raises:
        LogError: refused, or an open transaction delays the answer; the message names
            it.
    """
    described = admin.describe()
    members = tuple(
        _member(m.id, m.host, m.subscription, m.assignment) for m in described.members
    )
    counts = log.partitions()
    owned = _owned(members, counts)
    with individual_commits(log, admin.group) as follower:
        offsets = group_offsets(admin, follower)
        offsets |= group_offsets(admin, follower, owned.keys() - offsets.keys())
    partitions = tuple(
        PartitionReport(
            at,
            committed,
            log.end_offset(at),
            tuple(owned_ranges(committed, owned.get(at, []))),
        )
        for at, committed in sorted(offsets.items())
        if at.partition < counts.get(at.topic, 0)
    )
    return GroupReport(described.state, members, partitions, described.members_text)


def owned_ranges(
    committed: OffsetAndRanges | None,
    owners: Sequence[tuple[KeyRange, str]],
) -> list[OwnedRange]:
    """Return key ranges that tile the hash space, cut wherever the owner or the commit
    changes.
    """
    stands: Sequence[Segment | None] = (
        [None] if committed is None else committed.key_ranges
    )
    rows = []
    for stand in stands:
        key_range, offset, runs = (
            (WHOLE, None, ())
            if stand is None
            else (stand.key_range, stand.position, stand.runs)
        )
        parts = [
            (both, member)
            for owned, member in owners
            if (both := owned.intersect(key_range)) is not None
        ]
        rows += [OwnedRange(part, offset, runs, member) for part, member in parts]
        rows += [
            OwnedRange(part, offset, runs, None)
            for part in key_range.minus(part for part, _ in parts)
        ]
    return sorted(rows, key=lambda row: row.key_range)


def _member(
    id_: str,
    host: str,
    subscription: bytes,
    assignment: bytes,
) -> MemberReport:
    try:
        state = decode_subscription(subscription, id_)
        given = decode_assignment(assignment, id_) if assignment else Assignment("")
    except GroupError:
        return MemberReport(
            id_,
            host,
            None,
        )  # not a coopstreams member: listed without key ranges
    return MemberReport(id_, host, state, given.tasks, given.waits)


def _owned(
    members: Iterable[MemberReport],
    topics: Iterable[str],
) -> Mapping[TopicPartition, list[tuple[KeyRange, str]]]:
    """Return the owners of key ranges by partition. Only tasks of consumers count: an
    application's tasks do not name a topic.
    """
    names = {topic_number(topic): topic for topic in topics}
    owned: dict[TopicPartition, list[tuple[KeyRange, str]]] = {}
    for member in members:
        for task in member.tasks:
            if task.subtopology in names:
                owned.setdefault(
                    TopicPartition(names[task.subtopology], task.partition),
                    [],
                ).append((task.key_range, member.id))
    return owned
