"""A user's engine: SQLite, with one table for all families. It is named
`tests.state.sqlite_engine:Sqlite`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from coopstreams import Change
from coopstreams.state.engine import Getter
from coopstreams.topology.errors import StateCorruptError, StateError

NAME = "tests.state.sqlite_engine:Sqlite"


class Sqlite:
    """An `Engine`. With its write-ahead log, no completed write is lost when the
    process dies.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "rows.sqlite"
        self._lock = Lock()
        self._closed = False
        try:
            self._db = sqlite3.connect(
                self._file, check_same_thread=False, isolation_level=None
            )
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS families (name TEXT PRIMARY KEY)"
            )
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS rows (family TEXT, key BLOB, value BLOB, PRIMARY KEY (family, key)) "
                "WITHOUT ROWID"
            )
        except sqlite3.DatabaseError as error:
            raise StateCorruptError(f'"{folder}" may be deleted: {error}') from error

    def families(self) -> list[str]:
        with self._using():
            return [name for (name,) in self._db.execute("SELECT name FROM families")]

    def create(self, family: str) -> None:
        with self._using():
            self._db.execute("INSERT OR IGNORE INTO families VALUES (?)", (family,))

    def drop(self, family: str) -> None:
        with self._using(), self._batch():
            self._db.execute("DELETE FROM families WHERE name = ?", (family,))
            self._db.execute("DELETE FROM rows WHERE family = ?", (family,))

    def getter(self, family: str) -> Getter:
        def get(key: bytes) -> bytes | None:
            with self._using():
                row = self._db.execute(
                    "SELECT value FROM rows WHERE family = ? AND key = ?", (family, key)
                ).fetchone()
            return None if row is None else row[0]

        return get

    def scan(
        self, family: str, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        order = "DESC" if reverse else "ASC"
        with self._using():
            where, bounds = _between(family, start, end)
            found = self._db.execute(
                f"SELECT key, value FROM rows WHERE {where} ORDER BY key {order}",
                bounds,
            ).fetchall()
        return self._rows(found)

    def write(self, changes: Sequence[Change]) -> None:
        with self._using(), self._batch():
            known = {name for (name,) in self._db.execute("SELECT name FROM families")}
            for change in changes:
                if change.family not in known:
                    raise KeyError(change.family)
                for start, end in change.vanishing:
                    where, bounds = _between(change.family, start, end)
                    self._db.execute(f"DELETE FROM rows WHERE {where}", bounds)
                rows = list(zip(change.keys, change.values, strict=True))
                gone = [(change.family, key) for key, value in rows if value is None]
                kept = [
                    (change.family, key, value)
                    for key, value in rows
                    if value is not None
                ]
                self._db.executemany(
                    "DELETE FROM rows WHERE family = ? AND key = ?", gone
                )
                self._db.executemany(
                    "INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", kept
                )

    def count(self, family: str) -> int:
        with self._using():
            return int(
                self._db.execute(
                    "SELECT count(*) FROM rows WHERE family = ?", (family,)
                ).fetchone()[0]
            )

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._db.close()

    @contextmanager
    def _using(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise StateError(f'"{self._file}" is closed')
            try:
                yield
            except sqlite3.Error as error:
                raise StateError(f'"{self._file}": {error}') from error

    @contextmanager
    def _batch(self) -> Iterator[None]:
        self._db.execute("BEGIN")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if (
                self._db.in_transaction
            ):  # when the disk is full, SQLite has already rolled back
                self._db.execute("ROLLBACK")
            raise

    def _rows(self, found: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for row in found:
            if self._closed:
                raise StateError(f'"{self._file}" is closed')
            yield row


def _between(
    family: str, start: bytes, end: bytes | None
) -> tuple[str, tuple[str | bytes, ...]]:
    if end is None:
        return "family = ? AND key >= ?", (family, start)
    return "family = ? AND key >= ? AND key < ?", (family, start, end)
