"""Implements `suppress`: a buffer holds the updates of a table until their window
closes, or until a time has passed.

The buffer is a store with a changelog. An index in memory orders its rows by the time
at which they are emitted, then by key bytes; it is rebuilt when a task opens.

Invariant: the buffer has one update for each row; a later update replaces the earlier
one. Turned down: Kafka Streams' old value of an emitted update, which is the value
before the last update. Here the old value is the previously emitted value.
Source: Kafka Streams `KTableSuppressProcessorSupplier`,
`InMemoryTimeOrderedKeyValueChangeBuffer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush

from coopstreams.topology.columns import Headers
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.graph.aggregate_nodes import Suppress
from coopstreams.topology.graph.nodes import Node, Processing
from coopstreams.topology.kept_headers import as_read, placed_headers
from coopstreams.topology.operators.codegen import RecordVariables
from coopstreams.topology.operators.compiler import Body, Compiler, Operator
from coopstreams.topology.stores import TableStore
from coopstreams.topology.suppression import SuppressedUpdate


class SuppressionBuffer:
    """The updates that one `suppress` holds in one task."""

    def __init__(self, node: Suppress, stores: Mapping[str, TableStore]) -> None:
        self._store = stores[node.buffer.name]
        self._end: Callable[[bytes], int] | None = (
            node.end_of if node.until_close else None
        )
        self._wait_ms = node.wait_ms
        self._most = node.max_records
        self._most_bytes = node.max_bytes
        self._stops = node.when_full == "shut_down"
        self._name = node.name
        self._drops_deletions = node.until_close
        self._queue: list[tuple[int, bytes]] = []
        self._places: dict[bytes, int] = {}
        self._bytes = 0
        for key, entry in self._store.scan(None, None):
            self._queue_up(key, entry.value.place)
            self._bytes += _size(key, entry.value)

    def put(
        self,
        key: bytes,
        value: bytes | None,
        before: bytes | None,
        timestamp: int,
        headers: Headers | None,
    ) -> None:
        """Hold an update. If an update of the same row is already held, replace it and
        keep its place in the order.

        `before`: the value of the row before the update.
        """
        entry = self._store.entries.get(key) or self._store.load(key)
        earlier: SuppressedUpdate | None = entry.value
        if earlier is None:
            place = timestamp if self._end is None else self._end(key)
            entry.value = SuppressedUpdate(place, timestamp, value, before, headers)
            self._queue_up(key, place)
        else:
            entry.value = SuppressedUpdate(
                earlier.place,
                timestamp,
                value,
                earlier.before,
                headers,
            )
            self._bytes -= _size(key, earlier)
        self._bytes += _size(key, entry.value)
        entry.timestamp = timestamp
        if not entry.dirty:
            self._store.touch(key, entry)

    def held(self, key: bytes) -> SuppressedUpdate | None:
        """Return the held update of a row, or None if none is held."""
        held: SuppressedUpdate | None = (
            self._store.entries.get(key) or self._store.load(key)
        ).value
        return held

    def due(self, stream_time: int) -> Iterator[tuple[bytes, SuppressedUpdate, int]]:
        """Yield the due updates with key and timestamp, and the earliest updates above
        the limits. Each update is removed after its yield.

        While an update is forwarded, a look-up of its row still finds the row before
        the update, as in Kafka Streams.

        Raises:
            ProcessingError: the limits are exceeded and `when_full` is `shut_down`. The
                message names the cures.
        """
        queue = self._queue
        last = stream_time - self._wait_ms
        while queue and (queue[0][0] <= last or self._is_full()):
            if queue[0][0] > last and self._stops:
                raise ProcessingError(
                    f"{self._name}: {len(queue)} rows with {self._bytes} bytes wait, more than suppress() was told to "
                    f"hold (max_records={self._most}, max_bytes={self._most_bytes}). Allow more, make windows "
                    "shorter, or let it emit early."
                )
            key = queue[0][1]
            entry = self._store.entries.get(key) or self._store.load(key)
            update: SuppressedUpdate = entry.value
            if update.value is not None or not self._drops_deletions:
                yield key, update, update.timestamp
            heappop(queue)
            del self._places[key]
            self._bytes -= _size(key, update)
            entry.value = None
            if not entry.dirty:
                self._store.touch(key, entry)

    def _is_full(self) -> bool:
        return (self._most is not None and len(self._queue) > self._most) or (
            self._most_bytes is not None and self._bytes > self._most_bytes
        )

    def _queue_up(self, key: bytes, place: int) -> None:
        self._places[key] = place
        heappush(self._queue, (place, key))


def _size(key: bytes, update: SuppressedUpdate) -> int:
    return len(key) + len(update.value or b"") + len(update.before or b"")


def suppress(
    function: Body,
    node: Suppress,
    record: RecordVariables,
) -> None:
    """Generate code that holds an update, and forwards the updates that are then
    due.
    """
    key_bytes = function.key_as_bytes(record, node.key, node)
    value_bytes = function.value_as_bytes(record, node.value, node)
    before = "None"
    if record.old and node.sends_old:
        known = RecordVariables(node.name, None, None, record.old)
        before = function.value_as_bytes(known, node.value, node)
    operator_time = function.stream_time(node, record)
    name = buffer(function.compiler, node)
    if all(known.name != f"{name}_due" for known in function.unit.functions):
        _write_due(function.compiler, node, name, operator_time)
    headers = held_headers(function.compiler, node)
    function.line(
        f"{name}.put({key_bytes}, {value_bytes}, {before}, {record.timestamp}, {headers})"
    )
    if not function.compiler.caching:
        function.line(f"{name}_due()")


def buffer(compiler: Compiler, node: Suppress) -> str:
    """Return the name of the generated variable for a task's `SuppressionBuffer`."""
    return compiler.unit.made(
        "waiting",
        node.name,
        partial(SuppressionBuffer, node),
        "stores",
    )


