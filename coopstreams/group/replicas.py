"""Which members get standbys of which tasks. A pure function of the target and of what
members have.

    unit       the tasks of one partition that one member owns: their standbys are together, too
    keep       a member keeps the standbys that it has, or most of their range
    fill       the rest goes to another rack, to another host, where rows are already, to the least loaded
    exchange   one standby at a time moves, while that makes the places better, or the loads more even

Invariant: each unit has min(replicas, members - 1) standbys, on members of which none
owns it. A standby moves only if the places are better afterwards, or equally good and
the loads more even; so a result that is fed back stays as it is.
Turned down: a share for each member, as tasks have (an owner can be no standby of its
own tasks, so shares need not be possible).
Relies on: `assignor` (calls this with its own result), `claims` (ranges of hashes).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from coopstreams.group.claims import Claims, common, merge, task_partition_of
from coopstreams.group.members import MemberInfo, MemberState, TaskPartition
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.task_id import TaskId

Staleness: TypeAlias = Mapping[str, Mapping[TaskPartition, int]]
"""How far the standbys of a member and partition are behind (`Warmth.lags`), the one that
is furthest; those that were not measured are missing.
"""
ALL_FRESH: Staleness = {}
_PASSES = 50
"""The most passes of moving standbys; they settle in two or three."""
_OF_OWNER = 1_000
"""How much more it counts that a standby is apart from the owner than from another
standby.
"""


@dataclass(slots=True)
class _Unit:
    """The tasks of a partition that one member owns, and the members with standbys of
    them.
    """

    owner: str
    tasks: tuple[TaskId, ...]
    at: list[str] = field(default_factory=list)

    @property
    def weight(self) -> int:
        return len(self.tasks)


def replicated_by(members: Mapping[str, MemberState]) -> frozenset[int]:
    """Return the sub-topologies of which all members can keep standbys.

    None, if a member does not say so: it is of an older version.
    """
    able = [state.info.stands_by for state in members.values()]
    known = [frozenset(numbers) for numbers in able if numbers is not None]
    if not known or len(known) < len(able):
        return frozenset()
    return frozenset.intersection(*known)


def standby_claims(members: Mapping[str, MemberState]) -> Claims:
    """Return the ranges of each partition of which each member has standbys."""
    claims: dict[str, dict[TaskPartition, list[KeyRange]]] = {}
    for id_, state in members.items():
        mine: dict[TaskPartition, list[KeyRange]] = {}
        for task in state.standbys:
            mine.setdefault(task_partition_of(task), []).append(task.key_range)
        claims[id_] = {at: merge(ranges) for at, ranges in mine.items()}
    return claims


def staleness(members: Mapping[str, MemberState]) -> Staleness:
    """Return how far each member's standbys of each partition are behind."""
    found: dict[str, dict[TaskPartition, int]] = {}
    for id_, state in members.items():
        mine = found.setdefault(id_, {})
        for task, behind in () if state.warmth is None else state.warmth.lags:
            at = task_partition_of(task)
            mine[at] = max(behind, mine.get(at, 0))
    return found


def place_standbys(
    target: Mapping[str, Collection[TaskId]],
    members: Mapping[str, MemberState],
    held: Claims,
    replicas: int,
    replicated: Collection[int],
) -> dict[str, tuple[TaskId, ...]]:
    """Return the tasks of which each member gets standbys.

    Shape: `target` are the tasks that each member is to own; `held` those that it holds
    now, whose rows it has.
    """
    count = min(replicas, len(members) - 1)
    units = _units(target, replicated) if count > 0 else []
    places = _Places(members, held, units, count)
    places.keep()
    places.fill()
    places.exchange()
    found: dict[str, list[TaskId]] = {id_: [] for id_ in sorted(members)}
    for unit in units:
        for id_ in unit.at:
            found[id_] += unit.tasks
    return {id_: tuple(sorted(tasks)) for id_, tasks in found.items()}


def _units(
    target: Mapping[str, Collection[TaskId]],
    replicated: Collection[int],
) -> list[_Unit]:
    """Return the units of these targets, among the sub-topologies in `replicated`."""
    tasks: dict[tuple[TaskPartition, str], list[TaskId]] = {}
    for owner, owned in target.items():
        for task in owned:
            if task.subtopology in replicated:
                tasks.setdefault((task_partition_of(task), owner), []).append(task)
    return [
        _Unit(owner, tuple(sorted(together)))
        for (_, owner), together in sorted(tasks.items())
    ]


