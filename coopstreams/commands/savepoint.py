"""`coopstreams savepoint`: has a running application write a savepoint.

Relies on: `admin.savepoint` (does the work).
"""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from coopstreams.admin.savepoint import Savepoints
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
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.tasks.resolved_topology import as_it_runs


def savepoint(
    target: Target,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of the savepoint.")
    ],
    snapshots: SnapshotsUrl = None,
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            help="How long the processes may take to write it.",
        ),
    ] = 600.0,
    bootstrap_servers: Brokers = None,
    config: SettingsFile = None,
    set_: Pairs = None,
    verbose: Verbose = False,
) -> None:
    """Have the running application write its state and positions, for another
    application to begin with: `coopstreams run --from-savepoint NAME`.

    The application goes on meanwhile, and is not disturbed; with repartition topics it
    has to be paused for it. A savepoint is kept until `coopstreams snapshots forget`.
    """
    configure_logging(verbose)
    named = {"bootstrap.servers": bootstrap_servers, "snapshots.dir": snapshots}
    topology, checked = loaded(target, config, set_, named)
    url = storage_for("savepoint", checked)
    with closing(
        KafkaLog(checked.client, timeout_s=checked["connect.timeout.ms"] / 1000)
    ) as cluster:
        manifest = Savepoints(
            cluster,
            as_it_runs(topology, cluster.partitions(), checked),
            checked,
            url,
        ).take(name, wait_s)
    files = list(manifest.files())
    typer.echo(
        f"savepoint {name} of {manifest.application}: {len(manifest.stores)} stores, "
        f"{sum(file.entries for file in files):,} keys, {megabytes(files)}; "
        f"`coopstreams run --from-savepoint {manifest.application}/{name}` begins with it"
    )
