"""Spark's own connector instead of our data source: the same rows in the same order,
and the same refusals.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as everybody calls it

from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.time_marks import headers_of
from coopstreams.spark import Options, backfill
from coopstreams.spark.history.jvm_source import java_settings, jvm_frame, kafka_options
from coopstreams.spark.history.kafka_source import read_options
from coopstreams.spark.history.sources import kafka_frame
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError
from tests.broker.counting import Counting
from tests.common.test_security import CERTIFICATE, KEY
from tests.conftest import Kafka
from tests.spark.test_kafka_source import transactions, write

CONNECTOR = [
    # The newest version of which Maven Central has every jar; users get `--packages` of
    # their version of Spark.
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
]

FAILED = (PySparkException, Py4JJavaError)
"""An error of the connector in a task has no class here, because the driver got the jar
later.
"""


def test_a_session_without_the_connector_is_told_what_to_install(
    spark: SparkSession,
) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"--packages org\.apache\.spark:spark-sql-kafka-0-10_2\.13:{spark.version}",
    ):
        jvm_frame(spark, {"bootstrap.servers": "nowhere:1"}, "topic", {0: (0, 1)})


def test_the_java_client_is_told_who_we_are_in_its_own_words() -> None:
    authorities = (
        ssl.get_default_verify_paths().cafile
        or ssl.get_default_verify_paths().openssl_cafile
    )
    assert java_settings(
        {
            "bootstrap.servers": "kafka:9093",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "me",
            "sasl.password": 'a "word"',
            "ssl.ca.location": authorities,
            "consumer.group.id": "application",
            "producer.linger.ms": 5,
            "socket.keepalive.enable": True,
        }
    ) == {
        "bootstrap.servers": "kafka:9093",
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authorities,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": 'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" '
        'password="a \\"word\\"";',
    }


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"security.protocol": "SSL", "ssl.cipher.suites": "DEFAULT"},
            "ssl.cipher.suites cannot be told to the Java client",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
            "sasl.mechanism GSSAPI cannot be told",
        ),
    ],
)
def test_what_the_java_client_cannot_be_told_is_refused(
    settings: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        java_settings({"bootstrap.servers": "kafka:9092", **settings})


def test_spark_shows_no_secret_among_the_options_of_its_connector(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The key of a certificate was shown: neither `ssl.keystore.key` nor a key matches
    Spark's redaction.
    """
    (tmp_path / "cert.pem").write_text(CERTIFICATE)
    (tmp_path / "key.pem").write_text(KEY)
    options = kafka_options(
        {
            "bootstrap.servers": "kafka:9093",
            "security.protocol": "SASL_SSL",
            "ssl.certificate.location": str(tmp_path / "cert.pem"),
            "ssl.key.location": str(tmp_path / "key.pem"),
            "ssl.key.password": "pw",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "me",
            "sasl.password": "swordfish",
        }
    )
    own = read_options({"sasl.password": "swordfish"}, {})
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    shown = (
        session.sessionState()
        .conf()
        .redactOptions(jvm.PythonUtils.toScalaMap({**options, **own}))
        .toString()
    )
    assert CERTIFICATE in shown
    for secret in (KEY.splitlines()[1], "pw,", "swordfish"):
        assert secret not in shown


@pytest.fixture(scope="module")
def with_connector(spark: SparkSession) -> SparkSession:
    """Return a session with the connector, beside that of the other tests."""
    session = spark.newSession()
    for package in CONNECTOR:
        session.sql(f"ADD JAR 'ivy://{package}?transitive=false'")
    return session


@pytest.mark.ci
def test_a_session_beside_one_that_has_read_reads_as_well(spark: SparkSession) -> None:
    """The first session is active, and Spark looks for sources of the same name there."""
    for session in (spark, spark.newSession()):
        frame = kafka_frame(
            session, {"bootstrap.servers": "nowhere:1"}, "topic", {0: (0, 1)}
        )
        assert "offset" in frame.columns


