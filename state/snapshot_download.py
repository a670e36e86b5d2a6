"""Downloads state from a snapshot into a database, on threads of its own; the caller
polls `look`.

    choosing     reads the manifest and selects the slices that fit
    fetching     fetches slices, several at a time, and checks each
    ingesting    puts the files into the database, with the checkpoints at which the changelog continues
    ended        the changelog supplies the rest; or the download was given up

Invariant: a download that was given up touches no database and leaves no file. Giving
up never waits for the network.
Invariant: if the storage sends nothing for a minute, the download ends: the slices that
have come are used, and the changelog supplies the rest.
Relies on: `published_snapshot` (which slices fit), `Database.ingest`.
Turned down: ingesting over existing rows (a file's rows would win over newer ones).
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Protocol

from coopstreams.state.database import Database
from coopstreams.state.manifest import Slice
from coopstreams.state.published_snapshot import Changelog, Snapshots
from coopstreams.state.restore import Bounds
from coopstreams.state.snapshot import FetchedFile
from coopstreams.state.storage import GivenUpError
from coopstreams.state.worker_pool import (
    Job,
    Start,
    WorkerPool,
    start_daemon,
)
from coopstreams.topology.errors import SnapshotError, StateError
from coopstreams.topology.stores import StoreSpec

log = logging.getLogger(__name__)

AT_ONCE = 8
"""How many slices are fetched at the same time: an object store answers slowly, but
serves many requests at once.
"""
PATIENCE_S = 60.0
"""How long a storage may send nothing. Drivers may have shorter time-outs; a mounted
folder may have none.
"""


class DownloadStage(Enum):
    """The stage of one store's download."""

    CHOOSING = "choosing"
    FETCHING = "fetching"
    INGESTING = "ingesting"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """The progress of the download of a store's slices.

    Units: bytes, bytes per second, seconds; `eta_s` None: not known yet. `total_bytes`
    is 0 until slices are chosen.
    """

    store: str
    fetched_bytes: int
    total_bytes: int
    rate: float
    eta_s: float | None


class Flag(Protocol):
    """A flag that threads can wait for: the methods of `threading.Event` that are used
    here.
    """

    def set(self) -> None:
        """Set the flag."""

    def clear(self) -> None:
        """Clear the flag."""

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the flag is set; return whether it is."""
        ...


class Downloads:
    """The threads of all downloads of one instance, and the time of their last
    progress.

    `ended` is set when a download has ended; the thread that waits for it clears it.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        start: Start = start_daemon,
        ended: Flag | None = None,
    ) -> None:
        self.clock = clock
        self.choosing = WorkerPool("manifest", 2, start)
        self.fetching = WorkerPool("snapshot", AT_ONCE, start)
        self.ingesting = WorkerPool("ingest", 1, start)
        self.ended: Flag = ended or threading.Event()
        self._moved_at = clock()

    def move(self) -> None:
        """Note the time of progress: bytes have come, or were requested."""
        self._moved_at = self.clock()

    @property
    def silent(self) -> bool:
        """Whether no download has progressed for longer than `PATIENCE_S`."""
        return self.clock() - self._moved_at > PATIENCE_S


