"""Commits inside a transaction of the user's producer, on a real Kafka."""

from __future__ import annotations

import threading
import uuid

import pytest
from confluent_kafka import Producer

from coopstreams.consumer import ConsumerRecord, CooperativeConsumer, KeyRange
from coopstreams.log.log import TopicSpec
from coopstreams.topology.errors import (
    FencedError,
    GroupError,
    LogError,
    MembershipLostError,
)
from coopstreams.topology.keys import WHOLE
from tests.broker.consuming import Orders, finish, nothing_more, poll_until, read
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually

pytestmark = pytest.mark.broker


@pytest.fixture
def out(orders: Orders) -> str:
    name = f"out-{uuid.uuid4().hex[:8]}"
    orders.log.create_topics([TopicSpec(name, 1)])
    return name


def producer_of(consumer: CooperativeConsumer, bootstrap: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": consumer.transactional_id,
            "retry.backoff.ms": 5,
        }
    )
    producer.init_transactions(90)
    return producer


def arrives(orders: Orders, topic: str, *values: bytes) -> None:
    """Assert that a topic soon has these records: Kafka writes the markers of a commit
    after it has answered.
    """

    def found() -> list[bytes | None]:
        return [record.value for record in read_topic(orders.kafka.bootstrap, topic)]

    eventually(lambda: len(found()) == len(values), 90, lambda: str(found()))
    assert found() == list(values)


@pytest.mark.ci
def test_results_and_commits_count_together_or_not_at_all(
    orders: Orders, out: str
) -> None:
    orders.write(40)
    consumer = orders.member()
    producer = producer_of(consumer, orders.kafka.bootstrap)
    records = read(consumer, 20)
    with consumer.transaction(producer):
        for record in records:
            producer.produce(out, record.value, record.key, 0)
            consumer.done(record)
    failing = read(consumer, 20)

    def fail() -> None:
        with consumer.transaction(producer):
            for record in failing:
                producer.produce(out, record.value, record.key, 0)
                consumer.done(record)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    again = read(consumer, 20)
    assert [record.offset for record in again] == list(range(20, 40)), (
        "what did not count is handed out again"
    )
    finish(consumer, failing)  # a record of a lost share: no effect
    with consumer.transaction(producer):
        for record in again:
            producer.produce(out, b"again " + (record.value or b""), record.key, 0)
            consumer.done(record)
    arrives(
        orders,
        out,
        *(b"v%d" % n for n in range(20)),
        *(b"again v%d" % n for n in range(20, 40)),
    )
    committed = consumer.committed([orders.at])[orders.at]
    assert committed is not None
    assert committed.offset == 40
    nothing_more(consumer)


@pytest.mark.ci
def test_out_of_order_commits_are_part_of_the_transaction(
    orders: Orders, out: str
) -> None:
    orders.write(10)
    consumer = orders.member()
    producer = producer_of(consumer, orders.kafka.bootstrap)
    records = read(consumer, 10)
    with consumer.transaction(producer):
        finish(consumer, records, lambda offset: offset in (2, 3, 7))
        producer.produce(out, b"x", b"k", 0)
    committed = consumer.committed([orders.at])[orders.at]
    assert committed is not None
    assert (committed.offset, committed.ranges) == (0, ((2, 3), (7, 7)))


@pytest.mark.ci
def test_a_producer_whose_transaction_others_have_ended_is_replaced_by_a_new_one(
    orders: Orders, out: str
) -> None:
    """The client refuses everything from then on: a program that only went on got its
    records again for ever.
    """
    orders.write(3)
    consumer = orders.member()
    producer = producer_of(consumer, orders.kafka.bootstrap)
    records = read(consumer, 3)

    def work(taking_over: bool) -> None:
        with consumer.transaction(producer):
            for record in records:
                producer.produce(out, record.value, record.key, 0)
                consumer.done(record)
            assert producer.flush(90) == 0
            if taking_over:
                producer_of(consumer, orders.kafka.bootstrap)

    for taking_over in (True, False):
        with pytest.raises(
            FencedError,
            match="This producer cannot be used again: go on with a new one",
        ):
            work(taking_over)
        records = read(consumer, 3)
    producer = producer_of(consumer, orders.kafka.bootstrap)
    work(False)
    arrives(orders, out, b"v0", b"v1", b"v2")


def test_transactions_need_a_group(orders: Orders) -> None:
    consumer = orders.alone([])
    with pytest.raises(GroupError, match="subscribe"), consumer.transaction(None):
        pass


