"""The follower on both logs: its view, when a barrier is passed, and which writers
block it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from threading import Event, Thread

import pytest

from coopstreams.commit.follower import Follower
from coopstreams.commit.progress import Author, Progress, plan
from coopstreams.commit.record import (
    PARTITIONS,
    CommitKey,
    Committed,
    CommitValue,
    Segment,
    encode_key,
    encode_value,
    partition_of,
    topic_spec,
)
from coopstreams.common.topic_settings import IN_SYNC
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import Log, Position, TopicSpec, Writer
from coopstreams.log.memory.log import MemoryLog
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, LogError, OffsetOutOfRangeError
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.naming import COMMIT_TOPIC, OFFSETS_TOPIC
from tests.conftest import Kafka

PATIENCE_S = 90.0
START = Position(0)
ORDERS = TopicPartition("orders", 0)
LEFT, RIGHT = KeyRange.split(2)
_number = count()


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    if request.param == "memory":
        yield MemoryLog()
        return
    kafka: Kafka = request.getfixturevalue("kafka")
    cluster = KafkaLog(
        {
            "bootstrap.servers": kafka.bootstrap,
            "producer.transaction.timeout.ms": 600_000,
        }
    )
    yield cluster
    cluster.close()


@pytest.fixture
def group() -> str:
    return f"follower-{time.time_ns()}-{next(_number)}"


@pytest.fixture
def follower(log: Log, group: str) -> Iterator[Follower]:
    follower = Follower(log, group)
    yield follower
    follower.close()


def neighbour(follower: Follower) -> str:
    """Return another group whose commits are in the same partition."""
    names = (f"{follower.group}-{number}" for number in count())
    return next(
        name
        for name in names
        if partition_of(name, follower.partitions) == follower.partition.partition
    )


def look(follower: Follower, barrier: int) -> None:
    """Look up to the barrier at what is there, decided or not."""
    give_up = time.monotonic() + PATIENCE_S
    while follower._above_tail._at < barrier and not follower.passed(barrier):
        assert time.monotonic() < give_up
        follower.look_ahead(barrier)
        time.sleep(0.01)


def say(
    writer: Writer,
    follower: Follower,
    key_range: KeyRange,
    term: int,
    position: int | None,
    name: str = "t",
) -> None:
    """Append one commit of the follower's group, or a tombstone."""
    key = encode_key(CommitKey(follower.group, *ORDERS, key_range, term, 1))
    value = (
        None
        if position is None
        else encode_value(CommitValue(name, (Segment(key_range, position),)))
    )
    writer.append(
        COMMIT_TOPIC, [key], [value], [1], partitions=follower.partition.partition
    )
    writer.flush(PATIENCE_S)


