"""Helpers of the logs' tests: write and read a few records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from coopstreams.log.log import Log, Position, Reader, RecordBatch, Writer
from coopstreams.topology.columns import Headers, Int64s, TopicPartition

PATIENCE_S = 90.0


class Seen(NamedTuple):
    """One record as a reader gave it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    stream_time: int
    headers: Headers | None


def records(batches: Iterable[RecordBatch], slot: int = 0) -> list[Seen]:
    seen: list[Seen] = []
    for batch in batches:
        if batch.slot == slot:
            c = batch.columns
            seen += map(
                Seen,
                c.offsets,
                c.keys,
                c.values,
                c.timestamps,
                c.stream_times,
                c.headers or [None] * len(c),
            )
    return seen


def advances(batches: Iterable[RecordBatch], slot: int) -> list[tuple[int, int]]:
    """Return the offsets at which stream time advances, as the batches of one slot say,
    and the times.
    """
    return [
        at
        for batch in batches
        if batch.slot == slot
        for some in batch.advances
        for at in zip(*some, strict=True)
    ]


def fetch_until(
    reader: Reader, done: Callable[[list[RecordBatch]], bool], max_records: int = 1000
) -> list[RecordBatch]:
    """Fetch until the condition holds; fail at the time limit."""
    batches: list[RecordBatch] = []
    deadline = time.monotonic() + PATIENCE_S
    while not done(batches):
        assert time.monotonic() < deadline, (
            f"not done after {PATIENCE_S} s; the last batches were {batches[-3:]}"
        )
        batches += reader.fetch(max_records, 0.2)
    return batches


def to_end(
    reader: Reader, *partitions: TopicPartition, max_records: int = 1000
) -> list[RecordBatch]:
    """Fetch until the reader reports the end of each of these partitions."""
    missing = set(partitions)

    def done(batches: list[RecordBatch]) -> bool:
        last = {batch.partition: batch for batch in batches}
        return all(
            partition in last and last[partition].at_end for partition in missing
        )

    return fetch_until(reader, done, max_records)


def reader_at(log: Log, *partitions: TopicPartition, offset: int = 0) -> Reader:
    """Return a new reader that stands at this offset of the partitions."""
    reader = log.reader()
    reader.assign(dict.fromkeys(partitions, Position(offset)))
    return reader


def read_all(
    log: Log, partition: TopicPartition, *, committed_only: bool = True
) -> list[Seen]:
    """Return all records of a partition, read by a new reader."""
    reader = log.reader(committed_only=committed_only)
    reader.assign({partition: Position(log.start_offset(partition))})
    seen = records(to_end(reader, partition))
    reader.close()
    return seen


def write(
    writer: Writer,
    partition: TopicPartition,
    values: Sequence[str | None],
    start_ms: int = 1000,
) -> None:
    """Append values with their text as key, one millisecond apart."""
    data = [None if value is None else value.encode() for value in values]
    writer.append(
        partition.topic,
        data,
        data,
        range(start_ms, start_ms + len(data)),
        partitions=partition.partition,
    )


def append(
    log: Log,
    topic: str,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    timestamps: Int64s,
    *,
    partitions: int | None = None,
    headers: Sequence[Headers | None] | None = None,
) -> None:
    """Write a batch by a new writer, and wait until it is in the log."""
    writer = log.writer()
    writer.append(
        topic, keys, values, timestamps, partitions=partitions, headers=headers
    )
    writer.flush(PATIENCE_S)
    writer.close()


def begin(
    writer: Writer, partition: TopicPartition, values: Sequence[str | None]
) -> None:
    """Write values in a new transaction, which stays open."""
    writer.begin()
    write(writer, partition, values)
    writer.flush(PATIENCE_S)


def transact(
    writer: Writer,
    partition: TopicPartition,
    values: Sequence[str | None],
    *,
    commit: bool = True,
) -> None:
    """Write values in a transaction of their own."""
    begin(writer, partition, values)
    if commit:
        writer.commit(PATIENCE_S)
    else:
        writer.abort()


def fill(
    log: Log, partition: TopicPartition, values: Sequence[str], start_ms: int = 1000
) -> None:
    """Write values and wait until they are in the log."""
    writer = log.writer()
    write(writer, partition, values, start_ms)
    writer.flush(PATIENCE_S)
    writer.close()


def numbers(count: int, start: int = 0) -> list[str]:
    """Return this many different values."""
    return [f"v{i:05d}" for i in range(start, start + count)]


def values(seen: Iterable[Seen]) -> list[str | None]:
    return [None if record.value is None else record.value.decode() for record in seen]


def arrives(
    log: Log,
    partition: TopicPartition,
    expected: Sequence[str | None],
    *,
    committed_only: bool = True,
) -> None:
    """Assert that the partition soon has these values: Kafka writes a commit's markers
    after its answer.
    """
    deadline = time.monotonic() + PATIENCE_S
    while (
        values(seen := read_all(log, partition, committed_only=committed_only))
        != list(expected)
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    assert values(seen) == list(expected)
