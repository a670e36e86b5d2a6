"""What time behind repartition topics costs, on a real broker, beside an earlier
version of coopstreams by turns: `python -m benchmarks.time_costs [--before FOLDERS]`.

The program counts by a new key in windows of an hour (`timed_app`). `--before` is the
PYTHONPATH of the other version: its checkout, and where it has another native
interface, the folder of its extension.

    throughput    a backlog in one source partition, on 1, 2 and 4 processes: records a
                  second, and CPU of the processes and of the broker, from the first
                  committed count on. The grace is a day: both versions count all
    marks         time marks in the repartition topic under a steady load, and their
                  share of its bytes (of keys, values, headers and lengths)
    latency       under a steady load: from the produce of a record to its update; from
                  the produce of the record that closes a window (in the last source
                  partition that gets one) to the final result
    aggregates    `benchmarks.aggregates`: a program without a repartition topic and
                  without Kafka, ns of CPU a record, the least of the rounds
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient

import coopstreams
from benchmarks.running import cpu_of
from benchmarks.steady import BEGIN_MS, HOUR_MS, Load, Tail
from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.kafka.native import SETTING, data_plane
from tests.broker.processes import Workers
from tests.broker.waiting import eventually
from tests.conftest import Kafka

_APP = Path(__file__).with_name("timed_app.py")
PROCESSES = (1, 2, 4)
RANGES = 4
COUNTRIES = 100
"""The new keys of the backlog."""
RATE = 2000
WARM_S = 10.0
"""After so much of a steady load the measurement begins."""
LIMIT_S = 300.0
EXACTLY_ONCE = {"processing.guarantee": "exactly_once_v2"}
INTERVALS_MS = (100, 1000, 30_000)
_AGGREGATED = 600_000
_AGGREGATES = """
import sys
from pathlib import Path
from benchmarks.aggregates import CASES, timed
from coopstreams.common.process_limits import tune_memory
tune_memory()
for case in CASES:
    folder = Path(sys.argv[1]) / case.replace(" ", "-")
    folder.mkdir()
    print(timed(case, int(sys.argv[2]), folder, native=sys.argv[3] == "native")[1])
