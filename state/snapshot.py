"""Writes, publishes, reads and checks snapshots.

    writer = SnapshotWriter(url, application, run)        anywhere: in a process, in a Spark task
    slices = writer.export(database, spec, partition, key_range)
    publish(url, Manifest(...))                           once, when all slices are written: it is used from then on

Invariant: readers see a snapshot only when its manifest is complete and CURRENT names
it. Attempts that die or run twice leave files that no manifest names; `sweep` removes
them. Turned down: one file for all slices of a store (a range of eight would download
the other seven).
"""

from __future__ import annotations

import logging
import re
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from coopstreams.state import layout
from coopstreams.state.checkpoints import Checkpoint
from coopstreams.state.database import Database
from coopstreams.state.engine import Rows
from coopstreams.state.manifest import (
    DamagedManifestError,
    File,
    Manifest,
    Slice,
    cut,
)
from coopstreams.state.sst import read_sst, sha256_of, write_sst
from coopstreams.state.storage import Heard, Storage, nobody
from coopstreams.topology.errors import SnapshotError, StateCorruptError, TopologyError
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.naming import check_name
from coopstreams.topology.stores import StoreSpec

log = logging.getLogger(__name__)

CURRENT = "CURRENT"
MANIFEST = "manifest.json"

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_OURS = re.compile(
    r"[^/]+/(.+\.sst|manifest\.json|\.manifest\.json-[0-9a-f]{32})|\.CURRENT-[0-9a-f]{32}"
)
"""The files of an application that `sweep` may delete; those with a dot in front were
left by a crash.
"""


def new_run() -> str:
    """Return a unique name for a run; names sort by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:8]}"


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
    ) -> list[Slice]:
        """Write the rows of a store and key range in a database, as of now; return the
        slices with their checkpoints.

        Key groups without a checkpoint are left out: their changelog offset is unknown.
        No thread may write these groups meanwhile.
        """
        runs = database.checkpoints(spec.name).within(layout.groups_of(key_range))
        return [
            self.write(spec.name, partition, run, database.rows(spec.name, run.groups))
            for run in cut(runs)
        ]

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
        files = tuple(
            file
            for family, rows in families
            if (file := self._write(store, partition, at, family, rows)) is not None
        )
        return Slice(
            partition,
            at.first,
            at.last,
            at.offset,
            at.observed,
            at.true_ms,
            files,
        )

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


def publish(url: str, manifest: Manifest) -> None:
    """Write a manifest and publish it in place of the previous one."""
    store_manifest(url, manifest)
    Storage(url).write(
        f"{manifest.application}/{CURRENT}",
        manifest.run.encode() + b"\n",
    )


def current_run(url: str, application: str) -> str | None:
    """Return the name of the published run; None if no run is published."""
    found = Storage(url).read(f"{_checked(application)}/{CURRENT}")
    return None if found is None else found.decode(errors="replace").strip()


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
    return sorted({parts[1] for parts in names if len(parts) > 2})


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
) -> list[str]:
    """Delete the files of old and incomplete runs; return their names.

    Kept are the files that a manifest of the published run or of the newest `keep`
    complete runs names, whatever run they are of. A run without a manifest may still be
    at work: its files stay if it is newer than the published run. A damaged manifest is
    not kept, even if it is the published one; a warning names it. Files that are not of
    snapshots stay.

    `doing`: False: only return the names, and delete nothing.
    """
    storage = Storage(url)
    kept, working = _kept_and_working(storage, url, application, keep)
    mentioned = {file.name for manifest in kept for file in manifest.files()}
    mentioned |= {f"{manifest.run}/{MANIFEST}" for manifest in kept}
    doomed: list[str] = []
    for full in storage.names(application):
        name = full.removeprefix(f"{application}/")
        run = name.partition("/")[0]
        if _OURS.fullmatch(name) and name not in mentioned and run not in working:
            doomed.append(name)
    if doing:
        for name in doomed:
            storage.delete(f"{application}/{name}")
    return doomed


def _kept_and_working(
    storage: Storage,
    url: str,
    application: str,
    keep: int,
) -> tuple[list[Manifest], set[str]]:
    """Return the manifests that a sweep keeps, and the runs that may still be at work."""
    counts = current_run(url, application)
    complete: list[str] = []
    working: set[str] = set()
    for run in runs(url, application):
        if storage.read(f"{application}/{run}/{MANIFEST}") is not None:
            complete.append(run)
        elif counts is None or run > counts:
            working.add(run)
    kept: list[Manifest] = []
    for run in reversed(complete):
        if len(kept) < keep or run == counts:
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
