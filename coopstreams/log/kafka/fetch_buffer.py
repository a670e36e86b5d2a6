"""`FetchBuffer`: holds the records that a consumer has fetched, by partition, until a
reader returns them.

`messages.MessageBuffer` is pure Python, on messages of confluent-kafka;
`native_buffer.NativeBuffer` is for the data plane in Rust. The reader decides what to
read; a buffer fetches it, and keeps the records of held partitions.

Invariant: a buffer returns the records of a partition in the order of the log, each
once, from the offset at which it was started.
Relies on: `reader` (holds, routes and asks).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, Message

from coopstreams.log.batches import Routes
from coopstreams.log.log import Position, RecordBatch
from coopstreams.topology.columns import TopicPartition


class Event(NamedTuple):
    """A report of the client on a partition: that its end is reached, or an error.

    `offset`: the offset that the report names, for the end of a partition that end;
    None: it names none.
    """

    error: KafkaError
    offset: int | None
    after: int | None
    """The offset after the last record in front of this event; None: the part has no
    record in front of it.
    """


class Part(Protocol):
    """The records that one fetch returns for one partition."""

    @property
    def partition(self) -> TopicPartition:
        """The partition of the records."""
        ...

    @property
    def events(self) -> Sequence[Event]:
        """The client's reports on the partition, in order."""
        ...

    @property
    def after(self) -> int | None:
        """The offset after the last record; None: there is no record."""
        ...

    def batches(
        self,
        routes: Routes | None,
        at: Position,
        end: int | None,
    ) -> list[RecordBatch]:
        """Return a batch for each slot; no batch if there are no records and `end` is
        None.

        `at`: the position before the records. `end`: the end of the partition, if the
        records reach it.
        """
        ...


class Fetched(NamedTuple):
    """The result of one fetch."""

    parts: Sequence[Part]
    kept: Collection[TopicPartition]
    """The held partitions for which records or events arrived."""
    events: Sequence[Message]
    """Errors that belong to no partition."""


class FetchBuffer(Protocol):
    """The fetched records and events of the partitions that are read. Belongs to the
    reader's thread; `wake` is thread-safe.
    """

    attentive: bool
    """Whether `wake` ends a wait. librdkafka's `consume` waits for a message whatever
    happens.
    """

    def connect(self, consumer: Consumer) -> None:
        """Fetch with this client, which the thread has just made. Buffered records
        stay.

        Raises:
            LogError: the client cannot be used.
        """

    def disconnect(self) -> None:
        """Release the client, which may then be closed. Idempotent."""

    def wake(self) -> None:
        """End the wait of the running fetch, or of the next one, if the buffer is
        `attentive`.
        """

    def start(self, partition: TopicPartition, offset: int) -> None:
        """Start reading a partition at this offset; drop its buffered records. A new
        partition is not held.
        """

    def stop(self, partition: TopicPartition) -> None:
        """Stop reading a partition."""

    def expect(self, partitions: Collection[TopicPartition]) -> None:
        """Prepare for records of these partitions, which are about to be assigned."""

    def hold(self, partition: TopicPartition, held: bool) -> None:
        """Hold a partition, or release it. The records of a held partition stay in the
        buffer.
        """

    def route(self, partition: TopicPartition, routes: Routes) -> None:
        """Split the records of a partition by these routes, if that can be done before
        `fetch` returns them.
        """

    def fetched_to(self, partition: TopicPartition) -> int:
        """Return the offset after the last record fetched from a partition."""
        ...

    def kept(self, partition: TopicPartition) -> tuple[int, int]:
        """Return how many records and events of a partition are buffered, and their
        bytes.
        """
        ...

    def fetch(self, most: int, timeout_s: float) -> Fetched:
        """Return the available records, at most `most`; wait only for the first one.

        Raises:
            KafkaException: the client cannot be polled.
        """
        ...
