"""How a command ends: an error of the user's or of the cluster's is a sentence and an exit status, not a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import typer

from coopstreams.commands.restarts import exit_status
from coopstreams.commands.worker import say_why
from coopstreams.topology.errors import CoopStreamsError


def run_command(command_line: Callable[[], None]) -> None:
    """Run what was typed; the process ends with `exit_status` of its error, which a supervisor is told."""
    try:
        command_line()
    except CoopStreamsError as error:
        typer.secho(f"{type(error).__name__}: {error}", fg=typer.colors.RED, err=True)
        say_why(error, os.environ)
        sys.exit(exit_status(error))
    except Exception as error:
        say_why(error, os.environ)
        raise
