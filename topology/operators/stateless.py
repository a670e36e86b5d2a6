"""Operators without a store of their own: filters, mappers, branches, sinks.

Source: Kafka Streams `KStreamBranch`, `TopicNameExtractor`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from coopstreams.topology.graph.nodes import (
    ApplyTo,
    Branch,
    DropNullKeys,
    DynamicSink,
    Filter,
    FlatMap,
    FlatMapValues,
    Late,
    Map,
    MapValues,
    Merge,
    Node,
    Peek,
    SelectKey,
    Sink,
    Split,
    ToStream,
)
from coopstreams.topology.graph.partitioners import chosen
from coopstreams.topology.operators.codegen import Function, RecordVariables
from coopstreams.topology.operators.compiler import Compiler, Operator
from coopstreams.topology.sinks import Applied
from coopstreams.topology.stores import StoreSpec

KEY_AND_VALUE = ("key", "value")


def filter_records(
    compiler: Compiler, function: Function, node: Filter, record: RecordVariables
) -> None:
    """Generate code: a record that fails the predicate is dropped; on a table, it
    becomes a tombstone.
    """
    if node.table:
        _filter_rows(compiler, function, node, record)
        return
    passes = compiler.call_of(
        function, "predicate", node.predicate, record, KEY_AND_VALUE
    )
    with function.guard("processing", node.name):
        function.skip_if(f"{'' if node.negate else 'not '}{passes}")
    compiler.forward(function, node, record)


def _filter_rows(
    compiler: Compiler, function: Function, node: Filter, record: RecordVariables
) -> None:
    """Forward a tombstone for a row that fails the predicate.

    If the old value is known and failed the predicate too, forward nothing.

    For a versioned table, always forward the tombstone: a record may change the past,
    which the old value does not show.
    """
    if not node.sends_old:
        record = replace(record, old=None)
    if node.store is not None:
        _filter_kept_rows(compiler, function, node, node.store, record)
        return
    passes = compiler.call_of(
        function, "predicate", node.predicate, record, KEY_AND_VALUE
    )
    passed = (
        compiler.call_of(
            function, "predicate", node.predicate, record, ("key", record.old)
        )
        if record.old
        else ""
    )
    word = "not " if node.negate else ""
    value = function.value(record)
    kept = function.fresh("value")
    old = function.fresh("old") if record.old else None
    with function.guard("processing", node.name):
        function.line(
            f"{kept} = {value} if {value} is not None and {word}{passes} else None"
        )
        if old:
            function.line(
                f"{old} = {record.old} if {record.old} is not None and {word}{passed} else None"
            )
    if old and record.latest is None:
        function.skip_if(f"{kept} is None and {old} is None")
    compiler.forward(
        function,
        node,
        record.with_value(kept, old if compiler.analysis.wants_old(node) else None),
    )


def _filter_kept_rows(
    compiler: Compiler,
    function: Function,
    node: Filter,
    store: StoreSpec,
    record: RecordVariables,
) -> None:
    """Generate the filter of a materialised table, whose store has the old value."""
    passes = compiler.call_of(
        function, "predicate", node.predicate, record, KEY_AND_VALUE
    )
    value = function.value(record)
    word = "not " if node.negate else ""
    kept = function.guarded(
        "value", f"{value} if {value} is not None and {word}{passes} else None", node
    )
    _keep(
        compiler,
        function,
        node,
        store,
        record,
        kept,
        skip_nothing=node.sends_old and record.latest is None,
    )


def _keep(
    compiler: Compiler,
    function: Function,
    node: Filter | MapValues,
    store: StoreSpec,
    record: RecordVariables,
    value: str,
    *,
    skip_nothing: bool,
) -> None:
    """Generate code: a row is stored and forwarded; with `skip_nothing`, only if there
    is a row or was one.

    The store has no versions, even if the table above has: each record is the latest of
    its row.
    """
    key_bytes = function.key_as_bytes(record, store.row_key or store.key, node)
    compiler.expire_view(function, node, store)
    entry = compiler.entry_of(function, store, key_bytes)
    if skip_nothing:
        function.skip_if(f"{value} is None and {entry}.value is None")
    old = (
        function.fresh("old")
        if compiler.analysis.wants_old(node) and not compiler.caches(node)
        else None
    )
    if old:
        function.line(f"{old} = {entry}.value")
    function.line(f"{entry}.value = {value}")
    function.line(f"{entry}.timestamp = {record.timestamp}")
    compiler.touch(function, store, key_bytes, entry)
    compiler.keep_headers(function, node, entry)
    if not compiler.caches(node):
        compiler.forward(
            function, node, replace(record.with_value(value, old), latest=None)
        )


def map_values(
    compiler: Compiler, function: Function, node: MapValues, record: RecordVariables
) -> None:
    """Generate code: the value is mapped. A table's tombstones stay tombstones."""
    call = compiler.call_of(
        function,
        "mapper",
        node.mapper,
        record,
        KEY_AND_VALUE if node.with_key else ("value",),
    )
    tombstone = (
        f"None if {record.value or record.value_bytes} is None else "
        if node.table and not record.dense
        else ""
    )
    if node.store is not None:
        value = function.guarded("value", f"{tombstone}{call}", node)
        _keep(compiler, function, node, node.store, record, value, skip_nothing=False)
        return
    value = function.fresh("value")
    old = None
    again = ""
    if record.old and compiler.analysis.wants_old(node):
        old = function.fresh("old")
        parts = ("key", record.old) if node.with_key else (record.old,)
        again = compiler.call_of(function, "mapper", node.mapper, record, parts)
    with function.guard("processing", node.name):
        function.line(f"{value} = {tombstone}{call}")
        if old:
            function.line(f"{old} = None if {record.old} is None else {again}")
    compiler.forward(function, node, record.with_value(value, old))


