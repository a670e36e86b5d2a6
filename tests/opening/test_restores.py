"""Stores of opening tasks are restored to the end of their changelogs, or to their
tasks' positions in the source topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.common.host import SYSTEM
from coopstreams.common.metrics import Metrics
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.opening import restores as restores_module
from coopstreams.opening.restores import Restores
from coopstreams.state import layout
from coopstreams.state.database import Database
from coopstreams.state.engine import Engine
from coopstreams.state.memory_engine import Memory
from coopstreams.state.published_snapshot import Snapshots
from coopstreams.state.rocks import Rocks
from coopstreams.state.task_state import TaskState
from coopstreams.tasks.lifecycle import RestoreListener
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, LogError
from coopstreams.topology.keys import ALL_GROUPS, WHOLE, KeyRange, key_hash
from coopstreams.topology.schemas import RegistryUnavailableError
from coopstreams.topology.serdes import Serde, text
from coopstreams.topology.stores import StoreSpec, window_key
from coopstreams.topology.task_id import TaskId
from tests.state.rows import put
from tests.state.sqlite_engine import Sqlite

TABLE = StoreSpec("table", "key_value", text, text, logged=False, source="people")
COUNTS = StoreSpec("counts", "key_value", text, text)
STORES = (TABLE, COUNTS)
OF_EACH_KIND = [
    StoreSpec("all", "key_value", text, text),
    StoreSpec("all", "window", text, text, window_ms=1, retention_ms=1 << 40),
    StoreSpec("all", "session", text, text, retention_ms=1 << 40),
    StoreSpec("all", "buffer", text, text, suffix_bytes=8),
]
KEYS = [b"key-%d" % number for number in range(30)]
Stand = Mapping[str, Mapping[KeyRange, int]]


def cluster(records: int, partitions: int = 1) -> MemoryLog:
    """Return a topic, and a changelog with this many records; each value is its offset."""
    log = MemoryLog()
    log.create_topics([TopicSpec("people", partitions), TopicSpec("counts-log", 2)])
    writer = log.writer()
    keys = [KEYS[at % 30] for at in range(records)]
    values = [b"%d" % at for at in range(records)]
    times = list(range(records))
    for topic in ("people", "counts-log"):
        writer.append(topic, keys, values, times, partitions=0)
    return log


def restoring(log: MemoryLog, listener: RestoreListener | None = None) -> Restores:
    return Restores(log, lambda spec: f"{spec.name}-log", listener=listener)


def test_a_changelog_that_was_deleted_ends_the_opening_and_is_not_waited_for() -> None:
    log = cluster(10)
    log.delete_topics(["counts-log"])
    with pytest.raises(
        ConfigError,
        match="counts-log, from which a store is to be restored, was deleted",
    ):
        restoring(log).add(TaskId(0, 0, WHOLE), STORES, Database(Memory(), STORES), {})


def rows(database: Database, store: str, key_range: KeyRange) -> dict[bytes, bytes]:
    first, last = layout.groups_of(key_range)
    return {
        key: layout.unpack(data)[0]
        for key, data in database.scan(store, range(first, last + 1), None, None)
    }


def fold(upto: int, key_range: KeyRange) -> dict[bytes, bytes]:
    return {
        KEYS[at % 30]: b"%d" % at
        for at in range(upto)
        if key_hash(KEYS[at % 30]) in key_range
    }


def run(reading: Restores) -> list[TaskId]:
    finished = reading.finished()
    while reading.step():
        finished += reading.finished()
    return finished + reading.finished()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 200),
    st.lists(st.integers(0, 200), min_size=4, max_size=4),
    st.integers(0, 4),
    st.sets(st.integers(0, 3), max_size=3),
)
def test_each_task_gets_the_end_of_its_changelog_and_its_own_position_of_the_source(
    records: int, stands: list[int], early: int, cancelled: set[int]
) -> None:
    """Some tasks join during the restore of others, some are cancelled."""
    log, database = cluster(records), Database(Memory(), STORES)
    reading, parts = restoring(log), KeyRange.split(4)
    tasks = [TaskId(0, 0, part) for part in parts]
    positions = [min(stand, records) for stand in stands]
    finished: list[TaskId] = []
    for number, task in enumerate(tasks):
        if number == early:
            reading.step()
            finished += reading.finished()
        reading.add(
            task, STORES, database, {"table": {task.key_range: positions[number]}}
        )
    for number in cancelled:
        if tasks[number] not in finished:
            reading.cancel(tasks[number])
    finished += run(reading)
    kept = [
        number
        for number, task in enumerate(tasks)
        if number not in cancelled or task in finished
    ]
    assert sorted(finished) == sorted(tasks[number] for number in kept)
    for number in kept:
        assert rows(database, "table", parts[number]) == fold(
            positions[number], parts[number]
        )
        assert rows(database, "counts", parts[number]) == fold(records, parts[number])
        assert (
            database.checkpoints("table").offset(layout.groups_of(parts[number]))
            == positions[number]
        )
    reading.close()


class Counted(Metrics):
    """Counts the records that came to the restores of each task."""

    def __init__(self) -> None:
        super().__init__("app", "process")
        self.records: Counter[TaskId] = Counter()

    def restored(
        self, task: TaskId, store: str, records: int, remaining: int | None = None
    ) -> None:
        self.records[task] += records


def test_windows_that_are_still_open_stay_when_a_silent_changelog_has_lost_all_records_by_age() -> (
    None
):
    log, (_, spec, *_) = MemoryLog(), OF_EACH_KIND
    log.create_topics([TopicSpec("all-log", 1)])
    changelog, task, database = (
        TopicPartition("all-log", 0),
        TaskId(0, 0, WHOLE),
        Database(Memory(), [spec]),
    )
    reading = restoring(log)
    reading.add(task, [spec], database, {})
    assert reading.finished() == [task]
    state = TaskState(database, [spec], WHOLE, 1 << 30)
    put(state.stores["all"], window_key(b"key", 5), "open", 5)
    (batch,) = state.changes()
    writer = log.writer("app-0")
    writer.begin()
    writer.append("all-log", batch.keys, batch.values, batch.timestamps, partitions=0)
    writer.flush(1)
    at = writer.delivered_to(changelog)
    writer.commit(1)
    state.commit({"all": at}, true_ms=SYSTEM.wall_ms())
    log.delete_before(changelog, log.end_offset(changelog))
    reading.add(task, [spec], database, {})
    assert run(reading) == [task]
    assert list(rows(database, "all", WHOLE)) == [window_key(b"key", 5)]
    assert (
        database.checkpoints("all").offset(ALL_GROUPS)
        == log.end_offset(changelog)
        == at + 1
    )
    reading.close()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(OF_EACH_KIND),
    st.lists(st.integers(0, 40), max_size=80),
    st.sets(st.integers(0, 4), min_size=1),
)
def test_only_the_records_of_the_key_ranges_that_are_restored_come_from_a_changelog(
    spec: StoreSpec, numbers: list[int], wanted: set[int]
) -> None:
    """The hash is that of the plain key, without the store's suffix in the changelog."""
    log = MemoryLog()
    log.create_topics([TopicSpec("all-log", 1)])
    plain = [b"key-%d" % number for number in numbers]
    suffix = layout.changelog_suffix_bytes(spec)
    log.writer().append(
        "all-log",
        [key + bytes(suffix) for key in plain],
        [b"v"] * len(plain),
        range(len(plain)),
    )
    database, counted = Database(Memory(), [spec]), Counted()
    reading = Restores(log, lambda spec: f"{spec.name}-log", metrics=counted)
    parts = KeyRange.split(5)
    for number in wanted:
        reading.add(TaskId(0, 0, parts[number]), [spec], database, {})
    run(reading)
    reading.close()
    for number in range(5):
        here = {
            key for key in plain if key_hash(key) in parts[number] and number in wanted
        }
        stored = database.scan(
            spec.name, layout.groups_of(parts[number]).numbers, None, None
        )
        assert {
            key[: len(key) - layout.suffix_bytes(spec)] for key, _ in stored
        } == here
    restored = sum(key_hash(key) in parts[number] for key in plain for number in wanted)
    assert set(counted.records.values()) <= {restored}, (
        "each task counts the records of all that restore with it"
    )


