"""Runs one case of a benchmark in a process of its own, and measures it from outside:
by what it has committed.

Invariant: a measured process is judged only by its commits (without commits, by its
outputs), so coopstreams, its peers and a bare loop are measured alike.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

APPS = Path(__file__).with_name("apps.py")
KEYS = 100_000
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Case:
    """A command to measure: a name, a command, environment variables that it needs.

    Shape: `outputs`: how many output records an input record has, where the process
    commits no offsets.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    outputs: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Records per second from the first commit on; CPU seconds per million records,
    start included.
    """

    rate: float
    cpu: float


class MeasurementError(Exception):
    """The measured process failed; the message says how."""


def make_topics(bootstrap: str, *names: str, partitions: int = 1) -> None:
    """Create topics. Brokers delete none of their records, however old their times are."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics(
        [NewTopic(name, partitions, 1, config={"retention.ms": "-1"}) for name in names]
    ).values():
        made.result(30)


def write(
    bootstrap: str,
    topic: str,
    rows: Iterable[tuple[bytes, bytes | None]],
    timestamp_ms: int = 0,
) -> None:
    """Write records (key, value). `timestamp_ms`: the time of all records; 0: that at
    which each is written.
    """
    write_timed(bootstrap, ((topic, key, value, timestamp_ms) for key, value in rows))


def write_timed(
    bootstrap: str, rows: Iterable[tuple[str, bytes, bytes | None, int]]
) -> None:
    """Write records (topic, key, value, timestamp)."""
    settings = {
        "linger.ms": 50,
        "queue.buffering.max.kbytes": 1 << 20,
        "partitioner": "murmur2_random",
    }
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for number, (topic, key, value, timestamp_ms) in enumerate(rows):
        producer.produce(topic, value, key, timestamp=timestamp_ms)
        if number % 10_000 == 0:
            producer.poll(0)
            while len(producer) > 50_000:  # its queue is limited
                producer.poll(0.1)
    producer.flush()


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Write the input."""
    write(bootstrap, topic, inputs(records))


def inputs(records: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of the input."""
    generator = random.Random(7)
    for number in range(records):
        user = generator.randrange(KEYS)
        yield (
            b"u%d" % user,
            b'{"user":"u%d","amount":%d,"n":%d}'
            % (user, generator.randrange(100), number),
        )


def said(
    module: str, *arguments: str, environment: Mapping[str, str]
) -> tuple[float, ...]:
    """Run a module in a process of its own; return its printed numbers."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command,
        env=os.environ | environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return tuple(map(float, done.stdout.split()))


def coopstreams_run(
    topology: str,
    bootstrap: str,
    folder: str,
    *,
    http: str = "",
    settings: Sequence[str] = (),
    apps: Path = APPS,
) -> list[str]:
    """Return the command that runs a topology of `apps`. `http`: its address, or none."""
    return [
        *(sys.executable, "-m", "coopstreams", "run", f"{apps}:{topology}"),
        *("--bootstrap-servers", bootstrap, "--state-dir", folder, "--http", http),
        *(word for each in settings for word in ("--set", each)),
    ]


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
        "SC_PAGE_SIZE"
    )


def taken(act: Callable[[], object]) -> int:
    """Return the bytes allocated by a function and still held."""
    tracemalloc.start()
    kept = act()
    del kept
    gc.collect()  # also Python's free lists, which belong to no object
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return held


def cpu_of(process: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_s() -> float:
    """Return the CPU seconds of this process and its descendants, ended ones included."""
    children, spent = defaultdict(list), dict[int, int]()
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = each.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended; its time is in its parent's
        pid = int(each.parent.name)
        children[int(fields[1])].append(pid)
        spent[pid] = sum(map(int, fields[11:15]))
    family = [os.getpid()]
    for pid in family:
        family += children[pid]
    return sum(spent[pid] for pid in family) / os.sysconf("SC_CLK_TCK")


def committed(admin: KafkaAdminClient, group: str, *topics: str) -> int:
    """Return the sum of the committed offsets of a group, 0 before its first commit."""
    try:
        offsets = admin.list_group_offsets(group)[group]
    except KafkaError:  # the group does not exist yet
        return 0
    return sum(
        max(0, found.offset)
        for partition, found in offsets.items()
        if partition.topic in topics
    )


def lag(bootstrap: str, group: str, topics: Iterable[str]) -> int:
    """Return how many records of these topics a group has not committed: all of a
    partition of which it has committed nothing.
    """
    settings = {"bootstrap.servers": bootstrap, "group.id": group}
    with closing(Consumer(settings)) as consumer:
        asked = [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in consumer.list_topics(topic, 30).topics[topic].partitions
        ]
        left = 0
        for found in consumer.committed(asked, 30):
            first, end = consumer.get_watermark_offsets(found, timeout=30)
            left += end - max(first, found.offset)
    return left


def written(bootstrap: str, topic: str) -> int:
    """Return the end offset of partition 0 of a topic."""
    with closing(
        Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-ends"})
    ) as consumer:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1]


def measure(
    case: Case, done: Callable[[], int], records: int, limit_s: float
) -> Measured:
    """Run a case until all records are done, or for a limited time; return the
    measurement of the done records.

    Raises:
        MeasurementError: it ended by itself, or no record was done in that time.
    """
    before = os.times()
    worker = subprocess.Popen(
        case.command, env=os.environ | case.environment, stdout=subprocess.DEVNULL
    )
    first: tuple[float, int] | None = None
    give_up = time.perf_counter() + limit_s
    try:
        while True:
            at, now = done(), time.perf_counter()
            if first is None and at > 0:
                first = (now, at)
            if at >= records or now > give_up:
                break
            if worker.poll() is not None:
                raise MeasurementError(
                    f"{' '.join(case.command)} ended with status {worker.returncode}"
                )
            time.sleep(_POLL_S)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait()
    if first is None:
        raise MeasurementError(
            f"{' '.join(case.command)} was not done with one record after {limit_s:.0f} s"
        )
    rate = (at - first[1]) / (now - first[0]) if at > first[1] else float("nan")
    after = os.times()
    cpu = (
        after.children_user
        - before.children_user
        + after.children_system
        - before.children_system
    )
    return Measured(rate, cpu * 1_000_000 / at)
