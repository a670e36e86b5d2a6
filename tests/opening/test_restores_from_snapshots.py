"""Stores are restored from a snapshot and the changelog after it, without delaying
others. The changelog's settings decide how old a snapshot may be.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from coopstreams.common.metrics import Metrics
from coopstreams.log.log import Position, TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.log.memory.reader import MemoryReader
from coopstreams.log.memory.state import MemoryState
from coopstreams.opening.restores import Restores
from coopstreams.state import layout, snapshot, snapshot_download
from coopstreams.state.checkpoints import Checkpoint
from coopstreams.state.database import Database
from coopstreams.state.manifest import Manifest, StoreSlices, shape_of
from coopstreams.state.memory_engine import Memory
from coopstreams.state.published_snapshot import Snapshots
from coopstreams.state.restore import TRUSTED_MS, trusted_ms
from coopstreams.state.snapshot import SnapshotWriter
from coopstreams.state.snapshot_download import AT_ONCE
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError, UnknownTopicError
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash
from coopstreams.topology.serdes import text
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId
from tests.broker.waiting import eventually
from tests.state.held import fetchers, gate, on_the_way
from tests.state.rows import rocks

COUNTS, SMALL = (
    StoreSpec("counts", "key_value", text, text),
    StoreSpec("small", "key_value", text, text),
)
KEYS = [b"key-%d" % number for number in range(200)]
BIG, OTHER = TaskId(0, 0, WHOLE), TaskId(0, 1, WHOLE)
HOUR_MS = 3_600_000
NO_SETTINGS: Mapping[str, str] = {}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that pauses must not look like a storage that does not answer."""
    monkeypatch.setattr(snapshot_download, "PATIENCE_S", 3600.0)


class Counted(Metrics):
    """Records the calls of its methods."""

    def __init__(self) -> None:
        super().__init__("app", "process")
        self.replayed = self.bytes = self.keys = 0
        self.to_come: dict[tuple[TaskId, str], int] = {}

    def restored(
        self, task: TaskId, store: str, records: int, remaining: int | None = None
    ) -> None:
        self.replayed += records

    def fetched(self, task: TaskId, store: str, bytes_: int, remaining: int) -> None:
        self.bytes += bytes_
        self.to_come[task, store] = remaining

    def restored_from_snapshot(self, task: TaskId, store: str, keys: int) -> None:
        self.keys += keys


class World:
    """Two partitions of a changelog, and a snapshot of the first one."""

    def __init__(
        self,
        folder: Path,
        log: MemoryLog | None = None,
        place: str = "",
        settings: Mapping[str, str] = NO_SETTINGS,
    ) -> None:
        self.log = log or MemoryLog()
        self.url = str(folder / "snapshots")
        self.counts = Counted()
        self.database = Database(rocks(folder), [COUNTS, SMALL])
        self.log.create_topics(
            [TopicSpec("counts-log", 2, settings), TopicSpec("small-log", 2, settings)]
        )
        self.append(KEYS, 0)
        self.append(KEYS[:7], 1)
        self.reading = Restores(
            self.log,
            self.changelog,
            Snapshots(place + self.url, "app", folder / "incoming"),
            self.counts,
        )

    @staticmethod
    def changelog(spec: StoreSpec) -> str:
        return f"{spec.name}-log"

    def append(
        self, keys: list[bytes], partition: int, topic: str = "counts-log"
    ) -> None:
        self.log.writer().append(
            topic, keys, keys, range(len(keys)), partitions=partition
        )

    def publish(self, age_ms: int = 0) -> int:
        """Publish a snapshot of the changelog as it is now, dated back; return its size
        in bytes.
        """
        origin = Database(Memory(), [COUNTS])
        plain = Restores(self.log, self.changelog)
        plain.add(BIG, [COUNTS], origin, {})
        while plain.step():
            pass
        plain.close()
        run = snapshot.new_run()
        slices = SnapshotWriter(self.url, "app", run).export(origin, COUNTS, 0, WHOLE)
        old = tuple(replace(each, true_ms=each.true_ms - age_ms) for each in slices)
        store = StoreSlices(
            "counts-log", self.log.topic_id("counts-log"), 2, shape_of(COUNTS), old
        )
        made = Manifest(
            "app", run, "rebuild", "2026-11-21T00:00:00+00:00", {"counts": store}
        )
        snapshot.publish(self.url, made)
        return sum(file.bytes for file in made.files())

    def rows(self, store: str = "counts") -> dict[bytes, bytes]:
        return {
            key: layout.unpack(data)[0]
            for key, data in self.database.scan(store, range(256), None, None)
        }

    def finish(self) -> list[TaskId]:
        """Return the finished tasks when no work is left."""
        give_up = time.monotonic() + 120
        finished = self.reading.finished()
        while self.reading.step():
            finished += self.reading.finished()
            assert time.monotonic() < give_up, "it does not end"
        return finished + self.reading.finished()