def test_a_task_with_parts_at_several_positions_gets_each_as_it_stood() -> None:
    log, database, (one, two) = (
        cluster(100),
        Database(Memory(), STORES),
        KeyRange.split(2),
    )
    reading = restoring(log)
    reading.add(TaskId(0, 0, WHOLE), STORES, database, {"table": {one: 90, two: 31}})
    assert run(reading) == [TaskId(0, 0, WHOLE)]
    assert rows(database, "table", WHOLE) == fold(90, one) | fold(31, two)
    reading.close()


def test_while_the_registry_is_away_no_row_of_the_source_topic_is_left_out() -> None:
    away = [1]

    def decode(data: bytes) -> str:
        if away and data == b"50":
            away.pop()
            raise RegistryUnavailableError("no answer")
        return data.decode()

    spec = replace(TABLE, value=Serde("registered", str.encode, decode))
    log, database = cluster(100), Database(Memory(), [spec])
    reading, task = restoring(log), TaskId(0, 0, WHOLE)
    reading.add(task, [spec], database, {"table": {WHOLE: 60}})
    with pytest.raises(LogError, match="no answer") as error:
        run(reading)
    assert error.value.retryable
    assert run(reading) == [task]
    assert rows(database, "table", WHOLE) == fold(60, WHOLE)


