"""Transactions of siblings in offset order, and the records handed out again after one that cannot begin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException

from coopstreams.topology.errors import LogError, MembershipLostError
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
    "keys", [[LOW[0], LOW[1], HIGH[0]], [*LOW], [HIGH[0], *LOW], [LOW[0], HIGH[0], LOW[1], HIGH[1]]]
)
def test_in_offset_order_nobody_waits_for_a_sibling_that_has_nothing_before(keys: list[bytes]) -> None:
    done: list[int] = []
    with members([], commit_order="offset") as group:
        group.start("a", one_by_one(done))
        group.start("b", one_by_one(done))
        group.run(10.0)
        group.write("in", *keys)
        group.run(3.0)
        assert done == list(range(len(keys)))


def test_siblings_that_wait_for_each_other_on_two_partitions_go_on_after_one_attempt() -> None:
    failed: list[str] = []
    done: set[tuple[str, int]] = set()

    def by_two(member: Member) -> None:
        producer = member.producer()
        member.consumer.subscribe(["in", "more"])
        while True:
            records = [*member.consumer.consume(1, 0.1), *member.consumer.consume(1, 0.1)]
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
            raise KafkaException(KafkaError(KafkaError._STATE, "commit_transaction has to be called again"))
        super().begin_transaction()


def test_what_was_handed_out_comes_again_after_a_transaction_that_could_not_begin() -> None:
    handed: list[list[int]] = []

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
            except (LogError, MembershipLostError):
                producer.finished = bool(records)

    with members(LOW) as group:
        group.start("a", body)
        group.run(10.0)
    assert [some for some in handed if some] == [[0, 1, 2], [0, 1, 2]]
