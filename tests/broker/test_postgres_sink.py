"""Exactly-once into PostgreSQL while processes are killed, paused and resumed, and the
database restarts.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer

from tests.broker.processes import Workers
from tests.broker.waiting import eventually
from tests.conftest import Kafka
from tests.sinks.server import PostgresServer, programs

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.skipif(programs() is None, reason="PostgreSQL is not on this machine"),
]

TABLES = (
    "CREATE TABLE updates (at serial, name text, count bigint); "
    "CREATE TABLE totals (name text PRIMARY KEY, count bigint)"
)


class Run:
    """The application with its input and its database."""

    def __init__(
        self, kafka: Kafka, server: PostgresServer, made: Callable[..., Workers]
    ) -> None:
        self.kafka, self.server = kafka, server
        self.source = kafka.topic("in", 4)
        self.written: Counter[str] = Counter()
        server.run(TABLES)
        environment = {
            "TEST_APPLICATION": kafka.unique("sink"),
            "TEST_INPUT": self.source,
            "TEST_DSN": f"{server.dsn} password=secret-word",
        }
        self.workers = made(
            "sink_app.py",
            kafka.bootstrap,
            environment,
            processing_guarantee="exactly_once_v2",
            statestore_cache_max_bytes=0,
            session_timeout_ms=6000,
            num_stream_threads=2,
        )

    def write(self, records: int, seconds: float = 0.0) -> None:
        """Write records of 200 keys, spread over this many seconds."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "linger.ms": 5})
        for number in range(records):
            name = f"key-{random.randrange(200)}"
            producer.produce(self.source, bytes(8), name)
            self.written[name] += 1
            if seconds and number % 500 == 499:
                producer.poll(seconds * 500 / records)
                time.sleep(seconds * 500 / records)
        assert producer.flush(60) == 0

    def rows(self) -> int:
        return int(self.server.run("SELECT count(*) FROM updates")[0][0])

    def await_rows(self) -> None:
        eventually(
            lambda: self.rows() >= self.written.total() == self.summed(),
            240,
            self.workers.logs,
        )

    def summed(self) -> int:
        return int(self.server.run("SELECT coalesce(sum(count), 0) FROM totals")[0][0])

    def check(self) -> None:
        """Check that each update is there once, in the order of its key, and that each
        total is the last one.
        """
        found: dict[str, list[int]] = {}
        for name, count in self.server.run(
            "SELECT name, count FROM updates ORDER BY at"
        ):
            found.setdefault(name, []).append(count)
        lost = {
            name: n
            for name, n in self.written.items()
            if set(range(1, n + 1)) - set(found.get(name, []))
        }
        doubled = {
            name: counts
            for name, counts in found.items()
            if len(counts) != len(set(counts))
        }
        assert (lost, doubled) == ({}, {})
        assert all(counts == sorted(counts) for counts in found.values())
        assert dict(self.server.run("SELECT name, count FROM totals")) == self.written
        assert self.rows() == self.written.total()
        assert "secret-word" not in self.workers.logs()


@pytest.fixture
def run(kafka: Kafka, tmp_path: Path, workers: Callable[..., Workers]) -> Iterator[Run]:
    server = PostgresServer(tmp_path)
    yield Run(kafka, server, workers)
    server.close()


def test_100_000_records_and_10_kills_lose_and_double_nothing(run: Run) -> None:
    chance = random.Random(14)
    for number in range(3):
        run.workers.start(number)
    writing = threading.Thread(target=run.write, args=(100_000, 60.0))
    writing.start()
    eventually(lambda: run.rows() > 0, 120, run.workers.logs)
    for _ in range(10):
        time.sleep(chance.uniform(2, 6))
        number = chance.randrange(3)
        run.workers.kill(number)
        time.sleep(chance.uniform(0, 1))
        run.workers.start(number)
    writing.join()
    run.await_rows()
    run.check()
    assert run.workers.ended() == {}


def test_a_process_that_was_stopped_wakes_and_changes_nothing(run: Run) -> None:
    for number in range(2):
        run.workers.start(number)
    run.write(5000)
    eventually(lambda: run.rows() > 0, 120, run.workers.logs)
    for number in range(2):
        run.workers.freeze(number)
        run.write(5000)
        time.sleep(12)  # longer than the session time-out
        run.workers.thaw(number)
        run.await_rows()
    run.check()


def test_a_database_that_goes_away_is_waited_for_and_named(run: Run) -> None:
    run.workers.start(0)
    run.write(2000)
    run.await_rows()
    run.server.stop()
    run.write(2000)

    def reason() -> str:
        try:
            status = httpx.get(f"{run.workers.url(0)}/v1/status", timeout=10).text
        except httpx.HTTPError as error:
            return str(error)
        return status

    eventually(lambda: "PostgreSQL at 127.0.0.1" in reason(), 60, reason)
    said = reason()
    assert (
        'sink \\"updates\\": PostgreSQL at 127.0.0.1' in said
        or 'sink \\"totals\\": PostgreSQL at' in said
    )
    assert "secret-word" not in said
    run.server.start()
    run.await_rows()
    run.check()
    assert run.workers.ended() == {}
