"""Paused threads in running processes: a disk that hangs, a held lock, a system call
that does not return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tests.simulation.fibers import Machine, Scheduler

EVERY_S = 15.0
LENGTHS_S = (0.1, 2.0, 12.0, 40.0)
"""The longest outlasts two sessions."""


class Stalls:
    """Pauses threads at random times. `living`: the machines whose processes run."""

    def __init__(
        self,
        scheduler: Scheduler,
        random: Random,
        living: Callable[[], Sequence[Machine]],
        say: Callable[[str], None],
    ) -> None:
        self._scheduler, self._random, self._living, self._say = (
            scheduler,
            random,
            living,
            say,
        )
        self._ended = False
        self._over_at = 0.0
        self._wait()

    def end(self) -> None:
        """Pause no further threads."""
        self._ended = True

    @property
    def left_s(self) -> float:
        """Return how long the last pause still lasts."""
        return max(0.0, self._over_at - self._scheduler.now)

    def _wait(self) -> None:
        self._scheduler.at(
            self._scheduler.now + self._random.expovariate(1 / EVERY_S), self._happen
        )

    def _happen(self) -> None:
        if self._ended:
            return
        self._wait()
        fibers = [
            fiber
            for machine in self._living()
            for fiber in machine.fibers
            if fiber.is_alive()
        ]
        if fibers:
            fiber, seconds = self._random.choice(fibers), self._random.choice(LENGTHS_S)
            self._say(
                f"{fiber.machine.name} {fiber.name} stands still for {seconds:g} s"
            )
            self._scheduler.stall(fiber, seconds)
            self._over_at = max(self._over_at, self._scheduler.now + seconds)
