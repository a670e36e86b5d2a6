"""A steady load on a topic, and a consumer that follows another: how long after a
record its result is there. One process does both, so they have one clock.

Each record's key and value are the key by which the program counts, so records of one
key stay in order on their way. Of each partition the keys are its own.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer
from confluent_kafka import TopicPartition as Partition

HOUR_MS = 3_600_000
BEGIN_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
KEYS = 50
"""Keys of a partition."""


class Sent(NamedTuple):
    """When a record was produced, and its timestamp. Units: `at` in seconds of
    `time.perf_counter`.
    """

    at: float
    timestamp: int


class Load:
    """Writes records while it is entered, in a thread of its own.

    `rate`: of all partitions together, a second; `speed`: seconds of event time a second.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, rate: int, speed: float = 1.0
    ) -> None:
        self.partitions = list(range(partitions))
        """To which partitions it writes, by turns. May be replaced by another list."""
        self.sent: dict[str, list[Sent]] = defaultdict(list)
        """What was written, by the record's key."""
        self._topic = topic
        self._rate = rate
        self._speed = speed
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Write no more."""
        self._ended.set()
        self._thread.join()

    def expected(self) -> Counter[tuple[str, int]]:
        """Return how many records each window should hold: none is out of order."""
        return Counter(
            (key, one.timestamp // HOUR_MS * HOUR_MS)
            for key, sent in self.sent.items()
            for one in list(sent)
        )

    def closed_at(self, partitions: list[int]) -> dict[int, float]:
        """Return when each window was closed by the source: when the last of these
        partitions got its first record that is behind the window's end. Shape: by the
        window's start.
        """
        closed: dict[int, float] = {}
        firsts = [self._first_of_hours(partition) for partition in partitions]
        for hour in set.intersection(*map(set, firsts)):
            if hour > BEGIN_MS:
                closed[hour - HOUR_MS] = max(first[hour] for first in firsts)
        return closed

    def _first_of_hours(self, partition: int) -> dict[int, float]:
        """Return when the first record of each hour was produced."""
        first: dict[int, float] = {}
        for key, sent in list(self.sent.items()):
            if not key.startswith(f"{partition}-"):
                continue
            for at, timestamp in list(sent):
                hour = timestamp // HOUR_MS * HOUR_MS
                first[hour] = min(at, first.get(hour, at))
        return first

    def _write(self) -> None:
        began = time.perf_counter()
        written: Counter[int] = Counter()
        for number in itertools.count():
            due = began + number / self._rate
            while (now := time.perf_counter()) < due:
                self._producer.poll(0)
                time.sleep(min(0.001, due - now))
            if self._ended.is_set():
                break
            partition = self.partitions[number % len(self.partitions)]
            key = f"{partition}-{written[partition] % KEYS}"
            written[partition] += 1
            timestamp = BEGIN_MS + int((due - began) * 1000 * self._speed)
            self.sent[key].append(Sent(time.perf_counter(), timestamp))
            self._producer.produce(
                self._topic, key, key, partition=partition, timestamp=timestamp
            )
        self._producer.flush()


class Result(NamedTuple):
    """A count of a window, and when it was read."""

    key: str
    start: int
    records: int
    at: float


class Tail:
    """Follows topics from their beginnings, and hands out each committed record once."""

    def __init__(self, bootstrap: str, *topics: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench-tail",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
                "isolation.level": "read_committed",
            }
        )
        self._consumer.assign(
            [
                Partition(topic, partition, OFFSET_BEGINNING)
                for topic in topics
                for partition in self._consumer.list_topics(topic, 60)
                .topics[topic]
                .partitions
            ]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def messages(self, wait_s: float = 0.01) -> list[Message]:
        """Return the records that have come, at most 10,000."""
        found = self._consumer.consume(10_000, wait_s)
        for message in found:
            assert message.error() is None, message.error()
        return found

    def results(self, wait_s: float = 0.01) -> Iterator[Result]:
        """Yield the counts of windows that have come."""
        for message in self.messages(wait_s):
            key = message.key()
            value = message.value()
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            start = int.from_bytes(key[-8:], "big")
            count = int.from_bytes(value, "big")
            yield Result(key[:-8].decode(), start, count, time.perf_counter())
