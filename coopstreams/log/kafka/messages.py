"""The fetch buffer in pure Python: messages of confluent-kafka, cut by partition,
become columns.

One comprehension a column: 15 to 45 ns a cell, an eighth of the cost of a record
object. Work for each message is avoided where possible: offsets without holes become a
range, timestamps in order are their own running maximum.

Relies on: `fetch_buffer` (the rules of each method), `log.batches` (makes batches of
the columns).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import (
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from gc import get_referents
from itertools import groupby
from operator import lt
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message

from coopstreams.log.batches import Routes, make_batches, raw_columns
from coopstreams.log.kafka.fetch_buffer import Event, Fetched, Part
from coopstreams.log.log import Position, RecordBatch
from coopstreams.topology.columns import (
    NO_RECORDS,
    Columns,
    Headers,
    Int64s,
    TopicPartition,
)


@dataclass(slots=True, eq=False)
class _Messages:
    """The reading position of one partition, and its messages that are kept while it is
    held.

    `fetched_to`: the next offset to take from the client. `kept_bytes`: the size of the
    `kept` messages.
    """

    partition: TopicPartition
    fetched_to: int
    held: bool = False
    kept: list[Message] = field(default_factory=list)
    kept_bytes: int = 0

    def note(self, messages: list[Message]) -> None:
        """Advance `fetched_to` past these messages."""
        for message in reversed(messages):
            error = message.error()
            offset = message.offset()
            if offset is not None and (
                error is None or error.code() == KafkaError._PARTITION_EOF
            ):
                self.fetched_to = max(self.fetched_to, offset + (error is None))
                return


class MessagePart:
    """The messages that one fetch returns for one partition."""

    __slots__ = ("_records", "after", "events", "partition")

    def __init__(self, partition: TopicPartition, messages: list[Message]) -> None:
        self.partition = partition
        self.events: list[Event] = []
        self.after: int | None = None
        """The offset after the last record; None: not looked at, because there is no
        event.
        """
        self._records = messages
        if any(map(Message.error, messages)):
            for message in messages:
                error = message.error()
                offset = message.offset()
                if error is not None:
                    self.events.append(Event(error, offset, self.after))
                elif offset is not None:
                    self.after = offset + 1
            self._records = [message for message in messages if message.error() is None]

    def batches(
        self,
        routes: Routes | None,
        at: Position,
        end: int | None,
    ) -> list[RecordBatch]:
        """Return a batch for each slot: see `Part.batches`."""
        columns = columns_of(self._records, at.offset)
        if end is None and not len(columns):
            return []
        next_offset = columns.offsets[-1] + 1 if end is None else end
        return make_batches(
            self.partition,
            columns,
            routes,
            at.stream_time,
            next_offset,
            at_end=end is not None,
        )


class MessageBuffer:
    """A `FetchBuffer` in pure Python, on messages of confluent-kafka."""

    attentive = False

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._readings: dict[TopicPartition, _Messages] = {}
        self._by_number: dict[int | None, _Messages] | None = None
        """The result of `_numbers`; None: out of date."""

    def connect(self, consumer: Consumer) -> None:
        """Fetch with this client from now on."""
        self._consumer = consumer

    def disconnect(self) -> None:
        """Do nothing: no reference to the client is kept."""

    def wake(self) -> None:
        """Do nothing: only a message ends a wait."""

    def start(self, partition: TopicPartition, offset: int) -> None:
        """Start reading a partition at this offset."""
        before = self._readings.get(partition)
        self._readings[partition] = _Messages(
            partition,
            offset,
            before is not None and before.held,
        )
        self._by_number = None

    def stop(self, partition: TopicPartition) -> None:
        """Stop reading a partition."""
        del self._readings[partition]
        self._by_number = None

    def expect(self, partitions: Collection[TopicPartition]) -> None:
        """Do nothing: messages are taken as they come."""

    def hold(self, partition: TopicPartition, held: bool) -> None:
        """Hold a partition, or release it."""
        self._readings[partition].held = held

    def route(self, partition: TopicPartition, routes: Routes) -> None:
        """Do nothing: `make_batches` splits the records."""

    def fetched_to(self, partition: TopicPartition) -> int:
        """Return the offset after the last record fetched from a partition."""
        return self._readings[partition].fetched_to

    def kept(self, partition: TopicPartition) -> tuple[int, int]:
        """Return how many messages of a partition are kept, and their bytes."""
        reading = self._readings[partition]
        return len(reading.kept), reading.kept_bytes

    def fetch(self, most: int, timeout_s: float) -> Fetched:
        """Return the available records; wait only for the first message."""
        if parts := self._released(most):
            return Fetched(parts, (), ())
        messages = self._consumer.consume(most, 0)
        if not messages and timeout_s > 0:
            messages = self._consumer.consume(1, timeout_s)
            if messages and most > 1:
                messages += self._consumer.consume(most - 1, 0)
        return self.sorted_out(messages)

    def sorted_out(self, messages: list[Message]) -> Fetched:
        """Return these messages by partition; keep those of held partitions in the
        buffer.
        """
        parts = list[Part]()
        kept = list[TopicPartition]()
        events = list[Message]()
        for reading, some in self._by_partition(messages, events):
            reading.note(some)
            if reading.held:
                reading.kept += some
                reading.kept_bytes += sum(map(len, some))
                kept.append(reading.partition)
            else:
                parts.append(MessagePart(reading.partition, some))
        return Fetched(parts, kept, events)

    def _released(self, most: int) -> Sequence[Part]:
        """Return messages, `most` at most, that were kept while their partition was
        held.
        """
        parts: list[Part] = []
        for reading in self._readings.values():
            if most <= 0:
                break
            if reading.kept and not reading.held:
                messages = reading.kept[:most]
                reading.kept = reading.kept[most:]
                reading.kept_bytes -= sum(map(len, messages))
                most -= len(messages)
                parts.append(MessagePart(reading.partition, messages))
        return parts

    def _by_partition(
        self,
        messages: list[Message],
        events: list[Message],
    ) -> Iterator[tuple[_Messages, list[Message]]]:
        """Yield the messages of each partition, in order.

        Messages of unassigned partitions are dropped. Messages without a topic are
        added to `events`.
        """
        if not messages:
            return
        if self._is_of_one(messages):
            yield from ((reading, messages) for reading in self._readings.values())
            return
        by_number = self._numbers()
        numbers = [message.partition() for message in messages]
        only = by_number.get(numbers[0])
        if only is not None and numbers.count(numbers[0]) == len(numbers):
            yield only, messages
            return
        readings: Mapping[Any, _Messages] = by_number
        keys: list[Any] = numbers
        if len(by_number) < len(self._readings):
            topics = [message.topic() for message in messages]
            readings = self._readings
            keys = list(zip(topics, numbers, strict=True))
        for key, part in _grouped(keys, messages).items():
            reading = readings.get(key)
            if reading is not None:
                yield reading, part
            elif part[0].topic() is None:
                events += part

    def _is_of_one(self, messages: list[Message]) -> bool:
        """Whether only one partition is read, and the first and the last message belong
        to it.
        """
        if len(self._readings) != 1:
            return False
        (partition,) = self._readings
        ends = [messages[0], messages[-1]]
        return all((end.topic(), end.partition()) == partition for end in ends)

    def _numbers(self) -> dict[int | None, _Messages]:
        """Return the partitions by number; a number that several topics have is left
        out. No key is None; the type allows what `Message.partition()` may return.
        """
        if self._by_number is None:
            counts = Counter(partition.partition for partition in self._readings)
            self._by_number = {
                partition.partition: reading
                for partition, reading in self._readings.items()
                if counts[partition.partition] == 1
            }
        return self._by_number


def _grouped(keys: list[Any], messages: list[Message]) -> dict[Any, list[Message]]:
    """Return the messages of each key, in order."""
    parts: dict[Any, list[Message]] = {}
    start = 0
    for key, same in groupby(keys):
        end = start + sum(1 for _ in same)
        parts.setdefault(key, []).extend(messages[start:end])
        start = end
    return parts


def columns_of(messages: list[Message], at: int) -> Columns:
    """Return the columns of one partition's messages, without messages below the offset
    `at`.
    """
    if not messages:
        return NO_RECORDS
    offsets = _offsets(messages)
    if offsets[0] < at or (
        isinstance(offsets, list) and not all(map(lt, offsets, offsets[1:]))
    ):
        messages = _ascending(messages, at)
        if not messages:
            return NO_RECORDS
        offsets = _offsets(messages)
    try:
        headers: list[Any] = list(map(Message.headers, messages))
    except SystemError:
        headers = list(map(headers_of, messages))
    return raw_columns(
        list(map(Message.key, messages)),
        list(map(Message.value, messages)),
        [timestamp for _, timestamp in map(Message.timestamp, messages)],
        offsets,
        headers,
    )


def headers_of(message: Message) -> Headers | None:
    """Return the headers of a message, None if it has none; a name that is not UTF-8
    becomes U+FFFD.

    confluent-kafka raises a SystemError for such a name, once. Then it returns the
    headers, with pairs whose first item is missing: a null pointer, which must not be
    touched.
    """
    headers: Any
    try:
        headers = message.headers()
    except SystemError:
        headers = message.headers()
    return headers and [
        pair if len(get_referents(pair)) == len(pair) else ("\ufffd", pair[1])
        for pair in headers
    ]


def _offsets(messages: list[Message]) -> Int64s:
    """Return the offsets of messages, as a range if they have no holes."""
    offsets: list[int] = list(map(Message.offset, messages))  # type: ignore[arg-type]
    ascending = range(offsets[0], offsets[0] + len(offsets))
    # Comparing the ends is not enough: a duplicate may hide a missing record.
    return (
        ascending
        if offsets[-1] == ascending[-1] and offsets == list(ascending)
        else offsets
    )


def _ascending(messages: list[Message], at: int) -> list[Message]:
    """Return the messages from the offset `at` on, each offset once."""
    kept = []
    for message in messages:
        offset = int(message.offset() or 0)
        if offset >= at:
            kept.append(message)
            at = offset + 1
    return kept
