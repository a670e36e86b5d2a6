"""What is played for a seed: one of the programs, under each guarantee."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple
from unittest.mock import patch

from coopstreams.common.config import AT_LEAST_ONCE, EXACTLY_ONCE
from coopstreams.tasks import resolved_topology
from coopstreams.topology.compile.compile import compile_subtopology
from tests.simulation.programs import PROGRAMS
from tests.simulation.world import ViolationError, World

STEPS = 30


class History(NamedTuple):
    """One run: `seed` decides everything that chance decides."""

    seed: int
    program: str
    guarantee: str

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.program}, {self.guarantee}"


def histories(seeds: Iterable[int], guarantee: str | None = None, program: str | None = None) -> Iterator[History]:
    """Yield what is played for these seeds: the programs in turn, or always the same one."""
    names = list(PROGRAMS)
    for seed in seeds:
        for each in (EXACTLY_ONCE, AT_LEAST_ONCE):
            if guarantee in (None, each):
                yield History(seed, program or names[seed % len(names)], each)


_compiled = cache(compile_subtopology)
"""Each process would compile what the others have compiled."""


def play(history: History, only: Collection[int] | None = None) -> tuple[World, ViolationError | None]:
    """Return the world of a history at its end, and what was wrong in it. `only`: see `World.run`."""
    with _collected_before():
        world = World(history.seed, PROGRAMS[history.program], exactly_once=history.guarantee == EXACTLY_ONCE)
        try:
            with patch.object(resolved_topology, "compile_subtopology", _compiled):
                world.run(STEPS, only)
        except ViolationError as violation:
            return world, violation
        finally:
            world.close()
        return world, None


@contextmanager
def _collected_before() -> Iterator[None]:
    """Collect garbage between histories: within one, each pass of the collector would go over all modules."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
