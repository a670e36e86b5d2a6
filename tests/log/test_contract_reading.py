"""The contract of readers, on MemoryLog and on Kafka."""

from __future__ import annotations

import time
from threading import Thread

import pytest

from coopstreams.log.log import NO_STREAM_TIME, Log, Position, TopicSpec
from coopstreams.log.time_marks import headers_of
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.errors import (
    LogError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from coopstreams.topology.keys import MAX_HASH, WHOLE, KeyRange, key_hash, offset_hash
from tests.log.conftest import MakeTopic
from tests.log.reading import (
    PATIENCE_S,
    advances,
    append,
    fetch_until,
    fill,
    numbers,
    read_all,
    reader_at,
    records,
    to_end,
    values,
)


def test_a_null_key_a_tombstone_and_empty_bytes_stay_different(
    log: Log, topic: MakeTopic
) -> None:
    partition = topic()
    pairs: list[tuple[bytes | None, bytes | None]] = [
        (None, b"v"),
        (b"k", None),
        (None, None),
        (b"", b"v"),
        (b"k", b""),
        (b"", b""),
        (b"\0k\xff", b"\xff\0"),
    ]
    append(
        log,
        partition.topic,
        [key for key, _ in pairs],
        [value for _, value in pairs],
        range(1, 8),
    )
    assert [(record.key, record.value) for record in read_all(log, partition)] == pairs


def test_headers_stay_in_order_and_a_batch_without_any_has_no_column(
    log: Log, topic: MakeTopic
) -> None:
    partition = topic()
    headers: list[list[tuple[str, bytes | None]] | None] = [
        None,
        [("a", b"1"), ("b", None), ("a", b"")],
        None,
    ]
    append(log, partition.topic, [b"k"] * 3, [b"v"] * 3, [1, 2, 3], headers=headers)
    assert [record.headers for record in read_all(log, partition)] == headers

    plain = topic()
    fill(log, plain, ["x"])
    reader = reader_at(log, plain)
    assert all(batch.columns.headers is None for batch in to_end(reader, plain))


def test_timestamps_are_kept_even_out_of_order(log: Log, topic: MakeTopic) -> None:
    partition = topic()
    timestamps = [5, 1, 1_700_000_000_123, 7, -1]
    append(log, partition.topic, [b"k"] * 5, [b"v"] * 5, timestamps)
    assert [record.timestamp for record in read_all(log, partition)] == timestamps


def test_small_fetches_give_everything_once_and_in_order(
    log: Log, topic: MakeTopic
) -> None:
    partition = topic()
    fill(log, partition, numbers(1000))
    reader = reader_at(log, partition)
    batches = to_end(reader, partition, max_records=7)
    seen = records(batches)
    assert values(seen) == numbers(1000)
    assert [record.offset for record in seen] == list(range(1000))
    assert all(len(batch.columns) <= 7 for batch in batches)


def test_a_run_says_where_the_reader_stands(log: Log, topic: MakeTopic) -> None:
    partition = topic()
    fill(log, partition, numbers(10))
    reader = log.reader()
    reader.assign({partition: Position(4, stream_time=77)})
    batch = next(
        batch
        for batch in to_end(reader, partition, max_records=3)
        if len(batch.columns)
    )
    assert list(batch.columns.offsets) == [4, 5, 6]
    assert (batch.partition, batch.slot, batch.next_offset, batch.stream_time) == (
        partition,
        0,
        7,
        1006,
    )


def test_the_end_is_told_once_and_again_after_more_came(
    log: Log, topic: MakeTopic
) -> None:
    partition = topic()
    reader = reader_at(log, partition)
    (batch,) = to_end(reader, partition)
    assert (len(batch.columns), batch.next_offset, batch.stream_time) == (
        0,
        0,
        NO_STREAM_TIME,
    )
    assert reader.fetch(10, 0.3) == []

    fill(log, partition, ["a"])
    batches = to_end(reader, partition)
    assert (
        batches[-1].next_offset,
        batches[-1].stream_time,
        values(records(batches)),
    ) == (1, 1000, ["a"])
    assert reader.fetch(10, 0.3) == []


def test_fetch_waits_no_longer_than_it_may(log: Log, topic: MakeTopic) -> None:
    partition = topic()
    reader = reader_at(log, partition)
    to_end(reader, partition)
    start = time.monotonic()
    assert reader.fetch(10, 0.2) == []
    assert 0.1 < time.monotonic() - start < PATIENCE_S


def test_a_fetch_that_waits_goes_on_when_it_is_woken_and_misses_nothing(
    log: Log, topic: MakeTopic
) -> None:
    partition = topic()
    reader = reader_at(log, partition)
    to_end(reader, partition)
    reader.wake()
    assert reader.fetch(10, 600) == []  # `wake` comes before the wait
    for _ in range(2):
        waiting = Thread(target=reader.fetch, args=(10, 600))
        waiting.start()
        reader.wake()
        waiting.join()
    fill(log, partition, ["a"])
    assert values(records(to_end(reader, partition))) == ["a"]


@pytest.mark.parametrize("parts", [1, 2, 3, 8, 256])
def test_each_record_goes_to_the_one_slot_whose_range_holds_its_hash(
    log: Log, topic: MakeTopic, parts: int
) -> None:
    partition = topic()
    fill(log, partition, numbers(500))
    ranges = list(
        reversed(KeyRange.split(parts))
    )  # the slot is the index, in any order of ranges
    reader = reader_at(log, partition)
    reader.route(partition, ranges)
    batches = to_end(reader, partition, max_records=100)
    for slot, piece in enumerate(ranges):
        assert values(records(batches, slot)) == [
            value for value in numbers(500) if key_hash(value.encode()) in piece
        ]
    assert {batch.slot for batch in batches} == set(range(parts))
    assert {batch.next_offset for batch in batches[-parts:]} == {500}


def test_what_is_outside_all_ranges_is_dropped_and_the_position_moves(
    log: Log, topic: MakeTopic
) -> None:
    partition = topic()
    fill(log, partition, numbers(300))
    hashes = sorted(key_hash(value.encode()) for value in numbers(300))
    low, high = (
        KeyRange(hashes[10], hashes[20]),
        KeyRange(hashes[100], hashes[199]),
    )  # cut between key groups, with holes around
    reader = reader_at(log, partition)
    reader.route(partition, [high, low])
    batches = to_end(reader, partition)
    assert [len(records(batches, slot)) for slot in (0, 1)] == [100, 11]
    assert all(
        key_hash(record.key or b"") in piece
        for slot, piece in ((0, high), (1, low))
        for record in records(batches, slot)
    )
    assert batches[-1].next_offset == 300


def test_a_fetch_in_which_nothing_is_kept_still_moves_the_position(
    log: Log, topic: MakeTopic
) -> None:
    partition = topic()
    fill(log, partition, ["a"] * 50)
    elsewhere = KeyRange(0, key_hash(b"a") - 1)
    reader = reader_at(log, partition)
    reader.route(partition, [elsewhere])
    batches = to_end(reader, partition)
    assert (records(batches), batches[-1].next_offset, batches[-1].stream_time) == (
        [],
        50,
        1049,
    )


def test_a_record_without_a_key_has_the_hash_of_its_offset(
    log: Log, topic: MakeTopic
) -> None:
    partition = topic()
    append(log, partition.topic, [None] * 64 + [b"k"], [b"v"] * 65, range(65, 130))
    ranges = KeyRange.split(4)
    reader = reader_at(log, partition)
    reader.route(partition, ranges)
    batches = to_end(reader, partition)
    for slot, piece in enumerate(ranges):
        expected = [i for i in range(64) if offset_hash(i) in piece] + [64] * (
            key_hash(b"k") in piece
        )
        assert [record.offset for record in records(batches, slot)] == expected


def test_the_end_of_keys_is_left_out_of_their_hash_where_a_suffix_is_given(
    log: Log, topic: MakeTopic
) -> None:
    partition = topic()
    names = [b"key-%d" % number for number in range(50)]
    keys = [
        *(name + bytes([number] * 12) for number, name in enumerate(names)),
        b"",
        b"short",
        None,
    ]
    append(log, partition.topic, keys, [b"v"] * 53, range(53))
    hashes = [*map(key_hash, names), key_hash(b""), key_hash(b""), offset_hash(52)]
    ranges = KeyRange.split(5)[1:4]
    reader = reader_at(log, partition)
    reader.route(partition, ranges, suffix=12)
    batches = to_end(reader, partition)
    for slot, piece in enumerate(ranges):
        expected = [offset for offset, hash_ in enumerate(hashes) if hash_ in piece]
        assert [record.offset for record in records(batches, slot)] == expected


def test_a_new_route_counts_from_the_next_fetch(log: Log, topic: MakeTopic) -> None:
    partition = topic()
    fill(log, partition, numbers(100))
    halves = KeyRange.split(2)
    reader = log.reader()
    reader.route(partition, halves)  # before the partition is assigned
    reader.assign({partition: Position(0)})
    first = fetch_until(reader, bool, max_records=40)
    at = first[-1].next_offset
    reader.route(partition, [WHOLE])
    rest = to_end(reader, partition)
    assert sorted(
        record.offset for slot in (0, 1) for record in records(first, slot)
    ) == list(range(at))
    assert [record.offset for record in records(rest)] == list(range(at, 100))


def test_ranges_that_overlap_are_refused(log: Log, topic: MakeTopic) -> None:
    partition = topic()
    with pytest.raises(ValueError, match="overlaps"):
        log.reader().route(partition, [KeyRange(0, 10), KeyRange(10, MAX_HASH)])


def test_stream_time_is_that_of_all_records_whatever_the_ranges(
    log: Log, topic: MakeTopic
) -> None:
    partition = topic()
    names = [f"k{i}".encode() for i in range(40)]
    timestamps = [(i * 7919) % 97 + 1 for i in range(40)]
    append(log, partition.topic, names, names, timestamps)
    expected = [max(timestamps[: i + 1]) for i in range(40)]
    for ranges in ([], KeyRange.split(4), KeyRange.split(8)[3:4]):
        reader = reader_at(log, partition)
        if ranges:
            reader.route(partition, ranges)
        batches = to_end(reader, partition, max_records=9)
        for slot in range(max(len(ranges), 1)):
            assert all(
                record.stream_time == expected[record.offset]
                for record in records(batches, slot)
            )
        assert batches[-1].stream_time == max(timestamps)


def test_batches_say_where_stream_time_advances_whatever_the_ranges(
    log: Log, topic: MakeTopic
) -> None:
    partition = topic()
    names = [f"k{i}".encode() for i in range(40)]
    timestamps = [(i * 7919) % 97 + 1 for i in range(40)]
    append(log, partition.topic, names, names, timestamps)
    for start, before in ((0, NO_STREAM_TIME), (3, 50)):
        expected, now = [], before
        for offset in range(start, 40):
            if timestamps[offset] > now:
                now = timestamps[offset]
                expected.append((offset, now))
        for ranges in (KeyRange.split(4), KeyRange.split(8)[3:4]):
            reader = log.reader()
            reader.assign({partition: Position(start, before)})
            reader.route(partition, ranges, advances=True)
            batches = to_end(reader, partition, max_records=9)
            for slot in range(len(ranges)):
                assert advances(batches, slot) == expected
            reader.route(partition, ranges)
            reader.assign({partition: Position(start, before)})
            assert advances(to_end(reader, partition), 0) == []


def test_time_marks_are_dropped_unless_they_are_to_be_kept(
    log: Log, topic: MakeTopic
) -> None:
    partition = topic()
    headers = [None, headers_of(50), None]
    append(
        log,
        partition.topic,
        [b"a", None, b"b"],
        [b"1", None, b"2"],
        [10, 50, 20],
        headers=headers,
    )
    for ranges in ([WHOLE], KeyRange.split(2)):
        reader = reader_at(log, partition)
        offsets = []
        for keep in (None, False, True):
            if keep is not None:
                reader.route(partition, ranges, keep_marks=keep)
            reader.assign({partition: Position(0)})
            batches = to_end(reader, partition)
            offsets.append(
                sorted(
                    seen.offset
                    for slot in range(len(ranges))
                    for seen in records(batches, slot)
                )
            )
        assert offsets == [[0, 2], [0, 2], [0, 1, 2]]


def test_stream_time_goes_on_from_the_position(log: Log, topic: MakeTopic) -> None:
    partition = topic()
    fill(log, partition, numbers(4), start_ms=1000)
    reader = log.reader()
    reader.assign({partition: Position(2, stream_time=1002)})
    assert [record.stream_time for record in records(to_end(reader, partition))] == [
        1002,
        1003,
    ]
    reader.assign({partition: Position(1, stream_time=9999)})
    assert [record.stream_time for record in records(to_end(reader, partition))] == [
        9999,
        9999,
        9999,
    ]


def test_an_extractor_sees_all_records_before_ranges_are_cut(
    log: Log, topic: MakeTopic
) -> None:
    partition = topic()
    fill(log, partition, numbers(60))
    befores = []

    def extract(where: TopicPartition, columns: Columns, before: int) -> list[int]:
        assert where == partition
        befores.append(before)
        return [
            -1 if offset % 10 == 9 else 50_000 + offset for offset in columns.offsets
        ]

    ranges = KeyRange.split(2)
    reader = reader_at(log, partition)
    reader.route(partition, ranges, extract)
    batches = to_end(reader, partition, max_records=20)
    seen = sorted(records(batches, 0) + records(batches, 1))
    assert [record.timestamp for record in seen] == [
        -1 if i % 10 == 9 else 50_000 + i for i in range(60)
    ]
    assert [record.stream_time for record in seen] == [
        50_000 + i - (i % 10 == 9) for i in range(60)
    ]
    assert befores[0] == NO_STREAM_TIME
    assert befores == sorted(befores)


def test_a_held_partition_waits_and_loses_nothing(log: Log, topic: MakeTopic) -> None:
    first, second = topic(), topic()
    fill(log, first, numbers(2000))
    fill(log, second, numbers(10))
    reader = reader_at(log, first, second)
    before = fetch_until(
        reader,
        lambda batches: any(batch.partition == first for batch in batches),
        max_records=100,
    )
    reader.hold(first, held=True)
    others = fetch_until(
        reader,
        lambda batches: any(
            batch.at_end for batch in before + batches if batch.partition == second
        ),
    )
    assert {batch.partition for batch in others} <= {second}
    assert reader.fetch(10_000, 0.3) == []
    fill(log, first, numbers(500, start=2000))
    assert reader.fetch(10_000, 0.3) == []
    reader.hold(first, held=False)
    rest = to_end(reader, first, max_records=300)
    assert values(
        records(batch for batch in before + rest if batch.partition == first)
    ) == numbers(2500)


@pytest.mark.ci
def test_many_partitions_of_several_topics_are_told_apart(
    log: Log, topic: MakeTopic
) -> None:
    parts = [
        TopicPartition(topic(partitions=3).topic, number)
        for _ in range(2)
        for number in range(3)
    ]
    for i, partition in enumerate(parts):
        fill(log, partition, numbers(200, start=1000 * i))
    for chosen in (
        parts,
        parts[:3],
    ):  # with and without partition numbers that two topics share
        reader = reader_at(log, *chosen)
        batches = to_end(reader, *chosen, max_records=150)
        for partition in chosen:
            seen = records(batch for batch in batches if batch.partition is partition)
            assert values(seen) == numbers(200, start=1000 * parts.index(partition))


def test_a_partition_that_stays_assigned_goes_on_where_it_stands(
    log: Log, topic: MakeTopic
) -> None:
    first, second = topic(), topic()
    fill(log, first, numbers(100))
    fill(log, second, numbers(100))
    reader = reader_at(log, first)
    batches = fetch_until(reader, bool, max_records=30)
    at = Position(batches[-1].next_offset, batches[-1].stream_time)
    reader.assign({first: at, second: Position(50)})
    batches += to_end(reader, first, second, max_records=30)
    assert values(
        records(batch for batch in batches if batch.partition == first)
    ) == numbers(100)
    assert values(
        records(batch for batch in batches if batch.partition == second)
    ) == numbers(50, start=50)


def test_a_seek_gives_nothing_that_was_fetched_before_it(
    log: Log, topic: MakeTopic
) -> None:
    partition = topic()
    fill(log, partition, numbers(5000))
    reader = reader_at(log, partition)
    fetch_until(reader, bool, max_records=10)
    for start in (3000, 17, 4999, 0, 2500):
        reader.assign({partition: Position(start)})
        batches = fetch_until(
            reader, lambda batches: len(records(batches)) > 0, max_records=10
        )
        assert records(batches)[0].offset == start
    reader.assign({})
    assert reader.fetch(10, 0.1) == []
    reader.assign({partition: Position(100)})
    assert values(records(to_end(reader, partition))) == numbers(4900, start=100)


@pytest.mark.ci
def test_an_unknown_topic_is_an_error_and_changes_nothing(
    log: Log, topic: MakeTopic
) -> None:
    partition = topic()
    fill(log, partition, ["a"])
    reader = reader_at(log, partition)
    for unknown in (
        TopicPartition("nobody-made-this", 0),
        TopicPartition(partition.topic, 5),
    ):
        with pytest.raises(UnknownTopicError, match=unknown.topic):
            reader.assign({unknown: Position(0)})
    assert values(records(to_end(reader, partition))) == ["a"]


@pytest.mark.parametrize("offset", [11, 1_000_000])
def test_a_position_after_the_end_is_an_error_until_it_is_mended(
    log: Log, topic: MakeTopic, offset: int
) -> None:
    partition, other = topic(), topic()
    fill(log, partition, numbers(10))
    fill(log, other, numbers(3))
    reader = reader_at(log, partition, offset=offset)
    for _ in range(2):
        with pytest.raises(
            OffsetOutOfRangeError,
            match=f"{offset} of {partition}|{partition} from offset {offset}",
        ):
            fetch_until(reader, lambda _: False)
    reader.assign({partition: Position(8), other: Position(0)})
    batches = to_end(reader, partition, other)
    assert values(
        records(batch for batch in batches if batch.partition == partition)
    ) == numbers(2, start=8)
    assert values(
        records(batch for batch in batches if batch.partition == other)
    ) == numbers(3)


def test_an_offset_is_found_by_time(log: Log, topic: MakeTopic) -> None:
    partition = topic()
    timestamps = [1000, 3000, 2000, 5000]
    append(
        log,
        partition.topic,
        [b"k"] * 4,
        [b"v"] * 4,
        timestamps,
        partitions=partition.partition,
    )
    assert [log.offset_at(partition, at) for at in (0, 1000, 1001, 3001, 5001)] == [
        0,
        0,
        1,
        3,
        4,
    ]


def test_what_was_deleted_before_it_was_read_is_out_of_range(
    log: Log, topic: MakeTopic
) -> None:
    partition = topic()
    fill(log, partition, numbers(10))
    log.delete_before(partition, 6)
    assert (log.start_offset(partition), log.end_offset(partition)) == (6, 10)
    reader = reader_at(log, partition, offset=5)
    with pytest.raises(OffsetOutOfRangeError):
        fetch_until(reader, lambda _: False)
    reader.assign({partition: Position(6)})
    assert values(records(to_end(reader, partition))) == numbers(4, start=6)
    with pytest.raises(OffsetOutOfRangeError):
        log.delete_before(partition, 11)


@pytest.mark.parametrize("ahead", [6, 1_000_000])
def test_what_was_said_of_another_position_does_not_count_any_more(
    log: Log, topic: MakeTopic, ahead: int
) -> None:
    """After a seek, a client reports the old offset as out of range, as if it were the
    new one.
    """
    partition = topic()
    fill(log, partition, numbers(10))
    log.delete_before(partition, 6)
    reader = log.reader()
    for wrong in (2, ahead + 1) if ahead > 10 else (2, 3):
        reader.assign({partition: Position(wrong)})
        time.sleep(1)  # the answer comes without a fetch
    reader.assign({partition: Position(6)})
    assert values(records(to_end(reader, partition))) == numbers(4, start=6)


@pytest.mark.ci
def test_a_topic_that_is_made_anew_has_another_id(log: Log, topic: MakeTopic) -> None:
    name = topic().topic
    first = log.topic_id(name)
    assert log.topic_id(name) == first != log.topic_id(topic().topic)
    log.delete_topics([name])
    with pytest.raises(UnknownTopicError):
        log.topic_id(name)
    log.create_topics([TopicSpec(name, 1)])
    assert log.topic_id(name) != first


def test_a_closed_reader_reads_no_more(log: Log, topic: MakeTopic) -> None:
    reader = reader_at(log, topic())
    reader.close()
    reader.close()
    with pytest.raises(LogError, match="closed"):
        reader.fetch(1, 0.0)
