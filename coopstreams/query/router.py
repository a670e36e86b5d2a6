"""The route of a query, as a pure function of the placement and the key.

By key: murmur2 gives the partition, the key hash the task, the placement the instance.
By range: to every instance that owns a part of the store. The parts together must cover
the whole hash space of every partition, each hash once; if they do not, the answer is
refused as incomplete.

Invariant: a hash has one owner or none. Two claims for a hash (two generations seen at
once) count as none, because either may be wrong. A hash without an owner is moving, and
the client may ask again.
Relies on: `backend` (`Placement`), `peers` (asks the instance that this names).
Turned down: asking the previous owner of the key (it returns old values while the new
owner already writes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from coopstreams.query.backend import (
    Owner,
    Peer,
    Placement,
    StoreInfo,
)
from coopstreams.topology.errors import AssignmentError
from coopstreams.topology.keys import (
    WHOLE,
    KeyRange,
    check_tiling,
    key_hash,
    partition_of,
)
from coopstreams.topology.task_id import TaskId

Asked: TypeAlias = Literal["any", "local", "forwarded"]
"""The kind of a request: it may be forwarded, it must not be (`local=true`), or it was
forwarded already.
"""


@dataclass(frozen=True, slots=True)
class KeyLocation:
    """The partition and key hash of a key."""

    partition: int
    hash: int


@dataclass(frozen=True, slots=True)
class Here:
    """The route of a query whose key this instance owns."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class There:
    """The route of a query whose key another instance owns: forward it to `url`."""

    owner: Owner
    url: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The route of a query whose key another instance owns, though the client forbids
    forwarding: refuse it with `url`.
    """

    owner: Owner
    url: str


@dataclass(frozen=True, slots=True)
class Moving:
    """The route of a query that no instance can answer now, but one will soon."""

    reason: str


Route: TypeAlias = Here | There | Elsewhere | Moving


def locate(store: StoreInfo, key: bytes) -> KeyLocation:
    """Return the location of a serialised key: the partition as Java's producers choose
    it, and the key hash.
    """
    return KeyLocation(partition_of(key, store.partitions), key_hash(key))


def owner_of(
    placement: Placement,
    store: StoreInfo,
    at: KeyLocation,
) -> Owner | None:
    """Return the owner of a key, or None if there is none or more than one."""
    claims = [
        owner
        for owner in _owners(placement, store, at.partition)
        if at.hash in owner.task.key_range
    ]
    return claims[0] if len(claims) == 1 else None


def route(
    placement: Placement,
    store: StoreInfo,
    at: KeyLocation,
    asked: Asked = "any",
) -> Route:
    """Return the route of a query by key."""
    owner = owner_of(placement, store, at)
    if placement.waits:
        return Moving(
            f"instance {placement.here} does not know the owner of the key: {placement.waits}"
        )
    if owner is None:
        return Moving(
            f"no instance owns the key in partition {at.partition} of {store.name} in generation "
            f"{placement.generation}: it is being handed over"
        )
    if owner.instance.id == placement.here:
        return Here(owner.task)
    if asked == "forwarded":
        return Moving(
            f"task {owner.task} belongs to instance {owner.instance.id} by generation {placement.generation}, not to "
            f"{placement.here}"
        )
    if owner.instance.url is None:
        return Moving(
            f"task {owner.task} belongs to instance {owner.instance.id}, which {owner.instance.unasked}"
        )
    return (
        Elsewhere(owner, owner.instance.url)
        if asked == "local"
        else There(owner, owner.instance.url)
    )


def standbys_of(
    placement: Placement,
    store: StoreInfo,
    at: KeyLocation,
    asked: Asked,
) -> list[Peer]:
    """Return the instances that may answer for the owner of a key, this one first: those
    with a standby of its range.
    """
    found = [
        instance
        for instance in placement.instances
        if (asked == "any" or instance.id == placement.here)
        and (instance.url is not None or instance.id == placement.here)
        and stands_by(instance, store, at)
    ]
    return sorted(found, key=lambda peer: (peer.id != placement.here, peer.id))


def stands_by(instance: Peer, store: StoreInfo, at: KeyLocation) -> bool:
    """Return whether an instance has a standby of a key's range."""
    return any(
        (standby.subtopology, standby.partition) == (store.subtopology, at.partition)
        and at.hash in standby.key_range
        for standby in instance.standbys
    )


