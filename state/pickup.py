"""State comes from a published snapshot instead of the changelog, where there is one that fits; the changelog has the rest.

    choose   which slices fit: a pure function of manifest and changelog
    fetch    their files, checked, onto this machine
    ingest   all of them into a database that has no key there, with the checkpoints at which the changelog goes on

Invariant: a snapshot is a cache. Whatever is wrong with it (a flipped byte, a missing file, another topic, a newer format, a place that does
not answer) is said in the log, and the changelog is read instead; nothing that was not checked comes into a database.
Turned down: ingesting over what a database has (a file's rows would win over newer ones).
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from coopstreams.state.checkpoints import Checkpoint
from coopstreams.state.database import Database
from coopstreams.state.manifest import Manifest, Slice, StoreSlices, shape_of
from coopstreams.state.places import Place
from coopstreams.state.restore import Bounds
from coopstreams.state.snapshot import Fetched, current_run, fetch, load
from coopstreams.state.sst import read_sst, write_sst
from coopstreams.topology.errors import SnapshotError, StateCorruptError
from coopstreams.topology.stores import StoreSpec

log = logging.getLogger(__name__)

AT_ONCE = 8
"""Files that are fetched at the same time: an object store answers late and many at once."""


@dataclass(frozen=True, slots=True)
class Changelog:
    """The topic that a store is restored from, as it is now."""

    topic: str
    topic_id: str
    partitions: int


def misfit(store: StoreSlices, spec: StoreSpec, changelog: Changelog) -> str:
    """Return why nothing of a store's snapshot can be used; empty if nothing speaks against it."""
    if store.shape != shape_of(spec):
        return f'it was made by another topology: there the store is "{store.shape}", here "{shape_of(spec)}"'
    if store.topic_id != changelog.topic_id:
        return f"it follows another topic than {changelog.topic} is now (id {store.topic_id}, not {changelog.topic_id}): that was made anew"
    if store.partitions != changelog.partitions:
        return f"{changelog.topic} had {store.partitions} partitions then and has {changelog.partitions} now"
    return ""


def choose(store: StoreSlices, partition: int, groups: Sequence[int], bounds: Bounds) -> tuple[list[Slice], str]:
    """Return the slices to take, each cut to the wanted key groups, and why others cannot be, empty if all can.

    Shape: `groups` ascending. What comes back covers wanted groups only, none twice; a slice may come in several pieces.
    """
    wanted = set(groups)
    taken: list[Slice] = []
    refusal = ""
    for each in store.of(partition, groups[0], groups[-1]):
        inside = [group for group in range(each.first, each.last + 1) if group in wanted]
        reason = bounds.refusal(each.checkpoint) if inside else ""
        if reason:
            refusal = reason
            continue
        pieces = [group for group in inside if group - 1 not in inside]
        ends = [group for group in inside if group + 1 not in inside]
        taken += [replace(each, first=first, last=last) for first, last in zip(pieces, ends, strict=True)]
    return taken, refusal


class Snapshots:
    """What is published for an application, for the restores of one instance. Any thread.

    `folder`: where files lie until they are in a database; on the same disk they are moved, not copied. It is emptied now.
    """

    def __init__(self, url: str, application: str, folder: Path) -> None:
        self._url = url
        self._application = application
        self._folder = folder
        self._lock = Lock()
        self._known: Manifest | None = None
        shutil.rmtree(folder, ignore_errors=True)

    def pick_up(
        self,
        database: Database,
        spec: StoreSpec,
        partition: int,
        changelog: Changelog,
        taken: Callable[[int], None],
        groups: Sequence[int],
        bounds: Bounds,
    ) -> list[Checkpoint]:
        """Fill key groups (ascending) of a store as far as the published snapshot fits; return where they stand now.

        `taken` is told how many keys came. Whatever cannot be used is left to the changelog.
        """
        where = f'store "{spec.name}", partition {partition}, key groups {groups[0]}..{groups[-1]}'
        try:
            manifest = self._current()
            store = None if manifest is None else manifest.stores.get(spec.name)
            if manifest is None or store is None:
                log.info("%s: no snapshot is published; its changelog restores it", where)
                return []
            reason = misfit(store, spec, changelog)
            slices, refusal = ([], "") if reason else choose(store, partition, groups, bounds)
            for said in filter(None, (reason, refusal)):
                log.warning('%s: snapshot "%s" is of no use here: %s. The changelog restores it.', where, manifest.run, said)
            return self._take(database, spec, slices, taken, f'{where}: snapshot "{manifest.run}"') if slices else []
        except SnapshotError as error:
            log.warning("%s: %s. The changelog restores it.", where, error)
            return []

    def _take(self, database: Database, spec: StoreSpec, slices: Sequence[Slice], taken: Callable[[int], None], where: str) -> list[Checkpoint]:
        place = Place(self._url)
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder, ThreadPoolExecutor(AT_ONCE, "snapshot") as threads:
            fetches = [(each, threads.submit(self._fetch, place, each, Path(folder))) for each in slices]
            good: list[Slice] = []
            files: dict[str, list[Path]] = {}
            keys = 0
            for each, future in fetches:
                try:
                    fetched = future.result()
                except (SnapshotError, StateCorruptError) as error:
                    log.warning("%s: key groups %d..%d: %s. The changelog restores them.", where, each.first, each.last, error)
                    continue
                good.append(each)
                for one in fetched:
                    files.setdefault(one.file.family, []).append(one.path)
                    keys += one.file.entries
            database.ingest(spec.name, [each.checkpoint for each in good], files)
        log.info("%s: %d keys in %d slices", where, keys, len(good))
        taken(keys)
        return [each.checkpoint for each in good]

    def _fetch(self, place: Place, wanted: Slice, folder: Path) -> list[Fetched]:
        """Return the files of a slice with nothing in them but its groups: at the edge of a range they are written anew."""
        result = []
        for file in wanted.files:
            try:
                fetched = fetch(place, self._application, file, folder)
            except SnapshotError:  # once more: to read the changelog instead costs far more than a file
                fetched = fetch(place, self._application, file, folder)
            if bytes.fromhex(file.first_key)[0] >= wanted.first and bytes.fromhex(file.last_key)[0] <= wanted.last:
                result.append(fetched)
                continue
            inside = fetched.path.with_suffix(".part")
            written = write_sst(inside, (row for row in read_sst(fetched.path) if wanted.first <= row[0][0] <= wanted.last))
            if written is not None:
                result.append(Fetched(replace(file, entries=written.entries), inside))
        return result

    def _current(self) -> Manifest | None:
        run = current_run(self._url, self._application)
        with self._lock:
            if run is None or self._known is None or self._known.run != run:
                self._known = None if run is None else load(self._url, self._application, run)
            return self._known
