"""`coopstreams pause` and `coopstreams resume`: stop and continue the processing of
running instances.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coopstreams.commands.http_access import AskingFile, asking
from coopstreams.common.optional_packages import need_http
from coopstreams.topology.errors import QueryError

_URL = Annotated[
    str, typer.Argument(metavar="URL", help="http://HOST:PORT of the instance.")
]
_All = Annotated[bool, typer.Option("--all", help="All instances of the application.")]


def pause(
    url: _URL,
    every: _All = False,
    config: AskingFile = None,
) -> None:
    """Have an instance process nothing until `coopstreams resume`. It keeps its tasks,
    commits and answers queries.

    A process that is started later is not paused, even after --all: it processes the
    tasks that it gets.

    The application must have tokens: http.token.operate (or http.token.read), which
    this command takes as `coopstreams status` does. Exit status 1, with --all: some
    instances could not be reached.
    """
    _change(url, config, paused=True, every=every)


def resume(
    url: _URL,
    every: _All = False,
    config: AskingFile = None,
) -> None:
    """Have an instance process again."""
    _change(url, config, paused=False, every=every)


def _change(
    url: str,
    config: Path | None,
    *,
    paused: bool,
    every: bool,
) -> None:
    need_http(f"coopstreams {'pause' if paused else 'resume'}")
    if not every:
        _tell(url, config, paused=paused)
        return
    with asking(url, config, "operate", 10) as client:
        instances = client.status()["instances"]
    untold = {
        instance["id"]: why
        for instance in instances
        if (why := _untold(instance, config, paused=paused))
    }
    for id_, why in untold.items():
        typer.echo(f"{id_}: not {'paused' if paused else 'resumed'}: {why}", err=True)
    if untold:
        raise typer.Exit(1)


def _untold(
    instance: dict[str, Any],
    config: Path | None,
    *,
    paused: bool,
) -> str:
    """Tell an instance to pause or to resume. Return why that was not possible; empty:
    it was.
    """
    if instance["url"] is None:
        return "it serves no queries"
    if instance["state"] == "unreachable":
        return str(instance["reasons"][0]["message"])
    try:
        _tell(instance["url"], config, paused=paused)
    except QueryError as error:
        return str(error)
    return ""


def _tell(
    url: str,
    config: Path | None,
    *,
    paused: bool,
) -> None:
    with asking(url, config, "operate", 10) as client:
        (client.pause if paused else client.resume)()
    typer.echo(f"{url}: {'paused' if paused else 'resumed'}")
