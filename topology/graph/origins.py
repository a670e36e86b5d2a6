"""The lineage of nodes and stores: the topics that their records come from, and the operators that write a store.

`changes` compares two versions of a program by it: under the same name, a store with another lineage has rows of
another meaning.

Invariant: the lineage has all topics that are read anywhere upstream, also those upstream of internal topics. A pattern
stands for itself, because each process notices the topics that match it at another time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from coopstreams.topology.graph.aggregate_nodes import TableAggregate
from coopstreams.topology.graph.join_nodes import StreamStreamJoin, TableTableJoin, method_of, stores_of
from coopstreams.topology.graph.nodes import Aggregate, Node, Processing, Sink, Source, Structure, SubTopology
from coopstreams.topology.windows import AnyWindows

Above: TypeAlias = Mapping[str, frozenset[str]]


def topics_above(topology: Structure) -> Above:
    """Return, for each node by name, all topics that its records come from."""
    nodes = [node for subtopology in topology.subtopologies for node in subtopology.nodes]
    above: dict[str, frozenset[str]] = {node.name: frozenset() for node in nodes}
    written: dict[str, frozenset[str]] = {}
    before: dict[str, frozenset[str]] = {}
    while before != above:  # a sub-topology may read a repartition topic that a later one writes
        before = dict(above)
        for node in nodes:
            if isinstance(node, Source):
                topics = read_by(node)
                above[node.name] = topics.union(*(written.get(topic, frozenset()) for topic in topics))
            else:
                above[node.name] = frozenset().union(*(above[parent] for parent in node.parents))
            if isinstance(node, Sink) and node.internal:
                written[node.topic] = written.get(node.topic, frozenset()) | above[node.name]
    return above


def read_by(source: Source) -> frozenset[str]:
    """Return the topics of a source, or its pattern."""
    return frozenset(source.topics if source.pattern is None else [source.pattern.pattern])


@dataclass(frozen=True, slots=True)
class Made:
    """The lineage of a store.

    Shape: `methods` are the operators that write it, such as `count` or `StreamStreamJoin`; `reads` are all topics that
    its rows come from.
    """

    methods: frozenset[str]
    reads: frozenset[str]
    windows: AnyWindows | None


def made(subtopology: SubTopology, above: Above) -> dict[str, Made]:
    """Return the lineage of each store of a sub-topology, by name. Several nodes may write one store."""
    found: dict[str, Made] = {}
    for node in subtopology.nodes:
        windows = node.windows if isinstance(node, Aggregate) else None
        for number, store in enumerate(stores_of(node)):
            parents = (
                (node.parents[number],) if isinstance(node, StreamStreamJoin) and number < 2 else node.parents
            )  # its first two stores hold one side each
            reads = frozenset[str]().union(*(above[parent] for parent in parents))
            before = found.get(store.name, Made(frozenset(), frozenset(), None))
            found[store.name] = Made(before.methods | {_method(node)}, before.reads | reads, windows or before.windows)
    return found


def _method(node: Node) -> str:
    if isinstance(node, Aggregate | TableAggregate):
        function = node.aggregator if isinstance(node, Aggregate) else node.adder
        return "count" if function is None else "reduce" if node.initializer is None else "aggregate"
    if isinstance(node, Processing):  # only the user knows the meaning of its rows
        return Processing.__name__
    return method_of(node) if isinstance(node, TableTableJoin) else type(node).__name__
