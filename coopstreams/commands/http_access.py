"""The HTTP client of commands that query a running application: its token and
certificates, and its wait for an answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coopstreams.common.config import http_values
from coopstreams.common.setting_sources import settings_of
from coopstreams.topology.errors import QueryError

if TYPE_CHECKING:
    from coopstreams.query.access import Role
    from coopstreams.query.client import QueryClient

AskingFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        help="Settings in a TOML file: http.token.* and http.ssl.*.",
    ),
]


@contextmanager
def asking(
    url: str,
    config: Path | None,
    role: Role,
    seconds: float,
) -> Iterator[QueryClient]:
    """Yield a client of an application's queries, with the token and certificates of
    the settings `http.*`.

    `url`: HOST:PORT means http, or https if there are certificates. `seconds`: how long
    a query is retried.

    Raises:
        ConfigError: the token or the certificates cannot be used.
        QueryError: the application wants another token; the message says which setting
            has it.
    """
    from coopstreams.query.certificates import Files
    from coopstreams.query.client import QueryClient

    settings = http_values(settings_of(config, os.environ, {}))
    tokens = settings[f"http.token.{role}"] or settings["http.token.read"]
    files = Files.of(settings)
    tls = files.client() if files.certificate or files.authorities else None
    on_wait = partial(say_waiting, seconds)
    url = url if "://" in url else f"{'http' if tls is None else 'https'}://{url}"
    # All of them, as instances do: while one replaces another, an instance may know
    # only the new one.
    token = ",".join(tokens) if tokens else None
    with QueryClient(
        url,
        deadline_s=seconds,
        on_wait=on_wait,
        token=token,
        tls=tls,
    ) as client:
        try:
            yield client
        except QueryError as error:
            if error.code != "UNAUTHORIZED":
                raise
            where = f"http.token.{role} in --config FILE.toml, or COOPSTREAMS_HTTP_TOKEN_{role.upper()}"
            raise QueryError(
                error.code,
                f"{error}. This command takes it from {where}",
                status=error.status,
            ) from error


def say_waiting(seconds: float, error: QueryError) -> None:
    """Print at once why a query is not answered yet, and for how long it is retried."""
    typer.echo(f"{error} Trying again for {seconds:g} s; Ctrl-C ends it.", err=True)
