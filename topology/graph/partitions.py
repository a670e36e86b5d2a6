"""Computes the partition counts of all topics from those of the source topics.

A repartition topic takes the largest count of the topics upstream, with two exceptions:
the user gives it a count, or a join reads it beside other topics. Co-partitioned topics
must have equal counts, so internal topics take the count of existing ones. A changelog
has one partition for each partition of its sub-topology.

Invariant: the result is a function of the topology and the counts; an existing internal
topic with another count is an error.
Source: Kafka Streams `StreamsPartitionAssignor`, `RepartitionTopics`,
`CopartitionedTopicsEnforcer`, `InternalTopicConfig`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from coopstreams.topology.errors import TopologyError, UnknownTopicError
from coopstreams.topology.graph.nodes import InternalTopic
from coopstreams.topology.graph.topology import Topology

_GENERATED = re.compile(
    r"-(COGROUP)?K(STREAM|TABLE)-[A-Z-]+-\d{10}|-STATE-STORE-\d{10}-changelog$"
)
_INTERNAL = re.compile(
    r"-(repartition|changelog|subscription-(registration|response)-topic"
    r"|KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-\d{10}-topic)$"
)
_SEGMENT_BYTES = 50 * 1024 * 1024
_ANY_SIZE = {"retention.bytes": "-1"}


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """An internal topic as the topology needs it. `exists`: whether the cluster already
    has it, with this partition count.
    """

    name: str
    partitions: int
    config: Mapping[str, str]
    exists: bool


@dataclass(frozen=True, slots=True)
class ResolvedTopics:
    """The partition counts of all topics, as `check_partitions` returns them.

    Shape: `partitions` has every topic that is read and every internal topic;
    `tasks[i]` is the number of partitions of sub-topology i. While no topic matches a
    pattern, the counts of its sub-topology and of all internal topics that follow from
    it are 0, and these internal topics are not created.

    `orphans` are existing topics that look like internal topics of this application but
    are not in this topology. Another version of the program left them behind with their
    state, or they belong to an application whose id begins with this id and a '-'. So
    they are a reason to warn, not to stop.
    """

    partitions: Mapping[str, int]
    internal: tuple[TopicPlan, ...]
    tasks: tuple[int, ...]
    orphans: tuple[str, ...]

    @property
    def missing(self) -> tuple[TopicPlan, ...]:
        """The internal topics that must be created."""
        return tuple(plan for plan in self.internal if not plan.exists)


def check_partitions(
    topology: Topology,
    counts: Mapping[str, int],
) -> ResolvedTopics:
    """Return all partition counts, given those of the existing topics.

    Raises:
        UnknownTopicError: source topics do not exist; the message suggests similar
        names.
        TopologyError: co-partitioned topics have different counts, or an internal topic
        exists with another count.
    """
    _check_known(topology, counts)
    partitions = _resolve(topology, counts)
    for where, topics in topology.copartitioned:
        _check_equal(where, topics, partitions)
    partitions |= {table.topic: counts[table.topic] for table in topology.global_tables}
    tasks = tuple(
        max((partitions[topic] for topic in subtopology.topics), default=0)
        for subtopology in topology.subtopologies
    )
    for topic in topology.internal_topics:
        if topic.kind == "changelog":
            above = (partitions[source] for source in topic.partitions_from)
            partitions[topic.name] = max(above, default=0)
    internal = tuple(
        _plan(topic, partitions, counts.get(topic.name))
        for topic in topology.internal_topics
        if partitions[topic.name]
    )
    return ResolvedTopics(partitions, internal, tasks, _orphans(topology, counts))


def _check_known(topology: Topology, counts: Mapping[str, int]) -> None:
    missing = [topic for topic in topology.source_topics if topic not in counts]
    if missing:
        unknown = "; ".join(_unknown(topic, counts) for topic in missing)
        raise UnknownTopicError(
            f"{unknown}. Create it, or correct the name in the topology."
        )


def _orphans(topology: Topology, counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return the topics that look like internal topics of the application, but that the
    topology does not use.
    """
    used = {topic.name for topic in topology.internal_topics}
    used.update(topology.source_topics)
    used.update(topology.sink_topics)
    others = sorted(counts.keys() - used)
    return tuple(topic for topic in others if looks_internal(topology, topic))


