"""Topics by pattern in a backfill: those that match at the cut are history, later ones
are left to the live application.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from coopstreams import CoopStreams, StreamsBuilder, Topology, serdes
from coopstreams.common.config import Config
from coopstreams.spark import Options, backfill, publish
from coopstreams.spark.execution import carry_out
from coopstreams.spark.history.sources import TableHistory
from coopstreams.spark.preparation import begin, load_plan, make_plan
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import ConfigError, TopologyError
from tests.broker.reading import read_topic, updates_of
from tests.broker.waiting import eventually
from tests.command_line import app
from tests.conftest import PATIENT, Kafka

pytestmark = pytest.mark.broker

BEGIN_MS = int(time.time()) * 1000 - 600_000
PROGRAM = """
import re
from coopstreams import StreamsBuilder, TimeWindows, serdes

builder = StreamsBuilder("{application}")
orders = builder.stream(re.compile("{prefix}-.*"), key=serdes.text, value=serdes.text)
orders.select_key(lambda key, _: key, key=serdes.text).group_by_key().count(store="counts").to_stream().to("{sink}")
later = builder.stream(re.compile("later-{prefix}-.*"), key=serdes.text, value=serdes.text)
later.repartition(name="later", partitions=1).to("{copies}")
later.group_by_key().windowed_by(TimeWindows(minutes=1, grace=0)).count(store="minutes")
topology = builder.build()
"""


class Shop:
    """Topics with a common prefix, and an application that reads them by a pattern;
    another pattern matches nothing yet.
    """

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka = kafka
        self.prefix = kafka.unique("orders")
        self.sink = kafka.topic("counts")
        self.copies = kafka.topic("copies")
        self.program = folder / "program.py"
        names = {
            "application": kafka.unique("shop"),
            "prefix": self.prefix,
            "sink": self.sink,
            "copies": self.copies,
        }
        self.program.write_text(PROGRAM.format(**names))
        found: dict[str, Any] = {}
        exec(self.program.read_text(), found)
        self.topology: Topology = found["topology"]
        self.settings = {
            "bootstrap.servers": kafka.bootstrap,
            "statestore.cache.max.bytes": 0,
        }
        self.config = Config.of(self.settings, self.topology.application_id)
        self.written: Counter[str] = Counter()

    def topic(self, name: str, partitions: int = 1) -> str:
        self.kafka.create(
            topic := name.format(self.prefix), partitions, retention_ms="-1"
        )
        return topic

    def write(self, topic: str, records: int) -> None:
        """Write records, a second apart."""
        producer = Producer(
            {"bootstrap.servers": self.kafka.bootstrap, "partitioner": "murmur2_random"}
        )
        for number in range(records):
            producer.produce(
                topic, topic, f"key-{number % 20}", timestamp=BEGIN_MS + 1000 * number
            )
            self.written[f"key-{number % 20}"] += topic.startswith(self.prefix)
        assert producer.flush(60) == 0

    def updates(self) -> dict[str, list[int]]:
        """Return the counts of each key that were written, in order."""
        return updates_of(self.kafka.bootstrap, self.sink)

    def complete(self) -> dict[str, list[int]]:
        return {
            key: list(range(1, count + 1))
            for key, count in self.written.items()
            if count
        }


@pytest.fixture
def shop(kafka: Kafka, tmp_path: Path) -> Shop:
    return Shop(kafka, tmp_path)


@pytest.mark.slow
def test_topics_that_match_are_history_and_those_that_come_later_are_live(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    europe, america = shop.topic("{}-europe", 2), shop.topic("{}-america")
    for topic in (europe, america):
        shop.write(topic, 150)
    options = Options(ranges=1, work=str(tmp_path / "work"), outputs="topic")
    plan = begin(shop.topology, shop.config, {}, options)
    assert set(plan.cut) == {europe, america}
    before = shop.complete()
    asia = shop.topic("{}-asia", 2)
    shop.write(asia, 90)
    resumed = load_plan(options.work, plan.run, shop.topology, shop.config)
    assert resumed == plan, "a run that is resumed decides nothing anew"
    done = carry_out(spark, shop.topology, shop.config, resumed, {}, options.work)
    assert (done.records, shop.updates()) == (300, before)
    goes_on = publish(done, shop.topology, shop.settings)
    assert {place.topic for place in goes_on} & {europe, america, asia} == {
        europe,
        america,
    }
    later = shop.topic("later-{}-1")
    for topic in (america, asia, later):
        shop.write(topic, 60)
    with CoopStreams(
        shop.topology,
        {
            **shop.settings,
            "state.dir": str(tmp_path / "state"),
            "metadata.max.age.ms": 500,
            **PATIENT,
        },
    ):
        eventually(
            lambda: (
                sum(map(len, shop.updates().values()))
                + len(read_topic(shop.kafka.bootstrap, shop.copies))
                >= shop.written.total() + 60
            ),
            120,
            lambda: f"{shop.updates()} of {shop.complete()}",
        )
    assert shop.updates() == shop.complete()
    assert {
        record.value for record in read_topic(shop.kafka.bootstrap, shop.copies)
    } == {later.encode()}


def merged(application: str, prefix: str, sink: str) -> Topology:
    """Note the order of the records of all topics, by key."""
    builder = StreamsBuilder(application)
    stream = builder.stream(
        re.compile(f"{prefix}-[abc]"), key=serdes.text, value=serdes.text
    )
    stream.group_by_key().aggregate(
        str, lambda _, value, told: f"{told} {value}", value=serdes.text, store="told"
    ).to_stream().to(sink)
    return builder.build()


def driven(
    topology: Topology, records: Iterable[tuple[int, str, str, str]]
) -> dict[str, list[str]]:
    """Return the updates of each key by one thread over these records: timestamp,
    topic, key and value.
    """
    told: dict[str, list[str]] = {}
    with TopologyTestDriver(topology) as driver:
        for timestamp, topic, key, value in records:
            driver.input(topic, serdes.text, serdes.text).send(key, value, timestamp)
        for record in driver.outputs():
            told.setdefault(record.key, []).append(record.value)
    return told


@pytest.mark.ci
def test_topics_are_taken_by_time_then_by_name_and_one_of_them_may_come_from_a_table(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    prefix, sink = kafka.unique("merged"), kafka.topic("told")
    names = [
        f"{prefix}-{letter}" for letter in "cab"
    ]  # in the order of creation, not of reading
    topology = merged(kafka.unique("merging"), prefix, sink)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    records = [
        (BEGIN_MS + at // 3 * 1000, name, f"key-{at % 4}", f"{name[-1]}{at}")
        for name in names
        for at in range(40)
    ]
    for name in names:
        kafka.create(name, retention_ms="-1")
    in_table = [record for record in records if record[1] == names[0]]
    for timestamp, topic, key, value in records:
        if topic != names[0]:
            producer.produce(topic, value, key, timestamp=timestamp)
    assert producer.flush(60) == 0
    rows = spark.createDataFrame(
        [
            (key.encode(), value.encode(), at, number)
            for number, (at, _, key, value) in enumerate(in_table)
        ],
        "key binary, value binary, timestamp bigint, number int",
    )
    settings = {"bootstrap.servers": kafka.bootstrap, "statestore.cache.max.bytes": 0}
    options = Options(ranges=2, work=str(tmp_path), outputs="table", seed=False)
    done = backfill(
        topology,
        settings,
        spark=spark,
        sources={names[0]: TableHistory(rows, ["timestamp", "number"])},
        options=options,
    )
    told: dict[str, list[str]] = {}
    for row in sorted(
        done.outputs(spark).collect(), key=lambda row: (row.task, row.number)
    ):
        told.setdefault(bytes(row.key).decode(), []).append(bytes(row.value).decode())
    assert told == driven(topology, sorted(records, key=lambda record: record[:2]))


def test_a_dry_run_shows_the_topics_and_until_holds_for_each_of_them(
    shop: Shop,
) -> None:
    europe, america = shop.topic("{}-europe"), shop.topic("{}-america")
    shop.write(europe, 50)
    shop.write(america, 30)
    until = datetime.fromtimestamp((BEGIN_MS + 40_000) / 1000, UTC)
    given = [
        "backfill",
        str(shop.program),
        "--bootstrap-servers",
        shop.kafka.bootstrap,
        "--until",
        f"{until:%Y-%m-%dT%H:%M:%S}",
        "--dry-run",
    ]
    looked = CliRunner().invoke(app, given)
    assert looked.exit_code == 0, looked.output
    assert f"{america}: 0: 0..30" in looked.stdout
    assert f"{europe}: 0: 0..40" in looked.stdout


def test_a_history_of_no_topic_and_a_pattern_of_none_are_refused(
    shop: Shop, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TopologyError, match="there is no history"):
        make_plan(shop.topology, shop.config, {}, Options(), create=False)
    europe = shop.topic("{}-europe")
    rows = spark.createDataFrame(
        [(b"k", b"v", 1)], "key binary, value binary, timestamp bigint"
    )
    with pytest.raises(
        ConfigError,
        match=f"{shop.prefix}-asia is no source of the topology; it reads {europe}",
    ):
        make_plan(
            shop.topology,
            shop.config,
            {f"{shop.prefix}-asia": TableHistory(rows)},
            Options(),
            create=False,
        )
    assert make_plan(
        shop.topology,
        shop.config,
        {europe: TableHistory(rows)},
        Options(),
        create=False,
    ).tables == (europe,)
    assert f'no topic matches "later-{shop.prefix}-.*" yet' in caplog.text
