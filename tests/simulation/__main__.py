"""Histories of a whole group, by seed: `python -m tests.simulation --seeds 0..1000
[--minutes M] [--jobs N] [--replay SEED] [--shrink SEED]`.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import takewhile
from multiprocessing import get_context
from threading import Event
from typing import NamedTuple

from tests.simulation.histories import CONSUMERS, STEPS, History, histories, play
from tests.simulation.planted import PLANTED, WITHIN, Planted
from tests.simulation.programs import PROGRAMS
from tests.simulation.shrinking import shrunk

SAY_S = 10.0
"""Time between two progress lines."""


class Outcome(NamedTuple):
    """The result of a history. `wrong`: the violation, or empty."""

    history: History
    turns: int
    wrong: str


def main() -> int:
    """Return 0 if every history of these seeds is right."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=__doc__
    )
    parser.add_argument(
        "--seeds", default="0..200", help="A..B: from A up to, but not including, B"
    )
    parser.add_argument(
        "--minutes", type=float, help="end after so long, whatever is left"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes that play")
    parser.add_argument(
        "--steps",
        type=int,
        default=STEPS,
        help="how many things happen in each history",
    )
    parser.add_argument(
        "--guarantee",
        choices=("exactly_once_v2", "at_least_once"),
        help="only this one",
    )
    parser.add_argument(
        "--program",
        choices=[*PROGRAMS, CONSUMERS],
        help="always this one; otherwise they take turns",
    )
    parser.add_argument(
        "--planted",
        choices=[*PLANTED, "all"],
        help="put this bug in, and end when it is found; all: each, where it was",
    )
    parser.add_argument(
        "--replay",
        type=int,
        metavar="SEED",
        help="print what happens in the histories of one seed",
    )
    parser.add_argument(
        "--only",
        type=lambda given: [int(number) for number in given.split(",")],
        help="replay these steps only: 0,4,17",
    )
    parser.add_argument(
        "--shrink",
        type=int,
        metavar="SEED",
        help="leave out of the histories of one seed what they need not go wrong",
    )
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # histories depend on the order of sets
        command = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    logging.disable(logging.CRITICAL)
    if given.planted == "all":
        return max(
            [
                _find_again(name, planted)
                for name, planted in PLANTED.items()
                if planted.seed is not None
            ]
        )
    with PLANTED[given.planted].put_in() if given.planted else nullcontext():
        if given.shrink is not None:
            return max(
                _shrink(history, given.steps)
                for history in histories([given.shrink], given.guarantee, given.program)
            )
        if given.replay is not None:
            return max(
                _replay(history, given.only, given.steps)
                for history in histories([given.replay], given.guarantee, given.program)
            )
        return _play(given)


def _play(given: argparse.Namespace) -> int:
    first, last = map(int, given.seeds.split(".."))
    todo = list(histories(range(first, last), given.guarantee, given.program))
    every = len(todo)
    began, turns, wrong = time.monotonic(), 0, 0
    ends = began + 60 * given.minutes if given.minutes else math.inf
    said, interrupted = began, Event()
    signal.signal(signal.SIGINT, partial(_end, interrupted))
    in_time = takewhile(lambda _: time.monotonic() < ends, todo)
    for played, outcome in enumerate(_outcomes(in_time, given.steps, given.jobs), 1):
        turns, wrong, now = (
            turns + outcome.turns,
            wrong + bool(outcome.wrong),
            time.monotonic(),
        )
        if outcome.wrong:
            print(f"{outcome.history}, history {played}: {outcome.wrong}", flush=True)
        done = (
            played == every
            or now >= ends
            or interrupted.is_set()
            or (wrong and given.planted)
        )
        if done or now - said >= SAY_S:
            left_s = min((now - began) * (every / played - 1), ends - now)
            print(
                f"{played:,} histories up to seed {outcome.history.seed}, {wrong} wrong, {turns:,} turns, "
                f"{played / (now - began):.1f} histories/s, {played / sum(os.times()[:4]):.1f} a CPU second, "
                f"{max(left_s, 0) / 60:.0f} min left",
                flush=True,
            )
            said = now
        if done:
            break
    return 1 if wrong else 0


def _end(interrupted: Event, *_: object) -> None:
    """End after this history; a second signal ends at once."""
    interrupted.set()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _find_again(name: str, planted: Planted) -> int:
    """Plant a bug; return 0 if its seed, or one of the next, finds it again by its
    oracle.
    """
    assert planted.seed is not None
    with planted.put_in():
        for history in histories(
            range(planted.seed, planted.seed + WITHIN),
            planted.guarantee,
            planted.program,
        ):
            wrong = play(history)[1]
            if wrong is not None and wrong.oracle == planted.oracle:
                print(f"{name}: found, {history}: {str(wrong)[:100]}", flush=True)
                return 0
    print(f"{name}: not found", flush=True)
    return 1


def _outcomes(todo: Iterable[History], steps: int, jobs: int) -> Iterator[Outcome]:
    """Yield the results of histories, in order."""
    if jobs == 1:
        yield from (_outcome(history, steps) for history in todo)
        return
    waiting: deque[Future[Outcome]] = deque()
    pool = ProcessPoolExecutor(
        jobs, get_context("fork"), signal.signal, (signal.SIGINT, signal.SIG_IGN)
    )
    try:
        for history in todo:
            waiting.append(pool.submit(_outcome, history, steps))
            if len(waiting) > 4 * jobs:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _outcome(history: History, steps: int) -> Outcome:
    world, violation = play(history, steps=steps)
    return Outcome(history, world.scheduler.turns, str(violation or ""))


def _replay(history: History, only: Sequence[int] | None, steps: int) -> int:
    world, violation = play(history, only, steps)
    print(f"{history}: {violation or 'right'}", *world.events, sep="\n    ")
    return violation is not None


def _shrink(history: History, steps: int) -> int:
    """Print a shorter history that fails as well, if this one fails; return whether it
    does.
    """
    world, violation = play(history, steps=steps)
    if violation is None:
        print(f"{history}: right")
        return 0
    print(f"{history}: {len(world.events)} events: {violation}", flush=True)
    only = shrunk(
        range(steps + 1), lambda kept: play(history, kept, steps)[1] is not None
    )
    world, violation = play(history, only, steps)
    again = (
        f'--replay {history.seed} --only {",".join(map(str, only))} --program "{history.program}" --guarantee '
        f"{history.guarantee} --steps {steps}"
    )
    print(
        f"{len(only)} of {steps + 1} steps, {len(world.events)} events: {violation}",
        *world.events,
        again,
        sep="\n    ",
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
