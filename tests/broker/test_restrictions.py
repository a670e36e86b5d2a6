"""The cluster's policy on a real Kafka: applications that share a partition give it up for whole partitions while they
run, and share it again, and each record counts once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from coopstreams import CoopStreams, StreamsBuilder, serdes
from coopstreams.commit.policy import PolicyTopic
from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.topology.keys import WHOLE, KeyRange
from tests.broker.counting import PATIENT, Counting, await_table, instance_of
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

KEYS = [f"key-{number}" for number in range(50)]


def ranges(*apps: CoopStreams) -> list[KeyRange]:
    return sorted(task.key_range for app in apps for task in instance_of(app).tasks)


def codes(app: CoopStreams) -> list[str]:
    status = app.status()
    return [] if status is None else [reason["code"] for reason in status["reasons"]]


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", pytest.param("at_least_once", marks=pytest.mark.slow)])
def test_a_shared_partition_becomes_whole_while_it_is_forbidden_and_each_record_counts_once(
    kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    counting = Counting.make(kafka)
    log = KafkaLog(kafka.settings)
    policy, written = PolicyTopic(log), Counter[str]()
    first, second = (
        counting.app(tmp_path / str(number), number, processing_guarantee=guarantee) for number in range(2)
    )
    with first, second:
        told = f"{ranges(first, second)}; {first.status()}; {second.status()}"
        eventually(lambda: ranges(first, second) == KeyRange.split(2), 120, lambda: told)
        written += counting.write(KEYS * 20)

        policy.set("accept.range.fetch", False, counting.source)
        eventually(lambda: ranges(first, second) == [WHOLE], 120, lambda: told)
        written += counting.write(KEYS * 20)
        await_table(first, written)
        both = (first, second)
        eventually(lambda: [codes(app) for app in both] == [["not-shared"]] * 2, 60, lambda: f"{first.status()}")
        for app in both:
            status = app.status()
            assert status is not None
            assert f"{counting.source}: accept.range.fetch=false" in status["reasons"][0]["message"]
            assert (status["live"], status["ready"]) == (True, True), "an idle process is well: it was told to be idle"

        policy.set("accept.range.fetch", None, counting.source)
        eventually(lambda: ranges(first, second) == KeyRange.split(2), 120, lambda: told)
        written += counting.write(KEYS * 20)
        await_table(first, written)
        assert not codes(first)
    policy.close()
    log.close()


@pytest.mark.slow
def test_without_individual_commits_partitions_are_whole_and_no_record_passes_one_that_waits(
    broker_of_own: Callable[..., KafkaBroker], tmp_path: Path
) -> None:
    broker = broker_of_own()
    kafka = Kafka(broker.bootstrap, AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2}))
    source, sink, let_go = kafka.topic("in"), kafka.topic("out"), threading.Event()

    async def asked(value: bytes) -> bytes:
        while value.startswith(b"stuck") and not let_go.is_set():
            await asyncio.sleep(0.001)
        return value

    def write(*values: str) -> None:
        for number, value in enumerate(values):
            producer.produce(source, value, f"key-{number}")
        assert producer.flush(60) == 0

    def done() -> list[bytes | None]:
        return [record.value for record in read_topic(kafka.bootstrap, sink)]

    builder = StreamsBuilder(kafka.unique("asks"))
    builder.stream(source, key=serdes.raw, value=serdes.raw).map_values_async(asked, value=serdes.raw).to(sink)
    settings = {"bootstrap.servers": kafka.bootstrap, "commit.interval.ms": 100} | PATIENT
    apps = [
        CoopStreams(builder.build(), settings | {"state.dir": str(tmp_path / str(n)), "instance": n}) for n in range(2)
    ]
    producer, log = Producer({"bootstrap.servers": kafka.bootstrap}), KafkaLog(kafka.settings)
    policy = PolicyTopic(log)
    with apps[0], apps[1]:
        eventually(lambda: ranges(*apps) == KeyRange.split(2), 120, lambda: f"{ranges(*apps)}")
        policy.set("accept.individual.commit", False)
        eventually(lambda: ranges(*apps) == [WHOLE], 120, lambda: f"{ranges(*apps)}")
        write("before", "stuck", "after", "more")
        (owner,) = (app for app in apps if ranges(app))
        eventually(lambda: done() == [b"before"], 60, lambda: f"{done()}")
        eventually(lambda: in_flight(owner) == 1, 60, lambda: f"{owner.status()}")
        assert done() == [b"before"], "the others have their answers, and wait for their turn"
        let_go.set()
        eventually(lambda: done() == [b"before", b"stuck", b"after", b"more"], 60, lambda: f"{done()}")
        policy.set("accept.individual.commit", None)
        eventually(lambda: ranges(*apps) == KeyRange.split(2), 120, lambda: f"{ranges(*apps)}")
    policy.close()
    log.close()


def in_flight(app: CoopStreams) -> int:
    """Return how many calls of an application have not ended."""
    return sum(len(task.calls or ()) for task in instance_of(app).tasks.values())
