"""What a simulated machine has on its disk: engines whose rows outlive the process that wrote them."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from coopstreams.state.memory import Memory

_DISKS: dict[str, Disk] = {}
_NUMBERS = count()


class Disk(Memory):
    """A store type, `tests.simulation.disk:Disk`: what one process has written in a folder, the next one finds there."""

    def __new__(cls, folder: Path) -> Disk:
        """Return the engine of a folder as whoever had it before has left it; a folder that was made anew has an empty one."""
        mark = folder / "disk"
        if mark.exists():
            return _DISKS[mark.read_text()]
        number = str(next(_NUMBERS))
        mark.write_text(number)
        _DISKS[number] = made = super().__new__(cls)
        Memory.__init__(made)
        return made

    def __init__(self, folder: Path) -> None:
        self.folder, self._closed = folder, False


def wipe() -> None:
    """Forget all disks."""
    _DISKS.clear()
