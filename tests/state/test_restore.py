from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coopstreams.state import layout
from coopstreams.state.checkpoints import NOTHING_OBSERVED
from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.state.restore import TRUSTED_MS, Restore
from coopstreams.topology.columns import Columns
from coopstreams.topology.errors import LogError
from coopstreams.topology.keys import ALL_GROUPS, WHOLE, KeyGroups, KeyRange, key_hash
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.stores import StoreSpec, window_key
from tests.state.bounds import bounds, stands
from tests.state.conftest import NewEngine
from tests.state.rows import stored

SPEC = StoreSpec("counts", "key_value", text, int64)
SIZE = 60_000
WINDOWS = StoreSpec(
    "windows", "window", text, int64, window_ms=SIZE, retention_ms=4 * SIZE
)
Record = tuple[int, bytes, bytes | None]
"""Offset, key, value; the timestamp is the offset times ten."""


def columns(records: Iterable[Record]) -> Columns:
    rows = list(records)
    offsets = [offset for offset, _, _ in rows]
    times = [offset * 10 for offset in offsets]
    return Columns(
        [key for _, key, _ in rows],
        [value for _, _, value in rows],
        times,
        offsets,
        times,
    )


def feed(restore: Restore, log: Sequence[Record], upto: int, batch: int = 7) -> None:
    """Read the log as a caller does: from the position, in batches, to an offset that
    need not have a record.
    """
    while restore.position < upto:
        found = [record for record in log if restore.position <= record[0] < upto][
            :batch
        ]
        restore.feed(columns(found), found[-1][0] + 1 if len(found) == batch else upto)


def fold(
    log: Sequence[Record], ranges: Iterable[KeyRange] = (WHOLE,)
) -> dict[bytes, tuple[bytes, int]]:
    """Return the expected state: the last value of each key."""
    state: dict[bytes, tuple[bytes, int]] = {}
    for offset, key, value in log:
        if any(key_hash(key) in key_range for key_range in ranges):
            state.pop(key, None)
            if value is not None:
                state[key] = (value, offset * 10)
    return state


def some_log(size: int) -> list[Record]:
    """Keys repeat, some are deleted, offsets have holes."""
    return [
        (
            number * 2,
            b"%d" % (number % 97),
            None if number % 11 == 0 else b"v%d" % number,
        )
        for number in range(size)
    ]


def test_a_restored_store_is_the_fold_of_its_changelog(new_engine: NewEngine) -> None:
    log = some_log(500)
    database = Database(new_engine(), [SPEC])
    restore = Restore(database, SPEC, [WHOLE], bounds(1000))
    assert not restore.done
    feed(restore, log, 1000)
    assert restore.done
    assert stored(database) == fold(log)
    assert database.checkpoints("counts").offset(ALL_GROUPS) == 1000


def test_restoring_one_of_eight_ranges_writes_exactly_the_keys_of_that_range(
    new_engine: NewEngine,
) -> None:
    log = [(number, b"key-%d" % number, b"v") for number in range(4000)]
    kept = []
    for key_range in KeyRange.split(8):
        database = Database(new_engine(), [SPEC])
        restore = Restore(database, SPEC, [key_range], bounds(4000))
        feed(restore, log, 4000, 1000)
        assert stored(database) == fold(log, [key_range])
        kept.append(restore.progress().kept)
        assert restore.progress().read == 4000
    assert sum(kept) == 4000
    assert max(kept) < 1.2 * 4000 / 8


def test_the_end_is_a_position_so_that_control_records_and_compaction_leave_nothing_to_wait_for() -> (
    None
):
    database = Database(Memory(), [SPEC])
    restore = Restore(database, SPEC, [WHOLE], bounds(10))
    restore.feed(columns([(3, b"a", b"1")]), 4)
    assert not restore.done
    restore.feed(columns([]), 10)  # only control records up to the end
    assert restore.done
    assert stored(database) == {b"a": (b"1", 30)}


def test_an_empty_changelog_is_restored_at_once_and_leaves_a_checkpoint() -> None:
    database = Database(Memory(), [SPEC])
    assert Restore(database, SPEC, [KeyRange.of_groups(3, 5)], bounds(0)).done
    assert database.checkpoints("counts").offset(KeyGroups(3, 5)) == 0


