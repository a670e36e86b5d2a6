"""The operator of the Processor API: makes record objects for a processor, and forwards the records it returns.

Source: Kafka Streams `ProcessorNode`, `ProcessorContextImpl`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from coopstreams.topology.graph.nodes import Node, Processing
from coopstreams.topology.operators.codegen import Function, RecordVariables
from coopstreams.topology.operators.compiler import Compiler, Operator


def process(compiler: Compiler, function: Function, node: Processing, record: RecordVariables) -> None:
    """Generate code: the processor is called with the record; its context calls the code of the nodes below."""
    unit, key_bytes = compiler.unit, "None"
    if node.key is not None:
        key_bytes = function.key_as_bytes(record, node.key, node)
    key, value = function.key(record), function.value(record)
    after = RecordVariables(
        "key_bytes" if node.key is not None else None, "key", node.key, None, "value", None, node.name
    )
    names = list(dict.fromkeys(edge.child.name for edge in compiler.analysis.edges(node)))
    if len(names) > 1:
        everyone = _way(compiler, node, None, lambda body: compiler.call_children(body, node, after))
        ways = {name: _way(compiler, node, name, partial(_to_one, compiler, node, after, name)) for name in names}
    else:
        everyone = _way(compiler, node, None, lambda body: compiler.forward(body, node, after))
        ways = dict.fromkeys(names, everyone)
    work, table = unit.identifier("work", node.name), ", ".join(f"{name!r}: {way}" for name, way in ways.items())
    begin = f"{work} = process.begin_work({unit.constant('processing', node)}, stores, {everyone}, {{{table}}})"
    unit.bind(work, begin, f"run_{work} = {work}.run")
    with function.guard("processing", node.name):
        function.line(f"run_{work}({key_bytes}, {key}, {value}, {record.timestamp})")


def _way(compiler: Compiler, node: Processing, to: str | None, write: Callable[[Function], None]) -> str:
    """Return a function of (key bytes, key, value, timestamp) whose body, for a forwarded record, `write` writes."""
    unit = compiler.unit
    name, parameters = unit.shared((node.name, "children", to), unit.identifier("after", node.name), write)
    given = ", ".join("process.task_time()" if parameter == "stream_time" else parameter for parameter in parameters)
    return f"lambda key_bytes, key, value, timestamp: {name}({given})"


def _to_one(compiler: Compiler, node: Processing, record: RecordVariables, to: str, body: Function) -> None:
    compiler.call_children(body, node, record, to)


OPERATORS: Mapping[type[Node], Operator] = {Processing: process}
"""The operator of each kind of node."""
