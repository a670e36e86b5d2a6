"""A table that has no changelog but the topic it is read from: processes are killed, ranges are cut anew, and it is the
fold of the topic.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from confluent_kafka import Producer

from coopstreams import CoopStreams, StreamsBuilder, serdes
from coopstreams.query.client import QueryClient
from coopstreams.topology.errors import ConfigError, QueryError
from tests.broker.counting import failure_of
from tests.broker.processes import Workers
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

REUSE = "reuse.ktable.source.topics"
GROUPS = ("red", "green", "blue")
NAMES = [f"person-{number}" for number in range(400)]


class Feed:
    """Writes rows, deletions, and bytes that are no rows; knows the table that they come to."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self._topic, self._random = topic, random.Random(7)
        self._producer = Producer(
            {"bootstrap.servers": kafka.bootstrap, "linger.ms": 5, "partitioner": "murmur2_random"}
        )
        self.table: dict[str, Any] = {}

    def write(self, records: int) -> None:
        for _ in range(records):
            name, chance = self._random.choice(NAMES), self._random.random()
            if chance < 0.005:
                self._producer.produce(self._topic, b"{ no JSON", name)  # dropped: the row stays what it was
            elif chance < 0.2:
                self._producer.produce(self._topic, self._random.choice([None, b"null"]), name)
                self.table.pop(name, None)
            else:
                row = {"group": self._random.choice(GROUPS), "amount": self._random.randrange(100)}
                self._producer.produce(self._topic, orjson.dumps(row, option=orjson.OPT_INDENT_2), name)
                self.table[name] = row
        assert self._producer.flush(30) == 0

    @property
    def sums(self) -> Counter[str]:
        return sum((Counter({row["group"]: row["amount"]}) for row in self.table.values()), Counter[str]())


def table_of(group: Workers, store: str) -> dict[str, Any]:
    """Return a store as some worker answers; empty while something moves."""
    url = next((url for number in group.running if (url := group.url(number)) is not None), None)
    try:
        with QueryClient(url or "http://127.0.0.1:1", deadline_s=10) as client:
            return {entry.key: entry.value for entry in client.range(store, page=5000)}
    except QueryError:
        return {}


def restored(group: Workers, number: int, store: str) -> float:
    """Return how many records a worker has read to restore a store."""
    url = group.url(number)
    lines = httpx.get(f"{url}/metrics", trust_env=False, timeout=60).text.splitlines() if url is not None else []
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("coopstreams_restored_records_total{") and f'"{store}"' in line
    )


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_killed_processes_leave_the_fold_of_the_topic_to_those_that_take_over(
    kafka: Kafka, workers: Callable[..., Workers]
) -> None:
    """One partition in four ranges, in two, in one, in six; each newcomer begins with an empty folder."""
    application = kafka.unique("people")
    source = kafka.topic("people", cleanup_policy="compact")
    sink = kafka.topic("sums")
    feed = Feed(kafka, source)
    environment = {"TEST_APPLICATION": application, "TEST_INPUT": source, "TEST_OUTPUT": sink}
    group = workers(
        "people_app.py",
        kafka.bootstrap,
        environment,
        processing_guarantee="exactly_once_v2",
        topology_optimization=REUSE,
        num_stream_threads=2,
        session_timeout_ms=4000,
        heartbeat_interval_ms=300,
        statestore_cache_max_bytes=0,
        deserialization_exception_handler="continue",
    )

    def complete() -> bool:
        return table_of(group, "people") == feed.table

    def await_table() -> None:
        eventually(complete, 120, lambda: f"{len(table_of(group, 'people'))} of {len(feed.table)} rows\n{group.logs()}")

    feed.write(3000)
    group.start(0)
    group.start(1)
    await_table()
    feed.write(4000)
    group.kill(0)  # in the middle of it, most likely
    await_table()
    feed.write(3000)
    group.start(2)
    group.kill(1)
    await_table()
    for number in (3, 4):
        feed.write(1000)
        group.start(number)
    for number in (2, 3, 4):
        eventually(lambda number=number: group.url(number) is not None, 120, group.logs)  # type: ignore[misc]
    # Whoever came last began with an empty folder; what others restored is forgotten with the tasks that were cut anew
    # since.
    eventually(
        lambda: any(restored(group, number, "people") > 0 for number in (2, 3, 4)),
        120,
        lambda: f"nothing was restored\n{group.logs()}",
    )
    feed.write(500)
    await_table()
    # a row that was restored beyond its task's position would be taken from its group twice
    eventually(
        lambda: +Counter(table_of(group, "sums")) == feed.sums,
        120,
        lambda: f"{table_of(group, 'sums')} {feed.sums}\n{group.logs()}",
    )
    assert set(group.stop().values()) == {0}, group.logs()
    topics = [topic for topic in kafka.topics() if topic.startswith(application)]
    assert sorted(topics) == [
        f"{application}-sums-changelog",
        f"{application}-sums-repartition",
        f"{application}-topology",
    ]
    assert read_topic(kafka.bootstrap, sink)


def test_a_topic_that_forgets_is_worth_a_warning(
    kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = kafka.topic("kept", cleanup_policy="compact")
    deleted = kafka.topic("deleted", cleanup_policy="delete", retention_ms="3600000")
    builder = StreamsBuilder(kafka.unique("forgets"))
    for topic in (kept, deleted):
        builder.table(topic, key=serdes.text, value=serdes.text, store=f"of-{topic}")
    settings = kafka.config(tmp_path, topology_optimization="all")
    with caplog.at_level(logging.WARNING), CoopStreams(builder.build(), settings):
        pass
    (warning,) = [record.getMessage() for record in caplog.records if "topology.optimization" in record.getMessage()]
    assert warning.startswith(
        f'the table "of-{deleted}" is restored from its topic "{deleted}" (topology.optimization), whose '
        "cleanup.policy is delete"
    )


def test_a_table_that_is_restored_from_the_beginning_must_be_read_from_the_beginning(
    kafka: Kafka, tmp_path: Path
) -> None:
    builder, topic = StreamsBuilder(kafka.unique("latest")), kafka.topic("people", cleanup_policy="compact")
    builder.table(topic, key=serdes.text, value=serdes.text, store="people")
    settings = kafka.config(tmp_path, topology_optimization="all", auto_offset_reset="latest")
    error = failure_of(CoopStreams(builder.build(), settings))
    assert isinstance(error, ConfigError)
    assert f'the table "people" is restored from its topic "{topic}"' in str(error)
