"""Rebuilds snapshots from changelogs, one Spark task per partition: `coopstreams
rebuild` on all cores or on a cluster.

Each task reads its changelog partitions itself and writes sorted files; only task
descriptions and results go through Spark.

Invariant: an attempt that fails or runs twice leaves files that no manifest mentions.
Turned down: records through a shuffle, sorted by key (two and a half times as slow,
measured: one task reads a whole changelog partition anyway).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from coopstreams.admin.rebuild import Rebuilder, RebuildScope, RebuiltPartition
from coopstreams.common.config import Config
from coopstreams.spark.outbox import cluster_of
from coopstreams.spark.spark_session import session_or_local
from coopstreams.spark.table_outputs import absolute
from coopstreams.spark.workers.shipping import Batches, plain_function
from coopstreams.state.manifest import Manifest, Slice
from coopstreams.tasks.resolved_topology import as_it_runs
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.graph.topology import Topology

_SLICES = msgspec.json.Decoder(dict[str, list[Slice]])
_MADE = pa.schema([("rebuilt", pa.int32()), ("made", pa.string())])


def rebuild(
    topology: Topology,
    settings: Config | Mapping[str, Any],
    *,
    spark: SparkSession | None = None,
    wanted: RebuildScope | None = None,
    afresh: bool = False,
) -> Manifest:
    """Make a snapshot at `snapshots.dir` from the changelogs and publish it; return its
    manifest.

    The application may run meanwhile. `wanted`: the stores, partitions and key groups;
    the published snapshot keeps the rest. `afresh`: do not start from the published
    snapshot. If `snapshots.dir` is a folder, all workers must share it.

    Raises:
        ConfigError: `snapshots.dir` is not set, or a store or partition does not exist.
        UnknownTopicError: the application has never run.
    """
    config = Config.of(settings, topology.application_id)
    if config["snapshots.dir"] is None:
        raise ConfigError("no storage is set for the snapshot: give snapshots.dir")
    url = absolute(config["snapshots.dir"])
    with closing(cluster_of(config)) as cluster:
        running = as_it_runs(topology, cluster.partitions(), config)
        rebuilder = Rebuilder(
            cluster,
            running,
            config["application.id"],
            url,
            afresh=afresh,
        )
        partitions = rebuilder.to_rebuild(wanted or RebuildScope())
        with session_or_local(
            spark,
            f"rebuild of {config['application.id']}",
        ) as session:
            found = _made(
                session,
                _Work(running, config, url, rebuilder.run, afresh, tuple(partitions)),
            )
        return rebuilder.publish(found)


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of all tasks of a rebuild, as sent to the workers.

    `url`: the storage of the snapshots. `run`: the name of the new snapshot. `afresh`:
    whether to read changelogs from their beginning, instead of starting from the
    published snapshot.
    """

    topology: Topology
    config: Config
    url: str
    run: str
    afresh: bool
    partitions: tuple[RebuiltPartition, ...]

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Rebuild the partitions whose numbers the rows have; yield a row with the
        slices of each.
        """
        application = self.config["application.id"]
        with closing(cluster_of(self.config)) as cluster:
            rebuilder = Rebuilder(
                cluster,
                self.topology,
                application,
                self.url,
                afresh=self.afresh,
                run=self.run,
            )
            for number in (
                number for batch in batches for number in batch.column(0).to_pylist()
            ):
                made = rebuilder.rebuild(self.partitions[number])
                yield pa.RecordBatch.from_pydict(
                    {"rebuilt": [number], "made": [msgspec.json.encode(made).decode()]},
                    _MADE,
                )


def _made(spark: SparkSession, work: _Work) -> dict[str, list[Slice]]:
    """Rebuild all partitions in Spark; return their slices, by store."""
    if not work.partitions:
        return {}
    rows = spark.createDataFrame(
        [(number,) for number in range(len(work.partitions))],
        "rebuilt int",
    )
    answers = (
        rows.repartitionById(len(work.partitions), "rebuilt")
        .mapInArrow(plain_function(work), "rebuilt int, made string")
        .collect()
    )
    if sorted(row.rebuilt for row in answers) != list(range(len(work.partitions))):
        raise RuntimeError(
            f"of {len(work.partitions)} partitions Spark answered for {len(answers)}: the run {work.run} is of no use"
        )
    found: dict[str, list[Slice]] = {}
    for row in answers:
        for store, slices in _SLICES.decode(row.made).items():
            found.setdefault(store, []).extend(slices)
    return found
