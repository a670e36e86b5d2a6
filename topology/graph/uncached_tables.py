"""Finds the tables that forward each update at once although the record cache is on.

A join of two tables forwards the difference since the last flush. That is right if both
sides hold back their updates until the flush, or neither does. So if one side is not
cached, neither are the other side and the join.

Invariant: the tables that a join looks up, and the join itself, are all cached or all
uncached. Turned down: caching one side alone (a row that comes and goes between two
flushes would leave a join result that is never retracted).
Relies on: `operators.analysis` and `known_folds` (ask here).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coopstreams.topology.graph.aggregate_nodes import CogroupMerge
from coopstreams.topology.graph.join_nodes import TableTableJoin
from coopstreams.topology.graph.nodes import Filter, MapValues, Node


def uncached(nodes: Sequence[Node]) -> frozenset[str]:
    """Return the names of the uncached tables: their store is not `cached`, or they are
    versioned, or they are joined with an uncached table.
    """
    by_name = {node.name: node for node in nodes}
    found = {node.name for node in nodes if _tells_at_once(node)}
    together = [
        _beside(node, by_name)
        for node in nodes
        if isinstance(node, TableTableJoin | CogroupMerge)
    ]
    while (
        spread := {
            name for group in together if not group.isdisjoint(found) for name in group
        }
        - found
    ):
        found |= spread
    return frozenset(found)


def _tells_at_once(node: Node) -> bool:
    store = getattr(node, "store", None)
    return store is not None and (not store.cached or store.history_ms is not None)


def _beside(node: Node, by_name: Mapping[str, Node]) -> set[str]:
    """Return a table and the tables that it looks up, directly or through views."""
    return {node.name}.union(
        *(_looked_into(by_name[parent], by_name) for parent in node.parents)
    )


def _looked_into(node: Node, by_name: Mapping[str, Node]) -> set[str]:
    if isinstance(node, Filter | MapValues) and node.store is None:
        return _looked_into(by_name[node.parents[0]], by_name)
    return {node.name}
