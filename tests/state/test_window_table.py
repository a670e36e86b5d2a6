from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coopstreams.state.database import Database
from coopstreams.state.engine import Engine
from coopstreams.state.memory_engine import Memory
from coopstreams.state.task_state import TaskState
from coopstreams.state.views import KeyRangeView
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.stores import (
    StoreSpec,
    TableStore,
    split_window_key,
    window_key,
)
from tests.state import rows
from tests.state.conftest import NewEngine

SIZE = 60_000
SPEC = StoreSpec(
    "windows", "window", text, int64, window_ms=SIZE, retention_ms=4 * SIZE
)
BYTES = 1 << 30
Rows = dict[tuple[bytes, int], int]


def new_state(
    engine: Engine, key_range: KeyRange = WHOLE, cache_bytes: int = BYTES
) -> TaskState:
    return TaskState(Database(engine, [SPEC]), [SPEC], key_range, cache_bytes)


def put(table: TableStore, key: bytes, window: int, value: int | None) -> None:
    rows.put(table, window_key(key, window * SIZE), value, window * SIZE)


def windows_of(table: TableStore) -> Rows:
    return {
        (key, start // SIZE): entry.value
        for at, entry in table.scan(None, None)
        for key, start in [split_window_key(at)]
    }


def test_windows_live_in_segments_and_come_back(new_engine: NewEngine) -> None:
    engine = new_engine()
    state = new_state(engine)
    for window in range(4):
        put(state.stores["windows"], b"a", window, window)
    state.stores["windows"].advance(3 * SIZE)
    state.changes()
    state.commit({"windows": 1})
    assert sorted(engine.families()) == ["meta", "window/windows/0", "window/windows/1"]
    assert windows_of(new_state(engine).stores["windows"]) == {
        (b"a", window): window for window in range(4)
    }
    assert (
        new_state(engine).stores["windows"].load(window_key(b"a", 3 * SIZE)).value == 3
    )


def test_the_last_window_start_within_the_retention_is_visible_and_the_one_before_is_not() -> (
    None
):
    table = new_state(Memory()).stores["windows"]
    for window in range(6):
        put(table, b"a", window, window)
    table.advance(
        5 * SIZE + 1
    )  # observes window 5, keeps 4 sizes: visible from start 1 * SIZE + 1
    assert windows_of(table) == {(b"a", window): window for window in range(2, 6)}
    assert table.load(window_key(b"a", SIZE)).value is None
    assert table.load(window_key(b"a", 2 * SIZE)).value == 2


def test_stream_time_within_a_window_hides_nothing_that_its_start_does_not_hide() -> (
    None
):
    table = new_state(Memory()).stores["windows"]
    for window in range(2, 6):
        put(table, b"a", window, window)
    table.advance(5 * SIZE)
    before = windows_of(table)
    table.advance(6 * SIZE - 1)
    assert windows_of(table) == before


def test_stream_time_never_goes_back() -> None:
    table = new_state(Memory()).stores["windows"]
    put(table, b"a", 1, 1)
    table.advance(9 * SIZE)
    table.advance(2 * SIZE)
    assert windows_of(table) == {}


def test_the_last_update_of_a_window_that_expires_before_the_commit_is_forwarded_and_logged_but_not_stored() -> (
    None
):
    database = Database(Memory(), [SPEC])
    state = TaskState(database, [SPEC], WHOLE, BYTES)
    table = state.stores["windows"]
    put(table, b"a", 1, 7)
    table.advance(9 * SIZE)
    assert [(key, entry.value) for key, entry in table.dirty()] == [
        (window_key(b"a", SIZE), 7)
    ]
    assert [batch.values for batch in state.changes()] == [[int64.serialize(7)]]
    state.commit({"windows": 1})
    assert list(database.scan("windows", range(256), None, None)) == []


def test_expired_segments_are_dropped_from_the_database(new_engine: NewEngine) -> None:
    engine = new_engine()
    state = new_state(engine)
    table = state.stores["windows"]
    for window in range(20):
        put(table, b"a", window, window)
        table.advance(window * SIZE)
        state.changes()
        state.commit({"windows": window})
        assert len(engine.families()) <= 4
    assert windows_of(table) == {(b"a", window): window for window in range(16, 20)}


def test_a_task_of_part_of_the_keys_forgets_windows_by_the_time_of_the_partition(
    new_engine: NewEngine,
) -> None:
    """The law of the project: visible windows do not depend on the number of ranges."""
    keys = [b"%d" % number for number in range(20)]
    seen = []
    for parts in (1, 2, 8):
        database = Database(new_engine(), [SPEC])
        rows: Rows = {}
        for key_range in KeyRange.split(parts):
            state = TaskState(database, [SPEC], key_range, BYTES)
            table = state.stores["windows"]
            for number, key in enumerate(keys):  # each key stops at another time
                if key_hash(key) in key_range:
                    put(table, key, number, number)
                table.advance(number * SIZE)  # by records of any range
            rows |= windows_of(table)
            state.changes()
            state.commit({"windows": 1})
        stored = {
            split_window_key(row.key)[0]
            for row in KeyRangeView(database, SPEC, [WHOLE]).range()
        }
        seen.append((rows, stored))
    assert seen[0] == seen[1] == seen[2]
    assert set(seen[0][0]) == {(b"%d" % number, number) for number in range(16, 20)}
    assert seen[0][1] == {b"16", b"17", b"18", b"19"}


def test_a_task_that_begins_behind_an_earlier_owner_of_other_groups_keeps_its_windows() -> (
    None
):
    engine = Memory()
    first, second = KeyRange.split(2)
    mine, other = (
        next(key for key in (b"%d" % n for n in range(20)) if key_hash(key) in half)
        for half in (first, second)
    )
    ahead = new_state(engine, second)
    put(ahead.stores["windows"], other, 19, 19)
    ahead.stores["windows"].advance(19 * SIZE)
    ahead.changes()
    ahead.commit({"windows": 1})
    for offset, begins in enumerate((0, 1), 2):
        both = new_state(engine)
        both.begin({"windows": begins * SIZE})
        put(both.stores["windows"], mine, begins, begins)
        both.changes()
        both.commit({"windows": offset})
    both = new_state(engine)
    both.begin({"windows": 1 * SIZE})
    assert windows_of(both.stores["windows"]) == {
        (mine, 0): 0,
        (mine, 1): 1,
        (other, 19): 19,
    }


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["put", "put", "delete", "advance", "commit", "discard", "reopen", "full"]
        ),
        st.sampled_from([b"", b"a", b"ab", b"b"]),
        st.integers(0, 12),
    ),
    max_size=40,
)


