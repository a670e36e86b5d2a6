"""A function that takes longer than a transaction may: named in an error, instead of
repeated for ever.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from coopstreams import CoopStreams, StreamsBuilder, serdes
from coopstreams.dev.broker import KafkaBroker
from coopstreams.tasks.queues import STEP_S
from coopstreams.topology.errors import ProcessingError
from tests.broker.counting import failure_of
from tests.broker.reading import read_topic
from tests.conftest import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

TRANSACTION_MS = 2000


@pytest.fixture
def kafka_that_ends_transactions(broker_of_own: Callable[..., KafkaBroker]) -> Kafka:
    broker = broker_of_own(
        transaction_abort_timed_out_transaction_cleanup_interval_ms="200"
    )
    return Kafka(
        broker.bootstrap,
        AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2}),
    )


def slow(
    kafka: Kafka, folder: Path, seconds: Callable[[bytes], float]
) -> tuple[CoopStreams, str, str]:
    """Return an application that sleeps for each value, its source and its sink."""
    source, sink = kafka.topic("in"), kafka.topic("out")
    builder = StreamsBuilder(kafka.unique("slow"))
    builder.stream(source, key=serdes.raw, value=serdes.raw).peek(
        lambda _, value: time.sleep(seconds(value))
    ).to(sink)
    settings = kafka.config(
        folder,
        processing_guarantee="exactly_once_v2",
        transaction_timeout_ms=TRANSACTION_MS,
        commit_interval_ms=TRANSACTION_MS // 2,
    )
    return CoopStreams(builder.build(), settings), source, sink


def write(kafka: Kafka, topic: str, values: list[bytes]) -> None:
    kafka.write(topic, ((b"k", value) for value in values))


def test_a_call_that_always_outlasts_its_transaction_is_named_with_the_setting(
    kafka_that_ends_transactions: Kafka, tmp_path: Path
) -> None:
    kafka = kafka_that_ends_transactions
    # Even a quick call outlasts a step, so that each step is one record: the message
    # names one record.
    app, source, sink = slow(
        kafka, tmp_path, {b"slow": 6.0, b"quick": 1.2 * STEP_S}.__getitem__
    )
    # The slow call's transaction has quick results in it, unless a commit was just due:
    # one such call suffices.
    write(kafka, source, [*[b"quick"] * 10, b"slow"] * 6)
    failure = failure_of(app)
    assert isinstance(failure, ProcessingError)
    said = str(failure)
    assert re.search(
        rf'task 0_0\S+: the record at offset \d+ of "{source}" partition 0 takes 6 s, longer than '
        r"transaction.timeout.ms \(2 s\)",
        said,
    ), said
    assert "Raise transaction.timeout.ms" in said
    assert len(read_topic(kafka.bootstrap, sink)) < 6 * 11
