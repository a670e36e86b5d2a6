from __future__ import annotations

import itertools
import threading
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coopstreams.state import layout
from coopstreams.state.database import FEW, Database
from coopstreams.state.engine import Change, Engine
from coopstreams.state.global_table import GlobalRows
from coopstreams.state.memory_engine import Memory
from coopstreams.state.rocks import Rocks
from coopstreams.state.task_state import TaskState
from coopstreams.state.views import GlobalView, KeyRangeView, Window
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.stores import StoreSpec, window_key
from tests.state.conftest import NewEngine
from tests.state.rows import put

SPEC = StoreSpec("counts", "key_value", text, int64)
SIZE = 60_000
WINDOWS = StoreSpec(
    "windows", "window", text, int64, window_ms=SIZE, retention_ms=10 * SIZE
)
BYTES = 1 << 30
KEYS = [
    b"",
    b"a",
    b"a\x00",
    b"ab",
    b"b",
    b"b\xff",
    b"b\xff\xff",
    b"c",
    *(b"%03d" % number for number in range(50)),
]


def filled(engine: Engine) -> Database:
    database = Database(engine, [SPEC])
    state = TaskState(database, [SPEC], WHOLE, BYTES)
    for number, key in enumerate(KEYS):
        put(state.stores["counts"], key, number, 100 + number)
    state.changes()
    state.commit({"counts": 1})
    return database


def test_a_view_shows_what_is_committed_and_nothing_else() -> None:
    database = Database(Memory(), [SPEC])
    state = TaskState(database, [SPEC], WHOLE, BYTES)
    view = KeyRangeView(database, SPEC, [WHOLE])
    put(state.stores["counts"], b"a", 1, 9)
    state.changes()
    assert view.get(b"a") is None
    assert list(view.range()) == []
    state.commit({"counts": 1})
    assert view.get(b"a") == (int64.serialize(1), 9)
    assert list(view.range()) == [(b"a", int64.serialize(1), 9)]


def test_a_view_answers_for_its_ranges_only(new_engine: NewEngine) -> None:
    database = filled(new_engine())
    views = [
        KeyRangeView(database, SPEC, [key_range]) for key_range in KeyRange.split(5)
    ]
    for key in KEYS:
        assert [view.owns(key) for view in views] == [
            view.get(key) is not None for view in views
        ]
        assert sum(view.owns(key) for view in views) == 1
    assert sorted(row.key for view in views for row in view.range()) == sorted(KEYS)
    apart = KeyRangeView(database, SPEC, [KeyRange.split(5)[0], KeyRange.split(5)[3]])
    assert [row.key for row in apart.range()] == [
        key for key in sorted(KEYS) if views[0].owns(key) or views[3].owns(key)
    ]


@pytest.mark.parametrize("few", [0, FEW])
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(
    st.none() | st.sampled_from(KEYS) | st.binary(max_size=2),
    st.none() | st.sampled_from(KEYS) | st.binary(max_size=2),
    st.none() | st.sampled_from([b"", b"a", b"b", b"b\xff", b"\xff", b"0"]),
    st.booleans(),
)
def test_a_range_is_the_sorted_keys_within_inclusive_bounds_and_prefix(
    few: int,
    monkeypatch: pytest.MonkeyPatch,
    first: bytes | None,
    last: bytes | None,
    prefix: bytes | None,
    reverse: bool,
) -> None:
    monkeypatch.setattr(
        "coopstreams.state.database.FEW", few
    )  # 0: an iterator for each key group, as for many rows
    if first is not None and last is not None:
        first, last = min(first, last), max(first, last)
    view = KeyRangeView(filled(Memory()), SPEC, [WHOLE])
    within = [
        key
        for key in sorted(KEYS, reverse=reverse)
        if (first is None or key >= first)
        and (last is None or key <= last)
        and (not prefix or key.startswith(prefix))
    ]
    assert [
        row.key for row in view.range(first, last, prefix=prefix, reverse=reverse)
    ] == within


