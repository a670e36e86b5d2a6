"""One reader for several key ranges: whatever is stuck, paused, or does not fit into the cache, each range gets its records in order, once."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.commit.progress import Author, Progress
from coopstreams.commit.record import Segment
from coopstreams.commit.view import Opening
from coopstreams.consumer.fetching import Fetching
from coopstreams.consumer.share import ConsumerRecord, Share
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory import MemoryLog
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import KeyRange, key_hash
from coopstreams.topology.task_id import TaskId

AT = TopicPartition("orders", 0)
RECORDS = 120
KEYS = [b"key-%d" % (n * 7 % 23) for n in range(RECORDS)]
VALUES = [b"%050d" % n for n in range(RECORDS)]


class Scene:
    """A partition of 120 records, read by some key ranges, the first of which have done more than the others."""

    def __init__(self, positions: Sequence[int], in_flight: int, cache_bytes: int, reserves: bool) -> None:
        self.log = log = MemoryLog()
        log.create_topics([TopicSpec("orders", 1)])
        writer = log.writer()
        writer.append("orders", KEYS, VALUES, list(range(1, RECORDS + 1)), partitions=0)
        writer.flush(1)
        self.fetching = Fetching(log.reader, cache_bytes, lambda _: reserves, None)
        self.cache_bytes = cache_bytes
        self.got: dict[KeyRange, list[int]] = {}
        self.due: dict[KeyRange, list[int]] = {}
        self.out: list[ConsumerRecord] = []
        self.shares = []
        for covered, position in zip(KeyRange.split(len(positions)), positions, strict=True):
            opening = Opening(1, (Segment(covered, position),), None, claim=False)
            share = Share(TaskId(0, 0, covered), Progress(covered, {AT: opening}, Author("g", 1, "t")), 1, in_flight)
            self.shares.append(share)
            self.fetching.open(share)
            self.got[covered] = []
            self.due[covered] = [n for n in range(position, RECORDS) if key_hash(KEYS[n]) in covered]

    def turn(self, most: int) -> None:
        """Fetch and hand out once."""
        self.fetching.fetch(most, 0)
        waiting = sum(share.waiting.bytes for share in self.shares)
        assert waiting <= self.cache_bytes
        for record in self.fetching.records(most):
            assert record.value == VALUES[record.offset]
            self.got[record.key_range].append(record.offset)
            self.out.append(record)

    def finish(self, which: slice) -> None:
        """Finish some of the records that are out."""
        for record in self.out[which]:
            assert record.share.inflight.done(record.offset)
        del self.out[which]


steps = st.lists(st.sampled_from(["turn", "turn", "turn", "finish oldest", "finish newest", "pause", "resume"]), max_size=40)


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=4),
    st.integers(1, 30),
    st.sampled_from([0, 300, 2000, 1 << 20]),
    st.booleans(),
    st.integers(1, 50),
    steps,
)
def test_each_key_range_gets_its_records_in_order_once(
    positions: list[int], in_flight: int, cache_bytes: int, reserves: bool, most: int, does: list[str]
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


def test_a_range_that_cannot_take_records_does_not_hold_up_the_other_one_and_its_cache_is_evicted_once_sent() -> None:
    scene = Scene([0, 0], in_flight=5, cache_bytes=1 << 20, reserves=True)
    slow, fast = (share.id.range for share in scene.shares)
    for _ in range(3 * RECORDS):
        scene.turn(50)
        for record in [record for record in scene.out if record.key_range == fast]:
            assert record.share.inflight.done(record.offset)
            scene.out.remove(record)
    assert scene.got[fast] == scene.due[fast]
    assert scene.got[slow] == scene.due[slow][:5]
    assert scene.shares[0].waiting.bytes > 0, "its values are kept"
    for _ in range(RECORDS):
        scene.finish(slice(None))
        scene.turn(50)
    assert scene.got[slow] == scene.due[slow]
    assert [share.waiting.bytes for share in scene.shares] == [0, 0]