"""
"""Prints ns of CPU a record of each case; runs in the checkout of a version."""


class Version(NamedTuple):
    """A version of coopstreams. `folders`: its PYTHONPATH."""

    name: str
    folders: str

    @property
    def checkout(self) -> Path:
        """The folder with its benchmarks."""
        return next(
            Path(folder)
            for folder in self.folders.split(os.pathsep)
            if (Path(folder) / "benchmarks").exists()
        )

    @property
    def environment(self) -> dict[str, str]:
        """What its processes are started with; an unusable extension is an error."""
        native = "1" if data_plane() == "native" else "0"
        return {"PYTHONPATH": self.folders, SETTING: os.environ.get(SETTING, native)}


@dataclass(frozen=True, slots=True)
class Bench:
    """The broker, and where the processes keep their state."""

    broker: KafkaBroker
    kafka: Kafka
    folder: Path

    @staticmethod
    @contextmanager
    def begun() -> Iterator[Bench]:
        """Start a broker in a folder of its own, which becomes the working folder:
        processes would import what is in the folder in which they start.
        """
        with (
            tempfile.TemporaryDirectory() as name,
            KafkaBroker(Path(name) / "kafka") as broker,
        ):
            os.chdir(name)
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            yield Bench(broker, Kafka(broker.bootstrap, admin), Path(name))

    @contextmanager
    def group(
        self,
        version: Version,
        topology: str,
        topics: tuple[str, str],
        settings: Mapping[str, str],
        processes: int,
        grace_hours: int = 0,
    ) -> Iterator[Workers]:
        """Run processes of a topology, from a source topic to a sink topic; they are
        asked to end at the end.
        """
        application = self.kafka.unique("hours")
        folder = self.folder / application
        folder.mkdir()
        source, sink = topics
        names = {
            "BENCH_APPLICATION": application,
            "BENCH_SOURCE": source,
            "BENCH_SINK": sink,
            "BENCH_GRACE_HOURS": str(grace_hours),
        }
        workers = Workers(
            Path(f"{_APP}:{topology}"),
            self.kafka.bootstrap,
            folder,
            version.environment | names,
            dict(settings),
        )
        try:
            for number in range(processes):
                workers.start(number)
            yield workers
            workers.stop()
        finally:
            workers.clean_up()

    def topics(self, partitions: int) -> tuple[str, str]:
        """Make a source and a sink topic; return their names."""
        return (
            self.kafka.topic("payments", partitions, **{"retention.ms": "-1"}),
            self.kafka.topic("out", 1, **{"retention.ms": "-1"}),
        )

    @property
    def broker_cpu(self) -> float:
        """The CPU seconds of the broker so far."""
        running = self.broker.running
        assert running is not None
        return cpu_of(running.pid)


def ready(group: Workers) -> None:
    """Wait until all processes are started, and a little for their first rebalance."""
    numbers = list(group.running)
    eventually(lambda: None not in map(group.url, numbers), 60, group.logs)
    time.sleep(5.0)


class Rate(NamedTuple):
    """Records a second; CPU seconds per million, of the processes and of the broker."""

    records: float
    cpu: float
    broker: float


def throughput(
    bench: Bench, version: Version, program: str, processes: int, records: int
) -> Rate:
    """Count a backlog; return its figures from the first committed count on."""
    topics = bench.topics(1)
    settings = EXACTLY_ONCE | {"ranges.per.partition": str(RANGES)}
    counts: dict[tuple[str, int], int] = {}
    total = 0
    begin: tuple[float, int, float, float] | None = None
    backlog = write_backlog(bench, topics[0], records)
    with (
        bench.group(
            version, program, topics, settings, processes, grace_hours=24
        ) as group,
        Tail(bench.kafka.bootstrap, topics[1]) as tail,
    ):
        ready(group)
        backlog.commit_transaction(60)
        limit = time.perf_counter() + LIMIT_S
        while total < records:
            assert time.perf_counter() < limit, f"{total} of {records}: {group.logs()}"
            for result in tail.results(0.05):
                window = result.key, result.start
                total += result.records - counts.get(window, 0)
                counts[window] = result.records
            if begin is None and total:
                spent = _cpu(group)
                begin = time.perf_counter(), total, spent, bench.broker_cpu
        now = time.perf_counter()
        spent = _cpu(group)
        broker = bench.broker_cpu
    bench.kafka.delete(topics[0])
    assert begin is not None
    done = total - begin[1]
    return Rate(
        done / (now - begin[0]),
        (spent - begin[2]) * 1e6 / done,
        (broker - begin[3]) * 1e6 / done,
    )


def _cpu(group: Workers) -> float:
    return sum(cpu_of(worker.pid) for worker in group.running.values())


def write_backlog(bench: Bench, topic: str, records: int) -> Producer:
    """Write 20 hours in order into one partition; return the producer, whose
    transaction is open: its commit shows the backlog to a group that is ready.
    """
    producer = Producer(
        {
            "bootstrap.servers": bench.kafka.bootstrap,
            "linger.ms": 20,
            "transactional.id": topic,
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(records):
        at = BEGIN_MS + number * 20 * HOUR_MS // records
        value = f"c{number * 7 % COUNTRIES}"
        producer.produce(topic, value, f"k{number % 1009}", 0, timestamp=at)
        if number % 10_000 == 0:
            while len(producer) > 50_000:
                producer.poll(0.1)
    producer.flush()
    return producer


def measure_throughput(
    bench: Bench, versions: Sequence[Version], program: str, rounds: int, records: int
) -> None:
    found: dict[tuple[int, str], list[Rate]] = {}
    for number in range(rounds):
        for processes in PROCESSES:
            # Each second round begins with the other version.
            for version in versions[:: 1 if number % 2 == 0 else -1]:
                rate = throughput(bench, version, program, processes, records)
                found.setdefault((processes, version.name), []).append(rate)
                print(f"  {processes} {version.name} {rate}", flush=True)
    for processes in PROCESSES:
        medians = {
            version.name: Rate._make(
                map(
                    statistics.median, zip(*found[processes, version.name], strict=True)
                )
            )
            for version in versions
        }
        for name, rate in medians.items():
            print(
                f"throughput, {processes} processes, {name}: {rate.records:,.0f} records/s, "
                f"CPU s per million {rate.cpu:.2f}, of the broker {rate.broker:.2f}"
            )
        if len(versions) > 1:
            now, before = (medians[version.name] for version in versions)
            parts = (a / b for a, b in zip(now, before, strict=True))
            print("  now of before: " + ", ".join(f"{part:.2f}" for part in parts))


def record_bytes(message: Message) -> int:
    """Return the bytes of a record in its batch, varints of lengths counted as one."""
    size = 7  # length, attributes, time and offset since the batch's, three lengths
    for part in (message.key(), message.value()):
        size += len(part or b"")
    for header in message.headers() or ():
        size += 2 + len(header[0]) + len(header[1] or b"")
    return size


def measure_marks(
    bench: Bench, versions: Sequence[Version], seconds: float, ranges: int
) -> None:
    for interval_ms in INTERVALS_MS:
        for version in versions:
            print(_marks(bench, version, seconds, interval_ms, ranges), flush=True)


def _marks(
    bench: Bench, version: Version, seconds: float, interval_ms: int, ranges: int
) -> str:
    topics = bench.topics(2)
    settings = {
        **(EXACTLY_ONCE if interval_ms < 1000 else {}),
        "commit.interval.ms": str(interval_ms),
        "ranges.per.partition": str(ranges),
    }
    records = 0
    marks = 0
    bytes_ = 0
    of_marks = 0
    with bench.group(version, "updates", topics, settings, 2) as group:
        ready(group)
        name = f"{group.environment['BENCH_APPLICATION']}-hours-repartition"
        load = Load(bench.kafka.bootstrap, topics[0], 2, RATE)
        with load, Tail(bench.kafka.bootstrap, name) as tail:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                for message in tail.messages():
                    size = record_bytes(message)
                    bytes_ += size
                    if message.key() is None:
                        marks += 1
                        of_marks += size
                    else:
                        records += 1
        log = sum(
            path.stat().st_size
            for path in bench.broker.folder.glob(f"log/{name}-*/*.log")
        )
    return (
        f"marks, commits each {interval_ms} ms, {ranges} ranges, {version.name}: "
        f"{records / seconds:,.0f} records/s, {marks / seconds:.1f} marks/s of "
        f"{of_marks / max(marks, 1):.0f} bytes, {100 * of_marks / bytes_:.2f} % of the "
        f"records' bytes; the log has {log / records:.1f} bytes a record"
    )


def percentiles(seconds: Sequence[float]) -> str:
    """Return median, p99 and greatest value in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    return (
        f"median {cuts[49] * 1000:.0f} ms, p99 {cuts[98] * 1000:.0f} ms, "
        f"most {max(seconds) * 1000:.0f} ms of {len(seconds):,}"
    )


