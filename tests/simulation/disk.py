"""The disks of simulated machines: engines whose rows outlive the process that wrote
them.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from coopstreams.state.database import Database
from coopstreams.state.engine import Change
from coopstreams.state.memory_engine import Memory
from coopstreams.topology.errors import StateError

MARK = "disk"
"""The file in a folder that names its engine."""

_DISKS: dict[str, Disk] = {}
_NUMBERS = count()
_FULL: set[Path] = set()


class Disk(Memory):
    """A store type, `tests.simulation.disk:Disk`: the rows in a folder outlive the
    process.
    """

    contents: int
    """The version of the folder's content, which differs after each change."""

    def __new__(cls, folder: Path) -> Disk:
        """Return the engine of a folder with the rows of its last user; a new folder
        has an empty one.
        """
        mark = folder / MARK
        if mark.exists():
            return _DISKS[mark.read_text()]
        return _made(mark)

    def __init__(self, folder: Path) -> None:
        self.folder, self._closed = folder, False

    def write(self, changes: Sequence[Change]) -> None:
        """Write, if there is space."""
        if _FULL and not _FULL.isdisjoint(self.folder.parents):
            raise StateError(f"{self.folder.name}: no space left on device")
        super().write(changes)
        self.contents = next(_NUMBERS)

    def drop(self, family: str) -> None:
        """Remove a family."""
        super().drop(family)
        self.contents = next(_NUMBERS)


def copy(source: Path, target: Path) -> None:
    """Copy a folder with its engines over another one."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("lock"))
    for mark in sorted(target.rglob(MARK)):
        families = _DISKS[mark.read_text()]._families
        _made(mark)._families = {
            family: rows.copy() for family, rows in families.items()
        }


def fill(folder: Path) -> None:
    """Leave no space below a folder."""
    _FULL.add(folder)


def free(*folders: Path) -> None:
    """Free space below these folders, or everywhere."""
    _FULL.difference_update(folders or set(_FULL))


def wipe() -> None:
    """Delete all disks."""
    _DISKS.clear()
    _FULL.clear()


def contents(database: Database) -> int:
    """Return the version of a database's content."""
    (stores,) = database._engine_stores
    engine = stores._engine
    assert isinstance(engine, Disk)
    return engine.contents


def _made(mark: Path) -> Disk:
    """Return an empty engine, and note it in the mark of a folder."""
    engine = Memory.__new__(Disk)
    Memory.__init__(engine)
    engine.contents = number = next(_NUMBERS)
    mark.write_text(str(number))
    _DISKS[str(number)] = engine
    return engine
