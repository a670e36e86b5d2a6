"""One key whose call does not end, among many others: `python -m benchmarks.async_stuck
[--seconds S]`.

Calls take 5 ms, of one partition, in one process, exactly once, with a commit each 200
ms and one real broker on this machine. Only the ratios within one run count: machines
differ, and are noisy.

    blocked    10,000 keys. For S seconds (30) no key is stuck, for S one is, for S none is again: the rate of the other
               keys' calls, the CPU that they take, and how often positions were committed. Then the application is
               stopped while the key is stuck, and started again: which calls are made again, and whether the output
               has each record once, in the order of its key
    above      the first record is stuck, and a million others pass it, in no time: what the process grows by, and how
               large the commits are. The stuck key has each 10,000th record, and then each 101st: in between lie the
               ranges of a commit
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from rich.console import Console
from rich.table import Table

from benchmarks.async_calls import CALL_S, KEYS, settings
from benchmarks.running import make_topics, resident, write
from coopstreams import CoopStreams, StreamsBuilder, Topology, serdes
from coopstreams.common.process_limits import tune_memory
from coopstreams.dev.broker import KafkaBroker
from coopstreams.topology.naming import COMMIT_TOPIC

STUCK = b"0"
A_SECOND = 60_000
"""Records written ahead for each second: more than this machine processes."""
WARM_S = 5.0


@dataclass(slots=True)
class Service:
    """The called service. While `stuck` is set, calls of the key `STUCK` wait."""

    calls: bytearray
    """The number of calls for each record."""
    call_s: float = CALL_S
    stuck: threading.Event = field(default_factory=threading.Event)
    of_others: int = 0

    async def __call__(self, key: bytes, value: bytes) -> bytes:
        """Take five milliseconds, as a network service does."""
        self.calls[int(value)] += 1
        if self.call_s:
            await asyncio.sleep(self.call_s)
        while key == STUCK and self.stuck.is_set():
            await asyncio.sleep(0.05)
        self.of_others += key != STUCK
        return value


def program(topic: str, service: Service) -> Topology:
    """Return the program: one call per record, and no state."""
    builder = StreamsBuilder(f"app-{topic}")
    builder.stream(topic, key=serdes.raw, value=serdes.raw).map_values_with_key_async(
        service.__call__, value=serdes.raw, max_in_flight=1000, timeout=None
    ).to(f"{topic}-out")
    return builder.build()


def fill(bootstrap: str, topic: str, records: int, each: int) -> None:
    """Write the input, to one partition; every `each`-th record has the key that may be
    stuck, the first one, too.
    """
    make_topics(bootstrap, topic, f"{topic}-out")
    chance = random.Random(1)
    rows = (
        (
            STUCK if number % each == 0 else b"%d" % chance.randrange(1, KEYS),
            b"%d" % number,
        )
        for number in range(records)
    )
    write(bootstrap, topic, rows)


@contextmanager
def reading(bootstrap: str, topic: str) -> Iterator[Consumer]:
    """Give a consumer of the committed records of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    with closing(consumer):
        known = consumer.list_topics(topic, 30).topics[topic].partitions
        consumer.assign(
            [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in known]
        )
        yield consumer


