"""Writes, publishes, reads and checks snapshots.

    writer = SnapshotWriter(url, application, run)        anywhere: in a process, in a Spark task
    slices = writer.export(database, spec, partition, key_range)
    publish(url, Manifest(...))                           once, when all slices are written: it is used from then on

Invariant: readers see a snapshot only when its manifest is complete and the publication
of the highest number names it. Attempts that die or run twice leave files that no
manifest names; `sweep` removes them.
Invariant: a publication is a new file of the next number, which only one of several
publishers can make. So one that has worked from an older snapshot does not publish: the
files that it would name may be gone.
Relies on: `manifest` (which files there are), `storage` (what is written as a whole),
`snapshot_round` (who publishes what, and when).
Turned down: one file that each publication
replaces (no conditional write is the same in all storages, and the last one would win),
and one file for all slices of a store (a range of eight would download the other seven).
"""

from __future__ import annotations

import hashlib
import logging
import re
import tempfile
import time
import uuid
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Sequence,
)
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from coopstreams.state import layout
from coopstreams.state.checkpoints import Checkpoint
from coopstreams.state.database import Database, FamilyRows
from coopstreams.state.engine import Rows
from coopstreams.state.manifest import (
    DamagedManifestError,
    File,
    InFlight,
    Manifest,
    Slice,
    pieces,
)
from coopstreams.state.sst import read_sst, sha256_of, write_sst
from coopstreams.state.storage import Heard, Storage, nobody
from coopstreams.topology.errors import SnapshotError, StateCorruptError, TopologyError
from coopstreams.topology.keys import KeyGroups, KeyRange
from coopstreams.topology.naming import check_name
from coopstreams.topology.stores import StoreSpec

log = logging.getLogger(__name__)

PUBLISHED = "published"
"""The folder of an application with its publications: the run is the content of each."""
CURRENT = "CURRENT"
"""The file of an application with the run that release 0.1 published."""
LEASES = "leases"
"""The folder of an application with its leases."""
SAVEPOINTS = "savepoints"
"""The folder of an application with the names of its savepoints: the run is the content
of each.
"""
PARTS = "parts"
"""The folder of a run with what its writers have written."""
MANIFEST = "manifest.json"

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_OURS = re.compile(
    r"[^/]+/(.+\.sst|.+\.records|parts/[^/]+\.json|manifest\.json)"
    r"|(.+/)?\.(manifest\.json|ROUND|SAVEPOINT|[0-9]{10}|[0-9_-]+\.json|[0-9a-f]{32})-[0-9a-f]{32}"
)
"""The files of an application that `sweep` may delete; those with a dot in front were
left by a crash.
"""
_NUMBER = re.compile(r"[0-9]{10}")
_NO_RUNS = frozenset({PUBLISHED, LEASES, SAVEPOINTS})
"""The folders of an application that are no runs."""

LEASE_MS = 60 * 60 * 1000
"""How long a lease of a reader holds, unless it is renewed."""
WRITING_MS = 24 * 60 * 60 * 1000
"""How long a lease of a writer holds."""


def wall_ms() -> int:
    """Return the wall-clock time in milliseconds since the epoch."""
    return int(time.time() * 1000)


def new_run(now_ms: int | None = None, unique: str = "") -> str:
    """Return a unique name for a run that begins now; names sort by time."""
    at = datetime.fromtimestamp((now_ms or wall_ms()) / 1000, UTC)
    return f"{at:%Y%m%dT%H%M%S%f}-{(unique or uuid.uuid4().hex)[:8]}"


class Written(dict[tuple[str, int, KeyGroups], "File | None"]):
    """The files that this process has written, by family, version (see `SliceVersions`)
    and key groups; None: the family had no rows there.
    """

    def keep(self, names: Container[str]) -> None:
        """Forget all files but those of these names."""
        for key, file in list(self.items()):
            if file is None or file.name not in names:
                del self[key]


