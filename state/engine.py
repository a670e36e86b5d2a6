"""The interface of storage engines: ordered maps of bytes ("families") with atomic
writes over all of them.

There are two engines: `Rocks` on disk and `Memory`. Users add others by naming a class,
`package.module:Class`, which `engines` calls with a folder of the engine's own. The
folder exists, and is the same at the next start. `coopstreams.testing.check_engine`
tests an engine against this page.

Invariant: a `write` is atomic over all families, and a start finds the result of the
first n writes, for some n. So an engine may lose its latest writes, or all, when the
process or the machine dies. The last write of a commit also stores, in a family of its
own, the changelog offsets that the state stands for, so the changelog supplies the
rest. Turned down: snapshots as a type of their own. An iterator sees the moment at
which it was made; a caller that needs several iterators of one moment makes them while
no write runs.
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
"""First key, and the key behind the last one (None: there is no bound)."""


@dataclass(slots=True)
class Change:
    """A change of one family: first the ranges are deleted, then the keys get these
    values (None deletes a key).

    Shape: keys ascend, because RocksDB writes sorted keys several times faster. Ranges
    are half-open; an end of None is open.
    """

    family: str
    keys: Sequence[bytes] = ()
    values: Sequence[bytes | None] = ()
    vanishing: Sequence[tuple[bytes, bytes | None]] = ()


class Engine(Protocol):
    """Families of ordered bytes. Thread-safe; `create`, `drop`, `write` and `close` are
    never called at the same time.

    Raises:
        StateError: any call after `close`; or the engine cannot read or write, with a
        message for the operator.
        StateCorruptError: the folder cannot be read and may be deleted: changelogs
        restore it.
    """

    def families(self) -> list[str]:
        """Return the families that exist."""
        ...

    def create(self, family: str) -> None:
        """Make a family. An existing family is not changed."""

    def drop(self, family: str) -> None:
        """Remove a family with all its keys. Its getters find no key from then on; its
        iterators see the old rows.
        """

    def getter(self, family: str) -> Getter:
        """Return the function that reads a key of an existing family, for the hot path.
        It sees all later writes.
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
        """Write to existing families, atomically.

        Raises:
            StateError: nothing was written (no space left on the device, ...).
        """

    def count(self, family: str) -> int:
        """Return the approximate number of keys of an existing family."""
        ...

    def close(self) -> None:
        """Close the engine; iterators end with an error. Idempotent."""


@runtime_checkable
class Scanning(Engine, Protocol):
    """An engine that reads many ranges for little more than the cost of one. In others
    each range is a `scan`.
    """

    def scans(
        self,
        family: str,
        bounds: Sequence[Bounds],
        *,
        reverse: bool = False,
    ) -> list[Rows]:
        """Return the current rows within each of these bounds of an existing family,
        all of one moment.
        """
        ...


@runtime_checkable
class Peeking(Engine, Protocol):
    """An engine that returns some rows of a range at less cost than `scan`, which reads
    or copies the range.
    """

    def first(
        self,
        family: str,
        start: bytes,
        end: bytes | None,
        most: int,
    ) -> list[tuple[bytes, bytes]]:
        """Return the first rows with start <= key < end of an existing family, `most`
        of them, ascending.
        """
        ...


@runtime_checkable
class Ingesting(Engine, Protocol):
    """An engine that takes RocksDB's sorted files as they are. For other engines their
    rows are written one by one.
    """

    def ingest(
        self,
        family: str,
        files: Sequence[Path],
        *,
        move: bool = True,
    ) -> None:
        """Add the rows of sorted files (at least one; `sst`) to an existing family,
        over its rows.

        `move`: the files are gone afterwards. Everything written before is on disk
        first; the ingested rows survive a crash of the machine once this has returned.

        Raises:
            SnapshotError: a file is missing or is not a sorted file.
        """
