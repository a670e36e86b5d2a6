"""The Processor API: an object of the user's in the way of the records, with stores of its own and a clock.

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
"""What moves the clock of a punctuation: the records of the task, or time."""


class RecordMetadata(NamedTuple):
    """Where the record at hand was read."""

    topic: str
    partition: int
    offset: int


class Punctuation(Protocol):
    """What `ProcessorContext.schedule` returns."""

    def cancel(self) -> None:
        """Never call the function again."""


class ProcessorContext(Protocol[K2, V2]):
    """What a processor may ask for and do. K2 and V2 are of what it forwards."""

    def forward(self, record: Record[K2, V2], *, to: str | None = None) -> None:
        """Pass a record on to the operators below, or to the one that has the `name=`; returns when they are done with
        it.

        An error of theirs passes through here and ends the batch: do not catch it.

        Raises:
            ProcessingError: no operator that follows at once has this name.
        """

    def store(self, name: str) -> Any:
        """Return a store named in `stores=`: a `KeyValueStore`, `WindowStore`, `SessionStore` or `VersionedStore`.
        Annotate the variable.

        Raises:
            TopologyError: the processor has no such store.
        """

    def schedule(self, interval: Duration, type_: PunctuationType, function: Callable[[int], object]) -> Punctuation:
        """Call `function(now_ms)` each time the interval is over, from now on.

        Shape: on a grid from 0 (stream time) or from now (wall clock); grid points that were jumped over are one call.
        """
        ...

    def stream_time(self) -> int:
        """Return the largest timestamp of any record that the task has taken in, the one at hand included; -1 if there
        was none.
        """
        ...

    def wall_clock(self) -> int:
        """Return what time it is, in milliseconds since the epoch."""
        ...

    @property
    def metadata(self) -> RecordMetadata | None:
        """Where the record at hand was read; None in a punctuation."""


class Processor(ABC, Generic[K, V, K2, V2]):
    """Takes records of K and V, forwards any number of records of K2 and V2. Override `process`, and the others where
    needed.
    """

    context: ProcessorContext[K2, V2]

    def init(self, context: ProcessorContext[K2, V2]) -> None:
        """Begin work for a task: find stores, schedule punctuations. Keeps the context."""
        self.context = context

    @abstractmethod
    def process(self, record: Record[K, V]) -> None:
        """Take one record. An error fails this record at this processor."""

    def close(self) -> None:
        """End work for the task; nothing can be forwarded any more."""


def key_value_store(
    name: str, *, key: Serde[Any], value: Serde[Any], logged: bool = True, store_type: str | None = None
) -> StoreSpec:
    """Return a store for `process(stores=[...])` that a processor sees as a `KeyValueStore`.

    Not `logged`: lost when its task moves. `store_type`: where it is kept, as `Materialized` says.
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
    """Return a store for `process(stores=[...])` that a processor sees as a `WindowStore`.

    A window can be read until one has been put that starts `retention` later. `size` is what queries say of the
    windows' length.
    """
    _check(name, store_type)
    size_ms, retention_ms = (
        duration_ms(size, f'store "{name}": size'),
        duration_ms(retention, f'store "{name}": retention'),
    )
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
    """Return a store for `process(stores=[...])` that a processor sees as a `SessionStore`.

    A session can be read until one has been put that ends `retention` later.
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
    """Return a store for `process(stores=[...])` that a processor sees as a `VersionedStore`. `history`: how far back
    it knows, in stream time.
    """
    _check(name, store_type)
    history_ms = checked_ms(history, f'store "{name}": the history', 1)
    return StoreSpec(
        name, "key_value", key, versions_of(value), history_ms=history_ms, logged=logged, store_type=store_type
    )


def _check(name: str, store_type: str | None) -> None:
    check_name(name, "the store name")
    check_store_type(name, store_type)
