"""Sources by pattern: a source that reads every topic whose whole name matches,
including topics created later.

Only the cluster knows these topics, so a topology has none for such a source when it is
built. `matched` fills them in whenever the topics of the cluster have been listed, and
recomputes everything that follows from them (internal topics, co-partitioned topics).

Invariant: internal topics never match. These are Kafka's (`__…`), those of any version
of this application, the topic that records its last version, and the marks of its
backfills. Turned down: an error when nothing matches. As in Kafka Streams, the
application waits: a matching topic may be created later.
Relies on: `subtopologies` (what follows from the topics), `instance.subscription`
(looks again and again).
Source: Kafka Streams `InternalTopologyBuilder.updateSubscribedTopics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.nodes import Node, Source
from coopstreams.topology.graph.partitions import looks_internal
from coopstreams.topology.graph.subtopologies import assembled
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import marks_topics, topology_topic


def unmatched(topology: Topology) -> list[str]:
    """Return the patterns that no topic matches."""
    sources = [node for node in topology.nodes if isinstance(node, Source)]
    return [
        node.pattern.pattern
        for node in sources
        if node.pattern is not None and not node.topics
    ]


def matched(topology: Topology, names: Iterable[str]) -> Topology:
    """Return the topology with each pattern filled in with the topics that match it.

    Raises:
        TopologyError: two sources, or a source and a global table, would read the same
        topic. Narrow a pattern.
    """
    if not topology.has_patterns:
        return topology
    candidates = matchable(topology, names)
    components = [
        [_filled(node, candidates) for node in part.nodes]
        for part in topology.subtopologies
    ]
    _check_read_once(topology, [node for component in components for node in component])
    given = {
        topic.name: topic.partitions
        for topic in topology.internal_topics
        if topic.kind == "repartition"
    }
    return assembled(topology.application_id, components, given, topology.global_tables)


def matchable(topology: Topology, names: Iterable[str]) -> list[str]:
    """Return the topics that a pattern may match, sorted by name: all except internal
    topics.
    """
    names = sorted(names)
    application = topology.application_id
    own = {topology_topic(application), *marks_topics(application, names)}
    return [
        name
        for name in names
        if not (name.startswith("__") or name in own or looks_internal(topology, name))
    ]


def _filled(node: Node, candidates: Sequence[str]) -> Node:
    if not isinstance(node, Source) or node.pattern is None:
        return node
    return replace(
        node,
        topics=tuple(name for name in candidates if node.pattern.fullmatch(name)),
    )


def _check_read_once(topology: Topology, nodes: Iterable[Node]) -> None:
    readers = {
        table.topic: f'the global table "{table.store.name}"'
        for table in topology.global_tables
    }
    for node in nodes:
        for topic in node.topics if isinstance(node, Source) else ():
            if topic in readers:
                raise TopologyError(
                    f'topic "{topic}" is read by {readers[topic]} and by "{node.name}". Make a pattern match less, so '
                    "that one reads it."
                )
            readers[topic] = f'"{node.name}"'
