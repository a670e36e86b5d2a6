"""Generates the operators without a store of their own: filters, mappers, branches,
sinks.

Source: Kafka Streams `KStreamBranch`, `TopicNameExtractor`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from coopstreams.topology.external_sinks import Applied
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
from coopstreams.topology.operators.codegen import RecordVariables
from coopstreams.topology.operators.compiler import Body, Operator
from coopstreams.topology.stores import StoreSpec

KEY_AND_VALUE = ("key", "value")


def filter_records(
    function: Body,
    node: Filter,
    record: RecordVariables,
) -> None:
    """Generate code that drops a record that fails the predicate. In a table, the
    record becomes a tombstone.
    """
    if node.table:
        _filter_rows(function, node, record)
        return
    passes = function.call_of("predicate", node.predicate, record, KEY_AND_VALUE)
    with function.guard("processing", node.name):
        function.skip_if(f"{'' if node.negate else 'not '}{passes}")
    function.forward(node, record)


def _filter_rows(
    function: Body,
    node: Filter,
    record: RecordVariables,
) -> None:
    """Generate code that forwards a tombstone for a row that fails the predicate.

    If the old value is known and failed the predicate as well, nothing is forwarded.
    For a versioned table, the tombstone is always forwarded, because a record may
    change an earlier version, which the old value does not show.
    """
    if not node.sends_old:
        record = replace(record, old=None)
    if node.store is not None:
        _filter_kept_rows(function, node, node.store, record)
        return
    passes = function.call_of("predicate", node.predicate, record, KEY_AND_VALUE)
    passed = (
        function.call_of("predicate", node.predicate, record, ("key", record.old))
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
    function.forward(
        node,
        record.with_value(kept, old if function.analysis.wants_old(node) else None),
    )


def _filter_kept_rows(
    function: Body,
    node: Filter,
    store: StoreSpec,
    record: RecordVariables,
) -> None:
    """Generate the filter of a materialised table, whose store has the old value."""
    passes = function.call_of("predicate", node.predicate, record, KEY_AND_VALUE)
    value = function.value(record)
    word = "not " if node.negate else ""
    kept = function.guarded(
        "value",
        f"{value} if {value} is not None and {word}{passes} else None",
        node,
    )
    _keep(
        function,
        node,
        store,
        record,
        kept,
        skip_nothing=node.sends_old and record.latest is None,
    )


def _keep(
    function: Body,
    node: Filter | MapValues,
    store: StoreSpec,
    record: RecordVariables,
    value: str,
    *,
    skip_nothing: bool,
) -> None:
    """Generate code that stores and forwards a row. With `skip_nothing`, this is
    skipped if the row neither exists nor existed.

    The store has no versions, even if the table above has: each record is the latest of
    its row.
    """
    key_bytes = function.key_as_bytes(record, store.row_key or store.key, node)
    function.expire_view(node, store)
    entry = function.entry_of(store, key_bytes)
    if skip_nothing:
        function.skip_if(f"{value} is None and {entry}.value is None")
    old = (
        function.fresh("old")
        if function.analysis.wants_old(node) and not function.compiler.caches(node)
        else None
    )
    if old:
        function.line(f"{old} = {entry}.value")
    function.line(f"{entry}.value = {value}")
    function.line(f"{entry}.timestamp = {record.timestamp}")
    function.touch(store, key_bytes, entry)
    function.keep_headers(node, entry)
    if not function.compiler.caches(node):
        function.forward(node, replace(record.with_value(value, old), latest=None))


def map_values(
    function: Body,
    node: MapValues,
    record: RecordVariables,
) -> None:
    """Generate code that maps the value. A table's tombstones stay tombstones."""
    json = record.columns.json.get(id(node.mapper))
    if json is not None:
        _map_to_json(function, node, record, json)
        return
    call = function.call_of(
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
        _keep(function, node, node.store, record, value, skip_nothing=False)
        return
    value = function.fresh("value")
    old = None
    again = ""
    if record.old and function.analysis.wants_old(node):
        old = function.fresh("old")
        parts = ("key", record.old) if node.with_key else (record.old,)
        again = function.call_of("mapper", node.mapper, record, parts)
    with function.guard("processing", node.name):
        function.line(f"{value} = {tombstone}{call}")
        if old:
            function.line(f"{old} = None if {record.old} is None else {again}")
    function.forward(node, record.with_value(value, old))


def _map_to_json(
    function: Body,
    node: MapValues,
    record: RecordVariables,
    json: str,
) -> None:
    """Generate the mapper of records that were not read; of others its JSON is in the
    variable `json`, for the sink below.
    """
    unread, is_read = function.value_if_unread(record)
    mapper = function.unit.constant("mapper", node.mapper)
    call = f"{mapper}({'None, ' if node.with_key else ''}{unread})"
    value = function.guarded("value", f"None if {is_read} else {call}", node)
    function.forward(node, replace(record.with_value(value), json=(json, is_read)))


def flat_map_values(
    function: Body,
    node: FlatMapValues,
    record: RecordVariables,
) -> None:
    """Generate code that maps a value to any number of values.

    The mapper runs to its end first, so that its errors are not taken for errors of a
    node below.
    """
    call = function.call_of(
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
    forward_values(function, node, record, many)


def flat_map(
    function: Body,
    node: FlatMap,
    record: RecordVariables,
) -> None:
    """Generate code that maps a record to any number of records. The pairs are unpacked
    at once, so a bad pair fails the mapper.
    """
    call = function.call_of("mapper", node.mapper, record, KEY_AND_VALUE)
    many = function.fresh("many")
    pairs = function.fresh("pairs")
    with function.guard("processing", node.name):
        # The code of an expression may assign, which a comprehension does not allow.
        function.line(f"{many} = {call}")
        function.line(
            f"{pairs} = [(new_key, new_value) for new_key, new_value in {many}]"
        )
    forward_pairs(function, node, record, pairs)


def map_pairs(
    function: Body,
    node: Map,
    record: RecordVariables,
) -> None:
    """Generate code that maps key and value."""
    call = function.call_of("mapper", node.mapper, record, KEY_AND_VALUE)
    forward_pair(function, node, record, call)


def forward_pair(
    function: Body,
    node: Node,
    record: RecordVariables,
    pair: str,
) -> None:
    """Generate code that forwards the record with the key and value of `pair`, an
    expression that is guarded.
    """
    key = function.fresh("key")
    value = function.fresh("value")
    with function.guard("processing", node.name):
        function.line(f"{key}, {value} = {pair}")
    function.forward(node, record.with_key(key).with_value(value))


def forward_pairs(
    function: Body,
    node: Node,
    record: RecordVariables,
    many: str,
) -> None:
    """Generate code that forwards the record with each key and value of `many`."""
    key = function.fresh("key")
    value = function.fresh("value")
    with function.loop(f"for {key}, {value} in {many}:"):
        function.forward(node, record.with_key(key).with_value(value))


def forward_values(
    function: Body,
    node: Node,
    record: RecordVariables,
    many: str,
) -> None:
    """Generate code that forwards the record with each value of `many`."""
    if record.key is None and function.analysis.below(node, record.key_serde, None).key:
        function.key(record)  # once, not in each iteration
    value = function.fresh("value")
    with function.loop(f"for {value} in {many}:"):
        function.forward(node, record.with_value(value))


def select_key(
    function: Body,
    node: SelectKey,
    record: RecordVariables,
) -> None:
    """Generate code that maps the key."""
    call = function.call_of("mapper", node.mapper, record, KEY_AND_VALUE)
    function.forward(node, record.with_key(function.guarded("key", call, node)))


def peek(
    function: Body,
    node: Peek,
    record: RecordVariables,
) -> None:
    """Generate code that calls the action and forwards the record."""
    call = function.call_of("action", node.action, record, KEY_AND_VALUE)
    with function.guard("processing", node.name):
        function.line(call)
    function.forward(node, record)


def drop_null_keys(
    function: Body,
    node: DropNullKeys,
    record: RecordVariables,
) -> None:
    """Generate code that drops and counts a record without a key."""
    function.drop_if(f"{record.key_bytes or record.key} is None", node, "null-key")
    function.forward(node, replace(record, has_key=True))


def pass_on(
    function: Body,
    node: Merge | ToStream | Branch | Late,
    record: RecordVariables,
) -> None:
    """Generate code that forwards the record unchanged. `ToStream` only removes the
    mark whether a record is the latest of its row, because a stream has no rows.
    """
    function.forward(
        node,
        replace(record, latest=None) if isinstance(node, ToStream) else record,
    )


def sink(
    function: Body,
    node: Sink,
    record: RecordVariables,
) -> None:
    """Generate code that appends the record to the topic's output."""
    key = function.key_as_bytes(record, node.key, node)
    value = function.value_as_bytes(record, node.value, node)
    out = function.unit.output(node.topic)
    timed = node.topic in function.compiler.timed
    birth = function.birth(node, record) if timed else None
    with each_partition(function, node, record, repr(node.topic), out):
        function.line(f"key_{out}({key})")
        function.line(f"value_{out}({value})")
        function.line(f"timestamp_{out}({record.timestamp})")
        if birth is not None:
            function.line(f"{function.unit.births(node.topic)}({birth})")


def apply_to(
    function: Body,
    _: ApplyTo,
    record: RecordVariables,
) -> None:
    """Generate code that adds the record to those for the external sink."""
    note = function.unit.bind("note_applied", "note_applied = process.applied.append")
    made = function.unit.constant("Applied", Applied)
    key = function.key(record)
    value = function.value(record)
    function.line(f"{note}({made}(process.at_hand(), {key}, {value}))")


@contextmanager
def each_partition(
    function: Body,
    node: Sink | DynamicSink,
    record: RecordVariables,
    topic: str,
    out: str,
) -> Iterator[None]:
    """Generate the lines of the `with` block once for each partition that a sink's
    partitioner chooses; without a partitioner, once.

    A record for which the partitioner chooses no partition is dropped and counted.
    """
    if node.partitioner is None:
        yield
        return
    unit = function.unit
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
    function: Body,
    node: Split,
    record: RecordVariables,
) -> None:
    """Generate code that passes a record to the branch of the first true predicate,
    else to the default branch, if there is one.
    """
    calls = [
        function.call_of("predicate", predicate, record, KEY_AND_VALUE)
        for predicate in node.predicates
    ]
    chosen = "".join(f"{number} if {call} else " for number, call in enumerate(calls))
    branch = function.guarded("branch", f"{chosen}{len(calls)}", node)
    for edge in function.analysis.edges(node):
        assert isinstance(edge.child, Branch)
        with function.block(f"if {branch} == {edge.child.number}:"):
            function.enter(edge, record)


def dynamic_sink(
    function: Body,
    node: DynamicSink,
    record: RecordVariables,
) -> None:
    """Generate code that appends a record to the output of the topic that the user's
    function names. The output is made on first use.
    """
    call = function.call_of("topic_of", node.topic_of, record, KEY_AND_VALUE)
    topic = function.guarded("topic", call, node)
    out = function.fresh("out")
    key = function.key_as_bytes(record, node.key, node)
    value = function.value_as_bytes(record, node.value, node)
    with function.guard("production", node.name):
        function.line(f"{out} = outputs.get({topic})")
        with function.block(f"if {out} is None:"):
            function.line(f"{out} = process.begin_output({topic})")
    with each_partition(function, node, record, topic, out):
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
