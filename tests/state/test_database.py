from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

import pytest

from coopstreams.state import layout
from coopstreams.state.checkpoints import Checkpoint
from coopstreams.state.database import PIECE, Database
from coopstreams.state.engine import Change
from coopstreams.state.memory_engine import Memory
from coopstreams.topology.errors import StateError
from coopstreams.topology.keys import ALL_GROUPS, KeyGroups
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.stores import StoreSpec, window_key
from tests.state.conftest import NewEngine

COUNTS = StoreSpec("counts", "key_value", text, int64)
OTHER = StoreSpec("other", "key_value", text, int64)
WINDOWS = StoreSpec(
    "windows", "window", text, int64, window_ms=60_000, retention_ms=240_000
)
MINUTE = 60_000
ALL = range(256)


def put(
    database: Database, keys: list[bytes], at: Checkpoint, store: str = "counts"
) -> None:
    database_keys = sorted(layout.database_key(key, key) for key in keys)
    database.write(
        [Change(layout.family_of(store), database_keys, [b"v"] * len(keys))],
        {store: [at]},
    )


def put_windows(database: Database, key: bytes, minutes: range, at: Checkpoint) -> None:
    changes = []
    for minute in minutes:
        start = minute * MINUTE
        family = layout.segment_family("windows", start // layout.segment_ms(WINDOWS))
        changes.append(
            Change(family, [layout.database_key(key, window_key(key, start))], [b"v"])
        )
    database.write(changes, {"windows": [at]})


def keys_of(
    database: Database, store: str = "counts", groups: range = ALL
) -> list[bytes]:
    return [key for key, _ in database.scan(store, groups, None, None)]


def test_keys_of_all_groups_come_merged_in_their_order_and_within_bounds(
    new_engine: NewEngine,
) -> None:
    database = Database(new_engine(), [COUNTS])
    keys = [b"%03d" % number for number in range(300)]
    put(database, keys, Checkpoint(0, 255, 1))
    assert keys_of(database) == keys
    assert [
        key for key, _ in database.scan("counts", ALL, b"010", b"020", reverse=True)
    ] == keys[10:20][::-1]
    lower = keys_of(database, groups=range(128))
    upper = keys_of(database, groups=range(128, 256))
    assert sorted(lower + upper) == keys
    assert all(layout.database_key(key, key)[0] < 128 for key in lower)


class Uncounted(Memory):
    """An engine with counts that are too low, as approximate ones may be."""

    def count(self, family: str) -> int:
        return 0


def test_a_scan_loses_no_row_where_the_engine_counts_too_few() -> None:
    database = Database(Uncounted(), [COUNTS])
    keys = [b"%05d" % number for number in range(5000)]
    put(database, keys, Checkpoint(0, 255, 1))
    assert keys_of(database) == keys


def test_keys_in_memory_are_looked_for_and_counted_without_a_copy_of_them_all() -> None:
    database = Database(Memory(), [COUNTS])
    put(database, [b"%05d" % number for number in range(20_000)], Checkpoint(0, 255, 1))
    tracemalloc.start()
    try:
        assert database.has_keys("counts", ALL_GROUPS)
        assert database.count("counts", frozenset(ALL)) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 500_000, (
            "20,000 rows are more than a megabyte"
        )
    finally:
        tracemalloc.stop()


def test_dropped_groups_leave_neither_keys_nor_checkpoints_in_any_store(
    new_engine: NewEngine,
) -> None:
    database = Database(new_engine(), [COUNTS, OTHER])
    keys = [b"%03d" % number for number in range(300)]
    for store in ("counts", "other"):
        put(database, keys, Checkpoint(0, 255, 7), store)
    database.drop(KeyGroups(64, 255))
    for store in ("counts", "other"):
        assert keys_of(database, store) == [
            key for key in keys if layout.database_key(key, key)[0] < 64
        ]
        assert [(run.first, run.last) for run in database.checkpoints(store)] == [
            (0, 63)
        ]
    assert not database.is_empty()
    database.drop(KeyGroups(0, 63))
    assert database.is_empty()


def test_dropping_needs_no_knowledge_of_the_stores(new_engine: NewEngine) -> None:
    engine = new_engine()
    put(Database(engine, [COUNTS]), [b"a", b"b"], Checkpoint(0, 255, 7))
    stranger = Database(engine, [])
    stranger.drop(ALL_GROUPS)
    assert stranger.is_empty()
    assert Database(engine, [COUNTS]).checkpoints("counts").offset(ALL_GROUPS) is None


def test_a_failed_write_changes_neither_state_nor_checkpoint(
    new_engine: NewEngine,
) -> None:
    engine = new_engine()
    database = Database(engine, [COUNTS])
    put(database, [b"a"], Checkpoint(0, 255, 7))
    with pytest.raises(KeyError):
        database.write(
            [Change("store/none", [b"k"], [b"v"])], {"counts": [Checkpoint(0, 255, 9)]}
        )
    assert database.checkpoints("counts").offset(ALL_GROUPS) == 7
    assert Database(engine, [COUNTS]).checkpoints("counts").offset(ALL_GROUPS) == 7


def test_segments_go_when_every_group_has_left_them_behind(
    new_engine: NewEngine,
) -> None:
    engine = new_engine()
    database = Database(engine, [WINDOWS])
    put_windows(database, b"k", range(10), Checkpoint(0, 127, 5, 4 * MINUTE))
    put_windows(database, b"k", range(0), Checkpoint(128, 255, 5, 3 * MINUTE))
    segments = [f"window/windows/{number}" for number in range(5)]
    assert (
        sorted(family for family in engine.families() if family != "meta") == segments
    )
    database.write([], {"windows": [Checkpoint(0, 127, 6, 9 * MINUTE)]})
    assert (
        sorted(family for family in engine.families() if family != "meta") == segments
    )  # the sibling lags
    database.write([], {"windows": [Checkpoint(128, 255, 6, 8 * MINUTE)]})
    # The smallest observed start is minute 8, four minutes are kept: minute 4 is gone,
    # the segment of minutes 4 and 5 is not.
    assert (
        sorted(family for family in engine.families() if family != "meta")
        == segments[2:]
    )
    assert database.segment_getter("windows", 1) is None


def test_a_group_that_has_observed_nothing_keeps_all_segments(
    new_engine: NewEngine,
) -> None:
    engine = new_engine()
    database = Database(engine, [WINDOWS])
    put_windows(database, b"k", range(10), Checkpoint(0, 127, 5, 100 * MINUTE))
    assert keys_of(database, "windows") == []
    put_windows(database, b"k", range(0), Checkpoint(128, 255, 5))
    put_windows(database, b"k", range(10), Checkpoint(0, 127, 6, 100 * MINUTE))
    assert len(keys_of(database, "windows")) == 10
    database.drop(KeyGroups(128, 255))
    assert keys_of(database, "windows") == []


def test_everything_is_there_when_it_is_opened_again(new_engine: NewEngine) -> None:
    engine = new_engine()
    first = Database(engine, [COUNTS, WINDOWS])
    put(first, [b"a"], Checkpoint(0, 127, 5))
    put_windows(first, b"k", range(3), Checkpoint(0, 255, 6, 2 * MINUTE))
    again = Database(engine, [COUNTS, WINDOWS])
    assert keys_of(again) == [b"a"]
    assert len(keys_of(again, "windows")) == 3
    assert again.checkpoints("counts").offset(KeyGroups(0, 127)) == 5
    assert again.checkpoints("counts").offset(KeyGroups(0, 128)) is None
    assert again.checkpoints("windows") == first.checkpoints("windows")


@pytest.mark.parametrize(
    "changed",
    [
        StoreSpec(
            "windows", "window", text, int64, window_ms=60_000, retention_ms=2_400_000
        ),
        StoreSpec("windows", "key_value", text, int64),
    ],
)
def test_a_store_of_another_shape_is_emptied_and_restored_from_the_beginning(
    new_engine: NewEngine, changed: StoreSpec, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine()
    database = Database(engine, [COUNTS, WINDOWS])
    put(database, [b"a"], Checkpoint(0, 255, 5))
    put_windows(database, b"k", range(3), Checkpoint(0, 255, 6, 2 * MINUTE))
    with caplog.at_level(logging.WARNING):
        again = Database(engine, [COUNTS, changed])
    assert 'store "windows" was window 120000 and is' in caplog.text
    assert again.checkpoints("windows").offset(ALL_GROUPS) is None
    assert keys_of(again, "windows") == []
    assert keys_of(again) == [b"a"]
    assert (
        Database(engine, [COUNTS, changed]).checkpoints("counts").offset(ALL_GROUPS)
        == 5
    )


def test_a_store_that_is_emptied_only_in_part_is_restored_by_the_version_before(
    new_engine: NewEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = new_engine()
    database = Database(engine, [WINDOWS])
    put_windows(database, b"k", range(3), Checkpoint(0, 255, 6, 2 * MINUTE))
    drop, dropped = engine.drop, list[str]()

    def full(family: str) -> None:
        if dropped:
            raise StateError("no space left on device")
        dropped.append(family)
        drop(family)

    monkeypatch.setattr(engine, "drop", full)
    with pytest.raises(StateError, match="no space"):
        Database(
            engine,
            [
                StoreSpec(
                    "windows",
                    "window",
                    text,
                    int64,
                    window_ms=60_000,
                    retention_ms=2_400_000,
                )
            ],
        )
    again = Database(engine, [WINDOWS])
    assert len(keys_of(again, "windows")) < 3
    assert again.checkpoints("windows").offset(ALL_GROUPS) is None


def test_a_closed_database_says_so(new_engine: NewEngine) -> None:
    database = Database(new_engine(), [COUNTS])
    database.close()
    database.close()
    with pytest.raises(StateError, match="closed"):
        keys_of(database)


class Dying(Memory):
    """An engine that dies when it is to write once more than it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = 1_000_000

    def write(self, changes: Sequence[Change]) -> None:
        if not self.may_write:
            raise StateError("the process died")
        self.may_write -= 1
        super().write(changes)


def test_a_large_commit_that_is_cut_off_leaves_only_rows_ahead_that_the_changelog_brings_again() -> (
    None
):
    apart = [
        StoreSpec("unlogged", "key_value", text, int64, logged=False),
        StoreSpec("sessions", "session", text, int64, retention_ms=MINUTE),
        StoreSpec("expiring", "key_value", text, int64, ttl_ms=MINUTE),
        StoreSpec("versioned", "key_value", text, int64, history_ms=MINUTE),
        StoreSpec("past", "versions", text, int64),
    ]
    specs = [
        COUNTS,
        WINDOWS,
        StoreSpec("of-a-topic", "key_value", text, int64, logged=False, source="topic"),
        *apart,
    ]
    places = [b"\x07%06d" % number for number in range(3 * PIECE)]

    def write(database: Database, number: int) -> None:
        rows = [b"%d" % number] * len(places)
        families = {
            spec.name: layout.segment_family(spec.name, 0)
            if spec.kind in layout.SEGMENTED
            else layout.family_of(spec.name)
            for spec in specs
        }
        at = Checkpoint(0, 255, number)
        database.write(
            [Change(families[name], places, rows) for name in families],
            {name: [at] for name in families},
        )

    def stands(database: Database, store: str) -> set[bytes]:
        ((_, families),) = database.as_of_now(store, ALL_GROUPS)
        return {value for _, _, rows in families for _, value in rows or ()}

    seen = set[frozenset[bytes]]()
    for writes in count():
        engine = Dying()
        write(Database(engine, specs), 1)
        engine.may_write = writes
        with suppress(StateError):
            write(Database(engine, specs), 2)
        ended, engine.may_write = engine.may_write > 0, 1_000_000
        database = Database(engine, specs)
        reached = (
            b"2" if database.checkpoints("counts").offset(ALL_GROUPS) == 2 else b"1"
        )
        for spec in apart:
            assert stands(database, spec.name) == {reached}, spec.name
        for spec in specs:
            assert database.checkpoints(spec.name).offset(ALL_GROUPS) == int(reached)
            assert reached == b"1" or stands(database, spec.name) == {b"2"}, (
                "a checkpoint is ahead of its rows"
            )
        seen |= {frozenset(stands(database, spec.name)) for spec in specs}
        write(database, 2)  # what a restore does
        assert all(stands(database, spec.name) == {b"2"} for spec in specs)
        if ended:
            break
    assert seen == {frozenset([b"1"]), frozenset([b"1", b"2"]), frozenset([b"2"])}
