"""How long an instance with local state takes to begin again: `python -m
benchmarks.restart [--keys N] [--turns N]`.

One process has counted each key once, and ends: by SIGTERM, or killed. A record is
written, and the process begins again on the same folder.

    joined       from its start until it has its task
    processing   from then until the record is committed
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from confluent_kafka import Producer
from kafka import KafkaAdminClient
from rich.console import Console
from rich.table import Table

from benchmarks.running import committed, coopstreams_run, make_topics
from coopstreams.dev.broker import KafkaBroker

SOURCE, SINK, GROUP = "restart-in", "restart-out", "restart"
GIVE_UP_S = 300.0


class Instance:
    """The counting process. `assigned_at`: when it got its task; None: not yet."""

    def __init__(self, bootstrap: str, folder: str, settings: Sequence[str]) -> None:
        command = coopstreams_run(
            "count", bootstrap, folder, settings=["commit.interval.ms=100", *settings]
        )
        environment = {
            "BENCH_APPLICATION": GROUP,
            "BENCH_SOURCE": SOURCE,
            "BENCH_SINK": SINK,
        }
        self.began_at = time.perf_counter()
        self.assigned_at: float | None = None
        self._process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if f"of group {GROUP}: 1 tasks" in line and self.assigned_at is None:
                self.assigned_at = time.perf_counter()

    def until(self, true: Callable[[], bool]) -> float:
        """Return the time at which the condition became true.

        Raises:
            SystemExit: it did not, or the process has ended.
        """
        give_up = time.perf_counter() + GIVE_UP_S
        while not true():
            if self._process.poll() is not None or time.perf_counter() > give_up:
                raise SystemExit(
                    f"not done in {GIVE_UP_S:g} s; status of the process: {self._process.poll()}"
                )
            time.sleep(0.01)
        return time.perf_counter()

    def end(self, how: signal.Signals) -> None:
        """End the process."""
        self._process.send_signal(how)
        self._process.wait()


def main() -> None:
    """Measure each way to end in turn, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the process",
    )
    arguments = parser.parse_args()
    found: dict[signal.Signals, list[tuple[float, float]]] = {
        signal.SIGTERM: [],
        signal.SIGKILL: [],
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker(Path(folder) / "kafka") as broker,
    ):
        make_topics(broker.bootstrap, SOURCE, SINK)
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "queue.buffering.max.messages": 2_000_000,
            }
        )
        for number in range(arguments.keys):
            producer.produce(SOURCE, b"{}", b"u%d" % number)
        producer.flush()
        written, admin = (
            arguments.keys,
            KafkaAdminClient(bootstrap_servers=broker.bootstrap),
        )

        def done() -> bool:
            return bool(committed(admin, GROUP, SOURCE) >= written)

        instance = Instance(broker.bootstrap, folder, arguments.set)
        instance.until(done)
        for how in list(found) * arguments.turns:
            instance.end(how)
            producer.produce(SOURCE, b"{}", b"u7")
            producer.flush()
            written += 1
            instance = Instance(broker.bootstrap, folder, arguments.set)
            over = instance.until(done)
            assert instance.assigned_at is not None
            found[how].append(
                (instance.assigned_at - instance.began_at, over - instance.assigned_at)
            )
        instance.end(signal.SIGTERM)
    table = Table(
        title=f"{arguments.keys:,} keys of local state: medians of {arguments.turns}"
    )
    for column in ("ended by", "joined s", "processing s", "each"):
        table.add_column(column, justify="right" if column != "ended by" else "left")
    for how, times in found.items():
        joined, processing = (median(each) for each in zip(*times, strict=True))
        table.add_row(
            how.name,
            f"{joined:.1f}",
            f"{processing:.2f}",
            ", ".join(f"{each:.2f}" for _, each in times),
        )
    Console().print(table)


if __name__ == "__main__":
    main()
