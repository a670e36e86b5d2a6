"""CPU of stateful programs by Python functions alone, without Kafka: `python -m
benchmarks.stateful [--records N] [--rounds N] [--only NAME]`.

A compiled program over RocksDB takes the input of the cases of `make bench` with the
same names, with regular commits; outputs and changelogs are dropped. Nanoseconds of
user and system time of the process for each record, commits included. Where the
extension `coopstreams-native` is installed, each case runs in pure Python and natively,
by turns.

    windowed turnover        a sum for each key and minute by a lambda: a third of the records make an output
    windowed final           the same sum, emitted when its window closes
    windowed suppressed      the same, by `suppress(until_window_closes())`
    windowed named           a count and a sum by name, `aggregate(n=count(), total=sum_("amount"))`
    windowed dict            the same rows by a lambda
    session sum              a sum by a lambda over sessions with a gap of 20 s, 2.7 records in each
    session uncached         the same sums, each update forwarded
    session final            the same sums, emitted when their session closes
    stream join              pairs of one key within 20 s by a lambda; two topics by their times, so steps of two records
    stream join, long steps  the same pairs, by turns 1,000 records of one topic and of the other
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import apps
from benchmarks.aggregates import cost_of
from benchmarks.event_time import Event, events, sided
from benchmarks.report import PLANES, planes
from coopstreams.common.process_limits import tune_memory
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.graph.topology import Topology

GROUP = 10_000
"""Records between two looks at the clock."""
COMMIT_EACH = 20
"""Groups between two commits."""
LEFT = TopicPartition(apps.SOURCE, 0)
RIGHT = TopicPartition(apps.RIGHT, 0)

Step = tuple[TopicPartition, Columns]


def columns(records: Sequence[Event]) -> Columns:
    """Return records as columns. Offsets do not matter here."""
    times = [time for _, _, time in records]
    return Columns(
        [key for key, _, _ in records],
        [value for _, value, _ in records],
        times,
        range(len(records)),
        times,
    )


def of_one_topic(records: int) -> Iterator[list[Step]]:
    """Yield the groups of a case with one topic: a step each."""
    coming = events(records)
    while batch := list(islice(coming, GROUP)):
        yield [(LEFT, columns(batch))]


def by_time(records: int) -> Iterator[list[Step]]:
    """Yield the groups of the join: steps end where the other topic is earlier."""
    coming = sided(records)
    while batch := list(islice(coming, GROUP)):
        yield [
            (LEFT if is_left else RIGHT, columns([event for _, event in run]))
            for is_left, run in groupby(batch, key=lambda one: one[0])
        ]


def in_long_steps(records: int) -> Iterator[list[Step]]:
    """Yield the groups of the join: steps of about 1,000 records."""
    coming = sided(records)
    while batch := list(islice(coming, GROUP)):
        steps: list[Step] = []
        for first in range(0, len(batch), 2000):
            part = batch[first : first + 2000]
            for topic, wanted in ((LEFT, True), (RIGHT, False)):
                steps.append(
                    (
                        topic,
                        columns([one for is_left, one in part if is_left is wanted]),
                    )
                )
        yield steps


CASES: dict[str, tuple[Topology, Callable[[int], Iterator[list[Step]]]]] = {
    "windowed turnover": (apps.windowed, of_one_topic),
    "windowed final": (apps.windowed_final, of_one_topic),
    "windowed suppressed": (apps.windowed_suppressed, of_one_topic),
    "windowed named": (apps.windowed_named, of_one_topic),
    "windowed dict": (apps.windowed_dict, of_one_topic),
    "session sum": (apps.session_sum, of_one_topic),
    "session uncached": (apps.session_uncached, of_one_topic),
    "session final": (apps.session_final, of_one_topic),
    "stream join": (apps.stream_join, by_time),
    "stream join, long steps": (apps.stream_join, in_long_steps),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Nanoseconds of CPU of a record, of which `commits`; rows and outputs a record."""

    total: float
    commits: float
    rows: float
    outputs: float


def measured(case: str, records: int, folder: Path, *, native: bool) -> Figures:
    """Return the figures of one case on one data plane."""
    topology, groups = CASES[case]
    cost = cost_of(
        topology, groups(records), folder, native=native, commit_each=COMMIT_EACH
    )
    return Figures(
        (sum(cost.processing) + cost.committing) * 1e9 / records,
        cost.committing * 1e9 / records,
        cost.rows / records,
        cost.outputs / records,
    )


def main() -> None:
    """Measure every case on both planes, by turns, and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument(
        "--planes",
        nargs="+",
        choices=PLANES,
        default=planes(),
        help="data planes, by turns",
    )
    arguments = parser.parse_args()
    tune_memory()
    shown = Table(
        "case",
        "plane",
        "ns a record",
        "of it commits",
        "rows written a record",
        "outputs a record",
        title=f"CPU, {arguments.records:,} records",
    )
    for case in CASES:
        if arguments.only not in case:
            continue
        found: dict[str, list[Figures]] = {plane: [] for plane in arguments.planes}
        for _ in range(arguments.rounds):
            for plane in arguments.planes:
                with tempfile.TemporaryDirectory() as folder:
                    found[plane].append(
                        measured(
                            case,
                            arguments.records,
                            Path(folder),
                            native=plane == "native",
                        )
                    )
        for plane, turns in found.items():
            shown.add_row(
                case,
                plane,
                f"{statistics.median(one.total for one in turns):,.0f}",
                f"{statistics.median(one.commits for one in turns):,.0f}",
                f"{turns[0].rows:.2f}",
                f"{turns[0].outputs:.2f}",
            )
    Console().print(shown)


if __name__ == "__main__":
    main()