Pace: TypeAlias = Callable[[Rows], Rows]
"""Returns the same rows, and may take its time between them."""


def at_full_speed(rows: Rows) -> Rows:
    """Return the rows as they are."""
    return rows


def _slice(
    partition: int,
    at: Checkpoint,
    files: Iterable[File | None],
) -> Slice:
    """Return the slice of a partition with these files, as of a checkpoint."""
    return Slice(
        partition,
        at.first,
        at.last,
        at.offset,
        at.observed,
        at.true_ms,
        tuple(file for file in files if file is not None),
    )


class SnapshotWriter:
    """A writer of slices of one run. Its arguments are strings, so that a Spark task
    can make its own writer.

    Raises:
        SnapshotError: the run has an illegal name, or the storage cannot be used.
    """

    def __init__(
        self,
        url: str,
        application: str,
        run: str,
    ) -> None:
        if not _RUN.fullmatch(run):
            raise SnapshotError(
                f'"{run}" is no name for a run: letters, digits, and . _ - behind the first'
            )
        self._storage = Storage(url)
        self._application = application
        self._run = run

    def export(
        self,
        database: Database,
        spec: StoreSpec,
        partition: int,
        key_range: KeyRange,
        written: Written | None = None,
        pace: Pace = at_full_speed,
    ) -> list[Slice]:
        """Write the rows of a store and key range in a database; return the slices with
        their checkpoints.

        Each slice is as of one moment, at which its checkpoint holds; another may be as
        of a later one. Key groups without a checkpoint are left out: their changelog
        offset is unknown. `written`: the files that need not be written again; new ones
        are added to it. `pace`: what the rows are passed through.
        """
        written = Written() if written is None else written
        return [
            each
            for piece in pieces(layout.groups_of(key_range))
            for each in self.write_rows(
                spec,
                partition,
                database.as_of_now(spec.name, piece, written),
                written,
                pace,
            )
        ]

    def write_rows(
        self,
        spec: StoreSpec,
        partition: int,
        found: Iterable[tuple[Checkpoint, list[FamilyRows]]],
        written: Written,
        pace: Pace = at_full_speed,
    ) -> list[Slice]:
        """Write rows that `Database.as_of_now` has returned; return their slices. See
        `export`.
        """
        slices: list[Slice] = []
        for at, families in found:
            files: list[File | None] = []
            for family, version, rows in families:
                if rows is not None:
                    written[family, version, at.groups] = self._write(
                        spec.name,
                        partition,
                        at,
                        family,
                        pace(rows),
                    )
                files.append(written[family, version, at.groups])
            slices.append(_slice(partition, at, files))
        return slices

    def write(
        self,
        store: str,
        partition: int,
        at: Checkpoint,
        families: Iterable[tuple[str, Rows]],
    ) -> Slice:
        """Write the key groups first..last of a checkpoint, which must lie in one slice
        (see `cut`); return the slice.

        Shape: for each family its rows, ascending by database key. `layout` describes
        families, keys and values.
        """
        files = [
            self._write(store, partition, at, family, rows) for family, rows in families
        ]
        return _slice(partition, at, files)

    def _write(
        self,
        store: str,
        partition: int,
        at: Checkpoint,
        family: str,
        rows: Rows,
    ) -> File | None:
        with tempfile.TemporaryDirectory(prefix="coopstreams-snapshot-") as folder:
            local = Path(folder) / "slice.sst"
            written = write_sst(local, rows)
            if written is None:
                return None
            # Unique for each attempt: an attempt that was given up may still be
            # writing.
            name = f"{self._run}/{store}/{partition}/{at.first:03}-{at.last:03}-{uuid.uuid4().hex}.sst"
            file = File(
                family,
                name,
                local.stat().st_size,
                written.entries,
                sha256_of(local),
                written.first_key.hex(),
                written.last_key.hex(),
            )
            self._storage.upload(local, f"{self._application}/{name}")
            return file


