"""`coopstreams describe`: the topology drawn, without contacting anything."""

from __future__ import annotations

from typing import Annotated

import typer

from coopstreams.commands.loading import load_topology


def describe(
    target: Annotated[str, typer.Argument(metavar="APP", help="Where the topology is: app.py, app.py:NAME or package.module:NAME.")],
    format_: Annotated[str, typer.Option("--format", metavar="FORMAT", help="text (as Kafka Streams prints it), mermaid, dot or json.")] = "text",
) -> None:
    """Print a topology: its sub-topologies, topics and stores. Contacts nothing."""
    typer.echo(load_topology(target).describe(format_))
