"""Results that a real broker refuses: their source record is named, left out, or a dead
letter; no other record is lost.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from coopstreams import CoopStreams, StreamsBuilder, Topology, serdes
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.tasks.refusals import TopicLimits, batch_bytes
from coopstreams.topology.errors import DeliveryError, ProcessingError, RefusedError
from tests.broker.counting import failure_of, metric
from tests.broker.reading import counts_of, read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

HOUR_MS = 3_600_000
RECORDS, FAR, LARGE = 60, (7, 41), 23
"""Offsets of the records with a far future timestamp, and of the one with a result that
is too large.
"""
EACH_GUARANTEE = (
    "exactly_once_v2",
    pytest.param("at_least_once", marks=pytest.mark.slow),
)


def settings(
    kafka: Kafka, folder: Path, guarantee: str, dead: str, handler: str
) -> dict[str, Any]:
    return kafka.config(
        folder,
        processing_guarantee=guarantee,
        production_exception_handler=handler,
        errors_dead_letter_queue_topic_name=dead,
    )


def write(kafka: Kafka, source: str) -> None:
    """Write records, some two days ahead of the clock, one with a large result. The
    topic takes any timestamp.
    """
    producer, now = (
        Producer({"bootstrap.servers": kafka.bootstrap}),
        int(time.time() * 1000),
    )
    for offset in range(RECORDS):
        value = b"x" * 3000 if offset == LARGE else b"%d" % offset
        producer.produce(
            source,
            value,
            f"key-{offset % 5}",
            0,
            timestamp=now + (48 * HOUR_MS if offset in FAR else 0),
        )
    assert producer.flush(60) == 0


def topics(kafka: Kafka) -> tuple[str, str, str]:
    """A source for any timestamp, a sink for 2,000 bytes and timestamps up to an hour
    ahead, and a dead-letter topic for the latter.
    """
    return (
        kafka.topic("in", message_timestamp_after_max_ms=str(1000 * HOUR_MS)),
        kafka.topic("out", max_message_bytes="2000"),
        kafka.topic("dead"),
    )


def copying(application: str, source: str, sink: str) -> Topology:
    builder = StreamsBuilder(application)
    stream = builder.stream(source, key=serdes.text, value=serdes.raw)
    stream.to(sink)
    stream.group_by_key().count(store="counts")
    return builder.build()


@pytest.mark.ci
@pytest.mark.parametrize("guarantee", EACH_GUARANTEE)
def test_refused_results_are_dead_letters_and_all_others_arrive(
    kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    source, sink, dead = topics(kafka)
    write(kafka, source)
    app = CoopStreams(
        copying(kafka.unique("refused"), source, sink),
        settings(kafka, tmp_path, guarantee, dead, "dead-letter"),
    )
    good = [b"%d" % offset for offset in range(RECORDS) if offset not in (*FAR, LARGE)]
    with app:
        eventually(
            lambda: (
                len({record.value for record in read_topic(kafka.bootstrap, sink)})
                == len(good)
            ),
            120,
            lambda: "not all arrived",
        )
        eventually(
            lambda: len(read_topic(kafka.bootstrap, dead)) >= 3,
            120,
            lambda: f"{read_topic(kafka.bootstrap, dead)}",
        )
        eventually(
            lambda: metric(app, "coopstreams_lag_records") == 0,
            120,
            lambda: "not all processed",
        )
    arrived = [record.value for record in read_topic(kafka.bootstrap, sink)]
    letters = read_topic(kafka.bootstrap, dead)
    named = [dict(letter.headers)["__coopstreams.errors.offset"] for letter in letters]
    if guarantee == "exactly_once_v2":
        assert (arrived, named) == (good, [b"7", b"23", b"41"])
    assert (set(arrived), set(named)) == (set(good), {b"7", b"23", b"41"})
    said = {
        dict(letter.headers)["__coopstreams.errors.offset"]: dict(letter.headers)[
            "__coopstreams.errors.message"
        ]
        for letter in letters
    }
    assert b"message.timestamp.after.max.ms" in (said[b"7"] or b"")
    assert b"max.message.bytes" in (said[b"23"] or b"")


@pytest.mark.ci
@pytest.mark.parametrize("guarantee", EACH_GUARANTEE)
def test_a_handler_that_says_fail_names_the_record_that_the_refused_result_comes_from(
    kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    source, sink, dead = topics(kafka)
    write(kafka, source)
    error = failure_of(
        CoopStreams(
            copying(kafka.unique("refused"), source, sink),
            settings(kafka, tmp_path, guarantee, dead, "fail"),
        )
    )
    assert isinstance(error, ProcessingError)
    for part in (
        f'"{source}" partition 0 offset 7',
        sink,
        "key-2",
        "message.timestamp.after.max.ms",
        "continue or dead-letter",
    ):
        assert part in str(error)


def repartitioned(application: str, source: str, sink: str) -> Topology:
    builder = StreamsBuilder(application)
    moved = builder.stream(source, key=serdes.text, value=serdes.raw).select_key(
        lambda key, _: key, key=serdes.text
    )
    moved.repartition(name="again").map_values(
        lambda value: value[:10], value=serdes.raw
    ).to(sink)
    return builder.build()


@pytest.mark.ci
@pytest.mark.parametrize("guarantee", EACH_GUARANTEE)
def test_a_result_too_large_for_a_repartition_topic_is_left_out(
    kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    """One with a future timestamp is not: internal topics are created to take any
    timestamp.
    """
    source, sink, dead = topics(kafka)
    topology = repartitioned(kafka.unique("again"), source, sink)
    [internal] = [topic.name for topic in topology.internal_topics]
    kafka.create(
        internal,
        max_message_bytes="2000",
        retention_ms="-1",
        message_timestamp_after_max_ms=str((1 << 63) - 1),
    )
    write(kafka, source)
    good = {b"%d" % offset for offset in range(RECORDS) if offset not in (*FAR, LARGE)}
    with CoopStreams(
        topology, settings(kafka, tmp_path, guarantee, dead, "dead-letter")
    ):
        eventually(
            lambda: (
                {record.value for record in read_topic(kafka.bootstrap, sink)} == good
            ),
            120,
            lambda: "not all arrived",
        )

        def buried() -> set[tuple[bytes | None, bytes | None]]:
            """Return source and result key of each dead letter; at least once may
            repeat them.
            """
            return {
                (one.headers["__coopstreams.errors.topic"], one.key)
                for one in read_topic(kafka.bootstrap, dead)
            }

        expected = {
            (source.encode(), b"key-3"),
            (internal.encode(), b"key-2"),
            (internal.encode(), b"key-1"),
        }
        eventually(lambda: buried() == expected, 120, lambda: str(buried()))


@pytest.mark.ci
@pytest.mark.parametrize("guarantee", EACH_GUARANTEE)
def test_a_row_of_state_that_is_refused_ends_the_instance_whatever_the_handler_says(
    kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    source, _, dead = topics(kafka)
    builder = StreamsBuilder(kafka.unique("state"))
    stream = builder.stream(source, key=serdes.text, value=serdes.raw)
    stream.group_by_key().aggregate(
        bytes, lambda _, value, seen: seen + value, value=serdes.raw, store="seen"
    )
    topology = builder.build()
    [changelog] = [topic.name for topic in topology.internal_topics]
    any_time = str(1000 * HOUR_MS)
    kafka.create(
        changelog,
        cleanup_policy="compact",
        max_message_bytes="2000",
        message_timestamp_after_max_ms=any_time,
    )
    write(kafka, source)
    error = failure_of(
        CoopStreams(topology, settings(kafka, tmp_path, guarantee, dead, "continue"))
    )
    assert isinstance(error, DeliveryError)
    for part in ("seen", "task 0_0", changelog, "max.message.bytes", "key-3"):
        assert part in str(error)


@pytest.mark.ci
@pytest.mark.parametrize("guarantee", EACH_GUARANTEE)
def test_a_row_above_the_default_limits_says_which_records_made_it_and_what_to_do(
    kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    """No limit is set: a row that grows beyond a megabyte, with dead letters."""
    source = kafka.topic("in")
    dead = kafka.topic("dead")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for key in ("large", "large", "small", "large", "small"):
        producer.produce(source, b"x" * 400_000, key, 0)
    assert producer.flush(60) == 0
    builder = StreamsBuilder(kafka.unique("grows"))
    stream = builder.stream(source, key=serdes.text, value=serdes.raw)
    stream.group_by_key().aggregate(
        bytes, lambda _, value, seen: seen + value, value=serdes.raw, store="seen"
    )
    topology = builder.build()
    given = settings(kafka, tmp_path, guarantee, dead, "dead-letter")
    error = failure_of(CoopStreams(topology, given))
    assert isinstance(error, DeliveryError)
    [changelog] = [topic.name for topic in topology.internal_topics]
    for part in (
        'store "seen" of task 0_0',
        f'"{changelog}"',
        "b'large'",
        "1200",  # thousands of bytes
        f'The latest record of its key is the record at offset 3 of "{source}" partition 0',
        "production.exception.handler does not apply to rows of a store",
        "the topic's max.message.bytes and the application's producer.message.max.bytes",
        "processing.exception.handler",
    ):
        assert part in str(error)
    assert read_topic(kafka.bootstrap, dead) == []


@pytest.mark.ci
def test_state_of_records_whose_time_lies_ahead_is_written(
    kafka: Kafka, tmp_path: Path
) -> None:
    source, _, dead = topics(kafka)
    write(kafka, source)
    builder = StreamsBuilder(kafka.unique("ahead"))
    builder.stream(source, key=serdes.text, value=serdes.raw).group_by_key().count(
        store="counts"
    )
    topology = builder.build()
    with CoopStreams(
        topology, settings(kafka, tmp_path, "exactly_once_v2", dead, "fail")
    ) as app:
        eventually(
            lambda: (
                metric(app, "coopstreams_lag_records") == 0
                and metric(app, "coopstreams_processed_records_total") == RECORDS
            ),
            120,
            str,
        )
    assert (
        sum(
            counts_of(
                kafka.bootstrap, f"{topology.application_id}-counts-changelog"
            ).values()
        )
        == RECORDS
    )


@pytest.mark.ci
@pytest.mark.parametrize("guarantee", EACH_GUARANTEE)
def test_results_of_which_each_fits_arrive_where_the_batches_of_the_client_do_not(
    kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    """The size limits of the topic and of the changelog allow two records at once."""
    source, sink, dead = (
        kafka.topic("in"),
        kafka.topic("out", max_message_bytes="2000"),
        kafka.topic("dead"),
    )
    builder = StreamsBuilder(kafka.unique("batches"))
    stream = builder.stream(source, key=serdes.text, value=serdes.raw)
    stream.to(sink)
    stream.group_by_key().reduce(lambda _, value: value, store="last")
    topology = builder.build()
    [changelog] = [topic.name for topic in topology.internal_topics]
    any_time = str(1000 * HOUR_MS)
    kafka.create(
        changelog,
        cleanup_policy="compact",
        max_message_bytes="2000",
        message_timestamp_after_max_ms=any_time,
    )
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(40):
        producer.produce(source, b"x" * 900, f"key-{number}", 0)
    assert producer.flush(60) == 0
    given = settings(kafka, tmp_path, guarantee, dead, "fail") | {
        "producer.linger.ms": 50
    }

    def keys(topic: str) -> list[bytes | None]:
        return [record.key for record in read_topic(kafka.bootstrap, topic)]

    with CoopStreams(topology, given):
        eventually(
            lambda: all(len(set(keys(topic))) == 40 for topic in (sink, changelog)),
            120,
            lambda: f"{keys(sink)}, {keys(changelog)}",
        )
    if guarantee == "exactly_once_v2":
        assert keys(sink) == [b"key-%d" % number for number in range(40)]


@pytest.mark.ci
@pytest.mark.parametrize("guarantee", EACH_GUARANTEE)
def test_what_the_settings_of_a_topic_do_not_explain_ends_the_instance_with_the_offset_it_comes_from(
    kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    """The compressed size is unknown here: only the client computes it."""
    source, sink, dead = (
        kafka.topic("in"),
        kafka.topic("out", max_message_bytes="2000"),
        kafka.topic("dead"),
    )
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(source, random.Random(7).randbytes(5000), "key", 0)
    assert producer.flush(60) == 0
    given = settings(kafka, tmp_path, guarantee, dead, "continue") | {
        "producer.compression.type": "gzip"
    }
    error = failure_of(
        CoopStreams(copying(kafka.unique("compressed"), source, sink), given)
    )
    assert isinstance(error, RefusedError)
    for part in (
        "The settings of the topics do not explain it",
        f'"{source}" partition 0 offset',
        sink,
    ):
        assert part in str(error)


@pytest.mark.ci
def test_limits_are_those_of_the_broker_to_the_byte_and_in_time(kafka: Kafka) -> None:
    log = KafkaLog({"bootstrap.servers": kafka.bootstrap})
    names = {
        "size": kafka.topic("size", max_message_bytes="1000"),
        "keys": kafka.topic("keys", cleanup_policy="compact"),
        "time": kafka.topic("time"),
    }
    now = int(time.time() * 1000)
    headers = [("trace", b"x" * 70), ("none", None)]
    fits = next(
        b"v" * size
        for size in range(900, 0, -1)
        if batch_bytes(b"key", b"v" * size, headers) <= 1000
    )
    cases: Mapping[tuple[str, bytes | None, bytes, int], bool] = {
        ("size", b"key", fits, now): True,
        ("size", b"key", fits + b"v", now): False,
        ("keys", None, b"", now): False,
        ("keys", b"", b"", now): True,
        ("time", None, b"", now + HOUR_MS - 60_000): True,
        ("time", None, b"", now + HOUR_MS + 60_000): False,
    }
    for (topic, key, value, timestamp), taken in cases.items():
        limits = TopicLimits.of(log.topic_config(names[topic]), compressed=False)
        assert (not limits.reasons(key, value, headers, timestamp, now)) == taken
        writer = log.writer()
        writer.append(
            names[topic], [key], [value], [timestamp], partitions=0, headers=[headers]
        )
        if taken:
            writer.flush(60)
        else:
            with pytest.raises(RefusedError):
                writer.flush(60)
        writer.close()
    log.close()