def store_manifest(url: str, manifest: Manifest) -> None:
    """Write the manifest of a run, without publishing it."""
    Storage(url).write(
        f"{manifest.application}/{manifest.run}/{MANIFEST}",
        manifest.to_json(),
    )


@dataclass(frozen=True, slots=True)
class Publication:
    """A published run. The publication with the highest number counts."""

    number: int
    run: str


NOTHING_PUBLISHED = Publication(0, "")


def publish(url: str, manifest: Manifest) -> None:
    """Write a manifest and publish it, whatever is published."""
    while not publish_behind(url, manifest, published(url, manifest.application)):
        continue  # another was faster


def publish_behind(
    url: str,
    manifest: Manifest,
    last: Publication,
) -> bool:
    """Write a manifest and publish it as the successor of the publication `last`;
    return False if that has another successor: then the manifest is deleted.
    """
    store_manifest(url, manifest)  # first: readers follow the publication to it
    storage = Storage(url)
    name = f"{manifest.application}/{PUBLISHED}/{last.number + 1:010}"
    if storage.create(name, manifest.run.encode() + b"\n"):
        # Old publications are deleted: this number may be free because it is long past.
        if published(url, manifest.application).number == last.number + 1:
            return True
        storage.delete(name)
    storage.delete(f"{manifest.application}/{manifest.run}/{MANIFEST}")
    return False


def published(url: str, application: str) -> Publication:
    """Return the publication that counts; `NOTHING_PUBLISHED` if there is none.

    Release 0.1 published by a file with one name. It counts until there is a numbered
    one.
    """
    storage = Storage(url)
    folder = f"{_checked(application)}/{PUBLISHED}"
    while numbers := _numbers(storage, folder):
        found = storage.read(f"{folder}/{numbers[-1]:010}")
        if found is not None:  # else it was deleted meanwhile, behind a later one
            return Publication(numbers[-1], found.decode(errors="replace").strip())
    by_0_1 = storage.read(f"{application}/{CURRENT}")
    if by_0_1 is None:
        return NOTHING_PUBLISHED
    return replace(NOTHING_PUBLISHED, run=by_0_1.decode(errors="replace").strip())


def current_run(url: str, application: str) -> str | None:
    """Return the name of the published run; None if no run is published."""
    return published(url, application).run or None


def _numbers(storage: Storage, folder: str) -> list[int]:
    """Return the numbers of an application's publications, ascending."""
    names = (name.rpartition("/")[2] for name in storage.names(folder))
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def savepoints(url: str, application: str) -> dict[str, str]:
    """Return the names of an application's savepoints, with the run of each."""
    storage = Storage(url)
    folder = f"{_checked(application)}/{SAVEPOINTS}"
    return {
        name.rpartition("/")[2]: found.decode(errors="replace").strip()
        for name in storage.names(folder)
        if _RUN.fullmatch(name.rpartition("/")[2])
        and (found := storage.read(name)) is not None
    }


def check_savepoint_name(url: str, application: str, name: str) -> None:
    """Check that an application may have another savepoint, of this name.

    Raises:
        SnapshotError: the name is not legal, or there is a savepoint of this name.
    """
    if not _RUN.fullmatch(name):
        raise SnapshotError(
            f'"{name}" is no name for a savepoint: letters, digits, and . _ - behind the first'
        )
    if name in savepoints(url, application):
        raise _taken(application, name)


def name_savepoint(url: str, manifest: Manifest, name: str) -> None:
    """Write the manifest of a savepoint, and name it.

    Raises:
        SnapshotError: see `check_savepoint_name`.
    """
    check_savepoint_name(url, manifest.application, name)
    store_manifest(url, manifest)
    at = f"{manifest.application}/{SAVEPOINTS}/{name}"
    if not Storage(url).create(at, manifest.run.encode() + b"\n"):
        raise _taken(manifest.application, name)  # meanwhile


