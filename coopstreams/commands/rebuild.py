"""`coopstreams rebuild`: makes a snapshot from the changelogs; with `--from source`,
corrects the changelogs.

Relies on: `admin.rebuild` and `spark.source_rebuild` (do the work).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import (
    TYPE_CHECKING,
    Annotated,
    Literal,
    TypeAlias,
)

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from coopstreams.admin.rebuild import (
    WORK,
    Rebuilder,
    RebuildScope,
    RebuiltPartition,
    SourceOptions,
)
from coopstreams.commands.command_settings import (
    Brokers,
    Pairs,
    SettingsFile,
    SnapshotsUrl,
    Target,
    Verbose,
    configure_logging,
    loaded,
    storage_for,
)
from coopstreams.commands.snapshots import megabytes
from coopstreams.commands.terminal.resume_command import resume_command, saying
from coopstreams.commands.terminal.task_bars import TaskBars, say_stage
from coopstreams.common.config import Config
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.state.manifest import Manifest, Slice
from coopstreams.tasks.lifecycle import RestoreListener
from coopstreams.tasks.resolved_topology import as_it_runs
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import GROUPS, KeyRange

if TYPE_CHECKING:
    from coopstreams.spark.source_rebuild import RebuiltFromSource

From: TypeAlias = Annotated[
    Literal["changelog", "source"],
    typer.Option(
        "--from",
        help="Rebuild from the changelogs, or from the source topics; for the latter, stop the application.",
    ),
]


def rebuild(  # noqa: PLR0913
    target: Target,
    from_: From = "changelog",
    snapshots: SnapshotsUrl = None,
    bootstrap_servers: Brokers = None,
    store: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only this store; may be repeated. Default: all.",
        ),
    ] = None,
    partitions: Annotated[
        str | None,
        typer.Option(metavar="0,3", help="Only these partitions. Default: all."),
    ] = None,
    groups: Annotated[
        str,
        typer.Option(
            metavar="FIRST-LAST",
            help="Only these key groups, both inclusive; widened to whole slices of eight.",
        ),
    ] = "0-255",
    afresh: Annotated[
        bool,
        typer.Option(
            help="Read the changelogs from their beginning, not from where the published snapshot ends."
        ),
    ] = False,
    cores: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Partitions side by side, in Spark on so many cores; * is all. Default: one by one, without Spark; "
            "all, from the source.",
        ),
    ] = None,
    ranges: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            metavar="N",
            help="From the source: key ranges of each partition.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="From the source: report how the changelogs differ; write nothing.",
        ),
    ] = False,
    incomplete: Annotated[
        bool,
        typer.Option(
            "--incomplete",
            help="From the source: rebuild although topics have lost records.",
        ),
    ] = False,
    work: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="From the source: the folder for records between stages.",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="From the source: resume a run that has not finished.",
        ),
    ] = None,
    config: SettingsFile = None,
    set_: Pairs = None,
    verbose: Verbose = False,
) -> None:
    """Make a snapshot from the changelogs and publish it; the application may run
    meanwhile, and is not disturbed.

    Parts that are not rebuilt are kept from the published snapshot. Run it from time to
    time: each run reads only the records since the last one.

    With --from source, recompute the changelogs of a stopped application from its
    source topics, by Spark. No offset moves.
    """
    configure_logging(verbose)
    named = {"bootstrap.servers": bootstrap_servers, "snapshots.dir": snapshots}
    topology, checked = loaded(target, config, set_, named)
    wanted = RebuildScope(store or None, _numbers(partitions), _key_range(groups))
    if from_ == "source":
        if afresh:
            raise ConfigError(
                "--afresh is for a rebuild from the changelogs; from the source there is no other"
            )
        from_source(
            topology,
            checked,
            wanted,
            SourceOptions(ranges, dry_run, incomplete, work or WORK, resume),
            cores=cores or "*",
            again=lambda run: resume_command(
                "rebuild --from source",
                target,
                run,
                work,
                bootstrap_servers,
                config,
                set_,
            ),
        )
        return
    if (ranges, work, resume) != (None, None, None) or dry_run or incomplete:
        raise ConfigError(
            "--ranges, --dry-run, --incomplete, --work and --resume are for a rebuild from the source: add --from "
            "source"
        )
    storage_for("snapshot", checked)
    manifest = (
        _alone(topology, checked, wanted, afresh=afresh)
        if cores is None
        else _in_spark(topology, checked, wanted, cores, afresh=afresh)
    )
    files = list(manifest.files())
    typer.echo(
        f"{manifest.run} is published: {len(manifest.stores)} stores, {sum(file.entries for file in files):,} keys, "
        f"{megabytes(files)} in {len(files)} files"
    )


def _alone(
    topology: Topology,
    config: Config,
    wanted: RebuildScope,
    *,
    afresh: bool,
) -> Manifest:
    with closing(
        KafkaLog(config.client, timeout_s=config["connect.timeout.ms"] / 1000)
    ) as cluster:
        running = as_it_runs(topology, cluster.partitions(), config)
        rebuilder = Rebuilder(
            cluster,
            running,
            config["application.id"],
            config["snapshots.dir"],
            afresh=afresh,
        )
        return rebuilder.publish(_rebuilt(rebuilder, rebuilder.to_rebuild(wanted)))


def _in_spark(
    topology: Topology,
    config: Config,
    wanted: RebuildScope,
    cores: str,
    *,
    afresh: bool,
) -> Manifest:
    try:
        from coopstreams.spark import rebuild as rebuild_in_spark
        from coopstreams.spark.spark_session import session_or_local
    except ImportError as error:
        raise ConfigError(
            f'--cores needs Spark: pip install "coopstreams[spark]" ({error})'
        ) from error
    with session_or_local(
        None,
        f"rebuild of {config['application.id']}",
        {"spark.ui.showConsoleProgress": "true"},
        cores=cores,
    ) as spark:
        return rebuild_in_spark(
            topology,
            config,
            spark=spark,
            wanted=wanted,
            afresh=afresh,
        )


def _rebuilt(
    rebuilder: Rebuilder,
    partitions: Iterable[RebuiltPartition],
) -> dict[str, list[Slice]]:
    """Rebuild the partitions one by one, with a bar for each; return the slices by
    store.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    found: dict[str, list[Slice]] = {}
    with Progress(*columns, console=Console(stderr=True)) as bars:
        for rebuilt in partitions:
            bar = bars.add_task(
                f"{rebuilt.task} {', '.join(rebuilt.stores)}",
                total=None,
            )
            for name, slices in rebuilder.rebuild(rebuilt, _Bar(bars, bar)).items():
                found.setdefault(name, []).extend(slices)
            done = bars.tasks[-1].total or 1
            bars.update(bar, total=done, completed=done)
    return found


