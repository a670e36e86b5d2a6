"""What a simulated machine has on its disk: engines whose rows outlive the process that wrote them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from coopstreams.state.database import Database
from coopstreams.state.engine import Change
from coopstreams.state.memory import Memory
from coopstreams.topology.errors import StateError

MARK = "disk"
"""The file in a folder that says which engine it has."""

_DISKS: dict[str, Disk] = {}
_NUMBERS = count()
_FULL: set[Path] = set()


class Disk(Memory):
    """A store type, `tests.simulation.disk:Disk`: what one process has written in a folder, the next one finds
    there.
    """

    contents: int
    """Stands for what it has: another number after each change."""

    def __new__(cls, folder: Path) -> Disk:
        """Return the engine of a folder as whoever had it before has left it; a folder that was made anew has an empty
        one.
        """
        mark = folder / MARK
        if mark.exists():
            return _DISKS[mark.read_text()]
        return _made(mark)

    def __init__(self, folder: Path) -> None:
        self.folder, self._closed = folder, False

    def write(self, changes: Sequence[Change]) -> None:
        """Write, if there is room."""
        if _FULL and not _FULL.isdisjoint(self.folder.parents):
            raise StateError(f"{self.folder.name}: no space left on device")
        super().write(changes)
        self.contents = next(_NUMBERS)

    def drop(self, family: str) -> None:
        """Remove a family."""
        super().drop(family)
        self.contents = next(_NUMBERS)


def copy(source: Path, target: Path) -> None:
    """Make a folder what another one is, with what its engines have."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("lock"))
    for mark in sorted(target.rglob(MARK)):
        families = _DISKS[mark.read_text()]._families
        _made(mark)._families = {family: rows.copy() for family, rows in families.items()}


def fill(folder: Path) -> None:
    """Have no room below a folder."""
    _FULL.add(folder)


def free(*folders: Path) -> None:
    """Have room again below these, or everywhere."""
    _FULL.difference_update(folders or set(_FULL))


def wipe() -> None:
    """Forget all disks."""
    _DISKS.clear()
    _FULL.clear()


def contents(database: Database) -> int:
    """Return a number that stands for what a database has."""
    (stores,) = database._engine_stores
    engine = stores._engine
    assert isinstance(engine, Disk)
    return engine.contents


def _made(mark: Path) -> Disk:
    """Return an empty engine, and note at the mark of a folder that it has this one."""
    engine = Memory.__new__(Disk)
    Memory.__init__(engine)
    engine.contents = number = next(_NUMBERS)
    mark.write_text(str(number))
    _DISKS[str(number)] = engine
    return engine
