"""What a function of the user costs on top of the native path, without Kafka: `python -m
benchmarks.function_cost [--records N] [--rounds N]`.

The windowed turnover of `benchmarks.stateful`, in steps that each do one thing more
than another. A figure is the least of all rounds, by turns; the difference is what the
one thing costs. Nanoseconds of user and system time of the process for each record,
commits included.

    no function      a count: no record comes to Python by itself
    a function       it reads nothing, so no value is read: a loop, two calls into native rows, one of the function
    ten calls more   the same function calls another ten times
    reads the value  a function that needs the record's value: JSON to a dict
    adds a field     the function of windowed turnover
    writes the row   the same sum in JSON: a third of the records make a row and an output

Turned down: a profiler (it costs a function more than the function costs).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.aggregates import Cost, cost_of
from benchmarks.apps import SINK, SOURCE
from benchmarks.stateful import COMMIT_EACH, of_one_topic
from coopstreams import StreamsBuilder, TimeWindows, serdes
from coopstreams.common.process_limits import tune_memory
from coopstreams.log.kafka.native import data_plane
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.serde import Serde

Aggregator = Callable[[Any, Any, int], int]


def one() -> int:
    return 1


def ten(_key: Any, _value: Any, _total: int) -> int:
    """Return 1, after ten calls."""
    one(), one(), one(), one(), one(), one(), one(), one(), one(), one()
    return 1


def constant(_key: Any, _value: Any, _total: int) -> int:
    return 1


def looked_at(_key: Any, value: Any, _total: int) -> int:
    return 1 if value else 0


def added(_key: Any, value: Any, total: int) -> int:
    amount: int = value["amount"]
    return total + amount


STEPS: dict[str, tuple[Aggregator | None, Serde[int], str]] = {
    "no function": (None, serdes.int64, ""),
    "a function": (constant, serdes.int64, "no function"),
    "ten calls more": (ten, serdes.int64, "a function"),
    "reads the value": (looked_at, serdes.int64, "a function"),
    "adds a field": (added, serdes.int64, "reads the value"),
    "writes the row": (added, serdes.json(int), "adds a field"),
}
"""Aggregator (None: a count), serde of the rows, and the step it is compared with."""


def topology(aggregator: Aggregator | None, row: Serde[int]) -> Topology:
    """Return the windowed turnover with another aggregator and another serde."""
    builder = StreamsBuilder("bench")
    windows = (
        builder.stream(SOURCE, key=serdes.text, value=serdes.json)
        .group_by_key()
        .windowed_by(TimeWindows(minutes=1))
    )
    table = (
        windows.count(store="kept")
        if aggregator is None
        else windows.aggregate(lambda: 0, aggregator, value=row, store="kept")
    )
    table.to_stream().to(SINK)
    return builder.build()


def total(cost: Cost) -> float:
    """Return all CPU seconds of a program."""
    return sum(cost.processing) + cost.committing


def main() -> None:
    """Measure every step natively, by turns, and print the least of each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    if data_plane() != "native":
        parser.error("the native extension is not installed")
    tune_memory()
    found: dict[str, list[Cost]] = {name: [] for name in STEPS}
    for _ in range(arguments.rounds):
        for name, step in STEPS.items():
            with tempfile.TemporaryDirectory() as folder:
                cost = cost_of(
                    topology(*step[:2]),
                    of_one_topic(arguments.records),
                    Path(folder),
                    native=True,
                    commit_each=COMMIT_EACH,
                )
                found[name].append(cost)
    shown = Table(
        "step",
        "ns a record",
        "of it commits",
        "more",
        "than",
        title=f"CPU, {arguments.records:,} records",
    )
    ns = {
        name: total(min(costs, key=total)) * 1e9 / arguments.records
        for name, costs in found.items()
    }
    for name, (_, _, than) in STEPS.items():
        least = min(found[name], key=total)
        shown.add_row(
            name,
            f"{ns[name]:,.0f}",
            f"{least.committing * 1e9 / arguments.records:,.0f}",
            f"{ns[name] - ns[than]:+,.0f}" if than else "",
            than,
        )
    Console().print(shown)


if __name__ == "__main__":
    main()
