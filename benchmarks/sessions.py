"""Session windows: records per second of one process on RocksDB: `python -m
benchmarks.sessions [--records N]`.

Clicks of 1,500 users over five hours, gap ten minutes: 40,000 clicks make about 17,000
sessions. Then as many clicks of more users, and sessions that are kept for longer, so
that a user has many of them. One real broker on this machine; machines differ, and are
noisy.

    kept         sessions that a key has in the store, about
    records/s    from the moment at which the first record is written until all are committed, every update an output
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from kafka import KafkaAdminClient
from rich.console import Console
from rich.table import Table

from benchmarks.running import committed, coopstreams_run, make_topics
from coopstreams.dev.broker import KafkaBroker

MINUTE_MS = 60_000
GAP_MS = 10 * MINUTE_MS
BETWEEN_MS = 11.5 * MINUTE_MS
"""The mean time between two clicks of a user: 42 in a hundred come after more than the
gap.
"""
BEGIN_MS = 1_700_000_000_000

Click = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class Case:
    """Clicks of `keys` users; sessions are kept for the gap and `grace_ms`."""

    keys: int
    grace_ms: int = 0

    @property
    def span_ms(self) -> float:
        """How long a session is kept after its last record."""
        return GAP_MS + self.grace_ms


CASES = (
    Case(1_500),
    Case(150),
    Case(15_000),
    Case(1_500, 60 * MINUTE_MS),
    Case(1_500, 300 * MINUTE_MS),
    Case(15, 1_800 * MINUTE_MS),
    Case(15, 18_000 * MINUTE_MS),
)


def clicks(records: int, keys: int) -> Iterator[Click]:
    """Yield users and times: each user clicks at random, the times ascend."""
    generator, now = random.Random(7), float(BEGIN_MS)
    for _ in range(records):
        now += generator.expovariate(keys / BETWEEN_MS)
        yield b"u%d" % generator.randrange(keys), int(now)


def write(bootstrap: str, topic: str, rows: Sequence[Click]) -> None:
    """Write clicks."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number, (user, timestamp) in enumerate(rows):
        producer.produce(topic, b'{"page":%d}' % number, user, timestamp=timestamp)
    producer.flush()


def measure(
    bootstrap: str, offsets: KafkaAdminClient, folder: str, case: Case, records: int
) -> float:
    """Return records/s of one case, on topics and a group of its own."""
    group = f"sessions-{case.keys}-{case.grace_ms // MINUTE_MS}"
    source, sink = f"{group}-in", f"{group}-out"
    make_topics(bootstrap, source, sink)
    rows = list(clicks(records, case.keys))
    write(bootstrap, source, [(b"first", BEGIN_MS)])
    settings = ["commit.interval.ms=100", "statestore.cache.max.bytes=0"]
    command = coopstreams_run("sessions", bootstrap, folder, settings=settings)
    own = {
        "BENCH_APPLICATION": group,
        "BENCH_SOURCE": source,
        "BENCH_SINK": sink,
        "BENCH_GAP_MS": str(GAP_MS),
        "BENCH_GRACE_MS": str(case.grace_ms),
    }
    worker = subprocess.Popen(command, env=os.environ | own)
    try:
        _wait(offsets, worker, group, source, 1)
        began = time.perf_counter()
        write(bootstrap, source, rows)
        _wait(offsets, worker, group, source, 1 + records)
        return records / (time.perf_counter() - began)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait()


def _wait(
    offsets: KafkaAdminClient,
    worker: subprocess.Popen[bytes],
    group: str,
    source: str,
    until: int,
) -> None:
    while committed(offsets, group, source) < until:
        if worker.poll() is not None:
            raise SystemExit(f"the worker ended with status {worker.returncode}")
        time.sleep(0.02)


def main() -> None:
    """Measure every case once and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=40_000)
    parser.add_argument(
        "--only", type=int, default=len(CASES), help="so many cases, from the first on"
    )
    arguments = parser.parse_args()
    console = Console()
    table = Table(
        title=f"{arguments.records:,} clicks, gap {GAP_MS // MINUTE_MS} min, one process"
    )
    for column in ("keys", "grace min", "kept", "records/s"):
        table.add_column(column, justify="right")
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker(Path(folder) / "kafka") as broker,
    ):
        offsets = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        for case in CASES[: arguments.only]:
            with console.status(f"{case.keys} keys"):
                rate = measure(
                    broker.bootstrap, offsets, folder, case, arguments.records
                )
            clicks_kept = (
                min(case.span_ms, arguments.records / case.keys * BETWEEN_MS)
                / BETWEEN_MS
            )
            table.add_row(
                f"{case.keys:,}",
                f"{case.grace_ms // MINUTE_MS:,}",
                f"{max(1, 0.42 * clicks_kept):.0f}",
                f"{rate:,.0f}",
            )
    console.print(table)


if __name__ == "__main__":
    main()
