"""`coopstreams pause` and `coopstreams resume`: stop and continue the processing of instances that run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coopstreams.commands.settings import AskingFile, asking
from coopstreams.common.extra import need_http

_URL = Annotated[str, typer.Argument(metavar="URL", help="http://HOST:PORT of the instance.")]
_All = Annotated[bool, typer.Option("--all", help="All instances of the application.")]


def pause(url: _URL, every: _All = False, config: AskingFile = None) -> None:
    """Have an instance process nothing until `coopstreams resume`. It keeps its tasks, commits and answers queries.

    The application needs tokens: http.token.operate (or http.token.read), as `coopstreams status` is given them.
    """
    _change(url, config, paused=True, every=every)


def resume(url: _URL, every: _All = False, config: AskingFile = None) -> None:
    """Have an instance process again."""
    _change(url, config, paused=False, every=every)


def _change(url: str, config: Path | None, *, paused: bool, every: bool) -> None:
    need_http(f"coopstreams {'pause' if paused else 'resume'}")
    urls = [url]
    if every:
        with asking(url, config, "operate", 10) as client:
            urls = [instance["url"] for instance in client.status()["instances"] if instance["url"]]
    for each in urls:
        with asking(each, config, "operate", 10) as client:
            (client.pause if paused else client.resume)()
        typer.echo(f"{each}: {'paused' if paused else 'resumed'}")
