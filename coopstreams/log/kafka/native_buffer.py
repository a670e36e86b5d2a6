"""The fetch buffer of the native data plane: the extension makes columns, Python
handles the events of the client.

Fetched records bypass the queue of the consumer, which keeps events and callbacks. It
is polled with each fetch: callbacks of confluent-kafka may run nowhere else. The
extension calls none of them; it notes the arguments for `error_cb`.

Relies on: `fetch_buffer` (the rules of each method), `native` (the interface of the
extension).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException

from coopstreams.log.batches import Routes, make_batches, slot_batches
from coopstreams.log.kafka.fetch_buffer import Event, Fetched, Part
from coopstreams.log.kafka.messages import MessageBuffer
from coopstreams.log.kafka.native import (
    Fetcher,
    RawAdvances,
    RawColumns,
    RawPart,
)
from coopstreams.log.log import Position, RecordBatch
from coopstreams.topology.columns import (
    NO_RECORDS,
    Advances,
    Columns,
    TopicPartition,
)
from coopstreams.topology.errors import LogError

EVENTS = 100
"""The most events of the client that one fetch takes."""


class NativePart:
    """The columns that one fetch returns for one partition."""

    __slots__ = (
        "_advances",
        "_columns",
        "_cut",
        "_stream_time",
        "after",
        "events",
        "partition",
    )

    def __init__(self, partition: TopicPartition, part: RawPart) -> None:
        (
            _,
            self._columns,
            self.after,
            self._stream_time,
            events,
            self._cut,
            self._advances,
        ) = part
        self.partition = partition
        self.events = [
            Event(KafkaError(code, text), offset, after)
            for code, text, offset, after in events
        ]

    def batches(
        self,
        routes: Routes | None,
        at: Position,
        end: int | None,
    ) -> list[RecordBatch]:
        """Return a batch for each slot: see `Part.batches`."""
        if end is None and self.after is None:
            return []
        next_offset = cast(int, self.after) if end is None else end
        if not self._cut:
            columns = Columns(*cast(RawColumns, self._columns))
            return make_batches(
                self.partition,
                columns,
                routes,
                at.stream_time,
                next_offset,
                at_end=end is not None,
            )
        slots = [
            NO_RECORDS if some is None else Columns(*some)
            for some in cast(list[RawColumns | None], self._columns)
        ]
        return slot_batches(
            RecordBatch(
                self.partition,
                0,
                NO_RECORDS,
                next_offset,
                max(at.stream_time, self._stream_time),
                end is not None,
                busy=self.after is not None,
                advances=_advances(self._advances, at.stream_time),
            ),
            slots,
            at.stream_time,
        )


def _advances(raw: RawAdvances | None, before: int) -> tuple[Advances, ...]:
    """Return the moments at which stream time advances beyond `before`."""
    if raw is None:
        return ()
    offsets, times = (array("q", column) for column in raw)
    new = bisect_right(times, before)
    return (Advances(offsets[new:], times[new:]),) if new < len(times) else ()


class NativeBuffer:
    """A `FetchBuffer` of the native data plane."""

    attentive = True

    def __init__(
        self,
        consumer: Consumer,
        fetcher: Fetcher,
        on_error: Callable[[KafkaError], None],
    ) -> None:
        self._consumer = consumer
        self._fetcher = fetcher
        self._on_error = on_error
        self._fatal: KafkaError | None = None
        """The error that made the client unusable; None: it is usable."""
        self._reported = MessageBuffer(consumer)
        """Sorts the messages in the client's own queue by partition."""
        self._ids: dict[TopicPartition, int] = {}
        """The extension's number of each partition that is read."""
        self._partitions: dict[int, TopicPartition] = {}
        """The same, the other way round."""

    def connect(self, consumer: Consumer) -> None:
        """Fetch with this client, which the thread has just made."""
        if not self._fetcher.connect(consumer):
            raise LogError(
                "librdkafka has not handed the new client of a reader to the extension",
                retryable=True,
            )
        self._consumer = consumer
        self._fatal = None

    def disconnect(self) -> None:
        """Release the client."""
        self._fetcher.disconnect()

    def wake(self) -> None:
        """End the wait of the running fetch, or of the next one."""
        self._fetcher.wake()

    def start(self, partition: TopicPartition, offset: int) -> None:
        """Start reading a partition at this offset."""
        if partition in self._ids:
            self._fetcher.seek(self._ids[partition], offset)
        else:
            self._ids[partition] = self._fetcher.start(*partition, offset)
            self._partitions[self._ids[partition]] = partition
        self._reported.start(partition, offset)

    def stop(self, partition: TopicPartition) -> None:
        """Stop reading a partition."""
        id_ = self._ids.pop(partition)
        del self._partitions[id_]
        self._fetcher.stop(id_)
        self._reported.stop(partition)

    def expect(self, partitions: Collection[TopicPartition]) -> None:
        """Prepare for records of these partitions."""
        self._fetcher.expect([self._ids[partition] for partition in partitions])

    def hold(self, partition: TopicPartition, held: bool) -> None:
        """Hold a partition, or release it."""
        self._fetcher.hold(self._ids[partition], held)

    def route(self, partition: TopicPartition, routes: Routes) -> None:
        """Split the records of a partition before objects are made of them, if nothing
        needs all records first.
        """
        self._fetcher.route(self._ids[partition], routes.first_router, routes.advances)

    def fetched_to(self, partition: TopicPartition) -> int:
        """Return the offset after the last record fetched from a partition."""
        return self._fetcher.fetched_to(self._ids[partition])

    def kept(self, partition: TopicPartition) -> tuple[int, int]:
        """Return how many records and events of a partition are buffered, and their
        bytes.
        """
        return self._fetcher.kept(self._ids[partition])

    def fetch(self, most: int, timeout_s: float) -> Fetched:
        """Return the available records; wait only for the first one."""
        reported = self._reported.sorted_out(self._consumer.consume(EVENTS, 0))
        for code, text, fatal in self._fetcher.errors():
            if fatal:
                self._fatal = KafkaError(code, text, fatal=True)
            else:
                self._on_error(KafkaError(code, text))
        if self._fatal is not None:
            raise KafkaException(self._fatal)
        wait_s = 0.0 if reported.parts or reported.events else timeout_s
        try:
            found, kept = self._fetcher.fetch(most, round(wait_s * 1000))
        except RuntimeError as error:
            raise LogError(f"a reader cannot fetch: {error}") from error
        parts: list[Part] = [
            NativePart(self._partitions[part[0]], part) for part in found
        ]
        return Fetched(
            [*reported.parts, *parts],
            [self._partitions[id_] for id_ in kept],
            reported.events,
        )
