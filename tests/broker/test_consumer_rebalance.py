"""A group of consumers in one process, on a real Kafka: sharing, release without
stopping, lost key ranges.
"""

from __future__ import annotations

from contextlib import closing

import pytest

from coopstreams.commit.cluster_policy import PolicyTopic
from coopstreams.consumer import ConsumerRecord, KeyRange
from coopstreams.consumer.consumer_session import Ranges
from coopstreams.consumer.ownership import Shared
from coopstreams.topology.keys import WHOLE, key_hash
from tests.broker.consuming import Orders, finish, nothing_more, poll_until, read
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

LEFT, RIGHT = KeyRange.split(2)


@pytest.mark.ci
def test_a_second_member_gets_half_of_the_partition_and_the_rest_of_its_records(
    orders: Orders,
) -> None:
    orders.write(300)
    first = orders.member()
    told: list[tuple[str, Ranges]] = []
    records = read(first, 100)
    assert first.assignment() == {orders.at: (WHOLE,)}
    finish(first, records)
    assert first.commit().last_stable_offset == {orders.at: 100}

    second = orders.make()
    second.subscribe(
        [orders.topic], on_assign=lambda ranges: told.append(("assign", ranges))
    )
    records = poll_until(
        lambda: first.assignment() and second.assignment(), first, second
    )
    (mine,), (others,) = first.assignment()[orders.at], second.assignment()[orders.at]
    assert {mine, others} == {LEFT, RIGHT}
    assert told == [("assign", {orders.at: (others,)})]
    orders.write(100)
    records = [record for record in records if record.owned.live]
    records += read(
        first,
        len([n for n in orders.offsets_of(mine) if n >= 100])
        - sum(record.key_range == mine for record in records),
    )
    records += read(
        second,
        len([n for n in orders.offsets_of(others) if n >= 100])
        - sum(record.key_range == others for record in records),
    )
    assert sorted(record.offset for record in records) == list(range(100, 400)), (
        "each once, but for what had not been done"
    )
    assert all(key_hash(record.key or b"") in record.key_range for record in records)


@pytest.mark.ci
def test_what_is_to_be_revoked_is_finished_first_and_the_rest_goes_on(
    orders: Orders,
) -> None:
    orders.write(200)
    first = orders.member()
    records = read(first, 200)
    second = orders.member()
    poll_until(first.to_be_revoked, first, second)
    assert first.to_be_revoked() == {orders.at: (WHOLE,)}
    for _ in range(5):
        assert first.delay_revoke(first.to_be_revoked())
        assert first.consume(100, 0.1) == [], (
            "nothing is handed out of what is to be revoked"
        )
        assert second.consume(100, 0.1) == [], "nobody else has it yet"
    finish(first, records, lambda offset: offset % 2 == 0)
    poll_until(lambda: first.assignment() and second.assignment(), first, second)
    assert not first.to_be_revoked()
    assert not first.lost()


@pytest.mark.ci
def test_records_done_before_the_revocation_are_not_done_again(orders: Orders) -> None:
    orders.write(200)
    first = orders.member()
    records = read(first, 200)
    second = orders.member()
    poll_until(first.to_be_revoked, first, second)
    finish(first, records, lambda offset: offset % 2 == 0)
    again = poll_until(
        lambda: first.assignment() and second.assignment(), first, second
    )
    while len(again) < 100:
        again += first.consume(500, 0.1) + second.consume(500, 0.1)
    assert sorted(record.offset for record in again) == list(range(1, 200, 2))


@pytest.mark.ci
def test_after_the_deadline_it_is_lost(orders: Orders) -> None:
    orders.write(100)
    first = orders.make(max_revoke_delay_ms=500)
    lost: list[Ranges] = []
    first.subscribe([orders.topic], on_lost=lost.append)
    records = read(first, 100)
    second = orders.member()
    poll_until(first.to_be_revoked, first, second)
    while first.to_be_revoked():
        first.delay_revoke(first.to_be_revoked())
        second.consume(1, 0.05)
        first.consume(1, 0.05)
    assert first.lost() == {orders.at: (WHOLE,)}
    assert lost == [{orders.at: (WHOLE,)}]
    assert not first.delay_revoke([orders.at])
    finish(first, records)
    first.commit()  # nothing of lost key ranges
    again = poll_until(
        lambda: first.assignment() and second.assignment(), first, second
    )
    while len(again) < 100:
        again += first.consume(500, 0.1) + second.consume(500, 0.1)
    assert sorted(record.offset for record in again) == list(range(100))


