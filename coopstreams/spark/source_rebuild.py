"""Rebuilds state of a stopped application from its source topics: corrects its
changelogs where they differ.

    plan      the positions of the key ranges, and the ends of the changelogs (`source_plan.py`)
    stages    those of the wanted stores and those before them, over the committed records; tasks write differences
    end       check that the application has not run meanwhile; publish a snapshot, if a storage is set

No offset moves: the application continues exactly where it stopped, under the same id.

Invariant: the written state is the fold of the committed records; if commits change
during the run, it fails. Turned down: another application id, whose state all begins at
one position (every user of the id would have to learn another, and all stores would
have to be rebuilt at once).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from coopstreams.admin.rebuild import (
    WORK,
    Rebuilder,
    RebuildScope,
    SourceOptions,
)
from coopstreams.common.config import Config
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.spark.changelog_repair import Differences
from coopstreams.spark.committed_positions import check_stopped
from coopstreams.spark.execution import (
    OnProgress,
    carry_out,
    named,
    taken_up,
)
from coopstreams.spark.outbox import cluster_of
from coopstreams.spark.plan import Plan, Stage
from coopstreams.spark.preparation import as_planned
from coopstreams.spark.source_plan import begin_rebuild, stands
from coopstreams.spark.spark_session import session_or_local
from coopstreams.spark.spark_task import TaskResult
from coopstreams.state.manifest import Slice
from coopstreams.topology.errors import GroupError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import marks_topic


@dataclass(frozen=True, slots=True)
class RebuiltFromSource:
    """The result of a rebuild. `stores` has the differences by store; in a dry run,
    those that would have been written.
    """

    plan: Plan
    stores: Mapping[str, Differences]
    results: tuple[TaskResult, ...]


def rebuild_from_source(  # noqa: PLR0913
    topology: Topology,
    settings: Config | Mapping[str, Any],
    *,
    spark: SparkSession | None = None,
    wanted: RebuildScope | None = None,
    ranges: int | None = None,
    dry_run: bool = False,
    incomplete: bool = False,
    work: str = WORK,
    resume: str | None = None,
    on_stage: Callable[[Stage], None] | None = None,
    on_progress: OnProgress | None = None,
) -> RebuiltFromSource:
    """Correct the changelogs of a stopped application by its source topics; return how
    they differed.

    `wanted`: the stores, partitions and key groups; everything else stays as it is.
    `ranges`: key ranges of each partition, and so tasks; None: as in `backfill`. There
    are more where key ranges of the application have different positions. `dry_run`:
    nothing is written. `incomplete`: rebuild although sources have lost records; their
    effect on the state is lost, too. `work`, `resume`, `on_stage`, `on_progress`: as in
    `backfill`. With `snapshots.dir`, a snapshot is published as well.

    Raises:
        TopologyError, ConfigError, OffsetOutOfRangeError: found before anything runs.
        GroupError: the application runs, or has run meanwhile.
        LogError: Kafka refused a request, or records of the plan are gone.
        ProcessingError: a record failed and its handler says `fail`.
    """
    config = Config.of(settings, topology.application_id)
    options = SourceOptions(ranges, dry_run, incomplete, work, resume)
    plan = plan_rebuild(topology, config, wanted or RebuildScope(), options)
    with (
        named(plan, work),
        session_or_local(spark, f"rebuild of {plan.application}") as session,
    ):
        return carry_out_rebuild(
            session,
            topology,
            config,
            plan,
            work,
            on_stage,
            on_progress,
        )


def plan_rebuild(
    topology: Topology,
    config: Config,
    wanted: RebuildScope,
    options: SourceOptions,
) -> Plan:
    """Return the plan of a new run, or of the resumed run."""
    if options.resume is not None:
        return taken_up(topology, config, options.work, options.resume, rebuild=True)
    return begin_rebuild(topology, config, wanted, options)


def carry_out_rebuild(
    spark: SparkSession,
    topology: Topology,
    config: Config,
    plan: Plan,
    work: str,
    on_stage: Callable[[Stage], None] | None = None,
    on_progress: OnProgress | None = None,
) -> RebuiltFromSource:
    """Run the stages of a plan that have not run yet; return how the changelogs
    differed.

    Raises:
        GroupError: the application runs, or has run since the plan was made.
        ProcessingError, LogError, ...: the error of a task; `resume` continues where it
        failed.
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
                cluster,
                as_planned(topology, config, plan),
                config["application.id"],
                plan.snapshots,
                run=plan.run,
            ).publish(slices)
        if plan.seed:
            cluster.delete_topics([marks_topic(plan.application, plan.run)])
    return RebuiltFromSource(plan, stores, done.results)


def _check_unmoved(
    config: Config,
    cluster: KafkaLog,
    plan: Plan,
) -> None:
    assert plan.rebuild is not None
    check_stopped(config)
    committed = plan.rebuild.committed
    if (
        stands(
            config,
            cluster,
            {topic: len(partitions) for topic, partitions in committed.items()},
        )
        != committed
    ):
        raise GroupError(
            f'"{config["application.id"]}" has run since run {plan.run} was planned: what was written is of an older '
            "state. Stop all instances and "
            "rebuild again, with a new run."
        )
