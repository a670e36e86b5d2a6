"""A restore from a snapshot has the same result as a full replay; misfits are refused,
logged, and replayed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coopstreams.state import layout, snapshot
from coopstreams.state.database import Database
from coopstreams.state.engine import Engine
from coopstreams.state.manifest import Manifest, Slice, StoreSlices, shape_of
from coopstreams.state.memory_engine import Memory
from coopstreams.state.published_snapshot import Changelog, Snapshots, choose
from coopstreams.state.restore import TRUSTED_MS, Bounds, Restore, lacking
from coopstreams.state.rocks import Rocks
from coopstreams.state.snapshot import SnapshotWriter
from coopstreams.state.snapshot_download import Downloads, SnapshotDownload
from coopstreams.state.storage import Storage
from coopstreams.topology.errors import SnapshotError
from coopstreams.topology.keys import ALL_GROUPS, WHOLE, KeyGroups, KeyRange
from coopstreams.topology.serdes import text
from coopstreams.topology.stores import StoreSpec, window_key
from tests.state.bounds import bounds, stands
from tests.state.held import LocalFiles
from tests.state.rows import rocks, stored
from tests.state.test_restore import SIZE, SPEC, WINDOWS, Record, feed, some_log

CHANGELOG = Changelog("app-counts-changelog", "id-1", 4)
PARTITION = 2
numbers = count()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "snapshots")


def restored(
    log: Sequence[Record],
    upto: int,
    spec: StoreSpec = SPEC,
    ranges: Sequence[KeyRange] = (WHOLE,),
) -> Database:
    """Return a database that has replayed the log."""
    database = Database(Memory(), [spec])
    feed(Restore(database, spec, ranges, bounds(upto)), log, upto, 1000)
    return database


def publish(
    url: str, database: Database, spec: StoreSpec = SPEC, key_range: KeyRange = WHOLE
) -> Manifest:
    run = snapshot.new_run()
    slices = SnapshotWriter(url, "app", run).export(
        database, spec, PARTITION, key_range
    )
    store = StoreSlices(
        CHANGELOG.topic,
        CHANGELOG.topic_id,
        CHANGELOG.partitions,
        shape_of(spec),
        tuple(slices),
    )
    made = Manifest(
        "app", run, "rebuild", "2026-11-21T00:00:00+00:00", {spec.name: store}
    )
    snapshot.publish(url, made)
    return made


def ended(download: SnapshotDownload, downloads: Downloads) -> SnapshotDownload:
    """Return a snapshot restore when it has ended."""
    give_up = time.monotonic() + 120
    while not download.look():
        assert time.monotonic() < give_up, f"it does not end: {download.progress()}"
        downloads.ended.wait(0.01)
    return download


class RestoringFromSnapshot:
    """A database that is restored from a published snapshot and the changelog."""

    def __init__(
        self,
        url: str,
        engine: Engine,
        folder: Path,
        spec: StoreSpec = SPEC,
        changelog: Changelog = CHANGELOG,
    ) -> None:
        self.database = Database(engine, [spec])
        self.spec = spec
        self.keys: list[int] = []
        self._snapshots = Snapshots(url, "app", folder / "incoming")
        self._changelog = changelog

    def take(self, groups: Sequence[int], now: Bounds) -> SnapshotDownload:
        """Return a snapshot restore that has ended."""
        downloads = Downloads(
            lambda: 0.0
        )  # a machine that pauses must not look like a storage that does not answer
        download = SnapshotDownload(
            downloads,
            self._snapshots,
            self.database,
            self.spec,
            PARTITION,
            self._changelog,
            groups,
            now,
        )
        return ended(download, downloads)

    def restore(
        self, log: Sequence[Record], target: int, ranges: Sequence[KeyRange] = (WHOLE,)
    ) -> Restore:
        """Return a finished restore, which reports the number of replayed records."""
        now = bounds(target)
        for key_range in ranges:
            if groups := lacking(
                self.database.checkpoints(self.spec.name), key_range, now
            ):
                self.keys += [keys] if (keys := self.take(groups, now).keys) else []
        restore = Restore(self.database, self.spec, ranges, now)
        feed(restore, log, target, 1000)
        return restore


def window_log(size: int) -> list[Record]:
    """Windows that advance with time; some are deleted."""
    rows = [
        (number, window_key(b"%d" % (number % 53), number // 100 * SIZE) + bytes(4))
        for number in range(size)
    ]
    return [
        (number, key, None if number % 17 == 0 else b"w%d" % number)
        for number, key in rows
    ]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("spec", "make"),
    [(SPEC, some_log), (WINDOWS, window_log)],
    ids=["plain", "windows"],
)
@pytest.mark.parametrize("engine", ["memory", "rocks"])
def test_only_the_tail_is_replayed_and_nothing_differs(
    spec: StoreSpec,
    make: Callable[[int], list[Record]],
    engine: str,
    tmp_path: Path,
    url: str,
) -> None:
    log = make(1500)
    end = log[-1][0] + 1
    cut = end // 2
    publish(url, restored(log, cut, spec), spec)
    restoring = RestoringFromSnapshot(
        url, Memory() if engine == "memory" else rocks(tmp_path), tmp_path, spec
    )
    restore = restoring.restore(log, end)
    assert restore.progress().read == sum(offset >= cut for offset, _, _ in log)
    truth = restored(log, end, spec)
    assert visible(restoring.database, spec) == visible(truth, spec)
    assert restoring.database.checkpoints(spec.name).offset(ALL_GROUPS) == end
    assert sum(restoring.keys) > 20
    assert list((tmp_path / "incoming").iterdir()) == []


@pytest.mark.parametrize("parts", [3, 8])
def test_a_range_takes_its_own_keys_and_no_others(
    parts: int, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = [(number, b"key-%d" % number, b"v") for number in range(3000)]
    publish(url, restored(log, 3000))
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")  # it may be small, or in memory
    for key_range in KeyRange.split(parts):
        restoring = RestoringFromSnapshot(url, rocks(tmp_path), tmp_path)
        assert restoring.restore(log, 3000, [key_range]).progress().read == 0
        truth = stored(restored(log, 3000, ranges=[key_range]))
        assert stored(restoring.database) == truth
        assert sum(restoring.keys) == len(truth)


def test_siblings_that_come_later_take_theirs_and_leave_what_runs_alone(
    tmp_path: Path, url: str
) -> None:
    log = some_log(500)
    publish(url, restored(log, 600))
    one, two, three = KeyRange.split(3)
    restoring = RestoringFromSnapshot(url, rocks(tmp_path), tmp_path)
    restoring.restore(log, 1000, [one])
    live = stored(restoring.database)
    restoring.database.write([], {"counts": [stands(1000, one)]})
    restoring.restore(log, 1000, [two])
    assert {
        key: value for key, value in stored(restoring.database).items() if key in live
    } == live
    restoring.restore(log, 1000, [three])
    assert stored(restoring.database) == stored(restored(log, 1000))


def test_what_is_there_already_is_not_taken_again(tmp_path: Path, url: str) -> None:
    log = some_log(500)
    publish(url, restored(log, 600))
    restoring = RestoringFromSnapshot(url, rocks(tmp_path), tmp_path)
    restoring.restore(log, 800)
    assert len(restoring.keys) == 1
    restoring.restore(log, 1000)
    assert len(restoring.keys) == 1
    assert stored(restoring.database) == stored(restored(log, 1000))


def test_state_that_cannot_be_continued_gives_way_to_the_snapshot(
    tmp_path: Path, url: str
) -> None:
    log = some_log(500)
    publish(url, restored(log, 600))
    restoring = RestoringFromSnapshot(url, rocks(tmp_path), tmp_path)
    zombies: list[Record] = [
        (number, b"zombie-%d" % number, b"1") for number in range(100)
    ]
    feed(Restore(restoring.database, SPEC, [WHOLE], bounds(100)), zombies, 100)
    restoring.database.write(
        [], {"counts": [stands(5000, KeyRange.split(2)[0])]}
    )  # above the end
    restoring.database.write(
        [], {"counts": [replace(stands(100, KeyRange.split(2)[1]), true_ms=1)]}
    )  # older than tombstones
    assert restoring.restore(log, 1000).progress().read == 200
    assert stored(restoring.database) == stored(restored(log, 1000))


def test_a_part_that_no_slice_has_is_replayed_and_the_rest_is_not(
    tmp_path: Path, url: str
) -> None:
    log = some_log(500)
    publish(url, restored(log, 600), key_range=KeyRange.of_groups(40, 200))
    restoring = RestoringFromSnapshot(url, rocks(tmp_path), tmp_path)
    assert restoring.restore(log, 1000).progress().read == 500
    assert stored(restoring.database) == stored(restored(log, 1000))
    assert sum(restoring.keys) == len(
        [
            key
            for key in range(97)
            if 40 <= layout.database_key(b"%d" % key, b"")[0] <= 200
            and key_lives(log, 600, key)
        ]
    )


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines of this package: clients left by other tests in this process
    may log anything.
    """
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("coopstreams.state")
    ]