def flat_map_values(
    compiler: Compiler, function: Function, node: FlatMapValues, record: RecordVariables
) -> None:
    """Generate code: a value becomes any number of values.

    The mapper is run to its end first, so that its errors are not taken for those of a
    node below.
    """
    call = compiler.call_of(
        function,
        "mapper",
        node.mapper,
        record,
        KEY_AND_VALUE if node.with_key else ("value",),
    )
    many = function.fresh("values")
    with function.guard("processing", node.name):
        function.line(f"{many} = {call}")
        with function.block(f"if {many}.__class__ is not list:"):
            function.line(f"{many} = list({many})")
    forward_values(compiler, function, node, record, many)


def flat_map(
    compiler: Compiler, function: Function, node: FlatMap, record: RecordVariables
) -> None:
    """Generate code: a record becomes several. The pairs are unpacked at once, so a bad
    pair fails the mapper.
    """
    call = compiler.call_of(function, "mapper", node.mapper, record, KEY_AND_VALUE)
    pairs = f"[(new_key, new_value) for new_key, new_value in {call}]"
    forward_pairs(
        compiler, function, node, record, function.guarded("pairs", pairs, node)
    )


def map_pairs(
    compiler: Compiler, function: Function, node: Map, record: RecordVariables
) -> None:
    """Generate code: key and value are mapped."""
    call = compiler.call_of(function, "mapper", node.mapper, record, KEY_AND_VALUE)
    forward_pair(compiler, function, node, record, call)


def forward_pair(
    compiler: Compiler,
    function: Function,
    node: Node,
    record: RecordVariables,
    pair: str,
) -> None:
    """Generate code: the record is forwarded with the key and the value of this pair,
    guarded.
    """
    key = function.fresh("key")
    value = function.fresh("value")
    with function.guard("processing", node.name):
        function.line(f"{key}, {value} = {pair}")
    compiler.forward(function, node, record.with_key(key).with_value(value))


def forward_pairs(
    compiler: Compiler,
    function: Function,
    node: Node,
    record: RecordVariables,
    many: str,
) -> None:
    """Generate code: the record is forwarded with each of these keys and values."""
    key = function.fresh("key")
    value = function.fresh("value")
    with function.loop(f"for {key}, {value} in {many}:"):
        compiler.forward(function, node, record.with_key(key).with_value(value))


