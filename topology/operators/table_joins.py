"""Generates the join of two tables: an update of either side is joined with the row of
the other side, and updates the result.

Invariant: the result is the relational join of both tables as they are now; its
timestamp is the larger of the two rows'. If the old value is known (left and outer
joins request it), a deletion is forwarded only for a row that was forwarded. Where one
record changes both sides, `self_joins` provides the old value.

Under the record cache both sides may change before either is flushed. So a join also
looks up both rows as of the last flush: if both were deleted since, it forwards the
deletion. A join without a store waits until both sides are flushed, then forwards each
key once.
Source: Kafka Streams `KTableKTableInnerJoin`, `...LeftJoin`, `...RightJoin`,
`...OuterJoin`, `KTableKTableJoinMerger`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coopstreams.topology.columns import Headers
from coopstreams.topology.graph.join_nodes import TableTableJoin
from coopstreams.topology.graph.nodes import Node
from coopstreams.topology.operators.codegen import RecordVariables
from coopstreams.topology.operators.compiler import Body, Compiler, Operator
from coopstreams.topology.operators.lookups import LookUp, RowVariables, joined_value
from coopstreams.topology.operators.tables import drop_null_key, drop_the_past
from coopstreams.topology.stores import Entry


def table_table_join(
    function: Body,
    node: TableTableJoin,
    record: RecordVariables,
) -> None:
    """Generate code that joins an update of the side `record.side` with the row of the
    other side.
    """
    drop_null_key(function, node, record)
    drop_the_past(function, node, record)
    record = replace(record, has_key=True, latest=None)
    value = function.value(record)
    key_bytes = function.key_as_bytes(record, node.key, node)
    mine = node.parents[record.side]
    others = node.parents[1 - record.side]
    waits = waits_for_both(function.compiler, node)
    other = LookUp(function, record, key_bytes).row(others)
    flushed = LookUp(function, record, key_bytes, flushed=True)
    asks = function.compiler.caches(node) and (waits or _needs_other(node, record))
    before = flushed.row(others) if asks else other
    last = _last_result(function, node, record, key_bytes, other)
    if last is None or node.kind != "inner":
        _skip_nothing(function, node, record, value, other, before)
    if waits and record.old is None:
        record.old = flushed.row(mine).value
    result, old = _write_results(function, node, record, other, before, last)
    timestamp = function.fresh("timestamp")
    function.line(
        f"{timestamp} = {record.timestamp} if {other.value} is None or {record.timestamp} > {other.timestamp} else "
        f"{other.timestamp}"
    )
    if last is not None:
        function.line(f"{function.compiler.before}[{_last_key(node)}] = {result}")
    if node.store is not None:
        _keep(function, node, key_bytes, result, timestamp)
        if function.compiler.caches(node):
            return
    if waits:
        function.line(
            f"{_pending(function.compiler, node)}.put({key_bytes}, {result}, {timestamp}, {old}, process.headers)"
        )
        return
    known = replace(
        record,
        key_bytes=key_bytes,
        key_serde=node.key,
        timestamp=timestamp,
    )
    function.forward(node, known.with_value(result, old))


def _write_results(
    function: Body,
    node: TableTableJoin,
    record: RecordVariables,
    other: RowVariables,
    before: RowVariables,
    last: str | None,
) -> tuple[str, str | None]:
    """Generate the new result of a join, and the old result if a node below needs it;
    return their variables. The second is None if no node needs the old result.

    `before`: the other row as of the last flush, if the record cache holds back
    updates. `last`: the variable of a self-join's last result.
    """
    caches = function.compiler.caches(node)
    waits = waits_for_both(function.compiler, node)
    joiner = function.unit.constant("joiner", node.joiner)
    result = function.fresh("value")
    new = _join(
        node,
        joiner,
        record,
        function.value(record),
        other,
        known=not (last or caches),
    )
    old = last if node.sends_old else None
    with function.guard("processing", node.name):
        function.line(f"{result} = {new}")
        needs_old = waits or (node.sends_old and not caches)
        if last is None and record.old is not None and needs_old:
            old = function.fresh("old")
            was = _join(node, joiner, record, record.old, before, known=not waits)
            function.line(f"{old} = {was}")
    return result, old


def _last_result(
    function: Body,
    node: TableTableJoin,
    record: RecordVariables,
    key_bytes: str,
    other: RowVariables,
) -> str | None:
    """Generate the result that a self-join forwarded last; return its variable, or None
    if it is not needed.

    An inner join skips the update if there was no result, and the other row is missing.
    If no node below asks for old values, the variable is set only if the other row is
    missing.
    """
    if node.name not in function.compiler.self_joins.joins:
        return None
    last = function.fresh("last")
    key = _last_key(node)
    joiner = function.unit.constant("joiner", node.joiner)

    def find() -> None:
        before = LookUp(function, record, key_bytes, before=True)
        left, right = map(before.row, node.parents)
        was = joined_value(node.kind, joiner, left.value, right.value)
        with function.guard("processing", node.name):
            function.line(
                f"{last} = {function.compiler.before}[{key}] if {key} in {function.compiler.before} else {was}"
            )

    if node.sends_old:
        find()
    if node.kind == "inner":
        with function.block(f"if {other.value} is None:"):
            if not node.sends_old:
                find()
            function.skip_if(f"{last} is None")
    return last if node.sends_old or node.kind == "inner" else None


def _last_key(node: TableTableJoin) -> str:
    """Return the key under which `Compiler.before` has a self-join's last result. No
    store has this name.
    """
    return repr(f"{node.name} told")


def waits_for_both(compiler: Compiler, node: TableTableJoin) -> bool:
    """Return whether a join forwards its updates only after both sides are flushed."""
    return compiler.caches(node) and node.store is None


def flush(compiler: Compiler, node: TableTableJoin) -> str:
    """Generate the function that forwards the pending updates of a join that waits for
    both sides; return its name.
    """
    function = compiler.function(f"flush_{compiler.analysis.numbers[node.name]}")
    function.over_batch = True
    with function.loop(
        f"for key_bytes, entry in process.flushing({_pending(compiler, node)}.take()):"
    ):
        function.line("value, timestamp, old = entry.value, entry.timestamp, entry.old")
        with function.block("if value is None and old is None:"):
            function.line("continue")
        old = "old" if compiler.analysis.wants_old(node) else None
        record = RecordVariables(
            node.name,
            "key_bytes",
            node.key,
            "value",
            has_key=True,
            old=old,
        )
        function.forward(node, record)
    function.read_stream_time(node)
    return function.name


class LastEmitted(Entry):
    """A pending update, and the value that was last forwarded for its key."""

    __slots__ = ("old",)

    def __init__(
        self,
        value: object,
        timestamp: int,
        old: object,
    ) -> None:
        super().__init__(value, timestamp, None)
        self.old = old


class PendingUpdates:
    """The updates that a join forwards after both sides are flushed: the latest update
    of each key.
    """

    def __init__(self) -> None:
        self._updates: dict[bytes, LastEmitted] = {}

    def put(
        self,
        key: bytes,
        value: object,
        timestamp: int,
        old: object,
        headers: Headers | None,
    ) -> None:
        """Add an update. If the key already has an update, that update's old value is
        kept, because it was forwarded last.
        """
        update = self._updates.get(key)
        if update is None:
            update = self._updates[key] = LastEmitted(value, timestamp, old)
        else:
            update.value = value
            update.timestamp = timestamp
        update.headers = headers

    def take(self) -> list[tuple[bytes, Entry]]:
        """Return and remove the pending updates."""
        updates = self._updates
        self._updates = {}
        return list(updates.items())


def _pending(compiler: Compiler, node: TableTableJoin) -> str:
    return compiler.unit.made("pending", node.name, PendingUpdates, "")


def _skip_nothing(
    function: Body,
    node: TableTableJoin,
    record: RecordVariables,
    value: str,
    other: RowVariables,
    before: RowVariables,
) -> None:
    """Generate code that ends the work on an update if neither the new nor the old
    result exists.
    """
    if _needs_other(node, record):
        function.skip_if(
            f"{other.value} is None"
            + ("" if other is before else f" and {before.value} is None")
        )
    else:
        assert record.old is not None
        function.skip_if(
            f"{other.value} is None and {value} is None and {record.old} is None"
        )


def _join(
    node: TableTableJoin,
    joiner: str,
    record: RecordVariables,
    value: str,
    other: RowVariables,
    *,
    known: bool = True,
) -> str:
    """Return the expression of the join with the other row. `known`: whether the other
    row is certainly not None where the join needs it.
    """
    left, right = (value, other.value) if record.side == 0 else (other.value, value)
    return joined_value(
        node.kind,
        joiner,
        left,
        right,
        known=other.value if known and _needs_other(node, record) else None,
    )


def _needs_other(node: TableTableJoin, record: RecordVariables) -> bool:
    """Return whether the join has no result without a row of the other side."""
    return node.kind == "inner" or (node.kind == "left" and record.side == 1)


def _keep(
    function: Body,
    node: TableTableJoin,
    key_bytes: str,
    value: str,
    timestamp: str,
) -> None:
    assert node.store is not None
    function.expire_view(node, node.store)
    entry = function.entry_of(node.store, key_bytes)
    function.line(f"{entry}.value = {value}")
    function.line(f"{entry}.timestamp = {timestamp}")
    function.touch(node.store, key_bytes, entry)
    function.keep_headers(node, entry)


OPERATORS: Mapping[type[Node], Operator] = {TableTableJoin: table_table_join}
