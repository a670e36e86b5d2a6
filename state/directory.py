"""The state folder of an instance: its lock, its databases and the files on disk.

    <state.dir>/<application id>/instance-<n>/
        lock                 held while the process lives, not by its forked children; has its process id
        format               version of everything below
        application          the application id, for which the folder was made
        topology-topic-id    where the rows of stores without a changelog are from, see `begin`
        process-id           names this folder for ever: transactional ids are made of it
        member-id            the member id that the folder's last process had in the group
        <sub>_<partition>/   a database, shared by the tasks of that partition, if they have stores
        <sub>_<partition>.<engine>/   the part of it that is in a user's engine

Invariant: one process at a time; one `Database` for each partition, open while it has
users.
Invariant: when the last user releases a database without a key, its folders are
removed.
Relies on: `database`, `engines` (the folder of each engine).
Turned down: RocksDB's own lock as the lock of the instance (a process without
a task would not hold it).
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from uuid import UUID, uuid4

from coopstreams.state.database import Database
from coopstreams.state.engine import Engine
from coopstreams.state.engines import folder_of, open_database, open_engine
from coopstreams.state.layout import groups_of
from coopstreams.state.task_state import NO_TABLES, MakeTable, TaskState
from coopstreams.topology.errors import StateCorruptError, StateError, StateLockedError
from coopstreams.topology.graph.nodes import SubTopology
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.stores import ROCKS_DB, StoreSpec
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

FORMAT = 2
"""The version of the layout on disk. Since 2, checkpoints name the topic id of their
changelog; those of 1 do not, so their topic may have been recreated.
"""

MEMBER_ID = "member-id"
ENDED = "ended"
"""The file by which a process tells its successor that everything its tasks wrote is in
the log.
"""
_PARTITION = re.compile(r"(\d+)_(\d+)(\..*(?<!\.deleted))?")
_DOOMED = ".deleted"


@dataclass(slots=True)
class _Open:
    """An open database, and the number of tasks that use it."""

    database: Database
    users: int = 0


class StateDirectory:
    """The state folder of one instance, with its open databases. Thread-safe: two
    locks.

    `store_type`: the store type of stores that name none.

    Raises:
        StateLockedError: another process has the folder; the message names the process
            and the cure.
        StateError: the folder cannot be used, or a newer coopstreams wrote it.
    """

    def __init__(
        self,
        root: Path | str,
        application_id: str,
        instance: int,
        *,
        store_type: str = ROCKS_DB,
    ) -> None:
        self.folder = Path(root) / application_id / f"instance-{instance}"
        self._store_type = store_type
        self._changing = Lock()
        """Held while databases are opened, emptied or closed. Queries of open databases
        do not wait for it.
        """
        self._lock = Lock()
        """Held while users are counted; may be taken while `_changing` is held."""
        self._open: dict[tuple[int, int], _Open] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # First: without it, what is in the folder may be another process's.
            self._folder_lock = _Lock(self.folder)
            try:
                _check_format(self.folder)
                _check_application(self.folder, application_id)
                self.process_id = _process_id(self.folder)
                member = self.folder / MEMBER_ID
                self.last_member = (
                    member.read_text(errors="replace").strip()
                    if member.exists()
                    else ""
                )
                """The member id of the process that had the folder last; empty if
                unknown. The holder of the lock knows that this process has ended.
                """
                ended = self.folder / ENDED
                self.ended = ended.exists()
                """Whether the process that had the folder last has ended cleanly: no
                record of it is under way.
                """
                ended.unlink(missing_ok=True)
                for doomed in self.folder.glob(f"*{_DOOMED}"):
                    shutil.rmtree(doomed, ignore_errors=True)
            except BaseException:
                self._folder_lock.release()
                raise
        except OSError as error:
            raise StateError(
                f'state folder "{self.folder}" cannot be used: {error}. Set state.dir to a folder that can be written.'
            ) from error

    def note_member(self, id_: str) -> None:
        """Store the member id of this process for its successor.

        Without it, the successor waits until the group's session time-out has removed
        this process.
        """
        try:
            if id_ != self.last_member:
                _write(self.folder / MEMBER_ID, id_)
                self.last_member = id_
        except OSError as error:
            log.warning('"%s" cannot be written: %s', self.folder / MEMBER_ID, error)

    def note_end(self) -> None:
        """Store that the tasks of this process have ended cleanly, and write nothing any
        more.
        """
        try:
            _write(self.folder / ENDED, self.last_member)
        except OSError as error:
            log.warning('"%s" cannot be written: %s', self.folder / ENDED, error)

    def begin(self, topic_id: str) -> None:
        """Empty the folder if its rows are from before a reset of the application, or
        from another cluster.

        The checkpoints of stores without a changelog do not show that. Call it before
        the first database is opened: if one is open, nothing is deleted.

        `topic_id`: the id of the topic that keeps the topology, which a reset deletes.
        If it is empty (unknown), nothing is done. A folder in which no id was stored
        yet is kept.

        Raises:
            StateError: the folder cannot be used.
        """
        file = self.folder / "topology-topic-id"
        try:
            with self._changing:
                said = file.read_text(errors="replace").strip() if file.exists() else ""
                if topic_id in ("", said):
                    return
                if said and not self._open:
                    _empty(self.folder)
                    log.warning(
                        'state folder "%s" is from before the application was reset, or from another cluster: it is '
                        "emptied, changelogs restore it, and stores without one begin empty",
                        self.folder,
                    )
                _write(file, topic_id)
        except OSError as error:
            raise StateError(
                f'state folder "{self.folder}" cannot be used: {error}'
            ) from error

    def open(
        self,
        subtopology: int,
        partition: int,
        specs: Sequence[StoreSpec],
        *,
        wipe_corrupt: bool = False,
    ) -> Database:
        """Return the database of a partition, the same one for all callers. Give it
        back with `release`.

        `wipe_corrupt`: delete a damaged database, log it, and begin with an empty one.

        Raises:
            StateCorruptError: the database is damaged; the message names the folder and
                whether it may be deleted.
        """
        at = (subtopology, partition)
        with self._lock:
            if (known := self._open.get(at)) is not None:
                known.users += 1
                return known.database
        with self._changing:
            return self._use(at, specs, wipe_corrupt)

    def borrow(self, subtopology: int, partition: int) -> Database | None:
        """Return the database of a partition if it is open; give it back with
        `release`. None: it is not open.
        """
        with self._lock:
            known = self._open.get((subtopology, partition))
            if known is None or not known.users:
                return None
            known.users += 1
            return known.database

    def release(self, subtopology: int, partition: int) -> None:
        """Give back a database that `open` returned. When its last user does so, close
        it, and remove its folders if it is empty. After `close`, do nothing.
        """
        at = (subtopology, partition)
        with self._lock:
            if (known := self._open.get(at)) is not None and known.users > 1:
                known.users -= 1
                return
        with self._changing:
            self._give_back(at)

    def drop(
        self,
        subtopology: int,
        partition: int,
        ranges: Iterable[KeyRange],
        specs: Sequence[StoreSpec],
    ) -> None:
        """Delete the keys and checkpoints of key ranges that have moved away, and the
        folders if nothing is left in them.

        A damaged database is deleted as a whole: changelogs restore its other ranges.
        """
        at = (subtopology, partition)
        with self._changing:
            if at not in self._open and not self._folders(at):
                return
            database = self._use(at, specs, wipe_corrupt=True)
            try:
                for key_range in ranges:
                    database.drop(groups_of(key_range))
            finally:
                self._give_back(at)

    def keep(self, ranges: Mapping[tuple[int, int], Iterable[KeyRange]]) -> None:
        """Delete all state outside of these key ranges, which are given by sub-topology
        and partition.

        A database that is not open is kept if `ranges` has its partition, and deleted
        as a whole if not.
        """
        with self._changing:
            for at in self.partitions():
                known = self._open.get(at)
                if known is None and at not in ranges:
                    log.info(
                        '"%s" is deleted: this process has no task of that partition any more',
                        self._path(at),
                    )
                    for folder in self._folders(at):
                        _remove(folder)
                elif (
                    known is not None and known.database.specs
                ):  # without stores, ranges need not be cut at key groups
                    for gone in WHOLE.minus(ranges.get(at, ())):
                        known.database.drop(groups_of(gone))

    def partitions(self) -> list[tuple[int, int]]:
        """Return the (sub-topology, partition) pairs that have a folder, ascending."""
        names = (
            _PARTITION.fullmatch(path.name)
            for path in self.folder.iterdir()
            if path.is_dir()
        )
        return sorted({(int(name[1]), int(name[2])) for name in names if name})

    def close(self) -> None:
        """Close all open databases and release the lock of the folder. Idempotent."""
        with self._changing:
            with self._lock:
                opened = dict(self._open)
                self._open.clear()
            for at, known in opened.items():
                self._close(at, known.database)
            self._folder_lock.release()

    def _path(self, at: tuple[int, int]) -> Path:
        return self.folder / f"{at[0]}_{at[1]}"

    def _folders(self, at: tuple[int, int]) -> list[Path]:
        names = (
            (path, _PARTITION.fullmatch(path.name))
            for path in self.folder.iterdir()
            if path.is_dir()
        )
        return [
            path for path, name in names if name and (int(name[1]), int(name[2])) == at
        ]

    def _use(
        self,
        at: tuple[int, int],
        specs: Sequence[StoreSpec],
        wipe_corrupt: bool,
    ) -> Database:
        """Return the database of a partition for one more user, opened if need be. The
        caller holds `_changing`.
        """
        if not self._folder_lock.held:
            raise StateError(f'state folder "{self.folder}" is closed')
        known = self._open.get(at)
        if known is None:
            known = self._open[at] = _Open(self._database(at, specs, wipe_corrupt))
        with self._lock:
            known.users += 1
        return known.database

    def _database(
        self,
        at: tuple[int, int],
        specs: Sequence[StoreSpec],
        wipe_corrupt: bool,
    ) -> Database:
        """Open the database of a partition; see `open`."""
        try:
            return open_database(
                specs,
                self._store_type,
                partial(self._engine, at, wipe_corrupt),
            )
        except StateCorruptError as error:  # its engines opened, but could not be read
            if not wipe_corrupt:
                raise
            log.warning("%s. Deleting all of it.", error)
            for folder in self._folders(at):
                _remove(folder)
            return open_database(
                specs,
                self._store_type,
                partial(self._engine, at, wipe_corrupt),
            )

    def _engine(
        self,
        at: tuple[int, int],
        wipe_corrupt: bool,
        store_type: str,
    ) -> Engine:
        folder = self._path(at)
        try:
            return open_engine(folder, store_type)
        except StateCorruptError as error:
            if not wipe_corrupt:
                raise
            log.warning("%s. Deleting it.", error)
            _remove(folder_of(folder, store_type))
            return open_engine(folder, store_type)

    def _give_back(self, at: tuple[int, int]) -> None:
        """Count one user less; the last one closes the database. The caller holds
        `_changing`.
        """
        with self._lock:
            known = self._open.get(at)
            if known is None:
                return  # closed with the directory
            known.users -= 1
            if known.users:
                return
            del self._open[at]
        self._close(at, known.database)

    def _close(self, at: tuple[int, int], database: Database) -> None:
        """Close a database without users, and remove its folders if it is empty."""
        try:
            empty = bool(database.specs) and database.is_empty()
        except StateError:  # the next open reports it
            empty = False
        try:
            database.close()
        except StateError as error:
            # its users are gone, and failed writes were reported to the last writer
            log.warning(
                "%s. The changelogs restore the writes that it has lost.",
                error,
            )
        for folder in self._folders(at) if empty else ():
            _remove(folder)


class Databases:
    """The databases of an instance, one for each (sub-topology, partition), shared by
    sibling tasks. Thread-safe, as the directory is.

    A database is opened by the first task that enters it and closed by the last that
    leaves it.

    Units: `cache_bytes` bounds the buffers of one task.
    """

    def __init__(
        self,
        directory: StateDirectory,
        subtopologies: Mapping[int, SubTopology],
        cache_bytes: int,
        tables: Callable[[SubTopology], Mapping[str, MakeTable]] = lambda _: NO_TABLES,
    ) -> None:
        """Open no database yet.

        `tables`: returns the factories of a sub-topology's stores that need another
        class than the usual one.
        """
        self._tables = tables
        self._directory = directory
        self._subtopologies = subtopologies
        self._cache_bytes = cache_bytes

    def subtopology(self, task: TaskId) -> SubTopology:
        """Return the sub-topology of a task."""
        return self._subtopologies[task.subtopology]

    def enter(self, task: TaskId) -> Database:
        """Return the database of a task's partition; call `leave` once for it.

        A corrupt database is deleted and begins empty: the changelogs restore it.
        """
        return self._directory.open(
            task.subtopology,
            task.partition,
            self.subtopology(task).stores,
            wipe_corrupt=True,
        )

    def borrow(self, task: TaskId) -> Database | None:
        """Return the database of a task's partition if it is open; call `leave` once for
        it. None: it is not open.
        """
        return self._directory.borrow(task.subtopology, task.partition)

    def state(self, task: TaskId, database: Database) -> TaskState:
        """Return the stores of a task over its database. Call it after the restore."""
        part = self.subtopology(task)
        return TaskState(
            database,
            part.stores,
            task.key_range,
            self._cache_bytes,
            self._tables(part),
        )

    def leave(self, task: TaskId) -> None:
        """Give back the database of a task's partition. The last task closes it."""
        self._directory.release(task.subtopology, task.partition)

    def moved_away(self, task: TaskId, here: Iterable[TaskId]) -> None:
        """Delete a task's key range, except what tasks of `here` have, so that a moved
        range leaves no keys behind.
        """
        kept = [other.key_range for other in here if other.conflicts(task)]
        gone = task.key_range.minus(kept)
        stores = self.subtopology(task).stores
        if gone and stores:
            self._directory.drop(task.subtopology, task.partition, gone, stores)

    def keep(self, here: Iterable[TaskId]) -> None:
        """Delete all state that no task of `here` has: see `StateDirectory.keep`."""
        ranges: dict[tuple[int, int], list[KeyRange]] = {}
        for task in here:
            ranges.setdefault((task.subtopology, task.partition), []).append(
                task.key_range
            )
        self._directory.keep(ranges)


