"""State from the source topics again, of an application that is stopped: what its changelogs have wrong is made right.

    plan      where each key range stands, and where the changelogs end (`source_planning.py`)
    stages    those of the stores that are wanted, and those before them, over the records that are committed; tasks
              write differences
    end       nobody has run meanwhile; then a snapshot is published, if there is a storage for one

No offset moves: the application goes on exactly where it stopped, under the same id.

Invariant: what is written is the fold of what is committed; if that changed on the way, it is an error.
Turned down: another application id, whose state all begins at one position (everybody who knows the id would have to
learn another, and it would be all stores or nothing).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from coopstreams.admin.rebuild import Rebuilder, Wanted
from coopstreams.common.config import Config
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.spark.committed_positions import check_stopped
from coopstreams.spark.outbox import cluster_of, marks_topic
from coopstreams.spark.plan import Plan, Stage
from coopstreams.spark.preparing import as_planned, load_plan
from coopstreams.spark.repairing import Differences
from coopstreams.spark.running import OnProgress, carry_out, finished
from coopstreams.spark.session import session_or_local
from coopstreams.spark.source_planning import begin_rebuild, stands
from coopstreams.spark.task import TaskResult
from coopstreams.spark.unchanged import check_resumable
from coopstreams.state.manifest import Slice
from coopstreams.topology.errors import GroupError
from coopstreams.topology.graph.topology import Topology

WORK = "coopstreams-rebuild"
"""The folder in which a run leaves what is needed to go on with it."""


@dataclass(frozen=True, slots=True)
class RebuiltFromSource:
    """How a rebuild went. Shape: `stores` by name; in a dry run, what would have been written."""

    plan: Plan
    stores: Mapping[str, Differences]
    results: tuple[TaskResult, ...]


def rebuild_from_source(
    topology: Topology,
    settings: Config | Mapping[str, Any],
    *,
    spark: SparkSession | None = None,
    wanted: Wanted | None = None,
    ranges: int = 4,
    dry_run: bool = False,
    incomplete: bool = False,
    work: str = WORK,
    resume: str | None = None,
    on_stage: Callable[[Stage], None] | None = None,
    on_progress: OnProgress | None = None,
) -> RebuiltFromSource:
    """Make the changelogs of a stopped application what its source topics say; return how they differed.

    `wanted`: which stores, partitions and key groups; everything else stays as it is. `ranges`: key ranges of each
    partition, and so tasks; there are more where those of the application stand at different positions. `dry_run`:
    nothing is written. `incomplete`: also where sources have lost records; what they left in the state is lost, too.
    `work`, `resume`, `on_stage`, `on_progress`: as in `backfill`. With `snapshots.dir`, a snapshot is published as
    well.

    Raises:
        TopologyError, ConfigError, OffsetOutOfRangeError: found before anything runs.
        GroupError: the application runs, or has run meanwhile.
        LogError: Kafka refused something, or records that the plan counts on are gone.
        ProcessingError: a record failed and its handler says `fail`.
    """
    config = Config.of(settings, topology.application_id)
    plan = plan_rebuild(
        topology,
        config,
        wanted or Wanted(),
        ranges=ranges,
        dry_run=dry_run,
        incomplete=incomplete,
        work=work,
        resume=resume,
    )
    with session_or_local(spark, f"rebuild of {plan.application}") as session:
        return carry_out_rebuild(session, topology, config, plan, work, on_stage, on_progress)


def plan_rebuild(
    topology: Topology,
    config: Config,
    wanted: Wanted,
    *,
    ranges: int,
    dry_run: bool,
    incomplete: bool,
    work: str,
    resume: str | None,
) -> Plan:
    """Return the plan of a new run, or of the one that is resumed: then nothing else that is given counts, but for
    where it lies.
    """
    if resume is not None:
        plan = load_plan(work, resume, topology, config, rebuild=True)
        check_resumable(config, plan, finished=finished(plan, work))
        return plan
    return begin_rebuild(topology, config, wanted, ranges=ranges, dry_run=dry_run, incomplete=incomplete, work=work)


def carry_out_rebuild(
    spark: SparkSession,
    topology: Topology,
    config: Config,
    plan: Plan,
    work: str,
    on_stage: Callable[[Stage], None] | None = None,
    on_progress: OnProgress | None = None,
) -> RebuiltFromSource:
    """Run what a plan says and has not run yet; return how the changelogs differed.

    Raises:
        GroupError: the application runs, or has run since the plan was made.
        ProcessingError, LogError, ...: what a task raised; `resume` goes on where it failed.
    """
    with closing(cluster_of(config)) as cluster:
        _check_unmoved(config, cluster, plan)
        done = carry_out(spark, topology, config, plan, {}, work, on_stage, on_progress)
        _check_unmoved(config, cluster, plan)
        stores: dict[str, Differences] = {}
        slices: dict[str, list[Slice]] = defaultdict(list)
        for result in done.results:
            for store, found in result.differences.items():
                stores[store] = stores.get(store, Differences()) + found
            for store, made in result.slices.items():
                slices[store] += made
        if plan.snapshots is not None:
            Rebuilder(
                cluster, as_planned(topology, config, plan), config["application.id"], plan.snapshots, run=plan.run
            ).publish(slices)
        if plan.seed:
            cluster.delete_topics([marks_topic(plan.application, plan.run)])
    return RebuiltFromSource(plan, stores, done.results)


def _check_unmoved(config: Config, cluster: KafkaLog, plan: Plan) -> None:
    assert plan.rebuild is not None
    check_stopped(config)
    committed = plan.rebuild.committed
    if stands(config, cluster, {topic: len(partitions) for topic, partitions in committed.items()}) != committed:
        raise GroupError(
            f'"{config["application.id"]}" has run since run {plan.run} was planned: what was written is of an older '
            "state. Stop all instances and "
            "rebuild again, with a new run."
        )
