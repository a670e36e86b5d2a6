"""What a commit of a cooperative consumer costs: `python -m benchmarks.consumer_commits
[--commits N]`.

A consumer reads a partition and leaves every second record of its beginning unfinished,
so that each commit says so many ranges of offsets above the position. Each measured
commit has one more record done. One real broker on this machine; machines differ, and
are noisy.

    ms            one `commit()`: a transaction with one record, and the fence
    value bytes   the individual commit itself; log bytes: what the partition of the commit topic grows by a commit,
                  markers included
    memory        what a range takes in a process that follows the group, and what a record takes that is out and not
                  done
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.running import make_topics, taken, write
from coopstreams.commit.inflight import InFlight
from coopstreams.commit.record import (
    CommitKey,
    CommitValue,
    Segment,
    encode_key,
    encode_value,
)
from coopstreams.commit.view import CommitView
from coopstreams.consumer import ConsumerRecord, CooperativeConsumer
from coopstreams.dev.broker import KafkaBroker
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.naming import COMMIT_TOPIC

RANGES = (1, 100, 10_000)


def read(consumer: CooperativeConsumer, count: int) -> list[ConsumerRecord]:
    """Consume this many records."""
    records: list[ConsumerRecord] = []
    while len(records) < count:
        records += consumer.consume(count - len(records), 1.0)
    return records


def log_bytes(folder: Path) -> int:
    """The size of the commit topic's logs."""
    return sum(file.stat().st_size for file in folder.rglob(f"{COMMIT_TOPIC}-*/*.log"))


def measure(
    broker: KafkaBroker, folder: Path, ranges: int, commits: int
) -> tuple[list[float], float]:
    """Return the seconds of each commit, and how much the log grew by each."""
    topic, group, count = f"in-{ranges}", f"commits-{ranges}", 2 * ranges + commits + 10
    make_topics(broker.bootstrap, topic)
    write(
        broker.bootstrap,
        topic,
        ((b"%d" % number, b"%d" % number) for number in range(count)),
    )
    consumer = CooperativeConsumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": group}
    )
    consumer.subscribe([topic])
    records = read(consumer, count)
    for record in records[1 : 2 * ranges : 2]:
        consumer.done(record)
    consumer.commit()
    before, seconds = log_bytes(folder), []
    for record in records[2 * ranges + 1 : 2 * ranges + 1 + commits]:
        consumer.done(record)
        start = time.perf_counter()
        consumer.commit()
        seconds.append(time.perf_counter() - start)
        consumer.consume(1, 0)
    grown = (log_bytes(folder) - before) / commits
    consumer.close()
    return seconds, grown


def value_bytes(ranges: int) -> int:
    """The size of an individual commit with this many ranges."""
    return len(
        encode_value(
            CommitValue(
                "orders-consumer-" + "0" * 32 + "-commit", (segment_of(ranges),)
            )
        )
    )


def segment_of(ranges: int) -> Segment:
    return Segment(
        WHOLE,
        1_000_000,
        runs=tuple((1_000_001 + 2 * n, 1_000_001 + 2 * n) for n in range(ranges)),
    )


def memory() -> tuple[float, float, float]:
    """Return the memory of an individual commit without ranges in a view, of a range in
    a large one, of a record in flight.
    """
    count = 10_000
    plain = encode_value(CommitValue("orders-0", (segment_of(0),)))
    keys = [
        encode_key(CommitKey("orders", "orders", partition, WHOLE, 1, 1))
        for partition in range(count)
    ]
    large = encode_value(CommitValue("orders-0", (segment_of(count),)))
    views = CommitView("orders"), CommitView("orders")

    def entries() -> None:
        for key in keys:
            views[0].apply(key, plain)

    inflight = InFlight([Segment(WHOLE, 1_000_000)], 10 * count)
    return (
        taken(entries) / count,
        taken(lambda: views[1].apply(keys[0], bytes(bytearray(large)))) / count,
        taken(
            lambda: inflight.hand_out(
                [b"k"] * count, range(1_000_000, 1_000_000 + count), 1_000_000 + count
            )
        )
        / count,
    )


def main() -> None:
    """Measure each number of ranges once and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commits", type=int, default=200)
    arguments = parser.parse_args()
    console = Console()
    table = Table(title=f"{arguments.commits} commits each")
    for column in ("ranges", "ms median", "ms p95", "value bytes", "log bytes"):
        table.add_column(column, justify="right")
    with (
        tempfile.TemporaryDirectory() as name,
        KafkaBroker(Path(name) / "kafka") as broker,
    ):
        for ranges in RANGES:
            with console.status(f"{ranges} ranges"):
                seconds, grown = measure(broker, Path(name), ranges, arguments.commits)
            p95 = statistics.quantiles(seconds, n=20)[-1]
            table.add_row(
                f"{ranges:,}",
                f"{1000 * statistics.median(seconds):.1f}",
                f"{1000 * p95:.1f}",
                f"{value_bytes(ranges):,}",
                f"{grown:,.0f}",
            )
    console.print(table)
    entry, in_view, in_flight = memory()
    console.print(
        f"memory: {entry:.0f} bytes an individual commit, {in_view:.1f} bytes a range of a large one, {in_flight:.0f} "
        "bytes a record in flight"
    )


if __name__ == "__main__":
    main()
