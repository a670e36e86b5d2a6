"""What queries cost the processing: `python -m benchmarks.http_load [--rounds N] [--set NAME=VALUE]`.

One process counts records at full speed, by turns without and with a load on its query server: requests for single keys
over connections that stay open, and clients that are slow to ask and to read. A connection whose answer has not come
asks nothing more, so a server that is slower is asked less; the table says how much was answered.

The load has the same cores as the processing, which clients on other machines would leave to it. So the heaviest load
is also put on another instance, which has counted as many keys and is idle: the processing beside it is the control.

    records/s    by the group's committed offsets
    CPU          of the measured process, user and system, a million records; that of the load is not in it
    load         CPU of the load itself, of a core
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
from contextlib import ExitStack, suppress
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
IDLE_RECORDS = 5 * KEYS
"""What the other instance has counted."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests for keys a second, and slow clients. `warm_s`: so long before it is measured."""

    name: str
    rate: int
    slow: int
    warm_s: float
    elsewhere: bool = False


LOADS = [
    Load("without", 0, 0, 0.0),
    Load("5,000 requests/s", 5000, 0, 3.0),
    # 500 that begin at once ask for 50 ranges of 200 rows a second at first; after that they read.
    Load("2,000 requests/s, 500 slow clients", 2000, 500, 25.0),
    Load("the same, of another instance", 2000, 500, 25.0, elsewhere=True),
]
BINS, BINS_A_S = 10_000, 10_000


@dataclass(frozen=True, slots=True)
class Window:
    """What was done in a window of time. Units: records/s, CPU seconds a million records, cores, answers/s, ms."""

    rate: float
    cpu: float
    load: float
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
    asking = [_Asking(port, now, CONNECTIONS / load.rate, took) for _ in range(CONNECTIONS if load.rate else 0)]
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


class Counting:
    """An instance that counts the records of a topic, and what it has done so far."""

    def __init__(self, name: str, bootstrap: str, folder: str, settings: Sequence[str]) -> None:
        self.port = free_port()
        self._name, self._source = name, f"{name}-in"
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        own = ["commit.interval.ms=200", f"http.max.connections={2 * (500 + CONNECTIONS)}", *settings]
        command = coopstreams_run("count", bootstrap, folder, http=f"127.0.0.1:{self.port}", settings=own)
        environment = {"BENCH_APPLICATION": name, "BENCH_SOURCE": self._source, "BENCH_SINK": f"{name}-out"}
        self._process = subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL)

    def at(self) -> int:
        """Return the committed offset.

        Raises:
            SystemExit: the process has ended.
        """
        if self._process.poll() is not None:
            raise SystemExit(f"the process ended with status {self._process.returncode}")
        return committed(self._admin, self._name, self._source)

    def reach(self, offset: int) -> None:
        """Wait until it has committed this offset."""
        while self.at() < offset:
            time.sleep(0.1)

    def window(self, load: Load, port: int, seconds: float) -> Window:
        """Measure for so long; the load begins before, so that its slow clients are in the middle of something."""
        took: MutableSequence[int] = multiprocessing.Array("q", BINS, lock=False)
        worker = multiprocessing.Process(target=put, args=(port, load, load.warm_s + seconds + 1, took))
        worker.start()
        time.sleep(load.warm_s)
        processes = self._process.pid, worker.pid or 0
        began, first, before = time.perf_counter(), self.at(), list(took)
        cpu = [cpu_of(process) for process in processes]
        time.sleep(seconds)
        passed, records = time.perf_counter() - began, self.at() - first
        own, loads = (cpu_of(process) - earlier for process, earlier in zip(processes, cpu, strict=True))
        answers = [count - earlier for count, earlier in zip(took, before, strict=True)]
        found = Window(
            records / passed,
            own * 1e6 / max(1, records),
            loads / passed,
            sum(answers) / passed,
            *(1000 * bisect_left([*accumulate(answers)], part * sum(answers)) / BINS_A_S for part in (0.5, 0.99)),
        )
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
        "--records", type=int, default=220_000_000, help="in the topic; it must not end before the rounds"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each window")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the process")
    arguments = parser.parse_args()
    table = Table(title=f"medians of {arguments.rounds} rounds; records/s also as a part of those without, each round")
    for column in ("", "records/s", "", "CPU s a million", "load", "answers/s", "p50 ms", "p99 ms"):
        table.add_column(column, justify="right" if column or table.columns else "left")
    with tempfile.TemporaryDirectory() as folder, KafkaBroker(Path(folder) / "kafka") as broker, ExitStack() as stack:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topics = [f"{name}-{end}" for name in ("load", "idle") for end in ("in", "out")]
        for made in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
            made.result(30)
        sizes = {"idle": IDLE_RECORDS, "load": arguments.records}
        counting: dict[str, Counting] = {}
        for name, records in sizes.items():
            fill(broker.bootstrap, f"{name}-in", records)
            state = Path(folder, name)
            state.mkdir()
            counting[name] = Counting(name, broker.bootstrap, str(state), arguments.set)
            stack.callback(counting[name].end)
            counting[name].reach(min(records, IDLE_RECORDS))
        measured, rounds = counting["load"], list[list[Window]]()
        while len(rounds) < arguments.rounds:
            ports = [counting["idle" if load.elsewhere else "load"].port for load in LOADS]
            rounds += [[measured.window(*each, arguments.seconds) for each in zip(LOADS, ports, strict=True)]]
        if measured.at() >= arguments.records:
            raise SystemExit("the topic has ended before the rounds: give more --records")
    for load, windows in zip(LOADS, zip(*rounds, strict=True), strict=True):
        rate, cpu, own, answers, p50, p99 = (median(each) for each in zip(*map(astuple, windows), strict=True))
        parts = ", ".join(f"{one.rate / each[0].rate:.2f}" for one, each in zip(windows, rounds, strict=True))
        shown = (f"{answers:,.0f}", f"{p50:.1f}", f"{p99:.1f}") if answers else ("0", "", "")
        table.add_row(load.name, f"{rate:,.0f}", parts, f"{cpu:.1f}", f"{own:.2f}", *shown)
    Console().print(table)


if __name__ == "__main__":
    main()