def held_headers(compiler: Compiler, node: Node) -> str:
    """Return the expression of the headers that a held record keeps. They say where the
    record was read if a processor below may ask for it.
    """
    asked = _is_asked(compiler, node)
    return (
        f"{compiler.unit.constant('placed_headers', placed_headers)}(process)"
        if asked
        else "process.headers"
    )


def under_held_headers(
    compiler: Compiler,
    headers: str,
    call: str,
) -> str:
    """Return the statement that runs `call` for a held record, under the record's
    headers.

    The headers may say where the record was read although no processor asks for it: an
    earlier version of the program may have had one.
    """
    return f"{compiler.unit.constant('as_read', as_read)}(process, {headers}, lambda: {call})"


def _is_asked(compiler: Compiler, node: Node) -> bool:
    """Return whether a processor below may ask where a record was read."""
    below = {node.name}
    for other in compiler.analysis.nodes:
        if not below.isdisjoint(other.parents):
            if isinstance(other, Processing):
                return True
            below.add(other.name)
    return False


def _write_due(
    compiler: Compiler,
    node: Suppress,
    name: str,
    operator_time: str,
) -> None:
    """Generate the functions that forward the due updates, each under its own
    headers.
    """
    unit = compiler.unit
    emit = compiler.function(f"{name}_emit")
    emit.parameters = ("key_bytes", "update")
    emit.line("value_bytes, timestamp = update.value, update.timestamp")
    record = RecordVariables(
        node.name,
        "key_bytes",
        node.key,
        stream_time=operator_time,
        has_key=True,
    )
    record = replace(record, value_bytes="value_bytes", value_serde=node.value)
    if compiler.analysis.wants_old(node):
        emit.line(
            "old = None if update.before is None else "
            f"{unit.constant('decode_value', node.value.decode)}(update.before)"
        )
        record = replace(record, old="old")
    emit.forward(node, record)
    due = compiler.function(f"{name}_due")
    with due.loop(
        f"for key_bytes, update, _ in process.held({name}.due({operator_time})):"
    ):
        due.line(
            under_held_headers(
                compiler,
                "update.headers",
                f"{name}_emit(key_bytes, update)",
            )
        )
    if not compiler.caching:
        unit.operator_times[operator_time].due.append(f"{name}_due")


OPERATORS: Mapping[type[Node], Operator] = {Suppress: suppress}
