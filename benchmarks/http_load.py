"""What queries cost the processing: `python -m benchmarks.http_load [--rounds N] [--set NAME=VALUE]`.

One process counts records at full speed, by turns without and with a load on its query server: requests for single keys
over connections that stay open, and clients that are slow to ask and to read. A connection whose answer has not come
asks nothing more, so a server that is slower is asked less; the table says how much was answered.

    records/s    by the group's committed offsets
    CPU          of the measured process, user and system, a million records; that of the load is not in it
    p50, p99     from a request for a key to its answer, as the load sees it
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from bisect import bisect_left
from collections.abc import MutableSequence, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from heapq import heappop, heappush
from itertools import accumulate
from pathlib import Path
from statistics import median

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaAdminClient
from rich.console import Console
from rich.table import Table

from benchmarks.running import KEYS, committed, coopstreams_run, cpu_of, fill
from coopstreams.dev.broker import KafkaBroker
from coopstreams.dev.process import free_port

CONNECTIONS = 100
SOURCE, SINK, GROUP = "load-in", "load-out", "load"


@dataclass(frozen=True, slots=True)
class Load:
    """Requests for keys a second, and slow clients. `warm_s`: so long before it is measured."""

    name: str
    rate: int
    slow: int
    warm_s: float


LOADS = [
    Load("without", 0, 0, 0.0),
    Load("5,000 requests/s", 5000, 0, 3.0),
    # 500 that begin at once ask for 50 ranges of 200 rows a second at first; after that they read.
    Load("2,000 requests/s, 500 slow clients", 2000, 500, 25.0),
]
BINS, BINS_A_S = 10_000, 10_000


@dataclass(frozen=True, slots=True)
class Window:
    """What was done in a window of time. Units: records/s, CPU seconds a million records, answers/s, ms."""

    rate: float
    cpu: float
    answers: float
    p50: float
    p99: float


class _Client:
    """One connection of the load. `step` is called when it is due, or when its socket can be read."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.socket = self.connected()

    def connected(self) -> socket.socket:
        """Return a new connection."""
        made = socket.create_connection(("127.0.0.1", self._port))
        made.setblocking(False)
        return made

    def step(self, now: float) -> float | None:
        """Do what is next; return when more is to be done, None: when there is something to read."""
        raise NotImplementedError


class _Asking(_Client):
    """Asks for keys, in time if the answers come in time. `took`: how many answers took how many of `BINS_A_S`."""

    def __init__(self, port: int, now: float, every_s: float, took: MutableSequence[int]) -> None:
        super().__init__(port)
        self._every_s, self._took = every_s, took
        self._due, self._asked_at = now + random.random() * every_s, 0.0

    def step(self, now: float) -> float | None:
        if self._asked_at:
            with suppress(BlockingIOError):
                head, _, body = self.socket.recv(65536).partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
                if len(body) != length:
                    raise SystemExit(f"an answer in parts: {head!r}")
                if head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 404")):
                    self._took[min(BINS - 1, int((now - self._asked_at) * BINS_A_S))] += 1
                self._asked_at, self._due = 0.0, max(self._due + self._every_s, now)
        if self._asked_at:
            return None
        if now < self._due:
            return self._due
        self.socket.send(b"GET /v1/stores/counts/keys/u%d HTTP/1.1\r\nhost: load\r\n\r\n" % random.randrange(KEYS))
        self._asked_at = now
        return None


class _Crawling(_Client):
    """Asks eight bytes at a time, and reads a few bytes of a long answer at a time; again and again."""

    REQUEST = b"GET /v1/stores/counts/range?limit=200 HTTP/1.1\r\nhost: slow\r\nconnection: close\r\n\r\n"

    def __init__(self, port: int, now: float) -> None:
        super().__init__(port)
        self._sent, self._due = 0, now + random.random() * 5

    def step(self, now: float) -> float | None:
        if now < self._due:
            return self._due
        self._due = now + 0.5
        try:
            if self._sent < len(self.REQUEST):
                self._sent += self.socket.send(self.REQUEST[self._sent : self._sent + 8])
            elif not self.socket.recv(128):
                raise ConnectionError
        except BlockingIOError:
            pass
        except OSError:  # the end of an answer, or of the server's patience
            self.socket.close()
            self.socket, self._sent = self.connected(), 0
        return self._due