def _taken(application: str, name: str) -> SnapshotError:
    return SnapshotError(
        f'there is a savepoint "{name}" of {application} already; `coopstreams snapshots forget` forgets it'
    )


def forget_savepoint(
    url: str,
    application: str,
    name: str,
) -> None:
    """Remove the name of a savepoint; the next sweep deletes its files.

    Raises:
        SnapshotError: there is no savepoint of this name.
    """
    if name not in savepoints(url, application):
        raise SnapshotError(f'there is no savepoint "{name}" of {application} at {url}')
    Storage(url).delete(f"{application}/{SAVEPOINTS}/{name}")


def load_savepoint(url: str, name: str) -> Manifest:
    """Return the manifest of a savepoint. `name`: its name, or `APPLICATION/NAME` where
    several applications have one of this name.

    Raises:
        SnapshotError: there is none, there are several, or it cannot be read.
    """
    application, slash, name_only = name.rpartition("/")
    wanted = [application] if slash else applications(url)
    found = {
        each: run
        for each in wanted
        if (run := savepoints(url, each).get(name_only)) is not None
    }
    if len(found) != 1:
        known = [f"{each}/{one}" for each in wanted for one in savepoints(url, each)]
        raise SnapshotError(
            f'{"several applications have" if found else "there is no"} savepoint "{name}" at {url}; there are: '
            f"{', '.join(known) or 'none'}"
        )
    ((of, run),) = found.items()
    manifest = load(url, of, run)
    assert manifest is not None  # a run was named
    return manifest


class InFlightRecord(NamedTuple):
    """A record of a repartition topic. `headers`: names and values."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[str, bytes | None]]


_RECORDS = msgspec.msgpack.Decoder(list[InFlightRecord])


def write_in_flight(
    url: str,
    application: str,
    run: str,
    topic: str,
    partition: int,
    records: Sequence[InFlightRecord],
) -> InFlight:
    """Write the records of a repartition partition that were not done, in their order.

    `topic`: without the application id.
    """
    name = f"{run}/{topic}/{partition}.records"
    data = msgspec.msgpack.encode(records)
    Storage(url).write(f"{application}/{name}", data)
    return InFlight(
        topic,
        partition,
        name,
        len(records),
        hashlib.sha256(data).hexdigest(),
    )


def read_in_flight(
    url: str,
    application: str,
    of: InFlight,
) -> list[InFlightRecord]:
    """Return the records that `write_in_flight` has written.

    Raises:
        SnapshotError: they are missing or damaged.
    """
    data = Storage(url).read(f"{application}/{of.name}")
    if data is None or hashlib.sha256(data).hexdigest() != of.sha256:
        raise SnapshotError(f'"{application}/{of.name}" at {url} is missing or damaged')
    return _RECORDS.decode(data)


class Lease:
    """Keeps a run from being swept: the files in its folder, and those that its
    manifest names. One thread.
    """

    def __init__(
        self,
        url: str,
        application: str,
        now_ms: Callable[[], int],
        name: str = "",
    ) -> None:
        self._url = url
        self._name = f"{application}/{LEASES}/{name or uuid.uuid4().hex}"
        self._now_ms = now_ms

    def take(self, run: str, for_ms: int = LEASE_MS) -> None:
        """Keep this run from now on, instead of the one before.

        Raises:
            SnapshotError: the storage does not take the lease.
        """
        until = self._now_ms() + for_ms
        Storage(self._url).write(self._name, f"{run} {until}\n".encode())

    def give_back(self) -> None:
        """Keep no run any more."""
        Storage(self._url).delete(self._name)


def load(
    url: str,
    application: str,
    run: str | None = None,
) -> Manifest | None:
    """Return the manifest of a run, by default the published one; None if none is
    published.

    Raises:
        DamagedManifestError: the manifest is damaged, or names another run or
            application.
        SnapshotError: the manifest is missing, or of a newer format.
    """
    wanted = run or current_run(url, application)
    if wanted is None:
        return None
    where = f'snapshot "{wanted}" of {application} at {url}'
    data = (
        Storage(url).read(f"{application}/{wanted}/{MANIFEST}")
        if _RUN.fullmatch(wanted)
        else None
    )
    if data is None:
        raise SnapshotError(
            f"{where}: it has no manifest; `coopstreams snapshots ls` lists what is there"
        )
    try:
        manifest = Manifest.from_json(data)
    except SnapshotError as error:
        raise type(error)(f"{where}: {error}") from error
    if (manifest.application, manifest.run) != (application, wanted):
        raise DamagedManifestError(
            f'{where}: its manifest is that of "{manifest.run}" of {manifest.application}'
        )
    return manifest


def applications(url: str) -> list[str]:
    """Return the names of the folders that may belong to applications, ascending."""
    names = {name.partition("/")[0] for name in Storage(url).names() if "/" in name}
    return sorted(name for name in names if _is_legal(name))


def runs(url: str, application: str) -> list[str]:
    """Return the names of the runs that have files, in the order of time."""
    names = (name.split("/") for name in Storage(url).names(_checked(application)))
    found = {parts[1] for parts in names if len(parts) > 2}
    return sorted(found - _NO_RUNS)


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A file of a snapshot that was copied to this machine and checked."""

    file: File
    path: Path


