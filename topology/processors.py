"""The Processor API: a user's object that takes the records, with stores of its own and punctuations.

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
    builder.stream("in", ...).process(Alarm, stores=[worst], key=..., value=..., by_key=True)

Invariant: a processor belongs to one task, and to its thread.
Source: Kafka Streams `org.apache.kafka.streams.processor.api` (KIP-478, KIP-820).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from coopstreams.topology.durations import Duration, checked_ms, duration_ms
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.naming import check_name
from coopstreams.topology.records import Record
from coopstreams.topology.serdes import Serde, session_windowed, windowed
from coopstreams.topology.stores import StoreSpec, check_store_type
from coopstreams.topology.versions import versions_of

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")

PunctuationType = Literal["stream_time", "wall_clock"]
"""The clock of a punctuation: the task's stream time, which its records advance, or the wall clock."""


class RecordMetadata(NamedTuple):
    """Where the record at hand was read."""

    topic: str
    partition: int
    offset: int


class Punctuation(Protocol):
    """A scheduled punctuation, as `ProcessorContext.schedule` returns it."""

    def cancel(self) -> None:
        """Never call the function again."""


class ProcessorContext(Protocol[K2, V2]):
    """The environment of a processor. K2 and V2 are the types of the records that it forwards."""

    def forward(self, record: Record[K2, V2], *, to: str | None = None) -> None:
        """Pass a record on to the nodes below, or to the one with the `name=` `to`; return when they are done with it.

        An error of theirs passes through this call and ends the batch: do not catch it.

        Raises:
            ProcessingError: no node directly below has this name.
        """

    def store(self, name: str) -> Any:
        """Return a store named in `stores=`: a `KeyValueStore`, `WindowStore`, `SessionStore` or `VersionedStore`.

        Annotate the variable with its type.

        Raises:
            TopologyError: the processor has no such store.
        """

    def schedule(self, interval: Duration, type_: PunctuationType, function: Callable[[int], object]) -> Punctuation:
        """Call `function(now_ms)` at each interval from now on.

        Shape: the grid starts at 0 (stream time) or now (wall clock). If the clock jumps over several grid points, the
        function is called once.
        """
        ...

    def stream_time(self) -> int:
        """Return the largest timestamp of the records that the task has taken in, with the one at hand; -1 if none."""
        ...

    def wall_clock(self) -> int:
        """Return the wall clock, in milliseconds since the epoch."""
        ...

    @property
    def metadata(self) -> RecordMetadata | None:
        """Where the record at hand was read; None in a punctuation."""


class Processor(ABC, Generic[K, V, K2, V2]):
    """Takes records of K and V, and forwards any number of records of K2 and V2.

    Override `process`, and `init` and `close` if needed.
    """

    context: ProcessorContext[K2, V2]

    def init(self, context: ProcessorContext[K2, V2]) -> None:
        """Start work for a task: get stores, schedule punctuations. Keeps the context."""
        self.context = context

    @abstractmethod
    def process(self, record: Record[K, V]) -> None:
        """Process one record. An error fails this record at this processor."""

    def close(self) -> None:
        """End work for the task. Nothing can be forwarded any more."""


def key_value_store(
    name: str, *, key: Serde[Any], value: Serde[Any], logged: bool = True, store_type: str | None = None
) -> StoreSpec:
    """Return a store for `process(stores=[...])`, which the processor gets as a `KeyValueStore`.

    Without `logged`, its rows are lost when the task moves. `store_type`: as in `Materialized`.
    """
    _check(name, store_type)
    return StoreSpec(name, "key_value", key, value, logged=logged, store_type=store_type)


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
    """Return a store for `process(stores=[...])`, which the processor gets as a `WindowStore`.

    A window can be read until a window is put that starts `retention` later. `size` is the length of a window, for
    queries.

    Raises:
        TopologyError: a size below 1 ms, a retention below the size, or a name or store type that is not legal.
    """
    _check(name, store_type)
    size_ms = duration_ms(size, f'store "{name}": size')
    retention_ms = duration_ms(retention, f'store "{name}": retention')
    if size_ms < 1 or retention_ms < size_ms:
        raise TopologyError(
            f'store "{name}": the size must be at least 1 ms and the retention at least the size, not {size_ms} and '
            f"{retention_ms} ms"
        )
    row_key = windowed(key, size_ms)
    return StoreSpec(
        name, "window", key, value, retention_ms=retention_ms, row_key=row_key, logged=logged, store_type=store_type
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
    """Return a store for `process(stores=[...])`, which the processor gets as a `SessionStore`.

    A session can be read until a session is put that ends `retention` later.
    """
    _check(name, store_type)
    retention_ms = checked_ms(retention, f'store "{name}": the retention', 1)
    row_key = session_windowed(key)
    return StoreSpec(
        name, "session", key, value, retention_ms=retention_ms, row_key=row_key, logged=logged, store_type=store_type
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
    """Return a store for `process(stores=[...])`, which the processor gets as a `VersionedStore`.

    `history`: how far back it keeps versions, in stream time.
    """
    _check(name, store_type)
    history_ms = checked_ms(history, f'store "{name}": the history', 1)
    return StoreSpec(
        name, "key_value", key, versions_of(value), history_ms=history_ms, logged=logged, store_type=store_type
    )


def _check(name: str, store_type: str | None) -> None:
    check_name(name, "the store name")
    check_store_type(name, store_type)
