"""What commands that contact Kafka have in common: their settings, from a file, the environment and what is typed;
where it is; their log lines.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from coopstreams.common.config import Config, settings_of
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.topology.errors import ConfigError, QueryError


def flags(pairs: Iterable[str] | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that were typed: `--set NAME=VALUE`, and options with a name of their own, which win.

    Raises:
        ConfigError: one is not of that form.
    """
    return dict(_pair(text) for text in pairs or ()) | {
        name: value for name, value in named.items() if value is not None
    }


def configure_logging(verbose: bool, who: str = "", handler: logging.Handler | None = None) -> None:
    """Log to the terminal, or by this handler; `who` tells the lines of workers that share it apart."""
    form = logging.Formatter(f"%(asctime)s %(levelname)-7s {who}%(message)s", datefmt="%H:%M:%S")
    handler = handler or _Terminal()
    handler.setFormatter(form)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("coopstreams").setLevel(logging.DEBUG if verbose else logging.INFO)
    # It reports what the membership already does, in three lines for each attempt.
    logging.getLogger("kafka").setLevel(logging.ERROR if verbose else logging.CRITICAL)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # of Spark: Ctrl-C is an error with two tracebacks to it


class _Terminal(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is when a line comes: the one of before may be closed, as that of a test in which a
    command ran.
    """

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: write NAME=VALUE")
    return name.strip(), value.strip()


Brokers = Annotated[str | None, typer.Option("--bootstrap-servers", metavar="HOST:PORT,...", help="The Kafka brokers.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE.toml", help="Settings in a TOML file: how to connect, with which identity."),
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
    """Have a cluster to ask and to write to, for as long as the command takes. Say at once if nobody is there, and try
    all the same.
    """
    if said := refusals(settings.get("bootstrap.servers", "")):
        cure = (
            "Is it running (`coopstreams dev` starts one here), is bootstrap.servers right? Trying on for a while; "
            "Ctrl-C ends it."
        )
        typer.echo(f"no Kafka broker answers at {'; '.join(said)}. {cure}", err=True)
    log = KafkaLog(settings)
    try:
        yield log
    finally:
        log.close()