def put(port: int, load: Load, seconds: float, took: MutableSequence[int]) -> None:
    """Put a load on a server for so long, in a process of its own.

    It is a loop over sockets without a framework: what it costs is taken from the processing, on a machine with few
    cores.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    now = time.monotonic()
    until = now + seconds
    asking = [_Asking(port, now, CONNECTIONS / load.rate, took) for _ in range(CONNECTIONS)]
    clients: list[_Client] = [*asking, *(_Crawling(port, now) for _ in range(load.slow))]
    due = [(now, number, client) for number, client in enumerate(clients)]
    with selectors.EpollSelector() as selector:
        for each in asking:
            selector.register(each.socket, selectors.EVENT_READ, each)
        numbers = {client: number for number, client in enumerate(clients)}
        while (now := time.monotonic()) < until:
            while due and due[0][0] <= now:
                _, number, client = heappop(due)
                if (again := client.step(now)) is not None:
                    heappush(due, (again, number, client))
            for ready, _ in selector.select(max(0.0, due[0][0] - time.monotonic()) if due else 0.1):
                if (again := ready.data.step(time.monotonic())) is not None:
                    heappush(due, (again, numbers[ready.data], ready.data))


class Measured:
    """The process that counts, and what it has done so far."""

    def __init__(self, bootstrap: str, folder: str, settings: Sequence[str]) -> None:
        self.port = free_port()
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        own = ["commit.interval.ms=200", f"http.max.connections={2 * (500 + CONNECTIONS)}", *settings]
        command = coopstreams_run("count", bootstrap, folder, http=f"127.0.0.1:{self.port}", settings=own)
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

    def window(self, load: Load, seconds: float) -> Window:
        """Measure for so long; the load begins before, so that its slow clients are in the middle of something."""
        took: MutableSequence[int] = multiprocessing.Array("q", BINS, lock=False)
        given = self.port, load, load.warm_s + seconds + 1, took
        worker = multiprocessing.Process(target=put, args=given) if load.rate else None
        if worker is not None:
            worker.start()
            time.sleep(load.warm_s)
        began, first, cpu, before = time.perf_counter(), self.at(), cpu_of(self._process.pid), list(took)
        time.sleep(seconds)
        passed, records = time.perf_counter() - began, self.at() - first
        answers = [count - earlier for count, earlier in zip(took, before, strict=True)]
        found = Window(
            records / passed,
            (cpu_of(self._process.pid) - cpu) * 1e6 / max(1, records),
            sum(answers) / passed,
            *(1000 * bisect_left([*accumulate(answers)], part * sum(answers)) / BINS_A_S for part in (0.5, 0.99)),
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
        "--records", type=int, default=130_000_000, help="in the topic; it must not end before the rounds"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each window")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the process")
    arguments = parser.parse_args()
    table = Table(title=f"medians of {arguments.rounds} rounds; records/s also as a part of those without, each round")
    for column in ("", "records/s", "", "CPU s a million", "answers/s", "p50 ms", "p99 ms"):
        table.add_column(column, justify="right" if column or table.columns else "left")
    with tempfile.TemporaryDirectory() as folder, KafkaBroker(Path(folder) / "kafka") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for made in admin.create_topics([NewTopic(SOURCE, 1, 1), NewTopic(SINK, 1, 1)]).values():
            made.result(30)
        fill(broker.bootstrap, SOURCE, arguments.records)
        measured = Measured(broker.bootstrap, folder, arguments.set)
        rounds: list[list[Window]] = []
        try:
            while not measured.at():
                time.sleep(0.1)
            while len(rounds) < arguments.rounds:
                rounds += [[measured.window(load, arguments.seconds) for load in LOADS]]
            if measured.at() >= arguments.records:
                raise SystemExit("the topic has ended before the rounds: give more --records")
        finally:
            measured.end()
    for load, windows in zip(LOADS, zip(*rounds, strict=True), strict=True):
        rate, cpu, answers, p50, p99 = (median(each) for each in zip(*map(astuple, windows), strict=True))
        parts = ", ".join(f"{one.rate / each[0].rate:.2f}" for one, each in zip(windows, rounds, strict=True))
        times = (f"{p50:.1f}", f"{p99:.1f}") if answers else ("", "")
        table.add_row(load.name, f"{rate:,.0f}", parts, f"{cpu:.1f}", f"{answers:,.0f}", *times)
    Console().print(table)


if __name__ == "__main__":
    main()
