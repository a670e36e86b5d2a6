"""The join of a stream with a global table, by a key that a mapper takes from each
record.

Source: Kafka Streams `KStreamGlobalKTableJoin`.
"""

from __future__ import annotations

from collections.abc import Mapping

from coopstreams.topology.graph.join_nodes import StreamGlobalJoin
from coopstreams.topology.graph.nodes import Node
from coopstreams.topology.operators.codegen import Function, RecordVariables
from coopstreams.topology.operators.compiler import Compiler, Operator


def stream_global_join(
    compiler: Compiler,
    function: Function,
    node: StreamGlobalJoin,
    record: RecordVariables,
) -> None:
    """Generate the join of a record with the current row of the mapped key; the output
    keeps the record's timestamp.
    """
    value = function.value(record)
    function.drop_if(f"{value} is None", node, "null-value")
    unit = compiler.unit
    key = function.fresh("mapped")
    name = compiler.unit.store(node.store)
    row = function.fresh("row")
    named = compiler.call_of(function, "mapper", node.mapper, record, ("key", "value"))
    encode = unit.constant("encode_key", node.store.key.for_keys().serialize)
    with function.guard("processing", node.name):
        function.line(f"{key} = {named}")
        function.line(
            f"{row} = None if {key} is None else load_{name}({encode}({key})).value"
        )
    if not node.left:
        function.drop_if(f"{key} is None", node, "null-key")
        function.skip_if(f"{row} is None")
    call = compiler.call_of(
        function,
        "joiner",
        node.joiner,
        record,
        ("key", "value", row) if node.with_key else ("value", row),
    )
    compiler.forward(
        function, node, record.with_value(function.guarded("value", call, node))
    )


OPERATORS: Mapping[type[Node], Operator] = {StreamGlobalJoin: stream_global_join}
