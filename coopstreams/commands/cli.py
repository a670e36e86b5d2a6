"""The command line: each command in a module of its own, mounted here."""

from __future__ import annotations

import os
import sys

import typer

from coopstreams.commands.backfill import backfill
from coopstreams.commands.check import check
from coopstreams.commands.describe import describe
from coopstreams.commands.group import app as group
from coopstreams.commands.pack import pack
from coopstreams.commands.policy import app as policy
from coopstreams.commands.query import query
from coopstreams.commands.rebuild import rebuild
from coopstreams.commands.reset import reset
from coopstreams.commands.restarts import exit_status
from coopstreams.commands.run import run
from coopstreams.commands.snapshots import app as snapshots
from coopstreams.commands.status import status
from coopstreams.commands.worker import say_why
from coopstreams.dev.command import app as dev
from coopstreams.topology.errors import CoopStreamsError

app = typer.Typer(
    name="coopstreams",
    help="Stateful stream processing on Kafka, where several tasks share one partition by key range.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
app.command()(run)
app.command()(describe)
app.command()(check)
app.command()(status)
app.command()(query)
app.command()(backfill)
app.command()(rebuild)
app.command()(pack)
app.command()(reset)
app.add_typer(snapshots, name="snapshots")
app.add_typer(group, name="group")
app.add_typer(policy, name="policy")
app.add_typer(dev, name="dev")


def main() -> None:
    """Run a command; an error of the user's or of the cluster's is a sentence and an exit status (`exit_status`), not a
    traceback.
    """
    try:
        app()
    except CoopStreamsError as error:
        typer.secho(f"{type(error).__name__}: {error}", fg=typer.colors.RED, err=True)
        say_why(error, os.environ)
        sys.exit(exit_status(error))
    except Exception as error:
        say_why(error, os.environ)
        raise


if __name__ == "__main__":
    main()
