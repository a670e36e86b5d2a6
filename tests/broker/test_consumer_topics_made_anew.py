"""Consumers whose topic is deleted, or deleted and made anew, on a real Kafka."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping

import pytest

from coopstreams.commit.group_progress import list_consumer_group_offsets
from coopstreams.consumer import ConsumerRecord, CooperativeConsumer, KeyRange
from coopstreams.log.log import TopicSpec
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from tests.broker.consuming import Orders, finish, read

pytestmark = pytest.mark.broker

STARTS: Mapping[str, Callable[[Orders], CooperativeConsumer]] = {
    "alone": lambda orders: orders.alone([]),
    "two ranges": lambda orders: orders.alone(list(KeyRange.split(2))),
    "member": lambda orders: orders.member(),
}


@pytest.fixture(autouse=True)
def _certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """One broker is never behind another one."""
    monkeypatch.setattr("coopstreams.commit.positions.DOUBT_S", 0.0)


@pytest.mark.ci
@pytest.mark.parametrize("start", STARTS)
def test_a_topic_made_anew_is_read_from_its_beginning(
    start: str, orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    """Individual commits outlive the topic; ten of these fifteen records were taken for
    done.
    """
    orders.write(11)
    before = STARTS[start](orders)
    finish(before, read(before, 11), lambda offset: offset != 0)
    before.commit(metadata="of the topic before")
    before.close()
    orders.remake(15)
    assert list_consumer_group_offsets(orders.login, orders.group) in (
        {},
        {orders.at: None},
    )
    after = STARTS[start](orders)
    with caplog.at_level(logging.WARNING, "coopstreams"):
        records = read(after, 15)
    assert sorted(record.offset for record in records) == list(range(15))
    assert f"group '{orders.group}' committed in it" in caplog.text
    finish(after, records)
    after.commit()
    found = after.committed([orders.at])[orders.at]
    assert found is not None
    assert (found.offset, found.ranges, found.metadata) == (15, (), "")


@pytest.mark.parametrize(
    ("start", "more"), [("alone", 25), ("two ranges", 25), ("member", 5)]
)
def test_a_topic_that_is_made_anew_under_a_running_consumer_is_read_from_its_beginning(
    start: str, more: int, orders: Orders
) -> None:
    """Each call of `consume` said that the offset was out of range, also when the new
    topic had grown past it.
    """
    orders.write(10)
    consumer = STARTS[start](orders)
    finish(consumer, read(consumer, 10), lambda offset: offset != 3)
    consumer.commit()
    orders.remake(more)
    got = consume_until(
        consumer, lambda got: {record.offset for record in got} >= set(range(more))
    )
    counting = [record for record in got if record.owned.live]
    assert sorted(record.offset for record in counting) == list(range(more))
    finish(consumer, counting)
    assert consumer.commit().last_stable_offset == {orders.at: more}


@pytest.mark.slow
def test_a_topic_that_is_deleted_does_not_hold_up_the_others(orders: Orders) -> None:
    other = f"other-{uuid.uuid4().hex[:8]}"
    orders.log.create_topics([TopicSpec(other, 1)])
    consumer = orders.make()
    consumer.subscribe([orders.topic, other])
    orders.write(10)
    finish(consumer, read(consumer, 10), lambda offset: offset != 3)
    writer = orders.log.writer()
    writer.append(other, [b"k"], [b"v"], [1])
    writer.flush(60)
    finish(consumer, read(consumer, 1))
    orders.log.delete_topics([other])
    got = consume_until(
        consumer, lambda _: TopicPartition(other, 0) not in consumer.assignment()
    )
    orders.write(5)
    got += consume_until(consumer, lambda got: len(got) >= 5)
    assert [record.offset for record in got] == list(range(10, 15))
    finish(consumer, got)
    assert consumer.commit().ranges == {orders.at: ((0, 2), (4, 14))}
    writer.close()


def consume_until(
    consumer: CooperativeConsumer, enough: Callable[[list[ConsumerRecord]], bool]
) -> list[ConsumerRecord]:
    """Return what a consumer gets until it is enough; errors that a program may survive
    are survived.
    """
    got: list[ConsumerRecord] = []
    until, trouble = time.monotonic() + 90, "none"
    while not enough(got):
        assert time.monotonic() < until, (
            f"{[record.offset for record in got]}, {trouble}"
        )
        try:
            got += consumer.consume(100, 0.2)
        except LogError as error:
            trouble = repr(error)
    return got
