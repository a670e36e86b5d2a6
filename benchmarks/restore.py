"""What a restore from a changelog costs, by how much of the hash space a task has:
`python -m benchmarks.restore [--keys N] [--turns N]`.

One partition of a real broker on this machine; each key is written twice, one in a
hundred is deleted in the end. Each restore is a process of its own, into an empty
RocksDB, in both data planes by turns; the least of all turns.

    all           the rows of all key ranges
    one of eight  those of one key range of eight
    wall s        from the first request to the last row
    CPU s         of the process meanwhile, the threads of librdkafka and RocksDB included
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import closing
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.report import PLANES, planes
from benchmarks.running import said
from benchmarks.snapshots import CHANGELOG, EIGHTH, fill, program
from coopstreams.common.process_limits import tune_memory
from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.native import SETTING
from coopstreams.log.log import TopicSpec
from coopstreams.opening.restores import Restores
from coopstreams.state.database import Database
from coopstreams.state.rocks import Rocks
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.task_id import TaskId

CASES = {"all": WHOLE, "one of eight": EIGHTH}


def restore(bootstrap: str, case: str, folder: Path) -> None:
    """Restore in this process; print the seconds, by the clock and of CPU, and the
    approximate number of rows.
    """
    tune_memory()  # as `coopstreams run` does
    stores, folder = program().subtopologies[0].stores, folder / "database"
    folder.mkdir()
    with closing(KafkaLog({"bootstrap.servers": bootstrap})) as cluster:
        cluster.topic_id(CHANGELOG)  # connects before the measurement
        wall, cpu = time.perf_counter(), time.process_time()
        with closing(Database(Rocks(folder), stores)) as database:
            with closing(Restores(cluster, lambda _: CHANGELOG)) as restoring:
                restoring.add(TaskId(0, 0, CASES[case]), stores, database, {})
                while not restoring.finished():
                    restoring.step()
                taken = time.perf_counter() - wall, time.process_time() - cpu
            print(
                *taken, sum(1 for _ in database.scan("counts", range(256), None, None))
            )


def main() -> None:
    """Measure each case by turns and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "--restore", nargs=2, metavar=("BOOTSTRAP", "CASE"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.restore:
        bootstrap, case = arguments.restore
        with tempfile.TemporaryDirectory() as folder:
            restore(bootstrap, case, Path(folder))
        return
    least: dict[tuple[str, str], tuple[float, float, float]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker(Path(folder) / "kafka") as broker,
    ):
        with closing(KafkaLog({"bootstrap.servers": broker.bootstrap})) as cluster:
            cluster.create_topics(
                [TopicSpec(CHANGELOG, 1, {"cleanup.policy": "compact"})]
            )
        fill(broker.bootstrap, arguments.keys)
        for _, plane, case in product(range(arguments.turns), planes(), CASES):
            asked = "--restore", broker.bootstrap, case
            wall, cpu, rows = said(
                "benchmarks.restore", *asked, environment={SETTING: PLANES[plane]}
            )
            least_wall, least_cpu, _ = least.get((plane, case), (wall, cpu, rows))
            least[plane, case] = min(wall, least_wall), min(cpu, least_cpu), rows
    table = Table(title=f"{2 * arguments.keys:,} changelog records")
    for column in (
        "data plane",
        "key ranges",
        "rows",
        "wall s",
        "of all",
        "CPU s",
        "of all",
    ):
        table.add_column(column, justify="right" if column != "data plane" else "left")
    for (plane, case), (wall, cpu, rows) in least.items():
        all_wall, all_cpu, _ = least[plane, "all"]
        table.add_row(
            plane,
            case,
            f"{rows:,.0f}",
            f"{wall:.2f}",
            f"{wall / all_wall:.2f}",
            f"{cpu:.2f}",
            f"{cpu / all_cpu:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