class _Bar(RestoreListener):
    """A progress bar of the offsets that are read in all changelogs of one partition of
    a sub-topology.
    """

    def __init__(self, bars: Progress, bar: TaskID) -> None:
        self._bars = bars
        self._bar = bar
        self._start: dict[TopicPartition, int] = {}
        self._read: dict[TopicPartition, int] = {}

    def on_restore_start(
        self,
        partition: TopicPartition,
        store: str,  # noqa: ARG002
        start: int,
        end: int,
    ) -> None:
        self._start[partition] = start
        self._bars.update(
            self._bar,
            total=(self._bars.tasks[-1].total or 0) + end - start,
        )

    def on_batch_restored(
        self,
        partition: TopicPartition,
        store: str,  # noqa: ARG002
        position: int,
        records: int,  # noqa: ARG002
    ) -> None:
        self._read[partition] = position - self._start[partition]
        self._bars.update(self._bar, completed=sum(self._read.values()))


def _numbers(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--partitions {text}: write numbers with commas between them, as 0,3"
        ) from None


def _key_range(text: str) -> KeyRange:
    first, _, last = text.partition("-")
    if not (
        first.isdecimal() and last.isdecimal() and 0 <= int(first) <= int(last) < GROUPS
    ):
        raise ConfigError(f"--groups {text}: write FIRST-LAST within 0-{GROUPS - 1}")
    return KeyRange.of_groups(int(first), int(last))


def from_source(
    topology: Topology,
    config: Config,
    wanted: RebuildScope,
    options: SourceOptions,
    *,
    cores: str,
    again: Callable[[str], str],
) -> None:
    """Correct the changelogs by the source topics, and print how they differed.

    `again`: returns the command that resumes a run.

    Raises:
        ConfigError: Spark is not installed; or see `rebuild_from_source`.
    """
    try:
        from coopstreams.spark.source_rebuild import carry_out_rebuild, plan_rebuild
        from coopstreams.spark.spark_session import session_or_local
    except ImportError as error:
        raise ConfigError(
            f'--from source needs Spark: pip install "coopstreams[spark]" ({error})'
        ) from error
    plan = plan_rebuild(topology, config, wanted, options)
    typer.echo(str(plan))
    with (
        saying(again(plan.run)),
        session_or_local(None, f"rebuild of {plan.application}", cores=cores) as spark,
        TaskBars(Console()) as bars,
    ):
        done = carry_out_rebuild(
            spark,
            topology,
            config,
            plan,
            options.work,
            say_stage,
            bars.show,
        )
    _report(done)


def _report(done: RebuiltFromSource) -> None:
    for store, differences in done.stores.items():
        expired = sum(result.expired.get(store, 0) for result in done.results)
        left_out = f", {expired} left out: they had expired" if expired else ""
        typer.echo(f"store {store}: {differences}{left_out}")
    if not done.plan.seed:
        typer.echo("a dry run: nothing was written")
    elif done.plan.snapshots is not None:
        typer.echo(f"snapshot {done.plan.run} is published")
