"""Generates the operators of tables: upserts from a topic, versions, rows that expire,
and the join of a stream with a table or GlobalKTable.

A row is an `Entry` of the store's write buffer, found by its key bytes with a
dictionary look-up, changed in place and marked dirty once. If the record cache holds
back the updates of a table, the operator forwards none; `flush` forwards each dirty row
once.

Invariant: the forwarded update is the row in the store: (key bytes, new value or None,
timestamp of the row). The old value is forwarded beside the new value only if an
operator below needs it (`Analysis.wants_old`).
Source: Kafka Streams `KTableSource`, `KStreamKTableJoinProcessor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coopstreams.topology.graph.aggregate_nodes import CogroupMerge
from coopstreams.topology.graph.join_nodes import StreamGlobalJoin, TableTableJoin
from coopstreams.topology.graph.nodes import (
    Aggregate,
    Node,
    Source,
    StreamTableJoin,
    TableSource,
)
from coopstreams.topology.operators.codegen import RecordVariables
from coopstreams.topology.operators.compiler import Body, Compiler, Operator
from coopstreams.topology.operators.lookups import LookUp
from coopstreams.topology.row_versions import latest_value, put_version
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec


def table_source(
    function: Body,
    node: TableSource,
    record: RecordVariables,
) -> None:
    """Generate the code by which a record sets the row of its key, and a tombstone
    deletes it. Both are forwarded as updates even if the row does not change.
    """
    drop_null_key(function, node, record)
    record = replace(record, has_key=True)
    if node.store is None:
        function.forward(node, record)
        return
    if node.store.history_ms is not None:
        versioned_source(function, node, node.store, record)
        return
    value = function.value(record)
    key_bytes = function.key_as_bytes(record, node.store.key, node)
    entry = function.entry_of(node.store, key_bytes)
    if function.analysis.wants_old(node) and not function.compiler.caches(node):
        record.old = function.fresh("old")
        function.line(f"{record.old} = {entry}.value")
    function.line(f"{entry}.value = {value}")
    function.line(f"{entry}.timestamp = {record.timestamp}")
    function.touch(node.store, key_bytes, entry)
    function.keep_headers(node, entry)
    if not function.compiler.caches(node):
        function.forward(node, record)


def stream_table_join(
    function: Body,
    node: StreamTableJoin,
    record: RecordVariables,
) -> None:
    """Generate code that joins a stream record with the current row of its key. The
    output keeps the record's timestamp.
    """
    if not node.left:
        drop_null_key(function, node, record)
        record = replace(record, has_key=True)
    checked = record.value or record.value_bytes
    if not record.dense:
        function.drop_if(f"{checked} is None", node, "null-value")
    function.forward(node, join_row(function, node, record, checked))


def join_row(
    function: Body,
    node: StreamTableJoin,
    record: RecordVariables,
    checked: str | None = None,
) -> RecordVariables:
    """Generate code that joins a record with the row of its key; return the result as a
    record.

    `checked`: a variable of the value, as bytes or object, that is known not to be
    None.
    """
    key_bytes = function.key_as_bytes(record, node.store.key, node)
    table = LookUp(function, record, key_bytes, as_of=record.timestamp)
    row = table.row(node.parents[1]).value
    if not node.left:
        function.skip_if(f"{row} is None")
    parts = ("key", "value", row) if node.with_key else ("value", row)
    call = function.call_of("joiner", node.joiner, record, parts)
    if not record.dense and record.value not in (None, checked):
        function.drop_if(
            f"{record.value} is None",
            node,
            "null-value",
        )  # bytes may deserialise to null, as JSON's do
    return record.with_value(function.guarded("value", call, node))


def drop_null_key(
    function: Body,
    node: Node,
    record: RecordVariables,
) -> None:
    """Generate code that drops and counts a record without a key."""
    if not record.has_key:
        function.drop_if(f"{record.key_bytes or record.key} is None", node, "null-key")


def row_key(node: Node, store: StoreSpec) -> Serde[Any]:
    """Return the serde of the keys under which a table stores and forwards its rows."""
    return node.key if isinstance(node, TableTableJoin) else store.row_key or store.key


def versioned_source(
    function: Body,
    node: TableSource,
    store: StoreSpec,
    record: RecordVariables,
) -> None:
    """Generate the code by which a record becomes a version of its row, ordered by
    timestamp. The record's key is not null.

    A record that is older than the row's latest version changes only earlier versions.
    It is forwarded as not the latest (`RecordVariables.latest`): streams receive it,
    but aggregations and joins of tables drop it. A record older than the history
    retention is dropped as late.

    Source: Kafka Streams `KTableSource` over a `VersionedKeyValueStore`, KIP-914.
    """
    value = function.value(record)
    key_bytes = function.key_as_bytes(record, store.key, node)
    now = function.stream_time(node, record)
    unit = function.unit
    assert store.past is not None
    past = unit.store(store.past)
    latest = function.fresh("latest")
    oldest = function.fresh("oldest")
    function.line(f"{oldest} = {now} - {store.history_ms}")
    function.drop_late(node, record, f"{record.timestamp} < {oldest}")
    entry = function.entry_of(store, key_bytes)
    if function.analysis.wants_old(node):
        old = function.fresh("old")
        function.line(
            f"{old} = {unit.constant('latest_value', latest_value)}({entry}.value)"
        )
        record = replace(record, old=old)
    put = unit.constant("put_version", put_version)
    arguments = f"{entry}, {past}, {key_bytes}, {record.timestamp}, {value}, {oldest}, {store.history_ms}"
    function.line(f"{latest} = {put}({arguments})")
    function.touch(store, key_bytes, entry)
    function.forward(node, replace(record, value=value, latest=latest))


def drop_the_past(
    function: Body,
    node: Node,
    record: RecordVariables,
) -> None:
    """Generate code that drops a record that changes only earlier versions of its row,
    for an operator that uses the latest rows.
    """
    if record.latest is not None:
        function.drop_if(f"not {record.latest}", node, "not-the-latest")


def tables_that_expire(compiler: Compiler) -> list[tuple[Node, StoreSpec]]:
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


def expire_rows(
    compiler: Compiler,
    node: Node,
    store: StoreSpec,
) -> None:
    """Generate the function that deletes the expired rows of a table and forwards the
    deletions.

    A table deletes a row when stream time has passed its timestamp by the time to live.
    The stream time is that of the partitions that feed the table, advanced by all their
    records, even those filtered out before the table: it is stored with each position,
    so a row expires at the same record after a restart. The deletion has the timestamp
    at which the row expired, and no headers.

    Invariant: between two records of a key, its row expires at the same place for any
    number of key ranges. Turned down: operator times (below a filter they are unknown
    after a restart), and deleting a row at a look-up (nodes below the table would get
    the deletion late or never).
    """
    unit = compiler.unit
    name = compiler.unit.store(store)
    unit.expiring[name] = compiler.analysis.topics(node)
    due = compiler.function(f"{name}_due")
    due.parameters = ("stream_time",)
    if compiler.caches(node) or not compiler.analysis.edges(node):
        due.line(f"{name}.expired(stream_time)")
        return
    emit = compiler.function(f"{name}_emit")
    emit.parameters = ("key_bytes", "old", "timestamp", "stream_time")
    emit.line("value = None")
    emit.remember(store, "old")
    old = "old" if compiler.analysis.wants_old(node) else None
    record = RecordVariables(
        node.name,
        "key_bytes",
        row_key(node, store),
        "value",
        has_key=True,
        old=old,
    )
    emit.forward(node, record)
    with due.loop(
        f"for key_bytes, old, timestamp in process.held({name}.expired(stream_time)):"
    ):
        due.line(
            f"process.under_headers(None, lambda: {emit.name}(key_bytes, old, timestamp, stream_time))"
        )


def expire_first(function: Body, source: Source) -> None:
    """Generate code that deletes the rows that a record makes due, before the record
    enters any operator.
    """
    for name, topics in function.unit.expiring.items():
        if not set(topics).isdisjoint(source.topics):
            function.line(f"if stream_time >= {name}.due_ms: {name}_due(stream_time)")


def stream_global_join(
    function: Body,
    node: StreamGlobalJoin,
    record: RecordVariables,
) -> None:
    """Generate code that joins a record with the current row of the mapped key. The
    output keeps the record's timestamp.
    """
    value = function.value(record)
    function.drop_if(f"{value} is None", node, "null-value")
    unit = function.unit
    key = function.fresh("mapped")
    name = function.unit.store(node.store)
    row = function.fresh("row")
    named = function.call_of("mapper", node.mapper, record, ("key", "value"))
    encode = unit.constant("encode_key", node.store.key.for_keys().serialize)
    with function.guard("processing", node.name):
        function.line(f"{key} = {named}")
        function.line(
            f"{row} = None if {key} is None else load_{name}({encode}({key})).value"
        )
    if not node.left:
        function.drop_if(f"{key} is None", node, "null-key")
        function.skip_if(f"{row} is None")
    call = function.call_of(
        "joiner",
        node.joiner,
        record,
        ("key", "value", row) if node.with_key else ("value", row),
    )
    function.forward(node, record.with_value(function.guarded("value", call, node)))


OPERATORS: Mapping[type[Node], Operator] = {
    TableSource: table_source,
    StreamTableJoin: stream_table_join,
    StreamGlobalJoin: stream_global_join,
}
