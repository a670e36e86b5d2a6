"""The lineage of nodes and stores: the topics and stores that their records come from,
and the operators that write a store.

`changes` compares two versions of a program by it: under the same name, a store with
another lineage has rows of another meaning.

Invariant: the lineage has all topics and stores anywhere upstream, also those upstream
of internal topics. A pattern stands for itself, because each process notices the topics
that match it at another time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from coopstreams.topology.graph.aggregate_nodes import Suppress, TableAggregate
from coopstreams.topology.graph.join_nodes import (
    BufferedJoin,
    ForeignKeyAnswer,
    ForeignKeyResult,
    StreamStreamJoin,
    TableTableJoin,
    method_of,
    stores_of,
)
from coopstreams.topology.graph.nodes import (
    Aggregate,
    Node,
    Processing,
    Sink,
    Source,
    Structure,
    SubTopology,
)
from coopstreams.topology.serdes import Serde
from coopstreams.topology.windows import AnyWindows

Above: TypeAlias = Mapping[str, frozenset[str]]


def topics_above(topology: Structure) -> Above:
    """Return, for each node by name, all topics that its records come from."""
    return _gathered(
        topology,
        lambda node: read_by(node) if isinstance(node, Source) else frozenset(),
    )


def stores_above(topology: Structure) -> Above:
    """Return, for each store by name, the other stores that its rows are made from:
    those that the nodes above its own write, or look up.
    """
    gathered = _gathered(topology, _stores_used)
    known = {store.name for store in topology.stores}
    above = dict.fromkeys(known, frozenset[str]())
    for node in topology.nodes:
        looked_up = _stores_used(node) - {store.name for store in stores_of(node)}
        for number, store in enumerate(stores_of(node)):
            from_parents = (gathered[parent] for parent in _kept_of(node, number))
            above[store.name] = above[store.name].union(looked_up, *from_parents)
    before: Above = {}
    while (
        before != above
    ):  # a processor that looks a store up is not below the nodes above that store
        before = above
        above = {
            name: stores.union(*(above[other] for other in stores & known))
            for name, stores in above.items()
        }
    return {name: stores & known - {name} for name, stores in above.items()}


def _stores_used(node: Node) -> frozenset[str]:
    named = node.store_names if isinstance(node, Processing) else ()
    return frozenset({store.name for store in stores_of(node)}.union(named))


def _kept_of(node: Node, number: int) -> tuple[str, ...]:
    """Return the parents whose records the `number`th store of a node keeps."""
    if (
        isinstance(node, StreamStreamJoin) and number < 2
    ):  # its first two stores hold one side each
        return (node.parents[number],)
    if isinstance(
        node, BufferedJoin | ForeignKeyAnswer
    ):  # the results depend on the other side, the store does not
        return node.parents[:1]
    return node.parents


def _gathered(topology: Structure, own: Callable[[Node], frozenset[str]]) -> Above:
    """Return, for each node by name, what `own` says of it and of all nodes above it."""
    nodes = topology.nodes
    gathered: dict[str, frozenset[str]] = {node.name: frozenset() for node in nodes}
    written: dict[str, frozenset[str]] = {}
    before: dict[str, frozenset[str]] = {}
    while (
        before != gathered
    ):  # a sub-topology may read a repartition topic that a later one writes
        before = dict(gathered)
        for node in nodes:
            topics = node.topics if isinstance(node, Source) else ()
            gathered[node.name] = own(node).union(
                *(gathered[parent] for parent in node.parents),
                *(written.get(topic, frozenset()) for topic in topics),
            )
            if isinstance(node, Sink) and node.internal:
                written[node.topic] = (
                    written.get(node.topic, frozenset()) | gathered[node.name]
                )
    return gathered


def read_by(source: Source) -> frozenset[str]:
    """Return the topics of a source, or its pattern."""
    return frozenset(
        source.topics if source.pattern is None else [source.pattern.pattern]
    )


@dataclass(frozen=True, slots=True)
class Made:
    """The lineage of a store.

    Shape: `methods` are the operators that write it, such as `count` or
    `StreamStreamJoin`; `reads` are all topics that its rows come from. `held` is the
    serde of the values in the updates that a suppression holds; `left`: whether the
    rows of a foreign-key join include those without a match; `first`: the topics of the
    first side of a left join of tables, which has a row for each of its rows. Of other
    stores they are None.
    """

    methods: frozenset[str]
    reads: frozenset[str]
    windows: AnyWindows | None
    held: Serde[Any] | None = None
    left: bool | None = None
    first: frozenset[str] | None = None


def made(subtopology: SubTopology, above: Above) -> dict[str, Made]:
    """Return the lineage of each store of a sub-topology, by name. Several nodes may
    write one store.
    """
    found: dict[str, Made] = {}
    by_name = {node.name: node for node in subtopology.nodes}
    for node in subtopology.nodes:
        parents = [by_name[parent] for parent in node.parents]
        for number, store in enumerate(stores_of(node)):
            read = node.parents
            if isinstance(node, StreamStreamJoin) and number < 2:
                read = (
                    node.parents[number],
                )  # its first two stores hold one side each
            reads = frozenset[str]().union(*(above[parent] for parent in read))
            before = found.get(store.name, Made(frozenset(), frozenset(), None))
            found[store.name] = _made_by(node, parents, reads, above, before)
    return found


def _made_by(
    node: Node,
    parents: Sequence[Node],
    reads: frozenset[str],
    above: Above,
    before: Made,
) -> Made:
    """Return the lineage of a store, with that by the nodes before this one."""
    windows = node.windows if isinstance(node, Aggregate) else None
    held = node.value if isinstance(node, Suppress) else before.held
    left = before.left
    for parent in reversed(parents):
        if isinstance(parent, ForeignKeyResult):
            left = parent.left
    first = before.first
    if isinstance(node, TableTableJoin) and node.kind == "left":
        first = above[node.parents[0]]
    return Made(
        methods=before.methods | {_method(node)},
        reads=before.reads | reads,
        windows=windows or before.windows,
        held=held,
        left=left,
        first=first,
    )


def _method(node: Node) -> str:
    if isinstance(node, Aggregate | TableAggregate):
        function = node.aggregator if isinstance(node, Aggregate) else node.adder
        return (
            "count"
            if function is None
            else "reduce"
            if node.initializer is None
            else "aggregate"
        )
    if isinstance(node, Processing):  # only the user knows the meaning of its rows
        return Processing.__name__
    return method_of(node) if isinstance(node, TableTableJoin) else type(node).__name__
