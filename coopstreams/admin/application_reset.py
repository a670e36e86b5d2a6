"""Resets an application that has no members: deletes its state and internal topics, and
sets its offsets.

    state       local state of this host, if its folder is named; deleted first, because it is only a cache
    changelogs  deleted; the next start creates them
    offsets     of the source topics: as chosen; of repartition topics: the beginning, because they are created again
    shares      the share group of sources with `order="none"`: deleted; it begins anew at auto.offset.reset
    topics      the other internal ones: deleted; the next start creates the repartition topics. Also deleted are the
                marks of backfills and rebuilds that did not end, and, last, the record
                of the topology version that ran last

The version that ran last is reset together with the given one: the next start may be of
either, and would add to state that is left.

Invariant: only topics that one of the two versions names are touched, and none that
another application has (`preflight.name_claims`). Output topics stay: results are
written again.
Invariant: a topic is deleted only while the group has no members, and only if its id is
the planned one (`log.precondition`). So a suspended reset deletes nothing of an
application that has started meanwhile.
Invariant: an interrupted reset is completed by repeating it. Until then a start is
refused, because the record of the last version names a changelog that is gone
(`preflight.checks`): the start would process records into state that has them already.
Turned down: deleting topics by the prefix of their names (they may belong to an
application whose id begins with this one).
Source: Kafka Streams `StreamsResetter`.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
)
from dataclasses import dataclass, field
from pathlib import Path

from coopstreams.admin.group_reset import never_committed, reset_offsets
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.log import Log
from coopstreams.log.precondition import Precondition
from coopstreams.sharing.share_group import share_group
from coopstreams.state.directory import delete_folder
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import GroupError
from coopstreams.topology.graph.outline import Outline
from coopstreams.topology.graph.partitions import looks_internal
from coopstreams.topology.graph.topic_patterns import matchable
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import marks_topics, topology_topic


@dataclass(frozen=True, slots=True)
class Reset:
    """The plan of a reset.

    `topics`: the internal topics to be deleted besides `changelogs`, in this order.
    `sources`: the partitions whose offsets are to be chosen.
    `begun_anew`: the partitions of repartition topics, whose offsets begin at 0.
    `gone`: repartition topics that another tool has deleted, as Kafka Streams' reset
    does. The group may still have individual commits of them.
    `left`: topics that look like internal topics of the application, but that neither
    version has. They stay.
    `shared`: internal topics that another application has as well, with its id. They
    stay.
    """

    changelogs: tuple[str, ...]
    topics: tuple[str, ...]
    sources: tuple[TopicPartition, ...]
    begun_anew: tuple[TopicPartition, ...]
    gone: tuple[str, ...]
    left: tuple[str, ...]
    share_group: str | None
    """The share group to be deleted, which delivers the records of sources with
    `order="none"`; None: no source has it.
    """
    shared: Mapping[str, str] = field(default_factory=dict)


def plan_reset(
    topology: Topology,
    counts: Mapping[str, int],
    last: Outline | None = None,
    claimed: Callable[[Collection[str]], Mapping[str, str]] = lambda _: {},
) -> Reset:
    """Return the plan of a reset. `counts`: the partition counts of the existing
    topics.

    `topology`: resolved, with its patterns filled in.
    `last`: the version that ran last.
    `claimed`: returns, of the given topics, those that another application has, with
    its id (`name_claims.claims`).

    The application's group has no offsets of global tables' topics, nor of topics that
    a share group reads.
    """
    application = topology.application_id
    known = _internal_topics(topology, last)
    shared = claimed(known)
    internal = {name: kind for name, kind in known.items() if name not in shared}
    changelogs = _of_kind(internal, "changelog")
    repartitions = _of_kind(internal, "repartition")
    others = [name for name in internal if name not in changelogs]
    records = [*marks_topics(application, counts), topology_topic(application)]
    deals = topology.unordered_topics or (last is not None and last.unordered)
    return Reset(
        changelogs=_existing(changelogs, counts),
        topics=_existing([*others, *records], counts),
        sources=_partitions(_sources(topology, counts, last), counts),
        begun_anew=_partitions(repartitions, counts),
        gone=tuple(name for name in repartitions if name not in counts),
        left=_left(topology, counts, known),
        share_group=share_group(application) if deals else None,
        shared=shared,
    )


def _internal_topics(topology: Topology, last: Outline | None) -> dict[str, str]:
    """Return the internal topics of both versions, with the kind of each."""
    kinds: dict[str, str] = {
        topic.name: topic.kind for topic in topology.internal_topics
    }
    if last is None:
        return kinds
    kinds |= dict.fromkeys(last.repartitions, "repartition")
    changelogs = {store.changelog for store in last.stores.values()}
    own = {name for name in changelogs if name is not None} - last.sources
    return kinds | dict.fromkeys(sorted(own), "changelog")


def _sources(
    topology: Topology,
    counts: Mapping[str, int],
    last: Outline | None,
) -> list[str]:
    """Return the source topics of which the application's group has offsets."""
    unplaced = {table.topic for table in topology.global_tables}
    unplaced.update(topology.unordered_topics)
    sources = [topic for topic in topology.source_topics if topic not in unplaced]
    if last is None:
        return sources
    known = {*sources, *last.unordered}
    others = [topic for topic in matchable(topology, counts) if last.reads(topic)]
    return sources + [topic for topic in others if topic not in known]


