"""What a database is made of: ordered maps of bytes ("families") that are written together or not at all.

Two engines are here: `Rocks` on disk and `Memory`. Users bring others, as `package.module:Class`, which `engines`
opens: a class that is called with a folder of its own, which exists and is there again at the next start.
`coopstreams.testing.check_engine` holds each to this page.

Invariant: a `write` is atomic over all families, and what a start finds is what some number of writes, from the first
on, have left. So an engine may lose its latest writes when the process or the machine dies, or all of them: each has
brought with it, in a family of its own, how far in the changelog it stands, and the changelog has the rest.
Turned down: snapshots as a type of their own; an iterator sees the moment at which it was made, and whoever needs
several of one moment makes them while nobody writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

Getter: TypeAlias = Callable[[bytes], bytes | None]

Rows: TypeAlias = Iterator[tuple[bytes, bytes]]
"""Keys and values, in key order."""


@dataclass(slots=True)
class Change:
    """What is to be written to a family: first these ranges vanish, then these keys get these values (None: no such
    key).

    Shape: keys ascending, because sorted keys are written several times faster. Ranges are half-open; an end of None is
    open.
    """

    family: str
    keys: Sequence[bytes] = ()
    values: Sequence[bytes | None] = ()
    vanishing: Sequence[tuple[bytes, bytes | None]] = ()


class Engine(Protocol):
    """Families of ordered bytes. Any thread; `create`, `drop`, `write` and `close` are called one at a time.

    Raises:
        StateError: whatever is asked for, after `close`; or nothing can be read or written, and who runs the
            application learns why.
        StateCorruptError: what is in the folder cannot be read and may be deleted: changelogs restore it.
    """

    def families(self) -> list[str]:
        """Return the families that exist."""
        ...

    def create(self, family: str) -> None:
        """Make a family; one that exists stays as it is."""

    def drop(self, family: str) -> None:
        """Remove a family with all its keys. Getters of it find nothing from now on; iterators go on over what was
        there.
        """

    def getter(self, family: str) -> Getter:
        """Return the function that reads a key of an existing family, for use on the hot path. It sees every later
        write.
        """
        ...

    def scan(self, family: str, start: bytes, end: bytes | None, *, reverse: bool = False) -> Rows:
        """Return the rows with start <= key < end of an existing family as they are now, ascending or descending."""
        ...

    def write(self, changes: Sequence[Change]) -> None:
        """Write to existing families, atomically.

        Raises:
            StateError: nothing was written (no space left on the device, ...).
        """

    def count(self, family: str) -> int:
        """Return about how many keys an existing family has."""
        ...

    def close(self) -> None:
        """Let go of everything; iterators end with an error. Idempotent."""


@runtime_checkable
class Ingesting(Engine, Protocol):
    """An engine that takes sorted files of RocksDB as they are; for others their rows are written."""

    def ingest(self, family: str, files: Sequence[Path], *, move: bool = True) -> None:
        """Add the rows of sorted files (at least one; `sst`) to an existing family, over what it has. `move`: the files
        are gone afterwards.

        What was written before is on disk first; the rows themselves outlive the machine's death once this has
        returned.

        Raises:
            SnapshotError: a file is none, or is gone.
        """
