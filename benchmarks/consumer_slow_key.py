"""The effect of a slow key on the others: `python -m benchmarks.consumer_slow_key
[--records N] [--slow-ms MS]`.

One partition, fifty keys, one of which takes long for each of its records: work that
waits, as for another service. Both ways keep the order of each key. Both begin when
their first record comes. One real broker on this machine; machines differ, and are
noisy.

    in order        an ordinary consumer, record after record: positions can only be committed in order
    cooperative     a coroutine a key beside each other, each record committed when it is done

    others          seconds until every record of the other keys is done and committed
    all             the same, of all keys
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from confluent_kafka import Consumer, Message
from rich.console import Console
from rich.table import Table

from benchmarks.running import make_topics, write
from coopstreams.consumer import ConsumerRecord, CooperativeConsumer
from coopstreams.dev.broker import KafkaBroker

KEYS = 50
SLOW = b"key-0"
FAST_MS = 0.2


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Write the input, with the same number of records for each key."""
    make_topics(bootstrap, topic)
    write(
        bootstrap,
        topic,
        ((b"key-%d" % (number % KEYS), b"%d" % number) for number in range(records)),
    )


def in_order(
    bootstrap: str, topic: str, records: int, slow_s: float
) -> tuple[float, float]:
    """Process record by record, commit after each batch."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "in-order",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    done, start, others = 0, 0.0, 0.0
    while done < records:
        messages: list[Message] = consumer.consume(100, 1.0)
        start = start or (time.perf_counter() if messages else 0.0)
        for message in messages:
            time.sleep(slow_s if message.key() == SLOW else FAST_MS / 1000)
        if messages:
            consumer.commit(asynchronous=False)
            done += len(messages)
            if any(message.key() != SLOW for message in messages):
                others = time.perf_counter() - start
    consumer.close()
    return others, time.perf_counter() - start


async def cooperative(
    bootstrap: str, topic: str, records: int, slow_s: float
) -> tuple[float, float]:
    """Process the keys concurrently, commit done records."""
    locks: dict[bytes | None, asyncio.Lock] = defaultdict(asyncio.Lock)
    left = {"others": records - records // KEYS, "slow": records // KEYS}
    with CooperativeConsumer(
        {"bootstrap.servers": bootstrap, "group.id": "cooperative"}
    ) as consumer:
        consumer.subscribe([topic])

        async def work(record: ConsumerRecord) -> None:
            async with locks[record.key]:
                await asyncio.sleep(slow_s if record.key == SLOW else FAST_MS / 1000)
            consumer.done(record)
            left["slow" if record.key == SLOW else "others"] -= 1

        start, others = 0.0, 0.0
        async with asyncio.TaskGroup() as group:
            while left["slow"] or left["others"]:
                batch = await asyncio.to_thread(consumer.consume, 100, 0.02)
                start = start or (time.perf_counter() if batch else 0.0)
                for record in batch:
                    group.create_task(work(record))
                committed = left["others"] == 0
                await asyncio.to_thread(consumer.commit)
                if committed and not others:
                    others = time.perf_counter() - start
        return others, time.perf_counter() - start


def main() -> None:
    """Measure each way once and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=5000)
    parser.add_argument("--slow-ms", type=float, default=50.0)
    arguments = parser.parse_args()
    records, slow_s = arguments.records // KEYS * KEYS, arguments.slow_ms / 1000
    console = Console()
    table = Table(
        title=f"{records} records; those of one key in {KEYS} take {arguments.slow_ms:g} ms, the others {FAST_MS:g} ms"
    )
    for column in ("", "others, s", "all, s"):
        table.add_column(column, justify="right" if column else "left")
    with (
        tempfile.TemporaryDirectory() as name,
        KafkaBroker(Path(name) / "kafka") as broker,
    ):
        fill(broker.bootstrap, "calls", records)
        for way, (others, everything) in {
            "in order": in_order(broker.bootstrap, "calls", records, slow_s),
            "cooperative": asyncio.run(
                cooperative(broker.bootstrap, "calls", records, slow_s)
            ),
        }.items():
            table.add_row(way, f"{others:.1f}", f"{everything:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
