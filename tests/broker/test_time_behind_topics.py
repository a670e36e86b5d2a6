"""Windows behind a repartition topic on a real Kafka: what they hold is a function of
the source topic alone, for any partitions, key ranges, threads and processes.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from coopstreams import (
    CoopStreams,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
    until_window_closes,
)
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

HOUR_MS = 3_600_000
BEGIN_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
Windows = Counter[tuple[str, int]]


def hours(application: str, source: str, out: str) -> Topology:
    """Count by a new key, in windows of an hour without grace."""
    builder = StreamsBuilder(application)
    payments = builder.stream(source, key=serdes.text, value=serdes.text)
    by_country = payments.group_by(lambda _, value: value[:1], key=serdes.text)
    windows = TimeWindows(hours=1, grace=timedelta(0))
    by_country.windowed_by(windows).count(store="hours").to_stream().to(out)
    return builder.build()


def backlog(
    seed: int, partitions: int, records: int, out_of_order: float
) -> list[list[tuple[str, str, int]]]:
    """Return the records of each partition: 20 hours, some of them up to 90 minutes
    late.
    """
    choose = random.Random(seed)
    each = records // partitions
    found = []
    for _ in range(partitions):
        rows = []
        for i in range(each):
            at = BEGIN_MS + i * 20 * HOUR_MS // each
            if choose.random() < out_of_order:
                at -= choose.randrange(90 * 60_000)
            rows.append((f"k{choose.randrange(1000)}", choose.choice("abcdefgh"), at))
        found.append(rows)
    return found


def expected(partitions: list[list[tuple[str, str, int]]]) -> Windows:
    """Return what each window holds: a record counts if its window was open at the
    time of its own partition.
    """
    counts: Windows = Counter()
    for rows in partitions:
        time = -1
        for _, value, at in rows:
            time = max(time, at)
            start = at // HOUR_MS * HOUR_MS
            if start + HOUR_MS > time:
                counts[value[:1], start] += 1
    return counts


def write(kafka: Kafka, topic: str, rows: list[list[tuple[str, str, int]]]) -> None:
    for partition, some in enumerate(rows):
        records = [(key.encode(), value.encode(), at) for key, value, at in some]
        kafka.write(topic, records, partition=partition)


def told(kafka: Kafka, out: str) -> Windows:
    """Return the last count of each window."""
    counts: Windows = Counter()
    for record in read_topic(kafka.bootstrap, out):
        key = record.key or b""
        start = int.from_bytes(key[-8:], "big")
        counts[key[:-8].decode(), start] = int.from_bytes(record.value or b"", "big")
    return counts


@pytest.mark.ci
@pytest.mark.broker
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_windows_of_a_backlog_are_right(
    kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    source = kafka.topic("payments", 2, **{"retention.ms": "-1"})
    out = kafka.topic("out", 1, **{"retention.ms": "-1"})
    rows = backlog(1, 2, 30_000, 0.05)
    write(kafka, source, rows)
    want = expected(rows)
    topology = hours(kafka.unique("hours"), source, out)
    settings: dict[str, Any] = {
        "ranges_per_partition": 3,
        "num_stream_threads": 2,
        "processing_guarantee": guarantee,
    }
    with ExitStack() as running:
        for number in range(3):
            config = kafka.config(tmp_path, instance=number, **settings)
            running.enter_context(CoopStreams(topology, config))
        eventually(
            lambda: told(kafka, out) == want,
            60,
            lambda: f"{sum(told(kafka, out).values())} of {sum(want.values())} counted",
        )


@pytest.mark.ci
@pytest.mark.broker
def test_open_windows_of_old_data_are_not_deleted_from_their_changelog(
    kafka: Kafka, tmp_path: Path
) -> None:
    """Brokers that compare event times with their own clock delete all of it, and a
    restore would begin without the windows that are open.
    """
    source = kafka.topic("payments", 1, **{"retention.ms": "-1"})
    out = kafka.topic("out", 1, **{"retention.ms": "-1"})
    (rows,) = backlog(1, 1, 3000, 0.0)
    want = expected([rows])
    topology = hours(kafka.unique("hours"), source, out)
    config = kafka.config(tmp_path / "first", ranges_per_partition=2)
    with CoopStreams(topology, config):
        write(kafka, source, [rows[:1000]])
        eventually(
            lambda: told(kafka, out).total() == 1000,
            60,
            lambda: f"{told(kafka, out).total()} of 1000 counted",
        )
    # A topic as Kafka Streams makes changelogs of windows: when the cleaner has deleted
    # its record, it has had its turn with all topics.
    control = kafka.topic(
        "control", 1, cleanup_policy="compact,delete", retention_ms="90000000"
    )
    kafka.write(control, [(b"k", b"v", BEGIN_MS)])
    eventually(lambda: not read_topic(kafka.bootstrap, control), 60, lambda: "cleaned")
    write(kafka, source, [rows[1000:]])
    config = kafka.config(tmp_path / "second", ranges_per_partition=2)
    with CoopStreams(topology, config):
        eventually(
            lambda: told(kafka, out) == want,
            60,
            lambda: f"{(want - told(kafka, out)).total()} records are missing",
        )


@pytest.mark.ci
@pytest.mark.broker
def test_a_partition_whose_records_go_nowhere_holds_nobody(
    kafka: Kafka, tmp_path: Path
) -> None:
    source = kafka.topic("payments", 2, **{"retention.ms": "-1"})
    out = kafka.topic("out", 1)
    builder = StreamsBuilder(kafka.unique("hours"))
    payments = builder.stream(source, key=serdes.text, value=serdes.text)
    taken = payments.filter(lambda _, value: value != "nothing")
    by_country = taken.group_by(lambda _, value: value[:1], key=serdes.text)
    windows = TimeWindows(hours=1, grace=timedelta(0))
    counts = by_country.windowed_by(windows).count(store="hours")
    counts.suppress(until_window_closes(), name="held").to_stream().to(out)
    done = threading.Event()

    def write_on() -> None:
        """Write a record to both partitions again and again, an hour later each time."""
        for hour in itertools.count():
            at = BEGIN_MS + hour * HOUR_MS
            for partition, value in enumerate((b"country", b"nothing")):
                kafka.write(source, [(b"k", value, at)], partition=partition)
            if done.wait(0.1):
                return

    writing = threading.Thread(target=write_on)
    config = kafka.config(tmp_path, repartition_idle_ms=2000, ranges_per_partition=2)
    with CoopStreams(builder.build(), config):
        writing.start()
        try:
            eventually(
                lambda: len(told(kafka, out)) > 3,
                40,
                lambda: "final results while records come",
            )
        finally:
            done.set()
            writing.join()
    assert set(told(kafka, out).values()) == {1}


@pytest.mark.ci
@pytest.mark.broker
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_silent_partitions_do_not_hold_the_windows_of_others(
    kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    """One ends with the marker of a transaction, one has never had a record."""
    source = kafka.topic("payments", 3, **{"retention.ms": "-1"})
    out = kafka.topic("out", 1, **{"retention.ms": "-1"})
    producer = Producer(kafka.settings | {"transactional.id": kafka.unique("source")})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(source, b"a", b"k", 1, timestamp=BEGIN_MS)
    producer.commit_transaction(60)
    kafka.write(
        source,
        [(b"k", b"a", BEGIN_MS + at * HOUR_MS // 2) for at in range(5)],
        partition=0,
    )
    builder = StreamsBuilder(kafka.unique("silent"))
    payments = builder.stream(source, key=serdes.text, value=serdes.text)
    by_country = payments.group_by(lambda _, value: value[:1], key=serdes.text)
    windows = by_country.windowed_by(TimeWindows(hours=1, grace=timedelta(0)))
    final = windows.emit_strategy("on_window_close").count(store="hours")
    final.to_stream().to(out)
    config = kafka.config(
        tmp_path, processing_guarantee=guarantee, repartition_idle_ms=500
    )
    want = {("a", BEGIN_MS): 3, ("a", BEGIN_MS + HOUR_MS): 2}
    with CoopStreams(builder.build(), config):
        eventually(lambda: told(kafka, out) == want, 60, lambda: str(told(kafka, out)))
