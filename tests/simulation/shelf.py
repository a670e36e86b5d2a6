"""Snapshots in a history: processes write them with `snapshots.interval.ms`, and
operators rebuild them with the real `Rebuilder`, while the group runs, and die
half-way; files are damaged or deleted, an older run is published again, a newer
coopstreams publishes, the storage is slow, hangs or fails.

Whether a task restores from a snapshot or not, the oracles are the same: a snapshot is
a cache. Its files are not RocksDB's here (`tests/state` asks about those), but rows
with the same checks around them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import msgspec
from greenlet import getcurrent

from coopstreams import Topology
from coopstreams.admin import rebuild
from coopstreams.admin.rebuild import Rebuilder, RebuildScope
from coopstreams.instance import snapshot_taker
from coopstreams.log.log import Log
from coopstreams.state import published_snapshot, snapshot, sst
from coopstreams.state.engine import Rows
from coopstreams.state.manifest import FORMAT, Manifest
from coopstreams.state.memory_engine import Memory
from coopstreams.state.sst import WrittenFile
from coopstreams.state.storage import Heard, Storage, nobody
from coopstreams.topology.errors import LogError, SnapshotError
from tests.simulation.fibers import Fiber, Machine, Scheduler
from tests.simulation.programs import APPLICATION

EVERY_S = 15.0
"""Mean time between two acts of an operator."""
SLOW_S = 0.02
"""Mean time of a file operation."""
HANGS_S = 90.0
"""Longer than a download waits."""


class Shelf:
    """The storage of a history's snapshots, and its faults. `log_of`: returns a
    machine's client of the cluster.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        random: Random,
        folder: Path,
        topologies: Mapping[bool, Topology],
        log_of: Callable[[Machine], Log],
        say: Callable[[str], None],
    ) -> None:
        self._scheduler, self._random, self._folder, self._say = (
            scheduler,
            random,
            folder,
            say,
        )
        self._topologies, self._log_of = topologies, log_of
        self.url = str(folder)
        self.machines: list[Machine] = []
        self._ended = False
        _SHELVES[self.url] = self
        self._wait()

    def end(self) -> None:
        """Cause no further faults."""
        self._ended = True

    def close(self) -> None:
        """Forget the storage; its users have ended."""
        del _SHELVES[self.url]

    def delay(self) -> None:
        """Delay a file operation, or fail it.

        Raises:
            SnapshotError: the storage does not answer.
        """
        fiber, chance = getcurrent(), self._random.random()
        assert isinstance(fiber, Fiber)
        if chance < 0.02 and not self._ended:
            raise SnapshotError("the storage does not answer")
        hangs = chance > 0.995 and not self._ended
        fiber.machine.sleep(HANGS_S if hangs else self._random.expovariate(1 / SLOW_S))

    def _wait(self) -> None:
        self._scheduler.at(
            self._scheduler.now + self._random.expovariate(1 / EVERY_S), self._happen
        )

    def _happen(self) -> None:
        if self._ended:
            return
        self._wait()
        machine = Machine(self._scheduler, f"operator.{len(self.machines)}")
        self.machines.append(machine)
        what = self._random.choice(
            (
                self._rebuild,
                self._rebuild,
                self._rebuild,
                self._spoil,
                self._publish_another,
            )
        )
        machine.thread(lambda: what(machine), "operator").start()
        if self._random.random() < 0.3:
            self._scheduler.at(
                self._scheduler.now + self._random.expovariate(1.0), machine.kill
            )

    def _rebuild(self, machine: Machine) -> None:
        """Make a snapshot of all stores, or of some partitions."""
        run = f"run-{len(self.machines):03}"
        rebuilder = Rebuilder(
            self._log_of(machine),
            self._topologies[self._random.random() < 0.5],
            APPLICATION,
            self.url,
            afresh=self._random.random() < 0.5,
            run=run,
            host=machine,
        )
        try:
            wanted = [
                each
                for each in rebuilder.to_rebuild(RebuildScope())
                if self._random.random() < 0.8
            ]
            found: dict[str, list[Any]] = {}
            for each in wanted:
                for store, slices in rebuilder.rebuild(each).items():
                    found.setdefault(store, []).extend(slices)
            rebuilder.publish(found)
            self._say(f"{machine.name} has published {run}")
        except (LogError, SnapshotError) as error:
            self._say(f"{machine.name} has not made {run}: {error}")

    def _publish_another(self, machine: Machine) -> None:
        """Publish an older run again, or one that a newer coopstreams has written."""
        with suppress(SnapshotError):
            runs = snapshot.runs(self.url, APPLICATION)
            manifest = (
                snapshot.load(self.url, APPLICATION, self._random.choice(runs))
                if runs
                else None
            )
            if manifest is None:
                return
            snapshot.publish(self.url, manifest)
            if self._random.random() < 0.3:
                self._make_newer(manifest)
            self._say(f"{machine.name} has published {manifest.run} again")

    def _make_newer(self, manifest: Manifest) -> None:
        where = self._folder / APPLICATION / manifest.run / snapshot.MANIFEST
        told, text = f'"format": {FORMAT}', where.read_text()
        assert told in text
        where.write_text(text.replace(told, f'"format": {FORMAT + 1}'))

    def _spoil(self, machine: Machine) -> None:
        """Damage or delete a file of a slice, a manifest, or the name of the published
        run.
        """
        files: dict[str, list[Path]] = {}
        for path in sorted(self._folder.rglob("*")):
            if path.is_file():
                files.setdefault(
                    str(path).rpartition("-")[0]
                    if path.suffix == ".sst"
                    else str(path),
                    [],
                ).append(path)
        deletes = self._random.random() < 0.5
        for name in self._random.sample(
            list(files), min(len(files), self._random.choice((1, 4, 100)))
        ):
            for path in files[name]:
                if deletes:
                    path.unlink()
                else:
                    data = path.read_bytes()
                    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        self._say(
            f"{machine.name} has {'deleted' if deletes else 'damaged'} files of snapshots"
        )


