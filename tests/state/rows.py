"""Rows of stores: written as operators write them, and read from the database."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from pathlib import Path

from coopstreams.state import layout
from coopstreams.state.database import Database
from coopstreams.state.manifest import Slice
from coopstreams.state.rocks import Rocks
from coopstreams.topology.stores import TableStore

_numbers = count()


def put(table: TableStore, key: bytes, value: object, timestamp: int = 0) -> None:
    """Set the value of a key, as operators do."""
    entry = table.entries.get(key) or table.load(key)
    entry.value, entry.timestamp = value, timestamp
    if not entry.dirty:
        table.touch(key, entry)


def stored(database: Database, store: str = "counts") -> dict[bytes, tuple[bytes, int]]:
    """Return the value and the timestamp of each committed row of a store."""
    return {
        key: layout.unpack(data)
        for key, data in database.scan(store, range(256), None, None)
    }


def places(slices: Iterable[Slice]) -> list[tuple[int, int]]:
    """Return the partition and the number of each key group of the slices, in order."""
    return sorted(
        (each.partition, group)
        for each in slices
        for group in range(each.first, each.last + 1)
    )


def rocks(tmp_path: Path) -> Rocks:
    """Return an empty RocksDB in a folder of its own."""
    folder = tmp_path / f"rocks-{next(_numbers)}"
    folder.mkdir()
    return Rocks(folder)
