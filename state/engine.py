"""What a database is made of: ordered maps of bytes ("families") that are written together or not at all.

Two implementations: `Rocks` on disk and `Memory`; one contract suite (`tests/state/test_engines.py`) holds both to this page.

Invariant: a `write` is atomic over all families, and once it has returned, a crash of the process does not undo it (`Rocks`).
Turned down: snapshots as a type of their own; an iterator sees the moment at which it was made, and whoever needs several of one moment
makes them while nobody writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

Getter: TypeAlias = Callable[[bytes], bytes | None]

Rows: TypeAlias = Iterator[tuple[bytes, bytes]]
"""Keys and values, in key order."""


@dataclass(slots=True)
class Change:
    """What is to be written to a family: first these ranges vanish, then these keys get these values (None: no such key).

    Shape: keys ascending, because sorted keys are written several times faster. Ranges are half-open; an end of None is open.
    """

    family: str
    keys: Sequence[bytes] = ()
    values: Sequence[bytes | None] = ()
    vanishing: Sequence[tuple[bytes, bytes | None]] = ()


class Engine(Protocol):
    """Families of ordered bytes. Any thread; writes one at a time."""

    def families(self) -> list[str]:
        """Return the families that exist."""

    def create(self, family: str) -> None:
        """Make a family; one that exists stays as it is."""

    def drop(self, family: str) -> None:
        """Remove a family with all its keys. Getters of it find nothing from now on; iterators go on over what was there."""

    def getter(self, family: str) -> Getter:
        """Return the function that reads a key of an existing family, for use on the hot path."""

    def scan(self, family: str, start: bytes, end: bytes | None, *, reverse: bool = False) -> Rows:
        """Return the rows with start <= key < end of an existing family as they are now, ascending or descending."""

    def write(self, changes: Sequence[Change]) -> None:
        """Write to existing families, atomically.

        Raises:
            StateError: nothing was written (no space left on the device, ...).
        """

    def ingest(self, family: str, files: Sequence[Path], *, move: bool = True) -> None:
        """Add the rows of sorted files (at least one; `sst`) to an existing family, over what it has. `move`: the files are gone afterwards.

        What was written before is on disk first; the rows themselves outlive the machine's death once this has returned.

        Raises:
            SnapshotError: a file is none, or is gone.
        """

    def count(self, family: str) -> int:
        """Return about how many keys an existing family has."""

    def close(self) -> None:
        """Let go of everything; iterators end with an error. Idempotent."""
