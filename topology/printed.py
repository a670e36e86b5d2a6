"""What `KStream.print` calls for each record: a line to standard output, to a file, or to whatever has a `write`.

Invariant: a line is written whole and at once, so that those of several tasks and processes do not mix.
Turned down: emptying a file at the start, as Kafka Streams does (each process of an application would empty what the
others wrote).
Source: Kafka Streams `Printed`, `PrintForeachAction`.
"""

from __future__ import annotations

import sys
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from coopstreams.topology.errors import TopologyError


class Writable(Protocol):
    """What text can be written to."""

    def write(self, text: str, /) -> object:
        """Take a text."""


Destination: TypeAlias = Writable | str | PathLike[str] | None
"""What has a `write`; the path of a file, which grows at its end; None: standard output."""


class Printer:
    """Writes `[label]: key, value`, a line for each call.

    Raises:
        TopologyError: `to` is neither a path nor has it a `write`.
    """

    def __init__(self, to: Destination, label: str) -> None:
        if to is not None and not isinstance(to, str | PathLike) and not callable(getattr(to, "write", None)):
            raise TopologyError(
                f"print(): to={to!r} cannot be written to. Give it a path, or an open text file; nothing is standard "
                "output."
            )
        self._path = Path(to) if isinstance(to, str | PathLike) else None
        self._to = None if isinstance(to, str | PathLike) else to
        self._label = label

    def __call__(self, key: Any, value: Any) -> None:
        """Write a record."""
        line = f"[{self._label}]: {key}, {value}\n"
        if self._path is not None:
            with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(line)
        else:
            (sys.stdout if self._to is None else self._to).write(line)
