"""The key ranges that each member rightly holds, and the tasks that may therefore be
granted now.

A range that another member still holds is withheld: its next owner gets it a rebalance
later, once it is released.

Invariant: a grant overlaps no range that another member rightly holds. Of two claims to
the same hashes the one of the higher generation is right: a member that was away claims
ranges that the group has given to others since.
Source: KIP-429 (cooperative hand-over), KIP-792 (generations of claims).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from coopstreams.group.members import MemberState, TaskPartition
from coopstreams.topology.errors import AssignmentError
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.task_id import TaskId

Claims: TypeAlias = Mapping[str, Mapping[TaskPartition, list[KeyRange]]]
"""The key ranges of each partition that each member rightly holds: disjoint, ascending,
none adjacent to the next.
"""

NO_CLAIMS: Claims = {}
NOTHING_KEPT: Mapping[str, Iterable[TaskId]] = {}


def task_partition_of(task: TaskId) -> TaskPartition:
    """Return the partition of a task."""
    return TaskPartition(task.subtopology, task.partition)


def merge(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Return the hashes of these ranges in as few ranges as possible, ascending."""
    merged: list[KeyRange] = []
    for key_range in sorted(ranges):
        if merged and key_range.start <= merged[-1].end + 1:
            merged[-1] = KeyRange(merged[-1].start, max(merged[-1].end, key_range.end))
        else:
            merged.append(key_range)
    return merged


def common(ranges: Iterable[KeyRange], key_range: KeyRange) -> int:
    """Return how many hashes of a key range lie in these (disjoint) ranges."""
    overlaps = (one.intersect(key_range) for one in ranges)
    return sum(both.end - both.start + 1 for both in overlaps if both is not None)


def claims_of(members: Mapping[str, MemberState]) -> Claims:
    """Return the ranges that each member rightly holds; among equal generations the
    smaller member id wins.
    """
    taken: dict[TaskPartition, list[KeyRange]] = {}
    claims: dict[str, dict[TaskPartition, list[KeyRange]]] = {}
    for member in sorted(members, key=lambda id_: (-members[id_].generation, id_)):
        held: dict[TaskPartition, list[KeyRange]] = {}
        for task in members[member].tasks:
            held.setdefault(task_partition_of(task), []).extend(
                task.key_range.minus(taken.get(task_partition_of(task), ()))
            )
        claims[member] = {
            task_partition: merge(ranges)
            for task_partition, ranges in held.items()
            if ranges
        }
        for task_partition, ranges in claims[member].items():
            taken.setdefault(task_partition, []).extend(ranges)
    return claims


def grant(
    target: Mapping[str, Iterable[TaskId]],
    claims: Claims,
    kept: Mapping[str, Iterable[TaskId]] = NOTHING_KEPT,
) -> dict[str, tuple[TaskId, ...]]:
    """Return the tasks of each member: those in `kept`, and the part of its target that
    nobody keeps and no other member claims. A task may be granted in parts.

    `kept`: the tasks that members keep although they are to move (`warmups.staying`).
    """
    holders: dict[TaskPartition, list[tuple[str | None, KeyRange]]] = {}
    for member, held in claims.items():
        for task_partition, ranges in held.items():
            holders.setdefault(task_partition, []).extend(
                (member, key_range) for key_range in ranges
            )
    for tasks in kept.values():
        for task in tasks:
            # Nobody gets it as a part of its target, not even who keeps it.
            holders.setdefault(task_partition_of(task), []).append(
                (None, task.key_range)
            )
    granted: dict[str, tuple[TaskId, ...]] = {}
    for member, tasks in target.items():
        grants = list(kept.get(member, ()))
        for task in tasks:
            others = [
                key_range
                for other, key_range in holders.get(task_partition_of(task), ())
                if other != member
            ]
            grants += [
                TaskId(task.subtopology, task.partition, key_range)
                for key_range in task.key_range.minus(others)
            ]
        granted[member] = tuple(sorted(grants))
    return granted


def check_granted(granted: Mapping[str, Iterable[TaskId]], claims: Claims) -> None:
    """Raise an error if the grants overlap each other, or ranges that other members
    rightly hold.

    Raises:
        AssignmentError: two members would own the same hashes; names both.
    """
    owners: dict[TaskPartition, list[tuple[KeyRange, str]]] = {}
    for member, tasks in granted.items():
        for task in tasks:
            owners.setdefault(task_partition_of(task), []).append(
                (task.key_range, member)
            )
    for member, held in claims.items():
        for task_partition, ranges in held.items():
            owners.setdefault(task_partition, []).extend(
                (key_range, member) for key_range in ranges
            )
    for task_partition, entries in owners.items():
        _check_disjoint(task_partition, entries)


def _check_disjoint(
    task_partition: TaskPartition,
    entries: list[tuple[KeyRange, str]],
) -> None:
    """Raise an error if two members have the same hashes. `entries`: ranges, each with
    its member.
    """
    reach: dict[str, int] = {}
    for key_range, member in sorted(entries):
        for other, end in reach.items():
            if other != member and end >= key_range.start:
                raise AssignmentError(
                    f"{task_partition}: members {other} and {member} would both own hashes of key range {key_range}"
                )
        reach[member] = max(reach.get(member, -1), key_range.end)
