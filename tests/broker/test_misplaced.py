"""A producer with librdkafka's own partitioner: log, status and "not found" say that
queries by key go wrong.
"""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from coopstreams import CoopStreams, StreamsBuilder, serdes
from coopstreams.query.client import QueryClient
from tests.broker.counting import await_running
from tests.broker.waiting import eventually
from tests.command_line import app as cli
from tests.conftest import Kafka

KEYS = [f"key-{number}" for number in range(24)]


@pytest.mark.ci
@pytest.mark.broker
def test_records_of_another_partitioner_are_noticed(
    kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.topic("orders", 3)
    builder = StreamsBuilder(kafka.unique("misplaced"))
    builder.stream(topic, key=serdes.text, value=serdes.raw).group_by_key().count(
        store="counts"
    )
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for key in KEYS:
        producer.produce(topic, b"", key)
    assert producer.flush(30) == 0
    with (
        caplog.at_level(logging.WARNING, "coopstreams.tasks.misplaced_topics"),
        CoopStreams(builder.build(), kafka.config(tmp_path)) as app,
        QueryClient(str(app.url)) as queries,
    ):
        await_running([app])
        eventually(
            lambda: [entry.key for entry in queries.range("counts")] == sorted(KEYS),
            60,
            lambda: "no counts",
        )
        [line] = [
            record.message
            for record in caplog.records
            if record.name == "coopstreams.tasks.misplaced_topics"
        ]
        assert line.startswith(
            f"producers of {topic} do not choose partitions as Java does"
        )
        [instance] = queries.status()["instances"]
        assert [
            reason["message"]
            for reason in instance["reasons"]
            if reason["code"] == "partitioner"
        ] == [line]
        assert instance["ready"]
        missing = next(key for key in KEYS if queries.get("counts", key) is None)
        answer = httpx.get(
            f"{app.url}/v1/stores/counts/keys/{missing}", trust_env=False, timeout=60
        ).json()
        assert answer["error"] == "KEY_NOT_FOUND"
        assert f"It may be in another one: producers of {topic}" in answer["message"]
        told = CliRunner().invoke(cli, ["query", str(app.url), "counts", missing])
        assert (told.exit_code, told.stderr) == (1, answer["message"] + "\n")
