"""Defines the Processor API: a user's object that processes records, with stores and
punctuations of its own.

    class Alarm(Processor[str, float, str, str]):
        def init(self, context: ProcessorContext[str, str]) -> None:
            super().init(context)
            self.worst: KeyValueStore[str, float] = context.store("worst")
            context.schedule(timedelta(minutes=1), "stream_time", self.report)

        def process(self, record: Record[str, float]) -> None:
            if record.value > (self.worst.get(record.key) or 0):
                self.worst.put(record.key, record.value)

        def report(self, now_ms: int) -> None:
            for key, value in self.worst.all():
                self.context.forward(Record(key, f"{value} at worst", now_ms))

    worst = key_value_store("worst", key=..., value=...)
    builder.stream("in", ...).process(
        Alarm, stores=[worst], key=..., value=..., by_key=True
    )

`process_async` calls a function instead, outside of the stream thread, with a
`CallContext`:

    async def assess(record: Record[str, float], context: CallContext[str, float]):
        worst = context.store("worst")
        if (risk := await asked(record.value)) > (worst.get() or 0):
            worst.put(risk)
            context.forward(record.with_value(risk))

Invariant: a processor belongs to one task, and to its thread. A function of
`process_async` changes nothing itself: its puts and forwarded records are recorded. The
task's thread applies them when the results of all earlier records have been applied.
Relies on: `compile.task_processor` and `compile.processor_stores` (the context and the
stores that a processor gets), `tasks.pending_calls` (the turns of `process_async`).
Source: Kafka Streams `org.apache.kafka.streams.processor.api` (KIP-478, KIP-820).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
)

from coopstreams.topology.columns import Headers
from coopstreams.topology.durations import Duration, checked_ms, duration_ms
from coopstreams.topology.errors import ProcessingError, TopologyError
from coopstreams.topology.kept_headers import with_headers
from coopstreams.topology.naming import check_name
from coopstreams.topology.records import Record, check_writable
from coopstreams.topology.row_versions import versions_of
from coopstreams.topology.serdes import Serde, session_windowed, windowed_ms
from coopstreams.topology.stores import StoreSpec, check_store_type

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")

PunctuationType = Literal["stream_time", "wall_clock"]
"""The clock of a punctuation: the task's stream time, which advances with its records,
or the wall clock.
"""


class RecordMetadata(NamedTuple):
    """The topic, partition and offset from which the current record was read."""

    topic: str
    partition: int
    offset: int


class Punctuation(Protocol):
    """A scheduled punctuation, as `ProcessorContext.schedule` returns it."""

    def cancel(self) -> None:
        """Stop the punctuation: its function is never called again."""


class ProcessorContext(Protocol[K2, V2]):
    """The environment of a processor. K2 and V2 are the types of the records that the
    processor forwards.
    """

    def forward(self, record: Record[K2, V2], *, to: str | None = None) -> None:
        """Pass a record to all nodes below, or only to the node that has the name `to`.
        Return when they have processed it.

        Their errors pass through this call and end the batch: do not catch them.

        Raises:
            ProcessingError: no node directly below has the name `to`.
            TypeError: the record's timestamp or headers cannot be written to Kafka.
        """

    def store(self, name: str) -> Any:
        """Return a store named in `stores=`: a `KeyValueStore`, `WindowStore`,
        `SessionStore` or `VersionedStore`.

        Annotate the variable with its type.

        Raises:
            TopologyError: the processor has no store of this name.
        """

    def schedule(
        self,
        interval: Duration,
        type_: PunctuationType,
        function: Callable[[int], object],
    ) -> Punctuation:
        """Schedule a call of `function(now_ms)` at each interval from now on, and
        return its handle.

        Shape: the intervals are counted from 0 (stream time) or from now (wall clock).
        If the clock passes several of them at once, the function is called once.
        """
        ...

    def stream_time(self) -> int:
        """Return the largest timestamp of the records that the task has processed,
        including the current record; -1 if there is none.
        """
        ...

    def wall_clock(self) -> int:
        """Return the time of the wall clock, in milliseconds since the epoch."""
        ...

    @property
    def metadata(self) -> RecordMetadata | None:
        """The topic, partition and offset of the current record; None in a
        punctuation.
        """


class Put(NamedTuple):
    """A recorded change of a store: the row of the current record's key gets this
    value. None deletes the row.
    """

    store: str
    value: Any


class Forward(NamedTuple):
    """A recorded output: the record is passed to all nodes below, or only to the node
    named `to`.
    """

    record: Record[Any, Any]
    to: str | None


ProcessorWrapper: TypeAlias = Callable[[str, Callable[..., None]], Callable[..., None]]
"""A function that wraps the processing of a node: given the node's name and the
function that processes a record in the node and the nodes below, it returns the
function to call instead. The returned function must call the given one once, with its
own arguments.

