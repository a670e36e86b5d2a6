"""Ends a command: errors of the user or the cluster become a sentence and an exit
status instead of a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import typer

from coopstreams.commands.processes.restarts import exit_status
from coopstreams.commands.processes.worker import say_why
from coopstreams.commands.terminal.visible import visible_lines
from coopstreams.topology.errors import CoopStreamsError


def run_command(command_line: Callable[[], None]) -> None:
    """Run a command line; an error ends the process with its `exit_status`, and is
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