def measure_latency(
    bench: Bench, versions: Sequence[Version], rounds: int, seconds: float
) -> None:
    updates: dict[str, list[float]] = {version.name: [] for version in versions}
    finals: dict[str, list[float]] = {version.name: [] for version in versions}
    for _ in range(rounds):
        for version in versions:
            updates[version.name] += _update_latency(bench, version, seconds)
            final, late = _final_latency(bench, version, seconds)
            finals[version.name] += final
            print(f"  {version.name}: {percentiles(final)}; {late}", flush=True)
    for version in versions:
        name = version.name
        print(f"latency of updates, {name}: {percentiles(updates[name])}")
        print(f"latency of final results, {name}: {percentiles(finals[name])}")


_QUICK = EXACTLY_ONCE | {"commit.interval.ms": "100"}


def _update_latency(bench: Bench, version: Version, seconds: float) -> list[float]:
    topics = bench.topics(2)
    taken: list[float] = []
    seen: dict[str, int] = {}
    with bench.group(version, "updates", topics, _QUICK, 2) as group:
        ready(group)
        load = Load(bench.kafka.bootstrap, topics[0], 2, RATE)
        with load, Tail(bench.kafka.bootstrap, topics[1]) as tail:
            warm = time.perf_counter() + WARM_S
            while time.perf_counter() < warm + seconds:
                for key, _, count, at in tail.results():
                    sent = load.sent[key][seen.get(key, 0) : count]
                    seen[key] = count
                    taken += [at - one.at for one in sent if one.at > warm]
    return taken


