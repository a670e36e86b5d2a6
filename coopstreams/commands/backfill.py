"""`coopstreams backfill`: runs a topology over the history of its source topics, in
Spark.

Relies on: `spark.preparation`, `spark.execution` and `spark.publication` (do the work).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import (
    TYPE_CHECKING,
    Annotated,
    Literal,
    TypeAlias,
)

import typer
from rich.console import Console

from coopstreams.commands.command_settings import (
    Brokers,
    Pairs,
    SettingsFile,
    Target,
    Verbose,
    configure_logging,
    loaded,
)
from coopstreams.commands.terminal.resume_command import resume_command, saying
from coopstreams.commands.terminal.task_bars import TaskBars, say_stage
from coopstreams.common.config import Config
from coopstreams.tasks.failure_handlers import dead_letter_topics
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.graph.topology import Topology

if TYPE_CHECKING:
    from coopstreams.spark.execution import Backfilled


WORK = "coopstreams-backfill"
"""The default folder of the files of runs."""

Results: TypeAlias = Annotated[
    Literal["none", "topic", "table"],
    typer.Option(
        help="Whether results are written: to the topics of the topology, or as Parquet."
    ),
]
Snapshots: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The storage for a snapshot of the state, from which tasks restore.",
    ),
]
Work: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="FOLDER",
        help="The folder for records between stages, and for the plan that --resume reads.",
    ),
]
Remote: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="sc://HOST",
        envvar="SPARK_REMOTE",
        help="A Spark Connect server that runs the work instead of this machine.",
    ),
]
Reads: TypeAlias = Annotated[
    Literal["python", "jvm"],
    typer.Option(
        help="The connector that reads Kafka; jvm is spark-sql-kafka-0-10, which the session must have."
    ),
]


def backfill(  # noqa: PLR0913
    target: Target,
    bootstrap_servers: Brokers = None,
    until: Annotated[
        datetime | None,
        typer.Option(
            help="Up to the first record of this time (UTC). Default: up to what is committed now."
        ),
    ] = None,
    ranges: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            metavar="N",
            help="Key ranges, and so tasks, per partition. Default: 4, or 1 where processors may have punctuations.",
        ),
    ] = None,
    outputs: Results = "none",
    table: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The table for the results: a folder or a URL that Spark writes to.",
        ),
    ] = None,
    snapshots: Snapshots = None,
    work: Work = WORK,
    cores: Annotated[
        str, typer.Option(metavar="N", help="Cores that Spark uses; * is all.")
    ] = "*",
    remote: Remote = None,
    connector: Reads = "python",
    native: Annotated[
        bool,
        typer.Option(
            "--native",
            help="Let Spark SQL aggregate where it can; --dry-run shows where, and why not elsewhere.",
        ),
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Resume a run that has not finished, or publish one that has.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print what would be done; nothing is created or written.",
        ),
    ] = False,
    publish: Annotated[
        bool,
        typer.Option(
            "--publish",
            help="Publish the run when it is done: a live application then continues at the cut.",
        ),
    ] = False,
    config: SettingsFile = None,
    set_: Pairs = None,
    verbose: Verbose = False,
) -> None:
    """Process the history of the source topics in Spark, as tasks of the application,
    which must not have run yet.

    Needs the extra `spark`, and Java 17 or newer; on a cluster, `coopstreams pack`. For
    a history in tables instead of topics, see `coopstreams.spark.backfill`.
    """
    configure_logging(verbose)
    try:
        from coopstreams.spark import execution, preparation
        from coopstreams.spark.spark_session import session_or_local
    except ImportError as error:
        raise ConfigError(
            f'a backfill needs Spark: pip install "coopstreams[spark]" ({error})'
        ) from error
    if (outputs == "table") != (table is not None):
        raise ConfigError("a table of results needs both: --outputs table --table URL")
    options = preparation.Options(
        ranges=ranges,
        snapshots=snapshots,
        outputs=outputs,
        table=table,
        work=work,
        connector=connector,
        native=native,
        until=until,
    )
    topology, checked = loaded(
        target,
        config,
        set_,
        {"bootstrap.servers": bootstrap_servers},
    )
    if resume is not None:
        plan = execution.taken_up(topology, checked, work, resume)
    else:
        plan = (
            partial(preparation.make_plan, create=False)
            if dry_run
            else preparation.begin
        )(topology, checked, {}, options)
    typer.echo(str(plan))
    if dry_run:
        return
    again = resume_command(
        "backfill",
        target,
        plan.run,
        None if work == WORK else work,
        bootstrap_servers,
        config,
        set_,
    )
    with (
        saying(again),
        session_or_local(
            None,
            f"backfill of {plan.application}",
            cores=cores,
            remote=remote,
        ) as spark,
        TaskBars(Console()) as bars,
    ):
        done = execution.carry_out(
            spark,
            topology,
            checked,
            plan,
            {},
            work,
            say_stage,
            bars.show,
        )
    _report(done, dead_letter_topics(topology, checked), published=publish)
    _publish(done, topology, checked) if publish else typer.echo(
        f"not published yet: {again} --publish"
    )


def _publish(
    done: Backfilled,
    topology: Topology,
    config: Config,
) -> None:
    from coopstreams.spark.publication import publish

    for place, offset in publish(done, topology, config).items():
        typer.echo(f"{place}: the application goes on at {offset}")


def _report(
    done: Backfilled,
    dead_letters: Sequence[str],
    *,
    published: bool,
) -> None:
    typer.echo(f"{done.records} records read")
    for reason in sorted(
        {reason for result in done.results for reason in result.dropped}
    ):
        typer.echo(
            f"{sum(result.dropped.get(reason, 0) for result in done.results)} dropped: {reason}"
        )
    for store in sorted({store for result in done.results for store in result.seeded}):
        keys = sum(result.seeded.get(store, 0) for result in done.results)
        expired = sum(result.expired.get(store, 0) for result in done.results)
        left_out = f", {expired} rows left out: they had expired" if expired else ""
        typer.echo(f"store {store}: {keys} keys{left_out}")
    for line in not_written(done.unwritten, dead_letters, published=published):
        typer.echo(line)


def not_written(
    records: Mapping[str, int],
    dead_letters: Sequence[str],
    *,
    published: bool,
) -> list[str]:
    """Return messages about results that a run did not write, by topic: their number,
    and how to get them.
    """
    if not records:
        return []
    told = [
        f"{count:,} {'dead letters' if topic in dead_letters else 'records'} for {topic}"
        for topic, count in sorted(records.items())
    ]
    cure = (
        "To look at them, run the program under another application id with --outputs table --table URL."
        if published
        else "To have them, do not publish this run: `coopstreams reset` the application, and run it again with "
        "--outputs topic, or with --outputs table --table URL to look at them."
    )
    return [
        f"not written, because --outputs is none: {', '.join(told)}",
        f"The application goes on behind the cut and does not write them either. {cure}",
    ]
