"""Tests that need a real Kafka: the group's fence, bounds, settings, a broker that is
unavailable, returns, or compacts.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.kafka import reader as kafka_reader
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.writer import group_metadata
from coopstreams.log.log import GroupFence, Position, RecordBatch, TopicSpec
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    ConfigError,
    DeliveryError,
    FencedError,
    LogError,
    UnknownTopicError,
)
from coopstreams.topology.keys import KeyRange
from tests.conftest import Kafka
from tests.log.reading import (
    PATIENCE_S,
    Seen,
    append,
    arrives,
    begin,
    fetch_until,
    fill,
    numbers,
    read_all,
    reader_at,
    records,
    to_end,
    values,
    write,
)

pytestmark = pytest.mark.broker


@pytest.fixture
def log(kafka: Kafka) -> Iterator[KafkaLog]:
    cluster = KafkaLog(
        {
            "bootstrap.servers": kafka.bootstrap,
            "producer.transaction.timeout.ms": 60_000,
        }
    )  # a busy machine may pause for some seconds
    yield cluster
    cluster.close()


@pytest.fixture
def member(kafka: Kafka) -> Iterator[tuple[GroupFence, bytes, Consumer]]:
    """A live member of a group: its identity as our fence, in confluent-kafka's bytes,
    and its consumer.
    """
    group = kafka.unique("fence")
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": group,
            "session.timeout.ms": 60_000,
            "log_level": 2,
        }
    )
    consumer.subscribe([kafka.topic("input")])
    deadline = time.monotonic() + PATIENCE_S
    while not consumer.assignment() and time.monotonic() < deadline:
        consumer.poll(0.1)
    native = consumer.consumer_group_metadata()
    generation, rest = struct.unpack_from("=i", native, 7)[0], native[11:].split(b"\0")
    assert rest[0].decode() == group
    yield GroupFence(group, generation, rest[1].decode()), native, consumer
    consumer.close()


def test_an_identity_is_written_as_librdkafka_reads_it(
    member: tuple[GroupFence, bytes, Consumer],
) -> None:
    fence, native, _ = member
    assert group_metadata(fence) == native
    with pytest.raises(ValueError, match="printable ASCII"):
        group_metadata(GroupFence("grüppe", 1, "m"))


def test_the_coordinator_takes_a_live_member_and_refuses_a_stale_one(
    kafka: Kafka, log: KafkaLog, member: tuple[GroupFence, bytes, Consumer]
) -> None:
    fence, _, consumer = member
    partition = TopicPartition(kafka.topic(), 0)
    writer = log.writer(kafka.unique("tx"))
    stale = [
        GroupFence(fence.group, fence.generation - 1, fence.member),
        GroupFence(fence.group, fence.generation, "nobody"),
    ]
    for offset, identity in enumerate([fence, *stale, fence], start=41):
        begin(writer, partition, [f"{offset}"])
        if identity is fence:
            writer.send_offsets({partition: (offset, "note")}, identity)
            writer.commit(PATIENCE_S)
        else:
            with pytest.raises(FencedError, match=fence.group):
                writer.send_offsets({partition: (offset, "")}, identity)
            writer.abort()
    arrives(log, partition, ["41", "44"])
    (committed,) = consumer.committed(
        [ConfluentPartition(*partition)], timeout=PATIENCE_S
    )
    assert committed.offset == 44


@pytest.mark.ci
def test_offsets_of_a_topic_that_is_gone_are_said_to_be_so_and_the_writer_goes_on(
    kafka: Kafka, log: KafkaLog, member: tuple[GroupFence, bytes, Consumer]
) -> None:
    """No record was refused, so an application that reads the topic by a pattern
    continues without it.
    """
    gone, writer = (
        TopicPartition(kafka.unique("gone"), 0),
        log.writer(kafka.unique("tx")),
    )
    for _ in range(2):
        writer.begin()
        with pytest.raises(UnknownTopicError, match=gone.topic):
            writer.send_offsets({gone: (1, "")}, member[0])
        writer.abort()


def test_a_group_with_another_coordinator_gets_its_offsets_from_another_producer(
    kafka: Kafka, log: KafkaLog, member: tuple[GroupFence, bytes, Consumer]
) -> None:
    """The old client waits for the coordinator that it knows (librdkafka issue 5511):
    eight seconds after each loss of one.
    """
    here, moved = (replace(member[0], coordinator=broker) for broker in (1, 2))
    partition, writer = TopicPartition(kafka.topic(), 0), log.writer(kafka.unique("tx"))
    for value, fence, taken in (
        ("1", here, True),
        ("2", moved, False),
        ("3", moved, True),
    ):
        begin(writer, partition, [value])
        if taken:
            writer.send_offsets({partition: (1, "")}, fence)
            writer.commit(PATIENCE_S)
        else:
            with pytest.raises(LogError, match="broker 2 now, no longer 1") as raised:
                writer.send_offsets({partition: (1, "")}, fence)
            assert raised.value.retryable
            writer.abort()
    arrives(log, partition, ["1", "3"])


@pytest.mark.usefixtures("plane")
def test_a_timestamp_of_zero_is_written_as_one(kafka: Kafka, log: KafkaLog) -> None:
    partition = TopicPartition(kafka.topic(), 0)
    append(log, partition.topic, [b"k"] * 2, [b"v"] * 2, [0, 5], partitions=0)
    assert [record.timestamp for record in read_all(log, partition)] == [1, 5]


@pytest.mark.usefixtures("plane")
def test_a_full_queue_keeps_the_order(kafka: Kafka) -> None:
    log = KafkaLog(
        {
            "bootstrap.servers": kafka.bootstrap,
            "producer.queue.buffering.max.messages": 50,
        }
    )
    partition = TopicPartition(kafka.topic(), 0)
    for writer in (log.writer(), log.writer(kafka.unique("tx"))):
        before = log.end_offset(partition)
        if before:
            writer.begin()
        write(writer, partition, numbers(5000))
        writer.flush(PATIENCE_S)
        assert (
            log.end_offset(partition) == before + 5000 <= writer.delivered_to(partition)
        )
        writer.close()
    assert values(read_all(log, partition)) == numbers(5000)
    log.close()


def test_an_unknown_topic_surfaces_when_it_is_written_and_when_it_vanishes_under_a_reader(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_reader, "SILENCE_S", 0.5)
    log = KafkaLog(
        {
            "bootstrap.servers": kafka.bootstrap,
            "topic.metadata.propagation.max.ms": 1000,
        }
    )
    writer = log.writer()
    writer.append("nobody-made-this", [b"k"], [b"v"], [1])
    with pytest.raises(DeliveryError, match=r"nobody-made-this.*Create the topic"):
        writer.flush(PATIENCE_S)
    partition = TopicPartition(kafka.topic(), 0)
    reader = reader_at(log, partition)
    to_end(reader, partition)
    log.delete_topics([partition.topic])
    with pytest.raises(UnknownTopicError, match=partition.topic):
        fetch_until(reader, lambda _: False)
    reader.close()
    log.close()


@pytest.mark.usefixtures("plane")
def test_a_record_in_the_far_future_surfaces_with_what_to_look_at(
    kafka: Kafka, log: KafkaLog
) -> None:
    partition = TopicPartition(kafka.topic(message_timestamp_after_max_ms="1000"), 0)
    writer = log.writer()
    write(writer, partition, ["x"], start_ms=int(time.time() * 1000) + 3_600_000)
    with pytest.raises(DeliveryError, match=r"message\.timestamp\.after\.max\.ms"):
        writer.flush(PATIENCE_S)


@pytest.mark.usefixtures("plane")
def test_a_held_partition_is_bounded_and_loses_nothing(
    kafka: Kafka, log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_reader, "HELD_RECORDS", 700)
    busy, other = TopicPartition(kafka.topic(), 0), TopicPartition(kafka.topic(), 0)
    fill(log, busy, numbers(20_000))
    reader = log.reader()
    reader.assign({busy: Position(0), other: Position(0)})
    reader.route(busy, KeyRange.split(3))
    seen: list[RecordBatch] = []
    for _ in range(3):
        reader.hold(busy, held=True)
        fill(log, other, ["tick"])
        ticks = fetch_until(
            reader,
            lambda batches: (
                any(len(batch.columns) for batch in batches)
                and reader._buffer.kept(busy)[0] > 0
            ),
            max_records=500,
        )
        assert {batch.partition for batch in ticks} == {other}
        assert not any(batch.partition == busy for batch in reader.fetch(500, 0.2))
        aside, _ = reader._buffer.kept(busy)
        assert 0 < aside < 700 + 500
        reader.hold(busy, held=False)
        seen += fetch_until(
            reader,
            lambda batches: (
                sum(len(records(batches, slot)) for slot in range(3)) > 1500
            ),
            max_records=500,
        )
    seen += to_end(reader, busy, max_records=500)
    assert values(
        sorted(record for slot in range(3) for record in records(seen, slot))
    ) == numbers(20_000)


@pytest.mark.usefixtures("plane")
def test_while_all_partitions_are_held_what_the_client_has_fetched_is_not_discarded(
    kafka: Kafka, log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_reader, "HELD_RECORDS", 100)
    partition = TopicPartition(kafka.topic(), 0)
    fill(log, partition, numbers(2000))
    reader = log.reader()
    reader.assign({partition: Position(0)})
    seen = fetch_until(
        reader, lambda batches: len(records(batches)) > 0, max_records=10
    )
    reader.hold(partition, held=True)
    for _ in range(20):
        assert reader.fetch(500, 0.001) == []
    assert reader._readings[partition].taken, "unassigned, it would be fetched again"
    reader.hold(partition, held=False)
    seen += to_end(reader, partition, max_records=500)
    assert values(records(seen)) == numbers(2000)


@pytest.mark.ci
@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_random_assigning_seeking_and_holding_reads_each_record_once(
    kafka: Kafka, log: KafkaLog, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(kafka_reader, "HELD_RECORDS", 300)
    rng = random.Random(seed)
    name = kafka.topic(partitions=2)
    parts = [
        TopicPartition(name, 0),
        TopicPartition(name, 1),
        TopicPartition(kafka.topic(), 0),
    ]
    writer = log.writer(kafka.unique("tx"))
    for i in range(30):
        writer.begin()
        for partition in parts:
            write(writer, partition, numbers(100, start=i * 100))
        writer.flush(PATIENCE_S)
        if i % 3 == 2:
            writer.abort()
        else:
            writer.commit(PATIENCE_S)
    for partition in parts:
        fill(log, partition, ["last"])
        arrives(
            log,
            partition,
            [
                value
                for i in range(30)
                if i % 3 != 2
                for value in numbers(100, start=i * 100)
            ]
            + ["last"],
        )
    truth = {partition: read_all(log, partition) for partition in parts}
    reader, at, held = (
        log.reader(),
        dict[TopicPartition, Position](),
        set[TopicPartition](),
    )
    for _ in range(150):
        action = rng.random()
        if action < 0.15:
            chosen = rng.sample(parts, rng.randint(1, 3))
            at = {
                p: at[p]
                if p in at and rng.random() < 0.6
                else Position(rng.randint(0, log.end_offset(p)))
                for p in chosen
            }
            held &= at.keys()
            reader.assign(at)
        elif action < 0.35 and at:
            partition = rng.choice(list(at))
            held ^= {partition}
            reader.hold(partition, partition in held)
        else:
            check_runs(reader.fetch(rng.choice([1, 50, 400]), 0.02), at, held, truth)
    for partition in at:
        reader.hold(partition, held=False)
    deadline = time.monotonic() + PATIENCE_S
    while (
        any(at[partition].offset < log.end_offset(partition) for partition in at)
        and time.monotonic() < deadline
    ):
        check_runs(reader.fetch(1000, 0.1), at, set(), truth)
    assert {p: position.offset for p, position in at.items()} == {
        p: log.end_offset(p) for p in at
    }


def check_runs(
    batches: list[RecordBatch],
    at: dict[TopicPartition, Position],
    held: set[TopicPartition],
    truth: dict[TopicPartition, list[Seen]],
) -> None:
    """Assert that these batches are the records between the positions, and advance the
    positions.
    """
    for batch in batches:
        assert batch.partition not in held
        before = at[batch.partition]
        expected = [
            record.offset
            for record in truth[batch.partition]
            if before.offset <= record.offset < batch.next_offset
        ]
        assert list(batch.columns.offsets) == expected
        at[batch.partition] = Position(batch.next_offset, batch.stream_time)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "bootstrap.servers"),
        ({"consumer.auto.offset.reset": "earliest"}, "auto.offset.reset"),
        ({"enable.idempotence": False}, "enable.idempotence"),
        ({"producer.partitioner": "random"}, "partitioner"),
        ({"security.protcol": "SSL"}, "security.protcol"),
        ({"security.protocol": "TLS"}, "security.protocol"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_any_connection(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        KafkaLog(({"bootstrap.servers": "127.0.0.1:1"} if settings else {}) | settings)


@pytest.mark.ci
def test_a_broker_that_is_down_at_start_is_named_with_what_to_look_at() -> None:
    log = KafkaLog(
        {"bootstrap.servers": "127.0.0.1:1", "consumer.fetch.wait.max.ms": 5},
        timeout_s=1.0,
    )
    spec = TopicSpec("t", 1)
    for ask in (
        log.partitions,
        lambda: log.end_offset(TopicPartition("t", 0)),
        lambda: log.create_topics([spec]),
        lambda: log.writer("tx"),
    ):
        with pytest.raises(
            LogError,
            match=r"127\.0\.0\.1:1 answered within 1 s.*Connection refused.*bootstrap\.servers",
        ) as caught:
            ask()
        assert caught.value.retryable
    reader = log.reader()
    reader.assign({TopicPartition("t", 0): Position(0)})
    assert reader.fetch(10, 0.1) == []
    reader.close()
    log.close()


BrokerFactory = Callable[..., KafkaBroker]


def failure_of(action: Callable[[], None]) -> LogError | None:
    try:
        action()
    except LogError as error:
        return error
    return None


def write_plain(
    log: KafkaLog,
    plain: TopicPartition,
    stop: threading.Event,
    written: list[str],
    failures: list[LogError],
) -> None:
    """Write until `stop`; after a failure, read from the log which records count."""
    writer = log.writer()
    while not stop.is_set():
        names = numbers(20, start=len(written))
        try:
            # Current timestamps: a restarted broker forgets producers whose last record
            # is a day old, and then cannot recognise repetitions.
            write(writer, plain, names, start_ms=int(time.time() * 1000))
            writer.flush(10)
            written.extend(names)
        except LogError as error:
            failures.append(error)
            writer.abort()
            written[:] = filter(None, values(read_all(log, plain)))
    writer.close()


def write_atomic(
    log: KafkaLog,
    atomic: TopicPartition,
    stop: threading.Event,
    committed: list[str],
    failures: list[LogError],
) -> None:
    """Write in transactions until `stop`; after a failure, read from the log which
    records count.
    """
    writer = log.writer("restarts")
    while not stop.is_set():
        names = numbers(20, start=len(committed))
        try:
            writer.begin()
            write(writer, atomic, names)
            writer.flush(10)
            writer.commit(10)
            committed.extend(names)
        except LogError as error:
            failures.append(error)
            while (failure := failure_of(writer.abort)) is not None:
                failures.append(failure)
            committed[:] = filter(
                None, values(read_all(log, atomic))
            )  # the log shows the unknown outcomes
    writer.close()


@pytest.mark.slow
def test_reading_and_writing_go_on_over_restarts_of_the_broker(
    broker_of_own: BrokerFactory,
) -> None:
    broker = broker_of_own()
    log = KafkaLog({"bootstrap.servers": broker.bootstrap})
    plain, atomic = TopicPartition("plain", 0), TopicPartition("atomic", 0)
    log.create_topics([TopicSpec("plain", 1), TopicSpec("atomic", 1)])
    stop = threading.Event()
    written: list[str] = []
    committed: list[str] = []
    failures: list[LogError] = []

    def both_written(batches: list[RecordBatch]) -> bool:
        return {batch.partition for batch in batches if len(batch.columns)} == {
            plain,
            atomic,
        }

    reader = reader_at(log, plain, atomic)
    seen: list[RecordBatch] = []
    with ThreadPoolExecutor(2) as pool:
        writers = [
            pool.submit(write_plain, log, plain, stop, written, failures),
            pool.submit(write_atomic, log, atomic, stop, committed, failures),
        ]
        try:
            for end in (broker.stop, broker.kill):
                seen += fetch_until(reader, both_written)
                end()
                for _ in range(10):
                    seen += reader.fetch(1000, 0.2)
                broker.start()
            seen += fetch_until(reader, both_written)
        finally:
            stop.set()
        for writer in writers:
            writer.result(200)
    ends = {partition: log.end_offset(partition) for partition in (plain, atomic)}
    seen += fetch_until(
        reader,
        lambda batches: (
            {batch.partition: batch.next_offset for batch in seen + batches} == ends
        ),
    )
    assert all(
        failure.retryable or isinstance(failure, DeliveryError) for failure in failures
    ), failures
    for partition, right in ((plain, written), (atomic, committed)):
        read, anew = (
            records(batch for batch in seen if batch.partition == partition),
            read_all(log, partition),
        )
        assert [(each.offset, each.value) for each in read] == [
            (each.offset, each.value) for each in anew
        ], "another reader sees other records"
        assert values(anew) == right, failures
    assert log.end_offset(plain) == len(written)
    reader.close()
    log.close()


@pytest.mark.ci
def test_a_compacted_topic_is_read_over_its_holes(kafka: Kafka) -> None:
    log = KafkaLog({"bootstrap.servers": kafka.bootstrap})
    settings = {
        "cleanup_policy": "compact",
        "segment_bytes": "1048576",
        "segment_ms": "200",
        "min_cleanable_dirty_ratio": "0.01",
        "max_compaction_lag_ms": "200",
    }
    partition = TopicPartition(kafka.topic("compacted", 1, **settings), 0)
    for i in range(5):
        fill(log, partition, numbers(100) * 10, start_ms=1000 * i)
    deadline = time.monotonic() + 200
    while len(seen := read_all(log, partition)) > 1500 and time.monotonic() < deadline:
        fill(
            log, partition, ["roll"], start_ms=int(time.time() * 1000)
        )  # a segment is closed by the time of the next record
        time.sleep(0.2)
    assert 100 <= len(seen) <= 1500
    offsets = [record.offset for record in seen]
    assert offsets == sorted(set(offsets))
    assert set(numbers(100)) <= set(values(seen)) <= {*numbers(100), "roll"}
    reader = reader_at(log, partition, offset=3)
    reader.route(partition, KeyRange.split(2))
    batches = to_end(reader, partition, max_records=64)
    shared = {record.offset for slot in (0, 1) for record in records(batches, slot)}
    later = {
        record.offset for record in read_all(log, partition)
    }  # the cleaner keeps running: it may remove more at any time
    assert (
        {offset for offset in later if offset >= 3}
        <= shared
        <= {offset for offset in offsets if offset >= 3}
    )
    assert len(shared) == sum(len(records(batches, slot)) for slot in (0, 1))
    reader.close()
    log.close()