def instance_folders(root: Path, application_id: str) -> list[Path]:
    """Return the folders of the instances of an application below a `state.dir`."""
    return sorted(
        path for path in (root / application_id).glob("instance-*") if path.is_dir()
    )


def delete_folder(folder: Path) -> None:
    """Delete the state of an instance that is not running.

    Raises:
        StateLockedError: the instance is running; the message names its process.
    """
    lock = _Lock(folder)
    try:
        _remove(folder)
    finally:
        lock.release()


class _Lock:
    """The lock of a state folder, held from the start until `release`.

    A forked child closes its copy of the file: otherwise the kernel would keep the lock
    until the child ends as well.

    Raises:
        StateLockedError: another process has the lock, or another instance in this one;
            the message names the process and the cure.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._file = os.open(
            folder / "lock",
            os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
            0o644,
        )
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError as error:
            owner = (
                os.pread(self._file, 20, 0).decode(errors="replace").strip()
                or "unknown"
            )
            self.release()
            here = any(lock._folder == self._folder for lock in list(_LOCKS))
            holder = (
                f"another instance in this process ({owner})"
                if here
                else f"process {owner}"
            )
            raise StateLockedError(
                f'state folder "{folder}" is in use by {holder}: stop it, or give this one another instance number '
                "or state.dir"
            ) from error
        except OSError:
            self.release()
            raise
        _LOCKS.add(self)

    @property
    def held(self) -> bool:
        return self._file >= 0

    def release(self) -> None:
        """Give the lock up. Idempotent."""
        _LOCKS.discard(self)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


_LOCKS: set[_Lock] = set()
"""The locks that this process has."""


def _release_all() -> None:
    """Give up the locks in a forked child: they are its parent's."""
    for lock in list(_LOCKS):
        lock.release()


