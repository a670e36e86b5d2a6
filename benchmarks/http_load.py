"""What queries cost the processing: `python -m benchmarks.http_load [--rounds N] [--set
NAME=VALUE]`.

One process counts records at full speed, by turns of a few seconds without and with a
load on its query server: requests for single keys over connections that stay open, and
clients that are slow to ask and to read. A connection whose answer has not come asks
nothing more, so a server that is slower is asked less; the table says how much was
answered.

Clients on other machines would take nothing from the processing, so the process has a
core of its own; the broker and the load have the others. The third turn of each round
puts the same load on another instance there, which has counted as many keys and is
idle: it is the control.

    records/s    by the counter of the process
    part         of the records/s without load in the same round; the quartiles, since machines are noisy
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
from collections.abc import Callable, MutableSequence, Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass
from heapq import heappop, heappush
from itertools import accumulate
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from statistics import median, quantiles
from urllib.error import URLError
from urllib.request import urlopen

from rich.console import Console
from rich.table import Table

from benchmarks.running import KEYS, coopstreams_run, cpu_of, fill, make_topics
from coopstreams.dev.broker import KafkaBroker
from coopstreams.dev.process import free_port

CONNECTIONS = 100
IDLE_RECORDS = 5 * KEYS
"""The number of records that the other instance has counted."""
TURNS = ("without load", "with it", "with it on another instance")
NOBODY = 0
WARM_S = 40.0
"""How long both instances have the load first: 500 slow clients that begin at once
request 50 ranges a second, and then read.
"""
SETTLE_S = 0.3
BINS, BINS_A_S = 10_000, 10_000


@dataclass(frozen=True, slots=True)
class Load:
    """Requests for keys a second, and how many clients are slow."""

    rate: int
    slow: int


@dataclass(frozen=True, slots=True)
class Window:
    """The results of a turn. Units: records/s, CPU seconds per million records, cores,
    answers/s.
    """

    rate: float
    cpu: float
    load: float
    answers: float


class _Client:
    """One connection of the load. `step` is called when it is due, or when its socket
    can be read.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.socket = self.connected()

    def connected(self) -> socket.socket:
        """Return a new connection."""
        made = socket.create_connection(("127.0.0.1", self._port))
        made.setblocking(False)
        return made

    def step(self, now: float) -> float | None:
        """Do the next step; return the time of the one after it, None: when there is
        something to read.
        """
        raise NotImplementedError


class _Asking(_Client):
    """Requests keys, at a fixed rate if answers come in time. `took`: the number of
    answers by duration, in bins of 1 / `BINS_A_S`.
    """

    def __init__(
        self, port: int, now: float, every_s: float, took: MutableSequence[int]
    ) -> None:
        super().__init__(port)
        self._every_s, self._took = every_s, took
        self._due, self._asked_at = now + random.random() * every_s, 0.0
        self._read = b""
        """What has come of the answer."""

    def connect_again(self) -> bool:
        """Connect again; return whether it waited for an answer, which is dropped."""
        self.socket.close()
        self.socket, waited, self._asked_at, self._read = (
            self.connected(),
            self._asked_at > 0.0,
            0.0,
            b"",
        )
        return waited

    def step(self, now: float) -> float | None:
        if self._asked_at:
            with suppress(BlockingIOError):
                if not (part := self.socket.recv(65536)):
                    raise SystemExit(
                        "the server has closed a connection that waits for an answer"
                    )
                self._read += part
                head, _, body = self._read.partition(b"\r\n\r\n")
                length = (
                    head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0]
                )
                if length and len(body) == int(length):
                    if head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 404")):
                        self._took[
                            min(BINS - 1, int((now - self._asked_at) * BINS_A_S))
                        ] += 1
                    self._asked_at, self._due, self._read = (
                        0.0,
                        max(self._due + self._every_s, now),
                        b"",
                    )
        if self._asked_at:
            return None
        if now < self._due:
            return self._due
        self.socket.send(
            b"GET /v1/stores/counts/keys/u%d HTTP/1.1\r\nhost: load\r\n\r\n"
            % random.randrange(KEYS)
        )
        self._asked_at = now
        return None


class _Crawling(_Client):
    """Sends requests eight bytes at a time, and reads a few bytes of a long answer at a
    time, repeatedly.
    """

    REQUEST = b"GET /v1/stores/counts/range?limit=200 HTTP/1.1\r\nhost: slow\r\nconnection: close\r\n\r\n"

    def __init__(self, port: int, now: float) -> None:
        super().__init__(port)
        self._sent, self._due = 0, now + random.random() * 5

    def step(self, now: float) -> float | None:
        if now < self._due:
            return self._due
        try:
            if self._sent < len(self.REQUEST):
                self._due = (
                    now + 0.25
                )  # less than `ask_s`: 3 s of turns, with others between them
                self._sent += self.socket.send(
                    self.REQUEST[self._sent : self._sent + 8]
                )
            else:
                self._due = now + 0.5
                if not self.socket.recv(128):
                    raise ConnectionError
        except BlockingIOError:
            pass
        except OSError:  # the end of an answer, or the server's time limit
            self.socket.close()
            self.socket, self._sent = self.connected(), 0
        return self._due


