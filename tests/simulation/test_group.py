"""Histories of a whole group: those of a few seeds are right, and planted bugs are
found. More: `python -m tests.simulation --help`.
"""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from random import Random
from weakref import ref

import pytest

from coopstreams.common.config import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.simulation.histories import History, play
from tests.simulation.oracles import ORACLES
from tests.simulation.planted import PLANTED
from tests.simulation.world import SHELVES, World

LATE_JOIN = 40_021_793
"""A seed whose group begins a generation with an old claim of a member that has
released its tasks since.
"""
CROSSED = 94_001_136
"""A seed whose consumers, with `commit.order=offset`, each take back a transaction that
the other one waits for.
"""
HELD = 95_050_008
"""A seed whose consumers, with `commit.order=offset` and small caches, each hold the
next record of one partition.
"""
DROPPED = 96_050_192
"""A seed whose consumer, with `commit.order=offset` and no cache, has two partitions
whose records it drops in turn.
"""
PURGED = 98_076_904
"""A seed with an offset commit under at-least-once that arrives late, when a
repartition topic is purged above it.
"""
BEHIND = 99_302_435
"""A seed with a machine whose clock is set back by an hour, and which restores a table
from a topic that was compacted ahead of the group.
"""
ANOTHER_VERSION = (209, "a count behind a repartition", EXACTLY_ONCE)
"""A history whose processes have databases of another version of the topology, in which
their sub-topologies had other numbers.
"""
PARTS = [
    *((start, start + 72, 8) for start in range(0, 288, 72)),
    (288, 308, 30),
    (LATE_JOIN, LATE_JOIN + 1, 30),
    (CROSSED, CROSSED + 1, 30),
    (HELD, HELD + 1, 30),
    (DROPPED, DROPPED + 1, 30),
    (PURGED, PURGED + 1, 30),
    (BEHIND, BEHIND + 1, 30),
]
"""Bounds of seeds, and steps: many short histories, in one part for each test process,
and a few long ones.
"""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, because histories depend on the order of
    sets.
    """
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("first", "last", "steps"), PARTS)
def test_histories_are_right(first: int, last: int, steps: int) -> None:
    done = simulate("--seeds", f"{first}..{last}", "--steps", str(steps))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_database_of_another_version_holds_no_move() -> None:
    seed, program, guarantee = ANOTHER_VERSION
    of_program = ("--program", program, "--guarantee", guarantee)
    done = simulate("--seeds", f"{seed}..{seed + 1}", *of_program)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_bugs_that_are_put_in_are_found() -> None:
    done = simulate("--planted", "all")
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_oracle_finds_a_bug_that_is_put_in() -> None:
    assert {
        planted.oracle for planted in PLANTED.values() if planted.seed is not None
    } == set(ORACLES)


def test_the_same_seed_is_the_same_history() -> None:
    first, second = (simulate("--replay", "3").stdout for _ in range(2))
    assert "nothing goes wrong any more" in first
    assert first.rpartition("turns")[0] == second.rpartition("turns")[0]


@pytest.mark.parametrize("kind", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_history_that_has_been_played_leaves_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        logging.root.manager, "disable", logging.CRITICAL
    )  # pytest stores log records
    shelf = next(
        seed for seed in range(100) if Random(f"{seed} snapshots").random() < SHELVES
    )
    played, violation = play(History(shelf, "a count", kind), steps=8)
    assert violation is None  # its traceback would keep the history alive
    assert isinstance(played, World)
    assert played.shelf is not None
    kept = ref(played)
    del played
    gc.collect()
    assert (
        kept() is None
    )  # objects alive at the start of the next history are frozen, and never freed


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "bug", [name for name, bug in PLANTED.items() if bug.seed is None and not bug.once]
)
def test_bugs_that_are_rare_are_found(bug: str) -> None:
    planted = PLANTED[bug]
    done = simulate(
        *(
            "--seeds",
            "0..3000",
            "--program",
            planted.program,
            "--guarantee",
            planted.guarantee,
            "--planted",
            bug,
        )
    )
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.slow
def test_a_history_that_goes_wrong_shrinks_to_steps_that_go_wrong_again() -> None:
    bug = (
        "--program",
        "a count",
        "--guarantee",
        "exactly_once_v2",
        "--planted",
        "a restore that ends early",
    )
    shrunk = simulate("--shrink", "0", *bug)
    assert shrunk.returncode == 1, shrunk.stdout + shrunk.stderr
    kept = shrunk.stdout.partition("--only ")[2].split()[0]
    assert len(kept.split(",")) < 10
    assert simulate("--replay", "0", "--only", kept, *bug).returncode == 1
