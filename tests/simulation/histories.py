"""The histories of a seed, under each guarantee: of one of the programs of instances,
or of a group of consumers.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from itertools import count
from types import ModuleType
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from coopstreams.common.config import AT_LEAST_ONCE, EXACTLY_ONCE
from coopstreams.preflight import last_version, resolution
from coopstreams.tasks import resolved_topology
from coopstreams.topology.compile import operator_time
from tests.simulation.consumers import Consumers
from tests.simulation.oracles import ViolationError
from tests.simulation.programs import PROGRAMS
from tests.simulation.settings import unusual
from tests.simulation.stage import Stage
from tests.simulation.world import World

STEPS = 30
CONSUMERS = "consumers"
EVERY = 8
"""One of this many seeds has a group of consumers besides its program."""
COLLECTED = 8
"""After this many histories their garbage is collected."""
_NUMBERS = count()
T = TypeVar("T")


class History(NamedTuple):
    """One run: `seed` decides all random choices."""

    seed: int
    program: str
    guarantee: str

    def __str__(self) -> str:
        told = f"seed {self.seed}, {self.program}, {self.guarantee}"
        if self.program == CONSUMERS:
            return told
        drawn = unusual(self.seed, PROGRAMS[self.program])
        return f"{told} ({drawn})" if drawn else told


def histories(
    seeds: Iterable[int], guarantee: str | None = None, program: str | None = None
) -> Iterator[History]:
    """Yield the histories of these seeds: the programs in turn, and sometimes
    consumers; or always the same one.
    """
    names = list(PROGRAMS)
    for seed in seeds:
        played = [names[seed % len(names)], *([CONSUMERS] if seed % EVERY == 0 else [])]
        for each in played if program is None else [program]:
            for kind in (EXACTLY_ONCE, AT_LEAST_ONCE):
                if guarantee in (None, kind):
                    yield History(seed, each, kind)


def _once(function: Callable[..., T], about: Callable[..., object]) -> Callable[..., T]:
    """Return a function with a cache of about this many results."""
    known: dict[object, tuple[T, object]] = {}

    def told(*given: Any, **named: Any) -> T:
        name = about(*given, **named)
        if name not in known:
            known[name] = (
                function(*given, **named),
                given,
            )  # keeps the arguments alive, so that their ids stay unique
        return known[name][0]

    return told


MADE_ONCE: list[tuple[ModuleType, str, Callable[..., object]]] = [
    (
        resolution,
        "as_it_runs",
        lambda built, _, config: (id(built), config["topology.optimization"]),
    ),
    (
        resolved_topology,
        "fingerprints",
        lambda topology, partitions: (id(topology), tuple(partitions)),
    ),
    (
        resolved_topology,
        "compile_subtopology",
        lambda topology, part, *by, **how: (id(topology), part.id, *by, *how.values()),
    ),
    (last_version, "outline", id),
    (operator_time, "Analysis", id),
]
"""Functions whose results are equal in all processes of a topology, which has no
patterns: cached.
"""
_MADE = [
    (where, name, _once(getattr(where, name), about))
    for where, name, about in MADE_ONCE
]


def play(
    history: History, only: Collection[int] | None = None, steps: int = STEPS
) -> tuple[Stage[Any], ViolationError | None]:
    """Return the stage of a history of this many steps at its end, and its violation.
    `only`: see `Stage.run`.
    """
    gc.disable()  # otherwise each garbage collection would traverse all modules
    if next(_NUMBERS) % COLLECTED == 0:
        gc.collect()
        gc.freeze()
    exactly_once = history.guarantee == EXACTLY_ONCE
    world: Stage[Any] = (
        Consumers(history.seed, exactly_once=exactly_once)
        if history.program == CONSUMERS
        else World(history.seed, PROGRAMS[history.program], exactly_once=exactly_once)
    )
    try:
        with ExitStack() as stack:
            for where, name, stands_in in [*_MADE, *world.stand_ins()]:
                stack.enter_context(patch.object(where, name, stands_in))
            world.run(steps, only)
    except ViolationError as violation:
        return world, violation
    finally:
        world.close()
    return world, None
