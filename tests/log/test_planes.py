"""Both data planes read the same from the same topics: odd records, transactions, key
ranges, held partitions.
"""

from __future__ import annotations

import time
from collections import defaultdict
from random import Random

import pytest

from coopstreams.log.batches import stream_times
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.native import SETTING
from coopstreams.log.log import Position
from coopstreams.log.time_marks import headers_of
from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.keys import KeyRange
from tests.conftest import Kafka, needs_native
from tests.log.reading import PATIENCE_S, Seen, advances, records

pytestmark = [pytest.mark.broker, needs_native]

KEYS = [None, b"", b"k", b"\x00\xff", b"key-1", b"key-2", b"long" * 300]
VALUES = [None, b"", b"v", b"\xff" * 40, b"huge" * 50_000]
HEADERS: list[Headers | None] = [
    None,
    [],
    [("a", None)],
    [("", b""), ("ä", b"\x00"), ("a", b"1"), ("a", b"2")],
]
RECORDS = 300
"""Records of each transaction."""
TRANSACTIONS = 6
END = TRANSACTIONS * (RECORDS + 1)
"""A marker ends each transaction."""

Slots = dict[tuple[TopicPartition, int], list[Seen]]


def columns(random: Random, *, marks: bool) -> Columns:
    """Return odd records, without and with time marks between them."""
    keys = random.choices(KEYS, k=RECORDS)
    values = random.choices(VALUES, weights=[5, 5, 50, 50, 1], k=RECORDS)
    timestamps = random.choices(range(1, 5000), k=RECORDS)
    headers = random.choices(HEADERS, weights=[50, 5, 5, 5], k=RECORDS)
    if marks:
        for i in random.sample(range(RECORDS), 5):
            keys[i], values[i], headers[i] = (
                None,
                None,
                headers_of(random.randrange(9000)),
            )
            timestamps[i] = random.randrange(
                9000
            )  # later than those of records: it is not to count as theirs do
    return Columns(keys, values, timestamps, range(RECORDS), (), headers)


def fill(
    log: KafkaLog, partitions: list[TopicPartition], transactional_id: str, seed: int
) -> None:
    """Write committed and aborted transactions, which leave holes, into the partitions
    in turn.
    """
    random, writer = Random(seed), log.writer(transactional_id)
    for transaction in range(TRANSACTIONS):
        writer.begin()
        for partition in partitions:
            some = columns(random, marks=transaction == 4)
            writer.append(
                partition.topic,
                some.keys,
                some.values,
                some.timestamps,
                partitions=partition.partition,
                headers=some.headers,
            )
        if transaction % 3 == 1:
            writer.flush(PATIENCE_S)
            writer.abort()
        else:
            writer.commit(PATIENCE_S)
    writer.close()


def read(
    log: KafkaLog, partitions: list[TopicPartition], seed: int, *, committed_only: bool
) -> Slots:
    """Return all records by partition and slot, read in odd portions, with each
    partition held sometimes; and the advances of stream time, by partition, in place of
    slot -2.

    Checks that positions and stream times never go back, and that the end comes with
    the last record.
    """
    random, reader = Random(seed), log.reader(committed_only=committed_only)
    found = defaultdict[tuple[TopicPartition, int], list[Seen]](list)
    routes = {partitions[1]: KeyRange.split(3), partitions[2]: KeyRange.split(8)[2:4]}
    for partition, ranges in routes.items():
        reader.route(
            partition, ranges, time_marks=partition == partitions[2], advances=True
        )
    at = dict.fromkeys(partitions, Position(0))
    reader.assign(at)
    deadline = time.monotonic() + PATIENCE_S
    while any(position.offset < END for position in at.values()):
        assert time.monotonic() < deadline
        held = {partition for partition in partitions if random.random() < 0.3}
        for partition in partitions:
            reader.hold(partition, partition in held)
        for batch in reader.fetch(random.choice([1, 7, 100, 1000]), 0.05):
            assert batch.partition not in held
            assert batch.next_offset >= at[batch.partition].offset
            assert batch.stream_time >= at[batch.partition].stream_time
            assert batch.at_end == (batch.next_offset == END)
            found[batch.partition, batch.slot] += records([batch], batch.slot)
            times = advances([batch], 0)
            found[batch.partition, -2] += [
                Seen(offset, None, None, 0, time_ms, None) for offset, time_ms in times
            ]
            if batch.slot == len(routes.get(batch.partition, [None])) - 1:
                at[batch.partition] = Position(batch.next_offset, batch.stream_time)
    reader.close()
    for partition in partitions:
        found[partition, -1] = [
            Seen(at[partition].offset, None, None, 0, at[partition].stream_time, None)
        ]
    return dict(found)


@pytest.mark.parametrize("committed_only", [True, False])
def test_both_planes_read_alike(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, committed_only: bool
) -> None:
    name = kafka.topic(partitions=2)
    partitions = [
        TopicPartition(name, 0),
        TopicPartition(name, 1),
        TopicPartition(kafka.topic(), 0),
    ]
    log = KafkaLog(kafka.settings)
    fill(log, partitions, kafka.unique("tx"), seed=7)
    while set(log.end_offsets(partitions).values()) != {END}:
        time.sleep(0.01)
    found: dict[str, Slots] = {}
    for plane in ("0", "1"):
        monkeypatch.setenv(SETTING, plane)
        found[plane] = read(log, partitions, seed=11, committed_only=committed_only)
    log.close()
    assert found["1"] == found["0"]
    whole = found["0"][partitions[0], 0]
    times = [record.timestamp for record in whole]
    assert [record.stream_time for record in whole] == list(stream_times(times, -1))
    assert len(whole) >= 3 * RECORDS, "more than one fetch"
    assert all(found["0"][partitions[1], slot] for slot in range(3)), (
        "each range has records"
    )
    assert all(found["0"][partition, -2] for partition in partitions[1:]), (
        "stream time advances"
    )
