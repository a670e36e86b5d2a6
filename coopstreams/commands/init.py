"""`coopstreams init`: writes the files of a new application, which run, have a test,
and can be deployed as they are.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from coopstreams.topology.errors import ConfigError

NAME = "my-application"
"""The name of the application in the templates."""
_SUFFIX = ".template"


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
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in project.items():
        (folder / file).write_text(content, encoding="utf-8")
    typer.echo(
        f"{folder} has {', '.join(sorted(project))}. README.md says how to go on"
    )


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
