"""An engine in memory: for `in_memory` stores, tests, and the topology test driver. Its
rows are lost when the process ends.

Relies on: `engine` (the contract: threads, iterators of a moment, what a drop means).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from threading import Lock
from typing import Any

from sortedcontainers import SortedDict

from coopstreams.state.engine import Change, Getter, Rows
from coopstreams.topology.errors import StateError


class Memory:
    """An `Engine` whose families are sorted dicts."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}
        self._lock = Lock()
        self._closed = False

    def families(self) -> list[str]:
        """Return the names of all families."""
        return list(self._families)

    def create(self, family: str) -> None:
        """Make a family, unless it exists."""
        self._families.setdefault(family, SortedDict())

    def drop(self, family: str) -> None:
        """Remove a family with all its keys."""
        with self._lock:
            self._families.pop(family).clear()

    def getter(self, family: str) -> Getter:
        """Return a function that reads the value of a key in a family."""
        rows = self._families[family]

        def get(key: bytes) -> bytes | None:
            self._check_open()
            found: bytes | None = rows.get(key)
            return found

        return get

    def scan(
        self,
        family: str,
        start: bytes,
        end: bytes | None,
        *,
        reverse: bool = False,
    ) -> Rows:
        """Return the current rows with start <= key < end."""
        return self._rows(self._copied(family, start, end, reverse=reverse))

    def first(
        self,
        family: str,
        start: bytes,
        end: bytes | None,
        most: int,
    ) -> list[tuple[bytes, bytes]]:
        """Return the first rows with start <= key < end, at most `most`."""
        return self._copied(family, start, end, most)

    def write(self, changes: Sequence[Change]) -> None:
        """Apply all changes to existing families, atomically."""
        with self._lock:
            self._check_open()
            for family in {change.family for change in changes}:
                self._families[
                    family
                ]  # raises for a missing family before anything is written
            for change in changes:
                rows = self._families[change.family]
                for start, end in change.vanishing:
                    for key in list(rows.irange(start, end, (True, False))):
                        del rows[key]
                for key, value in zip(change.keys, change.values, strict=True):
                    if value is None:
                        rows.pop(key, None)
                    else:
                        rows[key] = value

    def count(self, family: str) -> int:
        """Return the number of keys of a family."""
        self._check_open()
        return len(self._families[family])

    def close(self) -> None:
        """Close the engine; open iterators raise an error afterwards."""
        self._closed = True

    def _copied(
        self,
        family: str,
        start: bytes,
        end: bytes | None,
        most: int | None = None,
        *,
        reverse: bool = False,
    ) -> list[tuple[bytes, bytes]]:
        with self._lock:
            self._check_open()
            rows = self._families[family]
            return [
                (key, rows[key])
                for key in islice(rows.irange(start, end, (True, False), reverse), most)
            ]

    def _rows(self, found: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for row in found:
            self._check_open()
            yield row

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("the database is closed")
