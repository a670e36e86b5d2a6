"""Which moves wait until their target has caught up, and who gets a warm-up meanwhile. A
pure function of the target and of what members say of their rows.

    move     a range that one member holds, and the target gives to another
    waits    a partition, while one of its moves is of many rows that the target does not have: all its claims stay
    warm-up  a standby of what a member is to get, until it says that it is ready

Invariant: only claims of members that stay hold a move. What a dead or a leaving member
had is free at once, or once it is released.
Invariant: a move waits only for a target that is in the group, and says of itself that
it knows warm-ups. It says that it is ready in the end: when it has caught up, or when it
comes no nearer (`standbys.py`). So no move waits for ever.
Invariant: the claims of a partition stay as they are until all its moves may be made,
which then cut it anew once. Turned down: each range by itself (an owner would close and
open the rest of its range for every part that it gives up).
Source: KIP-441 (warm-ups), which looks every 10 minutes whether one has caught up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coopstreams.group.claims import Claims, merge, task_partition_of
from coopstreams.group.members import MemberState, TaskPartition
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.task_id import TaskId

_Targets = Mapping[str, Collection[TaskId]]


class _Move(NamedTuple):
    """The moves of one partition to one member. `ranges`: those that others hold,
    ascending.
    """

    partition: TaskPartition
    to: str
    ranges: tuple[KeyRange, ...]
    waits: bool
    """Whether some of them have many rows, and the member has not caught up."""
    begun: bool
    """Whether the member has a standby of one of them."""


@dataclass(frozen=True, slots=True)
class Warmups:
    """The partitions whose moves wait, and the standbys of what members are to get."""

    waiting: frozenset[TaskPartition] = frozenset()
    standbys: Mapping[str, tuple[TaskId, ...]] = field(default_factory=dict)


def warm_up(
    target: _Targets,
    members: Mapping[str, MemberState],
    claims: Claims,
    limit: int,
    replicated: Collection[int],
) -> Warmups:
    """Return the partitions whose moves wait, and the warm-ups: those that have begun go
    on, and others begin while fewer than `limit` are not ready.

    `limit` 0: no move waits. `replicated`: the sub-topologies of which all members can
    keep standbys.
    """
    moves = list(_moves(target, members, claims, replicated)) if limit else []
    found: dict[str, list[TaskId]] = {}
    for move in _prepared(moves, limit):
        found.setdefault(move.to, []).extend(
            TaskId(*move.partition, key_range) for key_range in move.ranges
        )
    return Warmups(
        frozenset(move.partition for move in moves if move.waits),
        {member: tuple(sorted(tasks)) for member, tasks in found.items()},
    )


def _prepared(moves: Sequence[_Move], limit: int) -> Iterator[_Move]:
    """Yield the moves that have a warm-up, or get one now: first those of partitions of
    which another move is being warmed up.
    """
    begun = [move for move in moves if move.begun]
    yield from begun
    left = limit - sum(move.waits for move in begun)
    # A partition moves when all its moves are ready.
    under_way = {move.partition for move in begun if move.waits}
    others = [move for move in moves if move.waits and not move.begun]
    others.sort(key=lambda move: (move.partition not in under_way, move))
    yield from others[: max(0, left)]


def staying(
    members: Mapping[str, MemberState],
    claims: Claims,
    waiting: Collection[TaskPartition],
) -> dict[str, list[TaskId]]:
    """Return the tasks that members keep while the moves of their partitions wait, each
    as it is if its member still holds all of it.
    """
    kept: dict[str, list[TaskId]] = {}
    for member, state in members.items():
        if state.info.leaving:
            continue
        taken: dict[TaskPartition, list[KeyRange]] = {}
        # The largest first: one that is cut anew is held beside its parts.
        for task in sorted(state.tasks, key=lambda task: (-_size(task), task)):
            partition = task_partition_of(task)
            if partition not in waiting:
                continue
            known = taken.setdefault(partition, [])
            for held in claims[member].get(partition, ()):
                both = held.intersect(task.key_range)
                for part in both.minus(known) if both is not None else ():
                    kept.setdefault(member, []).append(TaskId(*partition, part))
                    known.append(part)
    return kept


def _moves(
    target: _Targets,
    members: Mapping[str, MemberState],
    claims: Claims,
    replicated: Collection[int],
) -> Iterator[_Move]:
    """Yield the moves to members that know warm-ups and stay, in the sub-topologies
    `replicated`.
    """
    held = _by_partition(
        (member, partition, key_range)
        for member, mine in claims.items()
        for partition, ranges in mine.items()
        for key_range in ranges
    )
    heavy = _heavy(members, claims)
    for member, tasks in target.items():
        state = members[member]
        if state.warmth is None or state.info.leaving:
            continue
        wanted = _by_partition(
            (member, task_partition_of(task), task.key_range)
            for task in tasks
            if task.subtopology in replicated
        )
        for partition, mine in wanted.items():
            others = _of_others(held, partition, member)
            lacks = _common(others, [key_range for _, key_range in mine])
            if lacks:
                large = _common(_of_others(heavy, partition, member), lacks)
                ready = _of(state.warmth.ready, partition)
                begun = _common(_of(state.standbys, partition), lacks)
                yield _Move(
                    partition,
                    member,
                    tuple(lacks),
                    waits=any(key_range.minus(ready) for key_range in large),
                    begun=bool(begun),
                )


_Owned = Mapping[TaskPartition, Collection[tuple[str, KeyRange]]]


def _heavy(members: Mapping[str, MemberState], claims: Claims) -> _Owned:
    """Return what members that stay claim, of the tasks with many rows
    (`Warmth.heavy`).
    """
    return _by_partition(
        (member, task_partition_of(task), key_range)
        for member, state in members.items()
        if state.warmth is not None and not state.info.leaving
        for task in state.warmth.heavy
        for key_range in _common(
            claims[member].get(task_partition_of(task), ()),
            [task.key_range],
        )
    )


def _by_partition(owned: Iterable[tuple[str, TaskPartition, KeyRange]]) -> _Owned:
    found: dict[TaskPartition, list[tuple[str, KeyRange]]] = {}
    for member, partition, key_range in owned:
        found.setdefault(partition, []).append((member, key_range))
    return found


def _of_others(owned: _Owned, partition: TaskPartition, member: str) -> list[KeyRange]:
    return [
        key_range for other, key_range in owned.get(partition, ()) if other != member
    ]


def _common(some: Iterable[KeyRange], others: Collection[KeyRange]) -> list[KeyRange]:
    """Return the hashes that are in both, in as few ranges as possible."""
    return merge(
        both
        for one in some
        for other in others
        if (both := one.intersect(other)) is not None
    )


def _of(tasks: Collection[TaskId], partition: TaskPartition) -> list[KeyRange]:
    return [task.key_range for task in tasks if task_partition_of(task) == partition]


def _size(task: TaskId) -> int:
    return task.key_range.end - task.key_range.start
