"""What standbys and warm-ups save: `python -m benchmarks.standbys [--megabytes N]
[--turns N]`.

Three partitions of a real broker on this machine. An application keeps the latest value
of each key, of 1 kB, and forwards when each record was written. While 300 records a
second are written, with a session time-out of 6 s:

    killed       one of three processes gets SIGKILL: until another one answers for its keys
    moved        a third process comes, on an empty disk: the longest time in which no result comes of what moves to it,
                 and the 99th percentile of the delays of what stays: in the 3 s before, and from its start until 3 s
                 after the move
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import httpx
from confluent_kafka import Consumer, KafkaException, Producer
from rich.console import Console
from rich.table import Table

from benchmarks.running import coopstreams_run, lag, make_topics, write
from coopstreams.dev.broker import KafkaBroker
from coopstreams.topology.keys import partition_of

SOURCE = "standbys-in"
PARTITIONS = 3
VALUE = 1000
A_SECOND = 300
GIVE_UP_S = 600.0
AFTER_S = 3.0
USUAL = (
    "session.timeout.ms=6000",
    "commit.interval.ms=100",
    "statestore.cache.max.bytes=0",
)
"""Each update is forwarded at once."""
AT_ONCE = ("acceptable.recovery.lag=2000000000",)
"""The setting with which all tasks move at once."""
KILLS = (("standby", 1), ("no-standby", 0))
MOVES: Sequence[tuple[str, Sequence[str]]] = (("warm-up", ()), ("at once", AT_ONCE))


class Result(NamedTuple):
    """A result: when it came, the partition of its key, and how long after its record.
    Units: seconds.
    """

    at: float
    partition: int
    delay: float


class Group:
    """The processes of an application."""

    def __init__(self, bootstrap: str, folder: Path, name: str, *settings: str) -> None:
        self.bootstrap = bootstrap
        self.sink = f"{name}-out"
        self._folder = folder / name
        self._name = name
        self.environment = os.environ | {
            "BENCH_APPLICATION": name,
            "BENCH_SOURCE": SOURCE,
            "BENCH_SINK": self.sink,
        }
        self.settings = [*USUAL, *settings]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        make_topics(bootstrap, self.sink)

    def start(self, number: int, *, empty: bool = False, savepoint: str = "") -> None:
        """Start a process; `empty`: without the state of its last run; `savepoint`: the
        one that it begins with, if it has not run before.
        """
        folder = self._folder / str(number)
        if empty:
            shutil.rmtree(folder, ignore_errors=True)
        command = coopstreams_run(
            "latest",
            self.bootstrap,
            str(folder),
            http=f"127.0.0.1:{self.port(number)}",
            settings=self.settings,
        )
        command += ["--from-savepoint", savepoint] if savepoint else []
        self._processes[number] = subprocess.Popen(
            command,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def end(self, number: int, how: signal.Signals) -> None:
        """End a process."""
        process = self._processes.pop(number)
        process.send_signal(how)
        process.wait()

    def stop(self) -> None:
        """End all processes."""
        for number in list(self._processes):
            self.end(number, signal.SIGTERM)

    def port(self, number: int) -> int:
        """Return the port on which a process answers queries."""
        return 18_480 + number

    def status(self, number: int) -> dict[str, Any]:
        """Return the status of a process; empty: it does not answer."""
        url = f"http://127.0.0.1:{self.port(number)}/v1/status?local=true"
        try:
            told: dict[str, Any] = httpx.get(url, timeout=5).json()["instances"][0]
        except (httpx.HTTPError, KeyError, IndexError, ValueError):
            return {}
        return told

    def partitions(self, number: int) -> list[int]:
        """Return the partitions of the tasks that a process has."""
        return [task["partition"] for task in self.status(number).get("tasks", ())]

    def until_settled(self, standbys: int, tasks: Sequence[int]) -> None:
        """Wait until each process has so many tasks, all of them run, and so many
        standbys are near the end.
        """

        def settled() -> bool:
            told = [self.status(number) for number in sorted(self._processes)]
            near = [
                one
                for each in told
                for one in each.get("standbys", ())
                if one["lag"] is not None and one["lag"] < A_SECOND
            ]
            counts = sorted(len(each.get("tasks", ())) for each in told)
            return (
                all(each.get("ready") for each in told)
                and len(near) == standbys
                and counts == sorted(tasks)
            )

        until(settled)

    def until_done(self, left: int = A_SECOND) -> None:
        """Wait until everything is processed but so many records."""

        def done() -> bool:
            try:
                return lag(self.bootstrap, self._name, [SOURCE]) <= left
            except KafkaException:  # the group has no coordinator yet
                return False

        until(done)


class Load:
    """Records that are written in the background, and their results."""

    def __init__(self, group: Group, keys: int) -> None:
        self.results: list[Result] = []
        self._group = group
        self._keys = keys
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._write),
            threading.Thread(target=self._read),
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._group.bootstrap,
                "partitioner": "murmur2_random",
                "linger.ms": 0,
            }
        )
        rest = os.urandom(VALUE - 20)
        while not self._over.wait(1 / A_SECOND):
            key = b"u%d" % random.randrange(self._keys)
            producer.produce(SOURCE, b"%020d" % time.time_ns() + rest, key)
            producer.poll(0)
        producer.flush()

    def _read(self) -> None:
        settings = {
            "bootstrap.servers": self._group.bootstrap,
            "group.id": f"{self._group.sink}-reader",
            "auto.offset.reset": "latest",
            "fetch.wait.max.ms": 5,
        }
        with closing(Consumer(settings)) as consumer:
            consumer.subscribe([self._group.sink])
            while not self._over.is_set():
                message = consumer.poll(0.1)
                if message is None or message.error() is not None:
                    continue
                key = message.key()
                value = message.value()
                assert key is not None
                assert value is not None
                now = time.time()
                written = int(value) / 1e9
                self.results.append(
                    Result(now, partition_of(key, PARTITIONS), now - written)
                )


def until(true: Callable[[], bool]) -> None:
    """Wait until a condition holds.

    Raises:
        SystemExit: it does not in time.
    """
    give_up = time.perf_counter() + GIVE_UP_S
    while not true():
        if time.perf_counter() > give_up:
            raise SystemExit(f"not done in {GIVE_UP_S:g} s")
        time.sleep(0.1)


def rows(keys: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield a value of each key, which does not compress."""
    pool = os.urandom(1 << 20)
    for number in range(keys):
        at = random.randrange(len(pool) - VALUE)
        yield b"u%d" % number, b"%020d" % 0 + pool[at : at + VALUE - 20]


