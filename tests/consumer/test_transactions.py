"""Transactions of siblings in offset order, and the records handed out again after one
that cannot begin.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException

from coopstreams.consumer import OffsetAndRanges
from coopstreams.topology.errors import GroupError, LogError, MembershipLostError
from coopstreams.topology.keys import KeyRange
from tests.consumer.members import Member, keys_of, members
from tests.simulation.producer import Producer

LOW, HIGH = (keys_of(half, 3) for half in KeyRange.split(2))


def one_by_one(done: list[int]) -> Callable[[Member], None]:
    """Return a program with a transaction for each record."""

    def body(member: Member) -> None:
        producer = member.producer()
        member.consumer.subscribe(["in"])
        while True:
            for record in member.consumer.consume(1, 0.1):
                with member.consumer.transaction(producer):
                    member.consumer.done(record)
                done.append(record.offset)

    return body


@pytest.mark.parametrize(
    "keys",
    [
        [LOW[0], LOW[1], HIGH[0]],
        [*LOW],
        [HIGH[0], *LOW],
        [LOW[0], HIGH[0], LOW[1], HIGH[1]],
    ],
)
def test_in_offset_order_nobody_waits_for_a_sibling_that_has_nothing_before(
    keys: list[bytes],
) -> None:
    done: list[int] = []
    with members([], commit_order="offset") as group:
        group.start("a", one_by_one(done))
        group.start("b", one_by_one(done))
        group.run(10.0)
        group.write("in", *keys)
        group.run(3.0)
        assert done == list(range(len(keys)))


def test_siblings_that_wait_for_each_other_on_two_partitions_go_on_after_one_attempt() -> (
    None
):
    failed: list[str] = []
    done: set[tuple[str, int]] = set()

    def by_two(member: Member) -> None:
        producer = member.producer()
        member.consumer.subscribe(["in", "more"])
        while True:
            records = [
                *member.consumer.consume(1, 0.1),
                *member.consumer.consume(1, 0.1),
            ]
            if not records:
                continue
            try:
                with member.consumer.transaction(producer):
                    for record in records:
                        member.consumer.done(record)
                done.update((record.topic, record.offset) for record in records)
            except LogError as error:
                failed.append(str(error))

    with members([], commit_order="offset") as group:
        group.start("a", by_two)
        group.start("b", by_two)
        group.run(10.0)
        group.write("in", LOW[0], HIGH[0], LOW[0], HIGH[0])
        group.write("more", HIGH[0], LOW[0], HIGH[0], LOW[0])
        group.run(20.0)
        assert len(done) == 8
        assert len(failed) == 2


class Unfinished(Producer):
    """A producer with a commit under way, for a while."""

    finished = False

    def begin_transaction(self) -> None:
        if not self.finished:
            raise KafkaException(
                KafkaError(
                    KafkaError._STATE, "commit_transaction has to be called again"
                )
            )
        super().begin_transaction()


def test_what_was_handed_out_comes_again_after_a_transaction_that_could_not_begin() -> (
    None
):
    handed: list[list[int]] = []
    said: set[str] = set()

    def body(member: Member) -> None:
        producer = Unfinished(member.client, member.consumer.transactional_id)
        producer.init_transactions()
        member.consumer.subscribe(["in"])
        while True:
            records = member.consumer.consume(10, 1.0)
            handed.append([record.offset for record in records])
            try:
                with member.consumer.transaction(producer):
                    for record in records:
                        member.consumer.done(record)
            except (LogError, MembershipLostError) as error:
                producer.finished = bool(records)
                said.add(f"{type(error).__name__}: {str(error).rpartition(': ')[2]}")

    with members(LOW) as group:
        group.start("a", body)
        group.run(10.0)
    assert said == {"FencedError: go on with a new one."}
    assert [some for some in handed if some] == [[0, 1, 2], [0, 1, 2]]


def test_a_consumer_that_is_closed_within_a_transaction_commits_nothing_beside_it() -> (
    None
):
    """A handler of SIGTERM may close it: what was done was committed, and its results
    were aborted.
    """
    found: list[OffsetAndRanges | None] = []

    def body(member: Member) -> None:
        producer = member.producer()
        consumer = member.consumer
        consumer.subscribe(["in"])
        while not (records := consumer.consume(1, 0.1)):
            pass

        def work() -> None:
            with consumer.transaction(producer):
                consumer.done(records[0])
                consumer.close()

        with pytest.raises(
            GroupError, match="end it before you consume, commit or close"
        ):
            work()
        found.extend(consumer.committed([("in", 0)]).values())

    with members(LOW) as group:
        group.start("a", body)
        group.run(10.0)
    (committed,) = found
    assert committed is not None
    assert committed.offset == 0
