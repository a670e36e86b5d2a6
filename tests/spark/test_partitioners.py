"""Partitioners in a backfill: each record is in the partition of a live application
that read everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from coopstreams import CoopStreams, Processor, Record, StreamsBuilder, Topology, serdes
from coopstreams.spark import Options, backfill, publish
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import ProcessingError, UnknownTopicError
from coopstreams.topology.keys import partition_of
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import PATIENT, Kafka

pytestmark = pytest.mark.broker

KEYS = [f"key-{number}" for number in range(30)]
Storage = tuple[str, int, str, str]
"""Topic, partition, key, value."""


def by_value(_topic: str, _key: str, value: str, partitions: int) -> int:
    return int(value) % partitions


def some(_topic: str, _key: str, value: str, partitions: int) -> int | Sequence[int]:
    """Return no partition, one, one twice, or all."""
    return ([], int(value) % partitions, [0, partitions - 1], range(partitions))[
        int(value) % 4
    ]


class Where(Processor[str, str, str, str]):
    """Notes the partition in which it has found each value."""

    def process(self, record: Record[str, str]) -> None:
        assert self.context.metadata is not None
        self.context.forward(
            record.with_value(f"{record.value} in {self.context.metadata.partition}")
        )


class Spread:
    """An application with partitioners: of a topic, of a topic chosen by the record,
    and of a repartition topic before a count.
    """

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.source = kafka.topic("in")
        chosen, named, found, counts = (
            kafka.topic(name, partitions)
            for name, partitions in (
                ("chosen", 3),
                ("named", 4),
                ("found", 1),
                ("counts", 2),
            )
        )
        self.sinks = {chosen: 3, named: 4, found: 1, counts: 2}
        builder = StreamsBuilder(kafka.unique("spread"))
        stream = builder.stream(self.source, key=serdes.text, value=serdes.text)
        stream.to(chosen, partitioner=some)
        stream.to(lambda _key, _value: named, partitioner=by_value)
        spread = stream.repartition(name="spread", partitions=3, partitioner=some)
        spread.process(Where, key=serdes.text, value=serdes.text, by_key=False).to(
            found
        )
        spread.group_by_key().count(store="counts").to_stream().map_values(
            str, value=serdes.text
        ).to(counts)
        self.topology = builder.build()
        self.settings = {
            "bootstrap.servers": kafka.bootstrap,
            "statestore.cache.max.bytes": 0,
        }

    def write(self, numbers: Iterable[int]) -> None:
        self.kafka.write(
            self.source, ((KEYS[number % len(KEYS)], str(number)) for number in numbers)
        )

    def expected(self, count: int) -> Counter[Storage]:
        """Return the expected results of the first records, and the number of those
        without a partition.
        """
        with TopologyTestDriver(
            self.topology, config=self.settings, partitions=self.sinks
        ) as driver:
            numbers = driver.input(self.source, serdes.text, serdes.text)
            for number in range(count):
                numbers.send(KEYS[number % len(KEYS)], str(number))
            written = Counter[Storage]()
            for record in driver.outputs():
                at = (
                    partition_of(record.key.encode(), self.sinks[record.topic])
                    if record.partition is None
                    else record.partition
                )
                written[record.topic, at, record.key, record.value] += 1
        return written

    def found(self) -> Counter[Storage]:
        return Counter(
            (
                topic,
                record.partition,
                (record.key or b"").decode(),
                (record.value or b"").decode(),
            )
            for topic in self.sinks
            for record in read_topic(self.kafka.bootstrap, topic)
        )


@pytest.fixture
def spread(kafka: Kafka) -> Spread:
    return Spread(kafka)


@pytest.mark.slow
def test_records_lie_where_they_would_without_the_backfill(
    spread: Spread, spark: SparkSession, tmp_path: Path
) -> None:
    spread.write(range(400))
    options = Options(ranges=2, work=str(tmp_path / "work"), outputs="topic")
    done = backfill(spread.topology, spread.settings, spark=spark, options=options)
    assert spread.found() == spread.expected(400)
    dropped = sum((Counter(result.dropped) for result in done.results), Counter[str]())
    assert sorted(
        count for reason, count in dropped.items() if reason.endswith("no-partition")
    ) == [100, 100], dropped
    publish(done, spread.topology, spread.settings)
    spread.write(range(400, 600))
    expected = spread.expected(600)
    with CoopStreams(
        spread.topology,
        {
            **spread.settings,
            "state.dir": str(tmp_path / "state"),
            "ranges.per.partition": 3,
            **PATIENT,
        },
    ):
        eventually(
            lambda: spread.found().total() >= expected.total(),
            120,
            lambda: f"{expected - spread.found()} are missing",
        )
    assert spread.found() == expected


@pytest.mark.slow
def test_a_table_has_a_record_as_often_as_the_topic_would(
    spread: Spread, spark: SparkSession, tmp_path: Path
) -> None:
    spread.write(range(120))
    done = backfill(
        spread.topology,
        spread.settings,
        spark=spark,
        options=Options(ranges=1, work=str(tmp_path), outputs="table", seed=False),
    )
    rows = done.outputs(spark).collect()
    found = Counter(
        (row.topic, bytes(row.key).decode(), bytes(row.value).decode()) for row in rows
    )
    assert found == Counter(
        (topic, key, value) for topic, _, key, value in spread.expected(120).elements()
    )
    assert max(found.values()) == 3, (
        "no record went to several partitions: the test proves less than it should"
    )
    assert spread.found() == Counter()


def one_sink(
    kafka: Kafka,
    to: Callable[[str], Any],
    partitioner: Callable[[str, Any, Any, int], Any],
) -> Topology:
    """Return an application that copies a topic, and write a record for it."""
    source, sink = kafka.topic("in"), kafka.topic("out", 3)
    builder = StreamsBuilder(kafka.unique("one-sink"))
    builder.stream(source, key=serdes.text, value=serdes.text).to(
        to(sink), partitioner=partitioner
    )
    kafka.write(source, [("key", "1")])
    return builder.build()


@pytest.mark.slow
def test_a_partition_that_is_not_there_is_the_records_fault_and_a_topic_the_runs(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    settings, missing = {"bootstrap.servers": kafka.bootstrap}, kafka.unique("missing")
    beyond = one_sink(
        kafka, lambda sink: sink, lambda _topic, _key, _value, partitions: partitions
    )
    with pytest.raises(ProcessingError, match="which has partitions 0 to 2"):
        backfill(
            beyond,
            settings,
            spark=spark,
            options=Options(ranges=1, work=str(tmp_path / "beyond")),
        )
    lost = one_sink(kafka, lambda _: lambda _key, _value: missing, by_value)
    with pytest.raises(
        UnknownTopicError, match=f'writes to "{missing}", which does not exist'
    ):
        backfill(
            lost,
            settings,
            spark=spark,
            options=Options(ranges=1, work=str(tmp_path / "lost")),
        )
