"""Large commits on a real Kafka: many ranges of offsets, many key ranges, many records."""

from __future__ import annotations

import random

import pytest

from coopstreams.consumer import KeyRange
from tests.broker.consuming import Orders, finish, nothing_more, read
from tests.broker.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_a_million_offsets_with_random_gaps_are_committed_and_found_again(
    orders: Orders,
) -> None:
    for _ in range(10):
        orders.write(100_000)
    gaps = set(random.Random(7).sample(range(1_000_000), 9_000))
    consumer = orders.alone(
        [], max_individual_commits=2_000_000, max_num_ranges_to_commit=1_000_000
    )
    for _ in range(100):
        finish(consumer, read(consumer, 10_000), lambda offset: offset not in gaps)
    result = consumer.commit()
    assert result.offset == {orders.at: min(gaps)}
    consumer.close()

    again = orders.alone([], max_individual_commits=2_000_000)
    late = read(again, 9_000, 120)
    assert [record.offset for record in late] == sorted(gaps)
    finish(again, late)
    nothing_more(again)
    assert again.commit().last_stable_offset == {orders.at: 1_000_000}


def test_a_commit_that_is_larger_than_a_request_counts_as_a_whole(
    orders: Orders,
) -> None:
    """64 key ranges with about 1500 ranges of offsets each are more than the megabyte
    that brokers take in a request.
    """
    orders.write(200_000)
    ranges = KeyRange.split(64)
    consumer = orders.alone(ranges)
    records = read(consumer, 200_000, 120)
    for record in records:
        if record.offset % 2:
            consumer.done(record)
    before = orders.log.end_offset(consumer._session.follower.partition)
    result = consumer.commit()
    assert sum(len(runs) for runs in result.ranges.values()) == 100_000
    written = "a record a key range, and the transaction's marker, which Kafka writes after it has answered"
    eventually(
        lambda: (
            orders.log.end_offset(consumer._session.follower.partition)
            == before + 64 + 1
        ),
        90,
        lambda: written,
    )
    consumer.close()
    again = orders.alone(KeyRange.split(4))
    assert sorted(record.offset for record in read(again, 100_000, 120)) == list(
        range(0, 200_000, 2)
    )