@pytest.mark.ci
def test_in_offset_order_a_transaction_waits_for_those_before_it(
    orders: Orders, out: str
) -> None:
    """The proposal's purgatory: A has the smaller offsets, B the larger ones; B's
    commit waits for A's.
    """
    first, second = (
        orders.make(commit_order="offset"),
        orders.make(commit_order="offset"),
    )
    for consumer in (first, second):
        consumer.subscribe([orders.topic])
    poll_until(
        lambda: (
            first.assignment() and second.assignment() and not first.to_be_revoked()
        ),
        first,
        second,
    )
    (mine,) = first.assignment()[orders.at]
    (others,) = second.assignment()[orders.at]
    assert {mine, others} == set(KeyRange.split(2))
    orders.write(60)
    a, b = (
        read(first, len(orders.offsets_of(mine))),
        read(second, len(orders.offsets_of(others))),
    )
    order: list[str] = []

    def commit(
        name: str,
        consumer: CooperativeConsumer,
        producer: Producer,
        records: list[ConsumerRecord],
    ) -> None:
        with consumer.transaction(producer):
            for record in records:
                producer.produce(out, name.encode(), record.key, 0)
                consumer.done(record)
        order.append(name)

    early, late = (
        (("A", first, a), ("B", second, b))
        if a[0].offset < b[0].offset
        else (("B", second, b), ("A", first, a))
    )
    producers = {
        name: producer_of(consumer, orders.kafka.bootstrap)
        for name, consumer, _ in (early, late)
    }
    waits = threading.Thread(
        target=commit,
        args=(
            late[0],
            late[1],
            producers[late[0]],
            [r for r in late[2] if r.offset > early[2][0].offset],
        ),
    )
    waits.start()
    waits.join(1.0)
    assert waits.is_alive(), "it waits for what comes before"
    commit(early[0], early[1], producers[early[0]], early[2])
    waits.join(90)
    assert order == [early[0], late[0]]


@pytest.mark.ci
def test_a_transaction_that_waits_for_too_long_is_aborted(
    orders: Orders, out: str
) -> None:
    first, second = (
        orders.member(),
        orders.make(commit_order="offset", transaction_timeout_ms=2000),
    )
    second.subscribe([orders.topic])
    poll_until(
        lambda: (
            first.assignment() and second.assignment() and not first.to_be_revoked()
        ),
        first,
        second,
    )
    orders.write(60)
    (others,) = second.assignment()[orders.at]
    records = read(second, len(orders.offsets_of(others)))
    last = records[-1]
    producer = producer_of(second, orders.kafka.bootstrap)

    def wait() -> None:
        with second.transaction(producer):
            producer.produce(out, b"too early", last.key, 0)
            second.done(last)

    with pytest.raises(LogError, match=r"commit\.order=offset"):
        wait()
    assert read_topic(orders.kafka.bootstrap, out) == []


def test_nothing_is_committed_beside_an_open_transaction(
    orders: Orders, out: str
) -> None:
    orders.write(10)
    consumer = orders.member()
    producer = producer_of(consumer, orders.kafka.bootstrap)
    finish(consumer, read(consumer, 10))
    with consumer.transaction(producer):
        producer.produce(out, b"x", b"k", 0)
        for commit in (
            consumer.commit,
            consumer.consume,
            lambda: consumer.commit_ranges({orders.at: [(0, 3)]}),
        ):
            with pytest.raises(GroupError, match="a transaction is open"):
                commit()
    arrives(orders, out, b"x")


@pytest.mark.ci
def test_results_of_records_that_were_lost_are_aborted(
    orders: Orders, out: str
) -> None:
    orders.write(10)
    consumer = orders.make(max_poll_interval_ms=3000)
    consumer.subscribe([orders.topic])
    producer = producer_of(consumer, orders.kafka.bootstrap)
    old = read(consumer, 10)
    second = orders.member()
    taken = poll_until(lambda: second.assignment() == {orders.at: (WHOLE,)}, second)
    finish(second, taken + read(second, 10 - len(taken)))
    poll_until(consumer.lost, consumer, second)
    poll_until(lambda: consumer.assignment() and second.assignment(), consumer, second)

    def write() -> None:
        with consumer.transaction(producer):
            for record in old:
                producer.produce(out, record.value, record.key, 0)
                consumer.done(record)

    with pytest.raises(MembershipLostError, match="have another owner"):
        write()
    assert read_topic(orders.kafka.bootstrap, out) == []
