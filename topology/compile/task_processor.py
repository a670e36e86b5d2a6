"""Runs a processor in one task: connects the user's object to the generated code around
it.

    generated code -> Work.run -> Processor.process -> Work.forward
        -> generated code of the children
    generated code -> EffectsWork.run -> generated code of the children

Invariant: an exception of the user's object fails its record at this node. An exception
that ends the batch passes through the object, even if the object catches it.
Relies on: `program` (`BoundProgram` is the `Surroundings`), `processor_stores`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias
from weakref import WeakValueDictionary

from coopstreams.topology.columns import Headers
from coopstreams.topology.compile.processor_stores import (
    ExpiringKeyValueStore,
    HeadedKeyValueStore,
    KeyValueStore,
    SessionStore,
    VersionedStore,
    WindowStore,
    put_row,
)
from coopstreams.topology.compile.punctuations import PunctuationQueue, Schedule
from coopstreams.topology.durations import Duration, duration_ms
from coopstreams.topology.errors import ProcessingError, TopologyError
from coopstreams.topology.graph.nodes import Processing
from coopstreams.topology.kept_headers import KeptHeaders
from coopstreams.topology.naming import past_name
from coopstreams.topology.processors import (
    Effect,
    Processor,
    Punctuation,
    PunctuationType,
    Put,
    RecordMetadata,
)
from coopstreams.topology.records import Record, check_writable
from coopstreams.topology.stores import TableStore

Children: TypeAlias = Callable[[bytes | None, Any, Any, int], object]
"""A function of `(key bytes, key, value, timestamp)` that passes a record to the nodes
below. The key bytes are None unless the node has `Processing.key`.
"""


_AT_WORK: WeakValueDictionary[int, Work] = WeakValueDictionary()
"""The `Work` of each open processor, by the id of the processor."""


class Surroundings(Protocol):
    """The part of `BoundProgram` that a processor's `Work` uses."""

    headers: Headers | None
    """The headers of the current record."""
    ending: BaseException | None
    """The exception with which the failure handler, or a node below a processor, ended
    the batch; None if the batch goes on.
    """

    @property
    def punctuations(self) -> Mapping[PunctuationType, PunctuationQueue]:
        """The queue of punctuations of each clock."""
        ...

    def where(self) -> RecordMetadata | None:
        """Return where the current record was read, or None if there is none."""
        ...

    def pass_on(self, headers: Headers | None, call: Callable[[], object]) -> None:
        """Call the nodes below. The records that they write get these headers, and an
        exception from them ends the batch.
        """

    def fail_punctuation(
        self,
        node: str,
        error: Exception,
        now_ms: int,
    ) -> None:
        """Pass an error of a punctuation to the failure handler."""

    def task_time(self) -> int:
        """Return the largest timestamp of the records that the task has processed."""
        ...

    def wall_clock(self) -> int:
        """Return the time of the wall clock in milliseconds since the epoch."""
        ...


class EffectsWork:
    """A `process_async` node in one task. It applies the effects that the calls have
    recorded.
    """

    def __init__(
        self,
        stores: Mapping[str, TableStore],
        around: Surroundings,
        children: Children,
        by_name: Mapping[str, Children],
    ) -> None:
        self._stores = stores
        self._around = around
        self._children = children
        self._by_name = by_name

    def run(
        self,
        key: bytes,
        timestamp: int,
        effects: Iterable[Effect],
    ) -> None:
        """Apply recorded effects in order: change this key's rows, and pass records to
        the nodes below.
        """
        for effect in effects:
            if isinstance(effect, Put):
                put_row(self._stores[effect.store], key, effect.value, timestamp)
                continue
            record = effect.record
            children = self._children if effect.to is None else self._by_name[effect.to]
            forward = partial(
                children,
                None,
                record.key,
                record.value,
                max(0, record.timestamp),
            )
            self._around.pass_on(record.headers or None, forward)