def _left(
    topology: Topology,
    counts: Mapping[str, int],
    known: Collection[str],
) -> tuple[str, ...]:
    """Return the topics that look like internal topics of the application, but that
    neither version has.
    """
    unknown = (name for name in sorted(counts) if name not in known)
    return tuple(name for name in unknown if looks_internal(topology, name))


def _of_kind(internal: Mapping[str, str], wanted: str) -> list[str]:
    return [name for name, kind in internal.items() if kind == wanted]


def _existing(topics: Iterable[str], counts: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(topic for topic in topics if topic in counts)


def _partitions(
    topics: Iterable[str],
    counts: Mapping[str, int],
) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic, number)
        for topic in topics
        for number in range(counts.get(topic, 0))
    )


def check_stopped(coordinator: GroupAdmin) -> None:
    """Check that the application does not run.

    Raises:
        GroupError: it has members. Stop them; a dead member is removed after
        `session.timeout.ms`.
    """
    if members_text := coordinator.describe().members_text:
        raise GroupError(
            f"group {coordinator.group} has {members_text}: stop all instances, then try again. "
            "One that was killed, and each of Kafka Streams, is counted until its session.timeout.ms is over"
        )


def carry_out(
    log: Log,
    coordinator: GroupAdmin,
    reset: Reset,
    offsets: Mapping[TopicPartition, int],
    folders: Iterable[Path],
    delete_group: Callable[[str], None],
    *,
    at_beginning: bool = False,
) -> None:
    """Reset the application. `offsets`: the new offset of each of its source
    partitions.

    `folders`: local state to delete.
    `delete_group`: deletes a share group (`log.kafka.share_consumer.delete_share_group`).
    `at_beginning`: whether the offsets are those at which a group without offsets
    begins. If so, a group that has never committed stays without offsets. Only such a
    group can run a backfill again, for example after a failed one.

    Raises:
        GroupError: the group has members. Nothing is done; if they joined just now,
            local state and changelogs are deleted.
        FencedError: the group got members, or a topic was made anew, during the reset:
            repeat the reset.
        StateLockedError: a process uses the local state. Stop it.
        LogError: no answer in time, or refused: repeat the reset; the application does
            not start before that.
    """
    check_stopped(coordinator)
    doomed = (*reset.changelogs, *reset.topics)
    may_delete = Precondition(
        log,
        {topic: log.topic_id(topic) for topic in doomed},
        lambda: not coordinator.describe().members_text,
        f"group {coordinator.group} has got members since this reset began, and they may use it: it is not deleted. "
        "Stop all instances, and repeat the reset",
    )
    for folder in folders:
        delete_folder(folder)
    log.delete_topics(reset.changelogs, may_delete)
    targets = {**offsets, **dict.fromkeys(reset.begun_anew, 0)}
    if targets and not (at_beginning and never_committed(log, coordinator, targets)):
        reset_offsets(
            log,
            coordinator,
            targets,
            unnamed=reset.begun_anew,
            gone=reset.gone,
        )
    if reset.share_group is not None:
        delete_group(reset.share_group)
    log.delete_topics(reset.topics, may_delete)
