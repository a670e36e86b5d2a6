from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.state.database import Database
from coopstreams.state.engine import Engine, Rows
from coopstreams.state.memory_engine import Memory
from coopstreams.state.task_state import TaskState
from coopstreams.state.views import KeyRangeView
from coopstreams.state.window_table import SessionTable, WindowTable
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.stores import (
    StoreSpec,
    session_key,
    split_session_key,
    split_window_key,
    window_key,
)
from tests.state.conftest import NewEngine
from tests.state.rows import put, rocks

MINUTE = 60_000
KEPT = 10 * MINUTE
SESSIONS = StoreSpec("sessions", "session", text, int64, retention_ms=KEPT)
WINDOWS = StoreSpec("windows", "window", text, int64, retention_ms=KEPT)
BYTES = 1 << 30
# Longer keys between the sessions of a shorter one, and next to them.
KEYS = [
    b"",
    b"a",
    b"a\x00",
    b"a" + bytes(16),
    b"a" + bytes(7) + b"\x01",
    b"ab",
    b"b\xff",
]


class Counting(Memory):
    """An engine in memory that counts the runs of rows requested from it."""

    def __init__(self) -> None:
        super().__init__()
        self.scans = 0

    def scan(
        self, family: str, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Rows:
        self.scans += 1
        return super().scan(family, start, end, reverse=reverse)


def new_state(
    engine: Engine, spec: StoreSpec = SESSIONS, cache_bytes: int = BYTES
) -> TaskState:
    return TaskState(Database(engine, [spec]), [spec], WHOLE, cache_bytes)


def sessions_of(state: TaskState) -> SessionTable:
    return cast(SessionTable, state.stores["sessions"])


def windows_of(state: TaskState) -> WindowTable:
    return cast(WindowTable, state.stores["windows"])


def found(
    table: SessionTable, key: bytes, earliest_end: int, latest_start: int
) -> list[tuple[int, int, object]]:
    rows = [
        (split_session_key(row), entry.value)
        for row, entry in table.sessions(key, earliest_end, latest_start)
    ]
    assert all(plain == key for (plain, _, _), _ in rows)
    return [(start, end, value) for (_, start, end), value in rows]


def commit(state: TaskState) -> None:
    state.changes()
    state.commit({next(iter(state.stores)): 1})


@pytest.mark.parametrize("keys", [1, 1000])
def test_a_lookup_reads_one_run_of_each_segment_and_then_what_it_knows(
    keys: int,
) -> None:
    """A second look-up of a key reads nothing, and no look-up reads the rows of other
    keys.
    """
    engine = Counting()
    state = new_state(engine)
    for number in range(keys):
        for minute in range(0, 10, 2):
            sessions_of(state).put(
                session_key(b"%d" % number, minute * MINUTE, minute * MINUTE),
                1,
                minute * MINUTE,
            )
    commit(state)
    segments = len(
        [family for family in engine.families() if family.startswith("window/")]
    )
    assert segments == 2
    table = sessions_of(new_state(engine))
    engine.scans = 0
    assert [end for _, end, _ in found(table, b"0", 7 * MINUTE, 9 * MINUTE)] == [
        8 * MINUTE
    ]
    assert engine.scans == 1
    assert len(found(table, b"0", 0, 9 * MINUTE)) == 5
    assert engine.scans == 1 + segments
    for minute in range(9):
        table.put(
            session_key(b"0", minute * MINUTE, minute * MINUTE), None, minute * MINUTE
        )
        found(table, b"0", minute * MINUTE, (minute + 1) * MINUTE)
    assert engine.scans == 1 + segments


def test_a_key_without_sessions_is_looked_for_once() -> None:
    """A store remembers that it found no session of a key, until a segment expires."""
    engine = Counting()
    state = new_state(engine)
    for minute in range(0, 10, 2):
        sessions_of(state).put(
            session_key(b"a", minute * MINUTE, minute * MINUTE), 1, minute * MINUTE
        )
    commit(state)
    engine.scans = 0
    for _ in range(3):
        assert found(sessions_of(state), b"b", 0, 9 * MINUTE) == []
    assert engine.scans == 2


def test_what_is_not_committed_is_found_when_the_buffer_was_over_its_budget() -> None:
    state = new_state(Memory(), cache_bytes=1)
    table = sessions_of(state)
    assert found(table, b"a", 0, MINUTE) == []
    table.put(session_key(b"a", 0, MINUTE), 7, MINUTE)
    assert state.full
    assert found(table, b"a", 0, MINUTE) == [(0, MINUTE, 7)]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "put",
                "put",
                "put",
                "delete",
                "look",
                "look",
                "advance",
                "commit",
                "discard",
                "reopen",
                "full",
            ]
        ),
        st.sampled_from(KEYS),
        st.integers(0, 30),
        st.integers(0, 3),
    ),
    max_size=50,
)