def test_a_task_that_fetches_holds_up_no_other_and_says_how_far_it_is(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, place="held://")
    total = world.publish()
    world.append([b"tail"], 0)
    apart = Database(Memory(), [COUNTS, SMALL])
    with gate(world.url) as held:
        world.reading.add(BIG, [COUNTS, SMALL], world.database, {})
        eventually(lambda: len(held.held) == AT_ONCE, 60, lambda: str(held.held))
        world.reading.add(OTHER, [COUNTS, SMALL], apart, {})
        finished: list[TaskId] = []
        while not finished:  # without end, if it waited for the storage
            assert world.reading.step()
            finished = world.reading.finished()
        assert finished == [OTHER]
        (progress,) = world.reading.downloading(BIG)
        assert (progress.store, progress.total_bytes) == ("counts", total)
        assert (
            0
            < progress.fetched_bytes
            == world.counts.bytes
            == total - world.counts.to_come[BIG, "counts"]
        )
        assert (world.counts.keys, world.rows()) == (0, {})
        held.opened.set()
        assert world.finish() == [BIG]
    assert world.rows() == {key: key for key in (*KEYS, b"tail")}
    assert (
        world.counts.keys,
        world.counts.bytes,
        set(world.counts.to_come.values()),
    ) == (len(KEYS), total, {0})
    assert world.counts.replayed == 7 + 1
    assert world.reading.downloading(BIG) == []
    world.reading.close()


@pytest.mark.parametrize("ending", ["cancelled", "closed"])
def test_what_is_given_up_on_its_way_ends_at_once_and_leaves_nothing(
    ending: str, tmp_path: Path
) -> None:
    world = World(tmp_path, place="held://")
    world.publish()
    with gate(world.url) as held:
        world.reading.add(BIG, [COUNTS], world.database, {})
        eventually(lambda: len(held.held) == AT_ONCE, 60, lambda: str(held.held))
        if ending == "cancelled":
            world.reading.cancel(BIG)
            assert world.finish() == []
            assert world.reading.downloading(BIG) == []
        world.reading.close()
        assert [
            path for path in (tmp_path / "incoming").rglob("*") if path.is_file()
        ] == []
        assert world.database.is_empty()
    for thread in fetchers():
        thread.join(60)
    assert [path for path in (tmp_path / "incoming").rglob("*") if path.is_file()] == []
    assert world.database.is_empty()


