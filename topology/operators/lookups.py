"""Look-ups in tables, also in those without a store: filters, mappers and joins are
applied to the rows upstream.

Source: Kafka Streams `KTableValueGetter` and its implementations.
"""

from __future__ import annotations

from typing import NamedTuple

from coopstreams.topology.graph.aggregate_nodes import Suppress
from coopstreams.topology.graph.join_nodes import TableTableJoin
from coopstreams.topology.graph.nodes import Filter, MapValues, Node
from coopstreams.topology.operators.codegen import RecordVariables
from coopstreams.topology.operators.compiler import Body
from coopstreams.topology.operators.suppress_operators import buffer
from coopstreams.topology.row_versions import latest_as_written, version_at
from coopstreams.topology.stores import StoreSpec, as_written

LATEST = 1 << 62
"""A timestamp after all others."""


class RowVariables(NamedTuple):
    """The variables of a row that was looked up: its value and its timestamp, undefined
    if the value is None.

    `stored`: the expression of the bytes in which the store has the value, None if it
    has changed since the last commit; undefined, too. The value of a table without a
    store has none, unless it is that of a row upstream.
    """

    value: str
    timestamp: str
    stored: str = "None"


def look_up(
    function: Body,
    name: str,
    record: RecordVariables,
    key_bytes: str,
    *,
    as_of: str | None = None,
    flushed: bool = False,
    before: bool = False,
) -> RowVariables:
    """Generate the look-up of a table's row; return its variables.

    `as_of`: the moment, if the table keeps versions. It is set for stream records,
    which must not find a row that has expired by their stream time. `flushed`: the row as
    of the last flush of the record caches, as the nodes below have received it.
    `before`: the row before the record at hand, below a table that is above a
    self-join.
    """
    node = function.analysis.named(name)
    store: StoreSpec | None = getattr(node, "store", None)
    if store is not None and store.history_ms is not None:
        return _version(function, node, store, record, key_bytes, as_of, before=before)
    if store is not None:
        row = _stored(
            function, store, record, key_bytes, flushed=flushed, before=before
        )
        if as_of is not None and store.ttl_ms is not None:
            # The topic of the stream may be ahead of that of the table, which has not
            # forwarded the expiry yet.
            with function.block(
                f"if {row.value} is not None and {row.timestamp} + {store.ttl_ms} <= {record.stream_time}:"
            ):
                function.line(f"{row.value} = None")
        return row
    if isinstance(node, TableTableJoin):
        return _joined(
            function, node, record, key_bytes, flushed=flushed, before=before
        )
    assert isinstance(node, Filter | MapValues | Suppress)
    row = look_up(
        function,
        node.parents[0],
        record,
        key_bytes,
        as_of=as_of,
        flushed=flushed,
        before=before,
    )
    if isinstance(node, Suppress):
        return _let_go(function, node, record, key_bytes, row)
    return _seen(function, node, record, row)


def joined_value(
    kind: str, joiner: str, left: str, right: str, *, known: str | None = None
) -> str:
    """Return the expression of a table join's value, None if it has none. `known`: this
    value is not None.
    """
    needed = {"inner": (left, right), "left": (left,), "outer": ()}[kind]
    call = f"{joiner}({left}, {right})"
    if kind == "outer" and known is None:
        return f"None if {left} is None and {right} is None else {call}"
    missing = " or ".join(f"{side} is None" for side in needed if side != known)
    return f"None if {missing} else {call}" if missing else call


def _stored(
    function: Body,
    store: StoreSpec,
    record: RecordVariables,
    key_bytes: str,
    *,
    flushed: bool = False,
    before: bool = False,
) -> RowVariables:
    name = function.unit.store(store)
    entry = function.fresh("entry")
    written = function.unit.constant(
        "as_written", as_written if store.history_ms is None else latest_as_written
    )
    stored = f"{entry}.stored" if flushed else f"{written}({entry})"
    row = RowVariables(function.fresh("row"), f"{entry}.timestamp", stored)
    found = f"get_{name}({key_bytes}) or load_{name}({key_bytes})"
    function.line(
        f"{entry} = {found}"
        if record.has_key
        else f"{entry} = None if {key_bytes} is None else {found}"
    )
    function.line(
        f"{row.value} = {entry}.value"
        if record.has_key
        else f"{row.value} = None if {entry} is None else {entry}.value"
    )
    if before:
        function.line(
            f"{row.value} = {function.compiler.before}.get({store.name!r}, {row.value})"
        )
    if flushed:
        decode = function.unit.constant("decode_value", store.value.decode)
        with function.block(f"if {entry} is not None and {entry}.dirty:"):
            function.line(
                f"{row.value} = None if {entry}.stored is None else {decode}({entry}.stored)"
            )
    return row


