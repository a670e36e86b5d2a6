"""Kafka for Spark, on a real Kafka: a read ends exactly at the cut, and a write counts
once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from coopstreams import StreamsBuilder, TimeWindows, serdes
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.time_marks import headers_of
from coopstreams.spark import Options, backfill
from coopstreams.spark.history import kafka_source
from coopstreams.spark.history.kafka_source import (
    KafkaParts,
    KafkaSource,
    read_options,
    write_options,
)
from coopstreams.topology.columns import TopicPartition
from tests.broker.reading import read_topic
from tests.conftest import Kafka
from tests.durations import ms

pytestmark = pytest.mark.broker
BEGIN_MS = 1_700_000_000_000


@contextmanager
def transactions(kafka: Kafka) -> Iterator[Producer]:
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "transactional.id": kafka.unique("source"),
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(90)
    yield producer


def write(
    producer: Producer, topic: str, first: int, last: int, *, commit: bool = True
) -> None:
    """Write numbers first..last in a transaction."""
    producer.begin_transaction()
    for number in range(first, last + 1):
        headers = [("n", str(number).encode()), ("n", None)] if number % 2 else None
        value = None if number % 5 == 0 else b"v%d" % number
        producer.produce(
            topic,
            value,
            None if number % 7 == 0 else b"k%d" % number,
            0,
            timestamp=BEGIN_MS + number,
            headers=headers or [],  # type: ignore[arg-type]
        )
    producer.flush(90)
    if commit:
        producer.commit_transaction(90)
    else:
        producer.abort_transaction(90)


def test_the_patience_of_a_read_is_with_kafka_and_not_with_what_takes_its_records(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, taken = kafka.topic("source", retention_ms="-1"), list[int]()
    kafka.write(topic, [(b"key", b"value", at) for at in range(20)])
    now = 0
    monkeypatch.setattr(kafka_source, "FETCH_RECORDS", 5)
    parts = KafkaParts(
        read_options(
            {"bootstrap.servers": kafka.bootstrap}, {TopicPartition(topic, 0): (0, 20)}
        )
    )
    (part,) = parts.partitions()
    monkeypatch.setattr(kafka_source, "time", SimpleNamespace(monotonic=lambda: now))
    for rows in parts.read(part):
        taken += rows.column("offset").to_pylist()
        now += 3600
    assert taken == list(range(20))


@pytest.mark.parametrize(
    ("given", "most_ms"),
    [({}, 900_000), ({"producer.transaction.timeout.ms": 5000}, 5000)],
)
def test_a_write_may_take_as_long_as_brokers_allow_unless_settings_say_otherwise(
    given: dict[str, int], most_ms: int
) -> None:
    """A broker ends a transaction that is open for longer: then no attempt of a large
    partition could succeed.
    """
    (shipped,) = (
        value
        for name, value in write_options(given, "copy").items()
        if name != "transactional.id"
    )
    assert json.loads(shipped)["producer.transaction.timeout.ms"] == most_ms


def read(
    spark: SparkSession, kafka: Kafka, topic: str, start: int, end: int, **given: float
) -> DataFrame:
    spark.dataSource.register(KafkaSource)
    options = read_options(
        {"bootstrap.servers": kafka.bootstrap},
        {TopicPartition(topic, 0): (start, end)},
        **given,  # type: ignore[arg-type]
    )
    return spark.read.format("coopstreams").options(**options).load()


def test_a_read_ends_exactly_at_its_cut_and_leaves_out_what_was_aborted(
    kafka: Kafka, spark: SparkSession
) -> None:
    topic = kafka.topic("source", retention_ms="-1")
    with transactions(kafka) as producer:
        write(producer, topic, 0, 9)  # offsets 0..9, the marker at 10
        write(producer, topic, 10, 19, commit=False)  # 11..20, 21
        write(producer, topic, 20, 39)  # 22..41, 42
    whole = read(spark, kafka, topic, 0, 43).collect()
    numbers = [*range(10), *range(20, 40)]
    assert [row.timestamp - BEGIN_MS for row in whole] == numbers
    assert [row.offset for row in whole] == [
        number if number < 10 else number + 2 for number in numbers
    ]
    assert [row.key for row in whole] == [
        None if number % 7 == 0 else b"k%d" % number for number in numbers
    ]
    assert [row.value for row in whole] == [
        None if number % 5 == 0 else b"v%d" % number for number in numbers
    ]
    headers = [
        None if row.headers is None else [tuple(header) for header in row.headers]
        for row in whole
    ]
    assert headers == [
        [("n", str(number).encode()), ("n", None)] if number % 2 else None
        for number in numbers
    ]
    assert [row.offset for row in read(spark, kafka, topic, 5, 25).collect()] == [
        5,
        6,
        7,
        8,
        9,
        22,
        23,
        24,
    ]
    split = read(spark, kafka, topic, 0, 43, split=10)
    assert sorted(row.offset for row in split.collect()) == [
        row.offset for row in whole
    ]
    assert split.rdd.getNumPartitions() == 5


@pytest.mark.ci
def test_a_cut_in_an_open_transaction_is_an_error_after_a_while(
    kafka: Kafka, spark: SparkSession
) -> None:
    topic = kafka.topic("source", retention_ms="-1")
    with transactions(kafka) as producer:
        write(producer, topic, 0, 3)
        producer.begin_transaction()
        producer.produce(topic, b"open", b"k", 0)
        producer.flush(90)
        with closing(KafkaLog({"bootstrap.servers": kafka.bootstrap})) as log:
            at = TopicPartition(topic, 0)
            assert log.stable_offsets([at]) == {at: 5}
        assert read(spark, kafka, topic, 0, 5).count() == 4
        with pytest.raises(PySparkException, match="a transaction is open there"):
            read(spark, kafka, topic, 0, 6, patience_s=1.0).count()
        producer.abort_transaction(90)


@pytest.mark.parametrize("time_marks", [False, True])
def test_time_marks_are_read_if_they_are_asked_for(
    kafka: Kafka, time_marks: bool
) -> None:
    topic = kafka.topic()
    with closing(KafkaLog(kafka.settings)) as log, closing(log.writer()) as writer:
        writer.append(
            topic,
            [b"a", None, b"b"],
            [b"1", None, b"2"],
            [10, 50, 20],
            headers=[None, headers_of(50), None],
        )
        writer.flush(90)
    parts = KafkaParts(
        read_options(
            kafka.settings, {TopicPartition(topic, 0): (0, 3)}, time_marks=time_marks
        )
    )
    rows = [
        row
        for part in parts.partitions()
        for some in parts.read(part)
        for row in some.to_pylist()
    ]
    assert [row["offset"] for row in rows] == ([0, 1, 2] if time_marks else [0, 2])


@pytest.mark.ci
def test_a_backfill_closes_windows_at_the_time_marks_of_a_topic(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    topic, builder = kafka.topic(retention_ms="-1"), StreamsBuilder(kafka.unique("app"))
    with closing(KafkaLog(kafka.settings)) as log, closing(log.writer()) as writer:
        marks = [None, headers_of(60_000), None]
        writer.append(
            topic,
            [b"a", None, b"a"],
            [b"1", None, b"2"],
            [1000, 60_000, 2000],
            headers=marks,
        )
        writer.flush(90)
    values = builder.stream(
        topic, key=serdes.text, value=serdes.text, idle_advance=timedelta(seconds=20)
    )
    values.group_by_key().windowed_by(TimeWindows(seconds=10, grace=ms(0))).reduce(
        str.__add__
    ).to_stream().to(kafka.topic("out"))
    options = Options(seed=False, outputs="table", work=str(tmp_path))
    done = backfill(builder.build(), kafka.settings, spark=spark, options=options)
    assert [bytes(row.value) for row in done.outputs(spark).collect()] == [b"1"], (
        "the other one is late"
    )


def test_a_cut_above_the_end_is_an_error(kafka: Kafka, spark: SparkSession) -> None:
    topic = kafka.topic("source", retention_ms="-1")
    with pytest.raises(PySparkException, match="ends at 0, the read at 6"):
        read(spark, kafka, topic, 0, 6).count()


@pytest.mark.ci
def test_records_that_are_gone_are_an_error(kafka: Kafka, spark: SparkSession) -> None:
    topic = kafka.topic("source", retention_ms="-1")
    with transactions(kafka) as producer:
        write(producer, topic, 0, 9)
    kafka.delete_before(topic, 0, 5)
    with pytest.raises(PySparkException, match=f"{topic}-0"):
        read(spark, kafka, topic, 0, 10).count()


@pytest.mark.ci
def test_what_is_written_counts_once_though_a_task_fails_in_the_middle(
    kafka: Kafka, spark: SparkSession
) -> None:
    topic = kafka.topic("sink", 3, retention_ms="-1")
    spark.dataSource.register(KafkaSource)

    def stumble(batches):  # type: ignore[no-untyped-def]
        from pyspark import TaskContext

        for number, batch in enumerate(batches):
            context = TaskContext.get()
            assert context is not None
            if number == 1 and context.attemptNumber() == 0:
                raise RuntimeError("injected, after a batch was written")
            yield batch

    rows = spark.range(0, 30_000, 1, 2).selectExpr(
        f"'{topic}' as topic",
        "cast(null as int) as partition",
        "0L as offset",
        f"{BEGIN_MS}L + id as timestamp",
        "cast(concat('k', id) as binary) as key",
        "cast(cast(id as string) as binary) as value",
        "array(named_struct('name', 'n', 'value', cast('h' as binary))) as headers",
    )
    options = write_options(
        {"bootstrap.servers": kafka.bootstrap}, kafka.unique("sink")
    )
    rows.mapInArrow(stumble, rows.schema).write.format("coopstreams").options(
        **options
    ).mode("append").save()
    found = read_topic(kafka.bootstrap, topic)
    assert sorted(int(record.value or b"") for record in found) == list(range(30_000))
    assert {record.partition for record in found} == {0, 1, 2}
    assert all(
        record.timestamp == BEGIN_MS + int(record.value or b"")
        and record.headers == {"n": b"h"}
        for record in found
    )
