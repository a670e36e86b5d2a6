"""Answers about instances, tasks, keys and stores, from what this instance knows of the
group. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from coopstreams.query.backend import Peer, Placement, StoreInfo
from coopstreams.query.formats import show_key
from coopstreams.query.router import KeyLocation, owner_of, stands_by
from coopstreams.status.model import (
    DealtTopics,
    InstanceStatus,
    KeyMetadata,
    KeyOwner,
    KeyStandby,
    LocatedInstance,
    LocatedStandby,
    LocatedTask,
    Metadata,
    Stores,
    StoreStatus,
    UnreachableInstance,
)
from coopstreams.status.reasons import Reason
from coopstreams.tasks.task_figures import TaskPlace, TaskStatus
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import key_group
from coopstreams.topology.task_id import TaskId


def metadata(
    application: str,
    placement: Placement,
    stores: Mapping[str, StoreInfo],
    status: InstanceStatus,
    sources: Callable[[TaskId], Iterable[TopicPartition]],
) -> Metadata:
    """Return the instances with their tasks and key ranges. `status`: that of this
    instance. `sources`: the partitions that a task reads.
    """
    own = {task.id: task for task in status.tasks}
    no_task = TaskStatus(id="", subtopology=0, partition=0, key_range="")

    def located(instance: Peer, id_: TaskId) -> LocatedTask:
        place = TaskPlace.at(id_)
        here = instance.id == placement.here
        known = own.get(place.id, no_task) if here else no_task
        return LocatedTask(
            id=place.id,
            subtopology=place.subtopology,
            partition=place.partition,
            key_range=place.key_range,
            state=known.state,
            first_hash=str(id_.key_range.start),
            last_hash=str(id_.key_range.end),
            topics=tuple(sorted(source.topic for source in sources(id_))),
            stores=tuple(
                name
                for name, store in sorted(stores.items())
                if store.subtopology == id_.subtopology
            ),
            lag=known.lag,
        )

    return Metadata(
        application,
        placement.generation,
        placement.here,
        tuple(
            DealtTopics(share.subtopology, share.group, share.topics)
            for share in status.shares
        ),
        tuple(
            LocatedInstance(
                instance.id,
                instance.url,
                status.ready if instance.id == placement.here else None,
                tuple(located(instance, task) for task in sorted(instance.tasks)),
                tuple(_standby(task) for task in sorted(instance.standbys)),
            )
            for instance in sorted(placement.instances, key=lambda peer: peer.id)
        ),
    )


def key_metadata(
    placement: Placement,
    store: StoreInfo,
    key: bytes,
    at: KeyLocation,
) -> KeyMetadata:
    """Return the location of a key, its owner and its standbys."""
    owner = owner_of(placement, store, at)
    return KeyMetadata(
        store.name,
        show_key(store.key, key),
        at.partition,
        str(at.hash),
        key_group(at.hash),
        placement.generation,
        None
        if owner is None
        else KeyOwner(
            owner.instance.id,
            owner.instance.url,
            str(owner.task),
            str(owner.task.key_range),
        ),
        tuple(
            KeyStandby(instance.id, instance.url)
            for instance in placement.instances
            if stands_by(instance, store, at)
        ),
    )


def _standby(task: TaskId) -> LocatedStandby:
    place = TaskPlace.at(task)
    return LocatedStandby(
        id=place.id,
        subtopology=place.subtopology,
        partition=place.partition,
        key_range=place.key_range,
        first_hash=str(task.key_range.start),
        last_hash=str(task.key_range.end),
    )


def store_list(
    stores: Mapping[str, StoreInfo],
    sizes: Mapping[str, int] | None,
    unreachable: Iterable[str],
) -> Stores:
    """Return the stores with their sizes; `sizes` None: no entries were counted."""
    return Stores(
        tuple(
            StoreStatus(
                name=name,
                kind=store.kind,
                subtopology=store.subtopology,
                partitions=store.partitions,
                key=store.key.name,
                value=store.value.name,
                window_ms=store.window_ms,
                approximate_entries=None if sizes is None else sizes.get(name, 0),
                misplaced=store.misplaced,
            )
            for name, store in sorted(stores.items())
        ),
        tuple(sorted(unreachable)),
    )


def unreachable_status(instance: Peer, error: Exception) -> UnreachableInstance:
    """Return the status of an instance that does not answer, with the tasks that the
    last assignment gave it.
    """
    return UnreachableInstance(
        id=instance.id,
        url=instance.url,
        state="unreachable",
        live=False,
        ready=False,
        reasons=(Reason("unreachable", str(error)),),
        tasks=tuple(TaskPlace.at(task) for task in sorted(instance.tasks)),
    )
