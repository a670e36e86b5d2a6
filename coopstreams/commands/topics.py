"""`coopstreams topics`: makes topics and writes lines to them, where Kafka's own tools are not at hand."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Annotated

import typer

from coopstreams.commands.settings import (
    Brokers,
    ConfigFile,
    cluster,
    connection,
    flags,
)
from coopstreams.common.host import SYSTEM
from coopstreams.log.log import TopicSpec
from coopstreams.topology.errors import UnknownTopicError

FLUSH_S = 60.0

app = typer.Typer(
    help="Make topics, and write lines to them: for a first try.", no_args_is_help=True
)


@app.command()
def create(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The topics.")],
    partitions: Annotated[
        int, typer.Option(min=1, metavar="N", help="Partitions of each.")
    ] = 1,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of each, as cleanup.policy=compact; may be repeated.",
        ),
    ] = None,
    bootstrap_servers: Brokers = None,
    config: ConfigFile = None,
) -> None:
    """Create topics; those that exist stay as they are."""
    settings = flags(set_, {})
    with cluster(connection(bootstrap_servers, config)) as log:
        there = log.partitions(names)
        log.create_topics(
            [
                TopicSpec(name, partitions, settings)
                for name in names
                if name not in there
            ]
        )
    for name in names:
        typer.echo(
            f"{name}: {f'is there, {there[name]}' if name in there else f'created, {partitions}'} partitions"
        )


@app.command()
def write(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The topic.")],
    bootstrap_servers: Brokers = None,
    config: ConfigFile = None,
) -> None:
    """Write each line of the standard input as the value of a record without a key."""
    with cluster(connection(bootstrap_servers, config)) as log:
        if name not in log.partitions([name]):
            raise UnknownTopicError(
                f'there is no topic "{name}"; make it: coopstreams topics create {name}'
            )
        written = 0
        with closing(log.writer()) as writer:
            for line in sys.stdin.buffer:  # each as it comes: there may be a person, or `tail -f`, at the other end
                writer.append(name, [None], [line.rstrip(b"\r\n")], [SYSTEM.wall_ms()])
                written += 1
            writer.flush(FLUSH_S)
    typer.echo(f"{written} records written to {name}")
