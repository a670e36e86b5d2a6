"""A backfill writes dead letters as a running application does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from coopstreams import StreamsBuilder, serdes
from coopstreams.spark import Options, backfill
from coopstreams.topology.records import TimestampedRecord
from tests.broker.reading import read_topic
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


def at_of(record: TimestampedRecord[Any, Any]) -> int:
    value: Any = record.value
    return value["at"]  # type: ignore[no-any-return]


@pytest.mark.ci
def test_a_letter_has_kafkas_timestamp_if_none_could_be_extracted(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    source, out, dead = kafka.topic("in"), kafka.topic("out"), kafka.topic("dead")
    builder = StreamsBuilder(kafka.unique("letters"))
    builder.stream(source, key=serdes.text, value=serdes.json, timestamp=at_of).to(out)
    kafka.write(
        source,
        [("a", '{"at": 5000}'), ("b", "no JSON"), ("c", "{}")],
        timestamp=1_700_000_000_000,
    )
    config = {
        "bootstrap.servers": kafka.bootstrap,
        "deserialization.exception.handler": "dead-letter",
        "processing.exception.handler": "dead-letter",
        "errors.dead.letter.queue.topic.name": dead,
    }
    backfill(
        builder.build(),
        config,
        spark=spark,
        options=Options(outputs="topic", work=str(tmp_path)),
    )
    assert [
        (record.key, record.timestamp) for record in read_topic(kafka.bootstrap, out)
    ] == [(b"a", 5000)]
    assert sorted(
        (record.key, record.timestamp) for record in read_topic(kafka.bootstrap, dead)
    ) == [
        (b"b", 1_700_000_000_000),
        (b"c", 1_700_000_000_000),
    ]
