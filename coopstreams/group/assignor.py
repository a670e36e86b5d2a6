"""The assignor: which member gets which shared tasks. A pure function of the members'
subscriptions.

    claims   the tasks that each member rightly holds       claims.py
    target   the assignment once all hand-overs are done    the last one while it still fits, else balance.py
    grant    the part of the target that is free now        the rest follows once it is released
    standbys of the target's tasks                          replicas.py
    waiting  what stays until its next owner has caught up  warmups.py

Each member reports its share of the last target. While these shares fit the present
members, they remain the target. So tasks move only for a cause, and all rebalances of
one hand-over have the same target.

Invariant: a target tiles the hash space of every partition and gives every slot its
fair share; a grant overlaps no task that another member holds. Both are checked every
time: an error here would be two owners of one key.
Turned down: computing the target in every rebalance from the claims during the
hand-over (it need not converge).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction

from coopstreams.group.balance import balance
from coopstreams.group.claims import (
    NO_CLAIMS,
    Claims,
    check_granted,
    claims_of,
    grant,
)
from coopstreams.group.members import (
    Assignment,
    Cluster,
    Member,
    MemberState,
)
from coopstreams.group.replicas import (
    ALL_FRESH,
    Staleness,
    place_standbys,
    staleness,
    standby_claims,
)
from coopstreams.group.slots import Layout
from coopstreams.group.warmups import staying, warm_up
from coopstreams.topology.errors import AssignmentError
from coopstreams.topology.keys import GROUPS, KeyRange, check_tiling
from coopstreams.topology.task_id import TaskId


def assign(
    partitions: Mapping[int, int],
    members: Mapping[str, MemberState],
    *,
    ranges: int = 1,
    whole: Collection[int] = (),
    withheld: bool = False,
    replicas: int = 0,
    replicated: Collection[int] = (),
    warmups: int = 0,
) -> dict[str, Assignment]:
    """Return the assignment of each member. All members run the same topology;
    `active_version` handles groups whose members do not.

    A member that is leaving has no target and no standbys, unless all are leaving.

    Shape: `partitions` by sub-topology. `ranges` is the least number of key ranges that
    a partition is cut into; the sub-topologies in `whole` are never cut. `withheld`:
    the targets are set, but no task is granted. The tasks of the sub-topologies in
    `replicated` get `replicas` standbys each; `warmups` of those that move may be warmed
    up at a time, and with 0 they move at once.

    Raises:
        ValueError: a sub-topology without partitions, or more ranges than key groups.
        AssignmentError: the result would be wrong; a bug here, and no member was given
            a task.
    """
    if not 1 <= ranges <= GROUPS:
        raise ValueError(f"a partition has 1 to {GROUPS} key ranges, not {ranges}")
    if not members:
        return {}
    claims = claims_of(members)
    target = _target(partitions, members, claims, ranges, whole)
    warmed = warm_up(target, members, claims, 0 if withheld else warmups, replicated)
    kept = staying(members, claims, warmed.waiting)
    granted = dict.fromkeys(target, ()) if withheld else grant(target, claims, kept)
    check_granted(granted, claims)
    standbys = place_standbys(
        target,
        {id_: members[id_] for id_ in target},
        claims,
        0 if withheld else replicas,
        replicated,
    )
    settled = not withheld and granted == grant(target, NO_CLAIMS, kept)
    stood_by = {
        id_: tuple(sorted((*standbys.get(id_, ()), *warmed.standbys.get(id_, ()))))
        for id_ in members
    }
    cluster = Cluster(
        members=tuple(
            Member(id_, members[id_].info, granted.get(id_, ()), stood_by[id_])
            for id_ in sorted(members)
        ),
        partitions=dict(partitions),
    )
    return {
        member: Assignment(
            state.info.process,
            granted.get(member, ()),
            target.get(member, ()),
            settled,
            cluster,
            standbys=stood_by[member],
        )
        for member, state in members.items()
    }


def _target(
    partitions: Mapping[int, int],
    members: Mapping[str, MemberState],
    claims: Claims,
    ranges: int,
    whole: Collection[int],
) -> dict[str, tuple[TaskId, ...]]:
    """Return the target of each member that stays. Arguments: see `assign`."""
    staying = [id_ for id_ in sorted(members) if not members[id_].info.leaving]
    threads = {id_: members[id_].info.threads for id_ in staying or sorted(members)}
    share = all(state.info.allow_key_share for state in members.values())
    load = dict.fromkeys(threads, Fraction(0))
    standbys = standby_claims(members)
    stale = staleness(members)
    target: dict[str, list[TaskId]] = {member: [] for member in threads}
    for subtopology in sorted(partitions):
        if partitions[subtopology] < 1:
            raise ValueError(
                f"sub-topology {subtopology} has {partitions[subtopology]} partitions; it needs one at least"
            )
        layout = Layout(
            partitions[subtopology],
            threads,
            ranges,
            share and subtopology not in whole,
        )
        for member, mine in settle(
            layout,
            subtopology,
            {id_: members[id_].target for id_ in threads},
            claims,
            load,
            standbys,
            stale,
        ).items():
            target[member] += mine
    return {member: tuple(sorted(tasks)) for member, tasks in target.items()}


def settle(
    layout: Layout,
    subtopology: int,
    promised: Mapping[str, Iterable[TaskId]],
    claims: Claims,
    load: dict[str, Fraction],
    standbys: Claims = NO_CLAIMS,
    stale: Staleness = ALL_FRESH,
) -> dict[str, list[TaskId]]:
    """Return each member's target in one sub-topology: the promised target while it
    fits, else a new balance.

    Shape: adds each member's target to `load`. Units: partitions. `standbys`: the
    ranges of which members have standbys; they get free ones first, where they are the
    least `stale`.

    Raises:
        AssignmentError: the result would be wrong; a bug here.
    """
    tasks = {
        member: [
            task for task in promised.get(member, ()) if task.subtopology == subtopology
        ]
        for member in layout.threads
    }
    if problem_of(layout, subtopology, tasks):
        tasks = _balanced(layout, subtopology, claims, load, standbys, stale)
        if problem := problem_of(layout, subtopology, tasks):
            raise AssignmentError(f"sub-topology {subtopology}: {problem}")
    cuts = Counter(task.partition for mine in tasks.values() for task in mine)
    for member, mine in tasks.items():
        load[member] += _load(mine, cuts)
    return tasks


def _balanced(
    layout: Layout,
    subtopology: int,
    claims: Claims,
    load: Mapping[str, Fraction],
    standbys: Claims,
    stale: Staleness,
) -> dict[str, list[TaskId]]:
    """Return a new balance of one sub-topology, as tasks. Arguments: see `settle`."""
    balanced = balance(
        layout,
        _of_subtopology(layout, subtopology, claims),
        load,
        _of_subtopology(layout, subtopology, standbys),
        {
            member: {
                at.partition: behind
                for at, behind in mine.items()
                if at.subtopology == subtopology
            }
            for member, mine in stale.items()
        },
    )
    return {
        member: [
            TaskId(subtopology, cell.partition, key_range)
            for cell in cells
            for key_range in cell.ranges
        ]
        for member, cells in balanced.items()
    }


def _of_subtopology(
    layout: Layout,
    subtopology: int,
    claims: Claims,
) -> dict[str, dict[int, list[KeyRange]]]:
    """Return the claims to one sub-topology, by member and partition."""
    return {
        member: {
            task_partition.partition: ranges
            for task_partition, ranges in mine.items()
            if task_partition.subtopology == subtopology
            and task_partition.partition < layout.partitions
        }
        for member, mine in claims.items()
        if member in layout.threads
    }


def _load(tasks: Iterable[TaskId], cuts: Mapping[int, int]) -> Fraction:
    """Return the size of these tasks together, in partitions. `cuts`: the number of key
    ranges that each partition is cut into.
    """
    return sum((Fraction(1, cuts[task.partition]) for task in tasks), Fraction(0))


def problem_of(
    layout: Layout,
    subtopology: int,
    tasks: Mapping[str, Iterable[TaskId]],
) -> str | None:
    """Return what is wrong with a target for one sub-topology (holes, overlaps, cuts,
    unfair shares); None: nothing.
    """
    by_partition: dict[int, list[KeyRange]] = {
        partition: [] for partition in range(layout.partitions)
    }
    for mine in tasks.values():
        for task in mine:
            if task.partition not in by_partition:
                return f"there is no partition {task.partition}"
            by_partition[task.partition].append(task.key_range)
    allowed = {layout.ranges_of(slots) for slots in layout.counts}
    for partition, cut in by_partition.items():
        try:
            check_tiling(cut, f"{subtopology}_{partition}")
        except AssignmentError as error:
            return str(error)
        if len(cut) not in allowed or sorted(cut) != KeyRange.split(len(cut)):
            return (
                f"{subtopology}_{partition} is cut into {len(cut)} key ranges, not "
                f"{' or '.join(map(str, sorted(allowed)))} equal ones"
            )
    return _unfair(
        layout,
        {member: list(mine) for member, mine in tasks.items()},
        {p: len(cut) for p, cut in by_partition.items()},
    )


def _unfair(
    layout: Layout,
    tasks: Mapping[str, list[TaskId]],
    cuts: Mapping[int, int],
) -> str | None:
    """Return a message about a member with too few or too many partitions, or with
    siblings apart without need; None: the target is fair.
    """
    small, large = layout.sizes
    for member, mine in tasks.items():
        low, high = layout.quotas[member]
        load = _load(mine, cuts)
        if not low * small <= load <= high * large:
            return (
                f"member {member} has {float(load):.3f} partitions; with {layout.threads[member]} threads, "
                f"{float(low * small):.3f} to {float(high * large):.3f} are fair"
            )
        together = Counter(task.partition for task in mine)
        if layout.slots == layout.partitions and any(
            cuts[partition] != count for partition, count in together.items()
        ):
            return f"member {member} has tasks without their siblings, although partitions need not be shared"
    return None
