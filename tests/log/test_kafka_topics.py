"""Topic descriptions from the controller."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from coopstreams.commit import cluster_policy, record
from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import TopicSpec
from coopstreams.preflight import last_version
from coopstreams.spark import outbox
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import FencedError, UnknownTopicError
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


@pytest.mark.ci
def test_the_controller_says_whether_a_topic_is_missing(kafka: Kafka) -> None:
    """A broker with old metadata reports new topics as missing."""
    log = KafkaLog({"bootstrap.servers": kafka.bootstrap})
    topic, none = kafka.topic("there"), kafka.unique("missing")
    assert log._exists(topic)
    assert not log._exists(none)
    with pytest.raises(UnknownTopicError, match=none):
        log.end_offset(TopicPartition(none, 0))
    with pytest.raises(UnknownTopicError, match=none):
        log.stable_offsets([TopicPartition(none, 0)])
    assert none not in kafka.topics()
    log.close()


@pytest.mark.ci
def test_a_topic_that_is_asked_for_is_not_created_where_brokers_would_create_it(
    broker_to_break: KafkaBroker,
) -> None:
    log = KafkaLog({"bootstrap.servers": broker_to_break.bootstrap})
    assert log.partitions(["asked-for"]) == {}
    log.create_topics([TopicSpec("made-after-that", 3)])
    assert log.partitions(["asked-for", "made-after-that"]) == {"made-after-that": 3}
    assert "asked-for" not in log.partitions()
    log.close()


def test_the_replicas_of_a_topic_are_those_of_the_last_list(kafka: Kafka) -> None:
    log = KafkaLog({"bootstrap.servers": kafka.bootstrap})
    topic, none = kafka.topic("there", 3), kafka.unique("missing")
    assert log.replicas(topic) == 0, "nothing was listed"
    log.partitions()
    assert (log.replicas(topic), log.replicas(none)) == (1, 0)
    log.close()


@pytest.mark.parametrize(
    "spec",
    [
        record.topic_spec(partitions=1),
        cluster_policy.topic_spec(),
        last_version.topic_spec("application"),
        outbox.marks_spec("application", "run", 1, -1),
    ],
    ids=lambda spec: spec.name,
)
def test_a_host_whose_clock_is_days_ahead_can_write_what_has_no_time_of_its_own(
    kafka: Kafka, spec: TopicSpec
) -> None:
    log = KafkaLog({"bootstrap.servers": kafka.bootstrap})
    topic = kafka.unique("own")
    log.create_topics([replace(spec, name=topic)])
    writer = log.writer()
    writer.append(
        topic, [b"k"], [b"v"], [int(time.time() * 1000) + 48 * 3_600_000], partitions=0
    )
    writer.flush(30)
    writer.close()
    assert log.end_offset(TopicPartition(topic, 0)) == 1
    log.close()


def test_the_precondition_of_a_request_is_asked_before_each_attempt() -> None:
    """A client may be suspended between two attempts, longer than its group waits for
    it.
    """
    log = KafkaLog({"bootstrap.servers": "localhost:1"}, timeout_s=8.0)
    asked = list[str]()

    def check(topic: str) -> None:
        asked.append(topic)
        if len(asked) == 2:
            raise FencedError("it was removed from the group")

    with pytest.raises(FencedError, match="removed from the group"):
        log.delete_before(TopicPartition("forwarded", 0), 5, check)
    assert asked == ["forwarded"] * 2
    log.close()
