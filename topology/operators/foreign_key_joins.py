"""Generates the operators of a foreign-key join: the left side subscribes, the right
side answers, the left side joins.

Source: Kafka Streams `SubscriptionSendProcessorSupplier`, `SubscriptionReceive...`,
`SubscriptionJoin...`, `ForeignTableJoin...`, `ResponseJoin...`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from coopstreams.topology.graph.aggregate_nodes import Suppress
from coopstreams.topology.graph.foreign_keys import (
    Answer,
    again,
    answer_to,
    is_current,
    questions,
    subscribe,
    subscribers_of,
)
from coopstreams.topology.graph.join_nodes import (
    ForeignKeyAnswer,
    ForeignKeyAsk,
    ForeignKeyResult,
)
from coopstreams.topology.graph.nodes import (
    Aggregate,
    Filter,
    MapValues,
    Node,
)
from coopstreams.topology.operators.codegen import RecordVariables
from coopstreams.topology.operators.compiler import Body, Compiler, Operator
from coopstreams.topology.operators.lookups import LookUp, RowVariables
from coopstreams.topology.operators.tables import drop_the_past
from coopstreams.topology.stores import subscriber_key


def ask(
    function: Body,
    node: ForeignKeyAsk,
    record: RecordVariables,
) -> None:
    """Generate code that sends subscriptions to the right rows of a left row's new and
    old foreign keys.
    """
    drop_the_past(function, node, record)
    assert record.old is not None  # the join requested old values
    key = function.key(record)
    value = function.value(record)
    key_bytes = function.key_as_bytes(record, node.key, node)
    # As `result` writes the row again to compare: a topic may have other bytes (spaces,
    # other fields, their order).
    data = function.value_as_bytes(record.with_value(value), node.value, node)
    make = function.unit.constant(
        "ask",
        partial(
            questions,
            node.extract,
            node.foreign_key.for_keys().serialize,
            node.left,
        ),
    )
    many = function.guarded(
        "questions",
        f"{make}({key}, {key_bytes}, {value}, {data}, {record.old})",
        node,
    )
    foreign_key = function.fresh("foreign_key")
    asked = function.fresh("asked")
    with function.loop(f"for {foreign_key}, {asked} in {many}:"):
        made = RecordVariables(
            node.name,
            foreign_key,
            node.foreign_key,
            asked,
            record.timestamp,
            record.stream_time,
            dense=True,
        )
        function.forward(node, made)


def answer(
    function: Body,
    node: ForeignKeyAnswer,
    record: RecordVariables,
) -> None:
    """Generate code that stores and answers a subscription, and sends a change of a
    right row to all its subscribers.

    Subscribers are answered in the order of their keys.
    """
    key_bytes = function.key_as_bytes(record, node.store.key, node)
    if record.side == 1:
        drop_the_past(function, node, record)
        data = function.value_as_bytes(record, node.value, node)
        primary_key = function.fresh("primary_key")
        hash_ = function.fresh("hash")
        store = function.unit.store(node.store)
        found_of = function.unit.constant("subscribers_of", subscribers_of)
        with function.loop(
            f"for {primary_key}, {hash_} in {found_of}({store}.of({key_bytes})):"
        ):
            made = f"{function.unit.constant('Answer', Answer)}({hash_}, {data})"
            _send(function, node, record, primary_key, made, record.timestamp)
        return
    asked = function.value(record)
    row = function.fresh("row")
    timestamp = function.fresh("timestamp")
    answer = function.fresh("answer")
    function.line(f"{row}, {timestamp} = None, {record.timestamp}")
    with function.block(f"if {key_bytes} is not None:"):
        row_key = function.fresh("row_key")
        make = function.unit.constant("subscriber_key", subscriber_key)
        function.line(f"{row_key} = {make}({key_bytes}, {asked}.primary_key)")
        entry = function.entry_of(node.store, row_key)
        function.line(
            f"{entry}.value = {function.unit.constant('subscribe', subscribe)}({entry}.value, {asked})"
        )
        function.line(f"{entry}.timestamp = {record.timestamp}")
        function.touch(node.store, row_key, entry)
        right = node.parents[1]
        known = replace(record, has_key=True)
        flushed = _holds_back(function.compiler, right)
        found = LookUp(function, known, key_bytes, flushed=flushed).row(right)
        with function.block(f"if {found.value} is not None:"):
            function.line(f"{timestamp} = max({timestamp}, {found.timestamp})")
            write = function.unit.constant("encode_right", node.value.serialize)
            with function.guard("production", node.name):
                function.line(f"{row} = {write}({found.value})")
    function.line(
        f"{answer} = {function.unit.constant('answer_to', answer_to)}({asked}, {row})"
    )
    function.skip_if(f"{answer} is None")
    _send(function, node, record, f"{asked}.primary_key", answer, timestamp)


def _holds_back(compiler: Compiler, name: str) -> bool:
    """Return whether the record cache holds back the updates of a table on one side of
    the join until the flush.

    Then the join uses the row as of the last flush, and the flush answers all
    subscribers. A row may be inserted and deleted between two flushes, and the flush
    forwards no deletion of it. A join with that row would never be deleted.
    """
    node = compiler.analysis.named(name)
    while (
        isinstance(node, Filter | MapValues | Suppress)
        and getattr(node, "store", None) is None
    ):
        node = compiler.analysis.named(node.parents[0])
    return compiler.caches(node) and not (
        isinstance(node, Aggregate) and node.emit_on_close
    )


def _send(
    function: Body,
    node: ForeignKeyAnswer,
    record: RecordVariables,
    primary_key: str,
    answer: str,
    timestamp: str,
) -> None:
    key = function.fresh("key_bytes")
    value = function.fresh("value")
    function.line(f"{key}, {value} = {primary_key}, {answer}")
    made = RecordVariables(
        node.name,
        key,
        node.primary_key,
        value,
        timestamp,
        record.stream_time,
        has_key=True,
    )
    function.call_children(node, replace(made, dense=True))


def result(
    function: Body,
    node: ForeignKeyResult,
    record: RecordVariables,
) -> None:
    """Generate code that joins an answer with the left row that asked, unless the row
    has changed since.
    """
    key_bytes = function.key_as_bytes(record, node.key, node)
    answer = function.value(record)
    left = node.parents[1]
    # The left row as of the last flush, too: it is the one that has asked, and the
    # flush asks for a newer one.
    known = replace(record, has_key=True)
    flushed = _holds_back(function.compiler, left)
    row = LookUp(function, known, key_bytes, flushed=flushed).row(left)
    data = function.fresh("data")
    right = function.fresh("right")
    unit = function.unit
    with function.guard("production", node.name):
        function.line(
            f"{data} = None if {row.value} is None else "
            f"{unit.constant('encode_left', node.value.serialize)}({row.value})"
        )
    current = f"{unit.constant('is_current', is_current)}({answer}.hash, {data}, None if {data} is None else {row.stored})"
    with function.block(f"if not {current}:"):
        # The last round of a backfill has no questions: there each answer meets the row
        # that asked.
        asks = node.ask in function.analysis.numbers
        if node.left or not asks:
            function.drop(node, "stale-answer")
        else:
            _ask_again(function, node, record, row, data)
    with function.guard("deserialization", node.name):
        function.line(
            f"{right} = None if {answer}.value is None else "
            f"{unit.constant('decode_right', node.right_value.deserialize)}({answer}.value)"
        )
    missing = (
        f"{row.value} is None"
        if node.left
        else f"{right} is None or {row.value} is None"
    )
    call = f"{unit.constant('joiner', node.joiner)}({row.value}, {right})"
    made = function.guarded("value", f"None if {missing} else {call}", node)
    function.forward(node, replace(record, has_key=True).with_value(made))


def _ask_again(
    function: Body,
    node: ForeignKeyResult,
    record: RecordVariables,
    row: RowVariables,
    data: str,
) -> None:
    """Generate the code for a stale answer of an inner join. An answer with a right row
    is dropped; after one without a right row, the left row asks once more.

    If the left row names no right row, or is gone, the answer is forwarded as a
    deletion.
    """
    ask_node = function.analysis.named(node.ask)
    assert isinstance(ask_node, ForeignKeyAsk)
    answer = function.value(record)
    function.drop_if(f"{answer}.value is not None", node, "stale-answer")
    make = function.unit.constant(
        "again",
        partial(again, ask_node.extract, ask_node.foreign_key.for_keys().serialize),
    )
    # A copy: code behind this block may not take the key from a variable that is set in
    # it.
    here = replace(record, has_key=True)
    key = function.key(here)
    primary_key = function.key_as_bytes(here, node.key, node)
    asked = function.guarded(
        "asked",
        f"{make}({key}, {primary_key}, {row.value}, {data})",
        node,
    )
    with function.block(f"if {asked} is not None:"):
        foreign_key = function.fresh("foreign_key")
        subscription = function.fresh("subscription")
        timestamp = function.fresh("timestamp")
        function.line(f"{foreign_key}, {subscription} = {asked}")
        # That of its row, as when it asked first: the answer at hand is about another
        # row. Behind a suppression the timestamp of a row is unknown, and -1.
        function.line(
            f"{timestamp} = {row.timestamp} if {row.timestamp} >= 0 else {record.timestamp}"
        )
        made = RecordVariables(
            ask_node.name,
            foreign_key,
            ask_node.foreign_key,
            subscription,
            timestamp,
            record.stream_time,
            dense=True,
        )
        function.call_children(ask_node, made)
        function.drop(node, "stale-answer")


OPERATORS: Mapping[type[Node], Operator] = {
    ForeignKeyAsk: ask,
    ForeignKeyAnswer: answer,
    ForeignKeyResult: result,
}
