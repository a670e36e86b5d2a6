"""`coopstreams init`: writes the files of a new application, which run, have a test,
and can be deployed as they are; with `--run` it runs at once.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coopstreams.commands.command_settings import cluster
from coopstreams.common.host import SYSTEM
from coopstreams.common.optional_packages import need_http
from coopstreams.common.setting_sources import settings_of
from coopstreams.log.log import TopicSpec
from coopstreams.topology.errors import ConfigError

NAME = "my-application"
"""The name of the application in the templates."""
LINES = "lines"
"""The topic that the application of the templates reads."""
_COUNTS = "word-counts"
_LINE = b"to be or not to be"
_SETTINGS = "settings.toml"
_SUFFIX = ".template"
_FLUSH_S = 60.0


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where the files go; it is made.")
    ],
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The application's id. Default: the name of the folder.",
        ),
    ] = None,
    run: Annotated[
        bool,
        typer.Option(
            "--run",
            help="Run it at once: start the Kafka of `coopstreams dev`, make the topics, and write a line.",
        ),
    ] = False,
) -> None:
    """Write a small application with its test, its settings, a container file,
    Kubernetes manifests and a systemd unit.

    Nothing that is there is overwritten.
    """
    name = folder.resolve().name if name is None else name
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?", name):
        raise ConfigError(
            f'"{name}" cannot be the name of an application everywhere: small letters, digits and hyphens, up to 50. '
            "Give one with --name"
        )
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file, not a folder: name another one")
    project = project_of(name)
    if there := sorted(file for file in project if (folder / file).exists()):
        raise ConfigError(
            f"{folder} has {', '.join(there)} already: nothing is overwritten. Name another folder"
        )
    brokers = _kafka() if run else None
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in project.items():
        (folder / file).write_text(content, encoding="utf-8")
    typer.echo(
        f"{folder} has {', '.join(sorted(project))}. README.md says how to go on"
    )
    if brokers is not None:
        _run(folder, brokers)


def _kafka() -> str:
    """Return the address of a Kafka for development that runs, with the topics and a
    line in them.
    """
    need_http("coopstreams init --run")
    # here, because without --run none of it is needed
    from coopstreams.dev.command import Chosen, started

    brokers = started(Chosen.usual(), Console()).bootstrap
    with cluster({"bootstrap.servers": brokers}) as log:
        there = log.partitions([LINES, _COUNTS])
        missing = [name for name in (LINES, _COUNTS) if name not in there]
        log.create_topics([TopicSpec(name, 1, {}) for name in missing])
        if LINES in missing:
            with closing(log.writer()) as writer:
                writer.append(LINES, [None], [_LINE], [SYSTEM.wall_ms()])
                writer.flush(_FLUSH_S)
    return brokers


def _run(folder: Path, brokers: str) -> None:
    """Become the application, so that Ctrl-C and SIGTERM reach it."""
    os.environ["COOPSTREAMS_BOOTSTRAP_SERVERS"] = brokers
    listens = settings_of(folder / _SETTINGS, os.environ, {})["http.listen"]
    typer.echo(
        f"ask it in another terminal: coopstreams query http://{listens} counts be"
    )
    os.chdir(folder)
    command = (sys.executable, "-m", "coopstreams", "run", "app.py")
    os.execv(sys.executable, [*command, "--config", _SETTINGS])


def project_of(name: str) -> dict[str, str]:
    """Return the files of a new application and their texts."""
    templates = [
        file
        for file in files("coopstreams").joinpath("project").iterdir()
        if file.name.endswith(_SUFFIX)
    ]
    return {
        file.name.removesuffix(_SUFFIX).replace(NAME, name): file.read_text(
            encoding="utf-8"
        ).replace(NAME, name)
        for file in templates
    }
