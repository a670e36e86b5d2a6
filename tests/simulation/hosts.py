"""Faults of machines, other than their death: disks that are lost, full, or from an
earlier time; clocks that jump; changed settings.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from uuid import UUID

from tests.simulation import disk
from tests.simulation.fibers import Machine

SECOND_MS, HOUR_MS, DAY_MS = 1000, 3_600_000, 86_400_000


class Hosts:
    """The hosts of processes, by number, and the settings with which processes start.
    `folder_of`: the state folder of a process.
    """

    def __init__(
        self,
        count: int,
        folder_of: Callable[[int], Path],
        random: Random,
        say: Callable[[str], None],
    ) -> None:
        self._folder_of, self._random, self._say = folder_of, random, say
        self._ahead_ms: Counter[int] = Counter()
        self.threads, self.ranges = random.choice((1, 1, 2)), random.choice((1, 2, 4))
        self.newer = False
        """Whether processes start with the newer version of the topology."""
        for number in range(count):
            self._have_folder(number)

    def happen(self, living: Mapping[int, Machine], down: Sequence[int]) -> None:
        """Cause one fault: `living` run a process, `down` do not."""
        match self._random.choice(
            (
                "clock",
                "lost",
                "saved",
                "earlier",
                "full",
                "settings",
                "settings",
                "version",
            )
        ):
            case "clock" if living:
                self._jump(*self._random.choice(sorted(living.items())))
            case "lost" if down:
                self._lose(self._random.choice(down))
            case "saved" if living:
                self._copy(self._random.choice(sorted(living)), "is saved", back=False)
            case "earlier" if saved := [
                number for number in down if self._saved(number).is_dir()
            ]:
                self._copy(self._random.choice(saved), "is as it was saved", back=True)
            case "full" if living:
                number = self._random.choice(sorted(living))
                self._say(f"the disk of p{number} is full")
                disk.fill(self._folder_of(number))
            case "settings":
                self.threads, self.ranges = (
                    self._random.choice((1, 1, 2)),
                    self._random.choice((1, 2, 4)),
                )
                self._say(
                    f"who begins from now on has {self.threads} threads, {self.ranges} ranges"
                )
            case "version":
                self.newer = not self.newer
                self._say(
                    f"who begins from now on runs the {'newer' if self.newer else 'older'} version"
                )
            case _:
                pass

    def begin(self, number: int, machine: Machine) -> None:
        """Start a process."""
        disk.free(self._folder_of(number))
        machine.ahead_ms = self._ahead_ms[number]

    def end(self) -> None:
        """Cause no further faults."""
        disk.free()

    def _jump(self, number: int, machine: Machine) -> None:
        by = self._random.choice(
            (SECOND_MS, HOUR_MS, 3 * DAY_MS, 400 * DAY_MS)
        ) * self._random.choice((1, -1))
        self._say(f"the clock of p{number} jumps by {by / SECOND_MS:.0f} s")
        self._ahead_ms[number] += by
        machine.ahead_ms += by

    def _lose(self, number: int) -> None:
        self._say(f"the disk of p{number} is lost")
        shutil.rmtree(self._folder_of(number))
        self._have_folder(number)

    def _copy(self, number: int, what: str, *, back: bool) -> None:
        self._say(f"the disk of p{number} {what}")
        folder, saved = self._folder_of(number), self._saved(number)
        disk.copy(saved, folder) if back else disk.copy(folder, saved)

    def _saved(self, number: int) -> Path:
        folder = self._folder_of(number)
        return folder.with_name(f"saved-{folder.name}")

    def _have_folder(self, number: int) -> None:
        """Transactional ids derive from this file; without it they would be random."""
        folder = self._folder_of(number)
        folder.mkdir(parents=True)
        (folder / "process-id").write_text(str(UUID(int=self._random.getrandbits(128))))
