"""How long windows behind a repartition topic wait for a source partition that is
silent, or whose process is down, on a real broker: `python -m
benchmarks.time_that_waits [--only NAME]`.

A steady load, in which an hour of event time takes a second; final results of windows
of an hour.

    silent    one of two partitions gets no more records, then another group has a
              partition that never had one: from the record that closes a window of the
              others to its result
    down      the process that has a source partition is killed, and comes again after
              90 s, under load: when it is named in the status, and in the health of the
              other; what final results lack in the end
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

import coopstreams
from benchmarks.steady import HOUR_MS, Load, Result, Tail
from benchmarks.time_costs import EXACTLY_ONCE, Bench, Version, ready
from tests.broker.processes import Workers
from tests.broker.test_time_that_waits import status, waits
from tests.broker.waiting import eventually

RATE = 500
SPEED = HOUR_MS / 1000
BEFORE_S = 15.0
DOWN_S = 90.0
SILENT_S = 30.0
REASON = "waits-for-time"


def silent(bench: Bench, version: Version, never: bool) -> str:
    """Return how long windows wait for a partition that is silent, or was never heard."""
    topics = bench.topics(2)
    results: list[Result] = []
    with bench.group(version, "final", topics, EXACTLY_ONCE, 2) as group:
        ready(group)
        load = Load(bench.kafka.bootstrap, topics[0], 2, RATE, SPEED)
        if never:
            load.partitions = [0]
        with load, Tail(bench.kafka.bootstrap, topics[1]) as tail:
            begin = time.perf_counter()
            results += _results(tail, 0.0 if never else BEFORE_S)
            load.partitions = [0]
            results += _results(tail, SILENT_S)
    # A window that partition 1 has closed, too, has not waited for its silence.
    of_both = {} if never else load.closed_at([0, 1])
    closed = load.closed_at([0])
    waited = {
        one.start: one.at - closed[one.start]
        for one in results
        if one.start in closed and one.start not in of_both
    }
    last = max((one.at for sent in load.sent.values() for one in sent), default=begin)
    open_ = [start for start in closed if start not in waited and start not in of_both]
    unheard = [start for start in open_ if closed[start] < last - 7.0]
    steady = sorted(list(waited.values())[len(waited) // 2 :])
    name = "never heard" if never else "silent"
    return (
        f"{name}: {len(waited)} windows; the longest wait {max(waited.values()):.2f} s, "
        f"of the second half median {steady[len(steady) // 2]:.2f} s, most "
        f"{steady[-1]:.2f} s; {len(unheard)} wait for more than 7 s at the end"
    )


def _results(tail: Tail, seconds: float) -> Iterator[Result]:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        yield from tail.results()


def down(bench: Bench, version: Version) -> str:
    """Kill the process of a source partition; return what is seen until it is back."""
    topics = bench.topics(2)
    settings = EXACTLY_ONCE | {"session.timeout.ms": str(int(DOWN_S * 1000))}
    results: list[Result] = []
    named: dict[str, float] = {}
    with bench.group(version, "final", topics, settings, 2) as group:
        ready(group)
        load = Load(bench.kafka.bootstrap, topics[0], 2, RATE, SPEED)
        with load, Tail(bench.kafka.bootstrap, topics[1]) as tail:
            results += _results(tail, BEFORE_S)
            away = _owner(group)
            stays = 1 - away
            id_ = status(group, away)["here"]
            group.kill(away)
            killed = time.perf_counter()
            while time.perf_counter() < killed + DOWN_S:
                results += _results(tail, 0.2)
                for how in _naming(group, stays, id_):
                    named.setdefault(how, time.perf_counter() - killed)
            final_meanwhile = sum(one.at > killed + 5 for one in results)
            group.start(away)
            load.stop()
            expected = load.expected()
            newest = max(start for _, start in expected)

            def is_complete() -> bool:
                results.extend(_results(tail, 0.5))
                told = {(one.key, one.start) for one in results}
                return all(one in told or one[1] == newest for one in expected)

            eventually(is_complete, 120, group.logs)
            back = time.perf_counter() - killed
    told = {(one.key, one.start): one.records for one in results}
    lack = sum(expected[window] - count for window, count in told.items())
    seen = ", ".join(f"{how} after {seconds:.1f} s" for how, seconds in named.items())
    return (
        f"down: named in {seen}; {final_meanwhile} final results meanwhile; after "
        f"{back:.1f} s all {len(told):,} windows and keys but those of the newest hour "
        f"are final, and lack {lack} of {sum(expected[one] for one in told):,} records; "
        f"{len(results) - len(told)} results came twice"
    )


def _owner(group: Workers) -> int:
    """Return which process has the first stage of partition 1."""
    (owner,) = (
        instance["id"]
        for instance in status(group, 0)["instances"]
        for task in instance["tasks"]
        if (task["subtopology"], task["partition"]) == (0, 1)
    )
    numbers = list(group.running)
    return next(number for number in numbers if status(group, number)["here"] == owner)


def _naming(group: Workers, stays: int, away: str) -> Iterator[str]:
    """Yield where the process that is away is named, or the reason."""
    report: dict[str, Any] = status(group, stays)
    if any((each["partition"], each["owner"]) == (1, away) for each in waits(report)):
        yield "/v1/status"
    for path in ("/health/ready", "/health/live"):
        answer = httpx.get(f"{group.url(stays)}{path}")
        if REASON in answer.text:
            yield f"{path} ({answer.status_code}, {REASON})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each case, and print its line at once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ("silent", "down")
    parser.add_argument("--only", choices=names, nargs="+", default=names)
    parser.add_argument("--rounds", type=int, default=1)
    asked = parser.parse_args(arguments)
    version = Version("now", str(Path(coopstreams.__file__).parents[1]))
    with Bench.begun() as bench:
        for _ in range(asked.rounds):
            if "silent" in asked.only:
                for never in (False, True):
                    print(silent(bench, version, never), flush=True)
            if "down" in asked.only:
                print(down(bench, version), flush=True)


if __name__ == "__main__":
    main()
