"""The program of the law, its input, and the results of a single thread.

    orders ──┬── count ───────────────────────────────> running
             ├── count in windows, some grace ────────> windows        late orders drop
             └── join customers ── by city ── windows ─> cities        through a repartition topic

The fold below is written without any of our code: dictionaries and a merge by stream
time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import accumulate
from typing import Any

import orjson
from confluent_kafka import Producer

from coopstreams import StreamsBuilder, TimeWindows, Topology, serdes
from coopstreams.query.client import QueryClient
from coopstreams.topology.graph.nodes import InternalTopic
from coopstreams.topology.keys import partition_of
from tests.broker.reading import Record, latest
from tests.durations import ms

WINDOW_MS = 1000
GRACE_MS = 500
BEGIN_MS = 1_700_000_000_000
TABLES = ("running", "windows", "cities", "customers")


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one run, and its application."""

    application: str
    orders: str
    customers: str
    running: str
    windows: str
    cities: str


def add(_: Any, sold: Any, total: Any) -> Any:
    """Add a sale to a city's count and amount."""
    return [total[0] + 1, total[1] + sold[1]]


def law_topology(topics: Topics) -> Topology:
    builder = StreamsBuilder(topics.application)
    customers = builder.table(
        topics.customers, key=serdes.text, value=serdes.text, store="customers"
    )
    orders = builder.stream(topics.orders, key=serdes.text, value=serdes.json)
    orders.group_by_key().count(store="running").to_stream().to(topics.running)
    narrow = TimeWindows(milliseconds=WINDOW_MS, grace=ms(GRACE_MS))
    kept = timedelta(days=3650)
    orders.group_by_key().windowed_by(narrow).count(
        store="windows", retention=kept
    ).to_stream().to(topics.windows)
    (
        orders.join(
            customers, lambda order, city: [city, order["amount"]], value=serdes.json
        )
        .select_key(lambda _, sold: sold[0], key=serdes.text)
        .group_by_key()
        # The order of siblings in the repartition topic is random: no record may be
        # late there.
        .windowed_by(TimeWindows(milliseconds=WINDOW_MS, grace=timedelta(days=365)))
        .aggregate(
            lambda: [0, 0], add, value=serdes.json, store="cities", retention=kept
        )
        .to_stream()
        .to(topics.cities)
    )
    return builder.build()


@dataclass(frozen=True, slots=True)
class Input:
    """A record to write."""

    topic: str
    """`orders` or `customers`."""
    partition: int
    key: str | None
    value: bytes | None
    timestamp: int


def law_input(
    seed: int, orders: int, partitions: int, customers: int = 60
) -> list[Input]:
    """Return orders and changes of customers: some late, some without key or value,
    some customers gone again.

    Shape: orders have even timestamps and customers odd ones, so that there is one
    order in which a task may take them.
    """
    generator, now, records = random.Random(seed), BEGIN_MS, list[Input]()

    def customer(key: str, city: str | None, at: int) -> Input:
        return Input(
            "customers",
            partition_of(key.encode(), partitions),
            key,
            None if city is None else city.encode(),
            at | 1,
        )

    keys = [f"customer-{number}" for number in range(customers)]
    records += [customer(key, f"city-{generator.randrange(12)}", now) for key in keys]
    for _ in range(orders):
        now += 2 * generator.randrange(40)
        key = None if generator.random() < 0.02 else generator.choice(keys)
        value = (
            None
            if generator.random() < 0.02
            else orjson.dumps({"amount": generator.randrange(100)})
        )
        late = 2 * generator.randrange(3000) if generator.random() < 0.1 else 0
        partition = (
            generator.randrange(partitions)
            if key is None
            else partition_of(key.encode(), partitions)
        )
        records.append(
            Input("orders", partition, key, value, max(BEGIN_MS, now - late) & ~1)
        )
        if generator.random() < 0.1:
            city = (
                None if generator.random() < 0.3 else f"city-{generator.randrange(12)}"
            )
            records.append(customer(generator.choice(keys), city, now))
    return records


@dataclass(slots=True)
class Tables:
    """The tables that every run must have. Shape: by store; windowed keys are (key,
    start).
    """

    tables: dict[str, dict[Any, Any]] = field(
        default_factory=lambda: {name: {} for name in TABLES}
    )
    running_updates: dict[str, list[int]] = field(default_factory=dict)
    windows_updates: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    cities_updates: Counter[tuple[str, int]] = field(default_factory=Counter)
    late: int = 0


