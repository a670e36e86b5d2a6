"""The command line: mounts the commands, each from its own module."""

from __future__ import annotations

from importlib.metadata import distribution
from typing import Annotated

import typer

from coopstreams.commands.acls import acls
from coopstreams.commands.backfill import backfill
from coopstreams.commands.check import check
from coopstreams.commands.describe import describe
from coopstreams.commands.dlq import app as dlq
from coopstreams.commands.ending import run_command
from coopstreams.commands.group import app as group
from coopstreams.commands.init import init
from coopstreams.commands.pack import pack
from coopstreams.commands.pause import pause, resume
from coopstreams.commands.policy import app as policy
from coopstreams.commands.query import query
from coopstreams.commands.rebuild import rebuild
from coopstreams.commands.reset import reset
from coopstreams.commands.run import run
from coopstreams.commands.snapshots import app as snapshots
from coopstreams.commands.status import status
from coopstreams.commands.top import top
from coopstreams.commands.topics import app as topics
from coopstreams.dev.command import app as dev

app = typer.Typer(
    name="coopstreams",
    help="Stateful stream processing on Kafka, where several tasks share one partition by key range.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, help="Print the version, and which data plane runs.")
    ] = False,
) -> None:
    """Handle the options that stand before a command."""
    if version:
        from coopstreams.log.kafka.native import data_plane

        typer.echo(f"coopstreams {distribution('coopstreams').version}, data plane: {data_plane()}")
        raise typer.Exit


app.command()(init)
app.command()(run)
app.command()(describe)
app.command()(check)
app.command()(acls)
app.command()(status)
app.command()(top)
app.command()(query)
app.command()(pause)
app.command()(resume)
app.command()(backfill)
app.command()(rebuild)
app.command()(pack)
app.command()(reset)
app.add_typer(snapshots, name="snapshots")
app.add_typer(group, name="group")
app.add_typer(policy, name="policy")
app.add_typer(dlq, name="dlq")
app.add_typer(topics, name="topics")
app.add_typer(dev, name="dev")


def main() -> None:
    """Run a command."""
    run_command(app)


if __name__ == "__main__":
    main()
