"""How commands that talk to Kafka are told where it is: as `coopstreams run` is."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from coopstreams.common.config import Config, settings_of
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.topology.errors import QueryError

Brokers = Annotated[str | None, typer.Option("--bootstrap-servers", metavar="HOST:PORT,...", help="The Kafka brokers.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE.toml", help="Settings in a TOML file: how to connect, with which identity.")
]


def connection(brokers: str | None, config: Path | None) -> Mapping[str, Any]:
    """Return the settings of connections, in librdkafka's names: from the file, the environment, and what was typed.

    Raises:
        ConfigError: no brokers, or a setting that is none.
    """
    return Config.of(settings_of(config, os.environ, {"bootstrap.servers": brokers})).client


def say_waiting(seconds: float, error: QueryError) -> None:
    """Say at once why an application has not answered a question, and that it is asked again for so long."""
    typer.echo(f"{error} Trying again for {seconds:g} s; Ctrl-C ends it.", err=True)


def refusals(servers: str, timeout_s: float = 1.0) -> list[str]:
    """Return what each of these addresses said, if none takes a connection; else nothing."""
    said = []
    for server in servers.split(","):
        host, _, port = server.rpartition("://")[2].strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
        except (OSError, ValueError) as error:
            said.append(f"{server.strip()}: {getattr(error, 'strerror', None) or error}")
        else:
            return []
    return said


@contextmanager
def cluster(settings: Mapping[str, Any]) -> Iterator[KafkaLog]:
    """Have a cluster to ask and to write to, for as long as the command takes. Say at once if nobody is there, and try all the same."""
    if said := refusals(settings.get("bootstrap.servers", "")):
        cure = "Is it running (`coopstreams dev` starts one here), is bootstrap.servers right? Trying on for a while; Ctrl-C ends it."
        typer.echo(f"no Kafka broker answers at {'; '.join(said)}. {cure}", err=True)
    log = KafkaLog(settings)
    try:
        yield log
    finally:
        log.close()
