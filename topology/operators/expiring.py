"""Rows that expire: a table deletes a row when stream time has passed its timestamp by
the time to live, and forwards the deletion.

The stream time is that of the partitions that feed the table, advanced by all their
records, even those filtered out before the table: it is stored with each position, so a
row expires at the same record after a restart. Rows that are due are deleted before a
record of these topics enters any operator, and when records of other key ranges advance
stream time. The deletion has the timestamp at which the row expired, and no headers.

Invariant: between two records of a key, its row expires at the same place for any
number of key ranges. Turned down: operator times (behind a filter they are unknown
after a restart), and deleting a row at a look-up (nodes below the table would get the
deletion late or never).
"""

from __future__ import annotations

from coopstreams.topology.graph.aggregate_nodes import CogroupMerge
from coopstreams.topology.graph.nodes import Aggregate, Node, Source, TableSource
from coopstreams.topology.operators.codegen import Function, RecordVariables
from coopstreams.topology.operators.compiler import Compiler
from coopstreams.topology.operators.tables import row_key
from coopstreams.topology.stores import StoreSpec


def expiring(compiler: Compiler) -> list[tuple[Node, StoreSpec]]:
    """Return the tables whose rows expire, with their stores."""
    return [
        (node, node.store)
        for node in compiler.analysis.nodes
        if isinstance(node, TableSource | Aggregate | CogroupMerge)
        and not (
            isinstance(node, Aggregate) and node.cogrouped
        )  # its `CogroupMerge` forwards for it
        and node.store is not None
        and node.store.ttl_ms is not None
    ]


def expire(compiler: Compiler, node: Node, store: StoreSpec) -> None:
    """Generate the function that deletes the rows of a table that have expired, and
    forwards the deletions.
    """
    unit = compiler.unit
    name = compiler.unit.store(store)
    unit.expiring[name] = compiler.analysis.topics(node)
    due = unit.function(f"{name}_due")
    due.parameters = ("stream_time",)
    if compiler.caches(node) or not compiler.analysis.edges(node):
        due.line(f"{name}.expired(stream_time)")
        return
    emit = unit.function(f"{name}_emit")
    emit.parameters = ("key_bytes", "old", "timestamp", "stream_time")
    emit.line("value = None")
    compiler.remember(emit, store, "old")
    old = "old" if compiler.analysis.wants_old(node) else None
    record = RecordVariables(
        node.name, "key_bytes", row_key(node, store), "value", has_key=True, old=old
    )
    compiler.forward(emit, node, record)
    with due.loop(
        f"for key_bytes, old, timestamp in process.held({name}.expired(stream_time)):"
    ):
        due.line(
            f"process.under_headers(None, lambda: {emit.name}(key_bytes, old, timestamp, stream_time))"
        )


def expire_first(compiler: Compiler, function: Function, source: Source) -> None:
    """Generate code: before a record enters any operator, the rows that it makes due
    are deleted.
    """
    for name, topics in compiler.unit.expiring.items():
        if not set(topics).isdisjoint(source.topics):
            function.line(f"if stream_time >= {name}.due_ms: {name}_due(stream_time)")