@pytest.mark.ci
def test_a_member_that_does_not_poll_loses_everything_and_comes_back(
    orders: Orders,
) -> None:
    orders.write(50)
    first = orders.make(max_poll_interval_ms=3000)
    first.subscribe([orders.topic])
    records = read(first, 50)
    second = orders.member()
    taken = poll_until(lambda: second.assignment() == {orders.at: (WHOLE,)}, second)
    taken += read(second, 50 - len(taken))
    assert sorted(record.offset for record in taken) == list(range(50))
    finish(first, records)
    assert first.consume(1, 1.0) == []
    assert first.lost() == {orders.at: (WHOLE,)}
    finish(second, taken)
    poll_until(lambda: first.assignment() and second.assignment(), first, second)
    nothing_more(first)
    nothing_more(second)


def test_whoever_does_not_share_gets_whole_partitions(orders: Orders) -> None:
    first = orders.make()
    first.subscribe([orders.topic], allow_key_share=False)
    second = orders.make()
    second.subscribe([orders.topic], allow_key_share=False)
    poll_until(lambda: first.assignment() or second.assignment(), first, second)
    assert [*first.assignment().values(), *second.assignment().values()] == [(WHOLE,)]


@pytest.mark.ci
def test_what_stays_goes_on_while_something_else_is_given_up(kafka: Kafka) -> None:
    with closing(Orders(kafka, partitions=2)) as orders:
        first = orders.member()
        poll_until(lambda: len(first.assignment()) == 2, first)
        orders.write(50, partition=0)
        orders.write(50, partition=1)
        held = read(first, 100)
        second = orders.member()
        poll_until(first.to_be_revoked, first, second)
        (leaves,) = first.to_be_revoked()
        (stays,) = first.assignment().keys() - {leaves}
        orders.write(50, partition=0)
        orders.write(50, partition=1)
        more: list[ConsumerRecord] = []
        while len(more) < 50:
            assert first.delay_revoke([leaves])
            more += first.consume(100, 0.1)
        assert {(record.topic, record.partition) for record in more} == {stays}
        finish(first, held + more)
        rest = poll_until(
            lambda: second.assignment() == {leaves: (WHOLE,)}, first, second
        )
        rest += read(second, 50 - len(rest))
        assert {(record.topic, record.partition) for record in rest} == {leaves}


@pytest.mark.slow
def test_a_topic_that_may_be_shared_no_more_is_dealt_whole_again(
    orders: Orders,
) -> None:
    first, second = orders.member(), orders.member()
    poll_until(
        lambda: (
            first.assignment() and second.assignment() and not first.to_be_revoked()
        ),
        first,
        second,
    )
    PolicyTopic(orders.log).set("accept.range.fetch", False, orders.topic)
    poll_until(
        lambda: (
            [*first.assignment().values(), *second.assignment().values()] == [(WHOLE,)]
        ),
        first,
        second,
    )
    PolicyTopic(orders.log).set("accept.range.fetch", True, orders.topic)
    poll_until(
        lambda: (
            sorted([*first.assignment().values(), *second.assignment().values()])
            == [(LEFT,), (RIGHT,)]
        ),
        first,
        second,
    )


def test_a_key_range_with_too_much_in_flight_calls_a_rebalance(orders: Orders) -> None:
    consumer = orders.make(max_individual_commits=20)
    consumer.subscribe([orders.topic])
    poll_until(consumer.assignment, consumer)
    orders.write(50)
    before = generation(orders)
    records = read(consumer, 20)
    nothing_more(consumer)
    poll_until(lambda: generation(orders) > before, consumer)
    assert consumer.assignment() == {orders.at: (WHOLE,)}, "it goes on with what it has"
    finish(consumer, records)
    assert [record.offset for record in read(consumer, 20)] == list(range(20, 40))


@pytest.mark.ci
def test_a_static_member_that_starts_again_has_what_it_had(orders: Orders) -> None:
    first, second = (
        orders.member(group_instance_id="a"),
        orders.member(group_instance_id="b"),
    )
    poll_until(
        lambda: (
            first.assignment() and second.assignment() and not first.to_be_revoked()
        ),
        first,
        second,
    )
    orders.write(100)
    (mine,), (others,) = first.assignment()[orders.at], second.assignment()[orders.at]
    finish(first, read(first, len(orders.offsets_of(mine))))
    first.commit()
    first.close()
    again = orders.member(group_instance_id="a")
    poll_until(again.assignment, again, second)
    assert again.assignment() == {orders.at: (mine,)}
    assert second.assignment() == {orders.at: (others,)}
    nothing_more(again)


def generation(orders: Orders) -> int:
    (consumer,) = orders.consumers
    ownership = consumer._session.ownership
    assert isinstance(ownership, Shared)
    return ownership.assigned.generation if ownership.assigned else -1
