"""A live application and a snapshot that is damaged, of something else, or slow to come: its table is right all the
same, and it says what was wrong.

On a real Kafka. Each test has a copy of one snapshot to spoil.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from coopstreams.log.kafka.log import KafkaLog
from coopstreams.query.client import QueryClient
from coopstreams.state import snapshot, snapshot_download
from coopstreams.state.manifest import Manifest, StoreSlices
from coopstreams.state.snapshot_download import AT_ONCE
from tests.broker.counting import Counting, await_running, await_table, groups_on_disk, groups_owned, metric
from tests.broker.test_snapshot_restore import EXACTLY, FROM_SNAPSHOT, REPLAYED, ran, rebuilt
from tests.broker.waiting import eventually
from tests.conftest import Kafka
from tests.state.held import gate

pytestmark = pytest.mark.broker

KEYS = [f"key-{number}" for number in range(1000)]
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still is no storage that is silent."""
    monkeypatch.setattr(snapshot_download, "PATIENCE_S", 3600.0)


@dataclass(frozen=True, slots=True)
class Published:
    """An application of two partitions with a snapshot of all it has counted."""

    counting: Counting
    url: str
    manifest: Manifest
    written: Counter[str]

    def copied(self, folder: Path) -> str:
        """Return the storage of a copy."""
        return str(shutil.copytree(self.url, folder / "snapshots"))

    @property
    def folder(self) -> str:
        """The application's folder in a storage."""
        return self.counting.application


