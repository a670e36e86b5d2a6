"""Records that a producer has written without a timestamp, or dated before 1970."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from coopstreams.log.kafka.native import SETTING
from coopstreams.topology.errors import ProcessingError
from tests.broker.counting import Counting, await_table, failure_of, metric
from tests.broker.waiting import eventually
from tests.conftest import Kafka, needs_native

DROPPED = "coopstreams_dropped_records_total"

pytestmark = pytest.mark.broker


@pytest.mark.ci
@pytest.mark.parametrize("native", ["0", pytest.param("1", marks=needs_native)])
def test_they_end_the_application_or_are_dropped_and_counted(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: str
) -> None:
    monkeypatch.setenv(SETTING, native)
    counting = Counting.make(kafka)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for timestamp in (1000, -1, 2000, -86_400_000):
        producer.produce(counting.source, b"x", b"a", 0, timestamp=timestamp)
    assert producer.flush(60) == 0

    error = failure_of(counting.app(tmp_path))
    assert isinstance(error, ProcessingError)
    place = f'"{counting.source}" partition 0 offset 1 has no valid timestamp'
    assert place in str(error)

    skip = "LogAndSkipOnInvalidTimestamp"
    with counting.app(tmp_path, default_timestamp_extractor=skip) as app:
        await_table(app, {"a": 2})
        eventually(lambda: metric(app, DROPPED) == 2, 10, lambda: "two are counted")
