"""Decides whether tasks of a backfill hold the updates of tables back in the record
cache, as live tasks do.

A live task forwards the latest update of each row with a commit, every second or so. A
task of a backfill does so when its buffers are full: perhaps once, at the end of all
history. For operators that follow stream time, these updates would be late.

Invariant: an operator that follows stream time gets each update of a table at the time
of the record that made it.
Turned down: a flush at intervals of stream time (which records are late would depend on
the interval).
"""

from __future__ import annotations

from typing import Final

from coopstreams.common.config import Config
from coopstreams.spark.rounds import Round
from coopstreams.topology.graph.aggregate_nodes import (
    CogroupMerge,
    Suppress,
    TableAggregate,
)
from coopstreams.topology.graph.join_nodes import TableTableJoin, stores_of
from coopstreams.topology.graph.nodes import (
    Aggregate,
    AsyncProcessing,
    Filter,
    MapValues,
    Node,
    Processing,
    Sink,
    SubTopology,
    TableSource,
)
from coopstreams.topology.graph.order_and_time import holds_results
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.operators.analysis import Analysis, Edge

_VIEWS: Final = (Filter, MapValues, TableTableJoin, CogroupMerge)
_TABLES: Final = (*_VIEWS, TableSource, Aggregate, TableAggregate)


def holds_back(
    topology: Topology,
    round_: Round,
    config: Config,
) -> bool:
    """Whether the tables of a round forward the latest update of a row at a flush,
    instead of every update at once.
    """
    return (
        config["statestore.cache.max.bytes"] > 0
        # a question or answer would be joined with other rows than its own
        and not round_.placed
        and not any(
            _follows_time(node)
            for part in _behind(topology, round_.part)
            for node in part.nodes
        )
        and not _feeds_time(round_.part)
    )


def _behind(topology: Topology, part: SubTopology) -> list[SubTopology]:
    """Return the sub-topologies that read what a sub-topology writes, directly or
    through others.
    """
    found = set[int]()
    new = {part.id}
    while new:
        written = {
            node.topic
            for each in new
            for node in topology.subtopologies[each].nodes
            if isinstance(node, Sink)
        }
        new = {
            other.id
            for other in topology.subtopologies
            if not written.isdisjoint(other.topics)
        } - found
        found |= new
    return [topology.subtopologies[each] for each in found]


def _feeds_time(part: SubTopology) -> bool:
    """Whether updates that the record cache would hold back reach a node that follows
    stream time.
    """
    known = Analysis(part).uncached
    below = set[str]()
    """Tables that would be held back, and the nodes that get their updates."""
    for node in part.nodes:
        above = (
            parent
            for side, parent in enumerate(node.parents)
            if Edge(node, side).carries
        )
        if not below.isdisjoint(above):
            if _follows_time(node):
                return True
            below.add(node.name)
        if _has_updates(node) and node.name not in known:
            below.add(node.name)
    return False


def _has_updates(node: Node) -> bool:
    """Whether a node is a table, or a suppression, whose updates may be held back."""
    if isinstance(node, Suppress):
        return True
    return (
        isinstance(node, _TABLES)
        and node.store is not None
        and not getattr(node, "emit_on_close", False)
    )


def _follows_time(node: Node) -> bool:
    """Whether what a node does with a record depends on stream time.

    A suppression does not count: it is flushed behind its table. A view of a table
    counts only if its rows expire.
    """
    if isinstance(node, Suppress):
        return False
    stores = stores_of(node)
    if any(store.ttl_ms is not None for store in stores):
        return True
    if isinstance(node, _VIEWS):
        return False
    windows = any(
        store.retention_ms is not None or store.history_ms is not None
        for store in stores
    )
    return (
        windows
        or holds_results(node)
        or (isinstance(node, Processing) and not isinstance(node, AsyncProcessing))
    )
