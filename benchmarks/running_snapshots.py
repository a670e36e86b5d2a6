"""What snapshots by a running application cost, and what an empty host has of them:
`python -m benchmarks.running_snapshots [--keys N] [--rate N] [--seconds N] [--bucket]`.

One process counts keys, exactly-once, with all keys in its store.

    beside     CPU and commit latency under a steady load of random keys, with no snapshots, and with one after the other
    empty      from when a process without state has its task until that runs, with all state: from the snapshot, and by
               replay; and from its start until it answers a query

Each steady load changes rows in all slices, so each snapshot writes all of them: the most
that one can cost. Commit latencies are those of the buckets of the histogram.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple, Self

from kafka import KafkaAdminClient
from rich.console import Console
from rich.table import Table

from benchmarks.running import committed, coopstreams_run, cpu_of, make_topics, write
from coopstreams.dev.broker import KafkaBroker
from coopstreams.query.client import QueryClient
from coopstreams.state import snapshot
from coopstreams.topology.errors import QueryError

SOURCE, SINK, GROUP = "running-in", "running-out", "running"
GIVE_UP_S = 600.0
_BUCKET = re.compile(
    r'^coopstreams_commit_latency_seconds_bucket\{le="([^"]+)",thread="0"\} ([0-9.e+]+)$',
    re.MULTILINE,
)


class Beside(NamedTuple):
    """What a process did under a steady load. Units: CPU seconds a second; seconds."""

    cpu: float
    p50: float
    p99: float
    snapshots: int


class Instance:
    """The counting process."""

    def __init__(self, bootstrap: str, folder: str, *settings: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        command = coopstreams_run(
            "count",
            bootstrap,
            folder,
            http=self.address,
            settings=["processing.guarantee=exactly_once_v2", *settings],
        )
        environment = {
            "BENCH_APPLICATION": GROUP,
            "BENCH_SOURCE": SOURCE,
            "BENCH_SINK": SINK,
        }
        self.began_at = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.assigned_at = 0.0
        self.runs_at = 0.0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if f"of group {GROUP}: 1 tasks" in line:
                self.assigned_at = time.perf_counter()
            elif "runs on thread" in line:
                self.runs_at = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()

    @property
    def cpu_s(self) -> float:
        """The CPU seconds of the process."""
        return cpu_of(self._process.pid)

    def opened_s(self, key: str) -> tuple[float, float]:
        """Return the seconds from when the process had its task until that ran, and
        from the start until a query was answered.

        Raises:
            SystemExit: it did not, or the process has ended.
        """
        while True:
            try:
                with QueryClient(f"http://{self.address}", deadline_s=0) as client:
                    assert client.get("counts", key) is not None
                answered_s = time.perf_counter() - self.began_at
                return self.runs_at - self.assigned_at, answered_s
            except QueryError:
                self._check()
                time.sleep(0.02)

    def _check(self) -> None:
        waited_s = time.perf_counter() - self.began_at
        if self._process.poll() is not None or waited_s > GIVE_UP_S:
            raise SystemExit(f"the process has ended, or needs {waited_s:.0f} s")

    def buckets(self) -> dict[float, float]:
        """Return how many commits took at most so long (seconds)."""
        with urllib.request.urlopen(f"http://{self.address}/metrics") as answer:
            text = answer.read().decode()
        return {float(le): float(count) for le, count in _BUCKET.findall(text)}


def quantile(
    before: dict[float, float], after: dict[float, float], share: float
) -> float:
    """Return the upper bound of the bucket that has the commit of this rank."""
    counts = {le: after[le] - before.get(le, 0.0) for le in sorted(after)}
    wanted = share * max(counts.values())
    return next(le for le, count in counts.items() if count >= wanted)


def steadily(bootstrap: str, keys: int, rate: int, ended: threading.Event) -> None:
    """Write records of random keys at this rate until `ended` is set."""
    generator = random.Random(3)

    def rows() -> Iterator[tuple[bytes, bytes]]:
        began = time.perf_counter()
        number = 0
        while not ended.is_set():
            for _ in range(max(1, rate // 100)):
                number += 1
                yield b"u%d" % generator.randrange(keys), b"{}"
            time.sleep(max(0.0, began + number / rate - time.perf_counter()))

    write(bootstrap, SOURCE, rows())


def beside(
    bootstrap: str,
    instance: Instance,
    url: str,
    options: argparse.Namespace,
) -> Beside:
    """Measure a running process under the steady load."""
    ended = threading.Event()
    load = threading.Thread(
        target=steadily, args=(bootstrap, options.keys, options.rate, ended)
    )
    load.start()
    time.sleep(5)
    made = snapshot.published(url, GROUP).number
    before = instance.buckets()
    cpu_s = instance.cpu_s
    began = time.perf_counter()
    time.sleep(options.seconds)
    took_s = time.perf_counter() - began
    spent_s = instance.cpu_s - cpu_s
    after = instance.buckets()
    ended.set()
    load.join()
    return Beside(
        spent_s / took_s,
        quantile(before, after, 0.5),
        quantile(before, after, 0.99),
        snapshot.published(url, GROUP).number - made,
    )


@contextmanager
def bucket() -> Iterator[str]:
    """Yield the URL of a bucket; drivers find its server in the environment."""
    import s3fs

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "benchmarks",
        "AWS_SECRET_ACCESS_KEY": "benchmarks",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not _listens(port):
            time.sleep(0.1)
        s3fs.S3FileSystem().mkdir("snapshots")
        yield "s3://snapshots"
    finally:
        server.terminate()
        server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--bucket",
        action="store_true",
        help="snapshots in a bucket of moto's server, on this machine; otherwise on its disk",
    )
    options = parser.parse_args()
    console = Console()
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker(Path(folder) / "kafka", console=Console(stderr=True)) as broker,
        bucket() if options.bucket else nullcontext(f"{folder}/snapshots") as url,
    ):
        state = f"{folder}/state"
        bootstrap = broker.bootstrap
        make_topics(bootstrap, SOURCE, SINK)
        write(bootstrap, SOURCE, ((b"u%d" % n, b"{}") for n in range(options.keys)))
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        found: dict[str, Beside] = {}
        with Instance(bootstrap, state) as instance:
            while committed(admin, GROUP, SOURCE) < options.keys:
                time.sleep(0.1)
            found["no snapshots"] = beside(bootstrap, instance, url, options)
        settings = [f"snapshots.dir={url}", "snapshots.interval.ms=1000"]
        with Instance(bootstrap, state, *settings) as instance:
            while snapshot.current_run(url, GROUP) is None:
                time.sleep(0.1)
            found["one after the other"] = beside(bootstrap, instance, url, options)
        empty = {}
        for number, (way, with_it) in enumerate(
            (("from the snapshot", [f"snapshots.dir={url}"]), ("by replay", []))
        ):
            with Instance(bootstrap, f"{folder}/empty-{number}", *with_it) as instance:
                empty[way] = instance.opened_s("u7")
        manifest = snapshot.load(url, GROUP)
        assert manifest is not None
        size = sum(file.bytes for file in manifest.files())
    table = Table(
        title=f"{options.keys:,} keys, {options.rate:,} records a second, {size / 1e6:.0f} MB a snapshot"
    )
    for column in ("", "CPU of a core", "commit p50 ms", "p99 ms", "snapshots"):
        table.add_column(column, justify="right" if column else "left")
    for name, one in found.items():
        table.add_row(
            name,
            f"{100 * one.cpu:.0f} %",
            f"≤ {1000 * one.p50:.0f}",
            f"≤ {1000 * one.p99:.0f}",
            str(one.snapshots),
        )
    console.print(table)
    without, with_all = found.values()
    if with_all.snapshots:
        each_s = (with_all.cpu - without.cpu) * options.seconds / with_all.snapshots
        console.print(f"CPU of a snapshot: {each_s:.1f} s")
    for way, (restore_s, answers_s) in empty.items():
        console.print(
            f"an empty host {way}: {restore_s:.1f} s of restore, answers {answers_s:.1f} s after its start"
        )


if __name__ == "__main__":
    main()
