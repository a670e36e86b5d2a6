"""Versioned tables: each record is inserted into the history of its row by its
timestamp, not by its offset.

A record that is older than the row's latest version changes only the past. It is
forwarded as not the latest (`RecordVariables.latest`): streams see it, but aggregations
and joins of tables drop it. A record older than the history retention is dropped as
late.

Source: Kafka Streams `KTableSource` over a `VersionedKeyValueStore`, KIP-914.
"""

from __future__ import annotations

from dataclasses import replace

from coopstreams.topology.graph.nodes import Node, TableSource
from coopstreams.topology.operators.codegen import Function, RecordVariables
from coopstreams.topology.operators.compiler import Compiler
from coopstreams.topology.row_versions import latest_value, put_version
from coopstreams.topology.stores import StoreSpec


def versioned_source(
    compiler: Compiler,
    function: Function,
    node: TableSource,
    store: StoreSpec,
    record: RecordVariables,
) -> None:
    """Generate code: a record becomes a version of its row. The record's key is not
    null.
    """
    value = function.value(record)
    key_bytes = function.key_as_bytes(record, store.key, node)
    now = compiler.stream_time(function, node, record)
    unit = compiler.unit
    assert store.past is not None
    past = unit.store(store.past)
    latest = function.fresh("latest")
    oldest = function.fresh("oldest")
    function.line(f"{oldest} = {now} - {store.history_ms}")
    compiler.drop_late(function, node, record, f"{record.timestamp} < {oldest}")
    entry = compiler.entry_of(function, store, key_bytes)
    if compiler.analysis.wants_old(node):
        old = function.fresh("old")
        function.line(
            f"{old} = {unit.constant('latest_value', latest_value)}({entry}.value)"
        )
        record = replace(record, old=old)
    put = unit.constant("put_version", put_version)
    arguments = f"{entry}, {past}, {key_bytes}, {record.timestamp}, {value}, {oldest}, {store.history_ms}"
    function.line(f"{latest} = {put}({arguments})")
    compiler.touch(function, store, key_bytes, entry)
    compiler.forward(function, node, replace(record, value=value, latest=latest))


def drop_the_past(function: Function, node: Node, record: RecordVariables) -> None:
    """Generate code: a record that changes only the past of its row is dropped; the
    operator uses the latest rows.
    """
    if record.latest is not None:
        function.drop_if(f"not {record.latest}", node, "not-the-latest")
