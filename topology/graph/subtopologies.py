"""Makes a `Topology` from the graph of a builder: cuts the graph into sub-topologies,
and names and collects the internal topics.

A sub-topology is a connected component of the graph. A repartition topic is a sink and
a source without an edge between them, so it separates sub-topologies. They are numbered
in the order of their first nodes, as in Kafka Streams.

Invariant: every node is in one sub-topology, every store has at most one changelog,
every internal topic has a name of its own.
Relies on: `graph` (what was attached), `keyed_state` and `order_and_time` (which
programs are refused), `partitions` (the counts, once topics are known).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.aggregate_nodes import CogroupMerge
from coopstreams.topology.graph.graph import Graph, reads
from coopstreams.topology.graph.join_nodes import (
    ForeignKeyAnswer,
    ForeignKeyResult,
    StreamGlobalJoin,
    StreamStreamJoin,
    TableTableJoin,
    method_of,
    stores_of,
)
from coopstreams.topology.graph.keyed_state import check_processors, shared_state
from coopstreams.topology.graph.nodes import (
    Aggregate,
    DropNullKeys,
    Filter,
    GlobalTable,
    InternalTopic,
    MapValues,
    Node,
    Processing,
    Sink,
    Source,
    StreamTableJoin,
    SubTopology,
    TableSource,
)
from coopstreams.topology.graph.order_and_time import check_silences, check_unordered
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import changelog_topic, internal_topic, topology_topic


def cut(graph: Graph) -> Topology:
    """Return the topology that the graph describes.

    Raises:
        TopologyError: the graph is empty, a topic is read in two ways, a processor's
            stores do not fit, or a topic of the user has the name of an internal one.
    """
    if not graph.nodes:
        raise TopologyError(
            f'the topology "{graph.application_id}" is empty: begin with stream(...) or table(...), or with '
            "add_source(...)"
        )
    nodes = _keeping_null_keys(
        [_resolved(node, graph) for node in graph.nodes.values()]
    )
    given = {
        internal_topic(graph.application_id, made.topic): made.partitions
        for made in graph.repartitions
    }
    topology = assembled(
        graph.application_id,
        _connected(nodes),
        given,
        tuple(graph.global_tables),
    )
    _check_global_topics(graph, nodes)
    _check_connected(graph)
    check_processors(
        nodes,
        {table.store.name: table.store for table in graph.global_tables},
    )
    for part in topology.subtopologies:
        check_unordered(part)
    check_silences(topology)
    _check_topics(
        nodes,
        {
            topology_topic(graph.application_id),
            *(topic.name for topic in topology.internal_topics),
        },
    )
    return topology


def assembled(
    application_id: str,
    components: Iterable[list[Node]],
    given: Mapping[str, int | None],
    global_tables: tuple[GlobalTable, ...],
) -> Topology:
    """Return the topology of some connected components.

    `given`: the partition count of each repartition topic, None unless the user gave
    one.
    """
    subtopologies = tuple(
        _subtopology(number, component) for number, component in enumerate(components)
    )
    internal = (
        *_repartition_topics(given, subtopologies),
        *_changelog_topics(application_id, subtopologies),
    )
    nodes = [node for subtopology in subtopologies for node in subtopology.nodes]
    return Topology(
        application_id,
        subtopologies,
        internal,
        tuple(_copartitioned(nodes)),
        global_tables,
    )


def _resolved(node: Node, graph: Graph) -> Node:
    """Return a node with what is known only now: the names of internal topics, whether a
    table source has a store, whether old values are forwarded.
    """
    if isinstance(node, Source) and node.internal:
        return replace(
            node,
            topics=tuple(
                internal_topic(graph.application_id, topic) for topic in node.topics
            ),
        )
    if isinstance(node, Sink) and node.internal:
        return replace(node, topic=internal_topic(graph.application_id, node.topic))
    if (
        isinstance(node, TableSource)
        and node.store is not None
        and node.store.name not in graph.needed_stores
    ):
        return replace(node, store=None)
    return replace(node, sends_old=True) if node.name in graph.sending_old else node


def _keeping_null_keys(nodes: list[Node]) -> list[Node]:
    """Return the nodes without the `DropNullKeys` nodes above a left or outer join of a
    stream.

    Such a join takes records without a key, and they advance its stream time.

    Source: Kafka Streams `NodesWithRelaxedNullKeyJoinDownstream`.
    """
    above = _above_null_key_joins(nodes)
    parent_of = {
        node.name: node.parents[0]
        for node in nodes
        if isinstance(node, DropNullKeys) and node.name in above
    }
    kept = [node for node in nodes if node.name not in parent_of]
    return [
        replace(
            node,
            parents=tuple(parent_of.get(parent, parent) for parent in node.parents),
        )
        for node in kept
    ]


def _above_null_key_joins(nodes: list[Node]) -> set[str]:
    """Return the names of the nodes above a join that takes records without a key, and
    of the internal topics between them.
    """
    above: set[str] = set()
    for node in reversed(nodes):
        leads = node.name in above or _joins_null_keys(node)
        writes = isinstance(node, Sink) and node.topic in above
        if leads or writes:
            above.update(node.parents)
            if isinstance(node, Source) and node.internal:
                above.update(node.topics)
    return above


def _joins_null_keys(node: Node) -> bool:
    if isinstance(node, StreamTableJoin | StreamGlobalJoin):
        return node.left
    return isinstance(node, StreamStreamJoin) and node.kind != "inner"


def _connected(nodes: list[Node]) -> list[list[Node]]:
    """Return the connected components, in the order of their first nodes, each in the
    order of `nodes`.
    """
    component_of = {node.name: [node] for node in nodes}
    keepers = {
        store.name: node.name for node in reversed(nodes) for store in stores_of(node)
    }
    for node in nodes:
        for other in (*node.parents, *_keepers(node, keepers)):
            if component_of[other] is not component_of[node.name]:
                both = [*component_of[other], *component_of[node.name]]
                component_of |= {member.name: both for member in both}
    position = {node.name: at for at, node in enumerate(nodes)}
    components = {id(component): component for component in component_of.values()}
    ordered = (
        sorted(component, key=lambda node: position[node.name])
        for component in components.values()
    )
    return sorted(ordered, key=lambda component: position[component[0].name])


def _keepers(node: Node, keepers: Mapping[str, str]) -> list[str]:
    """Return the nodes that write the stores a processor uses: they must run in the
    same task.
    """
    return (
        [keepers[store] for store in node.store_names if store in keepers]
        if isinstance(node, Processing)
        else []
    )


def _subtopology(number: int, nodes: list[Node]) -> SubTopology:
    """Return the sub-topology of these nodes, a component of the graph."""
    topics = dict.fromkeys(
        topic for node in nodes if isinstance(node, Source) for topic in node.topics
    )
    stores = dict.fromkeys(
        store for node in nodes for store in stores_of(node)
    )  # processors may share a store
    return SubTopology(number, tuple(nodes), tuple(topics), tuple(stores))


def _repartition_topics(
    given: Mapping[str, int | None],
    subtopologies: tuple[SubTopology, ...],
) -> Iterable[InternalTopic]:
    """Yield the repartition topics; `given`: the partition counts that the user has
    named, else None.
    """
    for subtopology in subtopologies:
        for node in subtopology.nodes:
            if isinstance(node, Sink) and node.internal:
                yield InternalTopic(
                    node.topic,
                    "repartition",
                    subtopology.topics,
                    partitions=given[node.topic],
                )


def _changelog_topics(
    application_id: str,
    subtopologies: tuple[SubTopology, ...],
) -> Iterable[InternalTopic]:
    """Yield the changelogs of these sub-topologies."""
    for subtopology in subtopologies:
        for store in subtopology.stores:
            if store.logged:
                name = changelog_topic(application_id, store.name)
                yield InternalTopic(
                    name,
                    "changelog",
                    subtopology.topics,
                    retention_ms=store.retention_ms,
                )


def _check_global_topics(graph: Graph, nodes: list[Node]) -> None:
    sources = [node for node in nodes if isinstance(node, Source)]
    for table in graph.global_tables:
        if any(reads(source, table.topic) for source in sources):
            raise TopologyError(
                f'topic "{table.topic}" is read as a global table and as a stream or table. Read it in one way.'
            )


def _check_connected(graph: Graph) -> None:
    used = {
        name
        for node in graph.nodes.values()
        if isinstance(node, Processing)
        for name in node.store_names
    }
    for name in graph.added_stores:
        if name not in used:
            raise TopologyError(
                f'no processor uses the store "{name}". Name some in add_state_store(…) or '
                "connect_processor_and_state_stores(…)."
            )


def _check_topics(nodes: list[Node], internal: set[str]) -> None:
    for node in nodes:
        topics = (
            node.topics
            if isinstance(node, Source)
            else (node.topic,)
            if isinstance(node, Sink)
            else ()
        )
        for topic in topics:
            if topic in internal and not node.internal:  # type: ignore[attr-defined]
                raise TopologyError(
                    f'{node.name} uses the topic "{topic}", which is an internal topic of this application. '
                    "Use another topic, or give the store or repartition behind it another name."
                )


_JOINS = (
    StreamTableJoin
    | TableTableJoin
    | StreamStreamJoin
    | ForeignKeyAnswer
    | ForeignKeyResult
)
_KEPT = Aggregate | CogroupMerge | TableSource | Filter | MapValues
"""Tables with a row for each key, if they have a store."""


def _copartitioned(nodes: list[Node]) -> Iterable[tuple[str, tuple[str, ...]]]:
    """Yield, for each operator that needs co-partitioned topics, its name for messages
    and the topics upstream.
    """
    above: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        sides = [above[parent] for parent in node.parents]
        topics = (
            node.topics
            if isinstance(node, Source)
            else tuple(dict.fromkeys(topic for side in sides for topic in side))
        )
        above[node.name] = topics
        if isinstance(node, _JOINS) and len(topics) > 1:
            method = method_of(node)
            yield (
                f'{method} at "{", ".join(sides[0])} → {method}({", ".join(sides[1])})"',
                topics,
            )
        elif isinstance(node, _KEPT) and node.store is not None and len(topics) > 1:
            yield f'table at "{", ".join(topics)} → {node.store.name}"', topics
    yield from shared_state(nodes, above)


def before_windows(
    subtopologies: Iterable[SubTopology],
    timed: frozenset[str],
) -> Mapping[int, frozenset[str]]:
    """Return the sub-topologies whose records reach windows or other rows that expire,
    directly or through other sub-topologies.

    Tasks of key ranges of one partition would read it at different speeds; in a backlog
    they are hours of records apart. The task that is ahead would advance the stream
    time of the windows, and the records of the tasks behind would be late. Timed topics
    (`timed`) are left out: which records are late behind them does not depend on speeds.

    Shape: number of the sub-topology to the names of the stores with rows that expire.
    """
    parts = list(subtopologies)
    fed = [
        (topic, part, _fed(part, topic))
        for part in parts
        for topic in part.topics
        if topic not in timed
    ]
    found: dict[str, frozenset[str]] = {topic: frozenset() for topic, _, _ in fed}
    before: dict[str, frozenset[str]] = {}
    while before != found:  # a sub-topology may write to one that comes earlier
        before = dict(found)
        for topic, part, nodes in fed:
            below = (
                before.get(written, frozenset()) for written in _written(nodes.values())
            )
            found[topic] = found[topic].union(_expiring(part, nodes), *below)
    stores = {
        part.id: frozenset().union(
            *(found.get(topic, ()) for topic in _written(part.nodes))
        )
        for part in parts
    }
    return {number: names for number, names in stores.items() if names}


def _fed(part: SubTopology, topic: str) -> dict[str, Node]:
    """Return the nodes of a sub-topology that records of this topic reach, by name."""
    fed: dict[str, Node] = {}
    for node in part.nodes:  # parents come first
        if (
            topic in node.topics
            if isinstance(node, Source)
            else not fed.keys().isdisjoint(node.parents)
        ):
            fed[node.name] = node
    return fed


def _written(nodes: Iterable[Node]) -> set[str]:
    return {node.topic for node in nodes if isinstance(node, Sink)}


def _expiring(part: SubTopology, fed: Mapping[str, Node]) -> frozenset[str]:
    """Return the names of the stores whose rows expire in the stream time of the nodes
    `fed`.

    Stores of processors are always included: their stream time is that of the task.
    """
    nodes = [
        node for node in part.nodes if node.name in fed or isinstance(node, Processing)
    ]
    stores = [store for node in nodes for store in stores_of(node)]
    limits = {
        spec.name: (spec.retention_ms, spec.ttl_ms, spec.history_ms) for spec in stores
    }
    return frozenset(
        name
        for name, times in limits.items()
        if any(time is not None for time in times)
    )
