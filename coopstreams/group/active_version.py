"""The active version of the topology while members run several versions. A pure
function of the members' subscriptions.

    version    the fingerprints of a member's sub-topologies, by number: task ids mean the same to members of one
               version
    active     the version that most members run; of several, the one that was given tasks last
    waiting    members of other versions: they get no tasks, but the reason

Invariant: only members of one version have tasks. A sub-topology's number, the
partitions of its topics and the group's positions on them are defined within one
version only. So the active version gets no tasks before members of other versions have
released theirs: each hash of a source partition has one owner, whichever sub-topologies
read it. Hence, of two versions that claim tasks, the newer claim is right: it was
granted when the group knew of no other.
Turned down: tasks for members of several versions with equal sub-topologies (the
sub-topologies of one program feed its repartition topics and stores together, so half
of an old and half of a new program would mix their results); the version of the leader
(it would change whenever the leader does).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from xxhash import xxh64_hexdigest

from coopstreams.group.assignor import assign
from coopstreams.group.members import (
    NO_GENERATION,
    Assignment,
    Cluster,
    Member,
    MemberInfo,
    MemberState,
    Runs,
)
from coopstreams.group.replicas import replicated_by

Version: TypeAlias = tuple[str, ...]
Members: TypeAlias = Mapping[str, MemberState]


def version_of(info: MemberInfo) -> Version:
    """Return the version of the topology that a member runs; empty: it announces none."""
    return tuple(part.fingerprint for part in info.topology)


def short(version: Version) -> str:
    """Return a version as 8 hex digits, for people."""
    return xxh64_hexdigest("\n".join(version).encode())[:8]


def active_version(members: Members) -> Version:
    """Return the version whose members get all tasks; empty: no member announces a
    version.
    """
    counts = Counter(
        version for state in members.values() if (version := version_of(state.info))
    )

    def order(version: Version) -> tuple[int, int, int]:
        mine = [
            state for state in members.values() if version_of(state.info) == version
        ]
        promised = max(
            (state.generation for state in mine if state.target), default=NO_GENERATION
        )
        held = max(
            (state.generation for state in mine if state.tasks), default=NO_GENERATION
        )
        return counts[version], promised, held

    return max(sorted(counts), key=order, default=())


def still_held(members: Members, active: Version) -> bool:
    """Return whether members of other versions rightly hold tasks. Until they release
    them, no task may be granted.
    """
    newest = max(
        (
            state.generation
            for state in members.values()
            if state.tasks and version_of(state.info) == active
        ),
        default=NO_GENERATION,
    )
    return any(
        state.tasks and version_of(state.info) != active and state.generation >= newest
        for state in members.values()
    )


def assign_active(
    members: Members,
    *,
    ranges: int = 1,
    replicas: int = 0,
    warmups: int = 0,
) -> dict[str, Assignment]:
    """Return the assignment of each member: tasks for the members of the active
    version, the reason why not for the other members. `replicas`: the number of
    standbys of each task; `warmups`: of moves that may be warmed up at a time.

    Raises:
        ValueError, AssignmentError: see `assign`.
    """
    active = active_version(members)
    able = _of_version(members, active)
    topology = _most(able)
    held = still_held(members, active)
    partitions = {
        number: part.partitions
        for number, part in enumerate(topology)
        if part.partitions
    }
    whole = [number for number, part in enumerate(topology) if not part.divisible]
    given = assign(
        partitions,
        able,
        ranges=ranges,
        whole=whole,
        withheld=held,
        replicas=replicas,
        replicated=replicated_by(able),
        warmups=warmups,
    )
    granted = {id_: given[id_].tasks if id_ in given else () for id_ in sorted(members)}
    cluster = Cluster(
        members=tuple(
            Member(
                id_,
                members[id_].info,
                tasks,
                given[id_].standbys if id_ in given else (),
            )
            for id_, tasks in granted.items()
        ),
        partitions=partitions,
    )
    assignments = {}
    for id_, state in members.items():
        if id_ in given:
            assignments[id_] = replace(given[id_], cluster=cluster)
            continue
        error = waits = ""
        if state.info.topology:
            waits = _why(state.info.topology, topology, len(able), len(members))
        else:
            error = _STRANGER.format(id_)
        assignments[id_] = Assignment(
            state.info.process,
            settled=not held,
            cluster=cluster,
            error=error,
            waits=waits,
        )
    return assignments


def _of_version(members: Members, version: Version) -> dict[str, MemberState]:
    """Return the members that run a version; none if the version is empty."""
    return {
        id_: state
        for id_, state in members.items()
        if version and version_of(state.info) == version
    }


_STRANGER = (
    "member {} does not say which topology it runs: it is a consumer, or an instance of an older version of "
    "coopstreams. Give a consumer a group.id of its own; run one version of coopstreams in a group."
)


def _most(able: Members) -> tuple[Runs, ...]:
    """Return the topology of one version's members, each sub-topology with the largest
    partition count that a member sees.

    A member that sees fewer partitions looks for topics again when it gets an unknown
    task. A sub-topology that one member may not divide stays whole, since members learn
    of a changed policy at different times.
    """
    columns = zip(*(state.info.topology for state in able.values()), strict=True)
    return tuple(
        max(column, key=lambda part: part.partitions)._replace(
            divisible=all(part.divisible for part in column)
        )
        for column in columns
    )


def _why(
    mine: tuple[Runs, ...],
    active: tuple[Runs, ...],
    able: int,
    members: int,
) -> str:
    """Return why a member gets no tasks whose topology is `mine`, while the group runs
    `active`, as `able` of its members can.
    """
    here, there = (
        short(tuple(part.fingerprint for part in topology))
        for topology in (mine, active)
    )
    return (
        f"it runs version {here} of the topology, and the group runs {there} ({able} of {members} members): "
        f"{_difference(mine, active)}. It takes over when most members run its version, or the others have left"
    )


def _difference(mine: tuple[Runs, ...], active: tuple[Runs, ...]) -> str:
    """Return how two versions differ, in words."""
    if len(mine) != len(active):
        return f"{len(mine)} sub-topologies, not {len(active)}"
    if sorted(part.fingerprint for part in mine) == sorted(
        part.fingerprint for part in active
    ):
        return "its sub-topologies have other numbers"
    others = [
        (number, a, b)
        for number, (a, b) in enumerate(zip(mine, active, strict=True))
        if a.fingerprint != b.fingerprint
    ]
    counts = ", ".join(
        f"{number} has {a.partitions} partitions, not {b.partitions}"
        for number, a, b in others
        if a.partitions != b.partitions
    )
    numbers = ", ".join(str(number) for number, _, _ in others)
    return f"sub-topology {numbers} differs" + (f" ({counts})" if counts else "")
