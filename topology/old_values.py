"""Which tables say with each update what they said of the row before.

An old value costs a look at the row, or a store where there was none, so it flows only where somebody asked: an aggregation of a
table (it takes the old row out), a left or outer join (it need not tell of a row that never was), a filter (the same). A filter asks
only if its table is kept anyway *at that moment*; what is attached later does not change what it forwards.

Invariant: a node that sends old values gets them from every parent it needs them from, and the stores behind them exist.
Source: Kafka Streams `KTableImpl.enableSendOldValues`, `KTableSource`, `KTableFilter`, `KTableKTableAbstractJoin`.
"""

from __future__ import annotations

from coopstreams.topology.aggregate_nodes import CogroupMerge, Suppress
from coopstreams.topology.graph import Graph
from coopstreams.topology.join_nodes import TableTableJoin
from coopstreams.topology.nodes import Filter, MapValues, Node, TableSource


def materialize(graph: Graph, name: str) -> None:
    """Make sure that a row of this table can be looked up: the stores at its roots are needed."""
    node = graph.nodes[name]
    if isinstance(node, TableSource):
        assert node.store is not None  # until the graph is cut
        graph.needed_stores.add(node.store.name)
    elif _looks_through(node):
        for parent in node.parents:
            materialize(graph, parent)


def ask_for_old_values(graph: Graph, name: str, *, force: bool) -> bool:
    """Make a table send old values; without `force` only if that needs no store that nobody else needs. Return whether it does."""
    if name in graph.sending_old:
        return True
    node = graph.nodes[name]
    if isinstance(node, TableSource):
        assert node.store is not None  # until the graph is cut
        if not force and node.store.name not in graph.needed_stores:
            return False
        graph.needed_stores.add(node.store.name)
    elif isinstance(node, TableTableJoin | CogroupMerge | Suppress):
        for parent in node.parents:
            ask_for_old_values(graph, parent, force=True)
    elif _looks_through(node) and not ask_for_old_values(graph, node.parents[0], force=force):
        return False
    graph.sending_old.add(name)
    return True


def _looks_through(node: Node) -> bool:
    """Whether a row of the node is found by looking at its parents: it keeps none itself."""
    return isinstance(node, Filter | MapValues | TableTableJoin) and getattr(node, "store", None) is None
