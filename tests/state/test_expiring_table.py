"""Rows that expire: the table finds them by the listed times of its database, in any
history.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coopstreams.state import expiring_table, layout
from coopstreams.state.checkpoints import Checkpoint
from coopstreams.state.database import FEW, Database
from coopstreams.state.engine import Engine
from coopstreams.state.expiring_table import ExpiringTable
from coopstreams.state.manifest import Manifest, StoreSlices, shape_of
from coopstreams.state.memory_engine import Memory
from coopstreams.state.restore import Restore
from coopstreams.state.snapshot import SnapshotWriter, store_manifest, verify
from coopstreams.state.task_state import TaskState
from coopstreams.topology.columns import Columns
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.stores import StoreSpec
from tests.state.bounds import bounds
from tests.state.conftest import NewEngine
from tests.state.rows import put

TTL = 10
SPEC = StoreSpec("rows", "key_value", text, int64, ttl_ms=TTL)
KEYS = [f"key-{number}".encode() for number in range(4)]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(KEYS), st.integers(-1, 60)),
        st.tuples(st.just("delete"), st.sampled_from(KEYS), st.just(0)),
        st.tuples(st.just("advance"), st.just(b""), st.integers(0, 9)),
        st.tuples(
            st.sampled_from(["commit", "discard", "reopen", "recut"]),
            st.just(b""),
            st.just(0),
        ),
    ),
    max_size=60,
)


class Tables:
    """The tasks of a partition, and a model of their rows."""

    def __init__(self, engine: Engine, cache_bytes: int = 1 << 30) -> None:
        self.engine, self.cache_bytes, self.now, self.committed_at = (
            engine,
            cache_bytes,
            0,
            0,
        )
        self.rows: dict[bytes, int] = {}
        self.committed: dict[bytes, int] = {}
        self.ranges = 1
        self.open()

    def open(self) -> None:
        database = Database(self.engine, [SPEC])
        self.states = [
            TaskState(database, [SPEC], part, self.cache_bytes)
            for part in KeyRange.split(self.ranges)
        ]
        self.rows, self.now = dict(self.committed), self.committed_at

    def of(self, key: bytes) -> ExpiringTable:
        at = layout.database_key(key, key)[0]
        table: Any = self.states[at * self.ranges // 256].stores["rows"]
        assert isinstance(table, ExpiringTable)
        return table

    def change(self, key: bytes, value: int | None, timestamp: int) -> None:
        table = self.of(key)
        put(table, key, value, timestamp)
        table.note(key, table.entries[key])
        self.rows.pop(key, None)
        if value is not None:
            self.rows[key] = timestamp

    def advance(self, now: int) -> None:
        """Advance time; check that the rows of the model expire at its times, the
        earliest first.
        """
        self.now = now
        gone = []
        for state in self.states:
            table: Any = state.stores["rows"]
            if now >= table.due_ms:
                of_table = [(at, key) for key, _, at in table.expired(now)]
                assert [at for at, _ in of_table] == sorted(at for at, _ in of_table)
                gone += of_table
        due = {
            key: max(0, at) + TTL
            for key, at in self.rows.items()
            if max(0, at) + TTL <= now
        }
        assert sorted(gone) == sorted((at, key) for key, at in due.items())
        for key in due:
            del self.rows[key]

    def commit(self) -> None:
        for state in self.states:
            state.changes()
            state.commit({"rows": 1})
        self.committed, self.committed_at = dict(self.rows), self.now


def run(
    steps: list[tuple[str, bytes, int]], engine: Engine, cache_bytes: int = 1 << 30
) -> None:
    tables = Tables(engine, cache_bytes)
    for number, (step, key, value) in enumerate(steps):
        match step:
            case "put":
                tables.change(key, number, value)
            case "delete":
                tables.change(key, None, tables.now)
            case "advance":
                tables.advance(tables.now + value)
            case "commit":
                tables.commit()
            case "discard":
                for state in tables.states:
                    state.discard()
                tables.rows, tables.now = dict(tables.committed), tables.committed_at
            case "reopen":
                tables.open()
            case _:
                tables.ranges = {1: 4, 4: 2, 2: 1}[tables.ranges]
                tables.open()
    tables.advance(tables.now + 100)
    tables.commit()
    assert tables.rows == {}
    assert list(engine.scan(layout.expiry_family("rows"), b"", None)) == []
    assert all(
        not list(state.stores["rows"].scan(None, None)) for state in tables.states
    )


@pytest.mark.parametrize("cache_bytes", [0, 1000, 1 << 30])
@pytest.mark.parametrize("chunk", [1, 3, 4096])
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=STEPS)
def test_rows_expire_when_they_are_due_whatever_happens_in_between(
    steps: list[tuple[str, bytes, int]],
    chunk: int,
    cache_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expiring_table, "CHUNK", chunk)
    monkeypatch.setattr(expiring_table, "MOST_QUEUED", 2 * chunk)
    run(steps, Memory(), cache_bytes)


@pytest.mark.parametrize("few", [0, FEW])
def test_any_engine_lists_the_rows(
    new_engine: NewEngine, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "coopstreams.state.database.FEW", few
    )  # 0: an iterator for each key group, as for many rows
    steps = [("put", key, 9 * number) for number, key in enumerate(KEYS)]
    run(
        [
            *steps,
            ("commit", b"", 0),
            ("advance", b"", 9),
            ("recut", b"", 0),
            ("advance", b"", 15),
        ],
        new_engine(),
    )


def test_a_row_that_is_updated_often_is_listed_once() -> None:
    tables = Tables(engine := Memory())
    for timestamp in range(50):
        tables.change(b"a", timestamp, timestamp)
        tables.advance(timestamp)
        tables.commit()
    listed = list(engine.scan(layout.expiry_family("rows"), b"", None))
    assert len(listed) == 1


def test_a_row_that_comes_and_goes_leaves_nothing_listed() -> None:
    tables = Tables(engine := Memory())
    tables.advance(2 * TTL)
    for number in range(50):
        at = 2 * TTL + number
        for value, timestamp in ((1, at), (None, at), (2, at + 1), (3, at + 2)):
            tables.change(b"a", value, timestamp)
            tables.commit()
        tables.advance(at)
    tables.advance(10 * TTL)
    tables.commit()
    assert list(engine.scan(layout.expiry_family("rows"), b"", None)) == []


def test_rows_that_wait_for_their_time_do_not_have_a_task_commit_all_the_time() -> None:
    tables = Tables(Memory(), cache_bytes=1 << 20)
    (state,) = tables.states
    tables.advance(TTL)
    for number in range(10_000):
        tables.change(b"%d" % number, 1, TTL + 1)
    tables.commit()
    assert not state.full
    tables.advance(2 * TTL + 1)


def restored(engine: Engine, records: list[tuple[bytes, int | None, int]]) -> Database:
    database = Database(engine, [SPEC])
    restore = Restore(database, SPEC, [WHOLE], bounds(len(records)))
    keys, values, timestamps = zip(*records, strict=True)
    columns = Columns(
        list(keys),
        [None if value is None else int64.serialize(value) for value in values],
        list(timestamps),
        list(range(len(records))),
        list(timestamps),
    )
    restore.feed(columns, len(records))
    return database


def test_rows_expire_up_to_the_last_moment_there_is() -> None:
    last = (1 << 63) - 1
    tables = Tables(Memory())
    for number, timestamp in enumerate((5, last - TTL, last - TTL + 1, last)):
        tables.change(KEYS[number], 1, timestamp)
    table = tables.of(KEYS[0])
    assert [(key, at) for key, _, at in table.expired(last)] == [
        (KEYS[0], 5 + TTL),
        (KEYS[1], last),
    ]
    assert table.expired(last) == []


def test_restored_rows_expire(new_engine: NewEngine) -> None:
    database = restored(
        new_engine(),
        [(b"a", 1, 5), (b"b", 2, 7), (b"a", 3, 20), (b"c", 4, 8), (b"c", None, 9)],
    )
    table: Any = TaskState(database, [SPEC], WHOLE, 1 << 30).stores["rows"]
    assert table.expired(17) == [(b"b", 2, 17)]
    assert table.expired(40) == [(b"a", 3, 30)]


def test_a_snapshot_has_what_is_listed(tmp_path: Path) -> None:
    url = str(tmp_path / "snapshots")
    database = restored(Memory(), [(b"a", 1, 5), (b"b", 2, 7)])
    slices = SnapshotWriter(url, "app", "20260101T000000").export(
        database, SPEC, 0, WHOLE
    )
    families = {file.family for each in slices for file in each.files}
    assert families == {layout.family_of("rows"), layout.expiry_family("rows")}
    of_store = StoreSlices(
        "app-rows-changelog", "id-1", 1, shape_of(SPEC), tuple(slices)
    )
    manifest = Manifest("app", "20260101T000000", "backfill", "", {"rows": of_store})
    store_manifest(url, manifest)
    assert [fault for _, fault in verify(url, manifest) if fault] == []


def test_a_store_that_gets_a_ttl_or_loses_it_is_restored_once_and_another_ttl_changes_nothing() -> (
    None
):
    def opened(ttl_ms: int | None) -> Database:
        return Database(
            engine, [StoreSpec("rows", "key_value", text, int64, ttl_ms=ttl_ms)]
        )

    engine = Memory()
    opened(None).wipe("rows", Checkpoint(0, 255, 5))
    assert opened(None).checkpoints("rows").offset(WHOLE.groups) == 5
    assert opened(TTL).checkpoints("rows").offset(WHOLE.groups) is None
    opened(TTL).wipe("rows", Checkpoint(0, 255, 6))
    assert opened(2 * TTL).checkpoints("rows").offset(WHOLE.groups) == 6
    assert opened(None).checkpoints("rows").offset(WHOLE.groups) is None
