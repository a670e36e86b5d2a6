"""The first positions of tasks when some plain offsets are stable and others are not:
each waits for its own partitions only.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.commit.barrier import Opening
from coopstreams.commit.follower import Follower
from coopstreams.commit.positions import Positions, Resets
from coopstreams.commit.record import (
    CommitKey,
    Committed,
    CommitValue,
    Segment,
    encode_key,
    encode_value,
    topic_number,
)
from coopstreams.common.host import System
from coopstreams.group.group_requests import FetchedOffset
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import Position, TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.naming import COMMIT_TOPIC
from coopstreams.topology.task_id import TaskId
from tests.conftest import Kafka
from tests.group.instances import (
    PATIENCE_S,
    Application,
    application,
    commit,
    eventually,
)


def always(reset: str) -> Resets:
    return lambda _: reset


LEFT, RIGHT = (TaskId(0, number, WHOLE) for number in range(2))


@dataclass
class Busy:
    """A coordinator of a busy group: the offset of a partition is rarely stable, the
    commit topic's never.
    """

    rng: Random
    offsets: dict[TopicPartition, int]
    certain: float = 0.1
    told: set[TopicPartition] = field(default_factory=set)

    def fetch_offsets(
        self, partitions: Iterable[TopicPartition] | None, *, stable: bool = True
    ) -> FetchedOffset:
        asked = set(partitions or ())
        assert not asked & self.told, "what is certain is not asked for again"
        unstable = (
            {
                at
                for at in asked
                if at.topic == COMMIT_TOPIC or self.rng.random() > self.certain
            }
            if stable
            else set()
        )
        self.told |= {at for at in asked - unstable if at.topic != COMMIT_TOPIC}
        return FetchedOffset(
            {
                at: (self.offsets[at], "ic -1 1") if at in self.offsets else None
                for at in asked - unstable
            },
            frozenset(unstable),
        )


@pytest.mark.ci
@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_every_task_opens_when_each_of_its_partitions_was_certain_once(
    rng: Random, partitions: int
) -> None:
    log = MemoryLog()
    log.create_topics(
        [TopicSpec(topic, partitions) for topic in ("orders", "customers")]
    )
    coordinator = Busy(
        rng, {TopicPartition("orders", number): 0 for number in range(partitions)}
    )
    positions = Positions(
        log,
        coordinator,
        Follower(log, "g"),
        lambda task: (orders(task), TopicPartition("customers", task.partition)),
        always("earliest"),
        "a",
    )
    waiting = {
        (task := TaskId(0, number, WHOLE)): Opening(task, epoch=0, barrier=0)
        for number in range(partitions)
    }
    while waiting:
        for task, progress in positions.resolve(list(waiting.values()), 1).items():
            del waiting[task]
            assert progress.partitions == [
                orders(task),
                TopicPartition("customers", task.partition),
            ]
        assert all(
            "an open transaction keeps back" in positions.waits_for(task)
            for task in waiting
        )
    positions.resolve([], 1)
    assert positions.unstable == {}


@pytest.mark.parametrize(("reset", "first"), [("earliest", 2), ("latest", 5)])
def test_a_task_without_a_position_begins_at_the_end_of_the_log_that_auto_offset_reset_names(
    reset: str, first: int
) -> None:
    log = MemoryLog()
    log.create_topics([TopicSpec("orders", 1)])
    log.writer().append("orders", [None] * 5, [b""] * 5, list(range(5)))
    log.delete_before(orders(LEFT), 2)
    coordinator = Busy(Random(1), {}, certain=1.0)
    positions = Positions(
        log,
        coordinator,
        Follower(log, "g"),
        lambda task: (orders(task),),
        always(reset),
        "a",
    )
    assert positions.resolve([Opening(LEFT, epoch=0, barrier=0)], 1)[LEFT].position(
        orders(LEFT)
    ) == Position(first)


@dataclass
class Clock(System):
    """A machine whose clocks a test sets."""

    time_ms: int = 0

    def now(self) -> float:
        return self.time_ms / 1000

    def wall_ms(self) -> int:
        return self.time_ms


@pytest.mark.parametrize(
    ("reset", "first"),
    [("by_duration:PT2S", 6), ("by_duration:PT0S", 8), ("by_duration:P1D", 3)],
)
def test_a_source_begins_at_the_first_record_that_is_not_older(
    reset: str, first: int
) -> None:
    log, positions = beginning(reset, Busy(Random(1), {}, certain=1.0))
    log.delete_before(orders(LEFT), 3)
    assert positions.resolve([Opening(LEFT, epoch=0, barrier=0)], 1)[LEFT].position(
        orders(LEFT)
    ) == Position(first)


def beginning(
    reset: str, coordinator: Any, clock: Clock | None = None
) -> tuple[MemoryLog, Positions]:
    """Eight records, a second apart; it is the eighth second now."""
    log = MemoryLog()
    log.create_topics([TopicSpec("orders", 1)])
    log.writer().append(
        "orders", [None] * 8, [b""] * 8, [1000 * number for number in range(8)]
    )
    follower = Follower(log, "g")
    return log, Positions(
        log,
        coordinator,
        follower,
        lambda task: (orders(task),),
        always(reset),
        "a",
        begun=lambda *_: None,  # the changelogs are empty
        host=clock or Clock(8000),
    )


@dataclass
class Group:
    """A coordinator that answers at once, and counts the requests."""

    offsets: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    asked: int = 0

    def fetch_offsets(
        self, partitions: Iterable[TopicPartition] | None, *, stable: bool = True
    ) -> FetchedOffset:
        self.asked += stable
        return FetchedOffset({at: self.offsets.get(at) for at in partitions or ()})


@pytest.mark.parametrize("reset", ["latest", "by_duration:PT3S"])
@given(order=st.permutations(range(4)), opened_before_it=st.integers(0, 4))
def test_all_key_ranges_begin_where_the_first_one_began(
    reset: str, order: list[int], opened_before_it: int
) -> None:
    clock, group = Clock(8000), Group()
    log, positions = beginning(reset, group, clock)
    parts = [TaskId(0, 0, part) for part in KeyRange.split(4)]
    waiting = {
        parts[number]: Opening(parts[number], epoch=0, barrier=0) for number in order
    }
    found: dict[TaskId, int] = {}
    for task in [*waiting][:opened_before_it]:
        if task.key_range.start:
            assert positions.resolve([waiting[task]], 1) == {}
            assert (
                "the task with the first key range to choose where orders-0 begins"
                in positions.waits_for(task)
            )
    while waiting:
        opened = positions.resolve(list(waiting.values()), 1)
        for task, progress in opened.items():
            found[task] = progress.position(orders(task)).offset
            del waiting[task]
            for partition, at in progress.begin().items():
                group.offsets[partition] = at
        log.writer().append("orders", [None], [b""], [clock.time_ms])
        clock.time_ms += 1000
    assert set(found.values()) == {8 if reset == "latest" else 5}
    assert positions.waits_for(parts[1]) == "the group's plain offsets"


def test_a_key_range_that_waits_does_not_ask_all_the_time() -> None:
    clock, group = Clock(8000), Group()
    _, positions = beginning("latest", group, clock)
    one = Opening(TaskId(0, 0, KeyRange.split(2)[1]), epoch=0, barrier=0)
    for _ in range(100):
        assert positions.resolve([one], 1) == {}
        clock.time_ms += 10
    assert group.asked in range(9, 13)


def test_a_sibling_that_begins_between_the_answer_and_its_individual_commit_has_lost_nothing() -> (
    None
):
    group = Group()
    log, positions = beginning("latest", group)
    left, right = KeyRange.split(2)
    one = Opening(TaskId(0, 0, right), epoch=0, barrier=0)
    assert positions.resolve([one], 1) == {}
    assert positions.resolve([one], 1) == {}, "there is no plain offset yet"
    group.offsets[orders(one.id)] = 5, Committed(5, -1, 0).metadata
    follower = Follower(log, "g")
    sibling = CommitKey("g", "orders", 0, left, 2, 1)
    value = encode_value(CommitValue("sibling", (Segment(left, 7),)))
    log.writer().append(
        COMMIT_TOPIC,
        [encode_key(sibling)],
        [value],
        [1],
        partitions=follower.partition.partition,
    )
    positions._follower.poll(0.0)
    assert positions.resolve([one], 1) == {}, (
        "it asks again, because what it knows is newer than the answer"
    )
    assert positions.resolve([one], 1)[one.id].position(orders(one.id)).offset == 5


def test_earliest_waits_for_nobody() -> None:
    _, positions = beginning("earliest", Group())
    right = TaskId(0, 0, KeyRange.split(2)[1])
    assert positions.resolve([Opening(right, epoch=0, barrier=0)], 1)[right].position(
        orders(right)
    ) == Position(0)


@dataclass
class Mirrored:
    """A coordinator that has one offset, which names an individual commit of term 2
    beside it.
    """

    def fetch_offsets(
        self, partitions: Iterable[TopicPartition] | None, *, stable: bool = True
    ) -> FetchedOffset:
        return FetchedOffset(
            {
                at: None if at.topic == COMMIT_TOPIC else (5, "ic -1 1 2")
                for at in partitions or ()
            }
        )


def test_an_offset_that_a_sibling_committed_behind_the_barrier_has_the_barrier_taken_again() -> (
    None
):
    log = MemoryLog()
    log.create_topics([TopicSpec("orders", 1)])
    follower = Follower(log, "g")
    positions = Positions(
        log, Mirrored(), follower, lambda task: (orders(task),), always("earliest"), "a"
    )
    task = TaskId(0, 0, KeyRange.split(2)[1])
    one = Opening(task, epoch=0, barrier=0)
    assert positions.resolve([one], 1) == {}
    assert one.barrier is None
    sibling = CommitKey("g", "orders", 0, KeyRange.split(2)[0], 2, 1)
    value = encode_value(CommitValue("sibling", (Segment(sibling.key_range, 7),)))
    log.writer().append(
        COMMIT_TOPIC,
        [encode_key(sibling)],
        [value],
        [1],
        partitions=follower.partition.partition,
    )
    follower.poll(0.0)
    assert positions.resolve([one], 1)[task].term(orders(task)) == 3


def test_commits_that_are_missing_behind_each_barrier_went_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = MemoryLog()
    log.create_topics([TopicSpec("orders", 1)])
    positions = Positions(
        log,
        Mirrored(),
        Follower(log, "g"),
        lambda task: (orders(task),),
        always("earliest"),
        "a",
    )
    one = Opening(LEFT, epoch=0, barrier=0)
    assert positions.resolve([one], 1) == {}
    monkeypatch.setattr("coopstreams.commit.positions.DOUBT_S", 0.0)
    with pytest.raises(
        ConfigError, match="had committed more than the plain offset 5 says"
    ):
        positions.resolve([one], 1)


@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", 3)])
def test_a_consumer_begins_anew_in_a_topic_that_was_made_anew_once_that_is_certain(
    reset: str, first: int
) -> None:
    log, clock, group = MemoryLog(), Clock(8000), Group()
    log.create_topics([TopicSpec("orders", 1)])
    at = orders(LEFT)
    group.offsets[at] = (
        7,
        Committed(7, term=1, topic=topic_number(log.topic_id("orders"))).metadata,
    )
    log.delete_topics(["orders"])
    log.create_topics([TopicSpec("orders", 1)])
    log.writer().append("orders", [None] * 3, [b""] * 3, [0, 1, 2])
    positions = Positions(
        log, group, Follower(log, "g"), lambda _: (at,), always(reset), "a", host=clock
    )
    one = Opening(LEFT, epoch=0, barrier=0)
    assert positions.resolve([one], 1) == {}
    assert one.barrier is None, (
        "a broker may have answered that has not heard of the new topic: the barrier is new, too"
    )
    clock.time_ms += 10_001
    progress = positions.resolve([one], 1)[LEFT]
    assert progress.position(at).offset == first
    assert progress.topic_ids == {"orders": log.topic_id("orders")}
    assert positions.remade([progress]) == []
    log.delete_topics(["orders"])
    assert positions.remade([progress]) == [], "it is gone, which its reader reports"
    log.create_topics([TopicSpec("orders", 1)])
    assert positions.remade([progress]) == [progress]


def test_an_application_does_not_open_at_a_plain_offset_of_a_topic_that_was_made_anew() -> (
    None
):
    """Kafka deletes the offset with the topic, and a task that runs meanwhile commits
    it again.
    """
    group = Group()
    log, positions = beginning("earliest", group)
    one, at = Opening(LEFT, epoch=0, barrier=0), orders(LEFT)
    progress = positions.resolve([one], 1)[LEFT]
    group.offsets |= progress.begin()
    progress.advance(at, 6, 5000)
    plain = progress.plain(at, positions._follower)
    assert plain is not None
    assert (
        plain.topic
        == topic_number(log.topic_id("orders"))
        == Committed.parse(*group.offsets[at]).topic
    )
    group.offsets[at] = plain.offset, plain.metadata
    assert positions.resolve([Opening(LEFT, epoch=0, barrier=0)], 1)[LEFT].position(
        at
    ) == Position(6, 5000)
    log.delete_topics(["orders"])
    log.create_topics([TopicSpec("orders", 1)])
    with pytest.raises(
        ConfigError,
        match="orders-0: the topic was deleted and made anew since group 'g' was at offset 6",
    ) as refused:
        positions.resolve([Opening(LEFT, epoch=0, barrier=0)], 1)
    # On top of changelogs that were copied, earliest is wrong.
    assert "copied from another cluster" in str(refused.value)
    assert (
        "`coopstreams group reset g --topic orders --partition 0 --to OFFSET`"
        in str(refused.value)
    )


def orders(task: TaskId) -> TopicPartition:
    return TopicPartition("orders", task.partition)


@pytest.fixture
def app(kafka: Kafka) -> Iterator[Application]:
    with application(kafka.bootstrap, kafka.unique("positions"), 1) as app:
        yield app


@pytest.mark.broker
def test_a_transaction_on_one_partition_and_on_the_commit_topic_keeps_back_that_partition_alone(
    kafka: Kafka, app: Application
) -> None:
    topic = kafka.topic("input", 2)
    a = app.start("a")
    app.complete("a")
    commit(a, TopicPartition(topic, 1), 0, "ic -1 3")
    log = KafkaLog({"bootstrap.servers": app.bootstrap})
    follower = Follower(log, app.group)
    positions = Positions(
        log,
        a.member,
        follower,
        lambda task: (TopicPartition(topic, task.partition),),
        always("earliest"),
        "a",
    )
    left, right = Opening(LEFT, epoch=0, barrier=0), Opening(RIGHT, epoch=0, barrier=0)
    writer = log.writer(f"{app.group}-transaction")
    writer.begin()
    with a.member.fence(0) as fence:
        writer.send_offsets(
            {TopicPartition(topic, 0): (0, "ic -1 7"), follower.partition: (0, "")},
            fence,
        )
    opened = positions.resolve([left, right], 1)
    assert {
        task: progress.term(TopicPartition(topic, 1))
        for task, progress in opened.items()
    } == {RIGHT: 4}
    assert f"keeps back that of {topic}-0 for" in positions.waits_for(LEFT)
    assert "keeps" not in positions.waits_for(RIGHT)
    writer.commit(PATIENCE_S)
    eventually(lambda: LEFT in positions.resolve([left], 1))
    assert left.plain == {TopicPartition(topic, 0): Committed(0, -1, 7)}
    writer.close()
    follower.close()
    log.close()


@pytest.mark.broker
def test_tasks_open_beside_many_threads_whose_transactions_are_always_open(
    kafka: Kafka, app: Application
) -> None:
    """Each transaction includes the commit topic's row, as for threads that own no hash
    0.
    """
    topic = kafka.topic("input")
    a = app.start("a")
    app.complete("a")
    log = KafkaLog({"bootstrap.servers": app.bootstrap})
    follower = Follower(log, app.group)
    overlapping: queue.SimpleQueue[int] = queue.SimpleQueue()
    stop = threading.Event()

    def commit_on(
        number: int, began: threading.Event, previous: threading.Event
    ) -> None:
        """Keep a transaction open, and end it only when the next thread's is open, too."""
        writer = log.writer(f"{app.group}-{number}")
        while not stop.is_set():
            writer.begin()
            with a.member.fence(0) as fence:
                writer.send_offsets({follower.partition: (0, "")}, fence)
            began.set()
            previous.wait(PATIENCE_S)
            previous.clear()
            writer.commit(PATIENCE_S)
            overlapping.put(number)
        began.set()
        writer.close()

    turns = threading.Event(), threading.Event()
    threads = [
        threading.Thread(
            target=commit_on, args=(number, turns[number], turns[1 - number])
        )
        for number in range(2)
    ]
    for thread in threads:
        thread.start()
    for _ in range(4):
        overlapping.get(timeout=PATIENCE_S)
    positions = Positions(
        log,
        a.member,
        follower,
        lambda _: (TopicPartition(topic, 0),),
        always("earliest"),
        "a",
    )
    assert LEFT in positions.resolve([Opening(LEFT, epoch=0, barrier=0)], 1)
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    follower.close()
    log.close()
