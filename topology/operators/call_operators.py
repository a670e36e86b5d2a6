"""The operators of asynchronous functions, in two forms: in the code that begins the
calls, and in the program that takes their results.

The first is the part of the sub-topology above these nodes, run ahead of the program to
find their arguments. It drops the same records as the program, without reporting them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coopstreams.topology.graph.nodes import (
    Asynchronous,
    AsyncMap,
    AsyncProcessing,
    Node,
    Peek,
)
from coopstreams.topology.operators import choosing, stateless
from coopstreams.topology.operators.codegen import Function, RecordVariables
from coopstreams.topology.operators.compiler import Compiler, Operator


def take_result(
    compiler: Compiler, function: Function, node: AsyncMap, record: RecordVariables
) -> None:
    """Generate code: the result of the record's call, which has ended, is forwarded;
    its error fails the record.
    """
    result = f"{compiler.unit.bind('result', 'result = process.result')}({node.name!r})"
    if node.flat and node.pairs:
        pairs = f"{compiler.unit.constant('pairs_of', _pairs)}({result})"
        stateless.forward_pairs(
            compiler, function, node, record, function.guarded("pairs", pairs, node)
        )
    elif node.flat:
        stateless.forward_values(
            compiler,
            function,
            node,
            record,
            function.guarded("values", f"list({result})", node),
        )
    elif node.pairs:
        stateless.forward_pair(compiler, function, node, record, result)
    else:
        compiler.forward(
            function, node, record.with_value(function.guarded("value", result, node))
        )


def _pairs(answer: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return [(key, value) for key, value in answer]


def begin_call(
    compiler: Compiler, function: Function, node: Asynchronous, record: RecordVariables
) -> None:
    """Generate code: a call with this record is requested."""
    want = compiler.unit.bind("want", "want = process.want")
    if isinstance(node, AsyncProcessing):
        function.drop_if(f"{record.key_bytes} is None", node, "null-key")
    key = (
        function.key(record)
        if isinstance(node, AsyncProcessing) or node.with_key
        else "None"
    )
    function.line(f"{want}({node.name!r}, {key}, {function.value(record)})")


OPERATORS: Mapping[type[Node], Operator] = {AsyncMap: take_result}

AHEAD: Mapping[type[Node], Operator] = {
    **stateless.OPERATORS,
    **choosing.OPERATORS,
    Peek: stateless.pass_on,
    AsyncMap: begin_call,
    AsyncProcessing: begin_call,
}
"""The operators of the code that begins the calls, which leaves the actions of `peek`
to the program.
"""
