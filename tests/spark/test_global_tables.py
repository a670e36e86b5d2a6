"""A backfill joins a stream with a global table as of the cut, and a live application
with the current table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Message, Producer
from pyspark.sql import SparkSession

from coopstreams import CoopStreams, StreamsBuilder, Topology, serdes
from coopstreams.common.config import Config
from coopstreams.spark import KafkaHistory, Options, TableHistory, backfill, publish
from coopstreams.spark.history.arrow_rows import BEGIN, ROUTED
from coopstreams.spark.spark_task import TaskWork
from coopstreams.topology.errors import ConfigError
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


def topology_of(application: str, orders: str, places: str, out: str) -> Topology:
    """Orders, each with the name of its place."""
    builder = StreamsBuilder(application)
    table = builder.global_table(
        places, key=serdes.text, value=serdes.text, store="places"
    )
    stream = builder.stream(orders, key=serdes.text, value=serdes.text)
    named = stream.left_join(
        table,
        lambda order, place: f"{order} {place}",
        on=lambda _, order: order,
        value=serdes.text,
    )
    named.to(out)
    named.group_by_key().count(store="counts")
    return builder.build()


def write(
    kafka: Kafka, topic: str, records: Iterable[tuple[str, str | None]]
) -> Counter[int]:
    """Write records; return their number by partition."""
    written: Counter[int] = Counter()

    def delivered(error: object, message: Message) -> None:
        partition = message.partition()
        assert error is None
        assert partition is not None
        written[partition] += 1

    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "partitioner": "murmur2_random"}
    )
    for key, value in records:
        producer.produce(
            topic, None if value is None else value.encode(), key, on_delivery=delivered
        )
    assert producer.flush(30) == 0
    return written


@pytest.mark.ci
def test_every_task_sees_the_whole_table_as_of_the_cut(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    orders, out = (kafka.topic(name, 2) for name in ("orders", "out"))
    places = kafka.topic("places", 3, cleanup_policy="compact")
    topology = topology_of(kafka.unique("globals"), orders, places, out)
    before = [(f"p{number}", f"first-{number}") for number in range(20)]
    ends = write(kafka, places, [*before, ("p3", None), ("p4", "second-4")])
    history = [(f"key-{number}", f"p{number % 20}") for number in range(300)]
    write(kafka, orders, history)
    write(kafka, places, [("p5", "behind the cut"), ("p6", None)])
    settings = {"bootstrap.servers": kafka.bootstrap, "statestore.cache.max.bytes": 0}
    cut = {number: ends[number] for number in range(3)}
    asked = Options(ranges=2, outputs="topic", work=str(tmp_path / "work"))
    done = backfill(
        topology,
        settings,
        spark=spark,
        sources={places: KafkaHistory(until=cut)},
        options=asked,
    )
    known = {**dict(before), "p3": None, "p4": "second-4"}
    expected = Counter((key, f"{place} {known[place]}") for key, place in history)
    assert Counter(found(kafka, out)) == expected

    publish(done, topology, settings)
    live = [(f"late-{number}", f"p{number % 20}") for number in range(40)]
    known |= {"p5": "behind the cut", "p6": None}
    expected += Counter((key, f"{place} {known[place]}") for key, place in live)
    write(kafka, orders, live)
    with CoopStreams(
        topology,
        {**settings, "state.dir": str(tmp_path / "state"), "commit.interval.ms": 100},
    ):
        eventually(
            lambda: Counter(found(kafka, out)) == expected,
            60,
            lambda: f"{len(found(kafka, out))} of {expected.total()}",
        )

    table = TableHistory(
        spark.createDataFrame(
            [(b"p1", b"x", 1)], "key binary, value binary, timestamp bigint"
        )
    )
    with pytest.raises(ConfigError, match="a global table is read from its topic"):
        backfill(
            topology, settings, spark=spark, sources={places: table}, options=asked
        )


def found(kafka: Kafka, topic: str) -> list[tuple[str, str]]:
    return [
        ((record.key or b"").decode(), (record.value or b"").decode())
        for record in read_topic(kafka.bootstrap, topic)
    ]


def test_a_record_of_a_global_table_that_cannot_be_read_is_one_dead_letter_however_many_tasks_read_it(
    kafka: Kafka,
) -> None:
    places, ranges = kafka.topic("places"), 3
    builder = StreamsBuilder(kafka.unique("globals"))
    table = builder.global_table(
        places, key=serdes.text, value=serdes.json, store="places"
    )
    stream = builder.stream("orders", key=serdes.text, value=serdes.text)
    stream.left_join(
        table, lambda order, _: order, on=lambda _, order: order, value=serdes.text
    ).to("out")
    kafka.write(places, [("p1", "no JSON"), ("p2", '"fine"')])
    given = {
        "deserialization.exception.handler": "dead-letter",
        "errors.dead.letter.queue.topic.name": "dead",
    }
    config = Config.of(
        {"bootstrap.servers": kafka.bootstrap, **given}, builder.build().application_id
    )
    bounds = {places: {0: (0, 2)}}
    work = TaskWork(
        builder.build(),
        0,
        ranges,
        "r",
        0,
        config,
        outputs="table",
        global_tables=bounds,
    )
    begins = [
        pa.RecordBatch.from_pylist(
            [
                {
                    "task": task,
                    "source": 0,
                    "time": -1,
                    "stream_time": -1,
                    "offset": BEGIN,
                }
            ],
            ROUTED,
        )
        for task in range(ranges)
    ]
    rows = [
        row
        for begin in begins
        for made in work(iter([begin]))
        for row in made.to_pylist()
    ]
    assert [(row["key"], row["value"]) for row in rows if row["topic"] == "dead"] == [
        (b"p1", b"no JSON")
    ]
    dropped = [
        msgspec.json.decode(row["result"])["dropped"]
        for row in rows
        if row["result"] is not None
    ]
    assert [sum(each.values()) for each in dropped] == [1, 0, 0]