class _Clients:
    """The clients of a server. Their time advances during their turns only."""

    def __init__(self, port: int, load: Load, took: MutableSequence[int]) -> None:
        self._asking = [
            _Asking(port, 0.0, CONNECTIONS / load.rate, took)
            for _ in range(CONNECTIONS)
        ]
        clients: list[_Client] = [
            *self._asking,
            *(_Crawling(port, 0.0) for _ in range(load.slow)),
        ]
        self._due = [(0.0, number, client) for number, client in enumerate(clients)]
        self._numbers = {client: number for number, client in enumerate(clients)}
        self._selector = selectors.EpollSelector()
        for each in self._asking:
            self._selector.register(each.socket, selectors.EVENT_READ, each)
        self._passed = 0.0

    def turn(self, on: Callable[[], bool]) -> None:
        """Ask and read until the turn is over."""
        for each in self._asking:  # the server has closed the idle ones
            self._selector.unregister(each.socket)
            if each.connect_again():
                heappush(self._due, (self._passed, self._numbers[each], each))
            self._selector.register(each.socket, selectors.EVENT_READ, each)
        began = time.monotonic() - self._passed
        while on():
            now, due = time.monotonic() - began, self._due
            while due and due[0][0] <= now:
                _, number, client = heappop(due)
                if (again := client.step(now)) is not None:
                    heappush(due, (again, number, client))
            wait_s = max(
                0.0, min(0.05, due[0][0] + began - time.monotonic() if due else 0.05)
            )
            for ready, _ in self._selector.select(wait_s):
                if (again := ready.data.step(time.monotonic() - began)) is not None:
                    heappush(due, (again, self._numbers[ready.data], ready.data))
        self._passed = time.monotonic() - began


