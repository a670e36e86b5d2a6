"""The keyed count by hand: the speed of the parts without a framework."""

from __future__ import annotations

import os
import time

from confluent_kafka import TopicPartition
from rocksdict import AccessType, Options, Rdict, WriteBatch

from benchmarks.bare_clients import bare_clients

bootstrap, folder = os.environ["BENCH_BROKERS"], os.environ["BENCH_STATE"]
group, source, sink = (
    os.environ["BENCH_APPLICATION"],
    os.environ["BENCH_SOURCE"],
    os.environ["BENCH_SINK"],
)
consumer, producer = bare_clients(bootstrap, group, source)
options = Options(raw_mode=True)
os.makedirs(folder, exist_ok=True)
database = Rdict(f"{folder}/{group}", options, access_type=AccessType.read_write())
counts: dict[bytes, int] = {}
dirty: set[bytes] = set()
position, due = 0, time.monotonic() + 1.0
while True:
    batch = consumer.consume(10_000, 0.05)
    if batch:
        keys = [key for message in batch if (key := message.key()) is not None]
        for key in keys:
            count = counts.get(key)
            if count is None:
                stored = database.get(key)
                count = 0 if stored is None else int.from_bytes(stored, "big")
            counts[key] = count + 1
        dirty.update(keys)
        position = (batch[-1].offset() or 0) + 1
    if time.monotonic() < due:
        continue
    due = time.monotonic() + 1.0
    if dirty:
        write = WriteBatch(raw_mode=True)
        for key in sorted(dirty):
            value = counts[key].to_bytes(8, "big")
            producer.produce(sink, value, key)
            producer.produce(sink, value, key, 0)
            write.put(key, value)
        producer.poll(0)
        producer.flush()
        database.write(write)
        dirty.clear()
    consumer.commit(offsets=[TopicPartition(source, 0, position)], asynchronous=False)
