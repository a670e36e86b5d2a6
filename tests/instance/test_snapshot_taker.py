"""Snapshots by the running application, without a cluster: who writes what, what is
published, and what a crash leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coopstreams.common.metrics import Metrics
from coopstreams.instance.snapshot_taker import SnapshotTaker, StoreTopics
from coopstreams.instance.task_registry import Standing, State
from coopstreams.state import snapshot
from coopstreams.state.checkpoints import Checkpoint
from coopstreams.state.database import Database
from coopstreams.state.directory import Databases, StateDirectory
from coopstreams.state.manifest import Manifest
from coopstreams.state.published_snapshot import Changelog
from coopstreams.state.restore import Bounds
from coopstreams.state.snapshot import Written
from coopstreams.state.storage import Storage
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.keys import KeyRange, key_hash
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.task_id import TaskId
from tests.state.bounds import TOPIC_ID
from tests.state.rows import places, put, rocks, stored

LOW, HIGH = (TaskId(0, 0, part) for part in KeyRange.split(2))
CHANGELOG = Changelog("app-counts-changelog", TOPIC_ID, 1)


class Process:
    """A process with some of the tasks, its state folder, and its snapshot thread, which
    is not started.
    """

    def __init__(self, folder: Path, url: str, *tasks: TaskId) -> None:
        builder = StreamsBuilder("app")
        numbers = builder.stream("in", key=text, value=int64)
        numbers.group_by_key().count(store="counts")
        (part,) = builder.build().subtopologies
        self.directory = StateDirectory(folder, "app", 0)
        self.databases = Databases(self.directory, {0: part}, 1 << 30)
        self.database: Database | None = None
        self.standing = Standing()
        self.own(*tasks)
        self.metrics = Metrics("app", "process")
        specs = {spec.name: spec for spec in part.stores}
        self.taker = SnapshotTaker(
            url,
            "app",
            1e-9,
            {0: part.stores},
            lambda: StoreTopics(specs, {"counts": CHANGELOG}),
            lambda: self.standing,
            self.databases,
            self.metrics,
        )

    def own(self, *tasks: TaskId) -> None:
        self.standing = Standing(states=dict.fromkeys(tasks, State.RUNNING))
        for task in tasks:
            self.database = self.databases.enter(task)

    def count(self, task: TaskId, numbers: range, offset: int) -> None:
        """Commit new values of some keys, up to this offset of the changelog."""
        assert self.database is not None
        _restored(self.database, task)
        state = self.databases.state(task, self.database)
        for number in numbers:
            key = b"%d" % number
            if key_hash(key) in task.key_range:
                put(state.stores["counts"], key, offset)
        state.changes()
        state.commit({"counts": offset}, true_ms=1)

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.taker.look()

    def close(self) -> None:
        self.directory.close()


def _restored(database: Database, task: TaskId) -> None:
    """Have the task's groups stand at the beginning of the changelog, if they are new."""
    groups = task.key_range.groups
    if database.checkpoints("counts").offset(groups) is None:
        at = Checkpoint(*groups, 0, topic_id=TOPIC_ID)
        database.write([], {"counts": [at]})


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "snapshots")


@pytest.fixture
def two(tmp_path: Path, url: str) -> Iterator[tuple[Process, Process]]:
    """Two processes, each with half of a partition."""
    first = Process(tmp_path / "first", url, LOW)
    second = Process(tmp_path / "second", url, HIGH)
    yield first, second
    first.close()
    second.close()


def one_round(first: Process, second: Process) -> None:
    """Have the first process begin a round, both write, and the first publish."""
    first.look()
    second.look()
    first.look(2)


def published(url: str) -> Manifest:
    """Return the published manifest, whose files are there."""
    found = snapshot.load(url, "app")
    assert found is not None
    there = Storage(url).names("app")
    assert {f"app/{file.name}" for file in found.files()} <= set(there)
    return found


def rows(url: str, manifest: Manifest, folder: Path) -> dict[bytes, bytes]:
    """Return the rows of a snapshot."""
    storage = Storage(url)
    engine = rocks(folder)
    engine.create("rows")
    files = [
        snapshot.fetch(storage, "app", file, folder).path for file in manifest.files()
    ]
    engine.ingest("rows", files)
    found = {key[1:]: value for key, value in engine.scan("rows", b"", None)}
    engine.close()
    return found


