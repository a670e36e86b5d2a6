"""CPU of a backfill in Python against that of a live task, for each record: `python -m
benchmarks.backfill`.

User and system time of all processes (Python, its workers, the JVM), over as many
records and keys, by the programs of `apps.py`, by turns. Compare the ratios: machines
differ.

    task       a live task over RocksDB, without Kafka: batches of 10 000 records from memory, a commit each 200 000,
               whose outputs and changelog records are serialised and forgotten
    instance   `coopstreams run` from topic to topic (`--kafka`); with its start, without the time of the broker
    backfill   Spark, `local[2]`, from Parquet on local disk: four partitions of `--ranges` key ranges, a snapshot of
               the state and no outputs; those of the stateless program as a table.
               Spark has run the same program over fewer records before, so its start is
               left out

Each of these runs once a round; a figure is the median.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from kafka import KafkaAdminClient
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks import apps
from benchmarks.running import (
    Case,
    committed,
    coopstreams_run,
    cpu_s,
    fill,
    inputs,
    make_topics,
    measure,
)
from coopstreams import Topology
from coopstreams.commit.progress import Progress
from coopstreams.common.config import Config
from coopstreams.common.process_limits import tune_memory
from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.batches import Routes, make_batches
from coopstreams.log.kafka.native import native_tables
from coopstreams.log.log import NO_STREAM_TIME, Position
from coopstreams.spark import TableHistory, local_session
from coopstreams.spark import plan as planning
from coopstreams.spark.execution import carry_out
from coopstreams.spark.plan import Plan
from coopstreams.state.engines import open_database, open_engine
from coopstreams.state.task_state import TaskState
from coopstreams.tasks.incarnation import Incarnation, TaskServices, TaskSettings
from coopstreams.tasks.tally import Tally
from coopstreams.tasks.task import Task
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.failures import Failure
from coopstreams.topology.keys import WHOLE, partition_of
from coopstreams.topology.stores import ROCKS_DB
from coopstreams.topology.task_id import TaskId

CASES: Mapping[str, Topology] = {
    "stateless": apps.stateless,
    "count": apps.count,
    "windowed": apps.windowed,
    "windowed_field": apps.windowed_field,
}
PARTITIONS, BATCH, COMMIT = 4, 10_000, 200_000
CONFIG = Config.of({"bootstrap.servers": "nowhere:1"}, apps.NAME)


def write_history(folder: Path, records: int) -> None:
    """Write the records that `fill` writes to Kafka, twenty a millisecond, a file a
    partition.
    """
    columns: dict[int, list[tuple[bytes, bytes, int, int]]] = defaultdict(list)
    for number, (key, value) in enumerate(inputs(records)):
        columns[partition_of(key, PARTITIONS)].append(
            (key, value, 1_700_000_000_000 + number // 20, number)
        )
    folder.mkdir()
    names = ["key", "value", "timestamp", "number"]
    for partition, rows in columns.items():
        table = pa.table(
            dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        )
        pq.write_table(
            table.append_column(
                "partition", pa.array([partition] * len(rows), pa.int32())
            ),
            folder / f"{partition}.parquet",
        )


def fail(failure: Failure) -> None:
    raise failure.error


def task(topology: Topology, history: Path, folder: Path) -> float:
    """Return the CPU seconds of a live task over the records, which are in memory
    before.
    """
    part = topology.subtopologies[0]
    source = TopicPartition(part.topics[0], 0)
    rows = pq.read_table(history).sort_by("number")
    key, value, at = (
        rows.column(name).to_pylist() for name in ("key", "value", "timestamp")
    )
    with ExitStack() as closing:
        database = open_database(part.stores, ROCKS_DB, partial(open_engine, folder))
        closing.callback(database.close)
        state = TaskState(
            database,
            part.stores,
            WHOLE,
            1 << 30,
            native_tables(part, CONFIG, caching=True),
        )
        id_ = TaskId(0, 0, WHOLE)
        opened = Incarnation(
            id_, (source,), state, Progress.beginning(WHOLE, {source: Position(0)})
        )
        running = Task(
            opened,
            compile_subtopology(topology, part),
            fail,
            Tally(),
            TaskSettings(caching=True),
            TaskServices(partitions=lambda _: 1),
        )
        routes, stream_time = Routes([WHOLE]), NO_STREAM_TIME
        begin = time.process_time()
        for first in range(0, len(key), BATCH):
            end = min(first + BATCH, len(key))
            columns = Columns(
                key[first:end],
                value[first:end],
                at[first:end],
                list(range(first, end)),
                (),
            )
            (batch,) = make_batches(
                source, columns, routes, stream_time, end, at_end=False
            )
            stream_time = batch.stream_time
            running.add(batch)
            while running.step():
                pass
            if end % COMMIT == 0 or end == len(key):
                running.flush()
                running.commit({store.name: end for store in part.stores})
            for output in running.program.outputs.values():
                output.clear()
        return time.process_time() - begin


def backfill(
    spark: SparkSession, topology: Topology, history: Path, folder: Path, ranges: int
) -> float:
    """Return the CPU seconds of a backfill, of all processes."""
    (topic,) = topology.subtopologies[0].topics
    outputs: planning.Outputs = "none" if topology.subtopologies[0].stores else "table"
    plan = Plan(
        "run",
        topology.application_id,
        planning.digest(topology),
        {topic: dict.fromkeys(range(PARTITIONS), (0, 0))},
        planning.stages(topology, {topic: PARTITIONS}, ranges),
        {topic: PARTITIONS},
        (topic,),
        outputs=outputs,
        snapshots=str(folder / "snapshots"),
    )
    begin = cpu_s()
    table = TableHistory(spark.read.parquet(str(history)), ["number"])
    carry_out(spark, topology, CONFIG, plan, {topic: table}, str(folder / "work"))
    return cpu_s() - begin


class Instance:
    """A broker with the records in a topic, and `coopstreams run` over them."""

    def __init__(self, folder: Path, records: int, closing: ExitStack) -> None:
        self._broker = closing.enter_context(KafkaBroker(folder / "kafka"))
        self._records, self._folder, self._runs = records, folder, 0
        self._offsets = KafkaAdminClient(bootstrap_servers=self._broker.bootstrap)
        make_topics(self._broker.bootstrap, apps.SOURCE)
        fill(self._broker.bootstrap, apps.SOURCE, records)

    def run(self, case: str) -> float:
        """Return the CPU seconds of a process from the first record to the last commit,
        with its start.
        """
        self._runs += 1
        group = f"bench-{case.replace('_', '-')}-{self._runs}"
        make_topics(self._broker.bootstrap, f"{group}-out")
        command = coopstreams_run(
            case, self._broker.bootstrap, str(self._folder / "state")
        )
        environment = {"BENCH_APPLICATION": group, "BENCH_SINK": f"{group}-out"}
        done = partial(committed, self._offsets, group, apps.SOURCE)
        return (
            measure(Case(case, command, environment), done, self._records, 300).cpu
            * self._records
            / 1_000_000
        )


def rounds(
    given: argparse.Namespace, folder: Path, closing: ExitStack
) -> Iterator[tuple[str, str, float]]:
    """Yield a case, the way it ran, and its CPU seconds."""
    instance = Instance(folder, given.records, closing) if given.kafka else None
    spark = local_session("bench", {"spark.sql.shuffle.partitions": "8"}, cores="2")
    closing.callback(spark.stop)
    write_history(folder / "history", given.records)
    write_history(folder / "less", given.records // 10)
    for case, topology in (
        (name, each) for name, each in CASES.items() if given.only in name
    ):
        backfill(
            spark, topology, folder / "less", folder / f"{case}-less", given.ranges
        )
        for number in range(given.rounds):
            yield (
                case,
                "task",
                task(topology, folder / "history", folder / f"{case}-{number}-state"),
            )
            if instance is not None:
                yield case, "instance", instance.run(case)
            at = folder / f"{case}-{number}"
            yield (
                case,
                "backfill",
                backfill(spark, topology, folder / "history", at, given.ranges),
            )


def main() -> None:
    """Measure every case, and print the medians and their ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--ranges", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument(
        "--kafka", action="store_true", help="measure `coopstreams run`, too"
    )
    given = parser.parse_args()
    tune_memory()
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as closing:
        for case, what, seconds in rounds(given, Path(folder), closing):
            print(f"{case}: {what} {seconds:.2f} s of CPU", file=sys.stderr, flush=True)
            found[case][what].append(seconds * 1e6 / given.records)
    shown = Table("case", "by", "µs of CPU a record", "of it")
    for case, times in found.items():
        backfilled = statistics.median(times["backfill"])
        for what, each in times.items():
            shown.add_row(
                case,
                what,
                f"{(here := statistics.median(each)):.2f}",
                f"{backfilled / here:.1f}",
            )
    Console().print(shown, "`of it`: how many times as much the backfill takes")


if __name__ == "__main__":
    main()
