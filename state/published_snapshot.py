"""Selects and fetches the slices of the published snapshot that fit a restore; the
changelog supplies the rest.

    choose   selects the slices that fit: a pure function of manifest and changelog
    fetch    copies the files of a slice to this machine and checks them

`snapshot_download` does both on its own threads, and ingests the files into a database.

Invariant: a snapshot is a cache. If anything is wrong with it (a flipped byte, a
missing file, another topic, a newer format, a storage that does not answer), a warning
is logged and the changelog is read instead. Unchecked bytes are never returned.
Relies on: `state/restore.py` (`Bounds.refusal`: which offsets can be used), `manifest`,
`snapshot` (leases).
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TypeVar

from coopstreams.state.engine import Rows
from coopstreams.state.manifest import (
    Manifest,
    Slice,
    StoreSlices,
    shape_of,
)
from coopstreams.state.restore import Bounds
from coopstreams.state.snapshot import (
    LEASE_MS,
    FetchedFile,
    Lease,
    current_run,
    fetch,
    load,
    wall_ms,
)
from coopstreams.state.sst import read_sst, write_sst
from coopstreams.state.storage import GivenUpError, Heard, Storage
from coopstreams.topology.errors import SnapshotError
from coopstreams.topology.keys import KeyGroups
from coopstreams.topology.stores import StoreSpec

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Changelog:
    """The topic from which a store is restored, as it is now. `topic_id`: the id that
    Kafka gave it. `partitions`: how many it has.
    """

    topic: str
    topic_id: str
    partitions: int


def misfit(
    store: StoreSlices,
    spec: StoreSpec,
    changelog: Changelog,
) -> str:
    """Return why a store's snapshot cannot be used at all; empty if it may be used."""
    if store.shape != shape_of(spec):
        return f'it was made by another topology: there the store is "{store.shape}", here "{shape_of(spec)}"'
    if not changelog.topic_id:
        return (
            f"the brokers give topics no ids, so it is unknown whether {changelog.topic} is still the same "
            "(inter.broker.protocol.version 2.8)"
        )
    if store.topic_id != changelog.topic_id:
        return (
            f"it follows another topic than {changelog.topic} is now (id {store.topic_id}, not {changelog.topic_id}): "
            "that was made anew, or the snapshot is of another cluster"
        )
    if store.partitions != changelog.partitions:
        return f"{changelog.topic} had {store.partitions} partitions then and has {changelog.partitions} now"
    return ""


def choose(
    store: StoreSlices,
    partition: int,
    groups: Sequence[int],
    bounds: Bounds,
) -> tuple[list[Slice], str]:
    """Return the usable slices, cut to the wanted key groups, and why another slice
    cannot be used (empty: all can).

    Shape: `groups` ascending. Each wanted group is in at most one of the returned
    slices; a slice may be returned in several parts.
    """
    wanted = set(groups)
    taken: list[Slice] = []
    refusal = ""
    for each in store.of(partition, KeyGroups(groups[0], groups[-1])):
        inside = [
            group for group in range(each.first, each.last + 1) if group in wanted
        ]
        reason = bounds.refusal(each.checkpoint(store.topic_id)) if inside else ""
        if reason:
            refusal = reason
            continue
        starts = [group for group in inside if group - 1 not in inside]
        ends = [group for group in inside if group + 1 not in inside]
        taken += [
            replace(each, first=first, last=last)
            for first, last in zip(starts, ends, strict=True)
        ]
    return taken, refusal


class Snapshots:
    """The published snapshot of an application, for the restores of one instance. Any
    thread.

    `folder` holds fetched files until they are in a database. If it is on the
    database's disk, they are moved, not copied. Making a `Snapshots` empties the
    folder.
    """

    def __init__(
        self,
        url: str,
        application: str,
        folder: Path,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.folder = folder
        self._lease = Lease(url, application, now_ms)
        self._now_ms = now_ms
        self._leased = "", 0
        """The leased run, and until when its lease need not be renewed."""
        self._url = url
        self._application = application
        self._lock = Lock()
        self._known: Manifest | None = None
        shutil.rmtree(folder, ignore_errors=True)

    def chosen(
        self,
        spec: StoreSpec,
        partition: int,
        changelog: Changelog,
        groups: Sequence[int],
        bounds: Bounds,
        where: str,
    ) -> list[Slice]:
        """Return the published slices to use for these key groups (ascending); log why
        others do not fit.

        `where`: the beginning of the log messages, which names store and key groups.
        """
        try:
            manifest = _twice(self._current)
        except SnapshotError as error:
            log.warning("%s: %s. The changelog restores it.", where, error)
            return []
        store = None if manifest is None else manifest.stores.get(spec.name)
        if manifest is None or store is None:
            log.info("%s: no snapshot is published; its changelog restores it", where)
            return []
        reason = misfit(store, spec, changelog)
        slices, refusal = (
            ([], "") if reason else choose(store, partition, groups, bounds)
        )
        for said in filter(None, (reason, refusal)):
            log.warning(
                '%s: snapshot "%s" is of no use here: %s. The changelog restores it.',
                where,
                manifest.run,
                said,
            )
        return slices

    def fetch(
        self,
        wanted: Slice,
        folder: Path,
        heard: Heard,
    ) -> list[FetchedFile]:
        """Return the files of a slice, copied to this machine. A file with rows of
        other groups is rewritten without these rows.

        Raises:
            GivenUpError: `heard` raised it.
            SnapshotError, StateError, OSError: a file is missing or damaged, the
                storage does not answer, or the disk is full.
        """
        storage = Storage(self._url)
        result = []
        for file in wanted.files:
            fetched = _twice(
                partial(fetch, storage, self._application, file, folder, heard)
            )
            if (
                bytes.fromhex(file.first_key)[0] >= wanted.first
                and bytes.fromhex(file.last_key)[0] <= wanted.last
            ):
                result.append(fetched)
                continue
            inside = fetched.path.with_suffix(".part")
            written = write_sst(inside, _within(wanted, read_sst(fetched.path), heard))
            fetched.path.unlink()
            if written is not None:
                result.append(
                    FetchedFile(replace(file, entries=written.entries), inside)
                )
        return result

    def _current(self) -> Manifest | None:
        """Return the manifest that is published now, and take a lease on its run; None:
        none is published.
        """
        run = current_run(self._url, self._application)
        with self._lock:
            if run is None or self._known is None or self._known.run != run:
                self._known = (
                    None if run is None else load(self._url, self._application, run)
                )
            known = self._known
            if known is not None:
                self._take_lease(known.run)
            return known

    def _take_lease(self, run: str) -> None:
        """Keep the files of a run while its slices are fetched."""
        now_ms = self._now_ms()
        if self._leased[0] == run and now_ms < self._leased[1]:
            return
        self._leased = run, now_ms + LEASE_MS // 4
        try:
            self._lease.take(run)
        except SnapshotError as error:  # perhaps this process may only read
            log.debug("%s; the newest two snapshots are kept all the same", error)


def _twice(ask: Callable[[], T]) -> T:
    """Return the result of a request to the storage; if it fails, ask a second time.
    Reading the changelog instead costs far more.
    """
    try:
        return ask()
    except GivenUpError:
        raise
    except SnapshotError:
        return ask()


def _within(
    wanted: Slice,
    rows: Rows,
    heard: Heard,
) -> Rows:
    """Yield the rows of the key groups of a slice."""
    for row in rows:
        heard(0)  # raises if the download was cancelled: this loop may take long
        if wanted.first <= row[0][0] <= wanted.last:
            yield row
