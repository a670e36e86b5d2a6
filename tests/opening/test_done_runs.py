"""Done runs that are found in the source topic of a table: dropped where no record of
the task lies in them.
"""

from __future__ import annotations

import pytest

from coopstreams.commit.progress import Author, Progress
from coopstreams.commit.record import Segment
from coopstreams.commit.view import PartitionStart
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.opening.restores import Restores
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.keys import KeyRange, key_hash
from coopstreams.topology.serdes import text
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId

TABLE = StoreSpec("table", "key_value", text, text, logged=False, source="people")
SOURCE = TopicPartition("people", 0)
LEFT, RIGHT = KeyRange.split(2)
KEYS = [b"key-%d" % number for number in range(30)]


def settled(log: MemoryLog, task: TaskId, *segments: Segment) -> Progress:
    start = PartitionStart(2, segments, None, claim=True)
    progress = Progress(task.key_range, {SOURCE: start}, Author("app", 1, "app-0"))
    Restores(log, lambda spec: spec.name).settle_runs(task, [TABLE], progress)
    return progress


def of_keys(keys: list[bytes]) -> MemoryLog:
    log = MemoryLog()
    log.create_topics([TopicSpec("people", 1)])
    log.writer().append("people", keys, keys, [0] * len(keys), partitions=0)
    return log


def test_runs_over_records_of_other_key_ranges_are_dropped() -> None:
    """An earlier version committed them, and a `ValueError` ended each opening."""
    mine = [key for key in KEYS if key_hash(key) in LEFT]
    others = [key for key in KEYS if key_hash(key) in RIGHT]
    log = of_keys([mine[0], others[0], mine[1], others[1], others[2]])
    task = TaskId(0, 0, LEFT)
    progress = settled(log, task, Segment(LEFT, 0, 7, ((1, 1), (3, 4))))
    assert progress.segments(SOURCE) == (Segment(LEFT, 0, 7),)
    assert progress.committed_positions(SOURCE) == {LEFT: 0}
    assert progress.moved, "the next commit says so"


def test_runs_over_transaction_markers_are_dropped() -> None:
    log = of_keys([])
    writer = log.writer("other")
    for number in range(3):
        writer.begin()
        writer.append("people", [KEYS[0]], [b"%d" % number], [0], partitions=0)
        writer.commit(10)
    whole = KeyRange.split(1)[0]
    progress = settled(
        log, TaskId(0, 0, whole), Segment(whole, 0, 7, ((1, 1), (3, 3), (5, 5)))
    )
    assert progress.segments(SOURCE) == (Segment(whole, 0, 7),)


def test_a_record_that_was_done_before_earlier_ones_has_no_place_in_a_table_on_its_source() -> (
    None
):
    log = of_keys(KEYS)
    done = next(at for at, key in enumerate(KEYS) if at > 3 and key_hash(key) in RIGHT)
    with pytest.raises(
        ConfigError,
        match=rf"people-0 at offset {done} was done .* topology.optimization=none",
    ):
        settled(
            log,
            TaskId(0, 0, KeyRange.split(1)[0]),
            Segment(LEFT, 3),
            Segment(RIGHT, 1, 0, ((done, done),)),
        )
