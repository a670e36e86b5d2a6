"""Transactions of siblings in offset order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from coopstreams.topology.keys import KeyRange
from tests.consumer.members import Member, keys_of, members

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
        group.write(*keys)
        group.run(3.0)
        assert done == list(range(len(keys)))
