"""Which ranges each member rightly holds, and which tasks may therefore be granted now.

A range that another member still holds is withheld: its next owner gets it when it was released, a rebalance later.

Invariant: a grant overlaps no range that another member rightly holds. Of two claims to the same hashes the one of the
higher generation is right: a member that was away claims ranges that the group has given to others since.
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
"""The ranges that each member rightly holds of each partition: disjoint, ascending, none touching the next."""


def task_partition_of(task: TaskId) -> TaskPartition:
    """Return the partition of a task."""
    return TaskPartition(task.subtopology, task.partition)


def merge(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Return the same hashes in as few ranges as possible, ascending."""
    merged: list[KeyRange] = []
    for piece in sorted(ranges):
        if merged and piece.start <= merged[-1].end + 1:
            merged[-1] = KeyRange(merged[-1].start, max(merged[-1].end, piece.end))
        else:
            merged.append(piece)
    return merged


def common(ranges: Iterable[KeyRange], span: KeyRange) -> int:
    """Return how many hashes of the span lie in these (disjoint) ranges."""
    overlaps = (piece.intersect(span) for piece in ranges)
    return sum(both.end - both.start + 1 for both in overlaps if both is not None)


def claims_of(members: Mapping[str, MemberState]) -> Claims:
    """Return the ranges that each member rightly holds; among equal generations the smaller member id wins."""
    taken: dict[TaskPartition, list[KeyRange]] = {}
    claims: dict[str, dict[TaskPartition, list[KeyRange]]] = {}
    for member in sorted(members, key=lambda id_: (-members[id_].generation, id_)):
        held: dict[TaskPartition, list[KeyRange]] = {}
        for task in members[member].tasks:
            held.setdefault(task_partition_of(task), []).extend(
                task.range.minus(taken.get(task_partition_of(task), ()))
            )
        claims[member] = {task_partition: merge(pieces) for task_partition, pieces in held.items() if pieces}
        for task_partition, pieces in claims[member].items():
            taken.setdefault(task_partition, []).extend(pieces)
    return claims


def grant(target: Mapping[str, Iterable[TaskId]], claims: Claims) -> dict[str, tuple[TaskId, ...]]:
    """Return the part of each member's target that no other member holds.

    A task of which others hold a part is granted in pieces.
    """
    holders: dict[TaskPartition, list[tuple[str, KeyRange]]] = {}
    for member, held in claims.items():
        for task_partition, pieces in held.items():
            holders.setdefault(task_partition, []).extend((member, piece) for piece in pieces)
    granted: dict[str, tuple[TaskId, ...]] = {}
    for member, tasks in target.items():
        pieces_of: list[TaskId] = []
        for task in tasks:
            others = [piece for other, piece in holders.get(task_partition_of(task), ()) if other != member]
            pieces_of += [TaskId(task.subtopology, task.partition, piece) for piece in task.range.minus(others)]
        granted[member] = tuple(sorted(pieces_of))
    return granted


def check_granted(granted: Mapping[str, Iterable[TaskId]], claims: Claims) -> None:
    """Do nothing if the grants overlap neither each other nor ranges that other members rightly hold.

    Raises:
        AssignmentError: two members would own the same hashes; names both.
    """
    owners: dict[TaskPartition, list[tuple[KeyRange, str]]] = {}
    for member, tasks in granted.items():
        for task in tasks:
            owners.setdefault(task_partition_of(task), []).append((task.range, member))
    for member, held in claims.items():
        for task_partition, pieces in held.items():
            owners.setdefault(task_partition, []).extend((piece, member) for piece in pieces)
    for task_partition, entries in owners.items():
        _check_disjoint(task_partition, entries)


def _check_disjoint(task_partition: TaskPartition, entries: list[tuple[KeyRange, str]]) -> None:
    reach: dict[str, int] = {}
    for piece, member in sorted(entries):
        for other, end in reach.items():
            if other != member and end >= piece.start:
                raise AssignmentError(
                    f"{task_partition}: members {other} and {member} would both own hashes of key range {piece}"
                )
        reach[member] = max(reach.get(member, -1), piece.end)
