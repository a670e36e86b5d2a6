"""`coopstreams policy` on a real Kafka: a setting is printed, and consumers obey it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner, Result

from coopstreams.commit.cluster_policy import PolicyTopic
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.topology.errors import ConfigError, UnknownTopicError
from tests.command_line import app
from tests.conftest import Kafka


def run(kafka: Kafka, *arguments: str) -> Result:
    return CliRunner().invoke(
        app,
        ["policy", *arguments, "--bootstrap-servers", kafka.bootstrap],
        env={"COLUMNS": "200"},
    )


def row(result: Result, *words: str) -> list[str]:
    """The cells of the one line that has these words."""
    (line,) = [
        line
        for line in result.stdout.splitlines()
        if all(word in line.split() for word in words)
    ]
    return line.split()


@pytest.mark.ci
@pytest.mark.broker
def test_what_is_set_for_a_topic_is_printed_and_obeyed_until_it_is_the_default_again(
    kafka: Kafka,
) -> None:
    topic = kafka.topic("orders")
    assert row(run(kafka, "get", "--topic", topic), topic, "accept.range.fetch")[
        2:4
    ] == ["false", "(default)"]

    done = run(
        kafka,
        "set",
        "accept.range.fetch=true",
        "reserve.message.value.range.fetch=TRUE",
        "--topic",
        topic,
    )
    assert done.exit_code == 0, done.output
    assert f"{topic}: accept.range.fetch is true now" in done.stdout
    assert row(run(kafka, "get"), topic, "accept.range.fetch")[2] == "true"
    assert row(run(kafka, "get"), "cluster", "accept.individual.commit")[2:4] == [
        "true",
        "(default)",
    ]

    log = KafkaLog({"bootstrap.servers": kafka.bootstrap})
    policies = PolicyTopic(log)
    assert policies.read().accepts_range_fetch(topic)
    run(kafka, "set", "accept.range.fetch=default", "--topic", topic)
    assert not policies.read().accepts_range_fetch(topic)
    policies.close()
    log.close()


@pytest.mark.ci
@pytest.mark.broker
def test_mistakes_are_errors_with_a_cure(kafka: Kafka) -> None:
    topic = kafka.topic("orders")
    for arguments, kind, cure in [
        (
            ["set", "accept.range.fetch=yes", "--topic", topic],
            ConfigError,
            "write NAME=true",
        ),
        (["set", "accept.range.fetch=true"], ConfigError, "name the topic"),
        (
            ["set", "accept.range.fetch=true", "--topic", "no-such-topic"],
            UnknownTopicError,
            "Create it first",
        ),
    ]:
        error = run(kafka, *arguments).exception
        assert isinstance(error, kind)
        assert cure in str(error)