@pytest.mark.ci
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(OPERATIONS, st.sampled_from([1, BYTES]))
def test_a_window_table_is_a_dict_that_forgets_old_windows(
    new_engine: NewEngine, operations: list[tuple[str, bytes, int]], cache_bytes: int
) -> None:
    engine = new_engine()
    state = new_state(engine, cache_bytes=cache_bytes)
    live: Rows = {}
    committed: Rows = {}
    observed = committed_observed = -1
    for number, (what, key, window) in enumerate(operations):
        table = state.stores["windows"]
        if what in ("put", "delete"):
            if window > observed - 4:  # operators drop late records
                put(table, key, window, number if what == "put" else None)
                live[key, window] = number
                if what == "delete":
                    del live[key, window]
        elif what == "advance":
            table.advance(window * SIZE + number % SIZE)
            observed = max(observed, window)
        elif what == "commit":
            state.changes()
            state.commit({"windows": number})
            committed, committed_observed = dict(live), observed
        elif what == "full":
            assert state.full in (True, False)
        else:
            live, observed = dict(committed), committed_observed
            if what == "discard":
                state.discard()
            else:
                state = new_state(engine, cache_bytes=cache_bytes)
        live = {at: value for at, value in live.items() if at[1] > observed - 4}
        assert windows_of(state.stores["windows"]) == live
    for key, window in live:
        assert (
            state.stores["windows"].load(window_key(key, window * SIZE)).value
            == live[key, window]
        )
    visible = {
        at: value for at, value in committed.items() if at[1] > committed_observed - 4
    }
    rows = KeyRangeView(Database(engine, [SPEC]), SPEC, [WHOLE]).range()
    assert {
        (key, start // SIZE): int64.deserialize(row.value)
        for row in rows
        for key, start in [split_window_key(row.key)]
    } == visible
    engine.close()


SLIDING = StoreSpec(
    "windows",
    "window",
    text,
    int64,
    window_ms=10,
    retention_ms=40,
    step_ms=1,
    lag_ms=10,
)


def test_where_records_begin_windows_a_task_takes_in_what_its_siblings_have_begun_when_its_stream_time_is_there() -> (
    None
):
    database, (low, high) = Database(Memory(), [SLIDING]), KeyRange.split(2)
    keys = [b"%d" % number for number in range(40)]
    slow_key, fast_key = (
        next(key for key in keys if key_hash(key) in part) for part in (low, high)
    )
    slow, fast = (
        TaskState(database, [SLIDING], part, BYTES).stores["windows"]
        for part in (low, high)
    )
    for table, key, start in (
        (slow, slow_key, 100),
        (fast, fast_key, 100),
        (fast, fast_key, 145),
    ):
        at = window_key(key, start)
        entry = table.load(at)
        entry.value = 1
        table.touch(at, entry)
    fast.advance(150)
    assert [split_window_key(at) for at, _ in fast.scan(None, None)] == [
        (fast_key, 145)
    ]  # 145 - 40 + 1 is the first that is visible
    for stream_time, visible in ((144, [(slow_key, 100)]), (145, [])):
        slow.advance(stream_time)
        assert [split_window_key(at) for at, _ in slow.scan(None, None)] == visible
    assert (slow.observed, fast.observed) == (145, 145)
