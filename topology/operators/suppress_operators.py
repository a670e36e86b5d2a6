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
from typing import TypeAlias, cast

from coopstreams.topology.columns import Headers
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.graph.aggregate_nodes import Suppress
from coopstreams.topology.graph.known_folds import plain_sinks
from coopstreams.topology.graph.nodes import Node, Processing
from coopstreams.topology.kept_headers import as_read, placed_headers
from coopstreams.topology.operators.codegen import RecordVariables
from coopstreams.topology.operators.compiler import Body, Compiler, Operator
from coopstreams.topology.operators.native_folds import may_be_columns, write_columns
from coopstreams.topology.stores import BufferStore, Entry, TableStore
from coopstreams.topology.suppression import SuppressedUpdate

_Columns: TypeAlias = tuple[list[bytes], list[bytes | None], list[int]]
"""Keys, values and timestamps."""


class SuppressionBuffer:
    """The updates that one `suppress` holds in one task."""

    def __init__(self, node: Suppress, stores: Mapping[str, TableStore]) -> None:
        self._store = cast("BufferStore", stores[node.buffer.name])
        self._end: Callable[[bytes], int] | None = (
            node.end_of if node.until_close else None
        )
        self._suffix = node.buffer.suffix_bytes
        self._wait_ms = node.wait_ms
        self._most = node.max_records
        self._most_bytes = node.max_bytes
        self._stops = node.when_full == "shut_down"
        self._name = node.name
        self._drops_deletions = node.until_close
        self._queue: list[tuple[int, bytes]] = []
        self._places: dict[bytes, int] = {}
        self._bytes = 0
        self._headed = False
        """Whether a held update may have headers."""
        self._taken: list[_Columns] = []
        for key, entry in self._store.scan(None, None):
            self._queue_up(key, entry.value.place)
            self._bytes += _size(key, entry.value)
            self._headed |= entry.value.headers is not None

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
        self._headed |= headers is not None
        is_held = key in self._places
        entry = self._entry(key) if is_held else self._store.insert(key)
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

    def take(
        self,
        keys: list[bytes],
        values: list[bytes | None],
        timestamps: list[int],
    ) -> None:
        """Hold updates without headers and without a value before them. They are
        looked at when the next ones are due: most windows come and go between two
        flushes.
        """
        self._taken.append((keys, values, timestamps))

    def columns(self, stream_time: int) -> _Columns | None:
        """Remove the due updates, and return their keys, values and timestamps in
        order; None: one may have headers, so `due` has to be asked.

        Raises:
            ProcessingError: see `due`.
        """
        if self._headed:
            return None
        last = stream_time - self._wait_ms
        due = self._due_of_taken(last)
        while self._queue and self._queue[0][0] <= last:
            place, key = self._queue[0]
            entry = self._entry(key)
            update: SuppressedUpdate = entry.value
            due.append((place, key, update.value, update.timestamp))
            self._remove(key, entry)
        if self._queue and self._is_full():
            raise self._overflow()
        due.sort()  # by place and key, which are those of one update
        kept = [update for update in due if update[2] is not None]
        return (
            [update[1] for update in kept],
            [update[2] for update in kept],
            [update[3] for update in kept],
        )

    def held(self, key: bytes) -> SuppressedUpdate | None:
        """Return the held update of a row, or None if none is held."""
        if key not in self._places:
            return None
        held: SuppressedUpdate = self._entry(key).value
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
        for key, value, timestamp in self._taken_rows():
            self.put(key, value, None, timestamp, None)
        queue = self._queue
        last = stream_time - self._wait_ms
        while queue and (queue[0][0] <= last or self._is_full()):
            if queue[0][0] > last and self._stops:
                raise self._overflow()
            key = queue[0][1]
            entry = self._entry(key)
            update: SuppressedUpdate = entry.value
            if update.value is not None or not self._drops_deletions:
                yield key, update, update.timestamp
            self._remove(key, entry)

    def _due_of_taken(
        self,
        last: int,
    ) -> list[tuple[int, bytes, bytes | None, int]]:
        """Return the updates taken whose place is at most `last`, with it, and hold the
        others: those of a row that is held already replace its update.
        """
        assert self._end is not None
        ends: dict[bytes, int] = {}
        due = []
        for key, value, timestamp in self._taken_rows():
            times = key[-self._suffix :]
            place = ends.get(times)
            if place is None:
                place = ends[times] = self._end(key)
            if place > last or key in self._places:
                self.put(key, value, None, timestamp, None)
            else:
                due.append((place, key, value, timestamp))
        return due

    def _taken_rows(self) -> Iterator[tuple[bytes, bytes | None, int]]:
        """Yield the updates taken, which are then forgotten."""
        taken = self._taken
        self._taken = []
        for columns in taken:
            yield from zip(*columns, strict=True)

    def _entry(self, key: bytes) -> Entry:
        """Return the entry of a held update."""
        return self._store.entries.get(key) or self._store.load(key)

    def _remove(self, key: bytes, entry: Entry) -> None:
        """Remove the first update of the queue."""
        heappop(self._queue)
        del self._places[key]
        self._bytes -= _size(key, entry.value)
        entry.value = None
        if not entry.dirty:
            self._store.touch(key, entry)

    def _overflow(self) -> ProcessingError:
        return ProcessingError(
            f"{self._name}: {len(self._queue)} rows with {self._bytes} bytes wait, more than suppress() was told to "
            f"hold (max_records={self._most}, max_bytes={self._most_bytes}). Allow more, make windows "
            "shorter, or let it emit early."
        )

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
    sinks = plain_sinks(node, compiler.analysis.nodes)
    if node.until_close and compiler.caching and may_be_columns(sinks, compiler):
        write_columns(due, f"{name}.columns({operator_time})", sinks)
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
