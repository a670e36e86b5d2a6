"""The operators of the Processor API: one makes record objects for a processor, and
forwards the records it returns; one applies the effects that a call of `process_async`
has recorded.

Source: Kafka Streams `ProcessorNode`, `ProcessorContextImpl`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from coopstreams.topology.graph.nodes import AsyncProcessing, Node, Processing
from coopstreams.topology.operators.codegen import Function, RecordVariables
from coopstreams.topology.operators.compiler import Compiler, Operator


def process(
    compiler: Compiler, function: Function, node: Processing, record: RecordVariables
) -> None:
    """Generate code: the processor is called with the record; its context calls the
    code of the nodes below.
    """
    key_bytes = "None"
    if node.key is not None:
        key_bytes = function.key_as_bytes(record, node.key, node)
    key = function.key(record)
    value = function.value(record)
    work = _work(compiler, node)
    with function.guard("processing", node.name):
        function.line(f"run_{work}({key_bytes}, {key}, {value}, {record.timestamp})")


def do_effects(
    compiler: Compiler,
    function: Function,
    node: AsyncProcessing,
    record: RecordVariables,
) -> None:
    """Generate code: the effects recorded by the record's call are applied; an error of
    the call fails it here.
    """
    assert record.key_bytes is not None, "the keys are those of the topic"
    function.drop_if(f"{record.key_bytes} is None", node, "null-key")
    result = compiler.unit.bind("result", "result = process.result")
    work = _work(compiler, node)
    with function.guard("processing", node.name):
        function.line(
            f"run_{work}({record.key_bytes}, {record.timestamp}, {result}({node.name!r}))"
        )


def _work(compiler: Compiler, node: Processing) -> str:
    """Return the variable of a node's work in a task; with `run_` in front, its method
    for a record.
    """
    unit = compiler.unit
    names = list(
        dict.fromkeys(edge.child.name for edge in compiler.analysis.edges(node))
    )
    key_bytes = "key_bytes" if node.key is not None else None
    after = RecordVariables(node.name, key_bytes, node.key, "value", key="key")
    if len(names) > 1:
        everyone = _way(
            compiler, node, None, lambda body: compiler.call_children(body, node, after)
        )
        ways = {
            name: _way(
                compiler, node, name, partial(_to_one, compiler, node, after, name)
            )
            for name in names
        }
    else:
        everyone = _way(
            compiler, node, None, lambda body: compiler.forward(body, node, after)
        )
        ways = dict.fromkeys(names, everyone)
    work = unit.identifier("work", node.name)
    table = ", ".join(f"{name!r}: {way}" for name, way in ways.items())
    begin = f"{work} = process.begin_work({unit.constant('processing', node)}, stores, {everyone}, {{{table}}})"
    return unit.bind(work, begin, f"run_{work} = {work}.run")


def _way(
    compiler: Compiler,
    node: Processing,
    to: str | None,
    write: Callable[[Function], None],
) -> str:
    """Return a function of (key bytes, key, value, timestamp) for forwarded records;
    `write` writes its body.
    """
    unit = compiler.unit
    name, parameters = unit.shared(
        (node.name, "children", to), unit.identifier("after", node.name), write
    )
    given = ", ".join(
        "process.task_time()" if parameter == "stream_time" else parameter
        for parameter in parameters
    )
    return f"lambda key_bytes, key, value, timestamp: {name}({given})"


def _to_one(
    compiler: Compiler,
    node: Processing,
    record: RecordVariables,
    to: str,
    body: Function,
) -> None:
    compiler.call_children(body, node, record, to)


OPERATORS: Mapping[type[Node], Operator] = {
    Processing: process,
    AsyncProcessing: do_effects,
}
"""The operator of each kind of node."""
