"""`coopstreams rebuild --from source`: what was asked for, carried out in Spark, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from coopstreams.admin.rebuild import Wanted
from coopstreams.commands.task_bars import TaskBars
from coopstreams.common.config import Config
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.graph.topology import Topology

if TYPE_CHECKING:
    from coopstreams.spark.plan import Stage
    from coopstreams.spark.source_rebuild import RebuiltFromSource


@dataclass(frozen=True, slots=True)
class SourceRebuildRequest:
    """What was typed."""

    wanted: Wanted
    ranges: int
    dry_run: bool
    incomplete: bool
    work: str | None
    resume: str | None
    cores: str


def from_source(topology: Topology, config: Config, request: SourceRebuildRequest) -> None:
    """Make the changelogs what the source topics say, and print how they differed.

    Raises:
        ConfigError: there is no Spark; or see `rebuild_from_source`.
    """
    try:
        from coopstreams.spark.session import session_or_local
        from coopstreams.spark.source_rebuild import WORK, carry_out_rebuild, plan_rebuild
    except ImportError as error:
        raise ConfigError(f'--from source needs Spark: pip install "coopstreams[spark]" ({error})') from error
    work = request.work or WORK
    plan = plan_rebuild(
        topology,
        config,
        request.wanted,
        ranges=request.ranges,
        dry_run=request.dry_run,
        incomplete=request.incomplete,
        work=work,
        resume=request.resume,
    )
    typer.echo(str(plan))
    with session_or_local(None, f"rebuild of {plan.application}", cores=request.cores) as spark, TaskBars(Console()) as bars:
        done = carry_out_rebuild(spark, topology, config, plan, work, _say, bars.show)
    _report(done)


def _say(stage: Stage) -> None:
    typer.echo(f"{stage.name}: {len(stage.running)} tasks")


def _report(done: RebuiltFromSource) -> None:
    for store, differences in done.stores.items():
        typer.echo(f"store {store}: {differences}")
    if not done.plan.seed:
        typer.echo("a dry run: nothing was written")
    elif done.plan.snapshots is not None:
        typer.echo(f"snapshot {done.plan.run} is published")
