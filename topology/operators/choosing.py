"""Operators that choose where a record goes: to a branch, or to a topic.

Source: Kafka Streams `KStreamBranch`, `TopicNameExtractor`.
"""

from __future__ import annotations

from collections.abc import Mapping

from coopstreams.topology.graph.nodes import Branch, DynamicSink, Node, Split
from coopstreams.topology.operators.codegen import Function, RecordVariables
from coopstreams.topology.operators.compiler import Compiler, Operator
from coopstreams.topology.operators.stateless import (
    KEY_AND_VALUE,
    each_partition,
    pass_on,
)


def split(
    compiler: Compiler, function: Function, node: Split, record: RecordVariables
) -> None:
    """Generate the choice of a branch: that of the first true predicate, else the
    default branch, if there is one.
    """
    calls = [
        compiler.call_of(function, "predicate", predicate, record, KEY_AND_VALUE)
        for predicate in node.predicates
    ]
    chosen = "".join(f"{number} if {call} else " for number, call in enumerate(calls))
    branch = function.guarded("branch", f"{chosen}{len(calls)}", node)
    for edge in compiler.analysis.edges(node):
        assert isinstance(edge.child, Branch)
        with function.block(f"if {branch} == {edge.child.number}:"):
            compiler.enter(function, edge, record)


def dynamic_sink(
    compiler: Compiler, function: Function, node: DynamicSink, record: RecordVariables
) -> None:
    """Generate code: a record is appended to the output of the topic that the function
    names, made on first use.
    """
    call = compiler.call_of(function, "topic_of", node.topic_of, record, KEY_AND_VALUE)
    topic = function.guarded("topic", call, node)
    out = function.fresh("out")
    key = function.key_as_bytes(record, node.key, node)
    value = function.value_as_bytes(record, node.value, node)
    with function.guard("production", node.name):
        function.line(f"{out} = outputs.get({topic})")
        with function.block(f"if {out} is None:"):
            function.line(f"{out} = process.begin_output({topic})")
    with each_partition(compiler, function, node, record, topic, out):
        function.line(f"{out}.keys.append({key})")
        function.line(f"{out}.values.append({value})")
        function.line(f"{out}.timestamps.append({record.timestamp})")


OPERATORS: Mapping[type[Node], Operator] = {
    Split: split,
    Branch: pass_on,
    DynamicSink: dynamic_sink,
}
