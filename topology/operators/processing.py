"""The operator of the Processor API: a record becomes an object, and what the processor forwards becomes a record again.

Source: Kafka Streams `ProcessorNode`, `ProcessorContextImpl`.
"""

from __future__ import annotations

from collections.abc import Mapping

from coopstreams.topology.codegen import Function, Record
from coopstreams.topology.compiler import Compiler, Operator
from coopstreams.topology.nodes import Node, Processing


def process(compiler: Compiler, function: Function, node: Processing, record: Record) -> None:
    """The processor is called with the record; the nodes below are a function that its context calls."""
    unit, key_bytes = compiler.unit, "None"
    if node.key is not None:
        key_bytes = function.key_as_bytes(record, node.key, node)
    key, value = function.key(record), function.value(record)
    after = Record("key_bytes" if node.key is not None else None, "key", node.key, None, "value", None, node.name)
    name, parameters = unit.shared((node.name, "children"), unit.identifier("after", node.name), lambda body: compiler.forward(body, node, after))
    work = unit.identifier("work", node.name)
    given = ", ".join("process.task_time()" if parameter == "stream_time" else parameter for parameter in parameters)
    call = f"lambda key_bytes, key, value, timestamp: {name}({given})"
    unit.bind(work, f"{work} = process.begin_work({unit.constant('processing', node)}, stores, {call})", f"run_{work} = {work}.run")
    with function.guard("processing", node.name):
        function.line(f"run_{work}({key_bytes}, {key}, {value}, {record.timestamp})")


OPERATORS: Mapping[type[Node], Operator] = {Processing: process}
"""What compiles them."""