def test_a_task_that_has_no_partition_of_the_source_topic_has_nothing_to_restore_from_it() -> (
    None
):
    log, database = cluster(100, partitions=1), Database(Memory(), STORES)
    reading = restoring(log)
    reading.add(TaskId(0, 1, WHOLE), STORES, database, {})
    assert run(reading) == [TaskId(0, 1, WHOLE)]
    assert rows(database, "table", WHOLE) == {}
    reading.close()


def test_a_listener_hears_once_of_a_changelog_that_two_tasks_need_and_that_it_was_given_up_with_the_last() -> (
    None
):
    heard: list[tuple[str, int]] = []

    class Suspended(RestoreListener):
        def on_restore_start(
            self, partition: TopicPartition, store: str, start: int, end: int
        ) -> None:
            heard.append((f"start {partition}", end))

        def on_restore_suspended(
            self, partition: TopicPartition, store: str, records: int
        ) -> None:
            heard.append((f"suspended {partition}", records))

    log, database, halves = cluster(100), Database(Memory(), STORES), KeyRange.split(2)
    reading, tasks = (
        restoring(log, Suspended()),
        [TaskId(0, 0, half) for half in halves],
    )
    for task in tasks:
        reading.add(task, [COUNTS], database, {})
    reading.cancel(tasks[0])
    assert heard == [("start counts-log-0", 100)]
    reading.cancel(tasks[1])
    assert heard == [("start counts-log-0", 100), ("suspended counts-log-0", 0)]
    reading.close()


def test_nothing_is_restored_from_a_changelog_from_which_rows_are_deleted() -> None:
    """A range moves here after somebody has changed the policy. Source topics and
    windows are the users' to keep.
    """
    deleting = {"cleanup.policy": "delete", "retention.ms": "1000"}
    log, windows = MemoryLog(), replace(OF_EACH_KIND[1], name="windows")
    log.create_topics(
        [
            TopicSpec(topic, 1, deleting)
            for topic in ("people", "counts-log", "windows-log")
        ]
    )
    reading, task = restoring(log), TaskId(0, 0, WHOLE)
    reading.add(
        task,
        [TABLE, windows],
        Database(Memory(), [TABLE, windows]),
        {"table": {WHOLE: 0}},
    )
    assert run(reading) == [task]
    with pytest.raises(
        ConfigError,
        match=r'counts-log, the changelog of store "counts", has cleanup.policy=delete',
    ):
        reading.add(task, [COUNTS], Database(Memory(), [COUNTS]), {})
    reading.close()


