"""Generates the join of a stream with a versioned table with grace, which waits for
late rows of the table.

A record is held until stream time has passed its timestamp by the grace, and is then
joined with the row version that was valid at its timestamp. Held records come out in
the order of timestamp, key bytes, arrival. A record that is later than the grace is
joined at once. A result has the headers of its record.

Invariant: stream time counts the stream's records that are not dropped. Null values,
null keys in an inner join and the table's records do not count.
Source: Kafka Streams `KStreamKTableJoinProcessor` with a `TimeOrderedKeyValueBuffer`,
KIP-923.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from coopstreams.topology.columns import Headers
from coopstreams.topology.graph.join_nodes import BufferedJoin
from coopstreams.topology.graph.nodes import Node
from coopstreams.topology.kept_headers import Headed
from coopstreams.topology.operators.codegen import RecordVariables
from coopstreams.topology.operators.compiler import Body, Compiler, Operator
from coopstreams.topology.operators.join_memory import UnmatchedRecords
from coopstreams.topology.operators.suppress_operators import (
    held_headers,
    under_held_headers,
)
from coopstreams.topology.operators.tables import drop_null_key, join_row
from coopstreams.topology.stores import TableStore

Held: TypeAlias = tuple[bytes | None, Any, Headers | None, int]
"""A held record: key, value, headers, timestamp."""

_STREAM = 0


class GraceBuffer:
    """The records that a stream-table join with grace holds in one task."""

    def __init__(self, node: BufferedJoin, stores: Mapping[str, TableStore]) -> None:
        self._grace_ms = node.grace_ms
        self._held = UnmatchedRecords(stores[node.buffer.name])

    def take(
        self,
        key: bytes | None,
        value: Any,
        timestamp: int,
        headers: Headers | None,
        now: int,
    ) -> list[Held]:
        """Hold a record, and return the records that are now due. A record that is late
        or has no key is due at once. `now`: the stream time.
        """
        if key is None or timestamp < now - self._grace_ms:
            return [(key, value, headers, timestamp)]
        self._held.add(key, _STREAM, timestamp, Headed(value, headers or []))
        return self.due(now)

    def due(self, now: int) -> list[Held]:
        """Return and remove the records that have been held for the grace. `now`: the
        stream time.
        """
        out: list[Held] = []
        order = self._held.order
        while order and order[0][0] <= now - self._grace_ms:
            timestamp, _, key = order[0]
            out += [
                (key, *row, timestamp)
                for row in self._held.values(key, _STREAM, timestamp)
            ]
            self._held.remove(key, _STREAM, timestamp)
        return out


def buffered_join(
    function: Body,
    node: BufferedJoin,
    record: RecordVariables,
) -> None:
    """Generate code that holds a record, and joins the records that are due with their
    rows.
    """
    if not node.left:
        drop_null_key(function, node, record)
        record = replace(record, has_key=True)
    value = function.value(record)
    function.drop_if(f"{value} is None", node, "null-value")
    key_bytes = function.key_as_bytes(record, node.store.key, node)
    now = function.stream_time(node, record)
    unit = function.unit
    name = unit.made("held", node.name, partial(GraceBuffer, node), "stores")
    due = unit.operator_times[now].due
    if f"{name}_due" not in due:
        due.append(f"{name}_due")
        _write_join(function.compiler, node, name, now)
        _meet(
            function.compiler.function(f"{name}_due"),
            name,
            f"{name}.due({now})",
        )
    taken = f"{name}.take({key_bytes}, {value}, {record.timestamp}, {held_headers(function.compiler, node)}, {now})"
    _meet(function, name, taken, (key_bytes, value, record.timestamp))


def _meet(
    function: Body,
    name: str,
    held: str,
    at_hand: tuple[str, str, str] | None = None,
) -> None:
    """Generate code that joins held records with their rows, each under its own
    headers.

    `held`: the code of the held records. `at_hand`: the variables of the current record
    (key, value, timestamp), which may be among them.
    """
    key, value, headers, timestamp = (
        function.fresh(part) for part in ("key", "value", "headers", "timestamp")
    )
    with function.loop(
        f"for {key}, {value}, {headers}, {timestamp} in process.held({held}):"
    ):
        if at_hand is not None:
            own_key, own_value, own_timestamp = at_hand
            own = f"{value} is {own_value} and {timestamp} == {own_timestamp} and {key} == {own_key}"
            with function.block(f"if {own}:"):
                function.line("process.held_row = None")
        join = f"{name}_join({key}, {value}, {timestamp})"
        function.line(under_held_headers(function.compiler, f"{headers} or None", join))


def _write_join(
    compiler: Compiler,
    node: BufferedJoin,
    name: str,
    now: str,
) -> None:
    """Generate the function that joins one held record with its row."""
    join = compiler.function(f"{name}_join")
    join.parameters = ("key_bytes", "value", "timestamp")
    record = RecordVariables(
        node.name,
        "key_bytes",
        node.store.key,
        "value",
        stream_time=now,
        has_key=not node.left,
        dense=True,
    )
    join.forward(node, join_row(join, node, record))


OPERATORS: Mapping[type[Node], Operator] = {BufferedJoin: buffered_join}
