"""CPU of an aggregation alone, without Kafka: `python -m benchmarks.aggregates
[--records N] [--rounds N]`.

A compiled program over RocksDB processes batches of records, with regular commits;
outputs and changelogs are dropped. User and system time of the process for each record,
and for each row that a commit writes. Where the extension `coopstreams-native` is
installed, each case runs in pure Python and natively, by turns.

    count            of each key, record cache on
    count uncached   every update an output
    window sum       of an integer field of a JSON object, in windows of a minute, record cache on
"""

from __future__ import annotations

import argparse
import operator
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import field as field_of
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from coopstreams import KStream, StreamsBuilder, TimeWindows, field, serdes
from coopstreams.common.config import Config
from coopstreams.common.process_limits import tune_memory
from coopstreams.log.kafka.native import data_plane, native_parts, native_tables
from coopstreams.state.engines import open_database, open_engine
from coopstreams.state.task_state import TaskState
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.compile.program import BoundProgram
from coopstreams.topology.failures import Failure
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.stores import ROCKS_DB

KEYS, BATCH, BATCHES = 100_000, 10_000, 20
SOURCE = TopicPartition("in", 0)


def count(orders: KStream[str, Any]) -> Any:
    return orders.group_by_key().count(store="kept")


def window_sum(orders: KStream[str, Any]) -> Any:
    amounts = orders.map_values(field("amount"), value=serdes.int64).group_by_key()
    return amounts.windowed_by(
        TimeWindows(minutes=1, grace=timedelta(minutes=1))
    ).reduce(operator.add, store="kept")


CASES: dict[str, tuple[Callable[[KStream[str, Any]], Any], bool]] = {
    "count": (count, True),
    "count uncached": (count, False),
    "window sum": (window_sum, True),
}


def batches(records: int) -> Iterator[Columns]:
    """Yield the input: about 40 bytes of JSON each, twenty records a millisecond."""
    generator = random.Random(7)
    for first in range(0, records, BATCH):
        numbers = range(first, min(first + BATCH, records))
        users = [generator.randrange(KEYS) for _ in numbers]
        times = [1_700_000_000_000 + number // 20 for number in numbers]
        values = [
            b'{"user":"u%d","amount":%d,"n":%d}' % (user, user % 100, number)
            for user, number in zip(users, numbers, strict=True)
        ]
        yield Columns(
            [b"u%d" % user for user in users], values, times, list(numbers), times
        )


def fail(failure: Failure) -> None:
    raise failure.error


def timed(
    case: str, records: int, folder: Path, *, native: bool
) -> tuple[float, float, float]:
    """Return nanoseconds of CPU: of a record with keys that were seen before, of any
    record, of a row of a commit.
    """
    flow, caching = CASES[case]
    builder = StreamsBuilder("bench")
    flow(
        builder.stream(SOURCE.topic, key=serdes.text, value=serdes.json)
    ).to_stream().to("out")
    cost = cost_of(
        builder.build(),
        ([(SOURCE, columns)] for columns in batches(records)),
        folder,
        native=native,
        caching=caching,
        commit_each=BATCHES,
    )
    later = cost.processing[len(cost.processing) // 2 :]
    return (
        statistics.fmean(later) * 1e9 / BATCH,
        statistics.fmean(cost.processing) * 1e9 / BATCH,
        cost.committing * 1e9 / max(cost.rows, 1),
    )


@dataclass(slots=True)
class Cost:
    """CPU seconds of a program: of each group of steps, and of all commits.

    Shape: `rows`: those of the stores that commits wrote; `outputs`: records for
    topics.
    """

    processing: list[float] = field_of(default_factory=list)
    committing: float = 0.0
    rows: int = 0
    outputs: int = 0


def cost_of(
    topology: Topology,
    groups: Iterable[Sequence[tuple[TopicPartition, Columns]]],
    folder: Path,
    *,
    native: bool,
    caching: bool = True,
    commit_each: int,
) -> Cost:
    """Return what the first sub-topology costs over RocksDB in a folder. It takes the
    groups, step by step, and commits after each `commit_each` groups and at the end.

    A group is timed as a whole: a look at the clock costs as much as a small step.
    """
    part = topology.subtopologies[0]
    database = open_database(part.stores, ROCKS_DB, partial(open_engine, folder))
    state = TaskState(
        database,
        part.stores,
        WHOLE,
        1 << 30,
        native_tables(
            part,
            Config.of({"bootstrap.servers": "nowhere:1"}, "bench"),
            caching=caching,
        )
        if native
        else {},
    )
    program = compile_subtopology(
        topology, part, parts=native_parts() if native else None
    ).bind(state.stores, fail, caching=caching)
    cost = Cost()

    def commit() -> None:
        begin = time.process_time()
        program.flush()
        cost.rows += sum(len(batch.keys) for batch in state.changes())
        state.commit(dict.fromkeys(state.stores, 1))
        cost.committing += time.process_time() - begin

    for number, group in enumerate(groups, 1):
        begin = time.process_time()
        for source, columns in group:
            program.process(source, columns)
        cost.processing.append(time.process_time() - begin)
        if number % commit_each == 0:
            commit()
        take_outputs(program, cost)
    commit()
    take_outputs(program, cost)
    database.close()
    return cost


def take_outputs(program: BoundProgram, cost: Cost) -> None:
    """Count the outputs of a program, and drop them."""
    for output in program.outputs.values():
        cost.outputs += len(output)
        output.clear()


def main() -> None:
    """Measure every case on both planes, by turns, and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    tune_memory()
    shown = Table(
        "case",
        "plane",
        "known keys",
        "all records",
        "rows of commits",
        title="ns of CPU",
    )
    for case in CASES:
        found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
        for _ in range(arguments.rounds):
            for native in [False, True] if data_plane() == "native" else [False]:
                with tempfile.TemporaryDirectory() as folder:
                    found[native].append(
                        timed(case, arguments.records, Path(folder), native=native)
                    )
        for native, times in found.items():
            if times:
                medians = [
                    f"{statistics.median(column):,.0f}"
                    for column in zip(*times, strict=True)
                ]
                shown.add_row(case, "native" if native else "pure Python", *medians)
    Console().print(shown)


if __name__ == "__main__":
    main()