class SnapshotDownload:
    """The download of some key groups (ascending) of one store for one task. It begins
    at once.

    One thread calls `look` and `give_up`; any thread may call `progress`.
    """

    def __init__(
        self,
        downloads: Downloads,
        snapshots: Snapshots,
        database: Database,
        spec: StoreSpec,
        partition: int,
        changelog: Changelog,
        groups: Sequence[int],
        bounds: Bounds,
    ) -> None:
        self.keys = 0
        """The number of keys that were brought into the database."""
        self._downloads = downloads
        self._snapshots = snapshots
        self._database = database
        self._spec = spec
        self._topic_id = changelog.topic_id
        self._where = f'store "{spec.name}", partition {partition}, key groups {groups[0]}..{groups[-1]}'
        self._folder = snapshots.folder / uuid.uuid4().hex
        self._lock = threading.Condition()
        self._stage = DownloadStage.CHOOSING
        self._touching = False
        """Whether a thread is writing to the database."""
        self._error: BaseException | None = None
        self._left = 0
        self._good: list[tuple[Slice, list[FetchedFile]]] = []
        self._bytes = self._total = 0
        self._began = downloads.clock()
        downloads.move()
        self._put(
            downloads.choosing,
            partial(
                self._choose,
                partial(
                    snapshots.chosen,
                    spec,
                    partition,
                    changelog,
                    groups,
                    bounds,
                    self._where,
                ),
            ),
        )

    def look(self) -> bool:
        """Return whether the download has ended, with all fetched rows in the database.
        If the storage sends nothing for too long, end the fetching.

        Raises:
            StateError: the database cannot take the files.
        """
        if self._downloads.silent:
            self._call_off()
        with self._lock:
            if self._error is not None:
                raise self._error
            return self._stage is DownloadStage.ENDED

    def give_up(self) -> None:
        """End the download, and delete its files. A write to the database that is under
        way is completed first: the database gets all fetched rows or none.
        """
        with self._lock:
            # Local work, soon done; the caller may close the database afterwards.
            while self._touching:
                self._lock.wait()
            self._stage = DownloadStage.ENDED
        shutil.rmtree(self._folder, ignore_errors=True)

    def progress(self) -> DownloadProgress:
        """Return the progress of the download."""
        with self._lock:
            # a retried file counts twice
            fetched = min(self._bytes, self._total)
            total = self._total
        seconds = self._downloads.clock() - self._began
        rate = fetched / seconds if seconds > 0 else 0.0
        return DownloadProgress(
            self._spec.name,
            fetched,
            total,
            rate,
            (total - fetched) / rate if rate else None,
        )

    def _choose(self, chosen: Callable[[], list[Slice]]) -> None:
        """Begin to fetch the slices that `chosen` selects."""
        slices = chosen()
        self._downloads.move()
        with self._lock:
            self._check(DownloadStage.CHOOSING)
            self._stage = DownloadStage.FETCHING if slices else DownloadStage.ENDED
            self._left = len(slices)
            self._total = sum(file.bytes for each in slices for file in each.files)
            self._folder.mkdir(parents=True)
        for each in slices:
            self._put(self._downloads.fetching, partial(self._fetch, each))

    def _fetch(self, wanted: Slice) -> None:
        """Fetch one slice; behind the last one, go on to ingesting."""
        self._heard(0)
        fetched: list[FetchedFile] | None = None
        try:
            fetched = self._snapshots.fetch(wanted, self._folder, self._heard)
        except GivenUpError:
            raise
        except (StateError, OSError) as error:
            # Raises if it failed because the download was given up and its files removed.
            self._heard(0)
            log.warning(
                "%s: key groups %d..%d: %s. The changelog restores them.",
                self._where,
                wanted.first,
                wanted.last,
                error,
            )
        with self._lock:
            self._check(DownloadStage.FETCHING)
            if fetched is not None:
                self._good.append((wanted, fetched))
            self._left -= 1
            last = self._left == 0
        if last:
            self._ingest_soon()

    def _heard(self, count: int) -> None:
        """Note that bytes have come.

        Raises:
            GivenUpError: they are not wanted any more.
        """
        with self._lock:
            self._check(DownloadStage.FETCHING)
            self._bytes += count
        self._downloads.move()

    def _check(self, stage: DownloadStage) -> None:
        """Raise a `GivenUpError` in any other stage. The caller holds the lock."""
        if self._stage is not stage:
            raise GivenUpError(f"{self._where}: given up")

    def _call_off(self) -> None:
        """End the fetching: use the slices that have come."""
        with self._lock:
            if self._stage not in (DownloadStage.CHOOSING, DownloadStage.FETCHING):
                return
            groups = sum(each.last - each.first + 1 for each, _ in self._good)
        log.warning(
            "%s: no byte has come for %g s. The changelog restores all but %d key groups.",
            self._where,
            PATIENCE_S,
            groups,
        )
        self._ingest_soon()

    def _ingest_soon(self) -> None:
        """Go on to ingesting, if that has not begun."""
        with self._lock:
            if self._stage not in (DownloadStage.CHOOSING, DownloadStage.FETCHING):
                return
            self._stage = DownloadStage.INGESTING
        self._put(self._downloads.ingesting, self._ingest)

    def _ingest(self) -> None:
        """Bring the fetched slices into the database, and end the download."""
        with self._lock:
            self._check(DownloadStage.INGESTING)
            self._touching = True
        error: BaseException | None = None
        try:
            self._bring_in()
        except BaseException as caught:  # `look` raises it
            log.debug("%s: failed", self._where, exc_info=True)
            error = caught
        shutil.rmtree(self._folder, ignore_errors=True)
        with self._lock:
            self._error = error
            self._touching = False
            self._stage = DownloadStage.ENDED
            self._lock.notify_all()

    def _bring_in(self) -> None:
        files: dict[str, list[Path]] = {}
        keys = 0
        for one in (one for _, fetched in self._good for one in fetched):
            files.setdefault(one.file.family, []).append(one.path)
            keys += one.file.entries
        if self._good:
            try:
                self._database.ingest(
                    self._spec.name,
                    [each.checkpoint(self._topic_id) for each, _ in self._good],
                    files,
                )
            except SnapshotError as error:  # the groups have no checkpoint now
                log.warning("%s: %s. The changelog restores it.", self._where, error)
                return
        self.keys = keys
        log.info(
            "%s: %d keys in %d slices of a snapshot",
            self._where,
            keys,
            len(self._good),
        )

    def _put(self, workers: WorkerPool, job: Job) -> None:
        workers.put(self, partial(self._guarded, job))

    def _guarded(self, job: Job) -> None:
        """Run a job, and keep its error, which `look` raises."""
        try:
            job()
        except GivenUpError as error:
            log.debug("%s", error)
        except BaseException as error:
            log.debug("%s: failed", self._where, exc_info=True)
            with self._lock:
                self._error = error
                self._stage = DownloadStage.ENDED
        finally:
            with self._lock:
                ended = self._stage is DownloadStage.ENDED
            if ended:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._downloads.ended.set()
