"""A live application and a snapshot that is damaged, of something else, or slow to come: its table is right all the
same, and it says what was wrong.

On a real Kafka. Each test has a copy of one snapshot to spoil.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from coopstreams.log.kafka.log import KafkaLog
from coopstreams.query.client import QueryClient
from coopstreams.state import snapshot, snapshot_download
from coopstreams.state.manifest import Manifest, StoreSlices
from coopstreams.state.snapshot_download import AT_ONCE
from tests.broker.counting import Counting, await_table, metric
from tests.broker.test_snapshot_restore import EXACTLY, FROM_SNAPSHOT, REPLAYED, ran, rebuilt
from tests.broker.waiting import eventually
from tests.conftest import Kafka
from tests.state.held import gate

pytestmark = pytest.mark.broker

KEYS = [f"key-{number}" for number in range(1000)]


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


def republish(published: Published, url: str, **changes: Any) -> None:
    """Publish it as one that was made of something else."""
    store: StoreSlices = replace(published.manifest.stores["counts"], **changes)
    snapshot.publish(url, replace(published.manifest, stores={"counts": store}))


# What is refused in which words, `tests/state/test_snapshot_restore.py` shows.
@pytest.mark.parametrize(
    ("spoil", "words", "some"),
    [
        pytest.param(flip, "is damaged", True, id="flipped byte"),
        pytest.param(
            lambda published, url: republish(published, url, topic_id="another"),
            "was made anew",
            False,
            id="topic made anew",
        ),
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


def reports(app: Any) -> list[dict[str, Any]]:
    """Return what an instance says of its tasks."""
    status = app.status()
    return sorted(status["tasks"], key=lambda task: str(task["state"])) if status else []


def states(app: Any) -> list[str]:
    return [task["state"] for task in reports(app)]


def files(folder: Path) -> list[Path]:
    """Return what is left of files on their way into databases."""
    return [path for path in folder.rglob("snapshots/**/*") if path.is_file()]