def forward_values(
    compiler: Compiler,
    function: Function,
    node: Node,
    record: RecordVariables,
    many: str,
) -> None:
    """Generate code: the record is forwarded with each of these values."""
    if record.key is None and compiler.analysis.below(node, record.key_serde, None).key:
        function.key(record)  # once, not in each iteration
    value = function.fresh("value")
    with function.loop(f"for {value} in {many}:"):
        compiler.forward(function, node, record.with_value(value))


def select_key(
    compiler: Compiler, function: Function, node: SelectKey, record: RecordVariables
) -> None:
    """Generate code: the key is mapped."""
    call = compiler.call_of(function, "mapper", node.mapper, record, KEY_AND_VALUE)
    compiler.forward(
        function, node, record.with_key(function.guarded("key", call, node))
    )


def peek(
    compiler: Compiler, function: Function, node: Peek, record: RecordVariables
) -> None:
    """Generate code: the action is called, and the record forwarded."""
    call = compiler.call_of(function, "action", node.action, record, KEY_AND_VALUE)
    with function.guard("processing", node.name):
        function.line(call)
    compiler.forward(function, node, record)


def drop_null_keys(
    compiler: Compiler, function: Function, node: DropNullKeys, record: RecordVariables
) -> None:
    """Generate code: a record without a key is dropped and counted."""
    function.drop_if(f"{record.key_bytes or record.key} is None", node, "null-key")
    compiler.forward(function, node, replace(record, has_key=True))


def pass_on(
    compiler: Compiler,
    function: Function,
    node: Merge | ToStream | Branch | Late,
    record: RecordVariables,
) -> None:
    """Generate code: the record is forwarded. A stream has no latest record, unlike a
    table.
    """
    compiler.forward(
        function,
        node,
        replace(record, latest=None) if isinstance(node, ToStream) else record,
    )


def sink(
    compiler: Compiler, function: Function, node: Sink, record: RecordVariables
) -> None:
    """Generate code: the record is appended to the topic's output."""
    key = function.key_as_bytes(record, node.key, node)
    value = function.value_as_bytes(record, node.value, node)
    out = compiler.unit.output(node.topic)
    with each_partition(compiler, function, node, record, repr(node.topic), out):
        function.line(f"key_{out}({key})")
        function.line(f"value_{out}({value})")
        function.line(f"timestamp_{out}({record.timestamp})")


def apply_to(
    compiler: Compiler, function: Function, _: ApplyTo, record: RecordVariables
) -> None:
    """Generate code: the record is noted for the external sink."""
    note = compiler.unit.bind("note_applied", "note_applied = process.applied.append")
    made = compiler.unit.constant("Applied", Applied)
    key = function.key(record)
    value = function.value(record)
    function.line(f"{note}({made}(process.at_hand(), {key}, {value}))")


@contextmanager
def each_partition(
    compiler: Compiler,
    function: Function,
    node: Sink | DynamicSink,
    record: RecordVariables,
    topic: str,
    out: str,
) -> Iterator[None]:
    """Generate the body once for each partition that a sink's partitioner chooses;
    without a partitioner, once.

    A record for which it chooses no partition is dropped and counted.
    """
    if node.partitioner is None:
        yield
        return
    unit = compiler.unit
    count = function.fresh("partitions")
    partition = function.fresh("partition")
    # Unguarded: a missing topic is not a fault of the record.
    function.line(f"{count} = process.partitions({topic})")
    call = f"{unit.constant('chosen', chosen)}({unit.constant('partitioner', node.partitioner)}, {topic}, "
    key = function.key(record)
    value = function.value(record)
    found = function.guarded("chosen", f"{call}{key}, {value}, {count})", node)
    function.drop_if(f"not {found}", node, "no-partition")
    with function.block(f"for {partition} in {found}:"):
        yield
        function.line(f"{out}.choose({partition})")


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
    Filter: filter_records,
    MapValues: map_values,
    FlatMapValues: flat_map_values,
    FlatMap: flat_map,
    Map: map_pairs,
    SelectKey: select_key,
    Peek: peek,
    DropNullKeys: drop_null_keys,
    Merge: pass_on,
    ToStream: pass_on,
    Late: pass_on,
    Sink: sink,
    ApplyTo: apply_to,
    Split: split,
    Branch: pass_on,
    DynamicSink: dynamic_sink,
}