def stand_in(
    placement: Placement,
    store: StoreInfo,
    covered: Iterable[tuple[int, KeyRange]],
    asked: Asked = "any",
) -> Mapping[str, tuple[Peer, list[tuple[int, KeyRange]]]]:
    """Return the key ranges of a store that are not covered and of which instances have
    standbys: by instance, each range once.
    """
    left: dict[int, list[KeyRange]] = {n: [WHOLE] for n in range(store.partitions)}
    for partition, key_range in covered:
        if partition in left:
            left[partition] = _without(left[partition], key_range)
    found: dict[str, tuple[Peer, list[tuple[int, KeyRange]]]] = {}
    for instance in sorted(
        placement.instances, key=lambda peer: (peer.id != placement.here, peer.id)
    ):
        here = instance.id == placement.here
        if not here and (asked != "any" or instance.url is None):
            continue
        for standby in instance.standbys:
            if standby.subtopology != store.subtopology:
                continue
            for gap in left.get(standby.partition, ()):
                if (both := gap.intersect(standby.key_range)) is not None:
                    mine = found.setdefault(instance.id, (instance, []))[1]
                    mine.append((standby.partition, both))
            left[standby.partition] = _without(
                left.get(standby.partition, []), standby.key_range
            )
    return found


def _without(ranges: Iterable[KeyRange], gone: KeyRange) -> list[KeyRange]:
    return [left for key_range in ranges for left in key_range.minus([gone])]


def scatter(placement: Placement, store: StoreInfo) -> Sequence[Peer] | Moving:
    """Return the instances that together own a store, this one first; `Moving` if a
    range has no owner that can be asked.
    """
    owners = [
        owner
        for partition in range(store.partitions)
        for owner in _owners(placement, store, partition)
    ]
    missing = coverage_gap(
        store,
        ((owner.task.partition, owner.task.key_range) for owner in owners),
    )
    if placement.waits:
        return Moving(
            f"instance {placement.here} does not know the owners of {store.name}: {placement.waits}"
        )
    if missing is not None:
        return Moving(
            f"{missing} in generation {placement.generation}: being handed over"
        )
    instances = {owner.instance.id: owner.instance for owner in owners}
    for instance in instances.values():
        if instance.url is None and instance.id != placement.here:
            return Moving(
                f"instance {instance.id} has a part of {store.name}, but {instance.unasked}"
            )
    return sorted(
        instances.values(),
        key=lambda instance: (instance.id != placement.here, instance.id),
    )


def coverage_gap(
    store: StoreInfo,
    ranges: Iterable[tuple[int, KeyRange]],
) -> str | None:
    """Return why these (partition, key range) do not cover the store, each hash exactly
    once; None if they do.
    """
    by_partition: dict[int, list[KeyRange]] = {
        partition: [] for partition in range(store.partitions)
    }
    for partition, key_range in ranges:
        by_partition.setdefault(partition, []).append(key_range)
    for partition, found in by_partition.items():
        if partition >= store.partitions:
            return f"{store.name} has {store.partitions} partitions here, but another instance has partition {partition}"
        try:
            check_tiling(found, f"partition {partition} of {store.name}")
        except AssignmentError as error:
            return str(error)
    return None


def _owners(
    placement: Placement,
    store: StoreInfo,
    partition: int,
) -> Sequence[Owner]:
    return (
        ()
        if store.subtopology is None
        else placement.by_partition.get((store.subtopology, partition), ())
    )