def test_only_the_tail_is_replayed_when_there_is_a_checkpoint() -> None:
    log = some_log(500)
    database = Database(Memory(), [SPEC])
    feed(Restore(database, SPEC, [WHOLE], bounds(600)), log, 600)
    restore = Restore(database, SPEC, [WHOLE], bounds(1000))
    assert restore.position == 600
    feed(restore, log, 1000)
    assert restore.progress().read == 200
    assert stored(database) == fold(log)


def test_a_restore_survives_a_change_of_ranges_midway_without_starting_over() -> None:
    log = some_log(500)
    one, two, three, four = KeyRange.split(4)
    database = Database(Memory(), [SPEC])
    restore = Restore(database, SPEC, [one, two], bounds(1000))
    feed(restore, log, 600)
    restore.retarget([two, three])
    assert restore.position == 0  # the new range needs everything
    database.drop(layout.groups_of(one))
    read: list[int] = []
    while restore.position < 600:
        found = [record for record in log if restore.position <= record[0] < 600][:50]
        before = restore.progress().kept
        restore.feed(columns(found), found[-1][0] + 2)
        read.append(restore.progress().kept - before)
    assert sum(read) <= len(
        [key for _, key, _ in log if key_hash(key) in three]
    )  # no records of range two again
    restore.retarget([two, three, four], bounds=bounds(1000))
    feed(restore, log, 1000)
    assert restore.done
    assert stored(database) == fold(log, [two, three, four])
    restore.retarget([two])
    assert restore.done
    restore.retarget([])
    assert restore.done


