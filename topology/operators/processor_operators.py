"""Generates the operators of the Processor API and of asynchronous functions.

The operator of a processor makes record objects for it, and forwards the records that
it returns. The operators of asynchronous functions have two forms: in the code that
begins the calls (`AHEAD`), and in the program that takes their results or effects. The
code that begins the calls is the part of the sub-topology above these nodes. It runs
ahead of the program to find the arguments of the calls. It drops the same records as
the program, without reporting them.

Source: Kafka Streams `ProcessorNode`, `ProcessorContextImpl`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from coopstreams.topology.graph.nodes import (
    Asynchronous,
    AsyncMap,
    AsyncProcessing,
    Node,
    Peek,
    Processing,
)
from coopstreams.topology.operators import stateless
from coopstreams.topology.operators.codegen import RecordVariables
from coopstreams.topology.operators.compiler import Body, Compiler, Operator


def process(
    function: Body,
    node: Processing,
    record: RecordVariables,
) -> None:
    """Generate code that calls the processor with the record. The processor's context
    calls the code of the nodes below.
    """
    key_bytes = "None"
    if node.key is not None:
        key_bytes = function.key_as_bytes(record, node.key, node)
    key = function.key(record)
    value = function.value(record)
    work = _work(function.compiler, node)
    with function.guard("processing", node.name):
        function.line(f"run_{work}({key_bytes}, {key}, {value}, {record.timestamp})")


def do_effects(
    function: Body,
    node: AsyncProcessing,
    record: RecordVariables,
) -> None:
    """Generate code that applies the effects recorded by the record's call. An error of
    the call fails the record here.
    """
    assert record.key_bytes is not None, "the keys are those of the topic"
    function.drop_if(f"{record.key_bytes} is None", node, "null-key")
    result = function.unit.bind("result", "result = process.result")
    work = _work(function.compiler, node)
    with function.guard("processing", node.name):
        function.line(
            f"run_{work}({record.key_bytes}, {record.timestamp}, {result}({node.name!r}))"
        )


def _work(compiler: Compiler, node: Processing) -> str:
    """Return the name of the generated variable for the object that runs a node in a
    task. With the prefix `run_`, it is the variable of its method for a record.
    """
    unit = compiler.unit
    names = list(
        dict.fromkeys(edge.child.name for edge in compiler.analysis.edges(node))
    )
    key_bytes = "key_bytes" if node.key is not None else None
    after = RecordVariables(node.name, key_bytes, node.key, "value", key="key")
    if len(names) > 1:
        everyone = _way(
            compiler,
            node,
            None,
            lambda body: body.call_children(node, after),
        )
        ways = {
            name: _way(
                compiler,
                node,
                name,
                partial(Body.call_children, node=node, record=after, to=name),
            )
            for name in names
        }
    else:
        everyone = _way(compiler, node, None, lambda body: body.forward(node, after))
        ways = dict.fromkeys(names, everyone)
    work = unit.identifier("work", node.name)
    table = ", ".join(f"{name!r}: {way}" for name, way in ways.items())
    begin = f"{work} = process.begin_work({unit.constant('processing', node)}, stores, {everyone}, {{{table}}})"
    return unit.bind(work, begin, f"run_{work} = {work}.run")


def _way(
    compiler: Compiler,
    node: Processing,
    to: str | None,
    write: Callable[[Body], None],
) -> str:
    """Return the code of a function that passes a forwarded record to children: a
    lambda of (key bytes, key, value, timestamp).

    `to`: the name of the only child to pass it to, None for all children. `write`:
    generates the body.
    """
    unit = compiler.unit
    name, parameters = compiler.shared_function(
        (node.name, "children", to),
        unit.identifier("after", node.name),
        write,
    )
    given = ", ".join(
        "process.task_time()" if parameter == "stream_time" else parameter
        for parameter in parameters
    )
    return f"lambda key_bytes, key, value, timestamp: {name}({given})"


def take_result(
    function: Body,
    node: AsyncMap,
    record: RecordVariables,
) -> None:
    """Generate code that forwards the result of the record's finished call. An error of
    the call fails the record.
    """
    result = f"{function.unit.bind('result', 'result = process.result')}({node.name!r})"
    if node.flat and node.pairs:
        pairs = f"{function.unit.constant('pairs_of', _pairs)}({result})"
        stateless.forward_pairs(
            function,
            node,
            record,
            function.guarded("pairs", pairs, node),
        )
    elif node.flat:
        stateless.forward_values(
            function,
            node,
            record,
            function.guarded("values", f"list({result})", node),
        )
    elif node.pairs:
        stateless.forward_pair(function, node, record, result)
    else:
        function.forward(
            node,
            record.with_value(function.guarded("value", result, node)),
        )


def _pairs(answer: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return [(key, value) for key, value in answer]


def begin_call(
    function: Body,
    node: Asynchronous,
    record: RecordVariables,
) -> None:
    """Generate code that requests a call with this record."""
    want = function.unit.bind("want", "want = process.want")
    if isinstance(node, AsyncProcessing):
        function.drop_if(f"{record.key_bytes} is None", node, "null-key")
    key = (
        function.key(record)
        if isinstance(node, AsyncProcessing) or node.with_key
        else "None"
    )
    function.line(f"{want}({node.name!r}, {key}, {function.value(record)})")


OPERATORS: Mapping[type[Node], Operator] = {
    Processing: process,
    AsyncProcessing: do_effects,
    AsyncMap: take_result,
}

AHEAD: Mapping[type[Node], Operator] = {
    **stateless.OPERATORS,
    Peek: stateless.pass_on,
    AsyncMap: begin_call,
    AsyncProcessing: begin_call,
}
"""The operators of the code that begins the calls. It does not run the actions of
`peek`, which the program runs.
"""
