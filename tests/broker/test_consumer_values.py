"""Records that wait with or without their values, on a real Kafka: the same ones come,
in the same order.
"""

from __future__ import annotations

import time

import pytest

from coopstreams.commit.cluster_policy import PolicyTopic
from coopstreams.consumer import ConsumerRecord, CooperativeConsumer, KeyRange
from coopstreams.consumer.owned_range import OwnedRange
from coopstreams.topology.errors import OffsetOutOfRangeError
from tests.broker.consuming import Orders
from tests.broker.waiting import eventually

pytestmark = pytest.mark.broker

LEFT, RIGHT = KeyRange.split(2)
AT_ONCE = 20


def write_with_holes(orders: Orders) -> list[int]:
    """Write committed and aborted records; return the offsets of the committed ones."""
    writer = orders.log.writer(f"{orders.topic}-writer")
    for part in range(6):
        writer.begin()
        some = range(100 * part, 100 * part + 100)
        writer.append(
            orders.topic,
            [b"%d" % n for n in some],
            [b"v%d" % n for n in some],
            [n + 1 for n in some],
            partitions=0,
        )
        writer.flush(10)
        writer.abort() if part % 2 else writer.commit(10)
    writer.close()
    eventually(
        lambda: orders.log.end_offset(orders.at) == 606,
        90,
        lambda: "the last marker is written after the abort was answered",
    )
    orders.write(30)
    return [
        offset for part in (0, 2, 4) for offset in range(101 * part, 101 * part + 100)
    ] + list(range(606, 636))


class Reading:
    """A consumer of both halves of a partition; the left half stops after `AT_ONCE`
    records until it is released.
    """

    def __init__(self, orders: Orders, *, reserves: bool) -> None:
        PolicyTopic(orders.log).set(
            "reserve.message.value.range.fetch", reserves, orders.topic
        )
        self.end = orders.log.end_offset(orders.at)
        self.consumer: CooperativeConsumer = orders.make(
            max_individual_commits=AT_ONCE, group_id=f"{orders.group}-{reserves}"
        )
        self.consumer.assign({orders.at: [LEFT, RIGHT]})
        self.got: dict[KeyRange, list[ConsumerRecord]] = {LEFT: [], RIGHT: []}
        self.until = time.monotonic() + 300
        while not (
            self.owned_ranges
            and all(owned.taken >= self.end for owned in self.owned_ranges)
            and self.right_is_done
        ):
            self.turn()
            for record in self.got[RIGHT]:
                record.owned.inflight.done(record.offset)
        assert len(self.got[LEFT]) == AT_ONCE

    @property
    def owned_ranges(self) -> list[OwnedRange]:
        return sorted(
            self.consumer._session.owned_ranges.values(), key=lambda owned: owned.id
        )

    @property
    def right_is_done(self) -> bool:
        return self.owned_ranges[1].inflight.next >= self.end

    def turn(self) -> None:
        assert time.monotonic() < self.until
        for record in self.consumer.consume(30, 0.1):
            self.got[record.key_range].append(record)

    def go_on(self) -> None:
        while True:
            self.turn()

    def finish(self) -> None:
        """Let the left consumer read to the end."""
        while self.owned_ranges[0].inflight.next < self.end:
            for record in self.got[LEFT]:
                record.owned.inflight.done(record.offset)
            self.turn()

    def seen(self) -> list[tuple[int, bytes | None, bytes | None, int]]:
        return [
            (record.offset, record.key, record.value, record.timestamp)
            for key_range in (LEFT, RIGHT)
            for record in self.got[key_range]
        ]


@pytest.mark.ci
def test_whether_values_are_kept_or_read_again_the_same_records_come_in_the_same_order(
    orders: Orders,
) -> None:
    offsets = write_with_holes(orders)
    kept, again = Reading(orders, reserves=True), Reading(orders, reserves=False)
    assert 0 < again.owned_ranges[0].waiting.bytes < kept.owned_ranges[0].waiting.bytes
    assert not again.owned_ranges[0].behind
    kept.finish()
    again.finish()
    assert kept.seen() == again.seen()
    assert sorted(offset for offset, *_ in kept.seen()) == offsets
    assert [owned.waiting.bytes for owned in again.owned_ranges] == [0, 0]


@pytest.mark.ci
def test_what_retention_deleted_before_its_value_was_read_again_is_an_error_until_somebody_seeks(
    orders: Orders,
) -> None:
    write_with_holes(orders)
    reading = Reading(orders, reserves=False)
    orders.log.delete_before(orders.at, 606)
    for record in reading.got[LEFT]:
        reading.consumer.done(record)
    with pytest.raises(OffsetOutOfRangeError, match=orders.topic):
        reading.go_on()
    reading.consumer.seek(orders.at, 606)
    seen = len(reading.got[LEFT])
    reading.finish()
    assert [record.offset for record in reading.got[LEFT][seen:]] == [
        606 + n for n in orders.offsets_of(LEFT)
    ]