def test_siblings_take_their_slices_and_one_that_comes_back_later_replays_only_the_tail(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.publish()
    parts = [TaskId(0, 0, part) for part in KeyRange.split(4)]
    for task in parts[:3]:
        world.reading.add(task, [COUNTS], world.database, {})
    world.reading.cancel(parts[0])
    assert sorted(world.finish()) == parts[1:3]
    world.append(KEYS[:10], 0)
    for task in (parts[3], parts[0]):
        world.reading.add(task, [COUNTS], world.database, {})
    assert sorted(world.finish()) == [parts[0], parts[3]]
    world.reading.add(parts[1], [COUNTS], world.database, {})
    assert world.finish() == [parts[1]]
    assert world.rows() == {key: key for key in KEYS}
    assert world.counts.replayed <= 3 * 10, "the tail, once for each task that needs it"
    world.reading.close()


def test_a_task_that_was_fetched_meanwhile_does_not_end_the_restore_of_one_that_came_later(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, place="held://")
    world.publish()
    early, late = (TaskId(0, 0, part) for part in KeyRange.split(2))
    with gate(world.url) as held:
        world.database.write(
            [], {"counts": [Checkpoint(*layout.groups_of(late.key_range), 0)]}
        )
        world.reading.add(early, [COUNTS], world.database, {})
        eventually(lambda: len(held.held) == AT_ONCE, 60, lambda: str(held.held))
        world.append([b"more-%d" % number for number in range(50)], 0)
        world.reading.add(late, [COUNTS], world.database, {})
        held.opened.set()
        eventually(lambda: not on_the_way(), 60, lambda: str(on_the_way()))
        assert sorted(world.finish()) == [early, late]
    missing = {
        key
        for key in (*KEYS, *(b"more-%d" % number for number in range(50)))
        if key_hash(key) in late.key_range
    } - world.rows().keys()
    assert missing == set()
    world.reading.close()


@pytest.mark.parametrize(
    ("settings", "hours"),
    [
        ({}, 23),
        ({"delete.retention.ms": str(72 * HOUR_MS)}, 71),
        ({"delete.retention.ms": str(5 * HOUR_MS)}, 4.5),
        ({"delete.retention.ms": "0"}, 0),
    ],
)
def test_a_checkpoint_is_trusted_as_long_as_tombstones_are_kept_less_the_time_for_a_replay(
    settings: dict[str, str], hours: float
) -> None:
    assert trusted_ms(settings) == hours * HOUR_MS


@pytest.mark.parametrize(
    ("kept_hours", "age_hours", "restored_from_snapshot"),
    [(72, 70, True), (72, 72, False), (24, 24, False), (24, 22, True), (5, 22, False)],
)
def test_a_snapshot_is_trusted_as_long_as_its_changelog_keeps_tombstones(
    kept_hours: int,
    age_hours: int,
    restored_from_snapshot: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(tmp_path, settings={"delete.retention.ms": str(kept_hours * HOUR_MS)})
    world.publish(age_hours * HOUR_MS)
    world.append([b"tail"], 0)
    with caplog.at_level(logging.WARNING):
        world.reading.add(BIG, [COUNTS], world.database, {})
        assert world.finish() == [BIG]
    assert (world.counts.keys, world.counts.replayed) == (
        (len(KEYS), 1) if restored_from_snapshot else (0, len(KEYS) + 1)
    )
    assert (
        "older than the changelog keeps tombstones" in caplog.text
    ) is not restored_from_snapshot
    world.reading.close()


class Closed(MemoryLog):
    """A cluster that does not let this process read settings."""

    retryable = False

    def topic_config(self, topic: str) -> dict[str, str]:
        raise LogError(
            f"not allowed to read the configuration of {topic}",
            retryable=self.retryable,
        )


def test_settings_that_may_not_be_read_are_taken_to_be_kafkas_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, Closed())
    world.publish(TRUSTED_MS - HOUR_MS)
    with caplog.at_level(logging.WARNING):
        world.reading.add(BIG, [COUNTS], world.database, {})
        assert world.finish() == [BIG]
    assert (
        "not allowed to read the configuration of counts-log. State is trusted for 23 hours"
        in caplog.text
    )
    assert world.counts.keys == len(KEYS)
    world.publish(TRUSTED_MS + HOUR_MS)
    world.database = Database(rocks(tmp_path), [COUNTS])
    world.reading.add(BIG, [COUNTS], world.database, {})
    assert world.finish() == [BIG]
    assert world.counts.replayed == len(KEYS)
    world.reading.close()


class Away(MemoryLog):
    """A cluster that is unavailable when it should be."""

    away = False

    def topic_config(self, topic: str) -> dict[str, str]:
        if self.away:
            raise LogError("no broker answers", retryable=True)
        return super().topic_config(topic)


def test_brokers_that_are_away_when_a_snapshot_has_come_are_asked_again(
    tmp_path: Path,
) -> None:
    log = Away()
    world = World(tmp_path, log, place="held://")
    world.publish()
    with gate(world.url) as held:
        world.reading.add(BIG, [COUNTS], world.database, {})
        eventually(lambda: len(held.held) == AT_ONCE, 60, lambda: str(held.held))
        world.reading.step()
        log.away = True
        held.opened.set()
        refused = threading.Event()

        def step() -> bool:
            try:
                world.reading.step()
            except LogError:
                refused.set()
            return refused.is_set()

        eventually(step, 60, lambda: "the brokers were not asked")
        assert world.reading.finished() == []
        log.away = False
        assert world.finish() == [BIG]
    assert (world.rows(), world.counts.keys, world.counts.replayed) == (
        {key: key for key in KEYS},
        len(KEYS),
        0,
    )
    world.reading.close()


class Behind(MemoryLog):
    """A cluster with a broker that does not know the topics, when it should be behind
    the others.
    """

    behind = False

    def reader(self, *, committed_only: bool = True) -> MemoryReader:
        return ReaderBehind(self, committed_only=committed_only)

    @property
    def state(self) -> MemoryState:
        return self._state


class ReaderBehind(MemoryReader):
    """A reader that asks that broker."""

    def __init__(self, log: Behind, *, committed_only: bool) -> None:
        super().__init__(log.state, committed_only=committed_only)
        self._log = log

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        if self._log.behind and positions:
            raise UnknownTopicError(f"there is no {', '.join(map(str, positions))}")
        super().assign(positions)


def test_a_changelog_that_a_broker_does_not_know_yet_when_a_snapshot_has_come_is_read_later(
    tmp_path: Path,
) -> None:
    log = Behind()
    world = World(tmp_path, log)
    world.publish()
    world.append([b"tail"], 0)
    world.reading.add(BIG, [COUNTS], world.database, {})
    log.behind = True
    with pytest.raises(UnknownTopicError):
        world.finish()
    log.behind = False
    assert world.finish() == [BIG]
    assert world.rows() == {key: key for key in (*KEYS, b"tail")}
    world.reading.close()
