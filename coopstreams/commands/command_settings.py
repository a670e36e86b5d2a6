"""The settings (file, environment, flags), the connection and the logging of commands
that contact Kafka.

Relies on: `common.setting_sources` (which source wins).
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from coopstreams.commands.terminal.control_characters import visible_lines
from coopstreams.commands.topology_target import load_topology
from coopstreams.common.config import Config
from coopstreams.common.setting_sources import settings_of
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.graph.topology import Topology

KAFKA_PORT = "9092"
"""The port of an address that names none, as in librdkafka."""


def flags(pairs: Iterable[str] | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the command line: `--set NAME=VALUE`, and options with a
    name of their own, which win.

    Raises:
        ConfigError: a `--set` is not of that form.
    """
    return dict(_pair(text) for text in pairs or ()) | {
        name: value for name, value in named.items() if value is not None
    }


def loaded(
    target: str,
    file: Path | None,
    pairs: Iterable[str] | None,
    named: Mapping[str, Any],
) -> tuple[Topology, Config]:
    """Return a topology, and its settings from the file, the environment and the
    command line.

    Raises:
        ConfigError: there is no such topology, or a setting is not valid.
    """
    topology = load_topology(target)
    return topology, Config.of(
        settings_of(file, os.environ, flags(pairs, named)),
        topology.application_id,
    )


def configure_logging(
    verbose: bool,
    who: str = "",
    handler: logging.Handler | None = None,
    *,
    watched: bool = False,
) -> None:
    """Log to the terminal, or to `handler`. `who` marks the lines of workers that share
    a terminal.

    `watched`: whether a supervisor shows the lines on its terminal. Lines that go to no
    terminal have date and time zone.
    """
    clock = (
        "%H:%M:%S"
        if handler is not None or watched or sys.stderr.isatty()
        else "%Y-%m-%dT%H:%M:%S%z"
    )
    form = _Form(f"%(asctime)s %(levelname)-7s {who}%(message)s", datefmt=clock)
    handler = handler or _Terminal()
    handler.setFormatter(form)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("coopstreams").setLevel(
        logging.DEBUG if verbose else logging.INFO
    )
    # kafka-python logs three lines for each attempt, and the membership already reports
    # it.
    logging.getLogger("kafka").setLevel(logging.ERROR if verbose else logging.CRITICAL)
    logging.getLogger("py4j").setLevel(
        logging.CRITICAL
    )  # py4j logs Ctrl-C as an error with two tracebacks


class _Form(logging.Formatter):
    """A formatter that writes out control characters: messages have keys and errors of
    users, and a terminal would obey the characters.
    """

    def format(self, record: logging.LogRecord) -> str:
        return visible_lines(super().format(record))


class _Terminal(logging.StreamHandler[TextIO]):
    """A handler that writes to the current `sys.stderr`. An earlier one may be closed,
    for example that of a test that ran a command.
    """

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: write NAME=VALUE")
    return name.strip(), value.strip()


Target = Annotated[
    str,
    typer.Argument(
        metavar="APP",
        help="The topology: app.py, app.py:NAME or package.module:NAME.",
    ),
]
Brokers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        metavar="HOST:PORT,...",
        help="The Kafka brokers.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        help="Settings in a TOML file: how to connect, with which identity.",
    ),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        help="Settings in a TOML file, by Kafka's dotted names.",
    ),
]
Pairs = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="One setting; may be repeated."),
]
SnapshotsUrl = Annotated[
    str | None,
    typer.Option(
        "--snapshots",
        metavar="URL",
        help="The storage of snapshots: a folder or an fsspec URL (snapshots.dir).",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]


def storage_for(what: str, config: Config) -> str:
    """Return the storage of snapshots.

    Raises:
        ConfigError: none is set.
    """
    url: str | None = config["snapshots.dir"]
    if url is None:
        raise ConfigError(
            f"no storage is set for the {what}: give --snapshots URL, or snapshots.dir in the settings"
        )
    return url


def connection(brokers: str | None, config: Path | None) -> Mapping[str, Any]:
    """Return the connection settings from the file, the environment and the command
    line, in librdkafka's names.

    Raises:
        ConfigError: no brokers are named, or a setting is unknown.
    """
    return Config.of(
        settings_of(config, os.environ, {"bootstrap.servers": brokers})
    ).client


def refusals(servers: str) -> list[str]:
    """Return the error of each of these addresses if none accepts a connection; empty:
    one does.
    """
    said = []
    for server in servers.split(","):
        address = server.rpartition("://")[2].strip()
        host, colon, port = address.rpartition(":")
        if not colon or address.endswith("]"):
            host = address
            port = KAFKA_PORT
        try:
            socket.create_connection((host.strip("[]"), int(port)), 1.0).close()
        except (OSError, ValueError, OverflowError) as error:
            said.append(
                f"{server.strip()}: {getattr(error, 'strerror', None) or error}"
            )
        else:
            return []
    return said


@contextmanager
def cluster(settings: Mapping[str, Any]) -> Iterator[KafkaLog]:
    """Yield a connection to a cluster, and close it in the end. If no broker accepts
    connections, print that, and try anyway.
    """
    if said := refusals(settings.get("bootstrap.servers", "")):
        cure = (
            "Is it running (`coopstreams dev` starts one here), is bootstrap.servers right? Trying on for a while; "
            "Ctrl-C ends it."
        )
        typer.echo(f"no Kafka broker answers at {'; '.join(said)}. {cure}", err=True)
    with closing(KafkaLog(settings)) as log:
        yield log
