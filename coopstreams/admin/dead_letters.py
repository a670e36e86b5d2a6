"""Reads the records of a dead-letter topic, and replays them into the topics that they
came from.

A dead letter is the record that failed, as it was read, with headers that say why
(`tasks.failure_handlers`). A replay writes the record, without these headers, to the
partition that it came from. In the same transaction it commits its position for the
group `<topic>-replay`. So no letter is written back twice, even if a replay is interrupted or
two run at once.

A record has two letters if it failed at two operators, or if two of its values failed.
It is written back once: a replay leaves out the records that it or an earlier replay
has written (`replay_metadata`). Only if each of two replays that run at once has one of
the letters, the record is written back twice.

A letter that cannot be written (its topic is gone, or refuses it) ends the replay with
an error that names it. The letters before it in its partition are written back: their
transaction is repeated, letter by letter.

Letters of results that were held back (a row of the record cache, a window that closed)
have no offset, because they are no records of any topic. Written to a topic, such a
letter would be a tombstone for its key. So a replay skips it.

Invariant: a replay ends. It does not read letters written after it began, because the
replayed records may have caused them, nor those of transactions that were open then.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from coopstreams.admin.replay_metadata import (
    Turn,
    Wanted,
    continued,
    is_passed,
    metadata_of,
    was_wanted,
)
from coopstreams.commit.group_progress import (
    OffsetAndRanges,
    list_consumer_group_offsets,
)
from coopstreams.consumer.consumer import CooperativeConsumer, Partition
from coopstreams.consumer.owned_range import ConsumerRecord
from coopstreams.log.kafka.kafka_errors import (
    CLIENT_ERRORS,
    error_of,
    refuses_records,
    translated,
)
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.producer import transactional_producer
from coopstreams.log.log import NO_STREAM_TIME, Position
from coopstreams.topology.columns import Headers, TopicPartition
from coopstreams.topology.errors import LogError, MembershipLostError, UnknownTopicError

PREFIX = "__coopstreams.errors."
AT_ONCE = 500
"""The number of letters in one transaction."""
MOST_KNOWN = 100_000
"""How many records written by replays are remembered, to recognise further letters of
them. For each partition also how many offsets before its position a replay looks for
them.
"""


_Record: TypeAlias = tuple[TopicPartition, int, int]
"""A failed record: its partition, its offset, and a hash of its content, because the
topic may have been made anew.
"""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record of a dead-letter topic.

    Shape: `headers` are the failed record's own. `why` has the texts of the error
    headers: `exception`, `message`, `phase`, `node`, `topic`, `partition`, `task`,
    `offset`, `stacktrace`. It is empty if another program wrote the record.
    Units: `timestamp` in ms since the epoch. Negative: the failed record had none, or,
    in letters of earlier versions, its extractor failed.
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
        """The partition of the failed record; None: this record is no dead letter."""
        topic = self.why.get("topic")
        partition = self.why.get("partition", "")
        return (
            TopicPartition(topic, int(partition))
            if topic and partition.isdecimal()
            else None
        )

    @property
    def record(self) -> _Record | None:
        """The failed record, which can be written back; None: the letter is not of a
        record with an offset.
        """
        offset = self.why.get("offset", "")
        if self.source is None or not offset.isdecimal():
            return None
        return self.source, int(offset), hash((self.key, self.value))


def dead_letter(
    at: TopicPartition,
    offset: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None,
) -> DeadLetter:
    """Return a record of a dead-letter topic as a `DeadLetter`."""
    own = [(name, text) for name, text in headers or () if not name.startswith(PREFIX)]
    why = {
        name.removeprefix(PREFIX): (text or b"").decode(errors="replace")
        for name, text in headers or ()
        if name.startswith(PREFIX)
    }
    return DeadLetter(at, offset, timestamp, key, value, own, why)


def letters(log: KafkaLog, topic: str) -> Iterator[DeadLetter]:
    """Yield the records that a topic has now, in the order of offsets within each
    partition.

    Raises:
        UnknownTopicError: there is no such topic.
    """
    yield from _between(log, {}, ends_of(log, topic))


def _between(
    log: KafkaLog,
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> Iterator[DeadLetter]:
    """Yield the records of the partitions in `ends` from `begins` on, or from the
    first, in the order of offsets within each partition.

    Shape: `ends` are exclusive.
    """
    with closing(log.reader()) as reader:
        starts = {at: max(log.start_offset(at), begins.get(at, 0)) for at in ends}
        positions = {
            at: Position(start, NO_STREAM_TIME)
            for at, start in starts.items()
            if start < ends[at]
        }
        reader.assign(positions)
        while positions:
            for batch in reader.fetch(5000, 1.0):
                columns = batch.columns
                for i, offset in enumerate(columns.offsets):
                    if offset < ends[batch.partition]:
                        headers = (
                            None if columns.headers is None else columns.headers[i]
                        )
                        yield dead_letter(
                            batch.partition,
                            offset,
                            columns.timestamps[i],
                            columns.keys[i],
                            columns.values[i],
                            headers,
                        )
                if batch.next_offset >= ends[batch.partition]:
                    positions.pop(batch.partition, None)


def ahead(
    log: KafkaLog,
    settings: Mapping[str, Any],
    topic: str,
) -> Iterator[DeadLetter]:
    """Yield the records that a replay would read: those after the end of the last
    replay.

    Raises:
        UnknownTopicError: there is no such topic.
    """
    passed = list_consumer_group_offsets(
        settings,
        replay_group(topic),
        ends_of(log, topic),
    )
    for letter in letters(log, topic):
        until = passed[letter.at]
        if until is None or letter.offset >= until.offset:
            yield letter


def replay_group(topic: str) -> str:
    """Return the consumer group whose committed position is the end of the last replay."""
    return f"{topic}-replay"


def ends_of(log: KafkaLog, topic: str) -> dict[TopicPartition, int]:
    """Return the last stable offset of each partition of a topic. Records above it may
    belong to open transactions.

    Raises:
        UnknownTopicError: there is no such topic.
    """
    count = log.partitions([topic]).get(topic)
    if count is None:
        raise UnknownTopicError(
            f'there is no topic "{topic}"; name the one of errors.dead.letter.queue.topic.name'
        )
    return log.stable_offsets(
        [TopicPartition(topic, number) for number in range(count)]
    )


@dataclass(slots=True)
class Replayed:
    """The counts of a replay so far.

    `passed`: records that were not written again: unwanted letters, letters that cannot
    be written back or whose record was written already, and records that are no
    letters.
    """

    written: int = 0
    passed: int = 0


class _RefusedLetterError(Exception):
    """A letter that cannot be written back, with the reason. Raised within `replay`
    only.
    """

    def __init__(self, letter: DeadLetter, why: str) -> None:
        super().__init__(f"{letter.at}@{letter.offset}: {why}")
        self.letter = letter
        self.why = why


def replay(
    log: KafkaLog,
    settings: Mapping[str, Any],
    topic: str,
    wanted: Wanted,
    to: str | None = None,
    on_progress: Callable[[Replayed], None] = lambda _: None,
) -> Replayed:
    """Write a topic's dead letters, from the end of the last replay on, back to the
    topics that they came from, or to the topic `to`; return the counts.

    `settings`: how to reach the brokers, in librdkafka's names.
    `wanted`: which letters to write. Other letters are skipped for good: no later
    replay reads them.
    `to`: another topic, where the key chooses the partition.

    Raises:
        UnknownTopicError: there is no such topic.
        LogError: a topic that a letter came from is gone, or refuses it. The message
            names the letter, and what can be done. The next replay continues there.
    """
    ends = {
        at: end for at, end in ends_of(log, topic).items() if log.start_offset(at) < end
    }
    if to is not None and to not in log.partitions([to]):
        raise UnknownTopicError(
            f'there is no topic "{to}", to which letters are to go: create it, or correct --to'
        )
    connection = {
        **settings,
        "group.id": replay_group(topic),
        "auto.offset.reset": "earliest",
    }
    with CooperativeConsumer(connection) as consumer:
        consumer.subscribe([topic])
        passed = consumer.committed(ends)
        turns = {at: continued(passed[at], wanted) for at in ends}
        metadata: dict[Partition, str] = {
            at: metadata_of(each) for at, each in turns.items()
        }
        known = _written_before(log, passed, turns)
        producer = transactional_producer(settings, consumer.transactional_id)
        replaying = _Replaying(
            consumer,
            settings,
            metadata,
            wanted,
            _Writing(log, producer, to),
            known,
            AT_ONCE,
        )
        while _is_before(consumer, ends):
            records = [
                record
                for record in consumer.consume(replaying.at_once)
                if record.offset < ends.get(_place(record), 0)
            ]
            if not records:
                # Past the transaction markers at the end.
                consumer.commit(metadata=metadata)
            elif replaying.take(records):
                on_progress(replaying.done)
    return replaying.done


def _is_before(
    consumer: CooperativeConsumer,
    ends: Mapping[TopicPartition, int],
) -> bool:
    """Return whether the replay has not yet committed all these end offsets."""
    committed = consumer.committed(ends)
    return any(
        (at.offset if at else 0) < ends[place] for place, at in committed.items()
    )


@dataclass(slots=True)
class _Replaying:
    """A replay under way: it writes batches of letters back, each in one transaction."""

    consumer: CooperativeConsumer
    settings: Mapping[str, Any]
    metadata: Mapping[Partition, str]
    wanted: Wanted
    writing: _Writing
    known: dict[_Record, None]
    """The records written last, by this replay and earlier ones."""
    at_once: int
    """How many letters are read for one transaction."""
    done: Replayed = field(default_factory=Replayed)

    def take(self, records: Sequence[ConsumerRecord]) -> bool:
        """Write a batch back and commit it; return False if the batch has to be read
        again.

        Raises:
            LogError: its only letter cannot be written.
        """
        now = Replayed(self.done.written, self.done.passed)
        fresh = dict[_Record, None]()
        try:
            with self.consumer.transaction(
                self.writing.producer,
                metadata=self.metadata,
            ):
                for record in records:
                    letter = _letter(record)
                    failed = letter.record
                    if self._goes_back(letter) and failed and failed not in fresh:
                        self.writing.write(letter, failed[0])
                        now.written += 1
                        fresh[failed] = None
                    else:
                        now.passed += 1
                self.writing.check()
                for record in records:
                    self.consumer.done(record)
        except MembershipLostError:
            return False  # another replay has them now, or this one reads them again
        except _RefusedLetterError as refused:
            if len(records) == 1:
                raise LogError(_cure(refused)) from refused
            # What is before this letter goes back: all are read again, one by one.
            self.at_once = 1
            # A producer whose records a broker has refused may fail at the next ones,
            # too (seen: _STATE).
            self.writing.producer = transactional_producer(
                self.settings,
                self.consumer.transactional_id,
            )
            return False
        self.done = now
        self.known = dict.fromkeys([*self.known, *fresh][-MOST_KNOWN:])
        return True

    def _goes_back(self, letter: DeadLetter) -> bool:
        return self.wanted.fits(letter.why) and letter.record not in self.known


def _written_before(
    log: KafkaLog,
    passed: Mapping[TopicPartition, OffsetAndRanges | None],
    turns: Mapping[TopicPartition, tuple[Turn, ...]],
) -> dict[_Record, None]:
    """Return the records that earlier replays have written, as far as the topic still
    has their letters.
    """
    found: dict[_Record, None] = {}
    stands = {at: one for at, one in passed.items() if one is not None}
    ends = {at: max(part.end for part in one.key_ranges) for at, one in stands.items()}
    begins = {at: max(turns[at][0].begin, end - MOST_KNOWN) for at, end in ends.items()}
    for letter in _between(
        log,
        begins,
        {at: end for at, end in ends.items() if begins[at] < end},
    ):
        failed = letter.record
        if failed is None or not is_passed(
            stands[letter.at],
            letter.key,
            letter.offset,
        ):
            continue
        if was_wanted(turns[letter.at], letter.offset, letter.why):
            found[failed] = None
    return found


def _place(record: ConsumerRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _letter(record: ConsumerRecord) -> DeadLetter:
    return dead_letter(
        _place(record),
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        record.headers,
    )


@dataclass(slots=True)
class _Writing:
    """Writes letters back with the producer of their transaction. `to`: the topic to
    write to; None: the one that each letter came from.
    """

    log: KafkaLog
    producer: Any
    to: str | None
    _counts: dict[str, int] = field(default_factory=dict)
    """The partition counts of the topics that were needed so far."""
    _refused: list[_RefusedLetterError] = field(default_factory=list)

    def write(self, letter: DeadLetter, source: TopicPartition) -> None:
        """Queue a letter's record.

        Raises:
            _RefusedLetterError: its topic is gone, or lacks the partition.
        """
        where: dict[str, Any] = {"topic": self.to}
        if self.to is None:
            where = {"topic": source.topic, "partition": source.partition}
            if source.topic not in self._counts:
                self._counts[source.topic] = self.log.partitions([source.topic]).get(
                    source.topic,
                    0,
                )
            if source.partition >= (count := self._counts[source.topic]):
                there = (
                    f"the topic has {count} partitions now."
                    if count
                    else "there is no such topic now."
                )
                raise _RefusedLetterError(letter, there)
        headers: list[Any] = letter.headers
        # A record of 1970 would be deleted by its topic's retention. librdkafka takes 0
        # for "now".
        timestamp = 0 if letter.timestamp < 0 else max(1, letter.timestamp)

        def on_delivery(error: Any, _: Any) -> None:
            if error is not None and refuses_records(error):
                self._refused.append(
                    _RefusedLetterError(letter, str(translated(error, "writing it")))
                )

        record = {
            "key": letter.key,
            "value": letter.value,
            "headers": headers,
            "timestamp": timestamp,
        }
        while True:
            try:
                self.producer.produce(**where, **record, on_delivery=on_delivery)
            except BufferError:  # many large ones: the queue is full
                self.producer.poll(1.0)
            except CLIENT_ERRORS as error:
                raise _RefusedLetterError(
                    letter,
                    str(translated(error_of(error), "writing it")),
                ) from error
            else:
                return

    def check(self) -> None:
        """Wait until all queued records are in the log.

        Raises:
            _RefusedLetterError: the brokers refuse a record; names the first one.
        """
        self.producer.flush()
        if refused := self._refused[:1]:
            self._refused.clear()
            raise refused[0]


def _cure(refused: _RefusedLetterError) -> str:
    letter = refused.letter
    group = replay_group(refused.letter.at.topic)
    return (
        f"the letter {letter.at}@{letter.offset} cannot go back to {letter.source}: {refused.why} What is before it "
        "has gone back. Mend that and replay again; or send letters elsewhere, with --to; or pass this one: "
        f"coopstreams group reset {group} --topic {letter.at.topic} --partition {letter.at.partition} "
        f"--to {letter.offset + 1} --forwards"
    )