def unchecked(topology: Topology) -> dict[str, tuple[str, ...]]:
    """Return the stores that have no changelog of their own, each with the topics whose
    partitions divide its rows.

    Such a store has no changelog at all, or is restored from its source topic. If the
    source topic gets more partitions, no internal topic with the old count prevents a
    start, but keys are then in other partitions than their rows.
    """
    internal = {topic.name for topic in topology.internal_topics}
    return {
        store.name: (store.source,)
        if store.source
        else tuple(topic for topic in part.topics if topic not in internal)
        for part in topology.subtopologies
        for store in part.stores
        if not store.logged
        and not part.unordered
        and (store.source is not None or store.store_type != "in_memory")
    }


def grown(
    topology: Topology,
    before: Mapping[str, int],
    counts: Mapping[str, int],
) -> dict[str, str]:
    """Return the source and repartition topics with more partitions than before, each
    with a text that says what follows.

    `before`: the partition counts with which the application runs. Topics that a share
    group reads are left out: the brokers assign their new partitions too.
    """
    more = _with_more_partitions(topology, before, counts)
    if not more:
        return {}
    refused = ""
    try:
        check_partitions(topology, {**before, **counts})
    except TopologyError as error:
        refused = str(error)
    mixed = unchecked(topology)
    global_topics = {table.topic for table in topology.global_tables}
    found = {}
    for topic in more:
        stores = [store for store, topics in mixed.items() if topic in topics]
        if refused:
            then = f"No instance would start again: {refused}"
        elif stores:
            then = (
                f"No instance would start again: rows of store {', '.join(stores)} are in other partitions than their "
                "keys now. Stop all instances and begin anew with `coopstreams reset`"
            )
        else:
            where = "where auto.offset.reset says"
            if topic in global_topics:
                where = "at their beginning"
            then = f"Stop all instances, then start them: they begin in the new partitions {where}"
        found[topic] = (
            f'"{topic}" has {counts[topic]} partitions, and had {before[topic]} when the application looked: records '
            f"in the new ones are not read. {then}"
        )
    return found


def _with_more_partitions(
    topology: Topology,
    before: Mapping[str, int],
    counts: Mapping[str, int],
) -> list[str]:
    """Return the topics that tasks read and that have got more partitions than
    `before`.
    """
    # The brokers deal the new partitions of a topic without an order.
    read = [
        topic
        for topic in topology.source_topics
        if topic not in topology.unordered_topics
    ]
    read += [
        topic.name for topic in topology.internal_topics if topic.kind == "repartition"
    ]
    return [topic for topic in read if counts.get(topic, 0) > before[topic]]


def check_names(topology: Topology) -> None:
    """Check that every internal topic has an explicit name.

    A generated name contains a counter: adding or removing an operator changes it and
    orphans the topic with its state.

    Raises:
        TopologyError: a topic has a generated name; the message says where to write a
        name.

    Source: KIP-1111 `ensure.explicit.internal.resource.naming`.
    """
    generated = [
        topic.name
        for topic in topology.internal_topics
        if _GENERATED.search(topic.name)
    ]
    if generated:
        raise TopologyError(
            f"internal topics with generated names: {', '.join(generated)}. Give store= to the aggregation, table or "
            "join of two streams, name= to the repartition, grouping, suppress or join they come from, or set "
            "ensure.explicit.internal.resource.naming=false"
        )


def topic_config(
    topic: InternalTopic,
) -> dict[str, str]:
    """Return the topic settings with which an internal topic is created.

    Brokers delete no record by its age or because of the size of the topic. They would
    compare event times with their own clock: on a backlog, open windows would be gone.
    An instance deletes expired windows by stream time (`instance.purge`).
    """
    if topic.kind == "repartition":
        policy = {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            **_ANY_SIZE,
            "segment.bytes": str(_SEGMENT_BYTES),
        }
    elif topic.retention_ms is None:
        policy = {"cleanup.policy": "compact"}
    else:
        # Without `delete`, brokers refuse to delete expired windows when asked, too.
        policy = {
            "cleanup.policy": "compact,delete",
            "retention.ms": "-1",
            **_ANY_SIZE,
        }
    return {**policy, "message.timestamp.type": "CreateTime"}


