"""The last stable offset, on a real Kafka; below an open transaction: `tests/spark/test_kafka_source.py`."""

from __future__ import annotations

from contextlib import closing

import pytest

from coopstreams.log.kafka.offsets import KafkaOffsets
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


def test_a_topic_that_is_not_there_is_an_error(kafka: Kafka) -> None:
    with closing(KafkaOffsets({"bootstrap.servers": kafka.bootstrap}, "any")) as offsets, pytest.raises(LogError):
        offsets.stable(TopicPartition("no-such-topic", 0))
