"""The engine on disk: RocksDB, with a column family for each family. Only this module
and `sst` import rocksdict.

A column family takes RocksDB 15 ms to make and as long to drop: it writes its manifest
and its options again. A store with a short retention drops a segment and makes another
every few minutes of stream time, which is many times a second when it catches up. So a
dropped family that never grew out of its memtable is emptied, and its column family
kept for the next one. Hence a column family may have the name of an earlier family; the
rows of the default column family say which family it has now. A family that has files
is dropped with them.

RocksDB loses no completed write when the process dies (write-ahead log, no fsync for
each write). When the machine dies, it comes back in an older state, the same one for
all families, and the changelog supplies the rest.

All families are flushed together. Otherwise one with few rows would need write-ahead
logs of long ago, and if somebody removed these (`find -name '*.log' -mtime +1
-delete`), RocksDB would open without an error, its rows missing (seen).

Invariant: after `close` this process holds nothing in the folder, even while getters,
iterators and errors still exist. An error keeps the variables of the functions that
raised it, so none of these may be the handle of a column family, nor an iterator.
Relies on: `engine` (what an engine promises); `options()` has the settings.
Turned down: rocksdict's own `items()`. At an unreadable block it ends without an error
(seen), so a scan over a damaged file would silently lose keys. `RdictIter` has a status
at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, count, repeat
from pathlib import Path
from threading import Lock
from weakref import WeakSet

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    ColumnFamily,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    IngestExternalFileOptions,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
)

from coopstreams.state.engine import (
    Bounds,
    Change,
    Getter,
    Rows,
)
from coopstreams.topology.errors import (
    SnapshotError,
    StateCorruptError,
    StateError,
    StateLockedError,
)

_MIB = 1 << 20
BLOCK_CACHE_BYTES = 64 * _MIB
"""The read cache, shared by all databases of the process."""
WRITE_BUFFERS_BYTES = 64 * _MIB
"""The bound on the memtables of all databases of the process together, above which they
are flushed.
"""
WRITE_BUFFER_BYTES = 16 * _MIB
"""The size of the memtable of one family at which it is flushed."""

_DEFAULT = "default"
"""The column family that maps the name of every other column family to the family in
it.
"""
_NO_FAMILY = b""
"""The value in `_DEFAULT` for an empty column family that is kept for the next family.
"""
_FILES_BYTES = "rocksdb.total-sst-files-size"

_DAMAGED = "DAMAGED"
"""The name of the file that marks a folder as damaged."""

_LOCKED = ("IO error: While lock file", "IO error: lock hold by current process")
"""The beginnings of the errors of a folder that another database has open."""

_CHUNK_BYTES = 64 << 10
"""The bytes of values at which a chunk of a scan ends: a scan of all key groups holds a
chunk of each.
"""

_MOST_SPARE = 4
"""The most emptied column families that are kept for later families."""

_BEYOND = b"\xff" * 64
"""An upper bound for almost all keys; keys above it are deleted one by one."""


class Rocks:
    """An `Engine` on RocksDB in a folder of its own.

    Raises:
        StateCorruptError: the folder cannot be read. It may be deleted: a changelog
        restores it.
        StateLockedError: another process has it open.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._columns: dict[str, _Column] = {}
        """The column family of each family."""
        self._handles: dict[str, ColumnFamily] = {}
        """The handle of each column family, by its name."""
        self._spare: list[_Column] = []
        """Empty column families that belong to no family."""
        self._cursors: WeakSet[_Cursor] = WeakSet()
        self._closed = False
        path = str(folder)
        if (folder / _DAMAGED).exists():
            raise self._damaged((folder / _DAMAGED).read_text(errors="replace"))
        known = (folder / "CURRENT").exists()
        if known and not any(folder.glob("*.log")):
            # RocksDB always has one. Without it, it opens families of different
            # moments, and says nothing.
            raise self._damaged("its write-ahead log, *.log, is missing")
        try:
            names = Rdict.list_cf(path, options()) if known else [_DEFAULT]
            self._db = Rdict(
                path,
                options(),
                column_families={name: options() for name in names},
            )
        except Exception as error:
            raise self._error(error, opening=True) from error
        try:
            for name in names:
                if name != _DEFAULT:
                    self._open_column(name)
        except Exception as error:
            with suppress(StateError):
                self.close()
            raise self._error(error) from error

    def families(self) -> list[str]:
        """Return the names of all families."""
        return list(self._columns)

    def create(self, family: str) -> None:
        """Make a family, unless it exists."""
        with self._lock:
            if family not in self._columns:
                self._check_open()
                try:
                    self._columns[family] = (
                        self._reused(family) if self._spare else self._made(family)
                    )
                except Exception as error:
                    raise self._error(error) from error

    def drop(self, family: str) -> None:
        """Remove a family with all its keys."""
        with self._lock:
            self._check_open()
            column = self._columns[family]
            spare = len(
                self._spare
            ) < _MOST_SPARE and not column.rdict.property_int_value(_FILES_BYTES)
            try:
                if spare:
                    self._empty(family, column)
                else:
                    self._db.drop_column_family(column.name)
            except Exception as error:  # the family is still there
                raise self._error(error) from error
            del self._columns[family]
            column.dropped = True
            if spare:
                self._spare.append(column)
            else:
                del self._handles[column.name]
                with suppress(Exception):
                    # a remaining row is written again before another family takes this
                    # name
                    self._db.delete(column.name.encode())
                with suppress(
                    Exception
                ):  # it closes, but raises because it cannot flush a dropped family
                    column.rdict.close()

    def getter(self, family: str) -> Getter:
        """Return a function that reads the value of a key in a family."""
        column = self._columns[family]
        read = column.rdict.get

        def get(key: bytes) -> bytes | None:
            try:
                found = read(key)
            except DbClosedError:
                self._check_open()
                return None  # the family was dropped
            except Exception as error:
                raise self._error(error) from error
            return None if column.dropped else found

        return get

    def scan(
        self,
        family: str,
        start: bytes,
        end: bytes | None,
        *,
        reverse: bool = False,
    ) -> Rows:
        """Return the current rows with start <= key < end, ascending, or descending
        with `reverse`. `end` None: no upper bound.
        """
        return self.scans(family, [(start, end)], reverse=reverse)[0]

    def scans(
        self,
        family: str,
        bounds: Sequence[Bounds],
        *,
        reverse: bool = False,
    ) -> list[Rows]:
        """Return the current rows within each of the bounds, all as of one moment: they
        share an iterator.
        """
        # An iterator for each range, with options and a place among the cursors, costs
        # six times a seek (7 us). The lower bounds are checked here: rocksdict 0.3.29
        # sets the upper bound in `set_iterate_lower_bound` (seen).
        until = ReadOptions()
        ends = [end for _, end in bounds]
        if ends and None not in ends:
            until.set_iterate_upper_bound(max(end for end in ends if end is not None))
        with self._lock:
            self._check_open()
            cursor = _Cursor(self._columns[family].rdict.iter(until), until)
            self._cursors.add(cursor)
        return [self._rows(cursor, start, end, reverse) for start, end in bounds]

    def write(self, changes: Sequence[Change]) -> None:
        """Apply all changes to existing families, atomically."""
        batch = WriteBatch(raw_mode=True)
        with self._lock:
            self._check_open()
            for change in changes:
                self._add(batch, change)
            try:
                self._db.write(batch)
            except Exception as error:
                raise self._error(error) from error

    def ingest(
        self,
        family: str,
        files: Sequence[Path],
        *,
        move: bool = True,
    ) -> None:
        """Add the rows of sorted files to an existing family: see `Ingesting.ingest`."""
        how = IngestExternalFileOptions()
        how.set_move_files(move)
        with self._lock:
            self._check_open()
            try:
                # Earlier writes are on disk before the files are: after a crash of the
                # machine, the files must not be there alone.
                self._db.flush_wal(True)
            except Exception as error:
                raise self._error(error) from error
            try:
                self._columns[family].rdict.ingest_external_file(
                    [str(file) for file in files],
                    how,
                )
            except Exception as error:  # the fault is in the files, not in the database
                raise SnapshotError(
                    f'files do not go into "{self._folder}": {str(error).strip()}'
                ) from error

    def count(self, family: str) -> int:
        """Return the approximate number of keys of a family: overwritten keys count
        repeatedly until compaction.
        """
        with self._lock:
            self._check_open()
            return (
                self._columns[family].rdict.property_int_value(
                    "rocksdb.estimate-num-keys"
                )
                or 0
            )

    def close(self) -> None:
        """Close the engine; open iterators raise an error afterwards. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for cursor in list(self._cursors):
                cursor.iterator = None
            opened = [
                *(column.rdict for column in (*self._columns.values(), *self._spare)),
                self._db,
            ]
            self._columns.clear()
            self._spare.clear()
            self._handles.clear()
            failures: list[Exception] = []
            for rdict in opened:
                try:
                    rdict.close()
                except Exception as error:  # noqa: BLE001 the others are closed all the same
                    failures.append(error)
            if failures:
                raise self._error(failures[0]) from failures[0]

    def _open_column(self, name: str) -> None:
        """Open a column family of the folder, and note which family is in it."""
        family = self._db.get(
            name.encode()
        )  # first: if it cannot be read, no handle is left open
        column = _Column(name, self._db.get_column_family(name))
        self._handles[name] = self._db.get_column_family_handle(name)
        if family == _NO_FAMILY:
            self._spare.append(column)
        else:
            self._columns[name if family is None else family.decode()] = column

    def _made(self, family: str) -> _Column:
        """Create a column family for a family, and return it."""
        taken = {column.name for column in (*self._columns.values(), *self._spare)}
        name = next(
            name
            for name in chain([family], (f"{family}+{n}" for n in count(1)))
            if name not in taken
        )
        # A column family is on disk at once, so the name of its family is written
        # first: an older name may be there.
        self._db.put(name.encode(), family.encode())
        self._db.flush_wal(True)
        rdict = self._db.create_column_family(name, options())
        self._handles[name] = self._db.get_column_family_handle(name)
        return _Column(name, rdict)

    def _reused(self, family: str) -> _Column:
        """Return a spare column family, which now belongs to this family."""
        spare = self._spare[-1]
        self._db.put(spare.name.encode(), family.encode())
        self._spare.pop()
        return _Column(spare.name, spare.rdict)

    def _empty(self, family: str, column: _Column) -> None:
        """Delete all rows of a family, and mark its column family as spare, in one
        write.
        """
        batch = WriteBatch(raw_mode=True)
        self._vanish(batch, family, b"", None)
        batch.put(column.name.encode(), _NO_FAMILY)
        self._db.write(batch)

    def _add(self, batch: WriteBatch, change: Change) -> None:
        """Add a change to a batch. The caller holds the lock."""
        put = batch.put
        delete = batch.delete
        handle = self._handles[self._columns[change.family].name]
        for start, end in change.vanishing:
            self._vanish(batch, change.family, start, end)
        for key, value in zip(change.keys, change.values, strict=True):
            if value is None:
                delete(key, handle)
            else:
                put(key, value, handle)

    def _vanish(
        self,
        batch: WriteBatch,
        family: str,
        start: bytes,
        end: bytes | None,
    ) -> None:
        """Add to a batch the deletion of the keys of a family with start <= key < end."""
        column = self._columns[family]
        if start < (_BEYOND if end is None else end):
            batch.delete_range(
                start,
                _BEYOND if end is None else end,
                self._handles[column.name],
            )
        if end is None:
            rest = column.rdict.iter()
            rest.seek(max(start, _BEYOND))
            while rest.valid():
                batch.delete(rest.key(), self._handles[column.name])
                rest.next()

    def _rows(
        self,
        cursor: _Cursor,
        start: bytes,
        end: bytes | None,
        reverse: bool,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a range. `cursor`: has the iterator, which `close` may take
        away.
        """
        # In chunks: between them only the cursor holds the iterator, so that `close`
        # can take it away.
        for size in chain((2, 8, 32), repeat(256)):
            chunk, more = self._chunk(cursor, start, end, reverse, size)
            yield from chunk
            if not more:
                return
            if reverse:
                end = chunk[-1][0]
            else:
                start = chunk[-1][0] + b"\0"

    def _chunk(
        self,
        cursor: _Cursor,
        start: bytes,
        end: bytes | None,
        reverse: bool,
        size: int,
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Return the first rows of a range, `size` at most, and whether more follow. At
        least one row comes, if there is any.
        """
        chunk: list[tuple[bytes, bytes]] = []
        room = _CHUNK_BYTES
        with self._lock:
            iterator = cursor.iterator
            if iterator is None:
                raise self._closed_error()
            if reverse:
                _seek_before(iterator, end)
            else:
                iterator.seek(start)
            step = iterator.prev if reverse else iterator.next
            valid = iterator.valid
            key = iterator.key
            value = iterator.value
            while valid():
                at = key()
                if at < start or (end is not None and at >= end):
                    return chunk, False
                if len(chunk) == size or room <= 0:
                    return chunk, True
                data = value()
                room -= len(data)
                chunk.append((at, data))
                step()
            try:
                iterator.status()
            except Exception as error:
                # An iterator keeps the folder locked, and the error keeps these.
                del iterator, valid, key, value, step
                raise self._error(error) from error
        return chunk, False

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> StateError:
        return StateError(f'the database in "{self._folder}" is closed')

    def _error(self, error: Exception, *, opening: bool = False) -> StateError:
        """Return an error that explains RocksDB's error to an operator."""
        text = str(error).strip()
        if "Corruption" in text or (
            opening and ("No such file" in text or text.startswith("Invalid argument"))
        ):
            if not opening:
                # opening reads only some blocks: the mark makes the next start delete
                # the folder
                with suppress(OSError):
                    (self._folder / _DAMAGED).write_text(text)
            return self._damaged(text)
        if text.startswith(_LOCKED):
            return StateLockedError(
                f'"{self._folder}" is in use: stop the other process, or give this one another instance number or '
                f"state.dir ({text})"
            )
        return StateError(
            f'"{self._folder}" cannot be {"opened" if opening else "used"}: {text}'
        )

    def _damaged(self, text: str) -> StateCorruptError:
        return StateCorruptError(
            f'"{self._folder}" is damaged and may be deleted: changelogs restore it ({text})'
        )


class _Column:
    """A RocksDB column family that holds one of our families, until that is dropped."""

    __slots__ = ("dropped", "name", "rdict")

    def __init__(self, name: str, rdict: Rdict) -> None:
        self.name = name
        self.rdict = rdict
        self.dropped = False


def _seek_before(iterator: RdictIter, end: bytes | None) -> None:
    """Put an iterator on the last row below `end`; None: on the last row."""
    if end is None:
        iterator.seek_to_last()
        return
    iterator.seek_for_prev(end)
    if iterator.valid() and iterator.key() == end:
        iterator.prev()


class _Cursor:
    """A RocksDB iterator that `Rocks.close` can take away: RocksDB does not close while
    a reader holds an iterator.
    """

    __slots__ = ("__weakref__", "_bounds", "iterator")

    def __init__(self, iterator: RdictIter, bounds: ReadOptions) -> None:
        self.iterator: RdictIter | None = iterator
        # RocksDB reads the upper bound from it while it iterates, and rocksdict does
        # not keep it (seen)
        self._bounds = bounds


@cache
def _block_cache() -> Cache:
    return Cache(BLOCK_CACHE_BYTES)


@cache
def _write_buffers() -> WriteBufferManager:
    return WriteBufferManager(WRITE_BUFFERS_BYTES, False)


def options() -> Options:
    """Return the options of databases and sorted files: small in memory, quick to open,
    safe when the process dies.

    The databases of a process share the cache and the write buffer budget.
    """
    table = BlockBasedOptions()
    table.set_block_cache(_block_cache())
    table.set_bloom_filter(10, False)
    table.set_cache_index_and_filter_blocks(True)
    # As one block, the filter of two million rows is larger than a shard of the cache
    # (1 MiB), and was read again for each look-up: 280 us instead of 2 (measured).
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_pin_top_level_index_and_filter(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    result = Options(raw_mode=True)
    result.create_if_missing(True)
    result.create_missing_column_families(True)
    result.set_block_based_table_factory(table)
    result.set_compression_type(DBCompressionType.lz4())
    result.set_write_buffer_size(WRITE_BUFFER_BYTES)
    result.set_write_buffer_manager(_write_buffers())
    result.set_arena_block_size(64 << 10)
    result.set_max_background_jobs(2)
    result.set_max_open_files(256)
    result.set_max_total_wal_size(WRITE_BUFFERS_BYTES)
    result.set_atomic_flush(True)
    result.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    result.set_keep_log_file_num(1)
    result.set_max_log_file_size(_MIB)
    result.set_stats_dump_period_sec(0)
    return result
