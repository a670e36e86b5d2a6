"""Stores of tasks that open are read up to the end of their changelogs, or to where their tasks stand in their source topic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.log.log import TopicSpec
from coopstreams.log.memory import MemoryLog
from coopstreams.state import layout
from coopstreams.state.database import Database
from coopstreams.state.memory import Memory
from coopstreams.state.pickup import Snapshots
from coopstreams.tasks.lifecycle import RestoreListener
from coopstreams.tasks.restoring import Restoring
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash
from coopstreams.topology.serdes import text
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId

TABLE = StoreSpec("table", "key_value", text, text, logged=False, source="people")
COUNTS = StoreSpec("counts", "key_value", text, text)
STORES = (TABLE, COUNTS)
KEYS = [b"key-%d" % number for number in range(30)]
Stand = Mapping[str, Mapping[KeyRange, int]]


def cluster(records: int, partitions: int = 1) -> MemoryLog:
    """A topic and a changelog with as many records; the value of each is its offset."""
    log = MemoryLog()
    log.create_topics([TopicSpec("people", partitions), TopicSpec("counts-log", 2)])
    writer = log.writer()
    keys, values, times = [KEYS[at % 30] for at in range(records)], [b"%d" % at for at in range(records)], list(range(records))
    for topic in ("people", "counts-log"):
        writer.append(topic, keys, values, times, partitions=0)
    return log


def restoring(log: MemoryLog, listener: RestoreListener | None = None) -> Restoring:
    return Restoring(log, lambda spec: f"{spec.name}-log", listener=listener)


def rows(database: Database, store: str, key_range: KeyRange) -> dict[bytes, bytes]:
    first, last = layout.groups_of(key_range)
    return {key: layout.unpack(data)[0] for key, data in database.scan(store, range(first, last + 1), None, None)}


def fold(upto: int, key_range: KeyRange) -> dict[bytes, bytes]:
    return {KEYS[at % 30]: b"%d" % at for at in range(upto) if key_hash(KEYS[at % 30]) in key_range}


def run(reading: Restoring) -> list[TaskId]:
    finished = reading.finished()
    while reading.step():
        finished += reading.finished()
    return finished + reading.finished()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 200), st.lists(st.integers(0, 200), min_size=4, max_size=4), st.integers(0, 4), st.sets(st.integers(0, 3), max_size=3))
def test_each_task_gets_the_end_of_its_changelog_and_its_own_position_of_the_source(
    records: int, stands: list[int], early: int, cancelled: set[int]
) -> None:
    """Some tasks come while others are being restored, some go again."""
    log, database = cluster(records), Database(Memory(), STORES)
    reading, parts = restoring(log), KeyRange.split(4)
    tasks = [TaskId(0, 0, part) for part in parts]
    positions = [min(stand, records) for stand in stands]
    finished: list[TaskId] = []
    for number, task in enumerate(tasks):
        if number == early:
            reading.step()
            finished += reading.finished()
        reading.add(task, STORES, database, {"table": {task.range: positions[number]}})
    for number in cancelled:
        if tasks[number] not in finished:
            reading.cancel(tasks[number])
    finished += run(reading)
    kept = [number for number, task in enumerate(tasks) if number not in cancelled or task in finished]
    assert sorted(finished) == sorted(tasks[number] for number in kept)
    for number in kept:
        assert rows(database, "table", parts[number]) == fold(positions[number], parts[number])
        assert rows(database, "counts", parts[number]) == fold(records, parts[number])
        assert database.checkpoint("table", *layout.groups_of(parts[number])) == positions[number]
    reading.close()


def test_a_task_with_parts_at_several_positions_gets_each_as_it_stood() -> None:
    log, database, (one, two) = cluster(100), Database(Memory(), STORES), KeyRange.split(2)
    reading = restoring(log)
    reading.add(TaskId(0, 0, WHOLE), STORES, database, {"table": {one: 90, two: 31}})
    assert run(reading) == [TaskId(0, 0, WHOLE)]
    assert rows(database, "table", WHOLE) == fold(90, one) | fold(31, two)
    reading.close()


def test_a_task_that_has_no_partition_of_the_source_topic_has_nothing_to_restore_from_it() -> None:
    log, database = cluster(100, partitions=1), Database(Memory(), STORES)
    reading = restoring(log)
    reading.add(TaskId(0, 1, WHOLE), STORES, database, {})
    assert run(reading) == [TaskId(0, 1, WHOLE)]
    assert rows(database, "table", WHOLE) == {}
    reading.close()


def test_a_listener_hears_once_of_a_changelog_that_two_tasks_need_and_that_it_was_given_up_with_the_last() -> None:
    heard: list[tuple[str, int]] = []

    class Suspended(RestoreListener):
        def on_restore_start(self, partition: TopicPartition, store: str, start: int, end: int) -> None:
            heard.append((f"start {partition}", end))

        def on_restore_suspended(self, partition: TopicPartition, store: str, records: int) -> None:
            heard.append((f"suspended {partition}", records))

    log, database, halves = cluster(100), Database(Memory(), STORES), KeyRange.split(2)
    reading, tasks = restoring(log, Suspended()), [TaskId(0, 0, half) for half in halves]
    for task in tasks:
        reading.add(task, [COUNTS], database, {})
    reading.cancel(tasks[0])
    assert heard == [("start counts-log-0", 100)]
    reading.cancel(tasks[1])
    assert heard == [("start counts-log-0", 100), ("suspended counts-log-0", 0)]
    reading.close()


class AskedLog(MemoryLog):
    """Remembers which topics it was asked the id of."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def topic_id(self, topic: str) -> str:
        self.asked.append(topic)
        return super().topic_id(topic)


def test_tasks_that_open_together_ask_once_what_their_changelog_is_now(tmp_path: Path) -> None:
    log, database = AskedLog(), Database(Memory(), [COUNTS])
    log.create_topics([TopicSpec("counts-log", 1)])
    log.writer().append("counts-log", KEYS, KEYS, range(len(KEYS)), partitions=0)
    snapshots = Snapshots(str(tmp_path / "snapshots"), "app", tmp_path / "incoming")
    reading = Restoring(log, lambda spec: f"{spec.name}-log", snapshots)
    for opened, tasks in enumerate((KeyRange.split(8)[:5], KeyRange.split(8)[5:]), start=1):
        for part in tasks:
            reading.add(TaskId(0, 0, part), [COUNTS], database, {})
        assert len(run(reading)) == len(tasks)
        assert log.asked == ["counts-log"] * opened, "later, it may be another topic of that name"
    assert rows(database, "counts", WHOLE) == {key: key for key in KEYS}
    reading.close()
