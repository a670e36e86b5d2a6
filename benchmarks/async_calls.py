"""Calls that take 5 ms, of one partition, in one process: `python -m benchmarks.async_calls [--records N]`.

Each record is mapped by a coroutine that sleeps, on its way from one topic to another. One real broker on this machine;
machines differ, and are noisy.

    uniform     10,000 keys, each as often as the others
    zipf        10,000 keys, the n-th 1/n as often as the first: the first has a tenth of the records
    partition   order="partition": one call at a time, as a program would make them without this
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from itertools import accumulate
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from coopstreams import CoopStreams, StreamsBuilder, Topology, serdes
from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.topology.calls import CallOrder
from coopstreams.topology.columns import TopicPartition

KEYS = 10_000
CALL_S = 0.005


async def answer(value: bytes) -> bytes:
    """Take five milliseconds, as a service on the network does."""
    await asyncio.sleep(CALL_S)
    return value


def fill(bootstrap: str, topic: str, records: int, *, zipf: bool) -> None:
    """Write the input, to one partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, 1, 1), NewTopic(f"{topic}-out", 1, 1)]).values():
        future.result(30)
    producer, chance = Producer({"bootstrap.servers": bootstrap}), random.Random(1)
    shares = list(accumulate(1 / n if zipf else 1 for n in range(1, KEYS + 1)))
    for number, key in enumerate(chance.choices(range(KEYS), cum_weights=shares, k=records)):
        producer.produce(topic, b"%d" % number, b"key-%d" % key)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def program(topic: str, order: CallOrder, most: int) -> Topology:
    """Return the program: one call a record, and no state."""
    builder = StreamsBuilder(f"{topic}-{order}")
    builder.stream(topic, key=serdes.raw, value=serdes.raw).map_values_async(
        answer, value=serdes.raw, order=order, max_in_flight=most
    ).to(f"{topic}-out")
    return builder.build()


def rate(bootstrap: str, topic: str, records: int, order: CallOrder, most: int) -> tuple[float, float]:
    """Return records a second, from the first result to the last, and CPU seconds a million records."""
    out, log = TopicPartition(f"{topic}-out", 0), KafkaLog({"bootstrap.servers": bootstrap})
    before = log.end_offset(out)
    settings = {
        "bootstrap.servers": bootstrap,
        "state.dir": tempfile.mkdtemp(),
        "commit.interval.ms": 1000,
        "auto.offset.reset": "earliest",
    }
    with CoopStreams(program(topic, order, most), settings):
        while log.end_offset(out) == before:
            time.sleep(0.005)
        start, cpu, first = time.perf_counter(), time.process_time(), log.end_offset(out)
        while (now := log.end_offset(out)) < before + records:
            time.sleep(0.02)
        seconds, used = time.perf_counter() - start, time.process_time() - cpu
    log.close()
    return (now - first) / seconds, used / (now - first) * 1e6


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--in-flight", type=int, default=1000)
    given = parser.parse_args()
    table = Table("keys", "order", "records/s", "CPU s per million")
    with tempfile.TemporaryDirectory() as folder, KafkaBroker(Path(folder)) as broker:
        for topic, order, records in (
            ("uniform", "key", given.records),
            ("uniform", "none", given.records),
            ("zipf", "key", given.records // 4),
            ("few", "partition", 1000),
        ):
            if order != "none":
                fill(broker.bootstrap, topic, records, zipf=topic == "zipf")
            found, cpu = rate(broker.bootstrap, topic, records, order, given.in_flight)  # type: ignore[arg-type]
            table.add_row(topic, order, f"{found:,.0f}", f"{cpu:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
