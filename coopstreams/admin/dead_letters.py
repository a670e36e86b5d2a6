"""Reads the records of a dead-letter topic, and replays them into the topics that they came from.

A dead letter is the record that failed, as it was read, with headers that say why (`tasks.failures`). A replay writes
it, without these headers, to the partition that it came from, and commits its position in the same transaction, for the
group `<topic>-replay`. So no letter is written back twice, even if a replay is interrupted or two run at once.

A record that failed at two operators, or of whose values two failed, has two letters. It goes back once: a replay
leaves out what it has just written. Letters of one record lie close together, because one commit has written them.

Letters of what was held back (a row of the record cache, a window that closed) have no offset: they are no records of
any topic. Written to one, such a letter would be a tombstone for its key. So a replay passes it.

Invariant: a replay ends. It does not read letters written after it began, because the replayed records may have caused
them, nor those of transactions that were open then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from coopstreams.commit.offsets import list_consumer_group_offsets
from coopstreams.consumer.consumer import CooperativeConsumer
from coopstreams.consumer.share import ConsumerRecord
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.producer import transactional_producer
from coopstreams.log.log import NO_STREAM_TIME, Position
from coopstreams.topology.columns import Headers, TopicPartition
from coopstreams.topology.errors import MembershipLostError, UnknownTopicError

PREFIX = "__coopstreams.errors."
AT_ONCE = 500
"""Letters in one transaction."""
MOST_KNOWN = 100_000
"""The latest records that a replay has written, of which it knows further letters."""


_Record: TypeAlias = tuple[TopicPartition, int, int]
"""A record: its partition and offset, and a hash of its content, because the topic may have been made anew."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record of a dead-letter topic.

    Shape: `headers` are the failed record's own; `why` has the texts of the others: `exception`, `message`, `phase`,
    `node`, `topic`, `partition`, `task`, `offset`, `stacktrace`. It is empty if another program wrote the record.
    Units: ms since the epoch; negative: the failed record had none, or, in letters of earlier versions, its extractor
    failed.
    """

    at: TopicPartition
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    why: Mapping[str, str]

    @property
    def source(self) -> TopicPartition | None:
        """The partition of the failed record; None: this is no dead letter."""
        topic, partition = self.why.get("topic"), self.why.get("partition", "")
        return TopicPartition(topic, int(partition)) if topic and partition.isdecimal() else None

    @property
    def record(self) -> _Record | None:
        """The record that failed, which can go back; None: this is no letter of one."""
        offset = self.why.get("offset", "")
        if self.source is None or not offset.isdecimal():
            return None
        return self.source, int(offset), hash((self.key, self.value))


def dead_letter(
    at: TopicPartition, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers | None
) -> DeadLetter:
    """Return a record as a dead letter."""
    own = [(name, text) for name, text in headers or () if not name.startswith(PREFIX)]
    why = {
        name.removeprefix(PREFIX): (text or b"").decode(errors="replace")
        for name, text in headers or ()
        if name.startswith(PREFIX)
    }
    return DeadLetter(at, offset, timestamp, key, value, own, why)


def letters(log: KafkaLog, topic: str) -> Iterator[DeadLetter]:
    """Yield the records that a topic holds now, partition after partition.

    Raises:
        UnknownTopicError: there is no such topic.
    """
    ends = ends_of(log, topic)
    reader = log.reader()
    try:
        starts = {at: log.start_offset(at) for at in ends}
        positions = {at: Position(start, NO_STREAM_TIME) for at, start in starts.items() if start < ends[at]}
        reader.assign(positions)
        while positions:
            for batch in reader.fetch(5000, 1.0):
                columns = batch.columns
                for i, offset in enumerate(columns.offsets):
                    if offset < ends[batch.partition]:
                        headers = None if columns.headers is None else columns.headers[i]
                        yield dead_letter(
                            batch.partition, offset, columns.timestamps[i], columns.keys[i], columns.values[i], headers
                        )
                if batch.next_offset >= ends[batch.partition]:
                    positions.pop(batch.partition, None)
    finally:
        reader.close()


def ahead(log: KafkaLog, settings: Mapping[str, Any], topic: str) -> Iterator[DeadLetter]:
    """Yield the records that a replay would read: those that no replay has passed.

    Raises:
        UnknownTopicError: there is no such topic.
    """
    passed = list_consumer_group_offsets(settings, replay_group(topic), ends_of(log, topic))
    for letter in letters(log, topic):
        until = passed[letter.at]
        if until is None or letter.offset >= until.offset:
            yield letter


def replay_group(topic: str) -> str:
    """Return the group whose position is the end of the last replay."""
    return f"{topic}-replay"


def ends_of(log: KafkaLog, topic: str) -> dict[TopicPartition, int]:
    """Return the last stable offset of each partition of a topic: what is above it may belong to open transactions.

    Raises:
        UnknownTopicError: there is no such topic.
    """
    count = log.partitions([topic]).get(topic)
    if count is None:
        raise UnknownTopicError(f'there is no topic "{topic}"; name the one of errors.dead.letter.queue.topic.name')
    return log.stable_offsets([TopicPartition(topic, number) for number in range(count)])


@dataclass(slots=True)
class Replayed:
    """The counts of a replay so far.

    `passed`: letters that were not wanted, or cannot go back, or whose record has gone back, and other records.
    """

    written: int = 0
    passed: int = 0


def replay(
    log: KafkaLog,
    settings: Mapping[str, Any],
    topic: str,
    wanted: Callable[[DeadLetter], bool],
    to: str | None = None,
    on_progress: Callable[[Replayed], None] = lambda _: None,
) -> Replayed:
    """Write a topic's dead letters, from the last replay's end on, back to where they came from, or to `to`.

    Shape: `settings` in librdkafka's names: how to reach the brokers. Letters that are not `wanted` are skipped
    for good: no later replay reads them. Another topic chooses the partition by the key.

    Raises:
        UnknownTopicError: there is no such topic.
        LogError: a topic that a letter came from is gone, or refuses it; nothing of the last transaction counts. The
            next replay goes on there.
    """
    ends = {at: end for at, end in ends_of(log, topic).items() if log.start_offset(at) < end}
    done, known = Replayed(), dict[_Record, None]()
    connection = {**settings, "group.id": replay_group(topic), "auto.offset.reset": "earliest"}
    with CooperativeConsumer(connection) as consumer:
        consumer.subscribe([topic])
        producer = transactional_producer(settings, consumer.transactional_id)
        while any((at.offset if at else 0) < ends[place] for place, at in consumer.committed(ends).items()):
            records = [record for record in consumer.consume(AT_ONCE) if record.offset < ends.get(_place(record), 0)]
            if not records:
                consumer.commit()  # past the transaction markers at the end
                continue
            now, fresh = Replayed(done.written, done.passed), dict[_Record, None]()
            try:
                with consumer.transaction(producer):
                    for record in records:
                        letter = dead_letter(
                            _place(record), record.offset, record.timestamp, record.key, record.value, record.headers
                        )
                        failed = letter.record
                        if failed is not None and wanted(letter) and failed not in known and failed not in fresh:
                            _write(producer, letter, failed[0], to)
                            now.written += 1
                            fresh[failed] = None
                        else:
                            now.passed += 1
                        consumer.done(record)
            except MembershipLostError:
                continue  # another replay has them now, or this one reads them again
            done, known = now, dict.fromkeys([*known, *fresh][-MOST_KNOWN:])
            on_progress(done)
    return done


def _place(record: ConsumerRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _write(producer: Any, letter: DeadLetter, source: TopicPartition, to: str | None) -> None:
    where = {"topic": to} if to is not None else {"topic": source.topic, "partition": source.partition}
    headers: list[Any] = letter.headers
    # A record of 1970 would be deleted by its topic's retention. librdkafka takes 0 for "now".
    timestamp = 0 if letter.timestamp < 0 else max(1, letter.timestamp)
    producer.produce(**where, key=letter.key, value=letter.value, headers=headers, timestamp=timestamp)