@pytest.mark.parametrize(
    ("checkpoint", "log_start", "words"),
    [
        (40, 50, "below the log start 50"),
        (2000, 0, "above the log end 1000"),
        (None, 0, "keys without a checkpoint"),
    ],
)
def test_state_that_cannot_be_continued_is_emptied_and_restored_from_the_log_start(
    checkpoint: int | None, log_start: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = some_log(500)
    mine, other = KeyRange.split(2)
    database = Database(Memory(), [SPEC])
    feed(
        Restore(database, SPEC, [WHOLE], bounds(1000)),
        [*log, (999, b"zombie", b"1"), (999, b"zombie-2", b"1")],
        1000,
    )
    before = {
        key: value for key, value in stored(database).items() if key_hash(key) in other
    }
    if checkpoint is None:
        engine_stores = database._of["counts"]
        engine_stores._checkpoints["counts"] = engine_stores.checkpoints(
            "counts"
        ).without(KeyGroups(0, 127))
    else:
        database.write([], {"counts": [stands(checkpoint, mine)]})
    with caplog.at_level(logging.WARNING):
        restore = Restore(database, SPEC, [mine], bounds(1000, log_start=log_start))
    assert words in caplog.text
    assert (
        len(
            [
                record
                for record in caplog.records
                if record.name.startswith("coopstreams.state")
            ]
        )
        == 1
    )
    assert restore.position == log_start
    assert stored(database) == before  # the sibling's keys stay
    assert database.checkpoints("counts").offset(KeyGroups(0, 127)) == log_start
    tail = [record for record in log if record[0] >= log_start]
    feed(restore, tail, 1000)
    assert stored(database) == fold(tail, [mine]) | before


def test_state_that_is_at_the_end_already_is_known_to_be_true_now() -> None:
    database = Database(Memory(), [SPEC])
    feed(
        Restore(database, SPEC, [WHOLE], bounds(20, now_s=100.0)), some_log(10), 20, 100
    )
    before = {at.true_ms for at in database.checkpoints("counts")}
    assert Restore(
        database, SPEC, [KeyRange.of_groups(0, 127)], bounds(20, now_s=300.0)
    ).done
    assert {
        at.true_ms for at in database.checkpoints("counts").within(KeyGroups(128, 255))
    } == before
    assert {
        at.true_ms for at in database.checkpoints("counts").within(KeyGroups(0, 127))
    } == {300_000}


def test_state_that_is_older_than_the_tombstones_of_its_changelog_is_not_trusted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = [(0, b"a", b"1"), (1, b"b", b"1")]
    now, database = 1_000_000, Database(Memory(), [SPEC])
    feed(Restore(database, SPEC, [WHOLE], bounds(2, now_s=now)), log, 2)
    soon, late = now + TRUSTED_MS // 1000 - 1, now + TRUSTED_MS // 1000 + 1
    assert Restore(database, SPEC, [WHOLE], bounds(4, now_s=soon)).position == 2
    # Key b was deleted, and compaction has removed its tombstone.
    with caplog.at_level(logging.WARNING):
        restore = Restore(database, SPEC, [WHOLE], bounds(4, now_s=late))
    assert "older than the changelog keeps tombstones" in caplog.text
    feed(restore, [(0, b"a", b"1")], 4)
    assert stored(database) == {b"a": (b"1", 0)}


@pytest.mark.parametrize("ahead_s", [3600, 10 * 365 * 86_400])
def test_state_of_the_future_is_not_trusted_because_nobody_knows_how_old_it_is(
    ahead_s: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A host's clock was ahead for a moment: its state would count as recent for as
    long as it was ahead.
    """
    now, database = 1_000_000, Database(Memory(), [SPEC])
    feed(
        Restore(database, SPEC, [WHOLE], bounds(2, now_s=now + ahead_s)),
        [(0, b"a", b"1"), (1, b"b", b"1")],
        2,
    )
    with caplog.at_level(logging.WARNING):
        restore = Restore(database, SPEC, [WHOLE], bounds(4, now_s=now))
    assert f"dated {ahead_s} s ahead of the clock of this host" in caplog.text
    feed(restore, [(0, b"a", b"1")], 4)  # b was deleted, and its tombstone is gone
    assert stored(database) == {b"a": (b"1", 0)}


def test_clocks_that_differ_a_little_cost_no_state() -> None:
    database = Database(Memory(), [SPEC])
    feed(
        Restore(database, SPEC, [WHOLE], bounds(2, now_s=1_000_200)),
        [(0, b"a", b"1")],
        2,
    )
    assert Restore(database, SPEC, [WHOLE], bounds(4, now_s=1_000_000)).position == 2


def test_state_of_another_topic_of_that_name_is_emptied_and_restored_from_the_new_one(
    new_engine: NewEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """The new changelog has grown past the checkpoint, so offsets alone do not reveal
    it. A running sibling keeps its state.
    """
    old = [(number, b"%d" % number, b"old") for number in range(100)]
    new = [(number, b"%d" % (number + 50), b"new") for number in range(200)]
    database, (mine, other) = Database(new_engine(), [SPEC]), KeyRange.split(2)
    feed(Restore(database, SPEC, [WHOLE], bounds(100)), old, 100)
    with caplog.at_level(logging.WARNING):
        restore = Restore(database, SPEC, [mine], bounds(200, topic_id="id-2"))
    assert (
        'store "counts", key groups 0..127: its checkpoint is of another topic than its changelog is now (id id-1, not '
        "id-2)" in caplog.text
    )
    feed(restore, new, 200)
    assert stored(database) == fold(new, [mine]) | fold(old, [other])
    assert {run.topic_id for run in database.checkpoints("counts")} == {"id-1", "id-2"}
    assert Restore(database, SPEC, [mine], bounds(200, topic_id="id-2")).done


def test_state_without_a_changelog_is_restored_from_the_one_that_it_gets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = Database(Memory(), [SPEC])
    feed(Restore(database, SPEC, [WHOLE], bounds(100, topic_id="")), some_log(50), 100)
    with caplog.at_level(logging.WARNING):
        assert not Restore(database, SPEC, [WHOLE], bounds(100)).done
    assert "its checkpoint is of no topic: it had no changelog then" in caplog.text


def test_where_topics_have_no_ids_state_is_restored_at_each_opening(
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = Database(Memory(), [SPEC])
    feed(Restore(database, SPEC, [WHOLE], bounds(100, topic_id="")), some_log(50), 100)
    with caplog.at_level(logging.WARNING):
        assert Restore(database, SPEC, [WHOLE], bounds(100, topic_id="")).position == 0
    assert "the brokers give topics no ids" in caplog.text


def test_a_restore_that_was_interrupted_is_as_old_as_its_beginning() -> None:
    log = [(offset, b"%d" % offset, b"1") for offset in range(10)]
    database = Database(Memory(), [SPEC])
    feed(Restore(database, SPEC, [WHOLE], bounds(10, now_s=1_000.0)), log, 5)
    assert [run.true_ms for run in database.checkpoints("counts")] == [1_000_000]
    feed(Restore(database, SPEC, [WHOLE], bounds(10, now_s=2_000.0)), log, 10)
    assert [run.true_ms for run in database.checkpoints("counts")] == [2_000_000], (
        "what came behind the end since then is not known"
    )


def test_progress_tells_rate_and_time_to_go() -> None:
    now = [100.0]
    restore = Restore(
        Database(Memory(), [SPEC]),
        SPEC,
        [KeyRange.split(2)[0]],
        bounds(1000),
        clock=lambda: now[0],
    )
    assert (
        restore.progress().remaining,
        restore.progress().eta_s,
        restore.progress().rate,
    ) == (1000, None, 0.0)
    now[0] = 102.0
    restore.feed(
        columns([(number, b"%d" % number, b"v") for number in range(100)]), 250
    )
    progress = restore.progress()
    assert (progress.passed, progress.read, progress.position, progress.remaining) == (
        250,
        100,
        250,
        750,
    )
    assert (progress.rate, progress.eta_s) == (125.0, 6.0)
    assert 30 < progress.kept < 70
    restore.feed(columns([]), 1000)
    assert (restore.progress().remaining, restore.progress().eta_s) == (0, 0.0)


def window_log(windows: Iterable[tuple[bytes, int]]) -> list[Record]:
    return [
        (offset, window_key(key, window * SIZE) + bytes(4), b"%d" % window)
        for offset, (key, window) in enumerate(windows)
    ]


def test_windows_are_filtered_by_their_plain_key_and_old_ones_are_skipped(
    new_engine: NewEngine,
) -> None:
    engine = new_engine()
    database = Database(engine, [WINDOWS])
    log = window_log((b"%d" % key, window) for window in range(50) for key in range(20))
    one, _ = KeyRange.split(2)
    restore = Restore(database, WINDOWS, [one], bounds(1000))
    feed(restore, log, 1000, 100)
    kept = {
        window_key(b"%d" % key, window * SIZE)
        for key in range(20)
        for window in range(46, 50)
        if key_hash(b"%d" % key) in one
    }
    assert {
        key
        for key in stored(database, WINDOWS.name)
        if int.from_bytes(key[-8:], "big") >= 46 * SIZE
    } == kept
    assert (
        len(engine.families()) <= 4
    )  # fifty minutes in segments of two, of which only the last are kept
    assert all(key_hash(key[:-8]) in one for key in stored(database, WINDOWS.name))


def test_windows_of_a_range_do_not_expire_by_what_a_faster_sibling_has_written() -> (
    None
):
    database = Database(Memory(), [WINDOWS])
    keys = [b"%d" % number for number in range(40)]
    slow = next(key for key in keys if key_hash(key) < 1 << 55)
    fast = next(key for key in keys if key_hash(key) >= 1 << 62)
    log = window_log(
        [(slow, 1), *((fast, window) for window in range(1, 100)), (slow, 2)]
    )
    restore = Restore(database, WINDOWS, [WHOLE], bounds(101))
    feed(restore, log, 101)
    assert {key for key in stored(database, WINDOWS.name) if key[:-8] == slow} == {
        window_key(slow, SIZE),
        window_key(slow, 2 * SIZE),
    }


def test_windows_that_a_task_will_need_again_have_not_expired_by_what_an_owner_before_has_not_committed() -> (
    None
):
    log = window_log((b"key", window) for window in range(10))
    whole, behind = (Database(Memory(), [WINDOWS]) for _ in range(2))
    feed(Restore(whole, WINDOWS, [WHOLE], bounds(10)), log, 10, 10)
    feed(
        Restore(behind, WINDOWS, [WHOLE], bounds(10), times={WHOLE: 5 * SIZE}),
        log,
        10,
        10,
    )
    found = [
        {int.from_bytes(key[-8:], "big") // SIZE for key in stored(each, WINDOWS.name)}
        for each in (whole, behind)
    ]
    assert found == [set(range(6, 10)), set(range(2, 10))]


def test_a_checkpoint_tells_by_which_time_windows_of_a_snapshot_are_missing() -> None:
    """A snapshot is made without the times of tasks: one of them may begin before what
    its changelog has seen.
    """
    database = Database(Memory(), [WINDOWS])
    slow, fast = (
        next(key for key in (b"a", b"b", b"c", b"d") if key_hash(key) in half)
        for half in KeyRange.split(2)
    )
    log = window_log([*((fast, window) for window in range(1, 100)), (slow, 50)])
    feed(Restore(database, WINDOWS, [WHOLE], bounds(100)), log, 100)
    by_group = database.checkpoints(WINDOWS.name).by_group()
    of_fast, of_slow = (
        by_group[key_hash(key) >> layout.GROUP_SHIFT] for key in (fast, slow)
    )
    assert of_fast is not None
    assert of_slow is not None
    assert (of_fast.observed, of_slow.observed) == (99 * SIZE, 50 * SIZE)
    begins = replace(bounds(100), begins=50 * SIZE)
    assert "its task begins at 3000000" in begins.refusal(of_fast)
    assert begins.refusal(of_slow) == bounds(100).refusal(of_fast) == ""


def test_windows_of_a_range_that_had_observed_nothing_have_not_expired_by_those_of_another_one() -> (
    None
):
    """The range was restored before its task had a record: its checkpoint names no
    observed window, but it has some.
    """
    database, (first, second) = Database(Memory(), [WINDOWS]), KeyRange.split(2)
    slow, fast = (
        next(key for key in (b"a", b"b", b"c", b"d", b"e") if key_hash(key) in half)
        for half in (first, second)
    )
    log = window_log([(slow, 1), *((fast, window) for window in range(1, 100))])
    feed(
        Restore(database, WINDOWS, [first], bounds(1), times={first: NOTHING_OBSERVED}),
        log,
        1,
    )
    both = Restore(
        database,
        WINDOWS,
        [first, second],
        bounds(100),
        times={first: 2 * SIZE, second: 99 * SIZE},
    )
    feed(both, log, 100)
    assert window_key(slow, SIZE) in stored(database, WINDOWS.name)


LOG = st.lists(
    st.tuples(
        st.sampled_from([b"%d" % key for key in range(12)]),
        st.none() | st.binary(max_size=2),
        st.integers(1, 3),
    ),
    max_size=30,
)
CUTS = st.lists(st.tuples(st.integers(0, 90), st.sets(st.integers(0, 3))), max_size=6)


@pytest.mark.ci
@settings(
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(LOG, CUTS, st.booleans())
def test_state_rebuilt_from_any_prefix_through_any_ranges_is_the_fold_of_the_prefix(
    new_engine: NewEngine,
    records: list[tuple[bytes, bytes | None, int]],
    cuts: list[tuple[int, set[int]]],
    again: bool,
) -> None:
    """The ranges change at arbitrary offsets, by retarget or by a new restore over the
    old one's state.
    """
    log: list[Record] = []
    offset = 0
    for key, value, hole in records:
        offset += hole
        log.append((offset, key, value))
    quarters = KeyRange.split(4)
    engine = new_engine()
    database = Database(engine, [SPEC])
    restore = Restore(database, SPEC, [], bounds(offset + 1))
    upto = 0
    for upto, wanted in sorted(cuts, key=lambda cut: cut[0]):
        ranges = [quarters[number] for number in sorted(wanted)]
        for number in {0, 1, 2, 3} - wanted:
            database.drop(layout.groups_of(quarters[number]))
        if again:
            restore = Restore(database, SPEC, ranges, bounds(max(upto, offset + 1)))
        else:
            restore.retarget(ranges, bounds=bounds(max(upto, offset + 1)))
        feed(restore, log, upto, 3)
        assert stored(database) == fold(
            [record for record in log if record[0] < upto], ranges
        )
    restore.retarget([WHOLE], bounds=bounds(max(upto, offset + 1)))
    feed(restore, log, max(upto, offset + 1), 3)
    assert stored(database) == fold(log)
    engine.close()


def test_a_key_that_is_too_short_for_a_window_is_refused_with_its_place() -> None:
    """It was a bare `struct.error`, at each start."""
    restore = Restore(Database(Memory(), [WINDOWS]), WINDOWS, [WHOLE], bounds(1))
    with pytest.raises(
        LogError, match=r'of "windows" has a key of 1 bytes at offset 0'
    ):
        restore.feed(columns([(0, b"short", b"value")]), 1)