def read(bootstrap: str, topic: str) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield key, value and time of all committed records of a topic."""
    with reading(bootstrap, topic) as consumer:
        while messages := consumer.consume(10_000, 2.0):
            yield from (
                (one.key() or b"", one.value() or b"", one.timestamp()[1])
                for one in messages
            )


def blocked(bootstrap: str, seconds: float, rounds: int) -> Table:
    """Run the first case; return its table."""
    records = int((WARM_S * 3 + seconds * (2 * rounds + 1)) * A_SECOND)
    fill(bootstrap, "blocked", records, KEYS)
    service = Service(bytearray(records))
    table = Table(
        "",
        "records/s of other keys",
        "CPU s per million",
        "commits",
        "longest without",
        title="one key blocked",
    )
    rates: dict[str, list[float]] = {"free": [], "blocked": []}
    with CoopStreams(program("blocked", service), settings(bootstrap)):
        while not service.of_others:
            time.sleep(0.01)
        time.sleep(WARM_S)
        phases = []
        for phase in [*["free", "blocked"] * rounds, "free"]:
            (service.stuck.set if phase == "blocked" else service.stuck.clear)()
            start, cpu, before, wall = (
                time.perf_counter(),
                time.process_time(),
                service.of_others,
                time.time(),
            )
            time.sleep(seconds)
            done = service.of_others - before
            rates[phase].append(done / (time.perf_counter() - start))
            phases.append(
                (
                    phase,
                    rates[phase][-1],
                    (time.process_time() - cpu) / done * 1e6,
                    wall,
                    time.time(),
                )
            )
        service.stuck.set()
        time.sleep(WARM_S)
    # It was stopped while one key was stuck: all other called records are done.
    asked = [number for number, times in enumerate(service.calls) if times]
    commits = sorted(
        at / 1000 for key, _, at in read(bootstrap, COMMIT_TOPIC) if b"blocked" in key
    )
    for phase, rate, cpu, start, end in phases:
        within = [start, *(at for at in commits if start < at < end), end]
        longest = max(after - before for before, after in pairwise(within))
        table.add_row(
            phase,
            f"{rate:,.0f}",
            f"{cpu:.1f}",
            f"{len(within) - 2}",
            f"{longest:.2f} s",
        )
    free, held = (sum(rates[name]) / len(rates[name]) for name in ("free", "blocked"))
    table.add_row("blocked / free", f"{held / free:.3f}", "", "", "")
    service.stuck.clear()
    with CoopStreams(program("blocked", service), settings(bootstrap)):
        while not any(service.calls[asked[-1] + 1 :]):
            time.sleep(0.1)
        time.sleep(WARM_S)
    again = [number for number, times in enumerate(service.calls) if times > 1]
    found = disordered = 0
    seen, last = bytearray(records), Counter[bytes]()
    for key, value, _ in read(bootstrap, "blocked-out"):
        found += 1
        disordered += int(value) < last[key]
        last[key] = int(value)
        seen[last[key]] = 1
    table.caption = (
        f"stopped and started: {len(again)} records were asked about again, {sum(n % KEYS != 0 for n in again)} of "
        f"them of other keys; the output has {found:,} records, {found - sum(seen)} of them twice, {disordered} out of "
        f"order{'' if asked[-1] < records - 1 else '; the input came to its end, so the rates are too low'}"
    )
    return table


def above(bootstrap: str, records: int) -> Table:
    """Run the second case; return its table."""
    table = Table(
        "stuck key has",
        "passed",
        "wait",
        "process grew by",
        "largest commit",
        "commits",
        title=f"{records:,} offsets above one stuck record",
    )
    for each in (10_000, 101):
        topic = f"above-{each}"
        fill(bootstrap, topic, records, each)
        service = Service(bytearray(records), call_s=0.0)
        service.stuck.set()
        with CoopStreams(program(topic, service), settings(bootstrap)):
            while service.of_others < min(records, 50_000) // 2:
                time.sleep(0.01)
            before = most = resident()
            passed, since = -1, time.monotonic()
            while (
                passed < records - -(-records // each) and time.monotonic() < since + 5
            ):
                if service.of_others > passed:
                    passed, since = service.of_others, time.monotonic()
                most = max(most, resident())
                time.sleep(0.05)
        sizes = [
            len(value)
            for key, value, _ in read(bootstrap, COMMIT_TOPIC)
            if topic.encode() in key
        ]
        table.add_row(
            f"each {each:,}th",
            f"{passed:,}",
            f"{-(-records // each):,}",
            f"{(most - before) / 1e6:.0f} MB",
            f"{max(sizes):,} bytes",
            f"{len(sizes)}",
        )
    return table


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--only", choices=("blocked", "above"))
    given = parser.parse_args()
    tune_memory()  # as `coopstreams run` does
    with tempfile.TemporaryDirectory() as folder, KafkaBroker(Path(folder)) as broker:
        if given.only != "above":
            Console(width=160).print(
                blocked(broker.bootstrap, given.seconds, given.rounds)
            )
        if given.only != "blocked":
            Console(width=160).print(above(broker.bootstrap, given.records))


if __name__ == "__main__":
    main()
