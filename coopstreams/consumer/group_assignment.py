"""The assignment of a consumer group, as its leader makes it: the assignor's target,
and the part of the target that is granted now.

In task ids, a topic takes the place of a sub-topology. Its number is a hash of its
name, so that members with different subscriptions agree on the number.

Relies on: `assignors` (the target), `group.claims` (what is granted), `consumer_policy`
(who may share).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from xxhash import xxh32_intdigest

from coopstreams.consumer.assignors import (
    Assignor,
    Held,
    Subscription,
    checked,
)
from coopstreams.group.claims import check_granted, claims_of, grant
from coopstreams.group.members import (
    Assignment,
    Cluster,
    Member,
    MemberState,
)
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.task_id import TaskId


def topic_number(topic: str) -> int:
    """Return the number of a topic in task ids: xxh32 of its name, seed 0. Never change
    it.
    """
    return xxh32_intdigest(topic.encode())


def topic_numbers(topics: Iterable[str]) -> dict[int, str]:
    """Return the topics by their numbers.

    Raises:
        ConfigError: two topics have the same number (one chance in 2^32); read one of
            them in another group.
    """
    numbers: dict[int, str] = {}
    for topic in topics:
        other = numbers.setdefault(topic_number(topic), topic)
        if other != topic:
            raise ConfigError(
                f'the topics "{other}" and "{topic}" have the same number {topic_number(topic)}: read one of them in '
                "another group"
            )
    return numbers


def assign_consumers(
    assignor: Assignor,
    partitions: Mapping[str, int],
    shareable: Collection[str],
    members: Mapping[str, MemberState],
) -> dict[str, Assignment]:
    """Return each member's assignment.

    `partitions`: the partition count of each topic; other topics are not assigned.
    `shareable`: the topics whose partitions may be cut into key ranges.

    Raises:
        AssignmentError: the assignor's ranges overlap or leave a hole; no member is
            assigned anything.
    """
    topics = topic_numbers(partitions)
    consumers = {
        id_: state for id_, state in members.items() if not state.info.topology
    }
    strangers = {id_: state for id_, state in members.items() if state.info.topology}
    wanted = {id_: _subscription(state, topics) for id_, state in consumers.items()}
    assigned = checked(
        partitions,
        wanted,
        shareable,
        assignor(partitions, wanted, shareable),
    )
    target = {id_: _tasks(assigned.get(id_, {})) for id_ in consumers}
    claims = claims_of(consumers)
    # Instances of an application hold tasks whose topics are unknown here: grant
    # nothing until they have released them.
    held = any(state.tasks for state in strangers.values())
    granted = (
        dict.fromkeys(consumers, ())
        if held
        else _whole_or_shared(grant(target, claims), topics, wanted, shareable)
    )
    check_granted(granted, claims)
    settled = granted == target
    cluster = _cluster(partitions, members, granted)

    def assignment(id_: str, state: MemberState) -> Assignment:
        process = state.info.process
        if id_ in strangers:
            error = _STRANGER.format(id_)
            return Assignment(process, settled=settled, cluster=cluster, error=error)
        return Assignment(process, granted[id_], target[id_], settled, cluster)

    return {id_: assignment(id_, state) for id_, state in members.items()}


def _cluster(
    partitions: Mapping[str, int],
    members: Mapping[str, MemberState],
    granted: Mapping[str, tuple[TaskId, ...]],
) -> Cluster:
    """Return what each member learns of all members: their tasks, and the partition
    counts.
    """
    told = tuple(
        Member(id_, members[id_].info, granted.get(id_, ())) for id_ in sorted(members)
    )
    counts = {topic_number(topic): count for topic, count in partitions.items()}
    return Cluster(members=told, partitions=counts)


_STRANGER = (
    "member {} is an instance of an application, and the group is one of consumers. Give one of them another "
    "application.id or group.id."
)


def _subscription(state: MemberState, topics: Mapping[int, str]) -> Subscription:
    known = frozenset(state.topics) & frozenset(topics.values())
    held = _held(state.tasks, topics)
    promised = _held(state.target, topics)
    return Subscription(
        known,
        state.info.allow_key_share,
        held,
        promised,
        state.generation,
    )


def _whole_or_shared(
    granted: Mapping[str, Iterable[TaskId]],
    topics: Mapping[int, str],
    wanted: Mapping[str, Subscription],
    shareable: Collection[str],
) -> dict[str, tuple[TaskId, ...]]:
    """Return the granted tasks, without those that their member may not read yet: a
    member that reads only undivided partitions gets none of a partition's ranges until
    it gets all of them.
    """
    return {
        id_: tuple(
            task
            for task in tasks
            if task.key_range.is_whole
            or (wanted[id_].allow_key_share and topics[task.subtopology] in shareable)
        )
        for id_, tasks in granted.items()
    }


def _held(tasks: Iterable[TaskId], topics: Mapping[int, str]) -> Held:
    held: dict[str, list[TaskId]] = {}
    for task in tasks:
        if task.subtopology in topics:
            held.setdefault(topics[task.subtopology], []).append(task)
    return {
        topic: tuple((task.partition, task.key_range) for task in sorted(some))
        for topic, some in held.items()
    }


def _tasks(held: Held) -> tuple[TaskId, ...]:
    return tuple(
        sorted(
            TaskId(topic_number(topic), partition, key_range)
            for topic, ranges in held.items()
            for partition, key_range in ranges
        )
    )