def test_each_owner_writes_its_slices_and_one_publishes_them_together(
    two: tuple[Process, Process], url: str, tmp_path: Path
) -> None:
    first, second = two
    first.count(LOW, range(500), 10)
    second.count(HIGH, range(500), 11)
    first.look()  # begins a round
    assert snapshot.current_run(url, "app") is None
    second.look()
    first.look(2)
    made = published(url)
    assert (made.kind, places(made.stores["counts"].slices)) == (
        "running",
        [(0, group) for group in range(256)],
    )
    assert {each.offset for each in made.stores["counts"].slices} == {10, 11}
    assert rows(url, made, tmp_path).keys() == {b"%d" % n for n in range(500)}
    assert first.taker.figures is not None
    assert first.taker.figures.run == made.run
    size = sum(file.bytes for file in made.files())
    assert first.taker.figures.bytes == size
    assert b"coopstreams_snapshot_bytes %.1f" % size in first.metrics.text()


def test_the_next_snapshot_writes_only_what_has_changed_and_names_the_rest_again(
    two: tuple[Process, Process], url: str, tmp_path: Path
) -> None:
    first, second = two
    first.count(LOW, range(500), 10)
    second.count(HIGH, range(500), 11)
    one_round(first, second)
    old = published(url)
    key = next(n for n in range(500) if key_hash(b"%d" % n) in LOW.key_range)
    first.count(LOW, range(key, key + 1), 20)
    one_round(first, second)
    new = published(url)
    assert new.run != old.run
    fresh = [file for file in new.files() if file.name.startswith(new.run)]
    assert len(fresh) == 1
    kept = {file.name for file in old.files()} & {file.name for file in new.files()}
    assert len(kept) == len(list(old.files())) - 1
    offsets = {each.offset for each in new.stores["counts"].slices}
    assert offsets == {20, 11}, "slices without changes are known to hold further on"
    assert len(rows(url, new, tmp_path)) == 500


def test_of_two_publishers_one_publishes_and_what_it_names_is_there(
    two: tuple[Process, Process], url: str
) -> None:
    first, second = two
    first.count(LOW, range(300), 10)
    second.count(HIGH, range(300), 11)
    second.own(LOW, HIGH)  # it got the other task, and the first does not know yet
    second.count(LOW, range(300), 12)
    first.look()
    second.look()
    first.look()
    for _ in range(4):
        second.look()
        first.look()
    published(url)
    # A publisher that stood still since it put its manifest together.
    behind = snapshot.published(url, "app")
    late = snapshot.load(url, "app")
    assert late is not None
    second.look(4)
    assert snapshot.published(url, "app").number > behind.number
    assert not snapshot.publish_behind(url, late, behind)
    published(url)


def test_a_process_that_died_in_its_upload_leaves_nothing_for_long(
    two: tuple[Process, Process], url: str
) -> None:
    first, second = two
    first.count(LOW, range(300), 10)
    second.count(HIGH, range(300), 11)
    first.look(2)
    run = first.taker._run
    left = snapshot.SnapshotWriter(url, "app", run).export(
        second.databases.enter(HIGH),
        second.databases.subtopology(HIGH).stores[0],
        0,
        HIGH.key_range,
        Written(),
    )
    orphans = [f"app/{file.name}" for each in left for file in each.files]
    second.look()
    first.look(2)
    assert published(url).run == run
    for _ in range(3):
        one_round(first, second)
    assert set(Storage(url).names("app")).isdisjoint(orphans)
    published(url)


def test_an_empty_host_begins_with_the_published_slices(
    two: tuple[Process, Process], url: str, tmp_path: Path
) -> None:
    first, second = two
    first.count(LOW, range(500), 10)
    second.count(HIGH, range(500), 11)
    one_round(first, second)
    made = published(url)
    bounds = Bounds(0, 30, TOPIC_ID, 1)
    assert not any(
        bounds.refusal(each.checkpoint(TOPIC_ID))
        for each in made.stores["counts"].slices
    )
    assert first.database is not None
    assert second.database is not None
    assert (
        stored(first.database).keys() | stored(second.database).keys()
        == rows(url, made, tmp_path).keys()
    )
