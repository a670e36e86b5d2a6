"""Cooperative fetch on a real Kafka: records of one partition are delivered to many
members, without keys or order; each is done once unless a member dies.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from coopstreams.commit.cluster_policy import PolicyTopic
from coopstreams.consumer.cooperative_fetch import CooperativeFetch
from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.share_consumer import AcquiredRecord
from coopstreams.log.log import TopicSpec
from coopstreams.topology.errors import (
    ConfigError,
    IndividualCommitNotAllowedError,
    LogError,
    TopicRangeFetchNotAllowedError,
    UnknownTopicError,
)
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

PATIENCE_S = 90.0
GAP_MS = 8000
"""Longer than a busy machine pauses."""


def write(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 0, "batch.num.messages": 100}
    )
    for i in range(count):
        producer.produce(topic, b"%d" % i)  # no key
    producer.flush()


def workable(bootstrap: str, topic: str) -> None:
    """Make a topic whose records may be delivered by a share group."""
    log = KafkaLog({"bootstrap.servers": bootstrap})
    log.create_topics([TopicSpec(topic, 1, replication=1)])
    PolicyTopic(log).set("accept.range.fetch", True, topic)
    log.close()


def member(
    bootstrap: str, group: str, topic: str, **settings: object
) -> CooperativeFetch:
    consumer = CooperativeFetch(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            **{k.replace("_", "."): v for k, v in settings.items()},
        }
    )
    consumer.subscribe([topic])
    return consumer


def first(consumer: CooperativeFetch, most: int = 1000) -> list[AcquiredRecord]:
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        if records := consumer.consume(most, 1.0):
            return records
    raise AssertionError("nothing came")


@pytest.fixture
def topic(kafka: Kafka) -> str:
    topic = kafka.unique("work")
    workable(kafka.bootstrap, topic)
    return topic


@pytest.mark.parametrize(("gap_ms", "said"), [(60_000, 1), (45_000, 0)])
def test_records_that_are_promised_for_longer_than_the_session_are_worth_a_warning(
    kafka: Kafka, topic: str, gap_ms: int, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    group = kafka.unique("share")
    member(kafka.bootstrap, group, topic, max_gap_wait_ms=gap_ms).close()
    told = [one.getMessage() for one in caplog.records if group in one.getMessage()]
    assert len(told) == said
    assert not said or "is removed after 45000 ms" in told[0]


@pytest.mark.ci
def test_three_members_share_one_partition_and_each_record_is_done_once(
    kafka: Kafka, topic: str
) -> None:
    """Records are written as fast as they are processed, until each member, even a late
    one, has had some.
    """
    group, records = kafka.unique("share"), 0
    done: Counter[int] = Counter()
    shares: Counter[str] = Counter()
    lock, over = threading.Lock(), threading.Event()

    def work(name: str) -> None:
        consumer = member(kafka.bootstrap, group, topic)
        while not over.is_set():
            for record in consumer.consume(200, 0.5):
                with lock:
                    done[record.offset] += 1
                    shares[name] += 1
                assert consumer.done(record)
            assert consumer.commit() == {}
        consumer.close()

    def drained() -> bool:
        return len(done) >= records

    threads = [threading.Thread(target=work, args=[name]) for name in "abc"]
    for thread in threads:
        thread.start()
    give_up = time.monotonic() + PATIENCE_S
    try:
        while records < 5000 or (
            len(shares) < len(threads) and time.monotonic() < give_up
        ):
            write(kafka.bootstrap, topic, 500)
            records += 500
            eventually(drained, PATIENCE_S, lambda: f"not all is done: {shares}")
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert done == Counter(range(records))
    assert sorted(shares) == ["a", "b", "c"]

    late = member(kafka.bootstrap, group, topic)
    write(kafka.bootstrap, topic, 1)
    assert [record.offset for record in first(late)] == [records], (
        "what is done is not dealt again"
    )
    late.close()


@pytest.mark.slow
def test_what_a_dead_member_had_is_delivered_again_after_the_gap_wait(
    broker_of_own: Callable[..., KafkaBroker],
) -> None:
    broker = broker_of_own(group_share_min_record_lock_duration_ms="1000")
    workable(broker.bootstrap, "work")
    write(broker.bootstrap, "work", 10)
    hangs = member(broker.bootstrap, "g", "work", max_gap_wait_ms=GAP_MS)
    had: list[AcquiredRecord] = []
    while len(had) < 10:  # perhaps not all at once
        had += first(hangs)
    assert [record.offset for record in had] == list(range(10))
    for record in had[:4]:
        assert hangs.done(record)
    assert hangs.commit() == {}

    other = member(broker.bootstrap, "g", "work", max_gap_wait_ms=GAP_MS)
    again: list[AcquiredRecord] = []
    while len(again) < 6:  # perhaps not all at once
        some = first(other)
        again += some
        for record in some:
            assert other.done(record)
    assert [(record.offset, record.deliveries) for record in again] == [
        (offset, 2) for offset in range(4, 10)
    ]
    assert not hangs.done(had[4]), "too late: the other has it"
    assert hangs.consume(10, 0.0) == [], "its time is over: it lets go"
    assert not hangs.done(had[5])
    assert other.commit() == {}
    for consumer in (hangs, other):
        consumer.close()


def test_a_record_that_is_released_is_delivered_again_and_one_that_is_out_holds_up_the_next_batch(
    kafka: Kafka, topic: str
) -> None:
    consumer = member(kafka.bootstrap, kafka.unique("share"), topic)
    write(kafka.bootstrap, topic, 2)
    some = first(consumer, most=1)
    some += first(consumer, most=1)
    assert [(record.offset, record.deliveries) for record in some] == [(0, 1), (1, 1)]
    assert consumer.done(some[0])
    assert consumer.consume(10, 0.2) == []
    assert consumer.release(some[1])
    assert [(record.offset, record.deliveries) for record in first(consumer)] == [
        (1, 2)
    ]
    consumer.close()


def test_consume_takes_0_records_and_leaves_those_that_wait(
    kafka: Kafka, topic: str
) -> None:
    """As a caller that counts down may ask for. It let the locks of the others end."""
    consumer = member(kafka.bootstrap, kafka.unique("share"), topic)
    write(kafka.bootstrap, topic, 2)
    (one,) = first(consumer, most=1)
    assert consumer.consume(0, 0.1) == []
    assert consumer.done(one)
    while not (other := consumer.consume(1, 1.0)):
        assert consumer.consume(0, 0.1) == []
    assert [(record.offset, record.deliveries) for record in other] == [(1, 1)]
    consumer.close()


def test_nobody_deals_records_of_a_topic_whose_order_counts(
    kafka: Kafka, topic: str
) -> None:
    group = kafka.unique("share")
    ordered = kafka.topic("ordered")
    with pytest.raises(
        TopicRangeFetchNotAllowedError,
        match=f"policy set accept.range.fetch=true --topic {ordered}",
    ) as refused:
        member(kafka.bootstrap, group, ordered)
    assert refused.value.code == 89
    with pytest.raises(UnknownTopicError, match="no topic nowhere"):
        member(kafka.bootstrap, group, "nowhere")
    with pytest.raises(ConfigError, match=r"group\.id is not set"):
        CooperativeFetch({"bootstrap.servers": kafka.bootstrap})


def test_a_group_of_consumers_is_no_share_group(kafka: Kafka, topic: str) -> None:
    """The client says so once; then nothing came, for ever."""
    group = kafka.unique("consumers")
    ordinary = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    ordinary.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    ordinary.close()
    consumer = member(kafka.bootstrap, group, topic)
    for _ in range(2):
        with pytest.raises(
            LogError, match=f"share group {group}: .*A group of consumers has its name"
        ):
            first(consumer)
    consumer.close()


def test_settings_may_be_references_and_are_checked(
    kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_AT", kafka.bootstrap)
    write(kafka.bootstrap, topic, 1)
    consumer = member("${env:KAFKA_AT}", kafka.unique("share"), topic)
    assert [record.offset for record in first(consumer)] == [0]
    consumer.close()
    with pytest.raises(
        ConfigError,
        match=r"max\.gap\.wait\.ms = 'soon': must be a whole number of at least 1",
    ):
        member(kafka.bootstrap, kafka.unique("share"), topic, max_gap_wait_ms="soon")


@pytest.mark.slow
def test_a_cluster_that_takes_no_individual_commits_deals_nothing(
    broker_of_own: Callable[..., KafkaBroker],
) -> None:
    broker = broker_of_own()
    workable(broker.bootstrap, "work")
    log = KafkaLog({"bootstrap.servers": broker.bootstrap})
    PolicyTopic(log).set("accept.individual.commit", False)
    log.close()
    with pytest.raises(IndividualCommitNotAllowedError) as refused:
        member(broker.bootstrap, "g", "work")
    assert refused.value.code == 88
