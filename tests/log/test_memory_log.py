"""Tests that need a log in memory: compaction on demand, group offsets, and random
histories against a plain list.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.log.log import GroupFence, Position, RecordBatch, TopicSpec, Writer
from coopstreams.log.memory.log import MemoryLog
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import FencedError, UnknownTopicError
from tests.log.reading import (
    fill,
    numbers,
    read_all,
    reader_at,
    records,
    to_end,
    values,
    write,
)

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def log_of(*partitions: TopicPartition) -> MemoryLog:
    log = MemoryLog()
    log.create_topics([TopicSpec(partition.topic, 1) for partition in partitions])
    return log


def test_compaction_keeps_the_last_of_each_key_at_its_offset() -> None:
    log = log_of(A)
    writer = log.writer()
    writer.append(
        "a", [b"x", b"y", b"x", b"z", b"y"], [b"1", b"2", b"3", b"4", None], range(1, 6)
    )
    log.compact("a")
    assert [
        (record.offset, record.key, record.value) for record in read_all(log, A)
    ] == [
        (2, b"x", b"3"),
        (3, b"z", b"4"),
        (4, b"y", None),
    ]
    assert (log.start_offset(A), log.end_offset(A)) == (0, 5)


def test_compaction_stops_below_an_open_transaction_and_drops_aborted_records() -> None:
    log = log_of(A)
    failed, slow = log.writer("failed"), log.writer("slow")
    failed.begin()
    write(failed, A, ["k"])
    failed.abort()
    fill(log, A, ["k", "k"])
    slow.begin()
    write(slow, A, ["k"])
    fill(log, A, ["k", "k"])
    log.compact("a")
    assert [record.offset for record in read_all(log, A, committed_only=False)] == [
        3,
        4,
        5,
        6,
    ]


def test_a_reader_amid_compacted_offsets_goes_on_with_what_is_left() -> None:
    log = log_of(A)
    fill(log, A, ["k"] * 9 + ["last"])
    reader = reader_at(log, A)
    (batch,) = reader.fetch(3, 0)
    log.compact("a")
    rest = to_end(reader, A)
    assert (
        batch.next_offset,
        [record.offset for record in records(rest)],
        rest[-1].next_offset,
    ) == (3, [8, 9], 10)


def test_group_offsets_count_with_the_transaction_and_a_stale_fence_does_not() -> None:
    current = 4
    log = MemoryLog(
        lambda fence: (
            None if fence.generation == current else "a newer generation is at work"
        )
    )
    log.create_topics([TopicSpec("a", 1)])
    writer = log.writer("tx")
    for generation, offset in ((4, 10), (3, 11)):
        writer.begin()
        fence = GroupFence("g", generation, "m")
        if generation == current:
            writer.send_offsets({A: (offset, "note")}, fence)
            assert log.committed("g") == {}
            writer.commit(1)
        else:
            with pytest.raises(FencedError, match="newer generation"):
                writer.send_offsets({A: (offset, "")}, fence)
            writer.abort()
        assert log.committed("g") == {A: (10, "note")}
    log.commit_offsets({A: (12, "")}, GroupFence("g", 4, "m"))
    with pytest.raises(FencedError):
        log.commit_offsets({A: (13, "")}, GroupFence("g", 5, "m"))
    assert log.committed("g") == {A: (12, "")}


def test_a_waiting_reader_wakes_when_something_comes() -> None:
    log = log_of(A)
    reader = reader_at(log, A)
    to_end(reader, A)
    timer = threading.Timer(0.05, lambda: fill(log, A, ["x"]))
    timer.start()
    assert values(records(reader.fetch(10, 20))) == ["x"]
    timer.join()


def test_a_topic_deleted_under_a_reader_is_an_error() -> None:
    log = log_of(A)
    reader = reader_at(log, A)
    log.delete_topics(["a"])
    with pytest.raises(UnknownTopicError, match="a-0"):
        reader.fetch(1, 0)


@dataclass
class History:
    """The list model: every offset of a partition, with its value if it is committed;
    and the reader's next expected record.
    """

    log: MemoryLog
    committed: dict[TopicPartition, dict[int, str]] = field(
        default_factory=lambda: {A: {}, B: {}}
    )
    pending: dict[TopicPartition, dict[int, str]] = field(
        default_factory=lambda: {A: {}, B: {}}
    )
    serial: int = 0

    def write(
        self,
        writer: Writer,
        partition: TopicPartition,
        count: int,
        *,
        open_transaction: bool,
    ) -> None:
        start = self.log.end_offset(partition)
        names = numbers(count, self.serial)
        self.serial += count
        write(writer, partition, names)
        target = self.pending if open_transaction else self.committed
        target[partition].update(enumerate(names, start))

    def check(self, batch: RecordBatch, position: int) -> None:
        """Check that the batch has exactly the committed records between the position
        and its own end.
        """
        expected = [
            offset
            for offset in self.visible(batch.partition)
            if position <= offset < batch.next_offset
        ]
        assert [record.offset for record in records([batch])] == expected
        assert values(records([batch])) == [
            self.committed[batch.partition][offset] for offset in expected
        ]
        assert batch.next_offset >= position

    def end(self, writer: Writer, *, commit: bool) -> None:
        if commit:
            writer.commit(1)
            for partition, records_ in self.pending.items():
                self.committed[partition].update(records_)
        else:
            writer.abort()
        self.pending = {A: {}, B: {}}

    def visible(self, partition: TopicPartition) -> list[int]:
        """The offsets that a committed reader may return now: below the first open one."""
        stable = min(self.pending[partition], default=self.log.end_offset(partition))
        return sorted(offset for offset in self.committed[partition] if offset < stable)


where = st.sampled_from([A, B])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), where, st.integers(1, 5)),
        st.tuples(st.just("transact"), where, st.integers(1, 5)),
        st.tuples(st.just("end"), st.booleans()),
        st.tuples(st.just("fetch"), st.integers(1, 6)),
        st.tuples(st.just("hold"), where, st.booleans()),
        st.tuples(
            st.just("assign"), st.sets(where), st.integers(0, 100), st.booleans()
        ),
    ),
    max_size=60,
)


@pytest.mark.ci
@settings(max_examples=300)
@given(steps)
def test_any_history_of_assigning_seeking_holding_and_fetching_reads_each_committed_record_once(  # noqa: C901
    history: list[tuple[object, ...]],
) -> None:
    log = log_of(A, B)
    model, plain, transactional, reader = (
        History(log),
        log.writer(),
        log.writer("tx"),
        log.reader(),
    )
    positions: dict[TopicPartition, int] = {}
    held: set[TopicPartition] = set()
    is_open = False

    def check(batches: list[RecordBatch]) -> None:
        for batch in batches:
            assert batch.partition in positions
            assert batch.partition not in held
            model.check(batch, positions[batch.partition])
            positions[batch.partition] = batch.next_offset

    for step in history:
        match step:
            case ("write", TopicPartition() as partition, int() as count):
                model.write(plain, partition, count, open_transaction=False)
            case ("transact", TopicPartition() as partition, int() as count):
                if not is_open:
                    transactional.begin()
                    is_open = True
                model.write(transactional, partition, count, open_transaction=True)
            case ("end", bool() as commit) if is_open:
                model.end(transactional, commit=commit)
                is_open = False
            case ("fetch", int() as most):
                check(reader.fetch(most, 0))
            case ("hold", TopicPartition() as partition, bool() as flag):
                reader.hold(partition, flag)
                if partition in positions:
                    held = held | {partition} if flag else held - {partition}
            case ("assign", set() as chosen, int() as percent, bool() as stay):
                positions = {
                    partition: positions[partition]
                    if stay and partition in positions
                    else log.end_offset(partition) * percent // 100
                    for partition in chosen
                }
                held &= set(positions)
                reader.assign(
                    {
                        partition: Position(offset)
                        for partition, offset in positions.items()
                    }
                )
            case _:
                pass
    if is_open:
        model.end(transactional, commit=True)
    for partition in (A, B):
        reader.hold(partition, held=False)
    held = set()
    while batches := reader.fetch(1000, 0):
        check(batches)
    assert positions == {
        partition: log.end_offset(partition) for partition in positions
    }
