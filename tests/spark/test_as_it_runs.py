"""A backfill runs the same topology as the live application: with
`topology.optimization`, names of internal topics, and a rebuild of them.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from coopstreams import CoopStreams, JoinWindows, StreamsBuilder, serdes
from coopstreams.common.config import Config
from coopstreams.spark import (
    Backfilled,
    Options,
    TableHistory,
    backfill,
    publish,
    rebuild,
)
from coopstreams.spark.preparation import begin, load_plan, make_plan
from coopstreams.state import snapshot
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import ConfigError, TopologyError
from tests.broker.counting import instance_of, table
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import PATIENT, Kafka
from tests.durations import ms

pytestmark = pytest.mark.broker

BEGIN_MS = int(time.time()) * 1000 - 600_000
PEOPLE = [f"person-{number}" for number in range(25)]
Event = tuple[str, str, str]
"""Topic, key, value."""


class Shop:
    """A table equal to its topic, orders that look it up, and pairs of a person's
    orders: optimised, it stores less.
    """

    def __init__(self, kafka: Kafka) -> None:
        self.kafka, self.application = kafka, kafka.unique("shop")
        self.people = kafka.topic("people", cleanup_policy="compact", retention_ms="-1")
        self.orders, self.sink, self.pairs = (
            kafka.topic(name, retention_ms="-1")
            for name in ("orders", "greeted", "pairs")
        )
        builder = StreamsBuilder(self.application)
        people = builder.table(
            self.people, key=serdes.text, value=serdes.text, store="people"
        )
        orders = builder.stream(self.orders, key=serdes.text, value=serdes.text)
        orders.join(
            people, lambda order, name: f"{order} of {name}", value=serdes.text
        ).to(self.sink)
        pair = orders.join(
            orders,
            lambda one, other: f"{one} {other}",
            windows=JoinWindows(milliseconds=2000, grace=ms(1000)),
            value=serdes.text,
        )
        pair.group_by_key().count(store="pairs").to_stream().map_values(
            str, value=serdes.text
        ).to(self.pairs)
        self.topology = builder.build()
        self.settings: dict[str, Any] = {
            "bootstrap.servers": kafka.bootstrap,
            "statestore.cache.max.bytes": 0,
            "topology.optimization": "all",
        }
        self.config = Config.of(self.settings, self.application)
        self.events: list[Event] = []

    def names(self, what: str) -> list[Event]:
        return [(self.people, name, f"{what} {name}") for name in PEOPLE]

    def bought(self, numbers: Iterable[int]) -> list[Event]:
        return [
            (self.orders, PEOPLE[number % len(PEOPLE)], f"order {number}")
            for number in numbers
        ]

    def write(self, events: Iterable[Event]) -> None:
        """Write records, a tenth of a second apart, to the topics, and note them for
        the expected results.
        """
        producer = Producer(
            {"bootstrap.servers": self.kafka.bootstrap, "partitioner": "murmur2_random"}
        )
        for topic, key, value in events:
            producer.produce(
                topic, value, key, timestamp=BEGIN_MS + 100 * len(self.events)
            )
            self.events.append((topic, key, value))
        assert producer.flush(60) == 0

    def expected(self) -> Counter[Event]:
        with TopologyTestDriver(self.topology) as driver:
            for number, (topic, key, value) in enumerate(self.events):
                driver.input(topic, serdes.text, serdes.text).send(
                    key, value, BEGIN_MS + 100 * number
                )
            return Counter(
                (record.topic, record.key, record.value) for record in driver.outputs()
            )

    def found(self) -> Counter[Event]:
        return Counter(
            (topic, (record.key or b"").decode(), (record.value or b"").decode())
            for topic in (self.sink, self.pairs)
            for record in read_topic(self.kafka.bootstrap, topic)
        )

    def backfill(self, spark: SparkSession, folder: Path, **given: Any) -> Backfilled:
        options = Options(
            ranges=2,
            work=str(folder / "work"),
            outputs="topic",
            snapshots=str(folder / "snapshots"),
            **given,
        )
        return backfill(self.topology, self.settings, spark=spark, options=options)

    def internal(self) -> set[str]:
        return {
            topic
            for topic in self.kafka.topics()
            if topic.startswith(f"{self.application}-")
            and topic.endswith(("-changelog", "-repartition"))
        }


@pytest.fixture
def shop(kafka: Kafka) -> Shop:
    return Shop(kafka)


def restored(app: CoopStreams) -> set[str]:
    """Return the stores that an instance has restored from a topic."""
    lines = [
        line
        for line in instance_of(app).components.metrics.text().decode().splitlines()
        if line.startswith("coopstreams_restored_records_total{")
    ]
    return {
        store
        for line in lines
        if float(line.rpartition(" ")[2])
        for store in re.findall(r'store="([^"]+)"', line)
    }


@pytest.mark.slow
def test_an_optimised_application_goes_on_from_its_source_topic_and_from_the_snapshot(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    shop.write(
        [
            *shop.names("dear"),
            *shop.bought(range(150)),
            *shop.names("good"),
            *shop.bought(range(150, 300)),
        ]
    )
    done = shop.backfill(spark, tmp_path)
    assert shop.found() == shop.expected()
    internal = {topic.name for topic in shop.topology.optimized("all").internal_topics}
    assert f"{shop.application}-people-changelog" not in internal
    assert shop.internal() == internal
    assert {store for result in done.results for store in result.seeded} == {
        topic[len(shop.application) + 1 : -10] for topic in internal
    }
    with pytest.raises(ConfigError, match=r"begun with another topology\.optimization"):
        publish(done, shop.topology, {**shop.settings, "topology.optimization": "none"})
    publish(done, shop.topology, shop.settings)
    manifest = snapshot.load(str(tmp_path / "snapshots"), shop.application)
    assert manifest is not None
    assert "people" not in manifest.stores
    live = {
        **shop.settings,
        "state.dir": str(tmp_path / "state"),
        "snapshots.dir": str(tmp_path / "snapshots"),
        **PATIENT,
    }
    with CoopStreams(shop.topology, live) as app:
        eventually(
            lambda: len(table(app, "people")) == len(PEOPLE),
            120,
            lambda: f"{table(app, 'people')}",
        )
        assert restored(app) == {"people"}, (
            "the table comes from its topic, all else from the snapshot"
        )
        shop.write(shop.names("best")[:10])
        eventually(
            lambda: (
                sum(name.startswith("best") for name in table(app, "people").values())
                == 10
            ),
            120,
            lambda: f"{table(app, 'people')}",
        )
        shop.write(shop.bought(range(300, 400)))
        expected = shop.expected()
        eventually(
            lambda: shop.found().total() >= expected.total(),
            120,
            lambda: f"{expected - shop.found()} are missing",
        )
    assert shop.found() == expected
    assert shop.internal() == internal


@pytest.mark.slow
def test_a_rebuild_finds_the_stores_of_an_optimised_application(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    shop.write([*shop.names("dear"), *shop.bought(range(100))])
    done = shop.backfill(spark, tmp_path)
    publish(done, shop.topology, shop.settings)
    made = rebuild(
        shop.topology,
        {**shop.settings, "snapshots.dir": str(tmp_path / "rebuilt")},
        spark=spark,
    )
    assert made.stores.keys() == {
        store for result in done.results for store in result.seeded
    }
    counted = sum(
        file.entries for piece in made.stores["pairs"].slices for file in piece.files
    )
    assert (
        counted == sum(result.seeded["pairs"] for result in done.results) == len(PEOPLE)
    )


@pytest.mark.ci
def test_a_table_that_is_restored_from_its_topic_must_have_its_history_there(
    shop: Shop, spark: SparkSession
) -> None:
    rows = TableHistory(
        spark.createDataFrame(
            [(b"k", b"v", 1)], "key binary, value binary, timestamp bigint"
        )
    )
    with pytest.raises(
        ConfigError,
        match=f'the table "people" is restored from its topic "{shop.people}"',
    ):
        make_plan(
            shop.topology, shop.config, {shop.people: rows}, Options(), create=False
        )
    assert make_plan(
        shop.topology, shop.config, {shop.orders: rows}, Options(), create=False
    ).tables == (shop.orders,)
    late = Config.of({**shop.settings, "auto.offset.reset": "latest"}, shop.application)
    with pytest.raises(ConfigError, match="from the beginning, but auto"):
        make_plan(shop.topology, late, {}, Options(), create=False)


@pytest.mark.ci
def test_names_that_are_generated_are_refused_where_the_application_would_not_start(
    shop: Shop,
) -> None:
    strict = Config.of(
        {**shop.settings, "ensure.explicit.internal.resource.naming": True},
        shop.application,
    )
    for create in (False, True):
        with pytest.raises(TopologyError, match=r"generated names: .*KSTREAM-JOINTHIS"):
            make_plan(shop.topology, strict, {}, Options(), create=create)
    assert shop.internal() == set()


def test_a_run_is_resumed_with_the_settings_that_it_was_begun_with(
    shop: Shop, tmp_path: Path
) -> None:
    plan = begin(shop.topology, shop.config, {}, Options(work=str(tmp_path)))
    assert load_plan(str(tmp_path), plan.run, shop.topology, shop.config) == plan
    other = Config.of(
        {**shop.settings, "topology.optimization": "single.store.self.join"},
        shop.application,
    )
    with pytest.raises(ConfigError, match=r"begun with another topology\.optimization"):
        load_plan(str(tmp_path), plan.run, shop.topology, other)