def pass_barrier(follower: Follower, barrier: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not follower.passed(barrier):
        assert time.monotonic() < deadline, (
            f"at {follower.tail}, the barrier is {barrier}"
        )
        follower.poll(0.1)


def poll_until_idle(follower: Follower) -> None:
    """Read on until a few polls in a row bring nothing."""
    quiet = 0
    while quiet < 3:
        quiet = 0 if follower.poll(0.1) else quiet + 1


def positions(follower: Follower, key_range: KeyRange = WHOLE) -> list[int]:
    return [
        segment.position
        for segment in follower.open(ORDERS, key_range, None, START).segments
    ]


def test_the_topic_is_made_if_it_is_missing_and_taken_as_it_is_if_not() -> None:
    log = MemoryLog()
    assert Follower(log, "g").partition == TopicPartition(
        COMMIT_TOPIC, partition_of("g", PARTITIONS)
    )
    assert (
        log.partitions()[COMMIT_TOPIC],
        log.topic_config(COMMIT_TOPIC)["cleanup.policy"],
    ) == (PARTITIONS, "compact")
    assert Follower(log, "g", partitions=7).partitions == PARTITIONS


@pytest.mark.parametrize(
    ("asked", "replicas", "made"),
    [(-1, 3, 3), (1, 3, 3), (2, 3, 3), (3, 2, 3), (-1, 1, 1)],
)
def test_the_topic_is_made_as_durable_as_the_offsets_of_groups(
    asked: int,
    replicas: int,
    made: int,
) -> None:
    """It had the brokers' default: often 1, where the offsets have 3."""
    log = MemoryLog()
    in_sync = str(max(1, replicas - 1))
    log.create_topics([TopicSpec(OFFSETS_TOPIC, 50, {IN_SYNC: in_sync}, replicas)])
    Follower(log, "g", replication=asked)
    assert log.replicas(COMMIT_TOPIC) == made
    assert log.topic_config(COMMIT_TOPIC).get(IN_SYNC, "1") == in_sync


def test_a_topic_that_is_made_anew_while_it_is_followed_is_named() -> None:
    """The reader's error says to begin elsewhere in the log, which is no cure for a
    position in it.
    """
    log = MemoryLog()
    follower = Follower(log, "g")
    say(log.writer(), follower, WHOLE, 1, 5)
    pass_barrier(follower, follower.barrier())
    log.delete_topics([COMMIT_TOPIC])
    log.create_topics([topic_spec()])
    with pytest.raises(
        OffsetOutOfRangeError,
        match=r"was made anew.* while group 'g' was running. Start this process",
    ):
        follower.poll(0.0)


def test_a_changed_partition_count_is_refused_when_the_fence_row_tells() -> None:
    log = MemoryLog()
    log.create_topics([topic_spec(4)])
    follower = Follower(log, "g")
    follower.check(
        {ORDERS: (7, ""), follower.partition: (0, ""), follower.rows()[-1]: None}
    )
    moved = TopicPartition(COMMIT_TOPIC, (follower.partition.partition + 1) % 4)
    with pytest.raises(
        ConfigError, match=r"the partition count was changed, which it must never be"
    ):
        follower.check({ORDERS: (7, ""), moved: (0, "")})


def test_a_fence_row_above_the_end_says_that_records_are_gone() -> None:
    follower = Follower(MemoryLog(), "g")
    with pytest.raises(
        ConfigError,
        match=r"ends at offset 0, and group 'g' had read it up to 9: records of its progress are gone",
    ):
        follower.check({follower.partition: (9, "")})


def test_an_end_below_what_was_read_is_no_barrier() -> None:
    log = MemoryLog()
    follower, writer = Follower(log, "g"), log.writer()
    say(writer, follower, WHOLE, 1, 100)
    pass_barrier(follower, follower.barrier())
    log.delete_topics([COMMIT_TOPIC])
    log.create_topics([topic_spec()])
    with pytest.raises(
        LogError,
        match=r"ends at offset 0, but was read up to 1: .*made anew while group 'g' was running",
    ) as refused:
        follower.barrier()
    assert refused.value.retryable, "a broker that stood still answers so for a moment"


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_topic_that_deletes_what_is_old_is_refused_with_the_command_that_mends_it(
    policy: str,
) -> None:
    log = MemoryLog()
    log.create_topics([TopicSpec(COMMIT_TOPIC, 50, {"cleanup.policy": policy})])
    with pytest.raises(
        ConfigError,
        match=f"has cleanup.policy={policy}: .*--entity-name {COMMIT_TOPIC} --add-config cleanup.policy=compact",
    ):
        Follower(log, "g").check_policy()


class StoodStill(MemoryLog):
    """A log whose broker reports old ends: it was paused, and does not know its
    successor.
    """

    before: int

    def stand_still(self, partition: TopicPartition) -> None:
        self.before = self.end_offset(partition)

    def reported_end(self, partition: TopicPartition) -> int:
        return self.before


def test_no_task_opens_at_a_position_that_was_true_when_a_leader_stood_still(
    group: str,
) -> None:
    log = StoodStill()
    follower, writer = Follower(log, group), log.writer()
    say(writer, follower, WHOLE, 1, 5)
    pass_barrier(follower, follower.barrier())
    log.stand_still(follower.partition)
    say(writer, follower, WHOLE, 2, 15)
    assert follower.passed(log.reported_end(follower.partition)), (
        "it would be believed that nothing is missing"
    )
    assert positions(follower) == [5]
    pass_barrier(follower, follower.barrier())
    assert positions(follower) == [15]


def test_a_commit_goes_from_one_task_through_the_log_to_its_successor(
    log: Log, follower: Follower
) -> None:
    openings = {ORDERS: follower.open(ORDERS, LEFT, Committed(10, 5, 1), START)}
    task = Progress(LEFT, openings, Author(follower.group, 3, "a-0-0"))
    task.advance(ORDERS, 25, 99)
    commit = plan([task], follower)
    writer = log.writer()
    writer.append(
        COMMIT_TOPIC,
        [key for key, _ in commit.records],
        [value for _, value in commit.records],
        [1],
        partitions=follower.partition.partition,
    )
    writer.flush(PATIENCE_S)
    pass_barrier(follower, follower.barrier())
    successor = follower.open(ORDERS, WHOLE, Committed(10, 5, 1), START)
    assert successor.segments == (Segment(LEFT, 25, 99), Segment(RIGHT, 10, 5))
    assert (openings[ORDERS].term, successor.term) == (2, 3)


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_a_barrier_waits_for_an_open_transaction_and_passes_when_it_is_decided(
    log: Log, follower: Follower, ends: str
) -> None:
    plain, transactional = log.writer(), log.writer(f"{follower.group}-a")
    say(plain, follower, WHOLE, 1, 100)
    transactional.begin()
    say(transactional, follower, LEFT, 2, 150, f"{follower.group}-a")
    say(plain, follower, RIGHT, 2, 130)
    barrier = follower.barrier()
    poll_until_idle(follower)
    assert not follower.passed(barrier)
    assert positions(follower) == [100], (
        "what lies behind an open transaction is not known yet"
    )
    look(follower, barrier)
    assert not follower.passed(barrier), "what is behind is of this group"
    assert f'"{follower.group}-a" of' in follower.held_back(barrier)
    if ends == "commit":
        transactional.commit(PATIENCE_S)
    else:
        transactional.abort()
    pass_barrier(follower, barrier)
    assert positions(follower) == ([150, 130] if ends == "commit" else [100, 130])
    transactional.close()


def test_a_dead_transaction_is_found_and_a_new_writer_of_its_id_ends_it(
    log: Log, follower: Follower
) -> None:
    dead = log.writer(f"{follower.group}-dead")
    dead.begin()
    say(dead, follower, WHOLE, 1, 100, f"{follower.group}-dead")
    barrier = follower.barrier()
    look(follower, barrier)
    assert f'"{follower.group}-dead" of' in follower.held_back(barrier)
    successor = log.writer(f"{follower.group}-dead")
    pass_barrier(follower, barrier)
    assert positions(follower) == [0]
    successor.close()


def test_another_group_in_the_partition_holds_no_barrier_of_ours(
    log: Log, follower: Follower
) -> None:
    say(log.writer(), follower, WHOLE, 1, 50)
    theirs = Follower(log, neighbour(follower))
    writer = log.writer(f"{theirs.group}-a")
    writer.begin()
    say(writer, theirs, WHOLE, 1, 100, f"{theirs.group}-a")
    writer.flush(PATIENCE_S)
    barrier = follower.barrier()
    poll_until_idle(follower)
    assert not follower.passed(barrier)
    look(follower, barrier)
    assert follower.passed(barrier)
    assert positions(follower) == [50]
    assert not theirs.passed(barrier)
    theirs.close()
    writer.abort()
    writer.close()


def test_records_of_ours_behind_the_transaction_of_another_group_hold_the_barrier(
    log: Log, follower: Follower
) -> None:
    theirs = neighbour(follower)
    writer, plain = log.writer(f"{theirs}-a"), log.writer()
    writer.begin()
    with closing(Follower(log, theirs)) as other:
        say(writer, other, WHOLE, 1, 100, f"{theirs}-a")
    writer.flush(PATIENCE_S)
    say(plain, follower, WHOLE, 1, 70, f"{follower.group}-b")
    barrier = follower.barrier()
    poll_until_idle(follower)
    look(follower, barrier)
    assert not follower.passed(barrier), "the record of ours is not known"
    told = follower.held_back(barrier)
    assert f'"{theirs}-a" of group "{theirs}" is open' in told
    assert f'"{follower.group}-b"' in told
    assert f"--start-offset {follower.tail}" in told
    writer.abort()
    pass_barrier(follower, barrier)
    assert positions(follower) == [70]
    writer.close()


def test_a_follower_that_starts_after_the_cleaner_knows_the_same() -> None:
    log = MemoryLog()
    early, writer = Follower(log, "g"), log.writer()
    for term in range(1, 6):
        for position in range(term * 100, term * 100 + 30, 10):
            for key_range in (WHOLE,) if term % 2 else (LEFT, RIGHT):
                say(writer, early, key_range, term, position)
    say(writer, early, WHOLE, 1, None)
    say(writer, early, LEFT, 2, None)
    pass_barrier(early, early.barrier())
    log.compact(COMMIT_TOPIC)
    late = Follower(log, "g")
    pass_barrier(late, late.barrier())
    assert late.tail == early.tail
    assert late.live(ORDERS) == early.live(ORDERS)
    assert late.garbage(ORDERS, [WHOLE]) == early.garbage(ORDERS, [WHOLE])
    assert positions(late) == [520]


def test_stream_threads_may_ask_while_the_opener_polls() -> None:
    log = MemoryLog()
    follower, writer, stop = Follower(log, "g"), log.writer(), Event()
    say(writer, follower, WHOLE, 1, 1)
    pass_barrier(follower, follower.barrier())
    seen: list[list[int]] = [[], []]

    def ask(offsets: list[int]) -> None:
        while not stop.is_set():
            stable = follower.stable(ORDERS, None)
            assert stable
            offsets.append(stable.offset)
            follower.garbage(ORDERS, [WHOLE])
            follower.open(ORDERS, LEFT, None, START)

    askers = [Thread(target=ask, args=(offsets,)) for offsets in seen]
    for asker in askers:
        asker.start()
    for term in range(2, 300):
        for key_range in (LEFT, RIGHT) if term % 2 else (WHOLE,):
            say(writer, follower, key_range, term, term)
        follower.poll(0)
    pass_barrier(follower, follower.barrier())
    stop.set()
    for asker in askers:
        asker.join()
    assert all(offsets == sorted(offsets) for offsets in seen)
    assert positions(follower) == [299]
