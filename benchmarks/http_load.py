"""What queries cost the processing: `python -m benchmarks.http_load [--rounds N] [--set NAME=VALUE]`.

One process counts records at full speed, by turns without and with a load on its query server: 500 clients that are
slow to ask and to read, and 2,000 requests a second for single keys, over connections that stay open. A connection
whose answer has not come asks nothing more, so a server that is slower is asked less; the table says how much was
answered.

    records/s    by the group's committed offsets
    CPU          of the measured process, user and system, a million records; that of the load is not in it
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from statistics import median

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaAdminClient
from rich.console import Console
from rich.table import Table

from benchmarks.running import KEYS, committed, fill
from coopstreams.dev.broker import KafkaBroker

SLOW = 500
RATE = 2000
CONNECTIONS = 100
SOURCE, SINK, GROUP = "load-in", "load-out", "load"
HERE = Path(__file__).parent
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Window:
    """What was done in a window of time. Units: records/s, CPU seconds a million records, answers/s."""

    rate: float
    cpu: float
    answers: float


async def _ask(port: int, until: float, every_s: float, answered: Synchronized[int]) -> None:
    """Ask for keys over one connection, in time if the answers come in time."""
    generator = random.Random(port + id(answered))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    due = time.monotonic() + generator.random() * every_s
    while (now := time.monotonic()) < until:
        if due > now:
            await asyncio.sleep(due - now)
        due = max(due + every_s, now)
        path = f"/v1/stores/counts/keys/u{generator.randrange(KEYS)}"
        writer.write(f"GET {path} HTTP/1.1\r\nhost: load\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
        await reader.readexactly(length)
        with answered.get_lock():
            answered.value += head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 404"))
    writer.close()


async def _crawl(port: int, until: float) -> None:
    """Ask a byte at a time, and read a few bytes of a long answer at a time; again and again."""
    request = b"GET /v1/stores/counts/range?limit=200 HTTP/1.1\r\nhost: slow\r\nconnection: close\r\n\r\n"
    await asyncio.sleep(random.random() * 5)
    while time.monotonic() < until:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=256)
            for at in range(0, len(request), 8):
                writer.write(request[at : at + 8])
                await asyncio.sleep(0.5)
            while time.monotonic() < until and await reader.read(128):
                await asyncio.sleep(0.5)
            writer.close()


def load(port: int, seconds: float, answered: Synchronized[int]) -> None:
    """Put the load on a server for so long, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def run() -> None:
        until = time.monotonic() + seconds
        asking = [_ask(port, until, CONNECTIONS / RATE, answered) for _ in range(CONNECTIONS)]
        await asyncio.gather(*asking, *(_crawl(port, until) for _ in range(SLOW)), return_exceptions=True)

    asyncio.run(run())


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _cpu(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Measured:
    """The process that counts, and what it has done so far."""

    def __init__(self, bootstrap: str, folder: str, settings: Sequence[str]) -> None:
        self.port = _free_port()
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        command = [sys.executable, "-m", "coopstreams", "run", f"{HERE / 'apps.py'}:count"]
        command += ["--bootstrap-servers", bootstrap, "--state-dir", folder, "--http", f"127.0.0.1:{self.port}"]
        own = ["commit.interval.ms=200", f"http.max.connections={2 * (SLOW + CONNECTIONS)}", *settings]
        command += [word for each in own for word in ("--set", each)]
        environment = {"BENCH_APPLICATION": GROUP, "BENCH_SOURCE": SOURCE, "BENCH_SINK": SINK}
        self._process = subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL)

    def at(self) -> int:
        """Return the committed offset.

        Raises:
            SystemExit: the process has ended.
        """
        if self._process.poll() is not None:
            raise SystemExit(f"the process ended with status {self._process.returncode}")
        return committed(self._admin, GROUP, SOURCE)

    def window(self, seconds: float, *, loaded: bool) -> Window:
        """Measure for so long; the load begins before, so that its connections are open."""
        answered: Synchronized[int] = multiprocessing.Value("q", 0)
        worker = multiprocessing.Process(target=load, args=(self.port, seconds + 4, answered)) if loaded else None
        if worker is not None:
            worker.start()
            time.sleep(3)
        began, first, cpu, answers = time.perf_counter(), self.at(), _cpu(self._process.pid), answered.value
        time.sleep(seconds)
        took, records = time.perf_counter() - began, self.at() - first
        found = Window(
            records / took,
            (_cpu(self._process.pid) - cpu) * 1e6 / max(1, records),
            (answered.value - answers) / took,
        )
        if worker is not None:
            worker.join()
        return found

    def end(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()


def main() -> None:
    """Measure by turns, and print what the load has cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--records", type=int, default=8_000_000, help="in the topic; it must not end before the rounds"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each window")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the process")
    arguments = parser.parse_args()
    table = Table(title=f"{SLOW} slow clients and {RATE:,} requests/s: medians of {arguments.rounds} rounds")
    for column in ("", "records/s", "CPU s a million", "answers/s"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as folder, KafkaBroker(Path(folder) / "kafka") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for made in admin.create_topics([NewTopic(SOURCE, 1, 1), NewTopic(SINK, 1, 1)]).values():
            made.result(30)
        fill(broker.bootstrap, SOURCE, arguments.records)
        measured = Measured(broker.bootstrap, folder, arguments.set)
        rounds: list[tuple[Window, Window]] = []
        try:
            while not measured.at():
                time.sleep(0.1)
            for _ in range(arguments.rounds):
                plain = measured.window(arguments.seconds, loaded=False)
                rounds.append((plain, measured.window(arguments.seconds, loaded=True)))
            if measured.at() >= arguments.records:
                raise SystemExit("the topic has ended before the rounds: give more --records")
        finally:
            measured.end()
    for name, windows in (("without", [plain for plain, _ in rounds]), ("with", [loaded for _, loaded in rounds])):
        figures = [median(window.rate for window in windows), median(window.cpu for window in windows)]
        answers = median(window.answers for window in windows)
        table.add_row(name, f"{figures[0]:,.0f}", f"{figures[1]:.1f}", f"{answers:,.0f}")
    ratios = [loaded.rate / plain.rate for plain, loaded in rounds]
    Console().print(table)
    Console().print(
        f"with / without: {median(ratios):.2f} of the records ({', '.join(f'{each:.2f}' for each in ratios)})"
    )


if __name__ == "__main__":
    main()
