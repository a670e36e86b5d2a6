"""`REPLACE_THREAD`: a function fails, its stream thread dies, another takes its place;
every record counts once.

`tests/tasks/test_replacing.py` has the back-off after repeated deaths, and the other
guarantee.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from coopstreams import (
    CoopStreams,
    StreamsBuilder,
    StreamsState,
    StreamThreadExceptionResponse,
    serdes,
)
from coopstreams.topology.errors import ProcessingError
from tests.broker.chaos import examine
from tests.broker.counting import await_table, metric
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

PARTITIONS, RECORDS = 2, 1000
KEYS = [f"key-{number}" for number in range(50)]


class Failing:
    """An application that counts keys, and fails on the values of `refuses`."""

    def __init__(self, kafka: Kafka, refuses: Callable[[bytes], bool]) -> None:
        self.kafka, self.source, self.sink = (
            kafka,
            kafka.topic("in", PARTITIONS),
            kafka.topic("out", PARTITIONS),
        )

        def check(_: str, value: bytes) -> bool:
            if refuses(value):
                raise ZeroDivisionError(value)
            return True

        builder = StreamsBuilder(kafka.unique("failing"))
        stream = builder.stream(self.source, key=serdes.text, value=serdes.raw)
        stream.filter(check).group_by_key().count(store="counts").to_stream().to(
            self.sink
        )
        self.topology = builder.build()

    def app(
        self,
        folder: Path,
        on_error: Callable[[BaseException], StreamThreadExceptionResponse],
    ) -> CoopStreams:
        settings: dict[str, Any] = self.kafka.config(folder, num_stream_threads=2)
        settings |= {
            "processing.guarantee": "exactly_once_v2",
            "statestore.cache.max.bytes": 0,
        }
        return CoopStreams(self.topology, settings, on_error=on_error)

    def write(self) -> Counter[str]:
        """Write numbered records to the partitions in turn; return the number of writes
        of each key.
        """
        producer = Producer(
            {"bootstrap.servers": self.kafka.bootstrap, "enable.idempotence": True}
        )
        written = Counter[str]()
        for number in range(RECORDS):
            key = KEYS[number % len(KEYS)]
            producer.produce(
                self.source, b"%d" % number, key, partition=number % PARTITIONS
            )
            written[key] += 1
        assert producer.flush(30) == 0
        return written


@pytest.mark.ci
def test_a_function_that_fails_at_first_sight_loses_and_doubles_nothing(
    kafka: Kafka, tmp_path: Path
) -> None:
    bad, errors = {b"100", b"501", b"998"}, list[BaseException]()

    def refuses(value: bytes) -> bool:
        found = value in bad
        bad.discard(value)
        return found

    def replace(error: BaseException) -> StreamThreadExceptionResponse:
        errors.append(error)
        return StreamThreadExceptionResponse.REPLACE_THREAD

    failing = Failing(kafka, refuses)
    written = failing.write()
    app = failing.app(tmp_path, replace)
    with app:
        await_table(app, written)
        assert not bad
        assert [type(error) for error in errors] == [ProcessingError] * 3
        assert [type(error.__cause__) for error in errors] == [ZeroDivisionError] * 3
        assert metric(app, "coopstreams_failed_stream_threads_total") == 3
        assert metric(app, "coopstreams_aborts_total") >= 3
    assert app.state is StreamsState.NOT_RUNNING
    found = examine(kafka.bootstrap, failing.sink, written)
    assert found.exactly_once, found
