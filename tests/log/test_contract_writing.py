"""The contract of writers, on MemoryLog and on Kafka."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from coopstreams.log.log import GroupFence, Log, TopicSpec, Writer
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.outputs import ANY_PARTITION
from coopstreams.topology.errors import DeliveryError, FencedError, LogError
from coopstreams.topology.keys import partition_of
from tests.log.conftest import MakeTopic
from tests.log.reading import (
    PATIENCE_S,
    append,
    arrives,
    begin,
    fetch_until,
    fill,
    numbers,
    read_all,
    reader_at,
    records,
    to_end,
    transact,
    values,
    write,
)

Unique = Callable[[str], str]


def deliver(
    writer: Writer,
    topic: str,
    key: bytes | None,
    value: bytes,
    *,
    to: int = 0,
    transactional: bool = False,
) -> None:
    """Append and flush a record: a refusal may surface only at the end."""
    writer.append(topic, [key], [value], [1], partitions=to)
    writer.flush(PATIENCE_S)
    if transactional:
        writer.commit(PATIENCE_S)


def test_keys_go_to_the_partition_that_java_picks(log: Log, topic: MakeTopic) -> None:
    name = topic(partitions=5).topic
    keys = [f"key-{i}".encode() for i in range(100)] + [b""]
    append(log, name, keys, keys, range(1, 102))
    for number in range(5):
        seen = read_all(log, TopicPartition(name, number))
        assert [record.key for record in seen] == [
            key for key in keys if partition_of(key, 5) == number
        ]


def test_partitions_may_be_given_one_for_all_or_one_each(
    log: Log, topic: MakeTopic
) -> None:
    name = topic(partitions=3).topic
    writer = log.writer()
    writer.append(name, [b"a", None], [b"1", b"2"], [1, 2], partitions=2)
    writer.append(
        name, [b"a", b"b", None], [b"3", b"4", b"5"], [3, 4, 5], partitions=[2, 0, 2]
    )
    writer.flush(PATIENCE_S)
    assert [
        values(read_all(log, TopicPartition(name, number))) for number in range(3)
    ] == [
        ["4"],
        [],
        ["1", "2", "3", "5"],
    ]


def test_beside_given_partitions_a_key_may_decide(log: Log, topic: MakeTopic) -> None:
    name = topic(partitions=5).topic
    writer, here = log.writer(), partition_of(b"a", 5)
    there = (here + 1) % 5
    writer.append(
        name, [b"a", b"a"], [b"1", b"2"], [1, 2], partitions=[there, ANY_PARTITION]
    )
    writer.flush(PATIENCE_S)
    assert [
        values(read_all(log, TopicPartition(name, number))) for number in (here, there)
    ] == [["2"], ["1"]]


def test_records_without_a_key_go_to_any_partition(log: Log, topic: MakeTopic) -> None:
    name = topic(partitions=3).topic
    append(log, name, [None] * 30, [str(i).encode() for i in range(30)], range(1, 31))
    seen = [
        value
        for number in range(3)
        for value in values(read_all(log, TopicPartition(name, number)))
    ]
    assert sorted(map(int, filter(None, seen))) == list(range(30))


def test_nothing_is_a_batch_too(log: Log, topic: MakeTopic) -> None:
    partition = topic()
    append(log, partition.topic, [], [], [], partitions=0)
    assert log.end_offset(partition) == 0


def test_delivered_to_is_above_everything_that_was_flushed(
    log: Log, topic: MakeTopic, unique: Unique
) -> None:
    partition = topic()
    plain, other = log.writer(), log.writer(unique("tx"))
    for _ in range(3):
        before = log.end_offset(partition)
        write(plain, partition, numbers(10))
        plain.flush(PATIENCE_S)
        # The marker of the other writer's last commit may come before these records,
        # between them or after them.
        assert before + 10 <= plain.delivered_to(partition) <= before + 11

        begin(other, partition, numbers(10))
        assert other.delivered_to(partition) == log.end_offset(partition)
        other.commit(PATIENCE_S)
        assert other.delivered_to(partition) <= log.end_offset(partition)


@pytest.mark.parametrize("transactional", [False, True])
def test_a_record_that_is_too_large_surfaces_and_the_writer_recovers(
    log: Log, topic: MakeTopic, unique: Unique, transactional: bool
) -> None:
    partition = topic(max_message_bytes="2000")
    writer = log.writer(unique("tx") if transactional else None)
    if transactional:
        writer.begin()
    with pytest.raises(DeliveryError, match="too large"):
        deliver(writer, partition.topic, b"k", b"x" * 5000, transactional=transactional)
    writer.abort()
    if transactional:
        transact(writer, partition, ["fits"])
    else:
        write(writer, partition, ["fits"])
        writer.flush(PATIENCE_S)
    arrives(log, partition, ["fits"])


def test_a_compacted_topic_takes_no_record_without_a_key(
    log: Log, topic: MakeTopic
) -> None:
    partition = topic(cleanup_policy="compact")
    writer = log.writer()
    with pytest.raises(DeliveryError, match=partition.topic):
        deliver(writer, partition.topic, None, b"v")
    write(writer, partition, ["k"])
    writer.flush(PATIENCE_S)
    arrives(log, partition, ["k"])


def test_a_partition_that_does_not_exist_surfaces(log: Log, topic: MakeTopic) -> None:
    name = topic(partitions=2).topic
    writer = log.writer()
    with pytest.raises(DeliveryError, match=name):
        deliver(writer, name, b"k", b"v", to=2)


def test_an_open_transaction_is_invisible_and_its_end_makes_it_count(
    log: Log, topic: MakeTopic, unique: Unique
) -> None:
    partition = topic()
    writer = log.writer(unique("tx"))
    begin(writer, partition, ["a", "b"])
    arrives(log, partition, [])
    assert values(read_all(log, partition, committed_only=False)) == ["a", "b"]
    writer.commit(PATIENCE_S)
    arrives(log, partition, ["a", "b"])


def test_an_aborted_transaction_stays_invisible_and_the_position_passes_it(
    log: Log, topic: MakeTopic, unique: Unique
) -> None:
    partition = topic()
    writer = log.writer(unique("tx"))
    for fate in ("commit", "abort", "commit", "abort"):
        transact(writer, partition, [fate] * 3, commit=fate == "commit")
    reader = reader_at(log, partition)
    batches = fetch_until(
        reader,
        lambda batches: (
            bool(batches) and batches[-1].at_end and batches[-1].next_offset == 16
        ),
    )
    assert [(record.value, record.offset) for record in records(batches)] == [
        (b"commit", i) for i in (0, 1, 2, 8, 9, 10)
    ]
    assert log.end_offset(partition) == 16
    assert (
        values(read_all(log, partition, committed_only=False))
        == ["commit"] * 3 + ["abort"] * 3 + ["commit"] * 3 + ["abort"] * 3
    )


def test_a_partition_of_markers_only_is_read_to_its_end(
    log: Log, topic: MakeTopic, unique: Unique
) -> None:
    partition = topic()
    writer = log.writer(unique("tx"))
    reader = reader_at(log, partition)
    to_end(reader, partition)
    transact(writer, partition, ["never"], commit=False)
    batches = fetch_until(
        reader,
        lambda batches: (
            bool(batches) and batches[-1].at_end and batches[-1].next_offset == 2
        ),
    )
    assert records(batches) == []


def test_committed_reads_stop_at_the_first_open_transaction_and_the_end_offset_does_not(
    log: Log, topic: MakeTopic, unique: Unique
) -> None:
    partition = topic()
    slow, plain = log.writer(unique("slow")), log.writer()
    fill(log, partition, ["before"])
    begin(slow, partition, ["open"])
    write(plain, partition, ["after"])
    plain.flush(PATIENCE_S)
    reader = reader_at(log, partition)
    batches = to_end(reader, partition)
    assert (values(records(batches)), batches[-1].next_offset) == (["before"], 1)
    assert log.end_offset(partition) == 3
    slow.commit(PATIENCE_S)
    batches = fetch_until(
        reader,
        lambda batches: (
            bool(batches) and batches[-1].at_end and batches[-1].next_offset == 4
        ),
    )
    assert values(records(batches)) == ["open", "after"]
    assert log.end_offset(partition) == 4


def test_a_transaction_is_one_over_several_partitions(
    log: Log, topic: MakeTopic, unique: Unique
) -> None:
    first, second = topic(), topic()
    writer = log.writer(unique("tx"))
    for fate, value in (("commit", "yes"), ("abort", "no")):
        writer.begin()
        write(writer, first, [value])
        write(writer, second, [value])
        writer.flush(PATIENCE_S)
        if fate == "commit":
            writer.commit(PATIENCE_S)
        else:
            writer.abort()
    arrives(log, first, ["yes"])
    arrives(log, second, ["yes"])


def test_a_new_writer_with_the_same_id_ends_the_transaction_of_the_old_one_and_fences_it(
    log: Log, topic: MakeTopic, unique: Unique
) -> None:
    partition = topic()
    name = unique("tx")
    old = log.writer(name)
    begin(old, partition, ["old"])
    new = log.writer(name)
    transact(new, partition, ["new"])
    arrives(log, partition, ["new"])

    with pytest.raises(FencedError):
        deliver(old, partition.topic, b"late", b"late", transactional=True)
    old.abort()
    transact(old, partition, ["again"])
    arrives(log, partition, ["new", "again"])


def test_a_closed_writer_leaves_no_transaction_open(
    log: Log, topic: MakeTopic, unique: Unique
) -> None:
    partition = topic()
    writer = log.writer(unique("tx"))
    begin(writer, partition, ["never"])
    writer.close()
    writer.close()
    fill(log, partition, ["after"])
    arrives(log, partition, ["after"])
    with pytest.raises(LogError, match="closed"):
        write(writer, partition, ["x"])


def test_closing_a_plain_writer_flushes_it(log: Log, topic: MakeTopic) -> None:
    partition = topic()
    writer = log.writer()
    write(writer, partition, numbers(100))
    writer.close()
    arrives(log, partition, numbers(100))


def test_what_makes_no_sense_is_refused(
    log: Log, topic: MakeTopic, unique: Unique
) -> None:
    partition = topic()
    writer = log.writer(unique("tx"))
    with pytest.raises(LogError, match="begin one first"):
        write(writer, partition, ["x"])
    with pytest.raises(LogError, match="begin one first"):
        writer.commit(1)
    writer.abort()
    writer.begin()
    with pytest.raises(LogError, match="open already"):
        writer.begin()
    writer.abort()
    with pytest.raises(LogError, match="no transactional id"):
        log.writer().begin()


def test_a_fence_that_would_not_be_checked_is_refused(
    log: Log, topic: MakeTopic, unique: Unique
) -> None:
    partition = topic()
    writer = log.writer(unique("tx"))
    writer.begin()
    member = GroupFence(unique("group"), 3, "somebody")
    for nothing in (
        {},
        {partition: (-1001, "")},
        {partition: (5, ""), TopicPartition("other", 0): (-1, "")},
    ):
        with pytest.raises(ValueError, match="no fence"):
            writer.send_offsets(nothing, member)
    for nobody in (
        GroupFence(member.group, -1, "somebody"),
        GroupFence(member.group, 3, ""),
    ):
        with pytest.raises(FencedError, match="not a member"):
            writer.send_offsets({partition: (5, "")}, nobody)
    writer.abort()


def test_a_request_that_no_broker_fences_is_not_made_once_its_precondition_does_not_hold(
    log: Log, unique: Unique
) -> None:
    there, missing, asked = unique("there"), unique("missing"), list[str]()
    where = TopicPartition(there, 0)
    log.create_topics([TopicSpec(there, 1)], asked.append)
    with closing(log.writer()) as writer:
        writer.append(there, [b"k"] * 4, [b""] * 4, [1] * 4, partitions=0)
        writer.flush(60)

    def refuse(topic: str) -> None:
        asked.append(topic)
        raise FencedError(f"{topic} is not mine any more")

    with pytest.raises(FencedError, match="not mine"):
        log.delete_before(where, 3, refuse)
    with pytest.raises(FencedError, match="not mine"):
        log.delete_topics([there], refuse)
    with pytest.raises(FencedError, match="not mine"):
        log.create_topics([TopicSpec(missing, 1)], refuse)
    assert asked == [there, there, there, missing]
    assert log.start_offset(where) == 0
    assert log.partitions([there, missing]) == {there: 1}
    log.delete_before(where, 3, asked.append)
    assert log.start_offset(where) == 3
    log.delete_topics([there], asked.append)
    assert log.partitions([there]) == {}


@pytest.mark.ci
def test_topics_are_created_once_listed_and_deleted(log: Log, unique: Unique) -> None:
    first, second = unique("made"), unique("made")
    log.create_topics(
        [TopicSpec(first, 3, {"cleanup.policy": "compact"}), TopicSpec(second, 1)]
    )
    log.create_topics([TopicSpec(first, 7)])
    assert log.partitions([first, second, "nobody-made-this"]) == {first: 3, second: 1}
    assert log.partitions().items() >= {first: 3, second: 1}.items()
    assert log.topic_config(first)["cleanup.policy"] == "compact"
    assert log.topic_configs([second, first]) == {
        topic: log.topic_config(topic) for topic in (first, second)
    }
    assert log.topic_configs([]) == {}
    log.delete_topics([first, "nobody-made-this"])
    assert log.partitions([first, second]) == {second: 1}
    with pytest.raises(LogError, match=first):
        log.topic_config(first)
    with pytest.raises(LogError, match=first):
        log.topic_configs([second, first])
    with pytest.raises(LogError, match=first):
        log.end_offset(TopicPartition(first, 0))
    with pytest.raises(LogError, match=first):
        log.create_topics([TopicSpec(first, 0)])
    log.create_topics([])
    log.delete_topics([])