def placed(rows: DataFrame) -> list[list[Row]]:
    """Return the rows of each Spark partition, as a task takes them."""
    found: dict[int, list[Row]] = {}
    for row in rows.withColumn("at", F.spark_partition_id()).collect():
        found.setdefault(row["at"], []).append(
            Row(**{name: value for name, value in row.asDict().items() if name != "at"})
        )
    return sorted(found.values(), key=lambda part: (part[0].partition, part[0].offset))


@pytest.mark.broker
@pytest.mark.slow
def test_both_connectors_give_the_same_rows(
    kafka: Kafka, with_connector: SparkSession
) -> None:
    topic = kafka.topic("both", 2, retention_ms="-1")
    settings = {"bootstrap.servers": kafka.bootstrap}
    with transactions(kafka) as producer:
        write(producer, topic, 0, 99)
        write(producer, topic, 100, 149, commit=False)
        write(producer, topic, 150, 1199)
        producer.begin_transaction()
        for number in range(700):
            producer.produce(topic, b"w%d" % number, b"k", 1, timestamp=number)
        producer.commit_transaction(30)
        write(producer, topic, 1200, 1210, commit=False)
        producer.begin_transaction()
        producer.produce(topic, None, None, 1, timestamp=900, headers=headers_of(900))  # type: ignore[arg-type]
        producer.commit_transaction(30)
    cluster = KafkaLog(settings)
    end = cluster.end_offset(TopicPartition(topic, 0))
    cluster.close()
    assert end == 1211 + 4  # a marker after each transaction
    for bounds in (
        {0: (0, end), 1: (0, 701)},
        {1: (690, 703)},  # ends with a time mark
        {0: (3, 101), 1: (700, 701)},  # ends after a marker; has only a marker
        {0: (60, 120), 1: (5, 300)},  # ends among aborted records
        {0: (200, 200), 1: (7, 8)},  # one is empty
    ):
        for marks in (False, True):
            ours = placed(
                kafka_frame(with_connector, settings, topic, bounds, time_marks=marks)
            )
            theirs = placed(
                jvm_frame(with_connector, settings, topic, bounds, time_marks=marks)
            )
            assert theirs == ours
            assert ours
            assert (ours[-1][-1].timestamp == 900) == (
                marks and bounds == {1: (690, 703)}
            )


@pytest.mark.broker
@pytest.mark.slow
def test_records_that_are_gone_and_open_transactions_are_errors_there_too(
    kafka: Kafka, with_connector: SparkSession
) -> None:
    topic = kafka.topic("gone", retention_ms="-1")
    settings = {"bootstrap.servers": kafka.bootstrap}
    with transactions(kafka) as producer:
        write(producer, topic, 0, 9)
        producer.begin_transaction()
        producer.produce(topic, b"open", b"k", 0)
        producer.flush(10)
        assert jvm_frame(with_connector, settings, topic, {0: (0, 11)}).count() == 10
        with pytest.raises(FAILED):
            jvm_frame(
                with_connector, settings, topic, {0: (0, 12)}, patience_s=2
            ).collect()
        producer.abort_transaction(30)
    kafka.delete_before(topic, 0, 5)
    with pytest.raises(FAILED):
        jvm_frame(with_connector, settings, topic, {0: (0, 11)}, patience_s=5).collect()


@pytest.mark.broker
@pytest.mark.slow
def test_a_backfill_may_read_with_it(
    kafka: Kafka, with_connector: SparkSession, tmp_path: Path
) -> None:
    counting = Counting.make(kafka, partitions=2)
    written = counting.write(f"key-{number % 30}" for number in range(900))
    options = Options(ranges=2, work=str(tmp_path), connector="jvm")
    done = backfill(
        counting.topology,
        {"bootstrap.servers": kafka.bootstrap},
        spark=with_connector,
        options=options,
    )
    assert done.plan.connector == "jvm"
    assert done.records == 900
    assert counting.counts() == written
