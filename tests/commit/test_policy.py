"""The policy topic: defaults, and the last settings, on the memory log and on a real
Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coopstreams.commit import cluster_policy
from coopstreams.commit.cluster_policy import Policy, PolicyTopic
from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import Log, TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.topology.errors import ConfigError, LogError, UnknownTopicError


@pytest.fixture(
    params=[
        "memory",
        pytest.param("kafka", marks=[pytest.mark.broker, pytest.mark.slow]),
    ]
)
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    """Return a cluster with the topic `orders` and no policy. The policy topic belongs
    to the cluster, so each test starts a Kafka.
    """
    cluster: Log = MemoryLog()
    if request.param == "kafka":
        broker: KafkaBroker = request.getfixturevalue("broker_of_own")()
        cluster = KafkaLog({"bootstrap.servers": broker.bootstrap})
    cluster.create_topics([TopicSpec("orders", 2, replication=1)])
    yield cluster
    cluster.close()


def test_a_policy_is_what_was_set_last_and_else_the_default(log: Log) -> None:
    mine, others = PolicyTopic(log), PolicyTopic(log)
    assert mine.read() == Policy()
    assert mine.read().accepts_individual_commit
    assert not mine.read().accepts_range_fetch("orders")
    assert not mine.read().reserves_values("orders")

    others.set("accept.range.fetch", True, "orders")
    others.set("reserve.message.value.range.fetch", True, "orders")
    assert mine.read().accepts_range_fetch("orders")
    assert mine.read().reserves_values("orders")
    assert not mine.read().accepts_range_fetch("payments")

    others.set("accept.individual.commit", False)
    assert not mine.read().accepts_individual_commit
    assert not mine.read().accepts_range_fetch("orders"), (
        "nobody shares where nobody may commit out of order"
    )

    others.set("accept.individual.commit", None)
    others.set("accept.range.fetch", False, "orders")
    assert (
        mine.read()
        == PolicyTopic(log).read()
        == Policy(
            {
                ("orders", "accept.range.fetch"): False,
                ("orders", "reserve.message.value.range.fetch"): True,
            }
        )
    )
    for topic in (mine, others):
        topic.close()


def test_a_topic_that_was_made_anew_is_read_from_its_beginning() -> None:
    log = MemoryLog()
    log.create_topics([TopicSpec("orders", 2)])
    mine = PolicyTopic(log)
    for name, value in (
        ("accept.range.fetch", True),
        ("accept.range.fetch", None),
        ("accept.range.fetch", True),
    ):
        mine.set(name, value, "orders")
    assert mine.read().accepts_range_fetch("orders")
    log.delete_topics([cluster_policy.TOPIC])
    PolicyTopic(log).set("accept.individual.commit", False)
    assert mine.read() == Policy({("", "accept.individual.commit"): False})


def test_compaction_changes_nothing() -> None:
    log = MemoryLog()
    log.create_topics([TopicSpec("orders", 1)])
    topic = PolicyTopic(log)
    for accepts in (True, False, True):
        topic.set("accept.range.fetch", accepts, "orders")
    before = topic.read()
    log.compact(cluster_policy.TOPIC)
    assert (
        PolicyTopic(log).read()
        == before
        == Policy({("orders", "accept.range.fetch"): True})
    )
    assert log.topic_config(cluster_policy.TOPIC)["cleanup.policy"] == "compact"


def test_a_setting_at_the_wrong_level_or_of_no_topic_is_an_error_with_a_cure() -> None:
    topic = PolicyTopic(MemoryLog())
    with pytest.raises(
        ConfigError,
        match=r'the cluster has no setting "accept.range.fetch"; name the topic\. There are: accept.individual.commit',
    ):
        topic.set("accept.range.fetch", True)
    with pytest.raises(ConfigError, match="it is one of the cluster"):
        topic.set("accept.individual.commit", True, "orders")
    with pytest.raises(
        ConfigError, match=r'a topic has no setting "accept\.everything"'
    ):
        Policy().get("accept.everything", "orders")
    with pytest.raises(UnknownTopicError, match='no topic "ordres"'):
        topic.set("accept.range.fetch", True, "ordres")
    assert topic.read() == Policy()


def test_a_setting_of_a_later_version_is_let_through_and_rubbish_is_not() -> None:
    log = MemoryLog()
    log.create_topics([TopicSpec(cluster_policy.TOPIC, 1)])
    writer = log.writer()
    writer.append(
        cluster_policy.TOPIC, [b'["accept.more",""]'], [b"true"], [0], partitions=0
    )
    writer.flush(1)
    assert PolicyTopic(log).read().accepts_individual_commit
    topic = PolicyTopic(log)
    key = b'["accept.individual.commit",""]'
    writer.append(
        cluster_policy.TOPIC, [b"rubbish", key], [b"true", b"no"], [0, 0], partitions=0
    )
    for _ in range(2):  # it waits for no record that it has read
        with pytest.raises(LogError, match="record at offset 1 that is no setting"):
            topic.read()
    writer.append(cluster_policy.TOPIC, [b"rubbish"], [None], [0], partitions=0)
    with pytest.raises(LogError, match="record at offset 2 that is no setting"):
        topic.read()
    topic.set("accept.individual.commit", False)
    assert not topic.read().accepts_individual_commit
    assert not PolicyTopic(log).read().accepts_individual_commit, (
        "which reads all of it"
    )