os.register_at_fork(after_in_child=_release_all)


def _check_format(folder: Path) -> None:
    """Empty a folder of an earlier format; raise an error for a later one."""
    file = folder / "format"
    if not file.exists():
        _write(file, str(FORMAT))
    written = (
        file.read_text(errors="replace").strip() or "0"
    )  # the machine died before it was on the disk
    if not written.isdecimal():
        raise StateCorruptError(
            f'"{file}" is damaged: delete the folder "{folder}", changelogs restore it'
        )
    if int(written) < FORMAT:
        _empty(folder)
        log.warning(
            'state folder "%s" was of format %s: it is emptied once, the changelogs restore it',
            folder,
            written,
        )
        _write(file, str(FORMAT))
    if int(written) > FORMAT:
        raise StateError(
            f'state folder "{folder}" has format {written}, this coopstreams knows up to {FORMAT}: upgrade '
            "coopstreams, "
            "give this one another state.dir, or delete the folder (changelogs restore it)"
        )


def _check_application(folder: Path, application_id: str) -> None:
    """Empty a folder that was copied or renamed from another application.

    Nothing else protects stores without a changelog. For other stores, topic ids do.
    """
    file = folder / "application"
    said = file.read_text(errors="replace").strip() if file.exists() else ""
    if said == application_id:
        return
    if said:
        _empty(folder)
        log.warning(
            'state folder "%s" was one of application "%s": it is emptied, the changelogs of "%s" restore it',
            folder,
            said,
            application_id,
        )
    _write(file, application_id)


def _empty(folder: Path) -> None:
    """Delete all databases in a state folder."""
    for path in folder.iterdir():
        if path.is_dir() and _PARTITION.fullmatch(path.name):
            _remove(path)


def _process_id(folder: Path) -> str:
    """Return the process id in the folder; make a new one if it is missing or
    unreadable.
    """
    file = folder / "process-id"
    try:
        return str(UUID(file.read_text(errors="replace").strip()))
    except (FileNotFoundError, ValueError):
        new = str(uuid4())
        _write(file, new)
        return new


def _write(file: Path, text: str) -> None:
    """Write a small file atomically."""
    new = file.with_name(file.name + ".new")
    new.write_text(text + "\n")
    new.replace(file)


def _remove(path: Path) -> None:
    """Delete a folder. Rename it first, because a partly deleted database would count
    as damaged.
    """
    doomed = path.with_name(path.name + _DOOMED)
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed)
