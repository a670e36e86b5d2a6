"""Downloads of snapshots: each ends in the database or leaves nothing, and no storage
blocks a task.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from coopstreams.state import snapshot
from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.state.published_snapshot import Snapshots
from coopstreams.state.snapshot_download import (
    AT_ONCE,
    PATIENCE_S,
    Downloads,
    SnapshotDownload,
)
from coopstreams.state.sst import sha256_of
from coopstreams.topology.errors import StateError
from coopstreams.topology.keys import ALL_GROUPS, key_group, key_hash
from tests.broker.waiting import eventually
from tests.state.bounds import bounds
from tests.state.held import fetchers, gate
from tests.state.rows import rocks, stored
from tests.state.test_published_snapshot import (
    CHANGELOG,
    PARTITION,
    ended,
    publish,
    restored,
)
from tests.state.test_restore import SPEC, some_log

LOG = some_log(500)
TRUTH = stored(restored(LOG, 600))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "snapshots")


class Downloading:
    """A database that is restored from a snapshot, and the threads that fetch for it."""

    def __init__(
        self, url: str, folder: Path, clock: Callable[[], float] | None = None
    ) -> None:
        ticks = count()
        self.downloads = Downloads(
            clock or (lambda: next(ticks) / 1e6)
        )  # a machine that pauses must not look like a storage that does not answer
        self.folder = folder / "incoming"
        self._snapshots = Snapshots(url, "app", self.folder)

    def begin(self, database: Database) -> SnapshotDownload:
        return SnapshotDownload(
            self.downloads,
            self._snapshots,
            database,
            SPEC,
            PARTITION,
            CHANGELOG,
            range(256),
            bounds(1000),
        )

    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]


def await_held(names: list[str], count: int) -> None:
    eventually(
        lambda: len(names) >= count,
        60,
        lambda: f"{len(names)} of {count} files were asked for",
    )


def join_fetchers() -> None:
    for thread in fetchers():
        thread.join(60)
    assert fetchers() == []


def test_bytes_are_counted_while_they_come_and_keys_when_they_are_in_the_database(
    tmp_path: Path, url: str
) -> None:
    total = sum(file.bytes for file in publish(url, restored(LOG, 600)).files())
    database, restoring = (
        Database(rocks(tmp_path), [SPEC]),
        Downloading(f"held://{url}", tmp_path),
    )
    with gate(url) as held:
        download = restoring.begin(database)
        await_held(held.held, AT_ONCE)
        assert not download.look()
        progress = download.progress()
        assert progress.total_bytes == total
        assert progress.fetched_bytes == sum(
            Path(name).stat().st_size // 2 for name in held.held
        )
        assert (download.keys, stored(database)) == (0, {})
        held.opened.set()
        ended(download, restoring.downloads)
    assert (download.progress().fetched_bytes, download.progress().eta_s) == (
        total,
        0.0,
    )
    assert (download.keys, stored(database)) == (len(TRUTH), TRUTH)
    assert restoring.files() == []


def test_what_is_given_up_waits_for_no_place_and_leaves_nothing_even_when_it_comes_after_all(
    tmp_path: Path, url: str
) -> None:
    publish(url, restored(LOG, 600))
    database, restoring = (
        Database(rocks(tmp_path), [SPEC]),
        Downloading(f"held://{url}", tmp_path),
    )
    with gate(url) as held:
        download = restoring.begin(database)
        await_held(held.held, AT_ONCE)
        assert len(restoring.files()) == AT_ONCE
        download.give_up()  # it would not return if it waited for the storage
        assert restoring.files() == []
        assert download.look()
    join_fetchers()
    assert len(held.held) == AT_ONCE, "what nobody wants any more is not asked for"
    assert restoring.files() == []
    assert database.is_empty()


def test_a_place_that_falls_silent_is_called_off_and_what_has_come_is_used(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = publish(url, restored(LOG, 600))
    slow = next(each for each in made.stores["counts"].slices if each.files)
    now = [100.0]
    database, restoring = (
        Database(rocks(tmp_path), [SPEC]),
        Downloading(f"held://{url}", tmp_path, lambda: now[0]),
    )
    with gate(url, lambda name: name.endswith(slow.files[0].name)) as held:
        download = restoring.begin(database)
        await_held(held.held, 1)
        eventually(lambda: len(fetchers()) == 1, 60, lambda: str(download.progress()))
        now[0] += PATIENCE_S
        assert not download.look()
        now[0] += 1
        with caplog.at_level(logging.WARNING):
            ended(download, restoring.downloads)
        groups = {
            group
            for at in database.checkpoints("counts")
            for group in range(at.first, at.last + 1)
        }
    assert groups == {*range(256)} - {*range(slow.first, slow.last + 1)}
    assert download.keys == len(TRUTH) - slow.files[0].entries == len(stored(database))
    assert (
        f"no byte has come for 60 s. The changelog restores all but {len(groups)} key groups"
        in caplog.text
    )
    join_fetchers()
    assert restoring.files() == []
    assert len(stored(database)) == download.keys


def test_threads_that_a_place_keeps_for_ever_hold_up_nobody_else(
    tmp_path: Path, url: str
) -> None:
    publish(url, restored(LOG, 600))
    now = [100.0]
    databases = [Database(rocks(tmp_path), [SPEC]) for _ in range(2)]
    restoring = Downloading(f"held://{url}", tmp_path, lambda: now[0])
    with gate(url) as held:
        first = restoring.begin(databases[0])
        await_held(held.held, AT_ONCE)
        second = restoring.begin(databases[1])
        eventually(
            lambda: second.progress().total_bytes > 0, 60, lambda: "nothing is chosen"
        )
        assert not second.look()
        now[0] += PATIENCE_S + 1
        for download in (first, second):
            assert ended(download, restoring.downloads).keys == 0
        assert len(fetchers()) == AT_ONCE
    join_fetchers()
    third = ended(
        restoring.begin(databases[1]), restoring.downloads
    )  # the storage is available again
    assert third.keys == len(TRUTH)
    assert databases[0].is_empty()


def test_a_database_that_does_not_take_it_is_an_error_for_whoever_looks_in(
    tmp_path: Path, url: str
) -> None:
    publish(url, restored(LOG, 600))
    database, restoring = (
        Database(rocks(tmp_path), [SPEC]),
        Downloading(f"held://{url}", tmp_path),
    )
    with gate(url) as held:
        download = restoring.begin(database)
        await_held(held.held, AT_ONCE)
        database.close()
        held.opened.set()
        with pytest.raises(StateError, match="closed"):
            ended(download, restoring.downloads)
    assert restoring.files() == []


def test_files_that_hold_no_state_are_left_to_the_changelog(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The files have the checksums of the manifest, so only the database notices that
    they are bad.
    """
    made = publish(url, restored(LOG, 600))
    store = made.stores["counts"]
    spoilt = next(each for each in store.slices if each.files)
    path = Path(url) / "app" / spoilt.files[0].name
    path.write_bytes(b"no file of RocksDB" * 100)
    file = replace(spoilt.files[0], bytes=path.stat().st_size, sha256=sha256_of(path))
    slices = tuple(
        replace(each, files=(file,)) if each is spoilt else each
        for each in store.slices
    )
    snapshot.publish(
        url, replace(made, stores={"counts": replace(store, slices=slices)})
    )
    database, restoring = Database(rocks(tmp_path), [SPEC]), Downloading(url, tmp_path)
    with caplog.at_level(logging.WARNING):
        assert ended(restoring.begin(database), restoring.downloads).keys == 0
    assert "The changelog restores it." in caplog.text
    assert database.checkpoints("counts").offset(ALL_GROUPS) is None


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 16 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"only root may mount a tiny disk: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("place", ["", "held://"])
def test_a_full_disk_leaves_to_the_changelog_what_does_not_fit(
    place: str, tiny_disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = str(tmp_path / "snapshots")
    made = publish(url, restored(LOG, 600))
    assert sum(file.bytes for file in made.files()) > 32_000
    database, restoring = (
        Database(Memory(), [SPEC]),
        Downloading(place + url, tiny_disk),
    )
    with gate(url, lambda _: False), caplog.at_level(logging.WARNING):
        download = ended(restoring.begin(database), restoring.downloads)
    assert "No space left on device" in caplog.text
    groups = {
        group
        for at in database.checkpoints("counts")
        for group in range(at.first, at.last + 1)
    }
    assert len(groups) < 256
    assert stored(database) == {
        key: row for key, row in TRUTH.items() if key_group(key_hash(key)) in groups
    }
    assert download.keys == len(stored(database))
    assert restoring.files() == []
