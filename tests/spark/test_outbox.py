"""One transaction for each task, however often it is tried: on a real Kafka, without Spark."""

from __future__ import annotations

import pytest

from coopstreams.common.config import Config
from coopstreams.spark.outbox import Outbox, Seeds, cluster_of, marks_spec
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.outputs import Output
from coopstreams.topology.errors import FencedError, LogError
from tests.broker.reading import read_topic
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


def config_for(kafka: Kafka, tasks: int) -> Config:
    """Return the configuration of an application, with the marks of its run `r`."""
    config = Config.of({"bootstrap.servers": kafka.bootstrap, "application.id": kafka.unique("outbox")})
    cluster = cluster_of(config)
    cluster.create_topics([marks_spec(config["application.id"], "r", tasks, -1)])
    cluster.close()
    return config


def filled(topic: str, value: bytes) -> Output:
    output = Output(topic)
    output.keys.append(b"key")
    output.values.append(value)
    output.timestamps.append(1_700_000_000_000)
    output.give_headers([("h", value)])
    return output


def test_an_attempt_after_a_commit_finds_the_result_and_has_nothing_to_write(kafka: Kafka) -> None:
    config, topic = config_for(kafka, 2), kafka.topic("out")
    changelog = kafka.topic("changelog", 2)
    first = Outbox(config, "r", 1)
    assert first.mark is None
    first.write(filled(topic, b"one"))
    assert first.seed(Seeds(TopicPartition(changelog, 1), [(b"k", b"v", 5), (b"l", b"w", 6)])) == 2
    first.commit("the result")
    again = Outbox(config, "r", 1)
    assert again.mark == "the result"
    again.close()
    first.close()
    assert [(record.value, record.headers) for record in read_topic(kafka.bootstrap, topic)] == [
        (b"one", {"h": b"one"})
    ]
    assert [
        (record.key, record.value, record.timestamp, record.partition)
        for record in read_topic(kafka.bootstrap, changelog)
    ] == [
        (b"k", b"v", 5, 1),
        (b"l", b"w", 6, 1),
    ]


def test_an_attempt_that_lives_on_cannot_commit_any_more(kafka: Kafka) -> None:
    config, topic = config_for(kafka, 1), kafka.topic("out")
    zombie = Outbox(config, "r", 0)
    zombie.write(filled(topic, b"stale"))
    successor = Outbox(config, "r", 0)
    assert successor.mark is None
    with pytest.raises((FencedError, LogError)):
        zombie.commit("stale")
    successor.write(filled(topic, b"true"))
    successor.commit("true")
    zombie.close()
    successor.close()
    assert [record.value for record in read_topic(kafka.bootstrap, topic)] == [b"true"]


def test_what_another_task_left_open_keeps_nobody_waiting(kafka: Kafka) -> None:
    config, topic = config_for(kafka, 2), kafka.topic("out")
    dead = Outbox(config, "r", 0)
    dead.write(filled(topic, b"open"))
    other = Outbox(config, "r", 1)
    other.commit("done")
    assert Outbox(config, "r", 1).mark == "done"
    other.close()
    dead.close()
