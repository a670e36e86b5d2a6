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
import multiprocessing
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_longlong
from dataclasses import dataclass
from heapq import heappop, heappush
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
WARM_S = 25.0
"""After so long all slow clients have asked, and read: 500 that begin at once ask for 50 ranges of 200 rows a second at
first, and the budget of queries spreads that over 20 s.
"""
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
    """Asks for keys, in time if the answers come in time."""

    def __init__(self, port: int, now: float, answered: Callable[[], None]) -> None:
        super().__init__(port)
        self._due, self._waits, self._answered = now + random.random() * CONNECTIONS / RATE, False, answered

    def step(self, now: float) -> float | None:
        if self._waits:
            with suppress(BlockingIOError):
                head, _, body = self.socket.recv(65536).partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
                if len(body) != length:
                    raise SystemExit(f"an answer in parts: {head!r}")
                if head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 404")):
                    self._answered()
                self._waits, self._due = False, max(self._due + CONNECTIONS / RATE, now)
        if self._waits:
            return None
        if now < self._due:
            return self._due
        self.socket.send(b"GET /v1/stores/counts/keys/u%d HTTP/1.1\r\nhost: load\r\n\r\n" % random.randrange(KEYS))
        self._waits = True
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


def load(port: int, seconds: float, answered: c_longlong) -> None:
    """Put the load on a server for so long, in a process of its own.

    It is a loop over sockets without a framework: what it costs is taken from the processing, on a machine with few
    cores.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    now = time.monotonic()
    until = now + seconds

    def one_more() -> None:
        answered.value += 1

    asking = [_Asking(port, now, one_more) for _ in range(CONNECTIONS)]
    clients: list[_Client] = [*asking, *(_Crawling(port, now) for _ in range(SLOW))]
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
        """Measure for so long; the load begins before, so that its slow clients are in the middle of something."""
        answered: c_longlong = multiprocessing.Value("q", 0, lock=False)
        given = self.port, WARM_S + seconds + 1, answered
        worker = multiprocessing.Process(target=load, args=given) if loaded else None
        if worker is not None:
            worker.start()
            time.sleep(WARM_S)
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
        "--records", type=int, default=110_000_000, help="in the topic; it must not end before the rounds"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each window")
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