def fetch(
    storage: Storage,
    application: str,
    file: File,
    folder: Path,
    heard: Heard = nobody,
) -> FetchedFile:
    """Copy a file of a snapshot into a folder and check it.

    Raises:
        GivenUpError: `heard` raised it.
        SnapshotError: the file is missing, or its bytes are not those that were
            written. RocksDB itself reads past a flipped byte without an error (seen).
    """
    path = folder / f"{uuid.uuid4().hex}.sst"
    where = f'"{application}/{file.name}" at {storage.url}'
    try:
        found = storage.download(f"{application}/{file.name}", path, heard)
    except SnapshotError:
        path.unlink(missing_ok=True)
        raise
    if not found:
        raise SnapshotError(f"{where} is missing")
    size = path.stat().st_size
    if size != file.bytes or sha256_of(path) != file.sha256:
        path.unlink()
        raise SnapshotError(
            f"{where} is damaged: {size} bytes, {file.bytes} were written, or their SHA-256 differs"
        )
    return FetchedFile(file, path)


def verify(url: str, manifest: Manifest) -> Iterator[tuple[File, str]]:
    """Yield every file with its fault, empty if it has none: in its bytes, family,
    number of keys, or first and last key.

    `coopstreams snapshots verify` prints them. A task that restores a file checks only
    the bytes: the rest follows from them.
    """
    storage = Storage(url)
    for name, store in manifest.stores.items():
        for each in store.slices:
            for file in each.files:
                with tempfile.TemporaryDirectory(
                    prefix="coopstreams-verify-"
                ) as folder:
                    try:
                        fetched = fetch(
                            storage,
                            manifest.application,
                            file,
                            Path(folder),
                        )
                        yield file, _wrong(fetched, name, each)
                    except (SnapshotError, StateCorruptError) as error:
                        yield file, str(error)


def _wrong(
    fetched: FetchedFile,
    store: str,
    of: Slice,
) -> str:
    """Return why a file does not fit its slice of this store; empty if it does."""
    keys = [key for key, _ in read_sst(fetched.path)]
    file = fetched.file
    if (
        file.family not in (layout.family_of(store), layout.expiry_family(store))
        and (layout.parse_segment_family(file.family) or ("", 0))[0] != store
    ):
        return f'it is of family "{file.family}", which is none of store {store}'
    if len(keys) != file.entries:
        return f"it has {len(keys)} keys, {file.entries} were written"
    if (keys[0].hex(), keys[-1].hex()) != (file.first_key, file.last_key):
        return "its first or last key is not what the manifest says"
    if keys[0][0] < of.first or keys[-1][0] > of.last:
        return f"it has keys outside the key groups {of.first}..{of.last}"
    return ""


