"""`coopstreams describe`: prints a drawing of a topology, without contacting anything."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from coopstreams.commands.command_settings import Target
from coopstreams.commands.topology_target import load_topology
from coopstreams.topology.errors import ConfigError


def describe(
    target: Target,
    format_: Annotated[
        Literal["text", "mermaid", "dot", "svg", "json"],
        typer.Option(
            "--format",
            help="The form of the drawing; text is that of Kafka Streams.",
        ),
    ] = "text",
    optimization: Annotated[
        str,
        typer.Option(
            metavar="WORDS",
            help="Apply this topology.optimization first: none, all, or a list.",
        ),
    ] = "none",
) -> None:
    """Print a topology: its sub-topologies, topics and stores. Contacts nothing."""
    try:
        topology = load_topology(target).optimized(optimization)
    except ValueError as error:
        raise ConfigError(f"--optimization {optimization}: must be {error}") from None
    typer.echo(topology.describe(format_))
