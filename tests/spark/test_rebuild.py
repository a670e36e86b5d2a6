"""A rebuild in Spark has the same result as one without it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from coopstreams import StreamsBuilder, serdes
from coopstreams.admin.rebuild import Rebuilder, RebuildScope
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.spark import Options, backfill, publish, rebuild
from coopstreams.state import snapshot
from coopstreams.state.manifest import Manifest
from coopstreams.state.snapshot import fetch
from coopstreams.state.sst import read_sst
from coopstreams.state.storage import Storage
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.keys import KeyRange
from tests.broker.counting import Counting, await_table, metric
from tests.broker.reading import updates_of
from tests.conftest import Kafka
from tests.state.rows import places

pytestmark = pytest.mark.broker

KEYS = [f"key-{number}" for number in range(3000)]
EVERYWHERE = [(partition, group) for partition in range(3) for group in range(256)]


def rows(url: str, manifest: Manifest, folder: Path) -> dict[bytes, bytes]:
    place = Storage(url)
    return {
        key: value
        for file in manifest.files()
        for key, value in read_sst(
            fetch(place, manifest.application, file, folder).path
        )
    }


@pytest.mark.slow
def test_a_rebuild_in_spark_makes_the_snapshot_that_a_rebuild_alone_makes(
    kafka: Kafka, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, url = Counting.make(kafka, 3), str(tmp_path / "snapshots")
    written = counting.write(KEYS)
    with counting.app(tmp_path / "state") as app:
        await_table(app, written)
    settings: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap,
        "snapshots.dir": url,
    }
    monkeypatch.chdir(tmp_path)  # workers have another working directory
    made = rebuild(
        counting.topology, {**settings, "snapshots.dir": "snapshots"}, spark=spark
    )
    assert snapshot.load(url, counting.application) == made
    assert places(made.stores["counts"].slices) == EVERYWHERE
    alone_url = str(tmp_path / "alone")
    with closing(KafkaLog({"bootstrap.servers": kafka.bootstrap})) as cluster:
        rebuilder = Rebuilder(
            cluster, counting.topology, counting.application, alone_url
        )
        found = [
            each
            for rebuilt in rebuilder.to_rebuild(RebuildScope())
            for each in rebuilder.rebuild(rebuilt)["counts"]
        ]
        alone = rebuilder.publish({"counts": found})
    assert rows(url, made, tmp_path) == rows(alone_url, alone, tmp_path)

    written += counting.write(KEYS[:500])
    with counting.app(tmp_path / "state") as app:
        await_table(app, written)
    part = rebuild(
        counting.topology,
        settings,
        spark=spark,
        wanted=RebuildScope(["counts"], [0, 2], KeyRange.of_groups(0, 63)),
    )
    assert places(part.stores["counts"].slices) == EVERYWHERE
    assert {
        (each.partition, each.first)
        for each in part.stores["counts"].slices
        if any(part.run in file.name for file in each.files)
    } == {(partition, first) for partition in (0, 2) for first in range(0, 64, 8)}
    with counting.app(tmp_path / "new", snapshots_dir=url) as app:
        await_table(app, written)
        assert metric(app, "coopstreams_snapshot_keys_total") == len(KEYS)


@pytest.mark.slow
def test_from_the_command_line_it_needs_no_more_than_a_number_of_cores(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting, url = Counting.make(kafka, 2), str(tmp_path / "snapshots")
    written = counting.write(KEYS[:200])
    with counting.app(tmp_path / "state") as app:
        await_table(app, written)
    (tmp_path / "program.py").write_text(counting.program)
    command = [
        "-m",
        "coopstreams",
        "rebuild",
        str(tmp_path / "program.py"),
        "--snapshots",
        url,
        "--cores",
        "2",
    ]
    done = subprocess.run(
        [sys.executable, *command, "--bootstrap-servers", kafka.bootstrap],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "1 stores, 200 keys" in done.stdout


@pytest.mark.slow
def test_a_stopped_application_goes_on_under_another_id_with_state_from_its_source_topics(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    counting, url = Counting.make(kafka, 2), str(tmp_path / "snapshots")
    uncached: dict[str, Any] = {"statestore_cache_max_bytes": 0, "snapshots_dir": url}
    written = counting.write([*KEYS[:300], *KEYS[:200]])
    with counting.app(tmp_path / "state", **uncached) as app:
        await_table(app, written)
    builder = StreamsBuilder(kafka.unique("again"))
    builder.stream(
        counting.source, key=serdes.text, value=serdes.raw
    ).group_by_key().count(store="counts").to_stream().to(counting.sink)
    again = replace(
        counting, application=builder.build().application_id, topology=builder.build()
    )
    settings = {"bootstrap.servers": kafka.bootstrap}
    done = backfill(
        again.topology,
        settings,
        spark=spark,
        options=Options(ranges=2, snapshots=url, work=str(tmp_path / "work")),
    )
    publish(done, again.topology, settings)
    written += again.write(KEYS[100:350])
    with again.app(tmp_path / "state", **uncached) as app:
        await_table(app, written)
        assert metric(app, "coopstreams_snapshot_keys_total") == 300
    assert updates_of(kafka.bootstrap, counting.sink) == {
        key: list(range(1, count + 1)) for key, count in written.items()
    }


def test_without_a_place_nothing_is_begun(kafka: Kafka, spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"snapshots\.dir"):
        rebuild(
            Counting.make(kafka).topology,
            {"bootstrap.servers": "127.0.0.1:1"},
            spark=spark,
        )