@pytest.mark.parametrize("bounds", [(b"b", b"a"), (b"a\x00", b"a")])
def test_a_range_whose_bounds_are_the_other_way_round_is_refused(
    bounds: tuple[bytes, bytes],
) -> None:
    """It was empty."""
    view = KeyRangeView(filled(Memory()), SPEC, [WHOLE])
    with pytest.raises(ValueError, match="comes after"):
        view.range(*bounds)
    with pytest.raises(ValueError, match="comes after"):
        GlobalView(GlobalRows(SPEC)).range(*bounds)


def test_a_range_is_read_no_further_than_it_is_asked(tmp_path: Path) -> None:
    database = filled(Rocks(tmp_path))
    rows = KeyRangeView(database, SPEC, [WHOLE]).range(b"000", b"049")
    assert [next(rows).key, next(rows).key] == [b"000", b"001"]
    database.close()


@pytest.mark.parametrize(("few", "asked"), [(FEW, (b"010", b"011")), (0, (None, None))])
def test_of_rows_with_large_values_only_the_next_are_in_memory(
    few: int,
    asked: tuple[bytes | None, bytes | None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Few rows of a megabyte were read and sorted, all of them, and others a thousand
    at a time.
    """
    monkeypatch.setattr("coopstreams.state.database.FEW", few)
    database, large = Database(Rocks(tmp_path), [SPEC]), 1 << 18
    keys = [b"%03d" % number for number in range(100)]
    rows = [
        Change(
            layout.family_of("counts"),
            [b"\x07" + key],
            [layout.TIMESTAMP.pack(0) + bytes(large)],
        )
        for key in keys
    ]
    for row in rows:
        database.write([row], {})
    view = KeyRangeView(database, SPEC, [WHOLE])
    tracemalloc.start()
    try:
        read = sum(1 for _ in view.range(*asked))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read == (2 if few else 100)
    assert most < 8 * large
    database.close()


def test_few_rows_are_counted_however_often_they_were_written(
    new_engine: NewEngine,
) -> None:
    database = Database(new_engine(), [SPEC])
    state = TaskState(database, [SPEC], WHOLE, BYTES)
    for commit in range(20):
        for key in KEYS:
            put(state.stores["counts"], key, commit)
        state.changes()
        state.commit({"counts": commit})
    half, _ = KeyRange.split(2)
    assert KeyRangeView(database, SPEC, [WHOLE]).approximate_count() == len(KEYS)
    assert KeyRangeView(database, SPEC, [half]).approximate_count() == sum(
        key_hash(key) in half for key in KEYS
    )


def test_the_count_is_the_share_of_the_ranges(new_engine: NewEngine) -> None:
    database = Database(new_engine(), [SPEC])
    half, other = KeyRange.split(2)
    keys = [b"%d" % number for number in range(4000)]
    for key_range in (half, other):
        state = TaskState(database, [SPEC], key_range, BYTES)
        for key in keys:
            if key_hash(key) in key_range:
                put(state.stores["counts"], key, 1)
        state.changes()
        state.commit({"counts": 1})
    assert 3600 < KeyRangeView(database, SPEC, [WHOLE]).approximate_count() < 4400
    assert 1800 < KeyRangeView(database, SPEC, [half]).approximate_count() < 2200
    first, *_, last = KeyRange.split(8)
    assert 900 < KeyRangeView(database, SPEC, [first, last]).approximate_count() < 1100
    assert KeyRangeView(database, SPEC, []).approximate_count() == 0


def windows(engine: Engine) -> Database:
    database = Database(engine, [WINDOWS])
    state = TaskState(database, [WINDOWS], WHOLE, BYTES)
    table = state.stores["windows"]
    for number in range(20):
        for key in (b"a", b"ab", b"a\x00\x00\x00\x00\x00\x00\x00\x00"):
            put(table, window_key(key, number * SIZE), number, number)
    table.advance(19 * SIZE)
    state.changes()
    state.commit({"windows": 1})
    return database


def test_windows_of_a_key_come_by_start_within_inclusive_bounds_and_retention(
    new_engine: NewEngine,
) -> None:
    view = KeyRangeView(windows(new_engine()), WINDOWS, [WHOLE])
    everything = [
        Window(number * SIZE, int64.serialize(number), number)
        for number in range(10, 20)
    ]
    for key in (b"a", b"ab", b"a\x00\x00\x00\x00\x00\x00\x00\x00"):
        assert list(view.fetch(key, 0, 1 << 62)) == everything
    assert list(view.fetch(b"a", 12 * SIZE, 14 * SIZE)) == everything[2:5]
    assert list(view.fetch(b"a", 12 * SIZE + 1, 14 * SIZE - 1)) == [everything[3]]
    assert list(view.fetch(b"a", -5, 1 << 70)) == everything
    assert list(view.fetch(b"a", 14 * SIZE, 12 * SIZE)) == []
    assert list(view.fetch(b"none", 0, 1 << 62)) == []
    assert view.get(window_key(b"a", 10 * SIZE)) == (int64.serialize(10), 10)
    assert view.get(window_key(b"a", 9 * SIZE)) is None
    assert view.get(window_key(b"a", 99 * SIZE)) is None
    assert len(list(view.range())) == 30


def test_windows_of_a_key_outside_the_ranges_are_not_shown() -> None:
    database = windows(Memory())
    other = next(
        key_range for key_range in KeyRange.split(2) if key_hash(b"a") not in key_range
    )
    view = KeyRangeView(database, WINDOWS, [other])
    assert list(view.fetch(b"a", 0, 1 << 62)) == []
    assert view.get(window_key(b"a", 19 * SIZE)) is None


def test_siblings_that_stand_at_different_times_each_show_their_own_retention() -> None:
    database = Database(Memory(), [WINDOWS])
    ranges = KeyRange.split(2)
    keys = [
        next(
            key
            for key in (b"%d" % number for number in range(100))
            if key_hash(key) in key_range
        )
        for key_range in ranges
    ]
    for key_range, key, stream_time in zip(ranges, keys, (12, 19), strict=True):
        state = TaskState(database, [WINDOWS], key_range, BYTES)
        for number in range(stream_time + 1):
            put(state.stores["windows"], window_key(key, number * SIZE), number)
        state.stores["windows"].advance(stream_time * SIZE)
        state.changes()
        state.commit({"windows": 1})
    view = KeyRangeView(database, WINDOWS, [WHOLE])
    shown = [
        [window.start // SIZE for window in view.fetch(key, 0, 1 << 62)] for key in keys
    ]
    assert shown == [list(range(3, 13)), list(range(10, 20))]
    assert sorted(row.key for row in view.range()) == sorted(
        window_key(key, start * SIZE)
        for key, starts in zip(keys, shown, strict=True)
        for start in starts
    )


def test_a_fetch_from_a_store_without_windows_is_refused() -> None:
    with pytest.raises(ValueError, match="not a window store"):
        KeyRangeView(filled(Memory()), SPEC, [WHOLE]).fetch(b"a", 0, 1)


def test_a_scan_sees_one_moment_while_siblings_commit(tmp_path: Path) -> None:
    """Each task writes one number to all its keys in each commit: a scan must not find
    two numbers in one range.
    """
    database = Database(Rocks(tmp_path), [SPEC])
    ranges = KeyRange.split(4)
    keys = [b"%d" % number for number in range(200)]
    stop = threading.Event()
    failures: list[BaseException] = []

    def run(key_range: KeyRange) -> None:
        try:
            state = TaskState(database, [SPEC], key_range, 5_000)
            mine = [key for key in keys if key_hash(key) in key_range]
            for number in itertools.count():
                if number >= 150 and scans > 2:
                    break
                for key in mine:
                    put(state.stores["counts"], key, number)
                state.changes()
                state.commit({"counts": number})
            stop.set()
        except BaseException as error:
            failures.append(error)
            stop.set()
            raise

    view, scans = KeyRangeView(database, SPEC, [WHOLE]), 0
    threads = [threading.Thread(target=run, args=(key_range,)) for key_range in ranges]
    for thread in threads:
        thread.start()
    while not stop.is_set():
        seen: dict[KeyRange, set[bytes]] = {key_range: set() for key_range in ranges}
        for row in view.range():
            seen[
                next(
                    key_range for key_range in ranges if key_hash(row.key) in key_range
                )
            ].add(row.value)
        assert all(len(values) <= 1 for values in seen.values())
        scans += 1
    for thread in threads:
        thread.join()
    assert not failures
    database.close()
