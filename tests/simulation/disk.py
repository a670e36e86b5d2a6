"""What a simulated machine has on its disk: engines whose rows outlive the process that wrote them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import count
from pathlib import Path

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

    def __new__(cls, folder: Path) -> Disk:
        """Return the engine of a folder as whoever had it before has left it; a folder that was made anew has an empty
        one.
        """
        mark = folder / MARK
        if mark.exists():
            return _DISKS[mark.read_text()]
        made = super().__new__(cls)
        Memory.__init__(made)
        _keep(made, mark)
        return made

    def __init__(self, folder: Path) -> None:
        self.folder, self._closed = folder, False

    def write(self, changes: Sequence[Change]) -> None:
        """Write, if there is room."""
        if not _FULL.isdisjoint(self.folder.parents):
            raise StateError(f"{self.folder}: no space left on device")
        super().write(changes)


def copy(source: Path, target: Path) -> None:
    """Make a folder what another one is, with what its engines have."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("lock"))
    for mark in sorted(target.rglob(MARK)):
        copied = Memory.__new__(Disk)
        Memory.__init__(copied)
        copied._families = {family: rows.copy() for family, rows in _DISKS[mark.read_text()]._families.items()}
        _keep(copied, mark)


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


def _keep(engine: Disk, mark: Path) -> None:
    number = str(next(_NUMBERS))
    mark.write_text(number)
    _DISKS[number] = engine
