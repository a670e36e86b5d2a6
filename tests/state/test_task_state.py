from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from coopstreams.state import layout
from coopstreams.state.checkpoints import Checkpoint
from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.state.restore import Restore, lacking
from coopstreams.state.task_state import TaskState
from coopstreams.topology.keys import ALL_GROUPS, WHOLE, KeyGroups, KeyRange, key_hash
from coopstreams.topology.serdes import int64, json, text
from coopstreams.topology.stores import StoreSpec, session_key, window_key
from tests.state.bounds import TOPIC_ID, bounds, stands
from tests.state.conftest import NewEngine
from tests.state.rows import put, stored

COUNTS = StoreSpec("counts", "key_value", text, int64)
NAMES = StoreSpec("names", "key_value", text, text)
VISITS = StoreSpec("visits", "session", text, int64, retention_ms=1 << 40, step_ms=1)
LOCAL = StoreSpec("local", "key_value", text, int64, logged=False)
WINDOWS = StoreSpec("windows", "window", text, int64, window_ms=10, retention_ms=100)
HISTORY = StoreSpec("history", "versions", text, int64, suffix_bytes=8)
PAGES = StoreSpec("pages", "key_value", text, json)
BYTES = 1 << 30


def test_changes_are_columns_in_database_order_without_what_came_and_went() -> None:
    state = TaskState(Database(Memory(), [COUNTS]), [COUNTS], WHOLE, BYTES)
    table = state.stores["counts"]
    for number in range(50):
        put(table, b"%d" % number, number, 1000 + number)
    put(table, b"7", None, 2000)
    batch = state.changes()[0]
    expected = sorted(
        (b"%d" % number for number in range(50) if number != 7),
        key=lambda key: layout.database_key(key, key),
    )
    assert batch.store == "counts"
    assert batch.keys == expected
    assert batch.values == [int64.serialize(int(key)) for key in expected]
    assert batch.timestamps == [1000 + int(key) for key in expected]
    assert state.changes() == []


def test_window_changes_have_the_sequence_number_that_kafka_streams_writes() -> None:
    state = TaskState(Database(Memory(), [WINDOWS]), [WINDOWS], WHOLE, BYTES)
    put(state.stores["windows"], window_key(b"k", 10), 1)
    assert state.changes()[0].keys == [b"k" + (10).to_bytes(8, "big") + bytes(4)]


def test_a_commit_writes_all_stores_with_their_checkpoints_for_its_own_range_only() -> (
    None
):
    database = Database(Memory(), [COUNTS, NAMES])
    database.write(
        [], {"counts": [Checkpoint(0, 255, 5)], "names": [Checkpoint(0, 255, 6)]}
    )
    mine = KeyRange.of_groups(0, 63)
    key = next(
        key
        for key in (b"%d" % number for number in range(1000))
        if layout.database_key(key, key)[0] < 64
    )
    state = TaskState(database, [COUNTS, NAMES], mine, BYTES)
    put(state.stores["counts"], key, 1)
    put(state.stores["names"], key, "one")
    state.changes()
    state.commit({"counts": 10, "names": 11})
    assert (list(stored(database, "counts")), list(stored(database, "names"))) == (
        [key],
        [key],
    )
    assert [
        (run.first, run.last, run.offset) for run in database.checkpoints("counts")
    ] == [(0, 63, 10), (64, 255, 5)]
    assert [
        (run.first, run.last, run.offset) for run in database.checkpoints("names")
    ] == [(0, 63, 11), (64, 255, 6)]


def test_what_changes_after_it_was_serialised_belongs_to_the_next_commit() -> None:
    database = Database(Memory(), [COUNTS])
    state = TaskState(database, [COUNTS], WHOLE, BYTES)
    put(state.stores["counts"], b"a", 1)
    state.changes()
    put(state.stores["counts"], b"a", 2)
    state.commit({"counts": 1})
    assert stored(database, "counts") == {b"a": (int64.serialize(1), 0)}
    assert [batch.values for batch in state.changes()] == [[int64.serialize(2)]]
    state.commit({"counts": 2})
    assert stored(database, "counts") == {b"a": (int64.serialize(2), 0)}


def test_an_abort_leaves_the_database_as_it_was_and_the_buffer_empty() -> None:
    database = Database(Memory(), [COUNTS])
    state = TaskState(database, [COUNTS], WHOLE, BYTES)
    put(state.stores["counts"], b"a", 1)
    state.changes()
    state.commit({"counts": 1})
    put(state.stores["counts"], b"a", 2)
    state.changes()
    state.discard()
    assert state.stores["counts"].load(b"a").value == 1
    state.commit({"counts": 1})
    assert stored(database, "counts") == {b"a": (int64.serialize(1), 0)}


def test_an_unlogged_store_is_kept_but_has_no_changelog() -> None:
    database = Database(Memory(), [LOCAL])
    state = TaskState(database, [LOCAL], WHOLE, BYTES)
    put(state.stores["local"], b"a", 1)
    assert state.changes() == []
    state.commit({})
    assert list(stored(database, "local")) == [b"a"]


def test_a_commit_without_changes_writes_a_checkpoint_once() -> None:
    engine = Memory()
    database = Database(engine, [COUNTS])
    state = TaskState(database, [COUNTS], WHOLE, BYTES)
    state.commit({"counts": 5})
    before = database.checkpoints("counts")
    assert before.offset(ALL_GROUPS) == 5
    state.commit({"counts": 5})
    assert database.checkpoints("counts") is before