@settings(max_examples=200, deadline=None)
@given(OPERATIONS, st.sampled_from([1, BYTES]))
def test_a_session_table_is_a_dict_that_forgets_old_sessions(
    operations: list[tuple[str, bytes, int, int]], cache_bytes: int
) -> None:
    engine = Memory()
    state = new_state(engine, cache_bytes=cache_bytes)
    live: dict[tuple[bytes, int, int], int] = {}
    committed, observed, committed_observed = dict(live), -1, -1
    newest = -1
    """The largest session of any task over the database. A discarded table finds it
    again; a new one starts from its own rows.
    """
    for number, (what, key, minute, length) in enumerate(operations):
        table = sessions_of(state)
        start, end = minute * MINUTE, (minute + length) * MINUTE
        if what in ("put", "delete") and end > observed - KEPT:
            table.put(
                session_key(key, start, end), number if what == "put" else None, end
            )
            live[key, start, end] = number
            newest, observed = max(newest, end), max(observed, end)
            if what == "delete":
                del live[key, start, end]
        elif what == "look":
            assert found(table, key, start, end) == _visible(
                live, key, start, end, observed
            )
        elif what == "commit":
            commit(state)
            committed, committed_observed = dict(live), observed
        elif what == "full":
            assert state.full in (True, False)
        elif what != "advance":
            live, observed = dict(committed), committed_observed
            if what == "discard":
                state.discard()
            else:
                state, newest = new_state(engine, cache_bytes=cache_bytes), observed
        if what in ("put", "delete", "advance"):
            sessions_of(state).advance(end)
            observed = max(observed, newest if newest <= end else -1)
        if length > 1:
            assert found(sessions_of(state), key, start, 40 * MINUTE) == _visible(
                live, key, start, 40 * MINUTE, observed
            )
    for key in KEYS:
        assert found(sessions_of(state), key, 0, 40 * MINUTE) == _visible(
            live, key, 0, 40 * MINUTE, observed
        )
        assert found(sessions_of(state), key, 15 * MINUTE, 16 * MINUTE) == _visible(
            live, key, 15 * MINUTE, 16 * MINUTE, observed
        )


def _visible(
    live: dict[tuple[bytes, int, int], int],
    key: bytes,
    earliest_end: int,
    latest_start: int,
    observed: int,
) -> list[tuple[int, int, object]]:
    kept = [
        (end, start, value)
        for (of, start, end), value in live.items()
        if of == key
        and end > observed - KEPT
        and end >= earliest_end
        and start <= latest_start
    ]
    return [(start, end, value) for end, start, value in sorted(kept)]


