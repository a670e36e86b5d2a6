"""Unreadable records of the group: never skipped, reported with the cure, replaced by
later records of the same key.
"""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coopstreams.commit.follower import Follower
from coopstreams.commit.group_progress import catch_up
from coopstreams.commit.progress import plan
from coopstreams.commit.record import (
    NEWEST_VALUE,
    VERSION,
    CommitKey,
    Committed,
    CommitValue,
    Segment,
    encode_key,
    encode_text,
    encode_value,
)
from coopstreams.log.log import Position
from coopstreams.log.memory.log import MemoryLog
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.naming import COMMIT_TOPIC
from tests.commit.test_commit_progress import opened

ORDERS = TopicPartition("orders", 0)
LEFT, RIGHT = KeyRange.split(2)
KEY = encode_key(CommitKey("g", *ORDERS, WHOLE, 3, 1))
NEWER, NEWER_VALUE = bytes([VERSION + 1]), bytes([NEWEST_VALUE + 1])


def said(position: int) -> bytes:
    return encode_value(CommitValue("t", (Segment(WHOLE, position),)))


TIMED = encode_value(CommitValue("t", (Segment(WHOLE, 150, operator_times=((1, 2),)),)))


class Read:
    """A log with the records of group `g`, and a follower that has read them all, in
    batches that end anywhere.
    """

    def __init__(self, *records: tuple[bytes, bytes | None]) -> None:
        self.log = MemoryLog()
        self.follower = Follower(self.log, "g")
        self._writer = self.log.writer()
        self._times = count()
        self.add(*records)

    def add(self, *records: tuple[bytes, bytes | None]) -> None:
        for key, value in records:
            self._writer.append(
                COMMIT_TOPIC,
                [key],
                [value],
                [next(self._times)],
                partitions=self.follower.partition.partition,
            )
        while self.follower.tail < self.follower.barrier():
            self.follower.poll(0.1)

    @property
    def passed(self) -> bool:
        return self.follower.passed(self.follower.barrier())

    def position(self) -> int:
        (segment,) = self.follower.open(ORDERS, WHOLE, None, Position(0)).segments
        return segment.position


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (
            NEWER + KEY[1:],
            said(150),
            "has version 2, this coopstreams reads version 1. A newer coopstreams wrote to this group: upgrade this "
            "process",
        ),
        (
            KEY,
            NEWER_VALUE + said(150)[1:],
            "has version 4, this coopstreams reads versions 1 to 3. A newer coopstreams wrote to this group: upgrade "
            "this process",
        ),
        (
            KEY,
            said(150)[:-1],
            "has a value that no member of this group can have written",
        ),
        (KEY, TIMED[:-1], "coopstreams group reset g"),
        (
            KEY[:-1],
            said(150),
            "has a key that no member of this group can have written",
        ),
        (KEY, b"", "has no version"),
    ],
    ids=[
        "newer key",
        "newer value",
        "damaged value",
        "damaged value with times",
        "damaged key",
        "empty value",
    ],
)
def test_the_rest_of_a_batch_is_read_and_no_barrier_is_passed(
    key: bytes, value: bytes, why: str
) -> None:
    read = Read(
        (KEY, said(100)),
        (key, value),
        (
            encode_key(CommitKey("g", *ORDERS, LEFT, 9, 1)),
            encode_value(CommitValue("t", (Segment(LEFT, 200),))),
        ),
    )
    assert not read.passed
    assert read.follower.trouble.startswith(
        f"1 of the records of group 'g' in {read.follower.partition} cannot be read, the first at offset 1: "
    )
    assert why in read.follower.trouble
    with pytest.raises(LogError, match="cannot be read"):
        catch_up(read.follower)
    theirs = encode_key(CommitKey("theirs", *ORDERS, WHOLE, 1, 1))
    read.add((theirs, said(7)))
    assert not read.passed, "a record of another group changes nothing"
    read.add((key, None))
    assert read.passed
    assert read.follower.trouble == ""
    assert read.follower.open(ORDERS, LEFT, None, Position(0)).segments == (
        Segment(LEFT, 200),
    )


def test_a_later_record_of_the_same_key_that_can_be_read_takes_it_back() -> None:
    read = Read((KEY, b"\xff"), (KEY, said(150)))
    assert read.passed
    assert read.position() == 150


def test_a_follower_that_starts_after_the_cleaner_has_nothing_to_complain_of() -> None:
    read = Read(
        (NEWER + KEY[1:], said(1)),
        (KEY, b""),
        (KEY, said(150)),
        (NEWER + KEY[1:], None),
    )
    read.log.compact(COMMIT_TOPIC)
    late = Follower(read.log, "g")
    while late.tail < late.barrier():
        late.poll(0.1)
    assert late.trouble == ""
    assert late.passed(late.barrier())


def test_tasks_that_run_go_on_and_derive_nothing_from_what_they_do_not_know() -> None:
    left, right = (
        encode_key(CommitKey("g", *ORDERS, key_range, 2, 1))
        for key_range in (LEFT, RIGHT)
    )
    values = [
        encode_value(CommitValue("t", (Segment(key_range, 50),)))
        for key_range in (LEFT, RIGHT)
    ]
    read = Read(
        (KEY[:-8] + b"\0\0\0\1\0\0\0\1", said(10)),
        (left, values[0]),
        (right, values[1]),
    )
    assert read.follower.garbage(ORDERS, [WHOLE])
    first, whole = (
        opened(Segment(LEFT, 50), term=2, committed=Committed(40, -1, 1)),
        opened(Segment(WHOLE, 50), term=4),
    )
    assert first.mirror_due(read.follower)
    read.add((NEWER + KEY[1:], said(150)))
    assert not first.mirror_due(read.follower)
    for task in (first, whole):
        task.advance(ORDERS, 70, 60)
    commit = plan([first], read.follower)
    assert ([key[-32:-16] for key, _ in commit.records], commit.offsets) == (
        [left[-32:-16]],
        {read.follower.partition: (read.follower.tail, "")},
    )
    assert plan([whole], read.follower).offsets == {ORDERS: (70, "ic 60 4")}


@given(
    st.binary(max_size=60),
    st.binary(max_size=40) | st.none(),
    st.integers(0, 60),
    st.booleans(),
)
@example(b"", b"", 0, True)
def test_whatever_stands_in_the_topic_the_reader_goes_on_and_knows_what_it_does_not_know(
    key: bytes, value: bytes | None, kept: int, of_ours: bool
) -> None:
    """A damaged key of our group: the first `kept` bytes are those of a good record."""
    if of_ours:
        key = KEY[: max(kept, 1 + len(encode_text("g")))] + key
    value = value if value is None else said(150)[: kept // 3] + value
    read = Read((KEY, said(100)), (key, value), (KEY, said(120)))
    if key == KEY or not key.startswith(encode_text("g"), 1):
        assert read.passed
        assert read.position() == 120
    assert read.passed == (not read.follower.unreadable)
    for record in read.follower.unreadable:
        assert (record.key, record.offset) == (key, 1)
    read.add((key, None), (KEY, said(130)))
    assert read.passed