def test_the_buffer_stays_within_its_budget_by_letting_clean_entries_go() -> None:
    database = Database(Memory(), [COUNTS])
    state = TaskState(database, [COUNTS], WHOLE, 100_000)
    table = state.stores["counts"]
    for number in range(1000):
        put(table, b"%d" % number, number)
    assert state.full
    state.changes()
    state.commit({"counts": 1})
    assert table.size_bytes <= 100_000
    assert not state.full
    for number in range(1000):  # reads alone never make a task commit
        assert table.load(b"%d" % number).value == number
        assert not state.full
    assert table.size_bytes <= 100_000


def test_what_changed_lately_is_let_go_last() -> None:
    state = TaskState(Database(Memory(), [COUNTS]), [COUNTS], WHOLE, 150_000)
    table = state.stores["counts"]
    for number in range(300):
        put(table, b"%d" % number, number)
    state.changes()
    state.commit({})
    for number in range(50):
        put(table, b"%d" % number, -number)
    for number in range(300, 600):
        table.load(b"%d" % number)
    state.changes()
    state.commit({})
    assert set(table.entries) >= {b"%d" % number for number in range(50)}


def test_entries_that_grow_fill_the_buffer_before_they_are_ever_serialised() -> None:
    state = TaskState(Database(Memory(), [PAGES]), [PAGES], WHOLE, 1_000_000)
    put_before_full = 0
    while not state.full:
        put_before_full += 1
        put(state.stores["pages"], b"%d" % put_before_full, ["x" * 10_000])
    assert 10 < put_before_full < 40


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        (COUNTS, 1 << 40),
        (NAMES, "some text of a usual length"),
        (PAGES, {"carrier": "UA", "delay": 12.5, "count": 17, "tail": "N14228"}),
        (VISITS, 1 << 40),
    ],
    ids=["int", "text", "dict", "session"],
)
def test_the_size_of_a_buffer_is_about_what_python_takes(
    spec: StoreSpec, value: object
) -> None:
    state = TaskState(Database(Memory(), [spec]), [spec], WHOLE, BYTES)
    table = state.stores[spec.name]
    tracemalloc.start()
    for number in range(20_000):
        key = b"user-%08d" % number
        at = session_key(key, number, number + 5) if spec is VISITS else key
        put(table, at, table.spec.value.decode(table.spec.value.encode(value)))
    state.changes()
    table.frozen.clear()  # the frozen changes do not count as the buffer's
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.6 < table.size_bytes / taken < 1.6


def test_the_times_of_a_key_with_many_windows_count_and_are_let_go() -> None:
    keys = [b"user-%02d" % number for number in range(40)]
    state = TaskState(Database(Memory(), [HISTORY]), [HISTORY], WHOLE, 1_000_000)
    table: Any = state.stores["history"]
    for key in keys:
        for start in range(1000):
            put(table, window_key(key, start), start)
    state.changes()
    state.commit({})
    table.trim(0)
    tracemalloc.start()
    for key in keys:
        table.first_from(key, 0)
    taken, _ = tracemalloc.get_traced_memory()
    assert 0.6 < table.size_bytes / taken < 1.6
    assert not state.full
    assert tracemalloc.get_traced_memory()[0] < 500_000
    tracemalloc.stop()


HOUR_S = 3600


def test_a_task_that_has_nothing_to_write_is_continued_from_for_as_long_as_it_said_that_it_is_alive(
    new_engine: NewEngine,
) -> None:
    """Confirmed for 30 hours, then closed for one: no other process wrote its keys, so
    it missed no tombstone. Its sibling is not confirmed.
    """
    began, database, (mine, other) = (
        1_000_000,
        Database(new_engine(), [COUNTS]),
        KeyRange.split(2),
    )
    Restore(database, COUNTS, [WHOLE], bounds(0, now_s=began))
    state = TaskState(database, [COUNTS], mine, BYTES)
    for hours in range(31):
        state.confirm((began + hours * HOUR_S) * 1000)
    again = bounds(7, now_s=began + 31 * HOUR_S)
    assert lacking(database.checkpoints("counts"), mine, again) == []
    assert lacking(database.checkpoints("counts"), other, again) == list(
        range(128, 256)
    )
    assert [
        (run.offset, run.topic_id)
        for run in database.checkpoints("counts").within(KeyGroups(0, 127))
    ] == [(0, TOPIC_ID)]


def test_what_a_task_commits_stands_in_the_topic_that_it_was_restored_from() -> None:
    database, (mine, other) = Database(Memory(), [COUNTS]), KeyRange.split(2)
    Restore(database, COUNTS, [mine], bounds(5, topic_id="id-1"))
    database.write([], {"counts": [stands(5, mine, "id-1"), stands(5, other, "id-2")]})
    state = TaskState(database, [COUNTS], mine, BYTES)
    put(
        state.stores["counts"],
        next(
            key
            for key in (b"%d" % number for number in range(99))
            if key_hash(key) in mine
        ),
        1,
    )
    state.changes()
    state.commit({"counts": 9}, true_ms=77)
    assert [
        (run.offset, run.topic_id, run.true_ms == 77)
        for run in database.checkpoints("counts")
    ] == [
        (9, "id-1", True),
        (5, "id-2", False),
    ]
