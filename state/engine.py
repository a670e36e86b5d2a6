"""The interface of storage engines: ordered maps of bytes ("families") with atomic
writes over all of them.

There are two engines: `Rocks` on disk and `Memory`. Users add others by naming a class,
`package.module:Class`, which `engines` calls with a folder for this engine alone. The
folder exists, and is the same at the next start. `coopstreams.testing.check_engine`
tests an engine against this interface.

Invariant: a `write` is atomic over all families, and a start finds the result of the
first n writes, for some n. So an engine may lose its latest writes, or all, when the
process or the machine dies. The last write of a commit also stores, in a family of its
own, the changelog offsets that the state has reached, so the changelog supplies the
rest. Turned down: a type for snapshots. An iterator sees the rows of the moment at
which it was made; a caller that needs several iterators of one moment makes them while
no write runs.
Relies on: `database` (calls it: which threads, which keys, and checkpoints).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

Getter: TypeAlias = Callable[[bytes], bytes | None]

Rows: TypeAlias = Iterator[tuple[bytes, bytes]]
"""Keys and values in key order."""

Bounds: TypeAlias = tuple[bytes, bytes | None]
"""The first key, and the key behind the last one (None: there is no upper bound)."""


@dataclass(slots=True)
class Change:
    """A change of one family: first the ranges in `vanishing` are deleted, then the
    keys get these values (None deletes a key).

    Shape: keys ascend, because RocksDB writes sorted keys several times faster. Ranges
    are half-open; an end of None is open.
    """

    family: str
    keys: Sequence[bytes] = ()
    values: Sequence[bytes | None] = ()
    vanishing: Sequence[tuple[bytes, bytes | None]] = ()


class Engine(Protocol):
    """A storage engine: ordered maps of bytes, called families. Thread-safe; `create`,
    `drop`, `write` and `close` are never called at the same time.

    Raises:
        StateError: any call after `close`; or the engine cannot read or write, with a
            message for the operator.
        StateCorruptError: the folder cannot be read and may be deleted: changelogs
            restore it.
    """

    def families(self) -> list[str]:
        """Return the names of all families."""
        ...

    def create(self, family: str) -> None:
        """Make a family, unless it exists."""

    def drop(self, family: str) -> None:
        """Remove a family with all its keys. Its getters find no key afterwards; its
        open iterators still return the old rows.
        """

    def getter(self, family: str) -> Getter:
        """Return a function that reads the value of a key in an existing family.

        The function is for the hot path. It sees all later writes.
        """
        ...

    def scan(
        self,
        family: str,
        start: bytes,
        end: bytes | None,
        *,
        reverse: bool = False,
    ) -> Rows:
        """Return the current rows with start <= key < end of an existing family,
        ascending or descending.
        """
        ...

    def write(self, changes: Sequence[Change]) -> None:
        """Apply all changes to existing families, atomically.

        Raises:
            StateError: nothing was written (no space left on the device, ...).
        """

    def count(self, family: str) -> int:
        """Return the approximate number of keys of an existing family."""
        ...

    def close(self) -> None:
        """Close the engine; open iterators raise an error afterwards. Idempotent."""


@runtime_checkable
class Scanning(Engine, Protocol):
    """An engine that reads many key ranges for little more than the cost of one.

    For other engines, the caller makes a `scan` for each range.
    """

    def scans(
        self,
        family: str,
        bounds: Sequence[Bounds],
        *,
        reverse: bool = False,
    ) -> list[Rows]:
        """Return the current rows of an existing family within each of the bounds, all
        as of one moment.
        """
        ...


@runtime_checkable
class Peeking(Engine, Protocol):
    """An engine that returns the first rows of a key range at less cost than `scan`,
    which may read or copy the whole range.
    """

    def first(
        self,
        family: str,
        start: bytes,
        end: bytes | None,
        most: int,
    ) -> list[tuple[bytes, bytes]]:
        """Return the first rows with start <= key < end of an existing family, at most
        `most`, ascending.
        """
        ...


@runtime_checkable
class Ingesting(Engine, Protocol):
    """An engine that takes RocksDB's sorted files without reading their rows.

    For other engines, the caller writes the rows in batches.
    """

    def ingest(
        self,
        family: str,
        files: Sequence[Path],
        *,
        move: bool = True,
    ) -> None:
        """Add the rows of sorted files (at least one; see `sst`) to an existing family.
        They replace rows of the same keys.

        `move`: whether the files are moved into the engine, so that they are gone
        afterwards. Earlier writes reach the disk before the files do. The ingested rows
        survive a crash of the machine once this has returned.

        Raises:
            SnapshotError: a file is missing or is not a sorted file.
        """