@settings(max_examples=200, deadline=None)
@given(OPERATIONS, st.sampled_from([1, BYTES]))
def test_windows_of_a_key_are_found_whoever_has_changed_them(
    operations: list[tuple[str, bytes, int, int]], cache_bytes: int
) -> None:
    """Windows are changed by `put`, or by `load` and `touch` as in an aggregation,
    while a processor fetches.
    """
    engine = Memory()
    state = new_state(engine, WINDOWS, cache_bytes)
    live: dict[tuple[bytes, int], int] = {}
    committed = dict(live)
    for number, (what, key, minute, length) in enumerate(operations):
        table, value = windows_of(state), None if what == "delete" else number
        if what in ("put", "delete", "advance"):
            row = window_key(key, minute * MINUTE)
            if length % 2:
                table.put(row, value, number)
            else:
                put(table, row, value, number)
            live[key, minute] = number
            if value is None:
                del live[key, minute]
        elif what == "look":
            rows = [
                (split_window_key(row)[1] // MINUTE, entry.value)
                for row, entry in table.fetch(
                    key, minute * MINUTE, (minute + length) * MINUTE
                )
            ]
            assert rows == sorted(
                (at, each)
                for (of, at), each in live.items()
                if of == key and minute <= at <= minute + length
            )
        elif what == "commit":
            commit(state)
            committed = dict(live)
        elif what == "full":
            assert state.full in (True, False)
        else:
            live = dict(committed)
            if what == "discard":
                state.discard()
            else:
                state = new_state(engine, WINDOWS, cache_bytes)
        if length > 1:
            rows = [
                (split_window_key(row)[1] // MINUTE, entry.value)
                for row, entry in windows_of(state).fetch(key, minute * MINUTE, 1 << 40)
            ]
            assert rows == sorted(
                (at, each)
                for (of, at), each in live.items()
                if of == key and minute <= at
            )


def test_the_sessions_of_a_key_are_those_of_no_other_key_on_any_engine(
    new_engine: NewEngine,
) -> None:
    database = Database(new_engine(), [SESSIONS])
    state = TaskState(database, [SESSIONS], WHOLE, BYTES)
    ends = [minute * MINUTE for minute in range(1, 30, 3)]
    for key in KEYS:
        for end in ends:
            sessions_of(state).put(session_key(key, end - 1, end), end, end)
    commit(state)
    for key in KEYS:
        for first, last in (
            (0, (1 << 63) - 1),
            (ends[2], ends[7]),
            (ends[2] + 1, ends[7] - 1),
            (ends[4], ends[4]),
            (ends[4] + 1, ends[5] - 1),
        ):
            within = [
                session_key(key, end - 1, end) for end in ends if first <= end <= last
            ]
            assert [
                row for row, _ in database.windows_of("sessions", key, first, last)
            ] == within
    database.close()


def test_a_view_reads_the_sessions_of_a_key_in_the_segments_that_can_have_them() -> (
    None
):
    engine = Counting()
    state = new_state(engine)
    for key in KEYS:
        for minute in range(0, 30, 3):
            table = sessions_of(state)
            table.put(
                session_key(key, minute * MINUTE, minute * MINUTE + 1),
                minute,
                minute * MINUTE + 1,
            )
    commit(state)
    view = KeyRangeView(Database(engine, [SESSIONS]), SESSIONS, [WHOLE])
    segments = len(
        [family for family in engine.families() if family.startswith("window/")]
    )
    for key in KEYS:
        engine.scans = 0
        assert [
            session.start // MINUTE for session in view.sessions(key, 0, 1 << 62)
        ] == list(range(0, 30, 3))
        assert engine.scans == segments
        engine.scans = 0
        assert [
            session.start // MINUTE
            for session in view.sessions(key, 26 * MINUTE, 1 << 62)
        ] == [27]
        assert engine.scans == 1


def test_sessions_that_were_evicted_take_no_memory_until_they_expire(
    tmp_path: Path,
) -> None:
    """Each record moves the end of its session, so each has a time of its own."""
    state = new_state(rocks(tmp_path), cache_bytes=100_000)
    table, taken = sessions_of(state), list[int]()
    tracemalloc.start()
    try:
        for now in range(20_000):
            if now:
                table.put(session_key(b"key", 0, now - 1), None, now)
            table.put(session_key(b"key", 0, now), now, now)
            table.advance(now)
            if now % 1000 == 999:
                commit(state)
                taken.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert taken[-1] < taken[1] + 500_000
    assert found(table, b"key", 0, KEPT) == [(0, 19_999, 19_999)]