def _final_latency(
    bench: Bench, version: Version, seconds: float
) -> tuple[list[float], str]:
    """Return the latencies of final results, and how many records they lack."""
    topics = bench.topics(2)
    results = {}
    with bench.group(version, "final", topics, _QUICK, 2) as group:
        ready(group)
        # An hour of event time a second.
        load = Load(bench.kafka.bootstrap, topics[0], 2, RATE, HOUR_MS / 1000)
        with load, Tail(bench.kafka.bootstrap, topics[1]) as tail:
            warm = time.perf_counter() + WARM_S
            while time.perf_counter() < warm + seconds:
                for result in tail.results():
                    results[result.key, result.start] = result
    closed = load.closed_at([0, 1])
    expected = load.expected()
    of_final = {window: expected[window] for window in results}
    lack = sum(of_final.values()) - sum(one.records for one in results.values())
    taken = [
        one.at - closed[start]
        for (_, start), one in results.items()
        if closed.get(start, 0.0) > warm
    ]
    return taken, f"final results lack {lack:,} of {sum(of_final.values()):,} records"


def measure_aggregates(bench: Bench, versions: Sequence[Version], rounds: int) -> None:
    plane = "native" if data_plane() == "native" else "pure"
    found: dict[str, list[tuple[float, ...]]] = {one.name: [] for one in versions}
    for number in range(rounds):
        for version in versions[:: 1 if number % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
                said = subprocess.run(
                    [
                        sys.executable,
                        "-c",
                        _AGGREGATES,
                        folder,
                        str(_AGGREGATED),
                        plane,
                    ],
                    cwd=version.checkout,
                    env=os.environ | version.environment,
                    stdout=subprocess.PIPE,
                    check=True,
                    text=True,
                ).stdout
            found[version.name].append(tuple(map(float, said.split())))
    least = {
        name: tuple(map(min, zip(*turns, strict=True))) for name, turns in found.items()
    }
    for name, figures in least.items():
        print(f"aggregates, {name}: " + ", ".join(f"{one:,.0f} ns" for one in figures))
    if len(versions) > 1:
        now, before = (least[version.name] for version in versions)
        parts = (a / b for a, b in zip(now, before, strict=True))
        print("  now of before: " + ", ".join(f"{part:.3f}" for part in parts))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for, and print each figure at once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", metavar="FOLDERS", help="PYTHONPATH of another one")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=("throughput", "marks", "latency", "aggregates"),
        default=("throughput", "marks", "latency", "aggregates"),
    )
    parser.add_argument(
        "--program", default="updates", choices=("updates", "sessions"), help="counted"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="of a steady load")
    parser.add_argument("--ranges", type=int, default=1, help="of `marks`")
    asked = parser.parse_args(arguments)
    versions = [Version("now", str(Path(coopstreams.__file__).parents[1]))]
    if asked.before:
        versions.append(Version("before", asked.before))
    with Bench.begun() as bench:
        if "throughput" in asked.only:
            measure_throughput(
                bench, versions, asked.program, asked.rounds, asked.records
            )
        if "marks" in asked.only:
            measure_marks(bench, versions, asked.seconds, asked.ranges)
        if "latency" in asked.only:
            measure_latency(bench, versions, asked.rounds, asked.seconds)
        if "aggregates" in asked.only:
            measure_aggregates(bench, versions, asked.rounds)


if __name__ == "__main__":
    main()