def _resolve(topology: Topology, counts: Mapping[str, int]) -> dict[str, int]:
    """Return the partition counts of all topics that are read."""
    repartitions = {
        topic.name: topic
        for topic in topology.internal_topics
        if topic.kind == "repartition"
    }
    fixed = {topic: counts[topic] for topic in topology.source_topics}
    fixed |= {
        name: topic.partitions
        for name, topic in repartitions.items()
        if topic.partitions is not None
    }
    known = _Counts(fixed, repartitions, _side_by_side(topology))
    return {
        topic: known.largest(topic, set())
        for subtopology in topology.subtopologies
        for topic in subtopology.topics
    }


@dataclass(frozen=True, slots=True)
class _Counts:
    """The given partition counts, and the topics from which other counts follow.

    `beside`: for each co-partitioned topic, the topics that must have the same count.
    """

    fixed: Mapping[str, int]
    repartitions: Mapping[str, InternalTopic]
    beside: Mapping[str, set[str]]

    def largest(self, topic: str, seen: set[str]) -> int:
        """Return the count of a topic, 0 if it depends only on topics in `seen`."""
        if topic in self.fixed:
            return self.fixed[topic]
        together = self.beside.get(topic, {topic})
        given = [self.fixed[other] for other in together if other in self.fixed]
        if given:
            return max(given)
        seen |= together
        above = {
            source
            for other in together
            for source in self.repartitions[other].partitions_from
        }
        return max(
            (self.largest(source, seen) for source in sorted(above - seen)), default=0
        )


def _side_by_side(topology: Topology) -> dict[str, set[str]]:
    """Return, for each co-partitioned topic, all topics that must have the same count,
    itself included.
    """
    beside: dict[str, set[str]] = {}
    for _, topics in topology.copartitioned:
        together = set(topics).union(*(beside.get(topic, ()) for topic in topics))
        beside |= dict.fromkeys(together, together)
    return beside


def _check_equal(
    where: str,
    topics: tuple[str, ...],
    partitions: Mapping[str, int],
) -> None:
    first = topics[0]
    for topic in topics[1:]:
        if partitions[topic] != partitions[first]:
            operator = where.split(" at ", maxsplit=1)[0]
            raise TopologyError(
                f'{where}: "{first}" has {partitions[first]} partitions, "{topic}" has {partitions[topic]}. '
                f"Add .repartition() before the {operator}, or align the topics."
            )


def _plan(
    topic: InternalTopic,
    partitions: Mapping[str, int],
    existing: int | None,
) -> TopicPlan:
    """Return what is to be created of an internal topic. `existing`: its partition
    count on the cluster; None: it does not exist.
    """
    needed = partitions[topic.name]
    if existing is not None and existing != needed:
        like = next(
            (
                f', as many as "{above}" has'
                for above in topic.partitions_from
                if partitions.get(above) == needed
            ),
            "",
        )
        raise TopologyError(
            f'the internal topic "{topic.name}" has {existing} partitions, the topology needs {needed}{like}: it was '
            "made by another version of the program, or by hand, or a source topic has grown. Stop all instances and "
            "begin anew with `coopstreams reset`, which deletes it, or give the changed program another application id."
        )
    return TopicPlan(
        topic.name,
        needed,
        topic_config(topic),
        existing is not None,
    )


def looks_internal(topology: Topology, topic: str) -> bool:
    """Whether a topic is named like an internal topic of any version of this
    application.

    Source: Kafka Streams `StreamsResetter.matchesInternalTopicFormat`.
    """
    return (
        topic.startswith(f"{topology.application_id}-")
        and _INTERNAL.search(topic) is not None
    )


def _unknown(topic: str, counts: Mapping[str, int]) -> str:
    near = get_close_matches(topic, counts, n=1)
    return f'there is no topic "{topic}"' + (
        f' (did you mean "{near[0]}"?)' if near else ""
    )
