"""Checks of a sub-topology whose records a share group deals: its sources say `order="none"`.

The broker gives a record to any member, in any order, and again after a failure. So nothing may depend on an earlier
record: no store, no window, no table, no stream time.

Invariant: the results of a record depend only on the record and on global tables.
Turned down: processors (they may keep state, and are scheduled by stream time), and topics by pattern (positions of a
share group cannot be found again when a pattern changes).
"""

from __future__ import annotations

from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.join_nodes import StreamGlobalJoin
from coopstreams.topology.graph.nodes import (
    RECORD_BY_RECORD,
    AsyncMap,
    DynamicSink,
    Node,
    Sink,
    Source,
    SubTopology,
)

_ALLOWED = frozenset({*RECORD_BY_RECORD, AsyncMap, DynamicSink, Sink, StreamGlobalJoin})


def check_unordered(subtopology: SubTopology) -> None:
    """Check that a sub-topology can do without an order, if a source of it says `order="none"`.

    Raises:
        TopologyError: it cannot; names the node and the cure.
    """
    unordered = next((node for node in subtopology.nodes if isinstance(node, Source) and node.unordered), None)
    if unordered is None:
        return
    for node in subtopology.nodes:
        if (why := _needs_order(node)) is not None:
            read = ", ".join(unordered.topics) or unordered.name
            raise TopologyError(f'"{read}" is read with order="none", but {why}')


def _needs_order(node: Node) -> str | None:
    """Return why a node cannot do without an order, and the cure; None if it can."""
    if isinstance(node, Source):
        if node.pattern is not None:
            return f'topics by pattern ("{node.pattern.pattern}") are read in order. Name the topics.'
        if node.internal:
            return f"it meets {node.name}, which is read in order. Write .repartition() before they meet."
        if not node.unordered:
            return (
                f'"{", ".join(node.topics)}" is not, and the two meet in one sub-topology. Say order="none" for both, '
                "or write .repartition() before they meet."
            )
        if node.reset is not None:
            return "reset= is of positions, and its share group begins at auto.offset.reset. Leave it out."
        if node.idle_ms is not None:
            return "idle_advance= moves stream time, which records without an order do not have. Leave it out."
        return None
    if isinstance(node, AsyncMap) and node.calling.order != "none":
        return (
            f'"{node.name}" makes its calls with order="{node.calling.order}". Say order="none" there, too, or write '
            ".repartition() before it."
        )
    if type(node) not in _ALLOWED or getattr(node, "table", False):
        return (
            f'"{node.name}" is a {type(node).__name__}, which may depend on earlier records. Write .repartition() '
            "before it: behind that topic there is an order."
        )
    return None
