"""Topics by pattern: a source reads every topic whose whole name matches, those of now and those to come.

Which they are, only the cluster can say, so a topology as it is built has no topics for such a source. `matched` fills
them in, each time somebody has looked; everything that follows from the topics (internal topics, what must agree in
partitions) is computed again.

Invariant: internal topics never match: Kafka's (`__…`), and those of this application or of an older form of it.
Turned down: an error when nothing matches. As in Kafka Streams the application waits: the first such topic may be made
tomorrow.
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


def unmatched(topology: Topology) -> list[str]:
    """Return the patterns that no topic matches."""
    sources = [node for part in topology.subtopologies for node in part.nodes if isinstance(node, Source)]
    return [node.pattern.pattern for node in sources if node.pattern is not None and not node.topics]


def matched(topology: Topology, names: Iterable[str]) -> Topology:
    """Return the topology as it was built, its patterns filled in with those of these topics that match.

    Raises:
        TopologyError: a topic would be read twice.
    """
    if not topology.has_patterns:
        return topology
    candidates = [name for name in sorted(names) if not name.startswith("__") and not looks_internal(topology, name)]
    pieces = [[_filled(node, candidates) for node in part.nodes] for part in topology.subtopologies]
    _check_read_once(topology, [node for piece in pieces for node in piece])
    given = {topic.name: topic.partitions for topic in topology.internal_topics if topic.kind == "repartition"}
    return assembled(topology.application_id, pieces, given, topology.global_tables)


def _filled(node: Node, candidates: Sequence[str]) -> Node:
    if not isinstance(node, Source) or node.pattern is None:
        return node
    return replace(node, topics=tuple(name for name in candidates if node.pattern.fullmatch(name)))


def _check_read_once(topology: Topology, nodes: Iterable[Node]) -> None:
    readers = {table.topic: f'the global table "{table.store.name}"' for table in topology.global_tables}
    for node in nodes:
        for topic in node.topics if isinstance(node, Source) else ():
            if topic in readers:
                raise TopologyError(
                    f'topic "{topic}" is read by {readers[topic]} and by "{node.name}". Make a pattern match less, so '
                    "that one reads it."
                )
            readers[topic] = f'"{node.name}"'
