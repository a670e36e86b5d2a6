"""Finds joins of a table with itself, or with a table computed from it, where one
record changes both sides.

Without the record cache, when an update of one side reaches the join, the other side
may or may not have changed already. So the join cannot compute its old result from the
update. If a row is deleted, each side finds the other side's row missing, and would
conclude that there never was a result. Therefore the rows as they were before a record
are remembered until the next record. The join looks them up for its old result, and
remembers the results that it forwards for the record.

Invariant: for each record, the join forwards a chain of changes, from its result before
the record to its result after it. Turned down: one update for both sides (Kafka Streams
forwards one for each side), and a store of the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coopstreams.topology.graph.aggregate_nodes import Suppress, TableAggregate
from coopstreams.topology.graph.join_nodes import ForeignKeyResult, TableTableJoin
from coopstreams.topology.graph.nodes import (
    Aggregate,
    Filter,
    MapValues,
    Node,
    StreamTableJoin,
    TableSource,
)
from coopstreams.topology.windows import SessionWindows, SlidingWindows

_KEEPS = TableSource | Aggregate | TableAggregate | Filter | MapValues | TableTableJoin


@dataclass(frozen=True, slots=True)
class SelfJoins:
    """The joins of a sub-topology whose sides have a table in common, and the stores of
    the tables above them.

    A record changes one of the stores `first`, and then perhaps some of the stores
    `behind`.
    """

    joins: frozenset[str] = frozenset()
    first: frozenset[str] = frozenset()
    behind: frozenset[str] = frozenset()


def self_joins(nodes: Sequence[Node], cached: frozenset[str]) -> SelfJoins:
    """Return the joins among `nodes` whose sides have a table in common. Joins in
    `cached`, whose updates the record cache holds back, are left out.

    Joins below sessions, sliding windows and suppressions are left out as well, because
    one record changes several rows there, or none.
    """
    above = _all_above(nodes)
    by_name = {node.name: node for node in nodes}
    joins = [
        node.name
        for node in nodes
        if isinstance(node, TableTableJoin)
        and node.name not in cached
        and _changes_both_sides(node, above, by_name)
    ]
    tables = frozenset().union(joins, *(above[join] for join in joins))
    stores = {
        name: store for name in tables if (store := _store(by_name[name])) is not None
    }
    first = frozenset(
        store for name, store in stores.items() if above[name].isdisjoint(stores)
    )
    return SelfJoins(frozenset(joins), first, frozenset(stores.values()) - first)


def _all_above(nodes: Sequence[Node]) -> dict[str, frozenset[str]]:
    """Return, for each node, the names of all nodes whose records reach it."""
    above: dict[str, frozenset[str]] = {}
    for node in nodes:  # parents come first
        one_side = isinstance(node, StreamTableJoin | ForeignKeyResult)
        feeding = node.parents[:1] if one_side else node.parents
        above[node.name] = frozenset().union(
            feeding,
            *(above[parent] for parent in feeding),
        )
    return above


def _changes_both_sides(
    join: TableTableJoin,
    above: dict[str, frozenset[str]],
    by_name: dict[str, Node],
) -> bool:
    """Return whether one record changes one row on both sides of a join: the sides have
    a table in common, and no table above changes other rows with it.
    """
    if any(_moves_alone(by_name[name]) for name in above[join.name]):
        return False
    left, right = (above[side] | {side} for side in join.parents)
    return any(_store(by_name[name]) is not None for name in left & right)


def _store(node: Node) -> str | None:
    """Return the name of the store in which a node keeps a table, or None."""
    if not isinstance(node, _KEEPS) or node.store is None:
        return None
    return node.store.name


def _moves_alone(node: Node) -> bool:
    if isinstance(node, Suppress):
        return True
    return isinstance(node, Aggregate) and (
        node.emit_on_close or isinstance(node.windows, SessionWindows | SlidingWindows)
    )
