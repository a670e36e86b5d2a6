"""Generates the join of two streams: each record is joined with the other stream's
records of its key that are near in time.

`JoinMemory` keeps the records and finds the pairs. This module adds null keys and
values, stream time, and the joiner.

Invariant: results come in the order in which Kafka Streams forwards them: first the
records without a match whose window has closed, then the matches by timestamp and
arrival.
Source: Kafka Streams `KStreamKStreamJoin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from coopstreams.topology.graph.join_nodes import StreamStreamJoin
from coopstreams.topology.graph.nodes import Node
from coopstreams.topology.operators.codegen import RecordVariables
from coopstreams.topology.operators.compiler import Body, Compiler, Operator
from coopstreams.topology.operators.join_memory import JoinMemory


def stream_stream_join(
    function: Body,
    node: StreamStreamJoin,
    record: RecordVariables,
) -> None:
    """Generate code that joins a record of the side `record.side` with the other
    side.
    """
    outer = node.kind == "outer" or (node.kind == "left" and record.side == 0)
    value = function.value(record)
    key_bytes = function.key_as_bytes(record, node.key, node)
    now = function.stream_time(node, record)
    memory = _memory(function.compiler, node)
    _drop_if(function, node, f"{value} is None", "null-value", f"{memory}.skip({now})")
    if not outer:
        _drop_if(
            function,
            node,
            f"{key_bytes} is None",
            "null-key",
            f"{memory}.skip({now})",
        )
    if len(node.stores) > 2:
        _tell_when_due(function.compiler, node, now, memory, record)
        before = function.fresh("held")
        function.line(
            f"{before} = {memory}.before({record.side}, {key_bytes}, {record.timestamp}, {now})"
        )
        with function.block(f"if {before}:"):  # few records let others go
            _forward(function, node, f"process.held({before})", record)
    matches = (
        f"{memory}.take({record.side}, {key_bytes}, {value}, {record.timestamp}, {now})"
    )
    _forward(function, node, matches, record, skip="break")


def _memory(compiler: Compiler, node: StreamStreamJoin) -> str:
    """Return the name of the generated variable for a join's `JoinMemory`."""
    topics = [
        compiler.analysis.topics(compiler.analysis.named(parent))
        for parent in node.parents
    ]
    make = partial(JoinMemory, node, (topics[0], topics[1]), shared=compiler.shared)
    return compiler.unit.made("join", node.name, make, "stores, process")


def _drop_if(
    function: Body,
    node: Node,
    condition: str,
    reason: str,
    first: str,
) -> None:
    with function.block(f"if {condition}:"):
        function.line(first)
        function.drop(node, reason)


def _tell_when_due(
    compiler: Compiler,
    node: StreamStreamJoin,
    operator_time: str,
    memory: str,
    record: RecordVariables,
) -> None:
    """Generate the function that forwards records without a match when other tasks'
    records advance stream time.
    """
    name = f"{memory}_due"
    due = compiler.unit.operator_times[operator_time].due
    if name in due:
        return
    due.append(name)
    if (
        compiler.shared
    ):  # another task's record may open the gate without advancing stream time
        again = compiler.function(f"{name}_again")
        again.parameters = ("now",)
        again.line(f"{name}()")
        compiler.unit.operator_times[operator_time].stores.append(again.name)
    function = compiler.function(name)
    due_now = f"process.held({memory}.due({operator_time}))"
    _forward(function, node, due_now, replace(record, stream_time=operator_time))


def _forward(
    function: Body,
    node: StreamStreamJoin,
    pairs: str,
    record: RecordVariables,
    *,
    skip: str = "continue",
) -> None:
    """Generate code that applies the joiner to pairs and forwards the results.

    `pairs`: the code of the pairs. `skip`: the statement after a failure. It is `break`
    if the pairs are those of one record, which fails with all remaining pairs. Pairs of
    several records fail one by one.
    """
    key, left, right, timestamp = (
        function.fresh(part) for part in ("key_bytes", "left", "right", "timestamp")
    )
    with function.loop(f"for {key}, {left}, {right}, {timestamp} in {pairs}:"):
        made = RecordVariables(
            node.name,
            key,
            node.key,
            left,
            timestamp,
            record.stream_time,
        )
        parts = (*(["key"] if node.with_key else []), left, right)
        call = function.call_of("joiner", node.joiner, made, parts)
        function.call_children(
            node,
            made.with_value(function.guarded("value", call, node, skip)),
        )


OPERATORS: Mapping[type[Node], Operator] = {StreamStreamJoin: stream_stream_join}