def killed(group: Group, keys: int, turns: int, standbys: int) -> list[float]:
    """Return how long keys of a killed process had no answer, in each turn."""
    for number in range(3):
        group.start(number)
    group.until_done()
    found = []
    with Load(group, keys):
        for turn in range(turns):
            group.until_settled(standbys, [1, 1, 1])
            number = turn % 3
            (partition,) = group.partitions(number)
            key = next(
                b"u%d" % each
                for each in range(keys)
                if partition_of(b"u%d" % each, PARTITIONS) == partition
            )
            other = group.port((number + 1) % 3)
            url = f"http://127.0.0.1:{other}/v1/stores/latest/keys/{key.decode()}"
            assert httpx.get(url, timeout=5).status_code == httpx.codes.OK
            began = time.perf_counter()
            group.end(number, signal.SIGKILL)
            until(lambda url=url: httpx.get(url, timeout=30).status_code == 200)  # type: ignore[misc]
            found.append(time.perf_counter() - began)
            group.start(number)
    group.stop()
    return found


def moved(group: Group, keys: int, turns: int) -> list[tuple[float, float, float]]:
    """Return, of each turn, the longest time without a result of what moved, and the
    99th percentile of the delays of what stayed, before and meanwhile.
    """
    for number in range(2):
        group.start(number)
    group.until_done()
    found = []
    with Load(group, keys) as load:
        for _ in range(turns):
            group.until_settled(0, [1, 2])
            time.sleep(AFTER_S)
            began = time.time()
            group.start(2, empty=True)
            group.until_settled(0, [1, 1, 1])
            (moves,) = group.partitions(2)
            time.sleep(AFTER_S)
            known = list(load.results)
            before = [each.delay for each in known if began - AFTER_S < each.at < began]
            came = [result for result in known if result.at >= began]
            times = [result.at for result in came if result.partition == moves]
            stayed = [result.delay for result in came if result.partition != moves]
            found.append(
                (
                    max(b - a for a, b in pairwise(times)),
                    quantiles(before, n=100)[98],
                    quantiles(stayed, n=100)[98],
                )
            )
            group.end(2, signal.SIGTERM)
    group.stop()
    return found


def main() -> None:
    """Measure both and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", choices=["killed", "moved"])
    arguments = parser.parse_args()
    keys = arguments.megabytes * 1_000_000 // VALUE
    turns = arguments.turns
    table = Table(title=f"{arguments.megabytes} MB of state: medians of {turns}")
    for column in ("what", "s", "each", "p99 before, ms", "p99 of the others, ms"):
        table.add_column(column, justify="left" if column == "what" else "right")
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker(Path(folder) / "kafka") as broker,
    ):
        make_topics(broker.bootstrap, SOURCE, partitions=PARTITIONS)
        write(broker.bootstrap, SOURCE, rows(keys))

        def group(name: str, *settings: str) -> Group:
            return Group(broker.bootstrap, Path(folder), name, *settings)

        kills = () if arguments.only == "moved" else KILLS
        moves = () if arguments.only == "killed" else MOVES
        for name, count in kills:
            times = killed(
                group(f"killed-{name}", f"num.standby.replicas={count}"),
                keys,
                turns,
                PARTITIONS * count,
            )
            each = ", ".join(f"{one:.1f}" for one in times)
            table.add_row(
                f"killed, {count} standbys", f"{median(times):.1f}", each, "-", "-"
            )
        for name, settings in moves:
            pauses = moved(
                group(f"moved-{name.replace(' ', '-')}", *settings),
                keys,
                turns,
            )
            longest, before, others = zip(*pauses, strict=True)
            table.add_row(
                f"moved, {name}",
                f"{median(longest):.2f}",
                ", ".join(f"{one:.2f}" for one in longest),
                f"{1000 * median(before):.0f}",
                f"{1000 * median(others):.0f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
