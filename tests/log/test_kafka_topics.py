"""Topic descriptions from the controller."""

from __future__ import annotations

import pytest

from coopstreams.log.kafka.log import KafkaLog
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import UnknownTopicError
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


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