def _version(
    function: Body,
    node: Node,
    store: StoreSpec,
    record: RecordVariables,
    key_bytes: str,
    as_of: str | None,
    *,
    before: bool,
) -> RowVariables:
    """Generate the look-up of the version that was valid at a moment, or the latest."""
    unit = function.unit
    row = _stored(function, store, record, key_bytes, before=before)
    entry = function.fresh("version")
    now = unit.operator_time(
        function.analysis.numbers[node.name], function.analysis.topics(node)
    )
    assert store.past is not None
    version = unit.constant("version_at", version_at)
    past = unit.store(store.past)
    stored = row.stored if as_of is None else "None"
    found = RowVariables(function.fresh("row"), function.fresh("timestamp"), stored)
    asked = (
        (as_of, f"{now} - {store.history_ms}")
        if as_of is not None
        else (str(LATEST), str(LATEST))
    )
    function.line(
        f"{entry} = {version}({row.value}, {past}, {key_bytes}, {asked[0]}, {asked[1]})"
    )
    function.line(f"{found.timestamp}, {found.value} = {entry} or (-1, None)")
    return found


def _seen(
    function: Body,
    step: Filter | MapValues,
    record: RecordVariables,
    row: RowVariables,
) -> RowVariables:
    """Generate code: a filter or a mapper is applied to a row that was looked up."""
    label, called = (
        ("predicate", step.predicate)
        if isinstance(step, Filter)
        else ("mapper", step.mapper)
    )
    with_key = isinstance(step, Filter) or step.with_key
    call = function.call_of(
        label,
        called,
        record,
        ("key", row.value) if with_key else (row.value,),
    )
    if isinstance(step, Filter):
        seen = f"{row.value} if {row.value} is not None and {'not ' if step.negate else ''}{call} else None"
    else:
        seen = f"None if {row.value} is None else {call}"
    stored = row.stored if isinstance(step, Filter) else "None"
    return RowVariables(function.guarded("row", seen, step), row.timestamp, stored)


def _let_go(
    function: Body,
    node: Suppress,
    record: RecordVariables,
    key_bytes: str,
    row: RowVariables,
) -> RowVariables:
    """Generate code: if an update of a row is held, the row is as before the update,
    with an unknown timestamp.
    """
    held = function.fresh("held")
    stored = f"({row.stored} if {held} is None else {held}.before)"
    seen = RowVariables(function.fresh("row"), function.fresh("timestamp"), stored)
    decode = function.unit.constant("decode_value", node.value.decode)
    found = f"{buffer(function.compiler, node)}.held({key_bytes})"
    function.line(
        f"{held} = {found}"
        if record.has_key
        else f"{held} = None if {key_bytes} is None else {found}"
    )
    with function.block(f"if {held} is not None:"):
        function.line(
            f"{seen.value} = None if {held}.before is None else {decode}({held}.before)"
        )
        function.line(f"{seen.timestamp} = -1")
    with function.block("else:"):
        function.line(f"{seen.value} = {row.value}")
        function.line(
            f"{seen.timestamp} = -1 if {row.value} is None else {row.timestamp}"
        )
    return seen


def _joined(
    function: Body,
    node: TableTableJoin,
    record: RecordVariables,
    key_bytes: str,
    *,
    flushed: bool,
    before: bool,
) -> RowVariables:
    """Generate the look-up of a row of a join without a store."""
    left, right = (
        look_up(function, parent, record, key_bytes, flushed=flushed, before=before)
        for parent in node.parents
    )
    joiner = function.unit.constant("joiner", node.joiner)
    value = function.guarded(
        "row", joined_value(node.kind, joiner, left.value, right.value), node
    )
    row = RowVariables(value, function.fresh("timestamp"))
    function.line(f"{row.timestamp} = {later(left, right)}")
    return row


def later(left: RowVariables, right: RowVariables) -> str:
    """Return the expression of the larger timestamp of two rows, one of which may be
    missing.
    """
    return (
        f"-1 if {left.value} is None and {right.value} is None else {left.timestamp} if {right.value} is None "
        f"else {right.timestamp} if {left.value} is None else max({left.timestamp}, {right.timestamp})"
    )
