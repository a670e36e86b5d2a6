"""How commands that talk to Kafka are told where it is: as `coopstreams run` is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from coopstreams.config import Config, settings_of
from coopstreams.log.kafka_log import KafkaLog

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


@contextmanager
def cluster(settings: Mapping[str, Any]) -> Iterator[KafkaLog]:
    """Have a cluster to ask and to write to, for as long as the command takes."""
    log = KafkaLog(settings)
    try:
        yield log
    finally:
        log.close()