def put(
    ports: Sequence[int],
    load: Load,
    turn: Synchronized[int],
    took: Sequence[MutableSequence[int]],
) -> None:
    """Put a load on the server whose turn it is, in a process of its own, until the
    turn is below 0.

    It is a loop over sockets without a framework: what it costs is taken from the
    processing, on a machine with few cores.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    clients = [
        _Clients(port, load, times) for port, times in zip(ports, took, strict=True)
    ]
    while (now := turn.value) >= 0:
        if now == NOBODY:
            time.sleep(0.02)
        else:
            clients[now - 1].turn(lambda now=now: turn.value == now)  # type: ignore[misc]


class Counting:
    """An instance that counts the records of a topic, and its progress."""

    def __init__(
        self, name: str, bootstrap: str, folder: str, settings: Sequence[str]
    ) -> None:
        self.port = free_port()
        own = [f"http.max.connections={2 * (500 + CONNECTIONS)}", *settings]
        command = coopstreams_run(
            "count", bootstrap, folder, http=f"127.0.0.1:{self.port}", settings=own
        )
        environment = {
            "BENCH_APPLICATION": name,
            "BENCH_SOURCE": f"{name}-in",
            "BENCH_SINK": f"{name}-out",
        }
        self.process = subprocess.Popen(
            command, env=os.environ | environment, stdout=subprocess.DEVNULL
        )

    def at(self) -> int:
        """Return how many records it has processed.

        Raises:
            SystemExit: the process has ended.
        """
        if self.process.poll() is not None:
            raise SystemExit(f"the process ended with status {self.process.returncode}")
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
                lines = answer.read().decode().splitlines()
        except URLError:  # it is starting
            return 0
        found = (
            line.split()[-1]
            for line in lines
            if line.startswith("coopstreams_processed_records_total{")
        )
        return int(float(next(found, 0.0)))

    def reach(self, records: int) -> None:
        """Wait until the process has processed this many records."""
        while self.at() < records:
            time.sleep(0.1)

    def window(self, seconds: float, load: int, took: Sequence[int]) -> Window:
        """Measure for `seconds`. `load`: its process; `took`: its answers."""
        processes = self.process.pid, load
        began, first, before = time.perf_counter(), self.at(), sum(took)
        cpu = [cpu_of(process) for process in processes]
        time.sleep(seconds)
        passed, records = time.perf_counter() - began, self.at() - first
        own, loads = (
            cpu_of(process) - earlier
            for process, earlier in zip(processes, cpu, strict=True)
        )
        return Window(
            records / passed,
            own * 1e6 / max(1, records),
            loads / passed,
            (sum(took) - before) / passed,
        )

    def end(self) -> None:
        """End the instance."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def main() -> None:
    """Measure in turns, and print the cost of the load."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--records",
        type=int,
        default=240_000_000,
        help="in the topic; it must not end before the rounds",
    )
    parser.add_argument("--rounds", type=int, default=18)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn")
    parser.add_argument("--requests", type=int, default=2000, help="for keys, a second")
    parser.add_argument("--slow", type=int, default=500, help="clients that are slow")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the process",
    )
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker(Path(folder) / "kafka") as broker,
        ExitStack() as stack,
    ):
        make_topics(
            broker.bootstrap,
            *(f"{name}-{end}" for name in ("load", "idle") for end in ("in", "out")),
        )
        counting: dict[str, Counting] = {}
        for name, records in {"idle": IDLE_RECORDS, "load": arguments.records}.items():
            fill(broker.bootstrap, f"{name}-in", records)
            state = Path(folder, name)
            state.mkdir()
            counting[name] = Counting(name, broker.bootstrap, str(state), arguments.set)
            stack.callback(counting[name].end)
            counting[name].reach(min(records, IDLE_RECORDS))
        measured = counting["load"]
        own, *others = sorted(os.sched_getaffinity(0), reverse=True)
        on_cores(measured.process.pid, {own})
        for process in (
            os.getpid(),
            counting["idle"].process.pid,
            broker.running.pid if broker.running else 0,
        ):
            on_cores(process, {*others})
        took: list[MutableSequence[int]] = [
            multiprocessing.Array("q", BINS, lock=False) for _ in TURNS[1:]
        ]
        turn = multiprocessing.Value("i", NOBODY)
        ports = [measured.port, counting["idle"].port]
        load = multiprocessing.Process(
            target=put,
            args=(ports, Load(arguments.requests, arguments.slow), turn, took),
        )
        load.start()
        rounds = alternate(
            measured, load.pid or 0, turn, took, arguments.rounds, arguments.seconds
        )
        turn.value = -1
        load.join()
        if measured.at() >= arguments.records:
            raise SystemExit(
                "the topic has ended before the rounds: give more --records"
            )
    print_table(rounds, [[], *took])


def alternate(
    measured: Counting,
    load: int,
    turn: Synchronized[int],
    took: Sequence[Sequence[int]],
    rounds: int,
    seconds: float,
) -> list[list[Window]]:
    """Return the windows of each round, in the order of `TURNS`; each round begins with
    another one.
    """
    for which in range(1, len(TURNS)):
        turn.value = which
        time.sleep(WARM_S)
    found = []
    for number in range(rounds):
        windows = {}
        for which in sorted(
            range(len(TURNS)), key=lambda which: (which + number) % len(TURNS)
        ):
            turn.value = which
            time.sleep(SETTLE_S)
            windows[which] = measured.window(
                seconds - SETTLE_S, load, took[which - 1] if which else []
            )
        found.append([windows[which] for which in range(len(TURNS))])
    return found


def on_cores(process: int, cores: Set[int]) -> None:
    """Have the threads of a process run on these cores only."""
    for thread in os.listdir(f"/proc/{process}/task"):
        os.sched_setaffinity(int(thread), cores)


def print_table(
    rounds: Sequence[Sequence[Window]], took: Sequence[Sequence[int]]
) -> None:
    """Print a line for each kind of turn."""
    table = Table(title=f"medians of {len(rounds)} rounds")
    for column in (
        "",
        "records/s",
        "part",
        "CPU s a million",
        "load",
        "answers/s",
        "p50 ms",
        "p99 ms",
    ):
        table.add_column(column, justify="right" if column else "left")
    for name, windows, times in zip(
        TURNS, zip(*rounds, strict=True), took, strict=True
    ):
        rate, cpu, own, answers = (
            median(each) for each in zip(*map(astuple, windows), strict=True)
        )
        parts = quantiles(
            [one.rate / each[0].rate for one, each in zip(windows, rounds, strict=True)]
        )
        waits = [
            1000 * bisect_left([*accumulate(times)], part * sum(times)) / BINS_A_S
            for part in (0.5, 0.99)
        ]
        shown = (
            (f"{answers:,.0f}", *(f"{wait:.1f}" for wait in waits))
            if answers
            else ("0", "", "")
        )
        part = "{1:.2f} ({0:.2f} to {2:.2f})".format(*parts)
        table.add_row(name, f"{rate:,.0f}", part, f"{cpu:.2f}", f"{own:.2f}", *shown)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
