"""A running application publishes snapshots of itself on a real Kafka, and an empty host
begins with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coopstreams import CoopStreams
from coopstreams.query.client import QueryClient
from coopstreams.state import snapshot
from coopstreams.state.manifest import Manifest
from tests.broker.counting import Counting, await_running, await_table, metric
from tests.broker.test_snapshot_restore import FROM_SNAPSHOT, KEYS, REPLAYED
from tests.broker.waiting import eventually
from tests.conftest import Kafka
from tests.state.rows import places

pytestmark = pytest.mark.broker


def await_snapshot(
    counting: Counting,
    url: str,
    keys: int,
    behind: str = "",
) -> Manifest:
    """Return the first published snapshot with so many keys in all key groups."""
    found: list[Manifest] = []

    def complete() -> bool:
        manifest = snapshot.load(url, counting.application)
        if manifest is None or manifest.run <= behind:
            return False
        found.append(manifest)
        held = sum(file.entries for file in manifest.files())
        return held == keys and manifest.kind == "running"

    eventually(
        complete,
        120,
        lambda: f"{sum(file.entries for file in found[-1].files()) if found else None}",
    )
    return found[-1]


@pytest.mark.ci
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_an_empty_host_begins_with_what_the_running_processes_have_published(
    kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    counting = Counting.make(kafka, 2)
    url = str(tmp_path / "snapshots")
    settings: dict[str, Any] = {
        "processing_guarantee": guarantee,
        "commit_interval_ms": 100,
        "snapshots_dir": url,
        "snapshots_interval_ms": 1000,
    }

    def app(folder: str) -> CoopStreams:
        return counting.app(tmp_path / folder, **settings)

    written = counting.write(KEYS)
    with app("first") as first, app("second") as second:
        await_running([first, second])
        await_table(first, written)
        made = await_snapshot(counting, url, len(KEYS))
        assert places(made.stores["counts"].slices) == [
            (partition, group) for partition in (0, 1) for group in range(256)
        ]
        faults = [problem for _, problem in snapshot.verify(url, made) if problem]
        assert faults == []
        with QueryClient(str(first.url)) as client:
            told = client.status()["instances"]
        assert [bool(each["snapshot"]) for each in told] == [True, True]
        written += counting.write(KEYS[:200])
        await_table(first, written)
        await_snapshot(counting, url, len(KEYS), behind=made.run)
        kept = snapshot.runs(url, counting.application)
        eventually(
            lambda: len(snapshot.runs(url, counting.application)) <= 4,
            60,
            lambda: str(kept),
        )
    written += counting.write(KEYS[100:150])
    with counting.app(
        tmp_path / "new",
        processing_guarantee=guarantee,
        snapshots_dir=url,
    ) as new:
        await_table(new, written)
        assert metric(new, FROM_SNAPSHOT) == len(KEYS)
        assert metric(new, REPLAYED) < 2000