class _Places:
    """The standbys of all units, while they are being placed."""

    def __init__(
        self,
        members: Mapping[str, MemberState],
        held: Claims,
        units: list[_Unit],
        count: int,
    ) -> None:
        self._ids = sorted(members)
        self._infos = {id_: members[id_].info for id_ in self._ids}
        self._had = standby_claims(members)
        self._held = held
        self._units = units
        self._count = count
        self._load = dict.fromkeys(self._ids, 0)
        """The standbys of each member."""

    def keep(self) -> None:
        """Keep the standbys that members have, those with most of the range first."""
        for unit in self._units:
            had = {
                id_: overlap
                for id_ in self._ids
                if id_ != unit.owner and (overlap := _overlap(self._had[id_], unit))
            }
            for id_ in sorted(had, key=lambda id_: (-had[id_], id_))[: self._count]:
                self._add(unit, id_)

    def fill(self) -> None:
        """Place the standbys that are missing."""
        for unit in self._units:
            while len(unit.at) < self._count:
                self._add(unit, min(self._free(unit), key=self._order(unit)))

    def exchange(self) -> None:
        """Move standbys, one at a time, while that is an improvement."""
        for _ in range(_PASSES):
            moved = sum(self._improve(unit) for unit in self._units)
            if not moved:
                break

    def _order(
        self,
        unit: _Unit,
    ) -> Callable[[str], tuple[int, int, float, str]]:
        """Return the order in which free members get a standby of a unit."""

        def order(id_: str) -> tuple[int, int, float, str]:
            rows = _overlap(self._held.get(id_, {}), unit)
            load = (2 * self._load[id_] + unit.weight) / self._infos[id_].threads
            return self._nearness(unit, unit.at, id_), -rows, load, id_

        return order

    def _improve(self, unit: _Unit) -> bool:
        """Move the standby of a unit whose move is the best improvement; return whether
        there was one. Better is a place that is further from the owner and from the
        other standbys, or one as far that evens out the load.
        """
        best: tuple[int, float, str, str] | None = None
        for here in unit.at:
            others = [id_ for id_ in unit.at if id_ != here]
            now = self._nearness(unit, others, here)
            gives = (2 * self._load[here] - unit.weight) / self._infos[here].threads
            for there in self._free(unit):
                takes = (2 * self._load[there] + unit.weight) / self._infos[
                    there
                ].threads
                better = self._nearness(unit, others, there) - now
                change = (better, takes - gives, there, here)
                if (better < 0 or (better == 0 and takes < gives)) and (
                    best is None or change < best
                ):
                    best = change
        if best is None:
            return False
        _, _, there, here = best
        unit.at.remove(here)
        self._load[here] -= unit.weight
        self._add(unit, there)
        return True

    def _nearness(self, unit: _Unit, others: Collection[str], id_: str) -> int:
        """Return how near a member is to the owner and to other standbys of a unit: the
        less, the better.
        """
        mine = self._infos[id_]
        near = _OF_OWNER * _near(mine, self._infos[unit.owner])
        return near + sum(_near(mine, self._infos[other]) for other in others)

    def _free(self, unit: _Unit) -> list[str]:
        """Return the members that could get one more standby of a unit."""
        return [id_ for id_ in self._ids if id_ != unit.owner and id_ not in unit.at]

    def _add(self, unit: _Unit, id_: str) -> None:
        """Give a member a standby of a unit."""
        unit.at.append(id_)
        self._load[id_] += unit.weight


def _near(one: MemberInfo, other: MemberInfo) -> int:
    """Return what two members share: their rack counts twice as much as their host."""
    apart = one.rack and other.rack and one.rack != other.rack
    return 2 * (not apart) + (one.host == other.host)


def _overlap(
    ranges: Mapping[TaskPartition, list[KeyRange]],
    unit: _Unit,
) -> int:
    """Return how much of a unit's range is in `ranges` (of its partition), in hashes."""
    of_partition = ranges.get(task_partition_of(unit.tasks[0]), ())
    return sum(common(of_partition, task.key_range) for task in unit.tasks)
