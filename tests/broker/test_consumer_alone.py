"""A consumer that is assigned key ranges by hand, on a real Kafka."""

from __future__ import annotations

from contextlib import closing

import pytest

from coopstreams.commit.cluster_policy import PolicyTopic
from coopstreams.commit.progress import plan
from coopstreams.consumer import (
    ConsumerRecord,
    CooperativeConsumer,
    KeyRange,
    TopicPartition,
)
from coopstreams.topology.errors import (
    CommitConflictError,
    ConsumerRangeFetchNotAcceptedError,
    IndividualCommitTooOldError,
    MaxIndividualCommitReachedError,
    TopicRangeFetchNotAllowedError,
)
from tests.broker.consuming import Orders, finish, nothing_more, read
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

LEFT, RIGHT = KeyRange.split(2)


@pytest.mark.ci
def test_two_consumers_share_a_partition_by_key(orders: Orders) -> None:
    orders.write(200)
    left, right = orders.alone([LEFT]), orders.alone([RIGHT])
    mine, others = orders.offsets_of(LEFT), orders.offsets_of(RIGHT)
    first, second = read(left, len(mine)), read(right, len(others))
    assert [record.offset for record in first] == mine
    assert [record.offset for record in second] == others
    assert [
        (record.key, record.value, record.timestamp, record.key_range)
        for record in first[:1]
    ] == [(b"%d" % mine[0], b"v%d" % mine[0], mine[0] + 1, LEFT)]
    finish(left, first)
    finish(right, second)
    nothing_more(left)
    nothing_more(right)
    assert left.commit().offset == {orders.at: 200}
    result = right.commit()
    assert result.offset == {orders.at: 200}
    committed = right.committed([orders.at])[orders.at]
    assert committed is not None
    assert (committed.offset, committed.ranges) == (200, ())


@pytest.mark.ci
def test_what_was_committed_out_of_order_is_not_handed_out_again(
    orders: Orders,
) -> None:
    orders.write(100)
    consumer = orders.alone([])
    records = read(consumer, 100)
    finish(consumer, records, lambda offset: offset % 10 != 3)
    result = consumer.commit(metadata="from here")
    assert result.offset == {orders.at: 3}
    assert result.last_stable_offset == {orders.at: 3}
    assert result.ranges[orders.at][:2] == ((0, 2), (4, 12))
    consumer.close()

    again = orders.alone([])
    late = read(again, 10)
    assert [record.offset for record in late] == [n for n in range(100) if n % 10 == 3]
    committed = again.committed([orders.at])[orders.at]
    assert committed is not None
    assert (committed.offset, committed.metadata, committed.ranges[:2]) == (
        3,
        "from here",
        ((4, 12), (14, 22)),
    )
    finish(again, late)
    assert again.commit().last_stable_offset == {orders.at: 100}
    nothing_more(again)


def test_ranges_by_name_are_merged_as_in_the_proposal(orders: Orders) -> None:
    orders.write(60)
    consumer = orders.alone([])
    finish(consumer, read(consumer, 43))  # "stable 42": the last done offset
    consumer.commit()
    assert consumer.commit_ranges(
        {orders.at: [(45, 47), (50, 50)]}
    ).last_stable_offset == {orders.at: 43}
    consumer.commit_ranges({orders.at: [(48, 49)]})
    committed = consumer.committed([orders.at])[orders.at]
    assert committed is not None
    assert (committed.offset, committed.ranges) == (43, ((45, 50),))
    consumer.commit_ranges({orders.at: [(43, 44)]})
    committed = consumer.committed([orders.at])[orders.at]
    assert committed is not None
    assert (committed.offset, committed.ranges) == (51, ())
    assert [record.offset for record in read(consumer, 9)] == list(range(51, 60))
    with pytest.raises(IndividualCommitTooOldError) as refused:
        consumer.commit_ranges({orders.at: [(10, 20)]})
    assert refused.value.last_stable_offset == 51


def test_a_commit_that_expects_another_offset_commits_nothing(orders: Orders) -> None:
    orders.write(10)
    consumer = orders.alone([])
    finish(consumer, read(consumer, 10), lambda offset: offset < 5)
    with pytest.raises(CommitConflictError, match="committed up to 0, not 3"):
        consumer.commit(expected={orders.at: 3})
    committed = consumer.committed([orders.at])[orders.at]
    assert committed is not None
    assert (committed.offset, committed.ranges) == (0, ())
    assert consumer.commit(expected={orders.at: 0}).offset == {orders.at: 5}
    assert consumer.commit({orders.at: 10}, expected={orders.at: 5}).offset == {
        orders.at: 10
    }


@pytest.mark.ci
def test_ranges_are_cut_anew_between_two_lives(orders: Orders) -> None:
    orders.write(120)
    quarters = KeyRange.split(4)
    first = orders.alone([quarters[0], quarters[2]])
    mine = orders.offsets_of(quarters[0]) + orders.offsets_of(quarters[2])
    finish(first, read(first, len(mine)))
    first.commit()
    first.close()
    rest = orders.alone([LEFT])
    assert [
        record.offset for record in read(rest, len(orders.offsets_of(quarters[1])))
    ] == orders.offsets_of(quarters[1])
    nothing_more(rest)


@pytest.mark.ci
def test_who_comes_last_counts_and_the_other_one_catches_up(orders: Orders) -> None:
    orders.write(50)
    old = orders.alone([LEFT])
    old_records = read(old, len(orders.offsets_of(LEFT)))
    new = orders.alone([LEFT, RIGHT])
    finish(new, read(new, 50))
    assert new.commit().offset == {orders.at: 50}
    finish(old, old_records[:3])
    nothing_more(old)
    old.committed([orders.at])  # reads the other one's commit
    with pytest.raises(IndividualCommitTooOldError) as refused:
        old.commit()
    assert refused.value.last_stable_offset == 50
    orders.write(10)
    assert all(record.offset >= 50 for record in read(old, 1))


