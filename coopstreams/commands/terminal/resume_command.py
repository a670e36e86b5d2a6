"""The command that resumes an unfinished run of `coopstreams backfill` or `coopstreams
rebuild --from source`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer


def resume_command(
    command: str,
    target: str,
    run: str,
    work: str | None,
    bootstrap_servers: str | None,
    config: Path | None,
    pairs: Sequence[str] | None,
) -> str:
    """Return the command that resumes a run, with the settings of the present one.
    Values of `--set` are left out, because they may be secrets.

    `work`: the folder of runs; None: the default of the command.
    """
    given = {
        "--bootstrap-servers": bootstrap_servers,
        "--config": config,
        "--work": work,
    }
    options = [
        f"{option} {shlex.quote(str(value))}"
        for option, value in given.items()
        if value is not None
    ]
    settings = [
        f"--set {shlex.quote(pair.partition('=')[0].strip())}=…" for pair in pairs or ()
    ]
    return " ".join(
        [
            f"coopstreams {command} {shlex.quote(target)} --resume {run}",
            *options,
            *settings,
        ]
    )


@contextmanager
def saying(again: str) -> Iterator[None]:
    """Print how to resume the run if Ctrl-C or an error interrupts the body."""
    try:
        yield
    except BaseException:
        typer.echo(f"not done. What has not run yet is done by: {again}", err=True)
        raise
