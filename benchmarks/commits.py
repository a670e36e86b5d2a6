"""What exactly-once commits cost with many stream threads and many groups: `python -m
benchmarks.commits [--seconds N] [--groups N]`.

Keyed counts, a commit each 100 ms, one real broker on the same machine. Each stream
thread has one partition, and its own transactions. Each commit has a few records, so
what is measured is the protocol and not the records; the last case has as many records
as it can take.

    commits/s      of all threads; `threads / 0.1 s` if nothing waited
    commit ms      from the flush of the state until RocksDB has it: median and 99th percentile
    of it          medians of its parts, ms: serialising the rows and handing the records to librdkafka; what it waits
                   for: the records in the log, the group coordinator (offsets), the
                   transaction coordinator (commit); RocksDB
    waiting        the share of a thread's time that it waits for brokers: the most that a second transaction, begun
                   while the first one commits, could gain
    CPU            of the broker and of the process, in cores; of the broker for a commit
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from benchmarks.running import cpu_of, fill, make_topics
from coopstreams import CoopStreams, StreamsBuilder, StreamsState, serdes
from coopstreams.common.process_limits import tune_memory
from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.kafka.writer import KafkaWriter
from coopstreams.tasks.committer import Committer
from coopstreams.tasks.task import Task

WARM_S = 5
TICK_S = 0.05
A_TICK = 5
"""How many records each partition gets at once."""
PARTS = {
    "commit": (Committer, "commit"),
    "rows": (Task, "flush"),
    "append": (KafkaWriter, "append"),
    "log": (KafkaWriter, "flush"),
    "offsets": (KafkaWriter, "send_offsets"),
    "end": (KafkaWriter, "commit"),
    "RocksDB": (Task, "commit"),
}
"""The methods that are timed."""
WAITS = ("log", "offsets", "end")


def timed(of: type, method: str, seconds: list[float]) -> None:
    """Note the duration of each call of a method, except those that return False: no
    work.
    """
    call: Callable[..., Any] = getattr(of, method)

    @wraps(call)
    def noted(*args: Any, **named: Any) -> Any:
        began = time.perf_counter()
        result = call(*args, **named)
        if result is not False:
            seconds.append(time.perf_counter() - began)
        return result

    setattr(of, method, noted)


def work(
    bootstrap: str, source: str, name: str, groups: int, threads: int, seconds: float
) -> None:
    """Run this many applications in this process; print the durations of their commits,
    after a warm-up.
    """
    tune_memory()
    found: dict[str, list[float]] = defaultdict(list)
    for part, (of, method) in PARTS.items():
        timed(of, method, found[part])
    apps: list[CoopStreams] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        for group in range(groups):
            builder = StreamsBuilder(f"{name}-{group}")
            events = builder.stream(source, key=serdes.text, value=serdes.raw)
            events.group_by_key().count(store="counts").to_stream().to(f"{source}-out")
            settings = {
                "bootstrap.servers": bootstrap,
                "processing.guarantee": "exactly_once_v2",
                "num.stream.threads": threads,
                "state.dir": folder,
                "http.listen": "",
                "session.timeout.ms": 45_000,
            }
            apps.append(running.enter_context(CoopStreams(builder.build(), settings)))
        while any(app.state is not StreamsState.RUNNING for app in apps):
            time.sleep(0.1)
        time.sleep(WARM_S)
        for each in found.values():
            each.clear()
        began, cpu = time.perf_counter(), time.process_time()
        time.sleep(seconds)
        took, used = time.perf_counter() - began, time.process_time() - cpu
        print(
            json.dumps(
                {
                    "s": took,
                    "cpu": used,
                    "parts": {part: list(each) for part, each in found.items()},
                }
            )
        )
        sys.stdout.flush()


def produce(producer: Producer, source: str, partitions: int) -> None:
    """Write a few records to each partition."""
    for partition in range(partitions):
        for number in range(A_TICK):
            producer.produce(
                source, b"{}", b"key-%d-%d" % (partition, number), partition
            )
    producer.poll(0)


def measured(
    broker: KafkaBroker,
    source: str,
    processes: int,
    groups: int,
    threads: int,
    seconds: float,
    records: int,
) -> list[str]:
    """Measure one case; return its row. `records`: written before; none: a few at a
    time, while it runs.
    """
    running = broker.running
    assert running is not None
    make_topics(broker.bootstrap, source, f"{source}-out", partitions=threads)
    if records:
        fill(broker.bootstrap, source, records)
    command = [
        sys.executable,
        "-m",
        "benchmarks.commits",
        "--work",
        broker.bootstrap,
        source,
    ]
    size = [str(groups // processes), str(threads), str(seconds)]
    told = [
        broker.folder.parent / f"{source}-{number}.json" for number in range(processes)
    ]
    workers = []
    for path in told:
        with path.open("w") as file:
            workers.append(subprocess.Popen([*command, path.stem, *size], stdout=file))
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    samples: list[tuple[float, float]] = []
    while any(worker.poll() is None for worker in workers):
        if not records:
            produce(producer, source, threads)
        samples.append((time.perf_counter(), cpu_of(running.pid)))
        time.sleep(TICK_S)
    producer.flush(10)
    said = [json.loads(path.read_text()) for path in told]
    late = [sample for sample in samples if sample[0] > samples[-1][0] - seconds]
    broker_cores = (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0])
    parts: dict[str, list[float]] = {
        name: [one for each in said for one in each["parts"][name]]
        for name in said[0]["parts"]
    }
    took = sum(each["s"] for each in said) / processes
    rate = len(parts["commit"]) / took
    waiting = sum(sum(parts[name]) for name in WAITS) / (took * groups * threads)
    own = sum(parts["rows"]) + sum(parts["append"])
    return [
        f"{rate:,.0f}",
        f"{1000 * median(parts['commit']):.1f}",
        f"{1000 * quantiles(parts['commit'], n=100)[-1]:.0f}",
        f"{1000 * own / len(parts['commit']):.1f}",
        *(f"{1000 * median(parts[name]):.1f}" for name in (*WAITS, "RocksDB")),
        f"{waiting:.2f}",
        f"{broker_cores:.2f}",
        f"{sum(each['cpu'] for each in said) / took:.2f}",
        f"{1000 * broker_cores / rate:.2f}",
    ]


def main() -> None:
    """Measure each case once and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument(
        "--processes", type=int, default=4, help="of the case with many groups"
    )
    parser.add_argument(
        "--records", type=int, default=6_000_000, help="of the last case"
    )
    parser.add_argument("--work", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        bootstrap, source, prefix, groups, threads, seconds = given.work
        work(bootstrap, source, prefix, int(groups), int(threads), float(seconds))
        return
    cases = [(f"{threads} stream threads", 1, 1, threads, 0) for threads in (1, 8, 64)]
    cases.append(
        (
            f"{given.groups} groups, {given.processes} processes",
            given.processes,
            given.groups,
            1,
            0,
        )
    )
    cases.append(("1 stream thread, all it can", 1, 1, 1, given.records))
    console, table = Console(width=160), Table()
    for column in (
        "",
        "commits/s",
        "ms",
        "p99",
        "rows",
        *WAITS,
        "RocksDB",
        "waiting",
        "broker",
        "process",
        "broker ms",
    ):
        table.add_column(column, justify="right" if column else "left")
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker(Path(folder) / "kafka") as broker,
    ):
        for number, (name, processes, groups, threads, records) in enumerate(cases):
            seconds = (
                given.seconds / 2 if records else given.seconds
            )  # otherwise the records would not last
            row = measured(
                broker, f"case-{number}", processes, groups, threads, seconds, records
            )
            table.add_row(name, *row)
            console.print(table)


if __name__ == "__main__":
    main()
