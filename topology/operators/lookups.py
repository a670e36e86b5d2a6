"""Generates look-ups of table rows. For a table without a store, the filters, mappers
and joins are applied to the rows of the stores upstream.

Source: Kafka Streams `KTableValueGetter` and its implementations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
"""A timestamp later than any record's."""


class RowVariables(NamedTuple):
    """The variables of a row that was looked up: its value, and its timestamp, which is
    undefined if the value is None.

    `stored`: the expression of the serialised value in the store; it is None if the
    value has changed since the last commit, and undefined if the value is None. In a
    table without a store, only an unchanged row from upstream has a serialised value.
    """

    value: str
    timestamp: str
    stored: str = "None"


@dataclass(frozen=True, slots=True)
class LookUp:
    """The generator of look-ups of the rows that have the key of a record.

    `as_of`: the variable of the moment whose version is looked up. It is set for stream
    records, which must not find a row that has expired by their stream time. `flushed`:
    look up the row as of the last flush of the record caches, as the nodes below have
    received it. `before`: look up the row as it was before the current record, for
    self-joins.
    """

    function: Body
    record: RecordVariables
    key_bytes: str
    as_of: str | None = None
    flushed: bool = False
    before: bool = False

    def row(self, name: str) -> RowVariables:
        """Generate the look-up of a table's row; return its variables."""
        node = self.function.analysis.named(name)
        store: StoreSpec | None = getattr(node, "store", None)
        if store is not None and store.history_ms is not None:
            return self._version(node, store)
        if store is not None:
            return self._live(store)
        if isinstance(node, TableTableJoin):
            return replace(self, as_of=None)._joined(node)
        assert isinstance(node, Filter | MapValues | Suppress)
        row = self.row(node.parents[0])
        if isinstance(node, Suppress):
            return self._let_go(node, row)
        return self._seen(node, row)

    def _live(self, store: StoreSpec) -> RowVariables:
        """Generate the look-up of a row in a store; for `as_of`, an expired row is not
        found.
        """
        row = self._stored(store)
        if self.as_of is not None and store.ttl_ms is not None:
            # The topic of the stream may be ahead of that of the table, which has not
            # forwarded the expiry yet.
            expired = f"{row.timestamp} + {store.ttl_ms} <= {self.record.stream_time}"
            with self.function.block(f"if {row.value} is not None and {expired}:"):
                self.function.line(f"{row.value} = None")
        return row

    def _stored(self, store: StoreSpec) -> RowVariables:
        function = self.function
        unit = function.unit
        name = unit.store(store)
        entry = function.fresh("entry")
        written = unit.constant(
            "as_written",
            as_written if store.history_ms is None else latest_as_written,
        )
        stored = f"{entry}.stored" if self.flushed else f"{written}({entry})"
        row = RowVariables(function.fresh("row"), f"{entry}.timestamp", stored)
        function.line(
            f"{entry} = {self._of_key(f'get_{name}(KEY) or load_{name}(KEY)')}"
        )
        missing = "" if self.record.has_key else f"None if {entry} is None else "
        function.line(f"{row.value} = {missing}{entry}.value")
        if self.before:
            before = function.compiler.before
            function.line(f"{row.value} = {before}.get({store.name!r}, {row.value})")
        if self.flushed:
            decode = unit.constant("decode_value", store.value.decode)
            with function.block(f"if {entry} is not None and {entry}.dirty:"):
                function.line(
                    f"{row.value} = None if {entry}.stored is None else {decode}({entry}.stored)"
                )
        return row

    def _version(self, node: Node, store: StoreSpec) -> RowVariables:
        """Generate the look-up of the row version that was valid at `as_of`, or of the
        latest version.
        """
        function = self.function
        unit = function.unit
        row = replace(self, flushed=False)._stored(store)
        entry = function.fresh("version")
        now = unit.operator_time(
            function.analysis.numbers[node.name],
            function.analysis.topics(node),
        )
        assert store.past is not None
        version = unit.constant("version_at", version_at)
        past = unit.store(store.past)
        stored = row.stored if self.as_of is None else "None"
        found = RowVariables(function.fresh("row"), function.fresh("timestamp"), stored)
        moment = f"{LATEST}, {LATEST}"
        if self.as_of is not None:
            moment = f"{self.as_of}, {now} - {store.history_ms}"
        function.line(
            f"{entry} = {version}({row.value}, {past}, {self.key_bytes}, {moment})"
        )
        function.line(f"{found.timestamp}, {found.value} = {entry} or (-1, None)")
        return found

    def _seen(self, step: Filter | MapValues, row: RowVariables) -> RowVariables:
        """Generate code that applies a filter or a mapper to a row that was looked
        up.
        """
        call_of = self.function.call_of
        if isinstance(step, Filter):
            parts: tuple[str, ...] = ("key", row.value)
            call = call_of("predicate", step.predicate, self.record, parts)
            passes = f"{'not ' if step.negate else ''}{call}"
            seen = f"{row.value} if {row.value} is not None and {passes} else None"
            stored = row.stored
        else:
            parts = ("key", row.value) if step.with_key else (row.value,)
            call = call_of("mapper", step.mapper, self.record, parts)
            seen = f"None if {row.value} is None else {call}"
            stored = "None"
        value = self.function.guarded("row", seen, step)
        return RowVariables(value, row.timestamp, stored)

    def _let_go(self, node: Suppress, row: RowVariables) -> RowVariables:
        """Generate the look-up below a `suppress`: while an update of the row is held,
        the result is the row before that update, with an unknown timestamp.
        """
        function = self.function
        held = function.fresh("held")
        stored = f"({row.stored} if {held} is None else {held}.before)"
        seen = RowVariables(function.fresh("row"), function.fresh("timestamp"), stored)
        decode = function.unit.constant("decode_value", node.value.decode)
        name = buffer(function.compiler, node)
        function.line(f"{held} = {self._of_key(f'{name}.held(KEY)')}")
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

    def _joined(self, node: TableTableJoin) -> RowVariables:
        """Generate the look-up of a row of a join without a store."""
        left, right = map(self.row, node.parents)
        joiner = self.function.unit.constant("joiner", node.joiner)
        joined = joined_value(node.kind, joiner, left.value, right.value)
        value = self.function.guarded("row", joined, node)
        row = RowVariables(value, self.function.fresh("timestamp"))
        self.function.line(f"{row.timestamp} = {later(left, right)}")
        return row

    def _of_key(self, code: str) -> str:
        """Return the code with the key in place of KEY; its result is None if the key
        is null.
        """
        found = code.replace("KEY", self.key_bytes)
        if self.record.has_key:
            return found
        return f"None if {self.key_bytes} is None else {found}"


def joined_value(
    kind: str,
    joiner: str,
    left: str,
    right: str,
    *,
    known: str | None = None,
) -> str:
    """Return the expression of a table join's value, which is None if there is no
    result. `known`: a variable that is certainly not None.
    """
    needed = {"inner": (left, right), "left": (left,), "outer": ()}[kind]
    call = f"{joiner}({left}, {right})"
    if kind == "outer" and known is None:
        return f"None if {left} is None and {right} is None else {call}"
    missing = " or ".join(f"{side} is None" for side in needed if side != known)
    return f"None if {missing} else {call}" if missing else call


def later(left: RowVariables, right: RowVariables) -> str:
    """Return the expression of the larger timestamp of two rows. A missing row is
    ignored; if both are missing, the result is -1.
    """
    return (
        f"-1 if {left.value} is None and {right.value} is None else {left.timestamp} if {right.value} is None "
        f"else {right.timestamp} if {left.value} is None else max({left.timestamp}, {right.timestamp})"
    )
