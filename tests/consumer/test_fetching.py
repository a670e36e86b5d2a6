"""One reader for several key ranges: even if some are stuck or paused, or exceed the
cache, each range gets its records in order, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coopstreams.commit.progress import Author, Progress
from coopstreams.commit.record import Segment
from coopstreams.commit.view import PartitionStart
from coopstreams.consumer.owned_range import ConsumerRecord, OwnedRange
from coopstreams.consumer.range_cache import BARE_BYTES, RECORD_BYTES
from coopstreams.consumer.range_reader import JUMP, RangeReader, span
from coopstreams.log.log import Reader, RecordBatch, TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import OffsetOutOfRangeError, UnknownTopicError
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash
from coopstreams.topology.task_id import TaskId

AT = TopicPartition("orders", 0)
RECORDS = 120
KEYS = [b"key-%d" % (n * 7 % 23) for n in range(RECORDS)]
VALUES = [b"%050d" % n for n in range(RECORDS)]


class Counted:
    """A reader that counts its fetches."""

    def __init__(self, reader: Reader) -> None:
        self.assign, self.route, self.hold, self.close = (
            reader.assign,
            reader.route,
            reader.hold,
            reader.close,
        )
        self.wake, self.clock = reader.wake, reader.clock
        self.fetches = 0
        self._fetch = reader.fetch

    def fetch(self, max_records: int, timeout_s: float) -> list[RecordBatch]:
        self.fetches += 1
        return self._fetch(max_records, timeout_s)


class Scene:
    """A partition of 120 records, read by some key ranges, the first of which have done
    more than the others.
    """

    def __init__(
        self, positions: Sequence[int], in_flight: int, cache_bytes: int, reserves: bool
    ) -> None:
        self.log = log = MemoryLog()
        log.create_topics([TopicSpec("orders", 1)])
        writer = log.writer()
        writer.append("orders", KEYS, VALUES, list(range(1, RECORDS + 1)), partitions=0)
        writer.flush(1)
        self.readers: list[Counted] = []
        self.fetching = RangeReader(self.reader, cache_bytes, lambda _: reserves, None)
        self.cache_bytes = cache_bytes
        self.got: dict[KeyRange, list[int]] = {}
        self.due: dict[KeyRange, list[int]] = {}
        self.out: list[ConsumerRecord] = []
        self.owned_ranges = []
        for key_range, position in zip(
            KeyRange.split(len(positions)), positions, strict=True
        ):
            opening = PartitionStart(
                1, (Segment(key_range, position),), None, claim=False
            )
            owned = OwnedRange(
                TaskId(0, 0, key_range),
                Progress(key_range, {AT: opening}, Author("g", 1, "t")),
                1,
                in_flight,
            )
            self.owned_ranges.append(owned)
            self.fetching.open(owned)
            self.got[key_range] = []
            self.due[key_range] = [
                n for n in range(position, RECORDS) if key_hash(KEYS[n]) in key_range
            ]

    def reader(self) -> Reader:
        self.readers.append(Counted(self.log.reader()))
        return self.readers[-1]

    def turn(self, most: int) -> None:
        """Fetch and hand out once."""
        self.fetching.fetch(most, 0)
        waiting = sum(owned.waiting.bytes for owned in self.owned_ranges)
        assert waiting <= self.cache_bytes
        for record in self.fetching.records(most):
            assert record.value == VALUES[record.offset]
            self.got[record.key_range].append(record.offset)
            self.out.append(record)
        for owned in self.owned_ranges:
            owned.stand_before()
            told = min(segment.position for segment in owned.progress.segments(AT))
            assert told >= owned.first(), (
                "with commit.order=offset, others wait for all from here on"
            )

    def finish(self, which: slice) -> None:
        """Finish some of the records that are out, and commit them."""
        for record in self.out[which]:
            assert record.owned.inflight.done(record.offset)
            record.owned.inflight.committed()
        del self.out[which]


steps = st.lists(
    st.sampled_from(
        ["turn", "turn", "turn", "finish oldest", "finish newest", "pause", "resume"]
    ),
    max_size=40,
)


@pytest.mark.ci
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=4),
    st.integers(1, 30),
    st.sampled_from([0, 300, 2000, 1 << 20]),
    st.booleans(),
    st.integers(1, 50),
    steps,
)
# the reader goes back for a sibling, and returns with the records that wait here
@example([0, 0, 0], 1, 300, False, 5, [])
def test_each_key_range_gets_its_records_in_order_once(
    positions: list[int],
    in_flight: int,
    cache_bytes: int,
    reserves: bool,
    most: int,
    does: list[str],
) -> None:
    scene = Scene(positions, in_flight, cache_bytes, reserves)
    for step in does:
        if step == "turn":
            scene.turn(most)
        elif step.startswith("finish"):
            scene.finish(slice(3) if step.endswith("oldest") else slice(-3, None))
        else:
            scene.fetching.pause(AT, step == "pause")
    scene.fetching.pause(AT, False)
    for _ in range(20 * RECORDS):
        scene.turn(most)
        scene.finish(slice(None))
        if scene.got == scene.due:
            break
    assert scene.got == scene.due


def test_a_paused_partition_stays_paused_when_its_key_ranges_are_opened_anew() -> None:
    scene = Scene([0], RECORDS, 1 << 20, reserves=True)
    scene.fetching.pause(AT, True)
    (owned,) = scene.owned_ranges
    scene.fetching.close([owned])
    again = OwnedRange(owned.id, owned.progress, 1, RECORDS)
    scene.fetching.open(again)
    scene.turn(10)
    assert not scene.out
    scene.fetching.pause(AT, False)
    scene.turn(10)
    assert scene.out


def test_a_partition_that_is_resumed_between_two_owners_is_read() -> None:
    scene = Scene([0], RECORDS, 1 << 20, reserves=True)
    scene.fetching.pause(AT, True)
    scene.turn(10)
    (owned,) = scene.owned_ranges
    scene.fetching.close([owned])
    scene.fetching.pause(AT, False)
    scene.fetching.open(OwnedRange(owned.id, owned.progress, 1, RECORDS))
    scene.turn(10)
    assert scene.out


def test_a_partition_that_cannot_be_read_yet_is_read_once_it_can_be() -> None:
    """Its topic may be unknown to a broker; the reader was told once, and never again."""
    scene = Scene([0], RECORDS, 1 << 20, reserves=True)
    later = TopicPartition("later", 0)
    opening = PartitionStart(1, (Segment(WHOLE, 0),), None, claim=False)
    owned = OwnedRange(
        TaskId(1, 0, WHOLE),
        Progress(WHOLE, {later: opening}, Author("g", 1, "t")),
        1,
        RECORDS,
    )
    scene.fetching.open(owned)
    for _ in range(2):
        with pytest.raises(UnknownTopicError):
            scene.fetching.fetch(10, 0)
    scene.log.create_topics([TopicSpec("later", 1)])
    scene.log.writer().append("later", [b"k"], [b"v"], [1], partitions=0)
    scene.fetching.fetch(RECORDS + 1, 0)
    assert {record.topic for record in scene.fetching.records(RECORDS + 1)} == {
        "orders",
        "later",
    }


def test_a_seek_goes_past_records_that_retention_has_deleted() -> None:
    """The reader stayed at the offset that is gone, and raised the same error for ever."""
    scene = Scene([0, 0], RECORDS, 1 << 20, reserves=True)
    scene.log.delete_before(AT, 50)
    with pytest.raises(OffsetOutOfRangeError):
        scene.turn(RECORDS)
    for owned in scene.owned_ranges:
        owned.seek(50)
    scene.turn(RECORDS)
    assert scene.got == {
        key_range: [n for n in due if n >= 50] for key_range, due in scene.due.items()
    }


def test_a_range_that_cannot_take_records_does_not_hold_up_the_other_one_and_its_cache_is_evicted_once_sent() -> (
    None
):
    for reserves in (True, False):
        scene = slow_and_fast(reserves=reserves)
        slow = scene.owned_ranges[0]
        assert slow.waiting.bytes > 0
        for _ in range(RECORDS):
            scene.finish(slice(None))
            scene.turn(50)
        assert scene.got[slow.id.key_range] == scene.due[slow.id.key_range]
        assert [owned.waiting.bytes for owned in scene.owned_ranges] == [0, 0]


def slow_and_fast(*, reserves: bool) -> Scene:
    """Two key ranges, both read to the end; of the first one five records were handed
    out, the others wait.
    """
    scene = Scene([0, 0], in_flight=5, cache_bytes=1 << 20, reserves=reserves)
    slow, fast = (owned.id.key_range for owned in scene.owned_ranges)
    scene.owned_ranges[1].inflight.most = RECORDS
    for _ in range(3 * RECORDS):
        scene.turn(50)
        for record in [record for record in scene.out if record.key_range == fast]:
            assert record.owned.inflight.done(record.offset)
            scene.out.remove(record)
    assert scene.got == {slow: scene.due[slow][:5], fast: scene.due[fast]}
    return scene


def test_without_values_less_is_kept_and_the_reader_does_not_go_back() -> None:
    whole, bare = slow_and_fast(reserves=True), slow_and_fast(reserves=False)
    waiting = scene_waiting(whole)
    kept = sum(len(KEYS[offset]) for offset in waiting)
    assert whole.owned_ranges[0].waiting.bytes == kept + len(waiting) * (
        50 + RECORD_BYTES
    )
    assert bare.owned_ranges[0].waiting.bytes == kept + len(waiting) * BARE_BYTES
    assert not bare.owned_ranges[0].behind
    assert len(bare.readers) == 1, "nobody wants the values yet"


def scene_waiting(scene: Scene) -> list[int]:
    return scene.due[scene.owned_ranges[0].id.key_range][5:]


def test_values_are_read_again_by_batches() -> None:
    scene = slow_and_fast(reserves=False)
    scene.owned_ranges[0].inflight.most = RECORDS
    scene.turn(7)
    assert len(scene.readers) == 2
    while scene.got != scene.due:
        scene.turn(7)
    assert scene.readers[1].fetches == 1, "of all records that waited, one request"
    assert scene.owned_ranges[0].waiting.bytes == 0


@given(
    st.booleans(),
    st.integers(1, 30),
    st.integers(1, 50),
    st.sampled_from([0, 300, 2000, 1 << 20]),
    steps,
    steps,
)
def test_what_was_compacted_meanwhile_is_passed_over_and_all_that_is_left_is_handed_out(
    reserves: bool,
    in_flight: int,
    most: int,
    cache_bytes: int,
    before: list[str],
    after: list[str],
) -> None:
    scene = Scene([0, 20], in_flight, cache_bytes, reserves)
    for does in (before, after):
        for step in does:
            scene.turn(most) if step == "turn" else scene.finish(slice(3))
        scene.log.compact("orders")
    left = {KEYS[n]: n for n in range(RECORDS)}
    for _ in range(20 * RECORDS):
        scene.turn(most)
        scene.finish(slice(None))
        if all(owned.inflight.next == RECORDS for owned in scene.owned_ranges):
            break
    for owned in scene.owned_ranges:
        got, due = scene.got[owned.id.key_range], scene.due[owned.id.key_range]
        assert got == sorted(set(got))
        assert {n for n in due if left[KEYS[n]] == n} <= set(got) <= set(due)
        assert owned.inflight.next == RECORDS, "what is gone counts as done"


def test_what_was_deleted_meanwhile_is_the_error_that_reading_it_first_would_be_until_somebody_seeks() -> (
    None
):
    scene = slow_and_fast(reserves=False)
    scene.log.delete_before(AT, RECORDS - 5)
    scene.finish(slice(None))
    for _ in range(3):
        with pytest.raises(OffsetOutOfRangeError):
            scene.turn(50)
    slow = scene.owned_ranges[0]
    slow.seek(RECORDS - 5)
    for _ in range(10):
        scene.turn(50)
        scene.finish(slice(None))
    due = scene.due[slow.id.key_range]
    assert scene.got[slow.id.key_range] == due[:5] + [
        n for n in due if n >= RECORDS - 5
    ]


@given(
    st.lists(st.integers(0, 50 * JUMP), min_size=1, unique=True).map(sorted), st.data()
)
def test_neighbours_are_read_in_one_go_and_large_gaps_are_jumped_over(
    offsets: list[int], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, offsets[-1]))
    read: list[int] = []
    while start <= offsets[-1]:
        first, last = span(offsets, start)
        read += [offset for offset in offsets if first <= offset <= last]
        after = [offset for offset in offsets if offset > last]
        assert not after or after[0] - last > JUMP
        gaps = [b - a for a, b in pairwise(offsets) if first <= a < last]
        assert max(gaps, default=0) <= JUMP
        start = last + 1
    assert read == [offset for offset in offsets if offset in read]
    assert read[-1] == offsets[-1]
