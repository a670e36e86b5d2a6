"""How much memory a process takes: `python -m benchmarks.memory [keys | churn]`.

One process with the default settings, in the data plane that runs, against one real
broker on this machine; measured from outside, by what the system says of it (resident
set; "anonymous" is the part that no file backs).

    keys     a keyed count with each of `--keys` numbers of distinct keys, each key once: the resident set before, at
             each tenth, and at rest; by how much it grew a key
    churn    `--minutes` of keys that come and go, `--rate` new ones a second: rows that expire after 30 s, rows that
             are deleted after 30 s, and windows whose retention is two minutes. So the number of rows stays the same,
             and the resident set should; sampled each minute, with its slope over the second half
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import linear_regression

from confluent_kafka import Producer
from kafka import KafkaAdminClient
from rich.console import Console
from rich.table import Table

from benchmarks.running import committed, coopstreams_run, make_topics
from coopstreams.dev.broker import KafkaBroker

STAY_S = 30
REST_S = 10
STRIDE = 611_953
"""A prime: its multiples, modulo the number of keys, are all keys."""


def memory(process: int) -> Mapping[str, float]:
    """Return resident set and its anonymous part of a process. Units: MB."""
    lines = (
        line.split()
        for line in Path(f"/proc/{process}/status").read_text().splitlines()
    )
    sizes = {
        line[0]: int(line[1]) * 1024 / 1e6
        for line in lines
        if line[0] in ("VmRSS:", "RssAnon:")
    }
    return {"resident": sizes["VmRSS:"], "anonymous": sizes["RssAnon:"]}


def size_of(folder: Path) -> float:
    """Return the size of the files in a folder, some of which may vanish. Units: MB."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(where, name)).st_size
            except FileNotFoundError:
                continue
    return total / 1e6


@contextmanager
def started(
    bootstrap: str, topology: str, name: str, state: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a topology of apps.py in a process, with topics of its own."""
    make_topics(bootstrap, f"{name}-in", f"{name}-out")
    command = coopstreams_run(topology, bootstrap, str(state))
    environment = {
        "BENCH_APPLICATION": name,
        "BENCH_SOURCE": f"{name}-in",
        "BENCH_SINK": f"{name}-out",
    }
    process = subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def producer_of(bootstrap: str) -> Producer:
    """Return a producer for the input."""
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "partitioner": "murmur2_random",
        }
    )


def produce(producer: Producer, topic: str, key: int, leaves: bool) -> None:
    """Write one record; wait while the queue is full."""
    value = b'{"user":"u%d","amount":%d,"leaves":%s}' % (
        key,
        key % 100,
        b"true" if leaves else b"false",
    )
    while True:
        try:
            producer.produce(topic, value, b"u%d" % key)
            return
        except BufferError:
            producer.poll(0.1)


def with_keys(bootstrap: str, keys: int, state: Path) -> Table:
    """Count this many keys; return the table."""
    name = f"keys-{keys}"
    table = Table(
        "records",
        "s",
        "resident MB",
        "anonymous MB",
        "state on disk MB",
        title=f"{keys:,} keys",
    )
    with started(bootstrap, "count", name, state) as process:
        done = partial(
            committed, KafkaAdminClient(bootstrap_servers=bootstrap), name, f"{name}-in"
        )
        producer = producer_of(bootstrap)
        produce(producer, f"{name}-in", 0, False)
        producer.flush()
        _until(done, 1, process)
        before = memory(process.pid)["anonymous"]
        table.add_row("1", "", *_figures(process.pid, state))
        began = time.perf_counter()
        for number in range(1, keys):
            produce(producer, f"{name}-in", number * STRIDE % keys, False)
            if number % 10_000 == 0:
                producer.poll(0)
        producer.flush()
        for tenth in range(1, 11):
            _until(done, keys * tenth // 10, process)
            table.add_row(
                f"{done():,}",
                f"{time.perf_counter() - began:.0f}",
                *_figures(process.pid, state),
            )
        time.sleep(REST_S)
        table.add_row(
            "at rest",
            f"{time.perf_counter() - began:.0f}",
            *_figures(process.pid, state),
        )
        table.caption = f"{(memory(process.pid)['anonymous'] - before) * 1e6 / keys:.0f} bytes a key more than before"
    return table


def churned(
    bootstrap: str, minutes: int, rate: int, state: Path, console: Console
) -> None:
    """Add and remove keys; print a line each minute, and the slope."""
    samples: list[tuple[float, float]] = []
    with started(bootstrap, "churn", "churn", state) as process:
        done = partial(
            committed,
            KafkaAdminClient(bootstrap_servers=bootstrap),
            "churn",
            "churn-in",
        )
        producer, number, chance = producer_of(bootstrap), 0, random.Random(7)
        began = time.perf_counter()
        for minute in range(1, minutes + 1):
            while (passed := time.perf_counter() - began) < minute * 60:
                while number < passed * rate:
                    produce(producer, "churn-in", number, False)
                    if number >= STAY_S * rate:
                        produce(producer, "churn-in", number - STAY_S * rate, True)
                    number += 1
                producer.poll(0.05 + chance.random() / 20)
            if process.poll() is not None:
                raise SystemExit(f"the process ended with status {process.returncode}")
            taken = memory(process.pid)
            samples.append((minute, taken["anonymous"]))
            console.print(
                f"{minute} min: {number:,} keys have come, {done():,} records committed; resident "
                f"{taken['resident']:.0f} MB, anonymous {taken['anonymous']:.0f} MB, on disk {size_of(state):.0f} MB"
            )
    half = samples[len(samples) // 2 :]
    if len(half) > 1:
        slope, _ = linear_regression(*zip(*half, strict=True))
        console.print(f"second half: {slope * 60:+.1f} MB of anonymous memory an hour")


def _until(
    done: Callable[[], int], records: int, process: subprocess.Popen[bytes]
) -> None:
    while done() < records:
        if process.poll() is not None:
            raise SystemExit(f"the process ended with status {process.returncode}")
        time.sleep(0.1)


def _figures(process: int, state: Path) -> tuple[str, ...]:
    return (
        *(f"{size:.0f}" for size in memory(process).values()),
        f"{size_of(state):.0f}",
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("keys", "churn"), default="keys")
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--rate", type=int, default=1_000)
    arguments = parser.parse_args()
    console = Console()
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker(Path(folder) / "kafka") as broker,
    ):
        if arguments.what == "churn":
            churned(
                broker.bootstrap,
                arguments.minutes,
                arguments.rate,
                Path(folder) / "state",
                console,
            )
            return
        for keys in arguments.keys:
            console.print(
                with_keys(broker.bootstrap, keys, Path(folder) / f"state-{keys}")
            )


if __name__ == "__main__":
    main()
