"""What commands that contact Kafka have in common: their settings, from a file, the environment and what is typed, and their log lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from coopstreams.topology.errors import ConfigError


def flags(pairs: Iterable[str] | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that were typed: `--set NAME=VALUE`, and options with a name of their own, which win.

    Raises:
        ConfigError: one is not of that form.
    """
    return dict(_pair(text) for text in pairs or ()) | {name: value for name, value in named.items() if value is not None}


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
    """Writes to what `sys.stderr` is when a line comes: the one of before may be closed, as that of a test in which a command ran."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: write NAME=VALUE")
    return name.strip(), value.strip()
