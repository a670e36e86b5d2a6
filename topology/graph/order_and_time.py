"""Checks that the operators of a program have the order and the stream time that they
need.

`order="none"`: a share group delivers the records. The broker gives one to any member,
in any order, and again after a failure. So nothing may depend on an earlier record: no
store, no window, no table, no stream time.

`idle_advance=` advances the time of a topic's own partitions. A repartition topic has
partitions of its own, which no time mark of the source reaches. Windows behind it would
wait for ever.

Invariant: the results of a record without an order depend only on the record and on
global tables.
Invariant: if the user asked for windows to close in silence, they do. Turned down:
processors without an order (they may keep state, and are scheduled by stream time), and
topics by pattern (positions of a share group cannot be found again when a pattern
changes). Turned down: the source's `idle_advance` for the topics below it. Such a topic
is silent while the tasks that write it stand still, too (a restore, a rebalance):
records that they have not read yet would be late, and the user did not say how long
that may last. Turned down: time marks that tasks pass on. A partition has records of
all partitions above it and of all key ranges, so it is silent only if all of them are,
also those that never had a record.
"""

from __future__ import annotations

from collections.abc import Mapping

from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.aggregate_nodes import Suppress, TableAggregate
from coopstreams.topology.graph.join_nodes import (
    BufferedJoin,
    ForeignKeyAnswer,
    ForeignKeyResult,
    StreamGlobalJoin,
    StreamStreamJoin,
)
from coopstreams.topology.graph.nodes import (
    RECORD_BY_RECORD,
    Aggregate,
    AsyncMap,
    DynamicSink,
    Node,
    Sink,
    Source,
    Structure,
    SubTopology,
)

_ALLOWED = frozenset({*RECORD_BY_RECORD, AsyncMap, DynamicSink, Sink, StreamGlobalJoin})
_TABLES = TableAggregate | ForeignKeyAnswer | ForeignKeyResult
"""Tables behind internal topics that a `repartition()` cannot replace."""


def check_unordered(subtopology: SubTopology) -> None:
    """Check that no node of a sub-topology needs an order, if one of its sources says
    `order="none"`.

    Raises:
        TopologyError: a node needs an order; the message names the node and the cure.
    """
    unordered = next(
        (
            node
            for node in subtopology.nodes
            if isinstance(node, Source) and node.unordered
        ),
        None,
    )
    if unordered is None:
        return
    for node in subtopology.nodes:
        if (why := _needs_order(node)) is not None:
            read = ", ".join(unordered.topics) or unordered.name
            raise TopologyError(f'"{read}" is read with order="none", but {why}')


def check_silences(topology: Structure) -> None:
    """Check that `idle_advance=` of a source reaches the nodes below it that wait for
    stream time.

    Raises:
        TopologyError: a repartition topic lies between; the message names the node, the
        topic and the cure.
    """
    nodes = {node.name: node for node in topology.nodes}
    for node in nodes.values():
        reading = _sources(node, nodes) if holds_results(node) else []
        if any(source.idle_ms is not None for source in reading):
            continue
        for source in reading:
            if (idle := _idle_above(source, nodes)) is not None:
                raise TopologyError(
                    f'"{node.name}" waits for the stream time of "{source.topics[0]}", which idle_advance= of '
                    f'"{", ".join(idle.topics) or idle.name}" does not advance: a silence is that of one topic. Say '
                    "how long that of this topic is: .repartition(idle_advance=...) before the operator, and "
                    ".select_key(...).repartition(idle_advance=...).group_by_key() instead of .group_by(...)."
                )


def _needs_order(node: Node) -> str | None:
    """Return why a node needs an order, and the cure; None if it needs none."""
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


def holds_results(node: Node) -> bool:
    """Whether a node holds results until stream time has passed them."""
    if isinstance(node, Aggregate):
        return node.emit_on_close
    if isinstance(node, StreamStreamJoin):
        return node.kind != "inner"
    return isinstance(node, Suppress | BufferedJoin)


def _sources(node: Node, nodes: Mapping[str, Node]) -> list[Source]:
    """Return the sources from which a node gets its stream time."""
    found = {node.name: node}
    for name in (names := [node.name]):  # the list grows while it is read
        if not isinstance(found[name], _TABLES):
            new = [parent for parent in found[name].parents if parent not in found]
            found |= {parent: nodes[parent] for parent in new}
            names += new
    return [node for node in found.values() if isinstance(node, Source)]


def _idle_above(source: Source, nodes: Mapping[str, Node]) -> Source | None:
    """Return a source with `idle_advance=` from which the records of a repartition
    topic come; None if there is none.
    """
    for sink in nodes.values() if source.internal else ():
        if isinstance(sink, Sink) and sink.internal and sink.topic in source.topics:
            for above in _sources(sink, nodes):
                idle = above if above.idle_ms is not None else _idle_above(above, nodes)
                if idle is not None:
                    return idle
    return None