Source: Kafka Streams `ProcessorWrapper` (KIP-1112).
"""

Effect: TypeAlias = Put | Forward
Row: TypeAlias = tuple[Any, int]
"""The value and the timestamp of a row. The value is None if the row does not exist."""


class OwnRow(Generic[V]):
    """A store's row for the key of the current record, including the changes of this
    call.

    Values are the store's own objects: do not mutate a value, `put` a new one.
    """

    def __init__(self, context: CallContext[Any, Any], name: str) -> None:
        self._context = context
        self._name = name

    def get(self) -> V | None:
        """Return the value of the row, or None if there is no row."""
        value: V | None = self._context.rows[self._name][0]
        return value

    def timestamp(self) -> int | None:
        """Return the timestamp of the latest change of the row, or None if there is no
        row.
        """
        value, timestamp = self._context.rows[self._name]
        return None if value is None else timestamp

    def put(self, value: V | None) -> None:
        """Set the value of the row. None deletes the row."""
        self._context.put(self._name, value)

    def delete(self) -> V | None:
        """Delete the row and return its value, or None if there was no row."""
        had = self.get()
        self.put(None)
        return had


class CallContext(Generic[K2, V2]):
    """The environment of one call of a function of `process_async`.

    K2 and V2 are the types of the records that the function forwards. Puts and
    forwarded records are recorded. They take effect in this order after the call has
    succeeded, when the results of all earlier records have been applied. If the call
    fails, none take effect. Each attempt starts without effects.
    """

    def __init__(
        self,
        where: RecordMetadata,
        timestamp: int,
        rows: Mapping[str, Row],
        below: Collection[str],
        node: str,
    ) -> None:
        """Make the context of one call.

        `rows`: the row of the record's key in each store. `below`: the names of the
        nodes to which the function may forward. `node`: the name of the operator.
        """
        self.metadata = where
        """The topic, partition and offset of the record: the same at each attempt, and
        after a crash.
        """
        self.rows = dict(rows)
        self._timestamp = timestamp
        self._below = below
        self._node = node
        self._effects: list[Effect] | None = []

    def store(self, name: str) -> OwnRow[Any]:
        """Return the row of the record's key in a store named in `stores=`. Annotate
        the variable with its type.

        Raises:
            TopologyError: the operator has no store of this name.
        """
        if name not in self.rows:
            raise TopologyError(
                f'"{self._node}" has no store "{name}"; stores= has {", ".join(self.rows) or "none"}'
            )
        return OwnRow(self, name)

    def forward(self, record: Record[K2, V2], *, to: str | None = None) -> None:
        """Request that a record is passed to all nodes below, or only to the node that
        has the name `to`.

        Raises:
            ProcessingError: no node directly below has the name `to`, or the call has
                ended.
            TypeError: the record's timestamp or headers cannot be written to Kafka.
        """
        check_writable(record)
        if to is not None and to not in self._below:
            known = ", ".join(self._below) or "none"
            raise ProcessingError(
                f'"{self._node}": forward(…, to="{to}"): no operator below has this name; there are {known}.'
            )
        self._record(Forward(record, to))

    def put(self, store: str, value: Any) -> None:
        """Record a new value for the record's key in a store, with the timestamp of the
        record.
        """
        self._record(Put(store, value))
        self.rows[store] = value, self._timestamp

    def end(self) -> list[Effect]:
        """End the call and return its recorded effects. Later effects raise."""
        effects = self._effects or []
        self._effects = None
        return effects

    def _record(self, effect: Effect) -> None:
        if self._effects is None:
            raise ProcessingError(
                f'"{self._node}": the call is over: what it began beside itself changes nothing'
            )
        self._effects.append(effect)


@dataclass(frozen=True, slots=True)
class Visit:
    """A record for a call of a function of `process_async`, with its operator and where
    it was read. `node`: the operator. `below`: the names of the nodes to which it may
    forward.
    """

    node: str
    below: tuple[str, ...]
    where: RecordMetadata
    key: Any
    value: Any
    timestamp: int
    headers: Headers | None

    def begun(
        self,
        rows: Mapping[str, Row],
    ) -> tuple[Record[Any, Any], CallContext[Any, Any]]:
        """Return the arguments of one attempt: the record, and a context without
        effects.
        """
        context: CallContext[Any, Any] = CallContext(
            self.where,
            self.timestamp,
            rows,
            self.below,
            self.node,
        )
        return Record(
            self.key,
            self.value,
            self.timestamp,
            list(self.headers or ()),
        ), context


async def awaited(
    function: Callable[..., Any],
    visit: Visit,
    rows: Mapping[str, Row],
) -> list[Effect]:
    """Call a coroutine function of `process_async` once and return the recorded
    effects.
    """
    record, context = visit.begun(rows)
    try:
        await function(record, context)
    finally:
        effects = context.end()
    return effects


def called(
    function: Callable[..., Any],
    visit: Visit,
    rows: Mapping[str, Row],
) -> list[Effect]:
    """Call a function of `process_async` that is no coroutine once, on a thread or in a
    process, and return the recorded effects.
    """
    record, context = visit.begun(rows)
    try:
        function(record, context)
    finally:
        effects = context.end()
    return effects


class Processor(ABC, Generic[K, V, K2, V2]):
    """An object of the user's that takes records of K and V, and forwards any number of
    records of K2 and V2.

    Override `process`, and `init` and `close` if needed.
    """

    context: ProcessorContext[K2, V2]

    def init(self, context: ProcessorContext[K2, V2]) -> None:
        """Prepare the work for a task: get stores, schedule punctuations. This method
        keeps the context.
        """
        self.context = context

    @abstractmethod
    def process(self, record: Record[K, V]) -> None:
        """Process one record. An exception fails this record at this processor."""

    def close(self) -> None:
        """End the work for the task. Nothing can be forwarded any more."""


def key_value_store(
    name: str,
    *,
    key: Serde[Any],
    value: Serde[Any],
    logged: bool = True,
    store_type: str | None = None,
    ttl: Duration | None = None,
    headers: bool = False,
) -> StoreSpec:
    """Return the definition of a key-value store for `process(stores=[...])`. The
    processor gets it as a `KeyValueStore`.

    `logged`: whether the store has a changelog; without one, its rows are lost when the
    task moves. `store_type`: as in `Materialized`. `ttl`: how long after its last
    `put`, in stream time, a row can be found. The processor is not called when a row
    expires. `headers=True`: each row keeps the headers of the record that wrote it, for
    `KeyValueStore.headers`, queries and the changelog.

    Raises:
        TopologyError: a time to live below 1 ms, no serde, or a name or store type that
            is not legal.
    """
    _check(name, store_type, key, value)
    ttl_ms = None if ttl is None else checked_ms(ttl, f'store "{name}": ttl', 1)
    kept = with_headers(value) if headers else value
    return StoreSpec(
        name,
        "key_value",
        key,
        kept,
        logged=logged,
        store_type=store_type,
        ttl_ms=ttl_ms,
    )


def window_store(
    name: str,
    *,
    key: Serde[Any],
    value: Serde[Any],
    size: Duration,
    retention: Duration,
    logged: bool = True,
    store_type: str | None = None,
) -> StoreSpec:
    """Return the definition of a window store for `process(stores=[...])`. The
    processor gets it as a `WindowStore`.

    A window can be read until a window is put that starts `retention` later. `size`:
    the length of a window, for queries.

    Raises:
        TopologyError: a size below 1 ms, a retention below the size, no serde, or a
            name or store type that is not legal.
    """
    _check(name, store_type, key, value)
    size_ms = duration_ms(size, f'store "{name}": size')
    retention_ms = duration_ms(retention, f'store "{name}": retention')
    if size_ms < 1 or retention_ms < size_ms:
        raise TopologyError(
            f'store "{name}": the size must be at least 1 ms and the retention at least the size, not {size_ms} and '
            f"{retention_ms} ms"
        )
    row_key = windowed_ms(key, size_ms)
    return StoreSpec(
        name,
        "window",
        key,
        value,
        retention_ms=retention_ms,
        row_key=row_key,
        logged=logged,
        store_type=store_type,
    )


def session_store(
    name: str,
    *,
    key: Serde[Any],
    value: Serde[Any],
    retention: Duration,
    logged: bool = True,
    store_type: str | None = None,
) -> StoreSpec:
    """Return the definition of a session store for `process(stores=[...])`. The
    processor gets it as a `SessionStore`.

    A session can be read until a session is put that ends `retention` later.
    """
    _check(name, store_type, key, value)
    retention_ms = checked_ms(retention, f'store "{name}": the retention', 1)
    row_key = session_windowed(key)
    return StoreSpec(
        name,
        "session",
        key,
        value,
        retention_ms=retention_ms,
        row_key=row_key,
        logged=logged,
        store_type=store_type,
    )


def versioned_store(
    name: str,
    *,
    key: Serde[Any],
    value: Serde[Any],
    history: Duration,
    logged: bool = True,
    store_type: str | None = None,
) -> StoreSpec:
    """Return the definition of a versioned store for `process(stores=[...])`. The
    processor gets it as a `VersionedStore`.

    `history`: how long ended versions are kept, in stream time.
    """
    _check(name, store_type, key, value)
    history_ms = checked_ms(history, f'store "{name}": the history', 1)
    return StoreSpec(
        name,
        "key_value",
        key,
        versions_of(value),
        history_ms=history_ms,
        logged=logged,
        store_type=store_type,
    )


def _check(
    name: str,
    store_type: str | None,
    key: Serde[Any],
    value: Serde[Any],
) -> None:
    check_name(name, "the store name")
    check_store_type(name, store_type)
    for part, serde in (("key", key), ("value", value)):
        if not isinstance(serde, Serde):
            raise TopologyError(
                f'store "{name}": {part}= must be a serde such as serdes.text or serdes.json(Type), not {serde!r}'
            )