def test_too_much_in_flight_blocks_one_key_range_and_not_its_sibling(
    orders: Orders,
) -> None:
    orders.write(400)
    consumer = orders.alone([LEFT, RIGHT], max_individual_commits=20)
    left, right = orders.offsets_of(LEFT), orders.offsets_of(RIGHT)
    seen: dict[KeyRange, list[ConsumerRecord]] = {LEFT: [], RIGHT: []}
    while len(seen[RIGHT]) < len(right):
        for record in consumer.consume(30, 0.1):
            seen[record.key_range].append(record)
            if record.key_range == RIGHT:
                consumer.done(record)
    assert [record.offset for record in seen[RIGHT]] == right
    assert [record.offset for record in seen[LEFT]] == left[:20]
    with pytest.raises(MaxIndividualCommitReachedError):
        consumer.commit_ranges({orders.at: [(n, n) for n in range(1000, 1100, 2)]})
    finish(consumer, seen[LEFT])
    assert [record.offset for record in read(consumer, 20)] == left[20:40], (
        "read again, in order, once"
    )


def test_many_ranges_are_committed_without_being_asked(orders: Orders) -> None:
    orders.write(100)
    consumer = orders.alone([], max_num_ranges_to_commit=10)
    finish(consumer, read(consumer, 100), lambda offset: offset % 2 == 1)
    consumer.consume(1, 0)
    committed = consumer.committed([orders.at])[orders.at]
    assert committed is not None
    assert len(committed.ranges) == 50


def test_a_topic_that_does_not_allow_it_and_a_consumer_that_does_not(
    orders: Orders,
) -> None:
    PolicyTopic(orders.log).set("accept.range.fetch", None, orders.topic)
    with pytest.raises(TopicRangeFetchNotAllowedError, match="coopstreams policy set"):
        orders.alone([LEFT])
    PolicyTopic(orders.log).set("accept.range.fetch", True, orders.topic)
    with pytest.raises(ConsumerRangeFetchNotAcceptedError):
        orders.alone([LEFT], allow_individual_commit=False)


def test_who_reads_a_part_of_a_topic_that_may_be_shared_no_more_is_refused(
    orders: Orders,
) -> None:
    """It went on with its key range."""
    orders.write(20)
    consumer = orders.alone([LEFT])
    finish(consumer, read(consumer, 1))
    PolicyTopic(orders.log).set("accept.range.fetch", False, orders.topic)
    with pytest.raises(TopicRangeFetchNotAllowedError, match=orders.topic):
        read(consumer, 20)
    with pytest.raises(TopicRangeFetchNotAllowedError):
        consumer.consume(1, 0)
    assert consumer.commit().ranges


def test_without_individual_commits_positions_move_in_order(orders: Orders) -> None:
    orders.write(20)
    consumer = orders.alone([], allow_individual_commit=False)
    records = read(consumer, 20)
    finish(consumer, records, lambda offset: offset not in (5, 6))
    assert consumer.commit().offset == {orders.at: 5}
    committed = consumer.committed([orders.at])[orders.at]
    assert committed is not None
    assert committed.ranges == ()
    finish(consumer, records, lambda offset: offset in (5, 6))
    assert consumer.commit().offset == {orders.at: 20}


def test_pause_resume_and_seek(orders: Orders) -> None:
    orders.write(30)
    consumer = orders.alone([])
    records = read(consumer, 10)
    consumer.pause([orders.at])
    nothing_more(consumer)
    consumer.resume([orders.at])
    records += read(consumer, 10)
    assert [record.offset for record in records] == list(range(20))
    finish(consumer, records)
    consumer.seek(orders.at, 15)
    assert [record.offset for record in read(consumer, 15)] == list(range(15, 30))
    assert consumer.commit().offset == {orders.at: 20}


@pytest.mark.ci
def test_a_commit_of_which_only_a_part_arrived_is_ignored(kafka: Kafka) -> None:
    """Proposal 3: a torn commit over several partitions is no commit, and the complete
    one before it stays.
    """
    orders = Orders(kafka, partitions=2)
    both: dict[TopicPartition | tuple[str, int], list[KeyRange]] = {
        (orders.topic, 0): [],
        (orders.topic, 1): [],
    }
    with closing(orders):
        for partition in range(2):
            orders.write(20, partition)
        consumer = orders.make()
        consumer.assign(both)
        records = read(consumer, 40)
        finish(consumer, records, lambda offset: offset < 5)
        consumer.commit()
        before = consumer.committed(both)
        finish(consumer, records, lambda offset: offset >= 5)
        tear_a_commit(consumer)

        again = orders.make()
        again.assign(both)
        assert sorted(
            (record.partition, record.offset) for record in read(again, 30)
        ) == [(p, n) for p in range(2) for n in range(5, 20)]
        found = again.committed(both)
        assert {at: one and (one.offset, one.ranges) for at, one in found.items()} == {
            at: one and (one.offset, one.ranges) for at, one in before.items()
        }


def tear_a_commit(consumer: CooperativeConsumer) -> None:
    """Write only the first of two individual commits, as a process that dies in
    between.
    """
    session = consumer._session
    session.take_done()
    shares = list(session.owned_ranges.values())
    for share in shares:
        share.stand(in_order=False)
    (key, value), _ = plan(
        [share.progress for share in shares], session.follower
    ).records
    where = session.follower.partition
    writer = session.commits._writer
    writer.begin()
    writer.append(where.topic, [key], [value], [1], partitions=where.partition)
    writer.flush(60)
    consumer._running = None  # as if dead: it does not close
