"""Histories of a whole group, by seed: `python -m tests.simulation --seeds 0..1000 [--minutes M] [--replay SEED]`."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
from contextlib import nullcontext

from tests.simulation.histories import histories, play
from tests.simulation.planted import PLANTED
from tests.simulation.programs import PROGRAMS


def main() -> int:
    """Return 0 if every history of these seeds is right."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0..200", help="A..B: from A up to, but not including, B")
    parser.add_argument("--minutes", type=float, help="end after so long, whatever is left")
    parser.add_argument("--guarantee", choices=("exactly_once_v2", "at_least_once"), help="only this one")
    parser.add_argument("--program", choices=PROGRAMS, help="always this one; otherwise they take turns")
    parser.add_argument("--planted", choices=PLANTED, help="put this bug in, and end when it is found")
    parser.add_argument("--replay", type=int, metavar="SEED", help="print what happens in the histories of one seed")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is a part of a history
        return subprocess.call([sys.executable, "-m", "tests.simulation", *sys.argv[1:]], env={**os.environ, "PYTHONHASHSEED": "0"})
    logging.disable(logging.CRITICAL)
    with PLANTED[given.planted]() if given.planted else nullcontext():
        return _play(given)


def _play(given: argparse.Namespace) -> int:
    first, last = (given.replay, given.replay + 1) if given.replay is not None else map(int, given.seeds.split(".."))
    began, played, turns, wrong = time.monotonic(), 0, 0, 0
    for history in histories(range(first, last), given.guarantee, given.program):
        if given.minutes and time.monotonic() - began > 60 * given.minutes:
            break
        world, violation = play(history)
        played, turns, wrong = played + 1, turns + world.scheduler.turns, wrong + (violation is not None)
        if violation is not None or given.replay is not None:
            print(
                f"{history}, history {played}: {violation or 'right'}", *(world.events if given.replay is not None else ()), sep="\n    ", flush=True
            )
        if wrong and given.planted:
            return 1
        if played % 100 == 0:
            print(_summary(played, turns, wrong, time.monotonic() - began), flush=True)
    print(_summary(played, turns, wrong, time.monotonic() - began))
    return 1 if wrong else 0


def _summary(played: int, turns: int, wrong: int, seconds: float) -> str:
    return f"{played} histories, {wrong} wrong, {turns:,} turns, {played / seconds:.1f} histories/s"


if __name__ == "__main__":
    sys.exit(main())
