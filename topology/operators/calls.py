"""The operators of asynchronous functions, in two forms: in the code that begins the calls, and in the program that
takes their results.

The first is the part of the sub-topology above these nodes, run ahead of the program to find their arguments. It drops
the same records as the program, without reporting them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coopstreams.topology.graph.nodes import Asynchronous, AsyncMap, AsyncProcessing, Node, Peek
from coopstreams.topology.operators import choosing, stateless
from coopstreams.topology.operators.codegen import Function, RecordVariables
from coopstreams.topology.operators.compiler import Compiler, Operator


def take_result(compiler: Compiler, function: Function, node: AsyncMap, record: RecordVariables) -> None:
    """Generate code: the result of the record's call, which has ended, is forwarded; its error fails the record."""
    result = compiler.unit.bind("result", "result = process.result")
    value = function.fresh("value")
    if node.flat:
        many = function.fresh("values")
        constant = compiler.unit.constant("pairs_of", _pairs) if node.pairs else "list"
        with function.guard("processing", node.name):
            function.line(f"{many} = {constant}({result}({node.name!r}))")
        if node.pairs:
            key = function.fresh("key")
            with function.loop(f"for {key}, {value} in {many}:"):
                compiler.forward(function, node, record.with_key(key).with_value(value))
            return
        if record.key is None and compiler.analysis.below(node, record.key_serde, None).key:
            function.key(record)  # once, not in each iteration
        with function.loop(f"for {value} in {many}:"):
            compiler.forward(function, node, record.with_value(value))
        return
    if not node.pairs:
        with function.guard("processing", node.name):
            function.line(f"{value} = {result}({node.name!r})")
        compiler.forward(function, node, record.with_value(value))
        return
    key = function.fresh("key")
    with function.guard("processing", node.name):
        function.line(f"{key}, {value} = {result}({node.name!r})")
    compiler.forward(function, node, record.with_key(key).with_value(value))


def _pairs(answer: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return [(key, value) for key, value in answer]


def begin_call(compiler: Compiler, function: Function, node: Asynchronous, record: RecordVariables) -> None:
    """Generate code: a call with this record is requested."""
    want = compiler.unit.bind("want", "want = process.want")
    if isinstance(node, AsyncProcessing):
        function.drop_if(f"{record.key_bytes} is None", node, "null-key")
    key = function.key(record) if isinstance(node, AsyncProcessing) or node.with_key else "None"
    function.line(f"{want}({node.name!r}, {key}, {function.value(record)})")


OPERATORS: Mapping[type[Node], Operator] = {AsyncMap: take_result}

AHEAD: Mapping[type[Node], Operator] = {
    **stateless.OPERATORS,
    **choosing.OPERATORS,
    Peek: stateless.pass_on,
    AsyncMap: begin_call,
    AsyncProcessing: begin_call,
}
"""The operators of the code that begins the calls, which leaves the actions of `peek` to the program."""
