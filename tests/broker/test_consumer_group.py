"""Consumers that share partitions in a group, on a real Kafka: assignment, kills, slow
members.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from coopstreams.consumer import (
    ConsumerRecord,
    CooperativeConsumer,
    KeyRange,
    TopicPartition,
)
from coopstreams.topology.errors import FencedError, LogError
from coopstreams.topology.keys import WHOLE, check_tiling, key_hash
from tests.broker.consumer_processes import (
    Feeder,
    Processes,
    check_outputs,
    shareable,
)
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

PATIENCE_S = 120.0
LEFT, RIGHT = KeyRange.split(2)


class Member:
    """A consumer on a thread of its own; it acknowledges each record at once, or after
    `work`.
    """

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: list[str],
        work: Callable[[ConsumerRecord], bool] = lambda _: True,
        **config: Any,
    ) -> None:
        named = {name.replace("_", "."): value for name, value in config.items()}
        self.consumer = CooperativeConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "heartbeat.interval.ms": 200,
                "session.timeout.ms": 60_000,
                **named,
            }
        )
        self.consumer.subscribe(topics)
        self.has: dict[TopicPartition, tuple[KeyRange, ...]] = {}
        self.seen: list[ConsumerRecord] = []
        self.failure: BaseException | None = None
        self._work = work
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for record in self.consumer.consume(500, 0.1):
                    self.seen.append(record)
                    if self._work(record):
                        self.consumer.done(record)
                self._commit()
                self.has = self.consumer.assignment()
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.consumer.close()

    def _commit(self) -> None:
        try:
            self.consumer.commit()
        except LogError as error:
            if not (error.retryable or isinstance(error, FencedError)):
                raise
            # A rebalance is slow: the next pass commits again.

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()


@pytest.fixture
def members(kafka: Kafka) -> Iterator[Callable[..., list[Member]]]:
    """Return a function that starts consumers of one group."""
    started: list[Member] = []

    def start(
        count: int, group: str, topics: list[str], **settings: Any
    ) -> list[Member]:
        new = [Member(kafka.bootstrap, group, topics, **settings) for _ in range(count)]
        started.extend(new)
        return new

    yield start
    for member in started:
        member.stop()
    assert [member.failure for member in started if member.failure] == []


def readers(group: list[Member]) -> dict[str, int]:
    """How many read each partition; empty while some hash of it has no reader."""
    pieces: dict[TopicPartition, list[KeyRange]] = defaultdict(list)
    for member in group:
        for at, ranges in dict(member.has).items():
            pieces[at] += ranges
    for at, cut in pieces.items():
        try:
            check_tiling(cut, str(at))
        except Exception:  # noqa: BLE001 not yet
            return {}
    return {str(at): len(cut) for at, cut in sorted(pieces.items())}


# --- the proposal's examples ---------------------------------------------------


@pytest.mark.ci
@pytest.mark.parametrize(
    "strategy",
    [pytest.param("roundrobin", marks=pytest.mark.slow), "cooperative-sticky"],
)
def test_five_consumers_share_three_partitions(
    kafka: Kafka, members: Callable[..., list[Member]], strategy: str
) -> None:
    topic = shareable(kafka, "three", 3)
    group = members(
        5, kafka.unique("five"), [topic], partition_assignment_strategy=strategy
    )

    def shared() -> bool:
        pieces = [
            [key_range for ranges in member.has.values() for key_range in ranges]
            for member in group
        ]
        return sorted(readers(group).values()) == [1, 2, 2] and sorted(
            pieces
        ) == sorted([[LEFT], [LEFT], [RIGHT], [RIGHT], [WHOLE]])

    eventually(shared, PATIENCE_S, lambda: str([member.has for member in group]))


@pytest.mark.ci
def test_five_consumers_of_topics_with_two_and_three_partitions_are_reverse_assigned(
    kafka: Kafka, members: Callable[..., list[Member]]
) -> None:
    two, three = shareable(kafka, "a-two", 2), shareable(kafka, "b-three", 3)
    group = members(
        5, kafka.unique("five"), [two, three], partition_assignment_strategy="range"
    )
    wanted = {
        f"{two}-0": 3,
        f"{two}-1": 2,
        f"{three}-0": 2,
        f"{three}-1": 2,
        f"{three}-2": 1,
    }

    def shared() -> bool:
        return (
            readers(group) == wanted
            and [sorted(at.topic for at in member.has) for member in group]
            == [[two, three]] * 5
        )

    eventually(shared, PATIENCE_S, lambda: str([member.has for member in group]))


@pytest.mark.ci
def test_members_of_other_topics_do_not_stand_in_the_way(
    kafka: Kafka, members: Callable[..., list[Member]]
) -> None:
    first, second = shareable(kafka, "first", 1), shareable(kafka, "second", 1)
    name = kafka.unique("group")
    ours = members(1, name, [first])[0]
    both = members(1, name, [first, second])[0]
    theirs = members(1, name, [second])[0]
    eventually(
        lambda: readers([ours, both, theirs]) == {f"{first}-0": 2, f"{second}-0": 2},
        PATIENCE_S,
        lambda: str([ours.has, both.has, theirs.has]),
    )
    assert {at.topic for at in ours.has} == {first}
    assert {at.topic for at in theirs.has} == {second}


# --- a slow key -------------------------------------------------------------------


@pytest.mark.ci
def test_a_slow_key_holds_back_nobody_and_what_others_did_is_kept(
    kafka: Kafka, members: Callable[..., list[Member]]
) -> None:
    """Its first record stays unfinished until all others are done; then the next owner
    gets that record only.
    """
    topic, group, records = shareable(kafka, "orders", 1), kafka.unique("slow"), 5000
    kafka.write(
        topic,
        (
            (b"slow" if i == 0 else b"key-%d" % (i % 50), b"%d" % i)
            for i in range(records)
        ),
        partition=0,
    )
    (member,) = members(1, group, [topic], work=lambda record: record.key != b"slow")
    eventually(
        lambda: len(member.seen) == records,
        PATIENCE_S,
        lambda: f"{len(member.seen)} of {records}",
    )
    at = TopicPartition(topic, 0)
    eventually(
        lambda: committed(member, at) == (0, ((1, records - 1),)),
        PATIENCE_S,
        lambda: str(committed(member, at)),
    )
    member.stop()
    (heir,) = members(1, group, [topic])
    eventually(
        lambda: committed(heir, at) == (records, ()),
        PATIENCE_S,
        lambda: str(committed(heir, at)),
    )
    assert [(record.offset, record.key) for record in heir.seen] == [(0, b"slow")]


def committed(
    member: Member, at: TopicPartition
) -> tuple[int, tuple[tuple[int, int], ...]] | None:
    found = member.consumer.committed([at])[at] if member.has else None
    return None if found is None else (found.offset, found.ranges)


def test_one_consumer_that_stands_still_does_not_hold_back_its_sibling(
    kafka: Kafka, members: Callable[..., list[Member]]
) -> None:
    topic, group, records = shareable(kafka, "orders", 1), kafka.unique("still"), 2000
    blocked = threading.Event()
    stuck, free = members(
        2,
        group,
        [topic],
        work=lambda record: (
            key_hash(record.key or b"") in RIGHT or blocked.wait(PATIENCE_S)
        ),
    )
    eventually(
        lambda: readers([stuck, free]) == {f"{topic}-0": 2},
        PATIENCE_S,
        lambda: str([stuck.has, free.has]),
    )
    keys = [b"key-%d" % (i % 50) for i in range(records)]
    kafka.write(topic, ((key, b"") for key in keys), partition=0)
    right = [offset for offset, key in enumerate(keys) if key_hash(key) in RIGHT]
    runs = max(
        (stuck, free),
        key=lambda member: RIGHT in member.has.get(TopicPartition(topic, 0), ()),
    )
    eventually(
        lambda: [record.offset for record in runs.seen] == right,
        PATIENCE_S,
        lambda: f"{len(runs.seen)} of {len(right)}",
    )
    blocked.set()


# --- killed and added ---------------------------------------------------------------


@pytest.mark.slow
def test_consumers_are_killed_and_added_while_100_000_records_flow_and_each_counts_once_in_the_order_of_its_key(
    kafka: Kafka, processes: Callable[..., Processes]
) -> None:
    """Exactly-once: each record's output is in the transaction of its commit, so gaps,
    overlapping owners and disorder show.
    """
    records = 100_000
    acts = [
        "start d",
        "start e",
        "kill a",
        "freeze d",
        "start f",
        "terminate b",
        "kill e",
        "start g",
        "freeze f",
        "kill c",
        "kill d",
    ]
    source, target = shareable(kafka, "orders", 3), kafka.topic("done")
    group = processes(kafka.bootstrap, kafka.unique("chaos"), source, target)
    for name in "abc":
        group.start(name)
    group.await_shares("a", "b", "c")
    feeder = Feeder(kafka.bootstrap, source, records, len(acts) + 1)
    for act, name in map(str.split, acts):
        feeder.go_on()
        time.sleep(1)
        getattr(group, act)(name)
        if act == "start":
            group.await_shares(name)
    feeder.go_on()
    feeder.join()

    def written() -> int:
        return len(read_topic(kafka.bootstrap, target))

    eventually(
        lambda: written() >= records,
        180,
        lambda: f"{written()} of {records}\n{group.logs()}",
    )
    workers = check_outputs(kafka.bootstrap, target, feeder.sent)
    assert workers == {b"a", b"b", b"c", b"d", b"e", b"f", b"g"}, (
        "everybody had a share"
    )
    for name in list(group.running):
        group.terminate(name)