class Work:
    """A processor in one task, and its `ProcessorContext`."""

    def __init__(
        self,
        node: Processing,
        stores: Mapping[str, TableStore],
        around: Surroundings,
        children: Children,
        by_name: Mapping[str, Children],
    ) -> None:
        self._node = node
        self._stores = stores
        self._around = around
        self._children = children
        self._by_name = by_name
        self._at: tuple[bytes | None, Record[Any, Any]] | None = None
        """The key bytes and the record that are being processed."""
        self._timestamp = -1
        self._forgetful = [
            stores[spec.name]
            for spec in node.stores
            if spec.kind in ("window", "session")
        ]
        self._expiring: list[Any] = [
            stores[spec.name] for spec in node.stores if spec.ttl_ms is not None
        ]
        self._processor: Processor[Any, Any, Any, Any] | None = None

    @property
    def name(self) -> str:
        """The name of the processor's node."""
        return self._node.name

    def begin(self) -> None:
        """Make the processor, and initialise it. Call it once, before the first record,
        on the thread that runs it.

        Raises:
            TopologyError: the user's function returned another type of object, or a
                processor that another task or node already uses. Whatever the processor
                raises.
        """
        made = self._node.supplier()
        if not isinstance(made, Processor):
            raise TopologyError(
                f'"{self._node.name}": the function given to process() returned {made!r}, which is no Processor'
            )
        if _AT_WORK.setdefault(id(made), self) is not self:
            raise TopologyError(
                f'"{self._node.name}": the function given to process() returned {made!r}, which another task or node '
                "has already: it would write to the stores of that one. Make a new one in each call, as in "
                "process(lambda: Count())."
            )
        self._processor = made
        made.context = (
            self  # an `init` of the user's may not call that of the base class
        )
        made.init(self)

    def run(
        self,
        key_bytes: bytes | None,
        key: Any,
        value: Any,
        timestamp: int,
    ) -> None:
        """Have the processor process a record."""
        before = self._at, self._timestamp
        record = Record(key, value, timestamp, list(self._around.headers or ()))
        self._at = (key_bytes, record)
        self._timestamp = timestamp
        assert self._processor is not None
        try:
            self._processor.process(record)
        finally:
            self._at, self._timestamp = before
            self._end_if_over()

    def observe(self, stream_time: int) -> None:
        """Advance the stream time of the stores whose rows expire.

        Stream time is the partition's, so records of tasks of other key ranges advance
        it as well.
        """
        for table in self._forgetful:
            table.advance(stream_time)
        for table in self._expiring:
            if stream_time >= table.due_ms:
                table.expired(stream_time)

    def close(self) -> None:
        """Close the processor, if it was made."""
        if self._processor is not None:
            _AT_WORK.pop(id(self._processor), None)
            self._processor.close()

    def forward(self, record: Record[Any, Any], *, to: str | None = None) -> None:
        """Pass a record to all nodes below, or only to the node named `to`.

        Raises:
            TypeError: the record's timestamp or headers cannot be written to Kafka. The
                current record fails at this node.
        """
        check_writable(record)
        key_bytes = None
        children = self._children if to is None else self._child(to)
        if self._node.fixed_key:
            key_bytes = self._same_key(record)
        timestamp = max(0, record.timestamp)
        self._around.pass_on(
            record.headers or None,
            lambda: children(key_bytes, record.key, record.value, timestamp),
        )

    def store(self, name: str) -> Any:
        """Return a store of the processor by its name."""
        if name not in self._node.store_names:
            names = ", ".join(self._node.store_names) or "none"
            raise TopologyError(
                f'"{self._node.name}" has no store "{name}"; stores= names {names}'
            )
        table = self._stores[name]
        if table.spec.history_ms is not None:
            past: Any = self._stores[past_name(name)]
            return VersionedStore(table, past, self._around.task_time)
        kinds: dict[str, Callable[[Any], Any]] = {
            "key_value": self._key_value_store,
            "window": lambda table: WindowStore(table, lambda: self._timestamp),
            "session": SessionStore,
        }
        if table.spec.kind not in kinds:
            raise TopologyError(
                f'"{self._node.name}": store "{name}" is a {table.spec.kind} store, which processors cannot use'
            )
        return kinds[table.spec.kind](table)

    def _key_value_store(self, table: Any) -> KeyValueStore[Any, Any]:
        rows: KeyValueStore[Any, Any] = (
            KeyValueStore(table, lambda: self._timestamp)
            if table.spec.ttl_ms is None
            else ExpiringKeyValueStore(
                table,
                lambda: self._timestamp,
                self._around.task_time,
            )
        )
        if isinstance(table.spec.value, KeptHeaders):
            return HeadedKeyValueStore(rows, lambda: self._around.headers)
        return rows

    def schedule(
        self,
        interval: Duration,
        type_: PunctuationType,
        function: Callable[[int], object],
    ) -> Punctuation:
        """Schedule calls of a function at intervals, and return the handle that cancels
        them.
        """
        interval_ms = duration_ms(interval, f'"{self._node.name}": the interval')
        if interval_ms < 1 or type_ not in self._around.punctuations:
            raise TopologyError(
                f'"{self._node.name}": schedule(interval, "stream_time" or "wall_clock", function) with at least 1 ms'
            )
        schedule = Schedule(
            interval_ms,
            lambda now_ms: self._punctuate(function, now_ms),
        )
        queue = self._around.punctuations[type_]
        first_ms = 0
        if type_ == "wall_clock":
            queue.look(now_ms := self._around.wall_clock())
            first_ms = now_ms + interval_ms
        elif (
            self._at is None
            and self._timestamp == -1
            and (reached_ms := self._around.task_time()) >= 0
        ):
            # In `init`, where an earlier owner has stopped: what was due until then has
            # been called.
            first_ms = reached_ms - reached_ms % interval_ms + interval_ms
        queue.add(schedule, first_ms)
        return schedule

    def stream_time(self) -> int:
        """Return the stream time of the task."""
        return self._around.task_time()

    def wall_clock(self) -> int:
        """Return the time of the wall clock in milliseconds since the epoch."""
        return self._around.wall_clock()

    @property
    def metadata(self) -> RecordMetadata | None:
        """The topic, partition and offset of the current record; None in a
        punctuation.
        """
        return self._around.where()

    def _punctuate(self, function: Callable[[int], object], now_ms: int) -> None:
        self._timestamp = now_ms
        try:
            function(now_ms)
        except Exception as error:  # noqa: BLE001 the failure handler decides
            self._end_if_over()
            self._around.fail_punctuation(self._node.name, error, now_ms)
        self._end_if_over()

    def _child(self, name: str) -> Children:
        if name not in self._by_name:
            known = ", ".join(self._by_name) or "none"
            raise ProcessingError(
                f'"{self._node.name}": forward(…, to="{name}"): no operator below has this name; there are {known}. '
                "name= gives one."
            )
        return self._by_name[name]

    def _same_key(self, record: Record[Any, Any]) -> bytes | None:
        if self._at is None:
            raise ProcessingError(
                f'"{self._node.name}": process_values() can forward while it processes a record, not in a punctuation'
            )
        key_bytes, given = self._at
        if record.key is not given.key and record.key != given.key:
            raise ProcessingError(
                f'"{self._node.name}": process_values() cannot change the key {given.key!r} to {record.key!r}. Use '
                "process()."
            )
        return key_bytes

    def _end_if_over(self) -> None:
        if self._around.ending is not None:
            raise self._around.ending
