"""The history of a topic by Spark's own connector, `spark-sql-kafka-0-10`, instead of
our data source: no Python reads.

The connector is a package that the session must already have; nothing is downloaded
here.

Invariant: the rows and Spark partitions equal those of our data source: committed
records only, up to the cut, in offset order. Turned down: the connector as a sink (it
has no transactions).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from coopstreams.common.security import Security, is_security
from coopstreams.log.time_marks import HEADER
from coopstreams.spark.history.arrow_rows import HISTORY, ddl
from coopstreams.spark.history.kafka_source import PATIENCE_S
from coopstreams.topology.errors import ConfigError

_SAME = ("bootstrap.servers", "client.id")
_OTHERS = (
    "producer.",
    "admin.",
    "socket.",
    "broker.",
    "metadata.",
    "topic.metadata.",
    "reconnect.",
    "client.",
    "group.id",
)
"""Prefixes of settings that do not affect access. They tune librdkafka; Java's client
does not know them.
"""
_FOR_SPARK = "This is a secret.\n"
"""A line above the text of a key in PEM, which readers of PEM skip (RFC 7468, 2)."""
_HEADERS = ddl(HISTORY).rpartition("`headers` ")[2]


def jvm_frame(
    spark: SparkSession,
    settings: Mapping[str, Any],
    topic: str,
    bounds: Mapping[int, tuple[int, int]],
    *,
    patience_s: float = PATIENCE_S,
    time_marks: bool = False,
) -> DataFrame:
    """Return the records of a topic within these offsets; with `time_marks`, time marks
    too.

    `patience_s`: a task's longest wait for its next record.

    Raises:
        ConfigError: the session lacks the connector, or a setting has no equivalent in
        the Java client.
    """
    options = {
        **kafka_options(settings),
        "assign": json.dumps({topic: list(bounds)}),
        "startingOffsets": json.dumps(
            {topic: {str(number): start for number, (start, _) in bounds.items()}}
        ),
        "endingOffsets": json.dumps(
            {topic: {str(number): end for number, (_, end) in bounds.items()}}
        ),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "kafkaConsumer.pollTimeoutMs": str(int(patience_s * 1000)),
        "kafka.isolation.level": "read_committed",
    }
    try:
        rows = spark.read.format("kafka").options(**options).load()
        rows.schema  # noqa: B018 with Spark Connect nothing is looked up before somebody asks
    except PySparkException as error:
        if "find data source: kafka" not in str(error):
            raise
        package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}"
        raise ConfigError(
            f"this session of Spark has no Kafka connector. Start it with --packages {package} (spark.jars.packages; "
            "for `coopstreams backfill`, "
            f'PYSPARK_SUBMIT_ARGS="--packages {package} pyspark-shell"), or read with connector python, which needs '
            "none"
        ) from error
    if not time_marks:
        rows = rows.where(
            f"key is not null or value is not null or not coalesce(headers[0].key = '{HEADER}', false)"
        )
    return rows.selectExpr(
        "topic",
        "partition",
        "offset",
        "unix_millis(timestamp) as timestamp",
        "key",
        "value",
        f"cast(headers as {_HEADERS}) as headers",
    )


def kafka_options(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return these settings, in librdkafka's names, as options of Spark's connector.
    Spark redacts the secrets.

    Raises:
        ConfigError: settings have no equivalent.
    """
    java = java_settings(settings)
    if (key := java.get("ssl.keystore.key")) is not None:
        # By default Spark hides an option with `secret`, `password`, `token` or `access
        # key` in its name or in its value (`spark.redaction.regex`). All our secrets
        # have one but this one.
        java["ssl.keystore.key"] = _FOR_SPARK + key
    return {f"kafka.{name}": value for name, value in java.items()}


def java_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return these settings, in librdkafka's names, as settings of the Java client.

    Raises:
        ConfigError: settings have no equivalent; the message names them.
    """
    given = {
        name.removeprefix("consumer."): str(value)
        for name, value in settings.items()
        if not is_security(name) and not name.startswith(("producer.", "admin."))
    }
    java = {name: given.pop(name) for name in _SAME if name in given} | Security.of(
        settings
    ).java()
    if unsaid := sorted(name for name in given if not name.startswith(_OTHERS)):
        raise ConfigError(
            f"connector jvm: {', '.join(unsaid)} cannot be told to the Java client; read with connector python"
        )
    return java
