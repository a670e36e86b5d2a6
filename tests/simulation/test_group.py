"""Histories of a whole group: those of a few seeds are right, and bugs that are put in are found. More: `python -m
tests.simulation --help`.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SEEDS = 40
FOUND_AT = {
    "a restore that ends early": (0, "a count"),
    "a cancel that nobody hears": (1, "a count behind a repartition"),
    "the database before the log": (0, "a count"),
    "what was done is done again": (1, "a count behind a repartition"),
    "whoever wakes is sure": (9, "a table on its source"),
    "no barrier": (51, "a count behind a repartition"),
    "a stale barrier": (56, "a join with a table"),
    "time of its own": (489, "windows that close"),
}
"""The seed and the program with which each planted bug was found."""
WITHIN = 40
"""Other turns of a thread make another history of a seed, so a change of the product may move it: one of so many seeds
finds it, and is the last.
"""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command; the order of sets is a part of a history, so it is another process."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONHASHSEED": "0"}
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_histories_are_right(guarantee: str) -> None:
    done = simulate("--seeds", f"0..{SEEDS}", "--guarantee", guarantee)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", FOUND_AT)
def test_a_bug_that_is_put_in_is_found(bug: str) -> None:
    seed, program = FOUND_AT[bug]
    done = simulate(
        "--seeds", f"{seed}..{seed + WITHIN}", "--program", program, "--guarantee", "exactly_once_v2", "--planted", bug
    )
    assert done.returncode == 1, done.stdout + done.stderr


def test_the_same_seed_is_the_same_history() -> None:
    first, second = (simulate("--replay", "3").stdout for _ in range(2))
    assert "nothing goes wrong any more" in first
    assert first.rpartition("turns")[0] == second.rpartition("turns")[0]


@pytest.mark.slow
def test_a_history_that_goes_wrong_shrinks_to_steps_that_go_wrong_again() -> None:
    bug = ("--program", "a count", "--guarantee", "exactly_once_v2", "--planted", "a restore that ends early")
    shrunk = simulate("--shrink", "0", *bug)
    assert shrunk.returncode == 1, shrunk.stdout + shrunk.stderr
    kept = shrunk.stdout.partition("--only ")[2].split()[0]
    assert len(kept.split(",")) < 10
    assert simulate("--replay", "0", "--only", kept, *bug).returncode == 1
