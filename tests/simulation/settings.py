"""The settings of a history that its seed draws, beside its events: where state comes
from, and how records wait.

Each program is played under all values of the settings that mean something to it, and
so under all pairs of them; the pairs outside are in docs/internals/simulation.md. A setting is
drawn by a generator of its own, from the seed and its name, so that a new setting
leaves the values of the others alone.

Invariant: seed, program and guarantee give the same settings. Turned down: a list of
pairs (those that nobody thought of were the ones that went wrong).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any, NamedTuple

from tests.simulation.programs import CACHE, IDLE, Program

OPTIMIZATION = "topology.optimization"
TABLES, KEPT, BEHIND, AHEAD = (
    "the topics of tables",
    "kept",
    "compacted behind the group",
    "compacted ahead of the group",
)
RECORDS, PLAIN, IN_TRANSACTIONS = (
    "records come",
    "plain",
    "in transactions, some of which abort",
)
NEIGHBOUR, NO_OTHER, COMMITS, OPEN = (
    "in the commit topic's partition",
    "there is no other group",
    "another group commits",
    "another group leaves transactions open",
)
CALLS = "calls are made"
SNAPSHOTS = "snapshots.interval.ms"
RESET, LEFT_ALONE, WHILE_SUSPENDED = (
    "the application is reset",
    "never",
    "while a machine is suspended",
)
USUAL = 0.5
"""The probability of the first value of a setting."""

Drawn = Mapping[str, Any]
"""The value of each setting of a history, by its name."""


class Setting(NamedTuple):
    """A setting. `values`: those that mean something to a program, the usual one first;
    none: the setting does not.
    """

    name: str
    values: Callable[[Program], Sequence[Any]]
    why: str


def _of_tables(*values: Any) -> Callable[[Program], Sequence[Any]]:
    return lambda program: values if program.tables else ()


SETTINGS = (
    Setting(
        OPTIMIZATION,
        _of_tables("none", "all"),
        "tables are restored from their topics, and have no positions of their own in a changelog",
    ),
    Setting(
        TABLES,
        _of_tables(KEPT, BEHIND, AHEAD),
        "holes in what is processed, and in what is restored",
    ),
    Setting(
        RECORDS,
        lambda _: (PLAIN, IN_TRANSACTIONS),
        "markers and aborted records take offsets, and an open transaction hides what is behind it",
    ),
    Setting(
        CACHE,
        lambda _: (0, 1 << 20),
        "rows wait for the commit",
    ),
    Setting(
        IDLE,
        lambda program: (0, -1, 500, 60_000) if program.topics > 1 else (),
        "records of one topic wait for those of another one",
    ),
    Setting(
        "commit.interval.ms",
        lambda _: (None, 1_000, 5_000),
        "how much a commit has, and how much a death takes along",
    ),
    Setting(
        "ranges.before.windows",
        lambda _: (True, False),
        "whether tasks share a partition in front of windows",
    ),
    Setting(
        "repartition.purge.interval.ms",
        lambda program: (1_000, 30_000) if program.purges else (),
        "whether a process that was suspended finds the records at its position, and which windows changelogs have",
    ),
    Setting(
        RESET,
        lambda program: (
            (LEFT_ALONE, WHILE_SUSPENDED)
            if program.repartitions and not program.calls and not program.tables
            else ()
        ),
        "whether the topics that a process knows are others when it wakes",
    ),
    Setting(
        CALLS,
        lambda program: tuple(program.calls),
        "how records wait for calls",
    ),
    Setting(
        "max.revoke.delay.ms",
        lambda program: (60_000, 0, 3_000) if program.calls else (),
        "how long a range that moves is held, and which calls are made again",
    ),
    Setting(
        "group.instance.id",
        lambda _: (None, "p{instance}"),
        "whether a process that starts again takes its place in the group at once",
    ),
    Setting(
        "num.standby.replicas",
        lambda program: (0, 1) if program.stores else (),
        "whether tasks continue from rows that were restored before they came",
    ),
    Setting(
        "acceptable.recovery.lag",
        lambda program: (10_000, 0, 20) if program.stores else (),
        "whether tasks wait until their next owner has caught up, while everything goes on",
    ),
    Setting(
        SNAPSHOTS,
        lambda program: (None, 1_000, 10_000) if program.stores else (),
        "whether processes write snapshots while they process, commit, move and die; where there is a storage",
    ),
    Setting(
        NEIGHBOUR,
        lambda _: (NO_OTHER, COMMITS, OPEN),
        "what is between the commits of the group, and in front of the barrier",
    ),
)


@cache
def _values(program: Program) -> Sequence[tuple[str, Sequence[Any]]]:
    return [
        (setting.name, values)
        for setting in SETTINGS
        if setting.name not in program.settings and (values := setting.values(program))
    ]


def drawn_settings(seed: int, program: Program) -> Drawn:
    """Return the settings of a history that mean something to its program."""
    chosen = {}
    for name, values in _values(program):
        random = Random(f"{seed} {name}")
        usual = len(values) == 1 or random.random() < USUAL
        chosen[name] = values[0] if usual else random.choice(values[1:])
    return chosen


def unusual(seed: int, program: Program) -> str:
    """Return the settings of a history that are not the usual ones, in words; empty:
    there are none.
    """
    chosen = drawn_settings(seed, program)
    return ", ".join(
        f"{name}={chosen[name]}"
        for name, values in _values(program)
        if chosen[name] != values[0]
    )
