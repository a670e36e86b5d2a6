"""The printer of `KStream.print`: one line for each record, to standard output, a file,
or an object with `write`.

Invariant: each line is written with one call, so that the lines of several tasks and
processes do not mix. Turned down: truncating a file at the start, as Kafka Streams does
(each process of an application would delete what the others wrote).
Source: Kafka Streams `Printed`, `PrintForeachAction`.
"""

from __future__ import annotations

import sys
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from coopstreams.topology.errors import TopologyError


class Writable(Protocol):
    """An object to which text can be written."""

    def write(self, text: str, /) -> object:
        """Write a text."""


Destination: TypeAlias = Writable | str | PathLike[str] | None
"""An object with `write`; the path of a file, to which lines are appended; None:
standard output.
"""


class Printer:
    """Writes one line `[label]: key, value` for each call.

    Raises:
        TopologyError: `to` is neither a path nor an object with `write`.
    """

    def __init__(self, to: Destination, label: str) -> None:
        if (
            to is not None
            and not isinstance(to, str | PathLike)
            and not callable(getattr(to, "write", None))
        ):
            raise TopologyError(
                f"print(): to={to!r} cannot be written to. Give it a path, or an open text file; nothing is standard "
                "output."
            )
        self._path = Path(to) if isinstance(to, str | PathLike) else None
        self._to = None if isinstance(to, str | PathLike) else to
        self._label = label

    def __call__(self, key: Any, value: Any) -> None:
        """Write the line of a record."""
        line = f"[{self._label}]: {key}, {value}\n"
        if self._path is not None:
            with self._path.open(
                "a",
                encoding="utf-8",
                errors="backslashreplace",
            ) as file:
                file.write(line)
        else:
            (sys.stdout if self._to is None else self._to).write(line)
