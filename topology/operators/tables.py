"""Tables: upserts from a topic, and the join of a stream with a table.

A row is an `Entry` of the store's write buffer, found by its key bytes with a
dictionary look-up, changed in place and marked dirty once. If the record cache holds
back the updates of a table, the operator forwards none; `flush` forwards each dirty row
once.

Invariant: what is forwarded is what the store holds: (key bytes, new value or None,
timestamp of the row). The old value is forwarded beside the new one only if an operator
below needs it (`Analysis.wants_old`).
Source: Kafka Streams `KTableSource`, `KStreamKTableJoinProcessor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coopstreams.topology.graph.join_nodes import TableTableJoin
from coopstreams.topology.graph.nodes import Node, StreamTableJoin, TableSource
from coopstreams.topology.operators.codegen import Function, RecordVariables
from coopstreams.topology.operators.compiler import Compiler, Operator
from coopstreams.topology.operators.lookups import look_up
from coopstreams.topology.operators.versioned import versioned_source
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec


def table_source(
    compiler: Compiler, function: Function, node: TableSource, record: RecordVariables
) -> None:
    """Generate code: a record sets the row of its key, a tombstone deletes it. Both are
    updates, changed or not.
    """
    drop_null_key(function, node, record)
    record = replace(record, has_key=True)
    if node.store is None:
        compiler.forward(function, node, record)
        return
    if node.store.history_ms is not None:
        versioned_source(compiler, function, node, node.store, record)
        return
    value = function.value(record)
    key_bytes = function.key_as_bytes(record, node.store.key, node)
    entry = compiler.entry_of(function, node.store, key_bytes)
    if compiler.analysis.wants_old(node) and not compiler.caches(node):
        record.old = function.fresh("old")
        function.line(f"{record.old} = {entry}.value")
    function.line(f"{entry}.value = {value}")
    function.line(f"{entry}.timestamp = {record.timestamp}")
    compiler.touch(function, node.store, key_bytes, entry)
    compiler.keep_headers(function, node, entry)
    if not compiler.caches(node):
        compiler.forward(function, node, record)


def stream_table_join(
    compiler: Compiler,
    function: Function,
    node: StreamTableJoin,
    record: RecordVariables,
) -> None:
    """Generate the join of a stream record with the current row of its key; the output
    keeps the record's timestamp.
    """
    if not node.left:
        drop_null_key(function, node, record)
        record = replace(record, has_key=True)
    checked = record.value or record.value_bytes
    if not record.dense:
        function.drop_if(f"{checked} is None", node, "null-value")
    compiler.forward(
        function, node, join_row(compiler, function, node, record, checked)
    )


def join_row(
    compiler: Compiler,
    function: Function,
    node: StreamTableJoin,
    record: RecordVariables,
    checked: str | None = None,
) -> RecordVariables:
    """Generate the join of a record with the row of its key; return the result as a
    record.

    `checked`: a variable of the value, as bytes or object, that is known not to be
    None.
    """
    row = look_up(
        compiler,
        function,
        node.parents[1],
        record,
        function.key_as_bytes(record, node.store.key, node),
        as_of=record.timestamp,
    ).value
    if not node.left:
        function.skip_if(f"{row} is None")
    parts = ("key", "value", row) if node.with_key else ("value", row)
    call = compiler.call_of(function, "joiner", node.joiner, record, parts)
    if not record.dense and record.value not in (None, checked):
        function.drop_if(
            f"{record.value} is None", node, "null-value"
        )  # bytes may deserialise to null, as JSON's do
    return record.with_value(function.guarded("value", call, node))


def drop_null_key(function: Function, node: Node, record: RecordVariables) -> None:
    """Generate code: a record without a key is dropped."""
    if not record.has_key:
        function.drop_if(f"{record.key_bytes or record.key} is None", node, "null-key")


def row_key(node: Node, store: StoreSpec) -> Serde[Any]:
    """Return the serde of the keys under which a table stores and forwards its rows."""
    return node.key if isinstance(node, TableTableJoin) else store.row_key or store.key


OPERATORS: Mapping[type[Node], Operator] = {
    TableSource: table_source,
    StreamTableJoin: stream_table_join,
}
