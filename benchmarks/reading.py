"""What reading costs a record, in both data planes by turns: `python -m
benchmarks.reading [--records N] [--turns N]`.

The CPU time of a process with one reader, librdkafka's threads included, and that of
the thread that fetches; the least of all turns.

    whole         one task has the partition
    one of eight  one key range of eight is kept
    all of eight  eight tasks share the partition in this process
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.report import PLANES, planes
from benchmarks.running import fill, make_topics, said
from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.native import SETTING
from coopstreams.log.log import Position
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import KeyRange

PARTITION = TopicPartition("bench-in", 0)
CASES = {
    "whole": KeyRange.split(1),
    "one of eight": KeyRange.split(8)[3:4],
    "all of eight": KeyRange.split(8),
}


def read(bootstrap: str, case: str, records: int) -> None:
    """Read that many records in this process; print the nanoseconds of CPU a record: of
    the process, of this thread.
    """
    log = KafkaLog({"bootstrap.servers": bootstrap})
    reader, position = log.reader(), 0
    reader.assign({PARTITION: Position(0)})
    reader.route(PARTITION, CASES[case])
    process, thread = time.process_time_ns(), time.thread_time_ns()
    while position < records:
        for batch in reader.fetch(10_000, 1.0):
            position = batch.next_offset
    print(
        (time.process_time_ns() - process) / records,
        (time.thread_time_ns() - thread) / records,
    )
    reader.close()
    log.close()


def main() -> None:
    """Measure each case by turns and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "--read", nargs=2, metavar=("BOOTSTRAP", "CASE"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.read:
        bootstrap, case = arguments.read
        read(bootstrap, case, arguments.records)
        return
    least: dict[tuple[str, str], tuple[float, ...]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker(Path(folder) / "kafka") as broker,
    ):
        topic = PARTITION.topic
        make_topics(broker.bootstrap, topic)
        fill(broker.bootstrap, topic, arguments.records)
        for _, case, plane in product(range(arguments.turns), CASES, planes()):
            asked = (
                "--records",
                str(arguments.records),
                "--read",
                broker.bootstrap,
                case,
            )
            taken = said(
                "benchmarks.reading", *asked, environment={SETTING: PLANES[plane]}
            )
            least[case, plane] = min(taken, least.get((case, plane), taken))
    table = Table(
        "case", "data plane", "ns of CPU a record", "of these the thread that fetches"
    )
    for (case, plane), (process, thread) in least.items():
        table.add_row(case, plane, f"{process:.0f}", f"{thread:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