@pytest.fixture(scope="module")
def published(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Published:
    folder, counting = tmp_path_factory.mktemp("published"), Counting.make(kafka, 2)
    written = ran(counting, folder / "first", KEYS)
    cluster = KafkaLog({"bootstrap.servers": kafka.bootstrap})
    manifest, _ = rebuilt(cluster, counting, str(folder / "snapshots"))
    cluster.close()
    return Published(counting, str(folder / "snapshots"), manifest, written)


def flip(published: Published, url: str) -> None:
    path = Path(url, published.folder, next(published.manifest.files()).name)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def remove(published: Published, url: str) -> None:
    Path(url, published.folder, next(published.manifest.files()).name).unlink()


def republish(published: Published, url: str, **changes: Any) -> None:
    """Publish it as one that was made of something else."""
    store: StoreSlices = replace(published.manifest.stores["counts"], **changes)
    snapshot.publish(url, replace(published.manifest, stores={"counts": store}))


def rewrite(published: Published, url: str, change: Callable[[bytes], bytes]) -> None:
    path = Path(url, published.folder, published.manifest.run, snapshot.MANIFEST)
    data = path.read_bytes()
    assert change(data) != data
    path.write_bytes(change(data))


def newer(data: bytes) -> bytes:
    return data.replace(b'"format": 1', b'"format": 2')


DAMAGES: dict[str, tuple[Callable[[Published, str], None], str, bool]] = {
    "flipped byte": (flip, "is damaged", True),
    "missing file": (remove, "is missing", True),
    "topic made anew": (lambda published, url: republish(published, url, topic_id="another"), "was made anew", False),
    "other partitions": (
        lambda published, url: republish(published, url, partitions=3),
        "had 3 partitions then and has 2 now",
        False,
    ),
    "another topology": (
        lambda published, url: republish(published, url, shape="window of 1000 ms"),
        "it was made by another topology",
        False,
    ),
    "newer format": (
        lambda published, url: rewrite(published, url, newer),
        "it has format 2, this coopstreams knows up to 1: upgrade coopstreams",
        False,
    ),
    "truncated manifest": (
        lambda published, url: rewrite(published, url, lambda data: data[:-100]),
        "it is no manifest",
        False,
    ),
    "empty manifest": (lambda published, url: rewrite(published, url, lambda data: b""), "it is no manifest", False),
}


@pytest.mark.parametrize(
    ("spoil", "words", "some"),
    [
        # What is refused in which words, `tests/state/test_snapshot_restore.py` shows.
        pytest.param(
            *DAMAGES[name], id=name, marks=[pytest.mark.slow] * (name not in ("flipped byte", "topic made anew"))
        )
        for name in DAMAGES
    ],
)
def test_what_is_wrong_with_a_snapshot_is_said_and_the_changelog_read(
    spoil: Callable[[Published, str], None],
    words: str,
    some: bool,
    published: Published,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url, lost = published.copied(tmp_path), next(published.manifest.files()).entries
    spoil(published, url)
    with (
        caplog.at_level(logging.WARNING),
        published.counting.app(tmp_path / "state", snapshots_dir=url, **EXACTLY) as app,
    ):
        await_table(app, published.written)
        assert metric(app, FROM_SNAPSHOT) == (len(KEYS) - lost if some else 0)
        assert metric(app, REPLAYED) >= lost
    assert words in caplog.text
    assert "The changelog restores" in caplog.text


def test_one_partition_runs_while_the_other_is_fetched_and_a_stop_waits_for_no_place(
    published: Published, tmp_path: Path
) -> None:
    url, state = published.copied(tmp_path), tmp_path / "state"
    slices = tuple(each for each in published.manifest.stores["counts"].slices if each.partition == 0)
    republish(published, url, slices=slices)
    with gate(url) as held:
        with published.counting.app(state, snapshots_dir=f"held://{url}", **EXACTLY) as app:
            eventually(
                lambda: states(app) == ["restoring", "running"] and len(held.held) == AT_ONCE,
                60,
                lambda: str(states(app)),
            )
            (waits,) = reports(app)[0]["download"]
            total = sum(file.bytes for each in slices for file in each.files)
            assert (waits["store"], waits["total_bytes"]) == ("counts", total)
            assert 0 < waits["fetched_bytes"] < total
            came, to_come = "coopstreams_fetched_bytes_total", "coopstreams_fetch_remaining_bytes"
            eventually(
                lambda: 0 < metric(app, came) == total - metric(app, to_come),
                60,
                lambda: f"{metric(app, came)} of {total} are counted",
            )
            with QueryClient(str(app.url)) as client:
                messages = [
                    reason["message"] for instance in client.status()["instances"] for reason in instance["reasons"]
                ]
            assert any("its state to be restored from a snapshot" in message for message in messages)
        assert not held.opened.is_set(), "it has stopped, and the storage has not answered"
        assert files(state) == []
    with published.counting.app(state, snapshots_dir=url, **EXACTLY) as app:
        await_table(app, published.written)
        assert metric(app, FROM_SNAPSHOT) == sum(file.entries for each in slices for file in each.files)


@pytest.mark.slow
def test_ranges_that_move_away_while_they_are_fetched_leave_nothing_behind(
    published: Published, tmp_path: Path
) -> None:
    url = published.copied(tmp_path)
    shared: dict[str, Any] = {"ranges_per_partition": 2, **EXACTLY}
    with gate(url) as held, published.counting.app(tmp_path / "slow", snapshots_dir=f"held://{url}", **shared) as slow:
        eventually(
            lambda: states(slow) == ["restoring"] * 4 and len(held.held) == AT_ONCE, 60, lambda: str(states(slow))
        )
        with published.counting.app(tmp_path / "quick", snapshots_dir=url, **shared) as quick:
            eventually(lambda: states(quick) == ["running"] * 2, 60, lambda: f"{states(slow)}, {states(quick)}")
            eventually(lambda: states(slow) == ["restoring"] * 2, 60, lambda: str(states(slow)))
            held.opened.set()
            await_running([slow, quick])
            await_table(slow, published.written)
            assert sum((groups_on_disk(app) for app in (slow, quick)), Counter()).total() == len(KEYS)
            assert all(set(groups_on_disk(app)) <= groups_owned(app) for app in (slow, quick))
            assert metric(slow, REPLAYED) == metric(quick, REPLAYED) == 0
    assert files(tmp_path / "slow") == []


@pytest.mark.slow
def test_a_snapshot_that_is_deleted_while_it_is_fetched_is_replayed_around(
    published: Published, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = published.copied(tmp_path)
    with (
        caplog.at_level(logging.WARNING),
        gate(url) as held,
        published.counting.app(tmp_path / "state", snapshots_dir=f"held://{url}", **EXACTLY) as app,
    ):
        eventually(lambda: len(held.held) == AT_ONCE, 60, lambda: str(held.held))
        snapshot.publish(url, replace(published.manifest, run=snapshot.new_run(), stores={}))
        assert len(snapshot.sweep(url, published.folder)) > AT_ONCE
        held.opened.set()
        await_table(app, published.written)
        assert metric(app, FROM_SNAPSHOT) == entries_of(published, held.held)
    assert "is missing. The changelog restores them." in caplog.text


def test_a_place_that_never_answers_is_called_off_and_the_changelog_read(
    published: Published, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = published.copied(tmp_path)
    monkeypatch.setattr(snapshot_download, "PATIENCE_S", 1.0)
    with (
        caplog.at_level(logging.WARNING),
        gate(url),
        published.counting.app(tmp_path / "state", snapshots_dir=f"held://{url}", **EXACTLY) as app,
    ):
        await_table(app, published.written)
        assert (metric(app, FROM_SNAPSHOT), metric(app, REPLAYED) >= len(KEYS)) == (0, True)
    assert "no byte has come for 1 s" in caplog.text


@pytest.mark.slow
def test_a_snapshot_is_trusted_as_long_as_the_changelog_is_set_to_keep_tombstones(
    kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counting, url = Counting.make(kafka), str(tmp_path / "snapshots")
    written = ran(counting, tmp_path / "first", KEYS[:100])
    with closing(KafkaLog({"bootstrap.servers": kafka.bootstrap})) as cluster:
        made, _ = rebuilt(cluster, counting, url)
        store = made.stores["counts"]
        slices = tuple(replace(each, true_ms=each.true_ms - 60 * HOUR_MS) for each in store.slices)
        snapshot.publish(url, replace(made, stores={"counts": replace(store, slices=slices)}))
        with caplog.at_level(logging.WARNING), counting.app(tmp_path / "second", snapshots_dir=url, **EXACTLY) as app:
            await_table(app, written)
            assert metric(app, FROM_SNAPSHOT) == 0
        assert "older than the changelog keeps tombstones" in caplog.text
        kafka.configure(counting.changelog, delete_retention_ms=str(72 * HOUR_MS))
        eventually(
            lambda: cluster.topic_config(counting.changelog)["delete.retention.ms"] == str(72 * HOUR_MS),
            60,
            lambda: "it is not set",
        )
    with counting.app(tmp_path / "third", snapshots_dir=url, **EXACTLY) as app:
        await_table(app, written)
        assert (metric(app, FROM_SNAPSHOT), metric(app, REPLAYED)) == (100, 0)


def reports(app: Any) -> list[dict[str, Any]]:
    """Return what an instance says of its tasks."""
    status = app.status()
    return sorted(status["tasks"], key=lambda task: str(task["state"])) if status else []


def states(app: Any) -> list[str]:
    return [task["state"] for task in reports(app)]


def files(folder: Path) -> list[Path]:
    """Return what is left of files on their way into databases."""
    return [path for path in folder.rglob("snapshots/**/*") if path.is_file()]


def entries_of(published: Published, names: list[str]) -> int:
    return sum(file.entries for file in published.manifest.files() if any(name.endswith(file.name) for name in names))
