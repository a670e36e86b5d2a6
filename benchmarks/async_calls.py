"""Calls that take 5 ms, of one partition, in one process: `python -m
benchmarks.async_calls [--records N]`.

Each record is mapped by a coroutine that sleeps, on its way from one topic to another,
exactly once, with a commit each 200 ms. One real broker on this machine; machines
differ, and are noisy.

    uniform     10,000 keys, each as often as the others
    none        the same, order="none"
    blocked     the same as uniform, while one key's first call does not end: the rate of all others; what a commit has
                above that record; how many calls are made again when the application is
                stopped and started
    batches     the same keys: 500 of them a call, which takes 5 ms
    state       the same as uniform with `process_async`: each call counts the records of its key in a store
    zipf-S      10,000 keys, the n-th 1/n**S as often as the first: S=1 gives the first 10.2 % of the records, S=0.8
                3.8 %. A key can have 200 calls a second, so 200 through the first's
                share is all that there can be
    partition   order="partition": one call at a time, as a program would make them without this
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.running import make_topics, write
from coopstreams import (
    CallContext,
    CoopStreams,
    Record,
    StreamsBuilder,
    Topology,
    key_value_store,
    serdes,
)
from coopstreams.commit.group_progress import list_consumer_group_offsets
from coopstreams.common.process_limits import tune_memory
from coopstreams.dev.broker import KafkaBroker
from coopstreams.topology.calls import CallOrder
from coopstreams.topology.columns import TopicPartition

KEYS = 10_000
CALL_S = 0.005
SLOW = b"key-0"
ZIPF = {"zipf-1": 1.0, "zipf-0.8": 0.8}


class Service:
    """The called service. It counts the calls of each value; `stuck`: the slow key's
    calls do not end.
    """

    def __init__(self, *, stuck: bool = False) -> None:
        self.calls: Counter[bytes] = Counter()
        self.answered = 0
        self.of_others = 0
        self.let_go = threading.Event()
        if not stuck:
            self.let_go.set()

    async def one(self, key: bytes, value: bytes) -> bytes:
        """Take five milliseconds, as a network service does."""
        self.calls[value] += 1
        await asyncio.sleep(CALL_S)
        while key == SLOW and not self.let_go.is_set():
            await asyncio.sleep(0.05)
        self.answered += 1
        self.of_others += key != SLOW
        return value

    async def counted(
        self, record: Record[bytes, bytes], context: CallContext[bytes, bytes]
    ) -> None:
        """Count the record in a store, and call `one`."""
        counts = context.store("counts")
        counts.put((counts.get() or 0) + 1)
        context.forward(record.with_value(await self.one(record.key, record.value)))

    async def many(self, values: list[bytes]) -> list[bytes]:
        """Take five milliseconds for the whole batch."""
        await asyncio.sleep(CALL_S)
        self.answered += len(values)
        return values


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    topic: str
    records: int
    order: CallOrder = "key"
    in_flight: int = 1000


def fill(bootstrap: str, topic: str, records: int, exponent: float) -> Counter[int]:
    """Write the input to one partition, with keys by Zipf's law; return the count of
    each key.
    """
    make_topics(bootstrap, topic, f"{topic}-out")
    chance = random.Random(1)
    shares = list(accumulate(n**-exponent for n in range(1, KEYS + 1)))
    keys = chance.choices(range(KEYS), cum_weights=shares, k=records)
    write(
        bootstrap,
        topic,
        ((b"key-%d" % key, b"%d" % number) for number, key in enumerate(keys)),
    )
    return Counter(keys)


def program(case: Case, service: Service) -> Topology:
    """Return the program: one call per record, and no state."""
    builder = StreamsBuilder(f"app-{case.name}")
    read = builder.stream(case.topic, key=serdes.raw, value=serdes.raw)
    if case.name == "batches":
        results = read.map_batches(
            service.many, value=serdes.raw, order=case.order, max_in_flight=8
        )
    elif case.name == "state":
        counts = key_value_store("counts", key=serdes.raw, value=serdes.int64)
        results = read.process_async(
            service.counted,
            stores=[counts],
            key=serdes.raw,
            value=serdes.raw,
            max_in_flight=case.in_flight,
            timeout=None,
        )
    else:
        results = read.map_values_with_key_async(
            service.one,
            value=serdes.raw,
            order=case.order,
            max_in_flight=case.in_flight,
            timeout=None,
        )
    results.to(f"{case.topic}-out")
    return builder.build()


def settings(bootstrap: str) -> dict[str, Any]:
    """Return the settings of an application."""
    return {
        "bootstrap.servers": bootstrap,
        "state.dir": tempfile.mkdtemp(),
        "commit.interval.ms": 200,
        "processing.guarantee": "exactly_once_v2",
        "auto.offset.reset": "earliest",
    }


def committed(bootstrap: str, case: Case) -> tuple[int, int]:
    """Return the number of committed records, and of ranges of them above the position."""
    at = TopicPartition(case.topic, 0)
    found = list_consumer_group_offsets(
        {"bootstrap.servers": bootstrap}, f"app-{case.name}", [at]
    )[at]
    if found is None:
        return 0, 0
    return found.offset + sum(end - start + 1 for start, end in found.ranges), len(
        found.ranges
    )


def measure(bootstrap: str, case: Case, others: int) -> tuple[float, float, str]:
    """Return records a second from the first answer to the last, CPU seconds per
    million records, and a remark.

    `others`: the number of records of other keys than the slow one. If the slow key is
    stuck, the rate is theirs.
    """
    stuck = case.name == "blocked"
    wanted, service = others if stuck else case.records, Service(stuck=stuck)

    def done() -> int:
        return service.of_others if stuck else service.answered

    with CoopStreams(program(case, service), settings(bootstrap)):
        while not done():
            time.sleep(0.001)
        start, cpu, first = time.perf_counter(), time.process_time(), done()
        while (now := done()) < wanted:
            time.sleep(0.01)
        seconds, used = time.perf_counter() - start, time.process_time() - cpu
        remark = ""
        if case.name in ZIPF:
            share = (case.records - others) / case.records
            remark = f"the first key has {share:.1%}: at most {1 / CALL_S / share:,.0f} records/s"
        if stuck:
            while (at := committed(bootstrap, case))[0] < wanted:
                time.sleep(0.2)
            remark = f"{at[0]:,} committed, {at[1]} ranges above the stuck record"
    if stuck:
        again = Service()
        with CoopStreams(program(case, again), settings(bootstrap)):
            while committed(bootstrap, case) != (case.records, 0):
                time.sleep(0.2)
        remark += f"; {sum(again.calls.values())} calls after a restart, {case.records - wanted} records of that key"
    return (now - first) / seconds, used / (now - first) * 1e6, remark


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    tune_memory()  # as `coopstreams run` does
    cases = [
        Case("uniform", "uniform", given.records, in_flight=given.in_flight),
        Case("blocked", "uniform", given.records, in_flight=given.in_flight),
        Case("uniform-again", "uniform", given.records, in_flight=given.in_flight),
        Case("none", "uniform", given.records, "none", given.in_flight),
        Case("batches", "uniform", given.records),
        Case("state", "uniform", given.records, in_flight=given.in_flight),
        *(
            Case(name, name, given.records // 4, in_flight=given.in_flight)
            for name in ZIPF
        ),
        Case("partition", "few", 1000, "partition"),
    ]
    table = Table("case", "records/s", "CPU s per million", "")
    keys: dict[str, Counter[int]] = {}
    with tempfile.TemporaryDirectory() as folder, KafkaBroker(Path(folder)) as broker:
        for case in cases:
            if given.only and case.name not in given.only:
                continue
            if case.topic not in keys:
                keys[case.topic] = fill(
                    broker.bootstrap,
                    case.topic,
                    case.records,
                    ZIPF.get(case.topic, 0.0),
                )
            found, cpu, remark = measure(
                broker.bootstrap, case, case.records - keys[case.topic][0]
            )
            table.add_row(case.name, f"{found:,.0f}", f"{cpu:.1f}", remark)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