def test_nothing_published_is_no_error(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = some_log(100)
    with caplog.at_level(logging.WARNING):
        assert (
            RestoringFromSnapshot(url, Memory(), tmp_path)
            .restore(log, 200)
            .progress()
            .read
            == 100
        )
    assert said(caplog) == []


def flip(path: Path, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1 << bit
    path.write_bytes(data)


def change(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: flip(next(folder.glob("*/counts/*/*.sst"))), "is damaged"),
        (lambda folder: next(folder.glob("*/counts/*/*.sst")).unlink(), "is missing"),
        (
            lambda folder: change(
                next(folder.glob("*/manifest.json")),
                b'"observed": -1',
                b'"observed": -2',
            ),
            "SHA-256 differs",
        ),
        (
            lambda folder: flip(next(folder.glob("*/manifest.json")), 7),
            "it is no manifest",
        ),
        (
            lambda folder: change(
                next(folder.glob("*/manifest.json")), b'"format": 1', b'"format": 9'
            ),
            "upgrade coopstreams",
        ),
        (
            lambda folder: next(folder.glob("*/manifest.json")).unlink(),
            "it has no manifest",
        ),
        (lambda folder: folder.rename(folder.with_name("gone")), ""),
    ],
    ids=[
        "flipped byte",
        "missing file",
        "damaged manifest",
        "manifest of no text",
        "newer format",
        "missing manifest",
        "nothing there",
    ],
)
def test_a_snapshot_that_is_damaged_is_refused_in_words_and_the_changelog_read(
    spoil: Callable[[Path], None],
    words: str,
    tmp_path: Path,
    url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = some_log(500)
    publish(url, restored(log, 600))
    spoil(Path(url) / "app")
    restoring = RestoringFromSnapshot(url, rocks(tmp_path), tmp_path)
    with caplog.at_level(logging.WARNING):
        restore = restoring.restore(log, 1000)
    assert words in caplog.text
    assert (said(caplog) == []) == (words == "")
    assert restore.progress().read == 500
    assert stored(restoring.database) == stored(restored(log, 1000))


class CutShort(LocalFiles):
    """A file system on which the first download of each file ends too early."""

    protocol = "cutshort"
    seen: ClassVar[set[str]] = set()

    def get_file(
        self, path1: str, path2: str, callback: Any = None, **options: Any
    ) -> None:
        super().get_file(path1, path2, callback, **options)
        if path1 not in self.seen:
            self.seen.add(path1)
            Path(path2).write_bytes(Path(path2).read_bytes()[:-100])


def test_a_download_that_was_cut_short_is_done_again(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    fsspec.register_implementation("cutshort", CutShort, clobber=True)
    log = some_log(500)
    publish(url, restored(log, 600))
    with caplog.at_level(logging.WARNING):
        assert (
            RestoringFromSnapshot(f"cutshort://{url}", rocks(tmp_path), tmp_path)
            .restore(log, 1000)
            .progress()
            .read
            == 200
        )
    assert said(caplog) == []
    assert len(CutShort.seen) > 20


@pytest.mark.parametrize(
    ("spec", "changelog", "words"),
    [
        (SPEC, replace(CHANGELOG, topic_id="id-2"), "that was made anew"),
        (SPEC, replace(CHANGELOG, topic_id=""), "topics no ids"),
        (SPEC, replace(CHANGELOG, partitions=8), "had 4 partitions then and has 8 now"),
        (replace(SPEC, value=text), CHANGELOG, "made by another topology"),
    ],
    ids=[
        "topic made anew",
        "topics without ids",
        "more partitions",
        "another topology",
    ],
)
def test_a_snapshot_of_something_else_is_refused_in_words(
    spec: StoreSpec,
    changelog: Changelog,
    words: str,
    tmp_path: Path,
    url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = some_log(500)
    publish(url, restored(log, 600))
    restoring = RestoringFromSnapshot(url, rocks(tmp_path), tmp_path, spec, changelog)
    with caplog.at_level(logging.WARNING):
        assert restoring.restore(log, 1000).progress().read == 500
    assert words in caplog.text
    assert restoring.keys == []
    assert stored(restoring.database) == stored(restored(log, 1000))


@pytest.mark.parametrize(
    ("now", "words", "chosen"),
    [
        (Bounds(11, 99, "i", 9, 3), "below the log start 11", []),
        (Bounds(0, 9, "i", 9, 3), "above the log end 9", []),
        (Bounds(0, 99, "i", 11, 3), "keeps tombstones", [8]),
        (Bounds(0, 99, "i", 10, 3), "", [0, 8]),
        (Bounds(0, 99, "i", 8, 3), "ahead of the clock", [0]),
        (Bounds(0, 99, "i-2", 9, 3), "id i, not i-2", []),
        (Bounds(0, 99, "", 9, 3), "no ids", []),
    ],
)
def test_slices_that_the_changelog_does_not_go_on_from_are_not_chosen(
    now: Bounds, words: str, chosen: list[int]
) -> None:
    slices = (
        Slice(0, 0, 7, 10, true_ms=7),
        Slice(0, 8, 15, 10, true_ms=9),
        Slice(1, 0, 15, 10, true_ms=9),
    )
    taken, refusal = choose(StoreSlices("t", "i", 1, "s", slices), 0, range(256), now)
    assert words in refusal
    assert bool(words) == bool(refusal)
    assert [each.first for each in taken] == chosen


def test_an_old_snapshot_is_not_trusted_once_tombstones_may_be_gone(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = some_log(500)
    database = restored(log, 600)
    database.write(
        [],
        {
            "counts": [
                replace(at, true_ms=at.true_ms - TRUSTED_MS - 1000)
                for at in database.checkpoints("counts")
            ]
        },
    )
    publish(url, database)
    with caplog.at_level(logging.WARNING):
        assert (
            RestoringFromSnapshot(url, Memory(), tmp_path)
            .restore(log, 1000)
            .progress()
            .read
            == 500
        )
    assert "older than the changelog keeps tombstones" in caplog.text


@pytest.mark.ci
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    size=st.integers(0, 400),
    cuts=st.tuples(st.integers(0, 800), st.integers(0, 800)),
    published=st.tuples(st.integers(0, 255), st.integers(0, 255)),
    wanted=st.lists(st.integers(0, 255), min_size=2, max_size=6, unique=True),
)
def test_a_snapshot_restore_and_a_replay_end_alike_whatever_was_published_and_is_wanted(
    size: int,
    cuts: tuple[int, int],
    published: tuple[int, int],
    wanted: list[int],
    tmp_path: Path,
) -> None:
    url = f"memory://restore-{os.getpid()}-{next(numbers)}"
    log = some_log(size)
    cut, end = sorted(cuts)
    publish(
        url,
        restored(log, cut),
        key_range=KeyRange.of_groups(min(published), max(published)),
    )
    edges = sorted(wanted)
    ranges = [
        KeyRange.of_groups(first, last - 1)
        for first, last in zip(edges[::2], edges[1::2], strict=False)
        if first < last
    ]
    restoring = RestoringFromSnapshot(url, Memory(), tmp_path)
    restoring.restore(log, end, ranges)
    assert stored(restoring.database) == stored(restored(log, end, ranges=ranges))


def test_a_snapshot_restore_that_died_half_way_is_emptied_and_begun_again(
    tmp_path: Path, url: str
) -> None:
    log = window_log(1500)
    made = publish(url, restored(log, 800, WINDOWS), WINDOWS)
    folder = tmp_path / "database"
    folder.mkdir()
    database = Database(Rocks(folder), [WINDOWS])
    halves = next(each for each in made.stores["windows"].slices if len(each.files) > 1)
    first, second = (
        snapshot.fetch(Storage(url), "app", file, tmp_path) for file in halves.files[:2]
    )
    second.path.write_bytes(b"the machine died here")
    with pytest.raises(SnapshotError):
        database.ingest(
            "windows",
            [halves.checkpoint(CHANGELOG.topic_id)],
            {first.file.family: [first.path], second.file.family: [second.path]},
        )
    database.close()

    restoring = RestoringFromSnapshot(url, Rocks(folder), tmp_path, WINDOWS)
    assert restoring.database.has_keys("windows", KeyGroups(halves.first, halves.last))
    assert (
        restoring.database.checkpoints("windows").offset(
            KeyGroups(halves.first, halves.last)
        )
        is None
    )
    assert restoring.restore(log, 1500).progress().read == 700
    assert visible(restoring.database, WINDOWS) == visible(
        restored(log, 1500, WINDOWS), WINDOWS
    )


def key_lives(log: Sequence[Record], upto: int, key: int) -> bool:
    values = [
        value for offset, name, value in log if offset < upto and name == b"%d" % key
    ]
    return bool(values) and values[-1] is not None


def visible(database: Database, spec: StoreSpec) -> dict[bytes, tuple[bytes, int]]:
    """Return the stored windows without expired ones, whose removal depends on the
    parts of a restore.
    """
    rows = stored(database, spec.name)
    if spec.kind not in layout.SEGMENTED:
        return rows
    oldest = layout.horizon(spec, max(layout.window_start(key) for key in rows))
    return {
        key: value for key, value in rows.items() if layout.window_start(key) >= oldest
    }
