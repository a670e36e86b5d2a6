"""A reader of Kafka partitions, through a confluent-kafka consumer that is never a
member of the group.

A `FetchBuffer` returns what the consumer fetched, by partition, and `make_batches`
makes batches of it. End-of-partition events mark where a partition ends, and move the
position past transaction markers, which librdkafka's own position never passes.

Invariant: the records returned of a partition have growing offsets from the assigned
position on, each once. librdkafka discards what it fetched before a change of
assignment; records below the next offset are dropped as well. Turned down: `pause` and
`resume` to hold a partition (0.3 to 1 s until records come again, measured). The buffer
keeps its records instead. If they become many, the partition is unassigned, and later
assigned again at the end of the buffered records. Unassigning discards what the client
has fetched ahead, so nothing is taken from the client while all partitions are held.
Relies on: `fetch_buffer` (what is kept of a held partition), `batches` (`Routes`),
`kafka_errors` (which errors heal).
Turned down: `seek` (it fails while a partition is only about to be read); the partition
is unassigned and assigned again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from coopstreams.common.acl_errors import Attempt
from coopstreams.log.batches import Routes
from coopstreams.log.clocks import Clock, Clocks
from coopstreams.log.kafka.client_settings import (
    ClientErrors,
    consumer_settings,
    logger,
    login_of,
    make_client,
)
from coopstreams.log.kafka.fetch_buffer import FetchBuffer, Part
from coopstreams.log.kafka.kafka_errors import (
    OUT_OF_RANGE,
    UNKNOWN,
    error_of,
    heals,
    made_again,
    translated,
    unknown_topic,
)
from coopstreams.log.kafka.messages import MessageBuffer
from coopstreams.log.kafka.native import fetcher_of, router, with_plugin
from coopstreams.log.kafka.native_buffer import NativeBuffer
from coopstreams.log.log import Position, RecordBatch
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.operator_time import OperatorTimeColumns
from coopstreams.topology.compile.timestamps import TimestampColumn
from coopstreams.topology.errors import LogError
from coopstreams.topology.keys import KeyRange

HELD_RECORDS = 50_000
HELD_BYTES = 32 << 20
"""The approximate bound on the records kept in memory for a held partition. Above it,
the partition is unassigned.
"""
MOST_AT_ONCE = 1_000_000
"""The limit of `consume`."""
METADATA_TIMEOUT_S = 2.0
"""How long an unknown topic is looked for before it is an error: not all brokers may
know a new one yet.
"""
WAKE_S = 0.05
"""How often a waiting fetch checks for `wake`, if the buffer is not attentive."""
LOOK_S = 0.5
"""How often a waiting fetch looks for events of the client."""
SILENCE_S = 15.0
"""How long a topic may be silent before it is looked up: librdkafka does not report a
deleted topic.
"""


@dataclass(slots=True, eq=False)
class _Reading:
    """A partition that is being read, with its position."""

    partition: TopicPartition
    at: Position
    taken: bool = False
    """Whether the partition is assigned to librdkafka, which fetches it."""
    held: bool = False
    looks: int = 0
    """The number of look-ups of silent topics since the last message."""
    failure: LogError | None = None
    """Why the partition cannot be read from its position; None: it can."""
    astray: bool = False
    """Whether the client has stopped fetching the partition because of an old position:
    it must be assigned again.
    """

    def seek(self, at: Position) -> None:
        """Set another position."""
        self.at = at
        self.failure = None
        self.astray = False


class KafkaReader:
    """A `Reader` of a Kafka cluster. One thread: two threads in one consumer starve
    each other.
    """

    def __init__(self, settings: Mapping[str, Any], *, committed_only: bool) -> None:
        self._settings = with_plugin(
            consumer_settings(settings, committed_only=committed_only)
        )
        self._errors = ClientErrors(login_of(settings))
        self._consumer: Consumer = make_client(Consumer, self._settings, self._errors)
        self._buffer = _buffer_of(self._consumer, self._settings, self._errors)
        self._closed = self._awake = False
        self._readings: dict[TopicPartition, _Reading] = {}
        self._routes: dict[TopicPartition, Routes] = {}
        self._clocks = Clocks()
        self._failures: list[LogError] = []
        """Errors that do not end reading: each is raised once."""
        self._looked_at = time.monotonic()

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Read exactly these partitions: see `Reader.assign`."""
        # First: if one is unknown, nothing is changed.
        self._look_for(
            [partition for partition in positions if partition not in self._readings]
        )
        changed = [
            reading for reading in self._readings.values() if _moves(reading, positions)
        ]
        self._give_back(changed)
        for reading in changed:
            self._move(reading, positions.get(reading.partition))
        for partition, at in positions.items():
            if partition not in self._readings:
                self._add(partition, at)
            reading = self._readings[partition]
            if at.stream_time > reading.at.stream_time:
                reading.at = at
        self._take(
            [
                reading
                for reading in self._readings.values()
                if not reading.taken and not self._is_full(reading)
            ]
        )

    def _add(self, partition: TopicPartition, at: Position) -> None:
        self._readings[partition] = _Reading(partition, at)
        self._buffer.start(partition, at.offset)
        if partition in self._routes:
            self._buffer.route(partition, self._routes[partition])

    def _move(self, reading: _Reading, to: Position | None) -> None:
        """Read a partition from another position; None: stop reading it."""
        partition = reading.partition
        if to is not None:
            if to.offset < reading.at.offset:
                self._clocks.forget(partition)
            reading.seek(to)
            self._buffer.start(partition, to.offset)
        else:
            del self._readings[partition]
            self._routes.pop(partition, None)
            self._clocks.drop(partition)
            self._buffer.stop(partition)

    def route(
        self,
        partition: TopicPartition,
        ranges: Sequence[KeyRange],
        timestamps: TimestampColumn | None = None,
        operator_times: OperatorTimeColumns | None = None,
        *,
        time_marks: bool = False,
        keep_marks: bool = False,
        suffix: int = 0,
        advances: bool = False,
        writers: int | None = None,
    ) -> None:
        """Give each record to the slot of its key range: see `Reader.route`."""
        routes = Routes(
            ranges,
            timestamps,
            operator_times,
            time_marks=time_marks,
            keep_marks=keep_marks,
            suffix=suffix,
            advances=advances,
            clock=self._clocks.of(partition, writers),
            router=router(),
        )
        self._routes[partition] = routes
        if partition in self._readings:
            self._buffer.route(partition, routes)

    def clock(self, partition: TopicPartition) -> Clock | None:
        """Return the clock of a timed topic's partition; None: its topic is not timed."""
        return self._clocks.get(partition)

    def hold(self, partition: TopicPartition, held: bool) -> None:
        """Stop or resume returning a partition's records."""
        reading = self._readings.get(partition)
        if reading is not None:
            reading.held = held
            self._buffer.hold(partition, held)
            if not held and not reading.taken:
                self._take([reading])

    def fetch(self, max_records: int, timeout_s: float) -> list[RecordBatch]:
        """Return the records that are available; wait only for the first record."""
        if self._closed:
            raise LogError("this reader is closed")
        deadline = time.monotonic() + timeout_s
        max_records = min(max_records, MOST_AT_ONCE)
        while True:
            self._look_after_silent_topics()
            self._raise_failure()
            left = 0.0 if self._awake else max(deadline - time.monotonic(), 0.0)
            runs = self._fetch(
                max_records,
                min(left, LOOK_S if self._buffer.attentive else WAKE_S),
            )
            if runs:
                # a failure in the same batch is raised by the next fetch, so no record
                # is lost
                return runs
            if left == 0.0:
                self._awake = False
                self._raise_failure()
                return []

    def wake(self) -> None:
        """End the wait of the running fetch, or of the next one."""
        self._awake = True
        self._buffer.wake()

    def close(self) -> None:
        """Close the consumer."""
        if not self._closed:
            self._closed = True
            self._readings.clear()
            self._buffer.disconnect()
            self._consumer.close()

    def _look_for(self, partitions: Sequence[TopicPartition]) -> None:
        """Check that these partitions exist. If no broker answers, do nothing, because
        the fetches report that.
        """
        wanted: dict[str, int] = {}
        for partition in partitions:
            wanted[partition.topic] = max(
                partition.partition,
                wanted.get(partition.topic, 0),
            )
        deadline = time.monotonic() + METADATA_TIMEOUT_S
        for topic, highest in wanted.items():
            while True:
                try:
                    found = self._consumer.list_topics(
                        topic,
                        timeout=METADATA_TIMEOUT_S,
                    ).topics.get(topic)
                except KafkaException as exception:
                    if heals(error_of(exception), self._errors.login):
                        return
                    error = error_of(exception)
                    what = f'looking for topic "{topic}"'
                    raise translated(error, what, self._attempt(topic)) from exception
                if found is not None and highest in found.partitions:
                    break
                if (
                    found is not None
                    and found.error is not None
                    and found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
                ):
                    raise translated(
                        found.error,
                        f'looking for topic "{topic}"',
                        self._attempt(topic),
                    )
                if time.monotonic() > deadline:
                    raise unknown_topic(f'partition {highest} of topic "{topic}"')
                time.sleep(0.02)

    def _look_after_silent_topics(self) -> None:
        """Check, from time to time, the partitions that return nothing: their topic may
        be gone, or the client may need to be replaced.
        """
        if time.monotonic() - self._looked_at < SILENCE_S:
            return
        self._looked_at = time.monotonic()
        silent = [reading for reading in self._readings.values() if reading.looks]
        try:
            self._note_missing(silent)
        except KafkaException:
            self._renew("no broker answers")
        else:
            overlooked = next(filter(self._overlooks, silent), None)
            if overlooked is not None:
                self._renew(f"nothing comes of {overlooked.partition}, which has more")
        for reading in self._readings.values():
            reading.looks += 1

    def _note_missing(self, silent: Sequence[_Reading]) -> None:
        """Set the failure of each silent partition that the cluster does not have.

        Raises:
            KafkaException: no broker answers.
        """
        for topic in {reading.partition.topic for reading in silent}:
            found = self._consumer.list_topics(
                topic,
                timeout=METADATA_TIMEOUT_S,
            ).topics.get(topic)
            known = () if found is None else found.partitions
            for reading in silent:
                partition = reading.partition
                if partition.topic == topic and partition.partition not in known:
                    reading.failure = unknown_topic(f"{partition} any more")

    def _overlooks(self, silent: _Reading) -> bool:
        """Whether a silent partition has records that the client does not fetch.
        Checked only after 2, 4, 8 and 16 looks.
        """
        if not silent.taken or silent.held or silent.failure is not None:
            return False
        if silent.looks < 2 or silent.looks.bit_count() > 1:
            return False
        try:
            _, end = self._consumer.get_watermark_offsets(
                KafkaPartition(*silent.partition),
                timeout=METADATA_TIMEOUT_S,
            )
        except KafkaException as exception:
            logger.debug(
                "reading: the end of %s is not known: %s",
                silent.partition,
                error_of(exception),
            )
            return False
        return end > self._buffer.fetched_to(silent.partition)

    def _renew(self, why: str) -> None:
        """Replace the client, and read on.

        Usually the brokers are unreachable, and that heals. But a client that requested
        metadata from the last broker during its shutdown got none, and never asks again
        (librdkafka 2.16; one client in forty, measured). If no new client can be made
        now, the old one stays until the next look.
        """
        logger.debug("reading: %s; going on with a new client", why)
        try:
            consumer = made_again(
                lambda: make_client(Consumer, self._settings, self._errors)
            )
        except LogError as error:
            logger.warning("reading: %s; %s", why, error)
            return
        taken = [reading for reading in self._readings.values() if reading.taken]
        self._buffer.disconnect()
        self._consumer.close()
        self._consumer = consumer
        self._buffer.connect(consumer)
        self._take(taken)

    def _take(self, readings: Sequence[_Reading]) -> None:
        """Assign these partitions to librdkafka, each from the offset after its
        buffered records.
        """
        if readings:
            partitions = [reading.partition for reading in readings]
            self._buffer.expect(partitions)
            try:
                self._consumer.incremental_assign(
                    [KafkaPartition(*p, self._buffer.fetched_to(p)) for p in partitions]
                )
            except KafkaException as exception:
                raise translated(
                    error_of(exception),
                    "assigning " + ", ".join(str(r.partition) for r in readings),
                ) from exception
            for reading in readings:
                reading.taken = True

    def _give_back(self, readings: Sequence[_Reading]) -> None:
        """Unassign these partitions; librdkafka drops the records that it has fetched
        ahead.
        """
        taken = [reading for reading in readings if reading.taken]
        if taken:
            self._consumer.incremental_unassign(
                [KafkaPartition(*reading.partition) for reading in taken]
            )
            for reading in taken:
                reading.taken = False

    def _is_full(self, reading: _Reading) -> bool:
        """Whether so many records of a partition are buffered that it should not be
        fetched further.
        """
        records, size = self._buffer.kept(reading.partition)
        return records >= HELD_RECORDS or size >= HELD_BYTES

    def _fetch(self, most: int, timeout_s: float) -> list[RecordBatch]:
        """Return batches of buffered records; unassign held partitions that have many
        of them.

        While all partitions are held, hardly anything is taken from the client, which
        stops fetching when its own buffer is full.
        """
        held = bool(self._readings) and all(
            reading.held for reading in self._readings.values()
        )
        try:
            fetched = (
                self._buffer.fetch(1, 0.0)
                if held
                else self._buffer.fetch(most, timeout_s)
            )
        except KafkaException as exception:
            raise translated(error_of(exception), "reading") from exception
        if self._errors.refused is not None:
            self._failures.append(
                translated(
                    self._errors.refused,
                    "logging in to Kafka",
                    self._attempt(""),
                )
            )
            self._errors.refused = None
        self._heed((event.error(), event.topic()) for event in fetched.events)
        for partition in fetched.kept:
            reading = self._readings[partition]
            reading.looks = 0
            if self._is_full(reading):
                self._give_back([reading])
        runs: list[RecordBatch] = []
        for part in fetched.parts:
            runs += self._runs(self._readings[part.partition], part)
        if held and not runs:
            time.sleep(min(timeout_s, WAKE_S))
        return runs

    def _runs(self, reading: _Reading, part: Part) -> list[RecordBatch]:
        """Return the batches of a partition's fetched records, and advance its
        position.
        """
        reading.looks = 0
        end = self._end(reading, part) if part.events else None
        runs = part.batches(self._routes.get(reading.partition), reading.at, end)
        if runs:
            reading.at = Position(runs[0].next_offset, runs[0].stream_time)
        return runs

    def _end(self, reading: _Reading, part: Part) -> int | None:
        """Return the end offset of the partition if its report comes after all records
        of this fetch; else None. Handle all other events.

        librdkafka may report late that a position is out of range from which it no
        longer reads. The report names the position. Then the partition is only assigned
        again.
        """
        end: int | None = None
        for error, offset, after in part.events:
            at = reading.at.offset if after is None else after
            if error.code() == KafkaError._PARTITION_EOF:
                last = after == part.after
                end = (
                    offset
                    if last and offset is not None and offset >= reading.at.offset
                    else None
                )
            elif error.code() in OUT_OF_RANGE and offset not in (None, at):
                reading.astray = True
            elif error.code() in OUT_OF_RANGE:
                reading.failure = translated(
                    error,
                    f"reading {reading.partition} from offset {reading.at.offset}",
                )
            elif error.code() in UNKNOWN:
                reading.failure = unknown_topic(f"{reading.partition} any more")
            else:
                self._heed([(error, reading.partition.topic)])
        return end

    def _heed(self, events: Iterable[tuple[KafkaError | None, str | None]]) -> None:
        """Keep errors that do not heal, each with its topic, for the next fetch to
        raise.

        Errors of the group are ignored: the reader never joins it.
        """
        for error, topic in events:
            if (
                error is None
                or heals(error, self._errors.login)
                or error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
            ):
                logger.debug("reading: %s", error)
            else:
                self._failures.append(
                    translated(
                        error,
                        f"reading {topic or 'Kafka'}",
                        self._attempt(topic or ""),
                    )
                )

    def _attempt(self, topic: str) -> Attempt:
        return Attempt(self._errors.login, "Read", topic)

    def _raise_failure(self) -> None:
        """Assign partitions again that went astray, and raise an error that was noted:
        that of a partition each time, until it gets another position.
        """
        if astray := [reading for reading in self._readings.values() if reading.astray]:
            self._give_back(astray)
            self._take([reading for reading in astray if not self._is_full(reading)])
            for reading in astray:
                reading.astray = False
        if self._failures:
            raise self._failures.pop(0)
        for reading in self._readings.values():
            if reading.failure is not None:
                raise reading.failure


def _buffer_of(
    consumer: Consumer,
    settings: dict[str, Any],
    errors: ClientErrors,
) -> FetchBuffer:
    """Return the fetch buffer of the data plane that runs, for a consumer that this
    thread has just made.
    """
    fetcher = fetcher_of(consumer, settings)
    return (
        MessageBuffer(consumer)
        if fetcher is None
        else NativeBuffer(consumer, fetcher, errors)
    )


def _moves(reading: _Reading, positions: Mapping[TopicPartition, Position]) -> bool:
    """Return whether a partition that is being read is missing from the new
    `positions`, or has another offset there.
    """
    at = positions.get(reading.partition)
    return at is None or at.offset != reading.at.offset
