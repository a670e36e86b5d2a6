"""RocksDB's sorted files: they carry state from one database to another without writing
it row by row.

Invariant: a written file is complete; rows out of order are an error, never a wrong
file.
Relies on: `rocks` (the options of a database), `snapshot` (writes files),
`Database.ingest`.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rocksdict import SstFileWriter

from coopstreams.state.engine import Rows
from coopstreams.state.rocks import Rocks, options
from coopstreams.topology.errors import (
    CoopStreamsError,
    SnapshotError,
    StateCorruptError,
    StateError,
)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A written file: the number of its rows, and its first and last key (both
    inclusive).
    """

    entries: int
    first_key: bytes
    last_key: bytes


def write_sst(file: Path, rows: Rows) -> WrittenFile | None:
    """Write rows to a file. Without rows, write no file and return None: RocksDB takes
    no empty file.

    Raises:
        SnapshotError: the keys do not ascend strictly, or the disk is full.
    """
    first = next(rows, None)
    if first is None:
        return None
    key, value = first
    entries = 1
    writer = SstFileWriter(options())
    try:
        writer.open(str(file))
        writer[key] = value
        for key, value in rows:
            writer[key] = value
            entries += 1
        writer.finish()
    except CoopStreamsError:
        raise
    except Exception as error:
        raise SnapshotError(
            f"cannot write {file}, at key {key.hex()}: {error}"
        ) from error
    return WrittenFile(entries, first[0], key)


def read_sst(file: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a file, ascending. The file is not changed: a copy beside it is
    read, where there is space for state.

    Raises:
        SnapshotError: it is not a file of RocksDB, or there is no space for its copy.
        StateCorruptError: RocksDB finds it damaged.
    """
    try:
        with tempfile.TemporaryDirectory(
            prefix="coopstreams-sst-",
            dir=file.parent,
        ) as folder:
            database = Rocks(Path(folder))
            try:
                database.create("rows")
                database.ingest("rows", [file], move=False)
                yield from database.scan("rows", b"", None)
            finally:
                database.close()
    except (StateError, OSError) as error:
        if isinstance(error, SnapshotError | StateCorruptError):
            raise
        raise SnapshotError(f"{file} cannot be read: {error}") from error


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
