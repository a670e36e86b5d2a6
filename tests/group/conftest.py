"""Fixtures of the group's tests: an application of one partition on the shared Kafka,
and a topic to commit offsets for.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coopstreams.topology.columns import TopicPartition
from tests.conftest import Kafka
from tests.group.instances import Application, application


@pytest.fixture
def app(kafka: Kafka) -> Iterator[Application]:
    """An application on one partition."""
    with application(kafka.bootstrap, kafka.unique("group"), 1) as app:
        yield app


@pytest.fixture
def partition(kafka: Kafka) -> TopicPartition:
    return TopicPartition(kafka.topic("input"), 0)
