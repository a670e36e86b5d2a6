"""A live application restores from a published snapshot, on a real Kafka: as a whole,
by range, and after more records. It ignores a snapshot that does not fit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coopstreams import (
    CoopStreams,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
    until_window_closes,
)
from coopstreams.admin.rebuild import (
    Rebuilder,
    RebuildScope,
    RebuiltPartition,
    logged,
    to_rebuild,
)
from coopstreams.common.metrics import Metrics
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.opening.restores import Restores
from coopstreams.query.client import QueryClient
from coopstreams.state import layout, snapshot
from coopstreams.state.database import Database
from coopstreams.state.manifest import Manifest, Slice
from coopstreams.state.published_snapshot import Snapshots
from coopstreams.state.rocks import Rocks
from coopstreams.tasks.lifecycle import RestoreListener
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, UnknownTopicError
from coopstreams.topology.graph.nodes import SubTopology
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.task_id import TaskId
from tests.broker.counting import Counting, await_running, await_table, metric
from tests.broker.waiting import eventually
from tests.conftest import PATIENT, Kafka
from tests.state.rows import places

pytestmark = pytest.mark.broker

KEYS = [f"key-{number}" for number in range(6000)]
FROM_SNAPSHOT, REPLAYED = (
    "coopstreams_snapshot_keys_total",
    "coopstreams_restored_records_total",
)
EXACTLY: dict[str, Any] = {"processing_guarantee": "exactly_once_v2"}


@pytest.fixture
def cluster(kafka: Kafka) -> Iterator[KafkaLog]:
    log = KafkaLog({"bootstrap.servers": kafka.bootstrap})
    yield log
    log.close()


def windowed(application: str, topics: dict[str, str]) -> Topology:
    """Clicks in sessions, closed minutes, and the number of keys by count."""
    builder = StreamsBuilder(application)
    clicks = builder.stream(topics["clicks"], key=serdes.text, value=serdes.text)
    group = clicks.group_by_key()
    sessions = group.windowed_by(
        SessionWindows(gap=timedelta(seconds=10), grace=timedelta(hours=1))
    ).count(store="sessions")
    sessions.to_stream().map(
        lambda at, count: (at.key, f"{at.start_ms}-{at.end_ms}:{count}"),
        key=serdes.text,
        value=serdes.text,
    ).to(topics["sessions"])
    minutes = (
        group.windowed_by(TimeWindows(minutes=1))
        .count(store="minutes")
        .suppress(until_window_closes(), name="final")
    )
    minutes.to_stream().map(
        lambda at, count: (at.key, f"{at.start_ms}:{count}"),
        key=serdes.text,
        value=serdes.text,
    ).to(topics["minutes"])
    totals = (
        group.count(store="totals")
        .group_by(
            lambda _, count: (str(count), "x"), key=serdes.text, value=serdes.text
        )
        .count(store="groups")
    )
    totals.to_stream().map_values(str, value=serdes.text).to(topics["groups"])
    return builder.build()


def rebuilt(
    cluster: KafkaLog, counting: Counting, url: str, *, afresh: bool = False
) -> tuple[Manifest, int]:
    """Rebuild and publish; return the manifest and the number of changelog records
    read.
    """
    rebuilder = Rebuilder(
        cluster, counting.topology, counting.application, url, afresh=afresh
    )
    found: dict[str, list[Slice]] = {}
    replayed = Replayed()
    for rebuilt in rebuilder.to_rebuild(RebuildScope()):
        for store, slices in rebuilder.rebuild(rebuilt, replayed).items():
            found.setdefault(store, []).extend(slices)
    return rebuilder.publish(found), replayed.records


class Replayed(RestoreListener):
    """Counts the changelog records that rebuilds read."""

    records = 0

    def on_restore_end(
        self, partition: TopicPartition, store: str, records: int
    ) -> None:
        self.records += records


def ran(
    counting: Counting,
    folder: Path,
    keys: list[str],
    before: Counter[str] | None = None,
) -> Counter[str]:
    """Write keys, let an instance count them and stop; return the number of writes of
    each key.
    """
    written = counting.write(keys) + (before or Counter())
    with counting.app(folder, **EXACTLY) as app:
        await_table(app, written)
    return written


@pytest.mark.ci
def test_an_instance_without_state_takes_the_snapshot_and_replays_only_the_tail(
    kafka: Kafka, cluster: KafkaLog, tmp_path: Path
) -> None:
    counting, url = Counting.make(kafka, 2), str(tmp_path / "snapshots")
    written = ran(counting, tmp_path / "first", KEYS)
    manifest, _ = rebuilt(cluster, counting, url)
    assert places(manifest.stores["counts"].slices) == [
        (partition, group) for partition in (0, 1) for group in range(256)
    ]
    assert [problem for _, problem in snapshot.verify(url, manifest) if problem] == []
    written = ran(counting, tmp_path / "first", KEYS[:300], written)
    written += counting.write(KEYS[100:200])
    with counting.app(tmp_path / "new", snapshots_dir=url, **EXACTLY) as app:
        await_table(app, written)
        assert metric(app, FROM_SNAPSHOT) == len(KEYS)
        assert 300 <= metric(app, REPLAYED) < 1000


@pytest.mark.slow
def test_a_snapshot_is_made_while_the_application_runs_and_the_next_one_reads_only_what_came_since(
    kafka: Kafka, cluster: KafkaLog, tmp_path: Path
) -> None:
    counting, url = Counting.make(kafka), str(tmp_path / "snapshots")
    written = counting.write(KEYS)
    with counting.app(tmp_path / "live", **EXACTLY) as live:
        await_table(live, written)
        _, first = rebuilt(cluster, counting, url)
        assert first >= len(KEYS)
        written += counting.write(KEYS[:50])
        await_table(live, written)
        second, tail = rebuilt(cluster, counting, url)
        assert 50 <= tail <= 200
        _, afresh = rebuilt(cluster, counting, url, afresh=True)
        assert afresh >= first
    assert sum(file.entries for file in second.files()) == len(KEYS)
    with counting.app(tmp_path / "new", snapshots_dir=url, **EXACTLY) as app:
        await_table(app, written)
        assert metric(app, FROM_SNAPSHOT) == len(KEYS)


def test_what_cannot_be_rebuilt_is_said_before_anything_is_read(
    kafka: Kafka, cluster: KafkaLog, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    rebuilder = Rebuilder(
        cluster, counting.topology, counting.application, str(tmp_path)
    )
    with pytest.raises(UnknownTopicError, match="has never run here"):
        rebuilder.to_rebuild(RebuildScope())
    with pytest.raises(ConfigError, match="there are counts"):
        to_rebuild(counting.topology, [1], RebuildScope(["count"]))
    with pytest.raises(ConfigError, match="there is no partition 1, 7"):
        to_rebuild(counting.topology, [1], RebuildScope(None, [0, 1, 7]))


@pytest.mark.slow
def test_windows_sessions_and_what_waits_are_picked_up_as_they_are_replayed(
    kafka: Kafka, cluster: KafkaLog, tmp_path: Path
) -> None:
    topics = {
        name: kafka.topic(name) for name in ("clicks", "sessions", "minutes", "groups")
    }
    application, url = kafka.unique("windows"), str(tmp_path / "snapshots")
    topology = windowed(application, topics)
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "commit.interval.ms": 100,
        "processing.guarantee": "exactly_once_v2",
        "ranges.per.partition": 3,
        **PATIENT,
    }
    began_ms = int(time.time() * 1000) - 4 * 3_600_000

    def click(numbers: range) -> None:
        kafka.write(
            topics["clicks"],
            (
                (b"key-%d" % (number % 41), b"x", began_ms + number * 3000)
                for number in numbers
            ),
        )

    def process(numbers: range) -> None:
        click(numbers)
        with CoopStreams(
            topology, {**settings, "state.dir": str(tmp_path / "state")}
        ) as app:
            await_running([app])
            eventually(lambda: not lags(app), 120, lambda: str(lags(app)))

    process(range(2000))
    rebuilder = Rebuilder(cluster, topology, application, url)
    todo = rebuilder.to_rebuild(RebuildScope())
    found = [rebuilder.rebuild(rebuilt) for rebuilt in todo]
    manifest = rebuilder.publish(
        {store: slices for stores in found for store, slices in stores.items()}
    )
    assert {
        store
        for store in manifest.stores
        if any(file for each in manifest.stores[store].slices for file in each.files)
    } == set(logged(topology))
    process(range(2000, 2600))
    for rebuilt in todo:
        whole = next(
            each
            for each in topology.subtopologies
            if each.id == rebuilt.task.subtopology
        )
        replayed, nothing = restored(
            cluster, application, whole, rebuilt, tmp_path, None
        )
        restored_from_snapshot, keys = restored(
            cluster, application, whole, rebuilt, tmp_path, url
        )
        assert restored_from_snapshot == replayed
        assert keys > nothing == 0


def lags(app: CoopStreams) -> list[str]:
    """Return the tasks that have a lag, as the application reports it."""
    with QueryClient(str(app.url)) as client:
        tasks = [
            task
            for instance in client.status()["instances"]
            for task in instance["tasks"]
        ]
    return [f"{task['id']}: {task['lag']}" for task in tasks if task["lag"] != 0]


class PickedUp(Metrics):
    """Counts the keys restored from a snapshot."""

    keys = 0

    def restored_from_snapshot(self, task: TaskId, store: str, keys: int) -> None:
        self.keys += keys


def restored(
    cluster: KafkaLog,
    application: str,
    whole: SubTopology,
    rebuilt: RebuiltPartition,
    folder: Path,
    url: str | None,
) -> tuple[dict[str, list[tuple[bytes, bytes]]], int]:
    """Restore into an empty database; return the visible rows of each store, and the
    number of keys from a snapshot.
    """
    counts = PickedUp("app", "process")
    at = folder / f"restored-{rebuilt.task.subtopology}-{url is None}"
    at.mkdir()
    snapshots = None if url is None else Snapshots(url, application, at / "snapshots")
    restoring = Restores(
        cluster, lambda spec: f"{application}-{spec.name}-changelog", snapshots, counts
    )
    (at / "database").mkdir()
    with (
        closing(restoring),
        closing(Database(Rocks(at / "database"), whole.stores)) as database,
    ):
        restoring.add(rebuilt.task, whole.stores, database, {})
        while not restoring.finished():
            restoring.step()
        return {
            spec.name: visible(database, spec) for spec in whole.stores
        }, counts.keys


def visible(database: Database, spec: StoreSpec) -> list[tuple[bytes, bytes]]:
    """Return the rows of a store without expired ones, whose removal depends on the
    parts of a restore.
    """
    rows = list(database.scan(spec.name, range(256), None, None))
    if spec.kind not in layout.SEGMENTED:
        return rows
    newest = max(layout.time_of(spec.kind, key) for key, _ in rows)
    return [
        (key, value)
        for key, value in rows
        if layout.time_of(spec.kind, key) >= layout.horizon(spec, newest)
    ]
