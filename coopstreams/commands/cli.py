"""The command line. It imports only the module of the command that is called.

Importing the modules of all commands takes 0.5 to 2 s of CPU time (measured).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.metadata import distribution
from typing import Annotated

import typer

from coopstreams.commands.processes.restarts import exit_status
from coopstreams.commands.processes.worker import say_why
from coopstreams.commands.terminal.control_characters import visible_lines
from coopstreams.topology.errors import CoopStreamsError

COMMANDS = {
    "init": "coopstreams.commands.init:init",
    "run": "coopstreams.commands.run:run",
    "describe": "coopstreams.commands.describe:describe",
    "check": "coopstreams.commands.check:check",
    "acls": "coopstreams.commands.acls:acls",
    "status": "coopstreams.commands.status:status",
    "top": "coopstreams.commands.top:top",
    "query": "coopstreams.commands.query:query",
    "pause": "coopstreams.commands.pause:pause",
    "resume": "coopstreams.commands.pause:resume",
    "backfill": "coopstreams.commands.backfill:backfill",
    "rebuild": "coopstreams.commands.rebuild:rebuild",
    "pack": "coopstreams.commands.pack:pack",
    "reset": "coopstreams.commands.reset:reset",
    "savepoint": "coopstreams.commands.savepoint:savepoint",
    "snapshots": "coopstreams.commands.snapshots:app",
    "group": "coopstreams.commands.group:app",
    "policy": "coopstreams.commands.policy:app",
    "dlq": "coopstreams.commands.dlq:app",
    "topics": "coopstreams.commands.topics:app",
    "dev": "coopstreams.dev.command:app",
}
"""The place of each command in the code: a function, or a group of commands."""


def command_line(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the command line with the commands of these names."""
    app = typer.Typer(
        name="coopstreams",
        help="Stateful stream processing on Kafka, where several tasks share one partition by key range.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
    )
    app.callback(invoke_without_command=True)(_options)
    for name in names:
        module, _, attribute = COMMANDS[name].partition(":")
        command = getattr(import_module(module), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def main() -> None:
    """Run the command of the command line."""
    app = command_line(_called(sys.argv[1:]))
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    ):  # as __main__ leaves it for the imports
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command(app)


def _called(words: Sequence[str]) -> Iterable[str]:
    """Return the names of the commands to import, given the words of the command line:
    the one that is called, none for the version, or all, for a page of help.
    """
    if words == ["--version"]:
        return ()
    return words[:1] if words and words[0] in COMMANDS else COMMANDS


def run_command(command_line: Callable[[], None]) -> None:
    """Run a command line. An error ends the process with its `exit_status`, and is
    reported to a supervisor.
    """
    try:
        command_line()
    except CoopStreamsError as error:
        typer.secho(
            visible_lines(f"{type(error).__name__}: {error}"),
            fg=typer.colors.RED,
            err=True,
        )
        say_why(error, os.environ)
        sys.exit(exit_status(error))
    except Exception as error:
        say_why(error, os.environ)
        raise


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            help="Print the version, and which data plane runs.",
        ),
    ] = False,
) -> None:
    """Handle the options before the name of a command."""
    if version:
        from coopstreams.log.kafka.native import data_plane

        typer.echo(
            f"coopstreams {distribution('coopstreams').version}, data plane: {data_plane()}"
        )
        raise typer.Exit
