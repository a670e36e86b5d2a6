"""Restores of key ranges: a range has only its own keys, and a range that moves away
leaves none behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coopstreams.topology.keys import key_group, key_hash
from tests.broker.counting import (
    Counting,
    await_running,
    await_table,
    groups_on_disk,
    groups_owned,
    metric,
)
from tests.conftest import Kafka
from tests.state.sqlite_engine import NAME

pytestmark = pytest.mark.broker

KEYS = [f"key-{number}" for number in range(8000)]
EXACTLY = "exactly_once_v2"


def groups_of(keys: list[str]) -> dict[int, int]:
    found: dict[int, int] = {}
    for key in keys:
        group = key_group(key_hash(key.encode()))
        found[group] = found.get(group, 0) + 1
    return found


def test_a_range_that_moves_leaves_no_key_behind(kafka: Kafka, tmp_path: Path) -> None:
    counting = Counting.make(kafka)
    written = counting.write(KEYS)
    settings: dict[str, Any] = {
        "ranges_per_partition": 8,
        "processing_guarantee": EXACTLY,
    }
    with counting.app(tmp_path, 0, **settings) as stays:
        await_table(stays, written)
        with counting.app(tmp_path, 1, **settings) as comes:
            await_running([stays, comes])
            for app in (stays, comes):
                assert len(groups_owned(app)) == 128
                assert groups_on_disk(app) == {
                    group: count
                    for group, count in groups_of(KEYS).items()
                    if group in groups_owned(app)
                }
            written += counting.write(KEYS[::3])
            await_table(comes, written)
        await_running([stays])
        assert groups_on_disk(stays) == groups_of(KEYS)
        await_table(stays, written)


@pytest.mark.slow
def test_stores_in_memory_are_shared_by_threads_and_restored_at_every_start(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    written = counting.write(KEYS * 2)
    settings: dict[str, Any] = {
        "default_dsl_store": "in_memory",
        "num_stream_threads": 3,
        "processing_guarantee": EXACTLY,
    }
    with counting.app(tmp_path, 0, **settings) as stays:
        await_table(stays, written)
        with counting.app(tmp_path, 1, **settings) as comes:
            await_running([stays, comes])
            written += counting.write(KEYS[::3])
            await_table(comes, written)
            assert metric(comes, "coopstreams_restored_records_total") > 0
        await_table(stays, written)
    with counting.app(tmp_path, 0, **settings) as again:
        await_table(again, written)
        assert metric(again, "coopstreams_restored_records_total") >= len(KEYS)
    assert not list(tmp_path.rglob("*.sst"))
    assert not list(tmp_path.rglob("CURRENT"))


@pytest.mark.ci
def test_a_damaged_database_is_made_anew_from_its_changelog(
    kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counting = Counting.make(kafka)
    written = counting.write(KEYS)
    with counting.app(tmp_path, processing_guarantee=EXACTLY) as app:
        await_table(app, written)
    folder = tmp_path / counting.application / "instance-0" / "0_0"
    damaged = list(folder.glob("*.sst"))
    assert damaged, sorted(path.name for path in folder.iterdir())
    for path in damaged:
        path.write_bytes(b"\xff" * max(1, path.stat().st_size))
    written += counting.write(KEYS[:10])
    with counting.app(tmp_path, processing_guarantee=EXACTLY) as app:
        await_table(app, written)
    assert "Deleting it" in caplog.text


@pytest.mark.ci
def test_stores_may_all_be_in_an_engine_of_the_users(
    kafka: Kafka, tmp_path: Path
) -> None:
    """Stores of several engines in one task: `tests/state/test_mixed_engines.py`."""
    counting = Counting.make(kafka)
    written = counting.write(KEYS[:200])
    for _ in range(2):
        with counting.app(tmp_path, default_dsl_store=NAME) as app:
            await_table(app, written)
        written += counting.write(KEYS[:100])
    assert not list(tmp_path.rglob("CURRENT")), "nothing of it is in RocksDB"