class AskedLog(MemoryLog):
    """Records the topics whose ids are requested."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def topic_id(self, topic: str) -> str:
        self.asked.append(topic)
        return super().topic_id(topic)


def test_tasks_that_open_together_ask_once_what_their_changelog_is_now(
    tmp_path: Path,
) -> None:
    log, database = AskedLog(), Database(Memory(), [COUNTS])
    log.create_topics([TopicSpec("counts-log", 1)])
    log.writer().append("counts-log", KEYS, KEYS, range(len(KEYS)), partitions=0)
    snapshots = Snapshots(str(tmp_path / "snapshots"), "app", tmp_path / "incoming")
    reading = Restores(log, lambda spec: f"{spec.name}-log", snapshots)
    for tasks in (KeyRange.split(8)[:5], KeyRange.split(8)[5:]):
        log.asked.clear()
        for part in tasks:
            reading.add(TaskId(0, 0, part), [COUNTS], database, {})
        assert log.asked == ["counts-log"]
        reading.step()
        log.asked.clear()  # later, the name may belong to another topic
        assert len(run(reading)) == len(tasks)
    assert rows(database, "counts", WHOLE) == {key: key for key in KEYS}
    reading.close()


def made_anew(log: MemoryLog, topic: str, records: int) -> None:
    """Recreate a topic with other values."""
    log.delete_topics([topic])
    log.create_topics([TopicSpec(topic, 2)])
    log.writer().append(
        topic,
        [KEYS[at % 30] for at in range(records)],
        [b"new-%d" % at for at in range(records)],
        range(records),
        partitions=0,
    )


def fold_anew(upto: int, key_range: KeyRange) -> dict[bytes, bytes]:
    return {
        KEYS[at % 30]: b"new-%d" % at
        for at in range(upto)
        if key_hash(KEYS[at % 30]) in key_range
    }


ENGINES: Mapping[str, Callable[[Path], tuple[Engine, Mapping[str, Engine]]]] = {
    "memory": lambda _: (Memory(), {}),
    "rocks": lambda folder: (Rocks(folder), {}),
    "sqlite": lambda folder: (Sqlite(folder), {}),
    "mixed": lambda folder: (Rocks(folder), {"counts": Memory()}),
}


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_topic_that_was_made_anew_and_has_grown_past_the_state_is_read_from_its_beginning(
    engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A changelog, and a source topic that is a changelog. A sibling's state stays
    until the sibling opens.
    """
    engine_of, apart = ENGINES[engine](tmp_path)
    log, database, (one, two) = (
        cluster(100),
        Database(engine_of, STORES, apart=apart),
        KeyRange.split(2),
    )
    reading = restoring(log)
    for half in (one, two):
        reading.add(TaskId(0, 0, half), STORES, database, {"table": {half: 90}})
    assert len(run(reading)) == 2
    for topic in ("people", "counts-log"):
        made_anew(log, topic, 200)
    caplog.clear()
    reading.add(TaskId(0, 0, one), STORES, database, {"table": {one: 95}})
    assert run(reading) == [TaskId(0, 0, one)]
    assert (
        caplog.text.count("that was made anew; restoring them from the beginning") == 2
    )
    assert rows(database, "table", one) == fold_anew(95, one)
    assert rows(database, "counts", one) == fold_anew(200, one)
    assert rows(database, "table", two) == fold(90, two)
    assert rows(database, "counts", two) == fold(100, two)
    reading.close()


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 120), st.integers(0, 300), st.integers(0, 8), st.sampled_from(STORES)
)
def test_whenever_a_topic_is_made_anew_while_it_is_read_the_state_is_that_of_the_new_one(
    before: int, after: int, steps: int, spec: StoreSpec
) -> None:
    """Batches of ten, so that a restore is at any point: at the start, half-way, past
    the end of the new topic, complete.
    """
    log, database = cluster(before), Database(Memory(), [spec])
    reading, task = restoring(log), TaskId(0, 0, WHOLE)
    stand = min(before, after)
    positions = {"table": {WHOLE: stand}} if spec is TABLE else {}
    with patch.object(restores_module, "BATCH", 10):
        reading.add(task, [spec], database, positions)
        for _ in range(steps):
            reading.step()
        open_already = reading.finished() == [task]
        made_anew(log, spec.source or "counts-log", after)
        for _ in range(2):
            if open_already:
                reading.add(task, [spec], database, positions)
            assert run(reading) == [task]
            open_already = True
            assert rows(database, spec.name, WHOLE) == fold_anew(
                stand if spec is TABLE else after, WHOLE
            )
    reading.close()


@pytest.mark.parametrize(
    ("begins", "windows"), [(1_000_000, [1_000_000]), (5, [0, 1_000_000])]
)
def test_windows_that_expired_in_a_standby_come_back_for_a_task_that_begins_earlier(
    tmp_path: Path, begins: int, windows: list[int]
) -> None:
    """Under at-least-once, a changelog may be ahead of its task."""
    spec = StoreSpec("counts", "window", text, text, window_ms=10, retention_ms=10)
    log = MemoryLog()
    log.create_topics([TopicSpec("counts-log", 1)])
    key = KEYS[0]
    for start in (0, 1_000_000):
        row = window_key(key, start) + bytes(4)  # a sequence number, as Kafka Streams'
        log.writer().append("counts-log", [row], [b"1"], [start], partitions=0)
    task = TaskId(0, 0, WHOLE)
    database = Database(Rocks(tmp_path / "rocks"), [spec])
    standby = restoring(log)
    standby.add(task, [spec], database, {})
    run(standby)
    assert list(rows(database, "counts", WHOLE)) == [window_key(key, 1_000_000)]
    opening = restoring(log)
    opening.add(task, [spec], database, {}, {"counts": begins})
    run(opening)
    assert list(rows(database, "counts", WHOLE)) == [
        window_key(key, start) for start in windows
    ]
    database.close()