class SlowStorage(Storage):
    """A history's storage, whose reads are delayed or fail."""

    def read(self, name: str) -> bytes | None:
        # manifests are read under a lock, which must be held for a moment only
        if f"/{snapshot.PUBLISHED}/" in name:
            _SHELVES[self.url].delay()
        return super().read(name)

    def upload(self, file: Path, name: str) -> None:
        _SHELVES[self.url].delay()
        super().upload(file, name)

    def download(self, name: str, file: Path, heard: Heard = nobody) -> bool:
        _SHELVES[self.url].delay()
        return super().download(name, file, heard)


def write_rows(file: Path, rows: Rows) -> WrittenFile | None:
    """Write rows as `write_sst` does, without RocksDB."""
    written = list(rows)
    if not written:
        return None
    assert all(one[0] < other[0] for one, other in pairwise(written))
    file.write_bytes(
        msgspec.msgpack.encode(written)
    )  # its last byte belongs to the last row
    return WrittenFile(len(written), written[0][0], written[-1][0])


def read_rows(file: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of `write_rows`."""
    yield from msgspec.msgpack.decode(file.read_bytes(), type=list[tuple[bytes, bytes]])


IN_PLACE: list[tuple[ModuleType, str, object]] = [
    *(
        (module, "Storage", SlowStorage)
        for module in (snapshot, published_snapshot, snapshot_taker)
    ),
    *((module, "write_sst", write_rows) for module in (snapshot, published_snapshot)),
    *(
        (module, "read_sst", read_rows)
        for module in (snapshot, published_snapshot, sst)
    ),
    (rebuild, "Rocks", lambda _: Memory()),
]
"""Replacements of RocksDB's files in a history."""
_SHELVES: dict[str, Shelf] = {}
