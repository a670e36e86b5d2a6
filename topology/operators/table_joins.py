"""The join of two tables: an update of either side meets the row of the other, and their join is an update of the result.

Invariant: the result is that of the relational join of both tables as they are now; it has the larger of the two timestamps.
An update that leaves the result as absent as it was is not forwarded, as far as the old value tells (left and outer joins ask for it).
Source: Kafka Streams `KTableKTableInnerJoin`, `...LeftJoin`, `...RightJoin`, `...OuterJoin`, `KTableKTableJoinMerger`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coopstreams.topology.codegen import Function, Record
from coopstreams.topology.compiler import Compiler, Operator
from coopstreams.topology.join_nodes import TableTableJoin
from coopstreams.topology.nodes import Node
from coopstreams.topology.operators.lookups import Row, joined_value, look_up
from coopstreams.topology.operators.tables import drop_null_key
from coopstreams.topology.operators.versioned import drop_the_past


def table_table_join(compiler: Compiler, function: Function, node: TableTableJoin, record: Record) -> None:
    """An update of the side that `record.side` says."""
    drop_null_key(function, node, record)
    drop_the_past(function, node.name, record)
    record = replace(record, has_key=True, latest=None)
    value, key_bytes = function.value(record), function.key_as_bytes(record, node.key, node)
    other = look_up(compiler, function, node.parents[1 - record.side], record, key_bytes)
    _skip_nothing(function, node, record, value, other)
    result, old, timestamp = function.fresh("value"), None, function.fresh("timestamp")
    joiner = compiler.unit.constant("joiner", node.joiner)
    with function.guard("processing", node.name):
        function.line(f"{result} = {_join(node, joiner, record, value, other)}")
        if node.sends_old and not compiler.caching and record.old is not None:
            old = function.fresh("old")
            function.line(f"{old} = {_join(node, joiner, record, record.old, other)}")
    function.line(f"{timestamp} = {record.timestamp} if {other.value} is None or {record.timestamp} > {other.timestamp} else {other.timestamp}")
    if node.store is not None:
        _keep(compiler, function, node, key_bytes, result, timestamp)
        if compiler.caching:
            return
    known = replace(record, key_bytes=key_bytes, key_serde=node.key, timestamp=timestamp)
    compiler.forward(function, node, known.with_value(result, old))


def _skip_nothing(function: Function, node: TableTableJoin, record: Record, value: str, other: Row) -> None:
    """Write that an update ends here if there is no result and was none."""
    if node.kind == "inner" or (node.kind == "left" and record.side == 1):
        with function.block(f"if {other.value} is None:"):
            function.line(function.skip)
    else:
        assert record.old is not None
        with function.block(f"if {other.value} is None and {value} is None and {record.old} is None:"):
            function.line(function.skip)


def _join(node: TableTableJoin, joiner: str, record: Record, value: str, other: Row) -> str:
    left, right = (value, other.value) if record.side == 0 else (other.value, value)
    known = other.value if node.kind == "inner" or (node.kind == "left" and record.side == 1) else None
    return joined_value(node.kind, joiner, left, right, known=known)


def _keep(compiler: Compiler, function: Function, node: TableTableJoin, key_bytes: str, value: str, timestamp: str) -> None:
    assert node.store is not None
    entry, name = function.fresh("entry"), compiler.unit.store(node.store)
    function.line(f"{entry} = get_{name}({key_bytes}) or load_{name}({key_bytes})")
    function.line(f"{entry}.value = {value}")
    function.line(f"{entry}.timestamp = {timestamp}")
    with function.block(f"if not {entry}.dirty:"):
        function.line(f"touch_{name}({key_bytes}, {entry})")


OPERATORS: Mapping[type[Node], Operator] = {TableTableJoin: table_table_join}
