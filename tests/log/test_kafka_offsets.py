"""Offsets read and committed by a client that is no member, on a real Kafka: metadata, search by time, refusals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from coopstreams.log.kafka.offsets import KafkaOffsets
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import GroupError, LogError
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker
BEGIN_MS = 1_700_000_000_000


@pytest.fixture
def group(kafka: Kafka) -> str:
    return kafka.unique("offsets")


@pytest.fixture
def offsets(kafka: Kafka, group: str) -> Iterator[KafkaOffsets]:
    made = KafkaOffsets({"bootstrap.servers": kafka.bootstrap, "consumer.group.id": "another"}, group)
    yield made
    made.close()


def test_offsets_are_set_with_metadata_for_a_group_that_never_was(kafka: Kafka, offsets: KafkaOffsets) -> None:
    topic = kafka.topic("source", 3)
    participants = [TopicPartition(topic, number) for number in range(3)]
    assert offsets.committed(participants) == {}
    offsets.commit({participants[0]: (5, "ic 77 0"), participants[2]: (0, "ic -1 0")})
    assert offsets.committed(participants) == {participants[0]: (5, "ic 77 0"), participants[2]: (0, "ic -1 0")}


def test_a_group_with_members_keeps_its_offsets(kafka: Kafka, group: str, offsets: KafkaOffsets) -> None:
    topic = kafka.topic("source")
    member = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "enable.auto.commit": False})
    member.subscribe([topic])
    try:
        eventually(
            lambda: member.poll(0.1) is None and bool(member.assignment()),
            90,
            lambda: "the member was never assigned anything",
        )
        with pytest.raises(GroupError, match="has members"):
            offsets.commit({TopicPartition(topic, 0): (5, "")})
        assert offsets.committed([TopicPartition(topic, 0)]) == {}
    finally:
        member.close()


def test_an_offset_is_found_by_time_where_there_is_one(kafka: Kafka, offsets: KafkaOffsets) -> None:
    topic = kafka.topic("source", 2, retention_ms="-1")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(10):
        producer.produce(topic, b"x", None, 0, timestamp=BEGIN_MS + number)
    assert producer.flush(60) == 0
    participants = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    assert offsets.at_time(participants, BEGIN_MS + 7) == {participants[0]: 7, participants[1]: None}
    assert offsets.at_time(participants, BEGIN_MS + 10) == {participants[0]: None, participants[1]: None}
    assert [offsets.stable(participant) for participant in participants] == [10, 0]


@pytest.mark.parametrize("before", [True, False])
def test_of_an_offset_and_that_of_a_transaction_the_one_that_was_sent_later_counts(
    kafka: Kafka, group: str, offsets: KafkaOffsets, before: bool
) -> None:
    """The simulated cluster does the same: `tests/simulation/kafka/test_faults.py`."""
    participant = TopicPartition(kafka.topic("source"), 0)
    member = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": kafka.unique("tx")})
    producer.init_transactions(60)
    producer.begin_transaction()
    if before:
        offsets.commit({participant: (9, "")})
    producer.send_offsets_to_transaction([KafkaPartition(*participant, 5)], member.consumer_group_metadata(), 60)
    if not before:
        offsets.commit({participant: (9, "")})
    producer.commit_transaction(60)
    member.close()
    assert offsets.committed([participant])[participant][0] == (5 if before else 9)


def test_a_group_has_no_offsets_of_a_topic_that_was_deleted(kafka: Kafka, group: str, offsets: KafkaOffsets) -> None:
    """The simulated cluster does the same: `tests/simulation/kafka/test_faults.py`."""
    participant = TopicPartition(kafka.topic("source"), 0)
    offsets.commit({participant: (5, "")})
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([participant.topic])[participant.topic].result(60)
    eventually(
        lambda: offsets.committed([participant]) == {}, 60, lambda: "the offset of a deleted topic is still there"
    )


def test_a_topic_that_is_not_there_is_an_error(offsets: KafkaOffsets) -> None:
    with pytest.raises(LogError):
        offsets.stable(TopicPartition("no-such-topic", 0))