def sweep(
    url: str,
    application: str,
    *,
    keep: int = 1,
    doing: bool = True,
    now_ms: Callable[[], int] = wall_ms,
) -> list[str]:
    """Delete the files of old and incomplete runs; return their names.

    Kept are the files that a manifest of the published run, of the newest `keep`
    complete runs, of a savepoint or of a leased run names, whatever run they are of. A
    run without a manifest may still be at work: its files stay if it is leased, or
    newer than the published run. A damaged manifest is not kept, even if it is the published one; a
    warning names it. Files that are not of snapshots stay.

    `doing`: False: only return the names, and delete nothing.
    """
    storage = Storage(url)
    leased, over = _leases(storage, application, now_ms())
    leased |= set(savepoints(url, application).values())
    kept, working = _kept_and_working(storage, url, application, keep, leased)
    numbers = _numbers(storage, f"{application}/{PUBLISHED}")
    mentioned = {file.name for manifest in kept for file in manifest.files()}
    mentioned |= {f"{manifest.run}/{MANIFEST}" for manifest in kept}
    mentioned |= {each.name for manifest in kept for each in manifest.in_flight}
    doomed = [f"{PUBLISHED}/{number:010}" for number in numbers[:-1]] + over
    for full in storage.names(application):
        name = full.removeprefix(f"{application}/")
        run = name.partition("/")[0]
        if _OURS.fullmatch(name) and name not in mentioned and run not in working:
            doomed.append(name)
    if doing:
        for name in doomed:
            storage.delete(f"{application}/{name}")
    return doomed


def _leases(
    storage: Storage,
    application: str,
    now_ms: int,
) -> tuple[set[str], list[str]]:
    """Return the leased runs, and the names of the leases that are over."""
    leased: set[str] = set()
    over: list[str] = []
    for full in storage.names(f"{application}/{LEASES}"):
        run, _, until = (
            (storage.read(full) or b"").decode(errors="replace").partition(" ")
        )
        if until.strip().isdecimal() and int(until) > now_ms:
            leased.add(run)
        else:
            over.append(full.removeprefix(f"{application}/"))
    return leased, over


def _kept_and_working(
    storage: Storage,
    url: str,
    application: str,
    keep: int,
    leased: Collection[str],
) -> tuple[list[Manifest], set[str]]:
    """Return the manifests that a sweep keeps, and the runs that may still be at work."""
    counts = current_run(url, application)
    complete: list[str] = []
    working: set[str] = set()
    for run in runs(url, application):
        if storage.read(f"{application}/{run}/{MANIFEST}") is not None:
            complete.append(run)
        elif counts is None or run > counts or run in leased:
            working.add(run)
    kept: list[Manifest] = []
    for run in reversed(complete):
        if len(kept) < keep or run == counts or run in leased:
            kept += _undamaged(url, application, run)
    return kept, working


def _checked(application: str) -> str:
    """Return the application id after a check that it names one folder of the storage.
    An empty id would name the folders of all applications.

    Raises:
        SnapshotError: it is not legal as an application id.
    """
    try:
        return check_name(application, "the application id")
    except TopologyError as error:
        raise SnapshotError(
            f"{error} (`coopstreams snapshots ls` lists the applications)"
        ) from None


def _is_legal(application: str) -> bool:
    try:
        return bool(_checked(application))
    except SnapshotError:
        return False


def _undamaged(
    url: str,
    application: str,
    run: str,
) -> list[Manifest]:
    """Return a list with the manifest of a run; empty, with a warning, if the manifest
    is damaged.
    """
    try:
        manifest = load(url, application, run)
    except DamagedManifestError as error:
        log.warning(
            "%s. It restores nothing: of its files, only those that a kept manifest names stay.",
            error,
        )
        return []
    assert manifest is not None  # a run was named
    return [manifest]
