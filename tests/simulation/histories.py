"""What is played for a seed: one of the programs, under each guarantee."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from types import ModuleType
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from coopstreams.common.config import AT_LEAST_ONCE, EXACTLY_ONCE
from coopstreams.instance import deployed
from coopstreams.tasks import resolved_topology
from tests.simulation.oracles import ViolationError
from tests.simulation.programs import PROGRAMS
from tests.simulation.shelf import IN_PLACE
from tests.simulation.world import World

STEPS = 30
T = TypeVar("T")


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


def _once(function: Callable[..., T], about: Callable[..., object]) -> Callable[..., T]:
    """Return a function that gives what it has given `about` the same arguments."""
    known: dict[object, tuple[T, object]] = {}

    def told(*given: Any) -> T:
        name = about(*given)
        if name not in known:
            known[name] = function(*given), given  # what is kept keeps its identity
        return known[name][0]

    return told


MADE_ONCE: list[tuple[ModuleType, str, Callable[..., object]]] = [
    (resolved_topology, "as_it_runs", lambda built, _, config: (id(built), config["topology.optimization"])),
    (resolved_topology, "fingerprints", lambda topology, partitions: (id(topology), tuple(partitions))),
    (resolved_topology, "compile_subtopology", lambda topology, part, wrapper: (id(topology), part.id, wrapper)),
    (deployed, "outline", id),
]
"""What each process would make of its topology as the others have, with what it is made of. No program has patterns."""
_MADE = [(where, name, _once(getattr(where, name), about)) for where, name, about in MADE_ONCE]


def play(
    history: History, only: Collection[int] | None = None, steps: int = STEPS
) -> tuple[World, ViolationError | None]:
    """Return the world of a history of so many steps at its end, and what was wrong in it. `only`: see `World.run`."""
    gc.disable()  # within a history, each pass of the collector would go over all modules
    gc.collect()
    gc.freeze()
    world = World(history.seed, PROGRAMS[history.program], exactly_once=history.guarantee == EXACTLY_ONCE)
    try:
        with ExitStack() as stack:
            # temporary folders, too, are in memory: a history makes a dozen of them
            for where, name, stands_in in [*_MADE, *IN_PLACE, (tempfile, "tempdir", str(world.folder))]:
                stack.enter_context(patch.object(where, name, stands_in))
            world.run(steps, only)
    except ViolationError as violation:
        return world, violation
    finally:
        world.close()
    return world, None
