"""Which tables forward the old value of a row with each update.

An old value costs a lookup, or a store where there was none, so a table forwards it only if an operator below needs it: an aggregation
of a table (it subtracts the old row), a left or outer join, and a filter (neither forwards a deletion of a row that it never forwarded).
A filter asks for it only if the table above has a store already; an operator that is attached later does not change that.

Invariant: a node that forwards old values gets them from each parent it needs them from, and the stores behind them exist.
Source: Kafka Streams `KTableImpl.enableSendOldValues`, `KTableSource`, `KTableFilter`, `KTableKTableAbstractJoin`.
"""

from __future__ import annotations

from coopstreams.topology.graph.aggregate_nodes import CogroupMerge, Suppress
from coopstreams.topology.graph.graph import Graph
from coopstreams.topology.graph.join_nodes import TableTableJoin
from coopstreams.topology.graph.nodes import Filter, MapValues, Node, TableSource


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
    """Make a table forward old values; without `force`, only if that needs no additional store. Return whether it does."""
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
    """Return whether the node has no store, so that its rows are computed from those of its parents."""
    return isinstance(node, Filter | MapValues | TableTableJoin) and getattr(node, "store", None) is None
