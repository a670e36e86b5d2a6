"""An administrator's requests about a group, on a real Kafka."""

from __future__ import annotations

from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from coopstreams.admin.application_reset import check_stopped
from coopstreams.group.admin import GroupAdmin
from coopstreams.group.codec import decode_assignment, decode_subscription
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import GroupError
from tests.broker.waiting import eventually
from tests.conftest import Kafka
from tests.group.instances import Application

pytestmark = pytest.mark.broker


def test_a_group_without_members_takes_commits_and_says_what_it_has(
    kafka: Kafka,
) -> None:
    topic = kafka.topic("input", 2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with GroupAdmin(
        {"bootstrap.servers": kafka.bootstrap}, kafka.unique("group")
    ) as admin:
        assert admin.describe().state == "Dead"
        assert admin.committed() == {}
        admin.commit({first: (5, note := "é" * 1000)})
        assert admin.describe().state == "Empty"
        assert admin.committed() == {first: (5, note)}
        assert admin.committed([first, second]) == {first: (5, note), second: None}


def test_a_group_with_members_refuses_commits_and_says_who_is_in_it(
    kafka: Kafka, app: Application, partition: TopicPartition
) -> None:
    app.start("a", host="host-1")
    app.start("b", host="host-2")
    app.complete("a", "b")
    with GroupAdmin({"bootstrap.servers": kafka.bootstrap}, app.group) as admin:
        with pytest.raises(GroupError, match="has members: stop them"):
            admin.commit({partition: (5, "")})
        assert admin.committed([partition]) == {partition: None}
        group = admin.describe()
    assert (group.state, len(group.members)) == ("Stable", 2)
    hosts = {
        decode_subscription(member.subscription, member.id).info.host
        for member in group.members
    }
    assert hosts == {"host-1", "host-2"}
    tasks = [
        task
        for member in group.members
        for task in decode_assignment(member.assignment, member.id).tasks
    ]
    assert sorted(tasks) == sorted(
        task for instance in app.instances.values() for task in instance.tasks
    )


def test_a_group_whose_members_speak_a_newer_protocol_is_not_taken_for_one_without_members(
    kafka: Kafka,
) -> None:
    """`coopstreams reset` deleted the changelogs of an application of Kafka Streams
    while it ran.
    """
    topic, group = kafka.topic("input", 1), kafka.unique("group")
    stranger = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
        }
    )
    stranger.subscribe([topic])
    with GroupAdmin({"bootstrap.servers": kafka.bootstrap}, group) as admin:
        with closing(stranger):
            eventually(
                lambda: bool(stranger.poll(0.1) or stranger.assignment()),
                60,
                lambda: "no assignment",
            )
            found = admin.describe()
            assert (found.state, found.protocol) == ("Stable", "consumer")
            assert found.members_text == "members (of the protocol consumer)"
            with pytest.raises(
                GroupError,
                match=r"has members \(of the protocol consumer\): stop all instances",
            ):
                check_stopped(admin)
        eventually(
            lambda: admin.describe().members_text == "",
            60,
            lambda: str(admin.describe()),
        )
        check_stopped(admin)


@pytest.mark.parametrize("before", [True, False])
def test_of_an_offset_and_that_of_a_transaction_the_one_that_was_sent_later_counts(
    kafka: Kafka, partition: TopicPartition, before: bool
) -> None:
    """The simulated cluster does the same: `tests/simulation/kafka/test_faults.py`."""
    group = kafka.unique("group")
    member = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": kafka.unique("tx")}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    with GroupAdmin({"bootstrap.servers": kafka.bootstrap}, group) as admin:
        if before:
            admin.commit({partition: (9, "")})
        producer.send_offsets_to_transaction(
            [KafkaPartition(*partition, 5)], member.consumer_group_metadata(), 60
        )
        if not before:
            admin.commit({partition: (9, "")})
        producer.commit_transaction(60)
        member.close()
        assert admin.committed([partition]) == {partition: (5 if before else 9, "")}


def test_a_group_has_no_offsets_of_a_topic_that_was_deleted(
    kafka: Kafka, partition: TopicPartition
) -> None:
    """The simulated cluster does the same: `tests/simulation/kafka/test_faults.py`."""
    with GroupAdmin(
        {"bootstrap.servers": kafka.bootstrap}, kafka.unique("group")
    ) as admin:
        admin.commit({partition: (5, "")})
        client = AdminClient({"bootstrap.servers": kafka.bootstrap})
        client.delete_topics([partition.topic])[partition.topic].result(60)
        eventually(
            lambda: admin.committed([partition]) == {partition: None},
            60,
            lambda: "the offset of a deleted topic is still there",
        )


def test_brokers_that_are_not_there_are_an_error_that_says_so() -> None:
    with pytest.raises(
        GroupError, match=r"cannot reach the brokers at 127\.0\.0\.1:1:"
    ):
        GroupAdmin({"bootstrap.servers": "127.0.0.1:1"}, "group", timeout_s=1.0)