def fold(records: Iterable[Input], partitions: int) -> Tables:
    """Return the tables of a single thread over the input, partition by partition, in
    the order of stream time.
    """
    result, records = Tables(), list(records)
    for partition in range(partitions):
        for _, record, clock in by_stream_time(records, partition):
            _take(result, record, clock)
    return result


def by_stream_time(
    records: Sequence[Input], partition: int
) -> Iterator[tuple[int, Input, int]]:
    """Yield the records of a partition in the order of stream time: offset, record, and
    the time of the windows.
    """
    merged, clock = list[tuple[int, str, int, Input]](), -1
    for topic in ("customers", "orders"):
        mine = [
            record
            for record in records
            if (record.topic, record.partition) == (topic, partition)
        ]
        times = accumulate((record.timestamp for record in mine), max)
        merged += [
            (time, topic, offset, record)
            for offset, (time, record) in enumerate(zip(times, mine, strict=True))
        ]
    for _, topic, offset, record in sorted(merged, key=lambda each: each[:3]):
        if (
            topic == "orders" and record.key is not None
        ):  # without a key, a record does not reach the windows
            clock = max(clock, record.timestamp)
        yield offset, record, clock


def _take(result: Tables, record: Input, clock: int) -> None:
    customers, key = result.tables["customers"], record.key
    if record.topic == "customers":
        if record.value is None:
            customers.pop(key, None)
        else:
            customers[key] = record.value.decode()
        return
    if key is None:
        return
    start = record.timestamp - record.timestamp % WINDOW_MS
    if start + WINDOW_MS + GRACE_MS <= clock:
        result.late += 1
    else:
        _count(result.tables["windows"], result.windows_updates, (key, start))
    if record.value is None:
        return
    _count(result.tables["running"], result.running_updates, key)
    if key in customers:
        place = (customers[key], start)
        count, total = result.tables["cities"].get(place, (0, 0))
        result.tables["cities"][place] = [
            count + 1,
            total + orjson.loads(record.value)["amount"],
        ]
        result.cities_updates[place] += 1


def _count(table: dict[Any, int], updates: dict[Any, list[int]], key: Any) -> None:
    table[key] = table.get(key, 0) + 1
    updates.setdefault(key, []).append(table[key])


def write(bootstrap: str, topics: Topics, records: Iterable[Input]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for record in records:
        topic = topics.orders if record.topic == "orders" else topics.customers
        producer.produce(
            topic,
            record.value,
            record.key,
            record.partition,
            timestamp=record.timestamp,
        )
    assert producer.flush(30) == 0


def tables_by_query(client: QueryClient) -> dict[str, dict[Any, Any]]:
    """Return all tables as an instance answers over HTTP."""
    return {
        name: {
            entry.key
            if entry.window is None
            else (entry.key, entry.window[0]): entry.value
            for entry in client.range(name, page=5000)
        }
        for name in TABLES
    }


def tables_by_changelog(
    changelogs: Mapping[str, list[Record]],
) -> dict[str, dict[Any, Any]]:
    """Return all tables by their changelogs."""
    return {
        name: dict(decoded(name, latest(records)))
        for name, records in changelogs.items()
    }


def changelog_of(topology: Topology, store: str) -> InternalTopic:
    return next(
        topic
        for topic in topology.internal_topics
        if topic.kind == "changelog" and topic.name.endswith(f"-{store}-changelog")
    )


def decoded(name: str, rows: Mapping[bytes, bytes]) -> Iterator[tuple[Any, Any]]:
    """Yield the keys and values of a table; those of `Shop`, too."""
    for key, value in rows.items():
        match name:
            case "running":
                yield key.decode(), serdes.int64.decode(value)
            case "customers":
                yield key.decode(), value.decode()
            case "windows":
                yield (
                    (key[:-12].decode(), int.from_bytes(key[-12:-4], "big")),
                    serdes.int64.decode(value),
                )
            case "cities":
                yield (
                    (key[:-12].decode(), int.from_bytes(key[-12:-4], "big")),
                    orjson.loads(value),
                )
            case _:
                yield key.decode(), orjson.loads(value)
