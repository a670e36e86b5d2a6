"""Foreign-key joins in a backfill: tables, and each update of them, equal those of a
test driver; and a live application continues.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from coopstreams import (
    CoopStreams,
    Processor,
    ProcessorContext,
    Record,
    StreamsBuilder,
    Topology,
    serdes,
)
from coopstreams.common.config import Config
from coopstreams.query.client import QueryClient
from coopstreams.spark import Backfilled, Options, backfill
from coopstreams.spark.execution import carry_out
from coopstreams.spark.history.sources import TableHistory
from coopstreams.spark.plan import Plan, Stage
from coopstreams.spark.publication import publish
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import QueryError, TopologyError
from coopstreams.topology.keys import partition_of
from tests.broker.waiting import eventually
from tests.conftest import PATIENT, Kafka
from tests.durations import ms
from tests.spark.slices import changelogs_of
from tests.spark.test_backfill import plan_of

Event = tuple[str, str, Any, int]
"""Topic, key, value, timestamp."""
SOURCES = ("orders", "people", "countries", "clicks")
SINKS = ("placed", "seen")
HERE = {name: name for name in (*SOURCES, *SINKS)}
TABLES = ("owned", "placed", "per-name")
BEGIN_MS = 1_700_000_000_000


def topology_of(
    *, left: bool, application: str = "foreign", topics: Mapping[str, str] = HERE
) -> Topology:
    """Orders are joined with their person, then with the person's country; clicks look
    up the result, and names are counted.
    """
    builder = StreamsBuilder(application)
    orders, people, countries = (
        builder.table(topics[topic], key=serdes.text, value=serdes.json)
        for topic in SOURCES[:3]
    )
    clicks = builder.stream(topics["clicks"], key=serdes.text, value=serdes.json)
    pair: dict[str, Any] = {
        "joiner": lambda one, other: [one, other],
        "value": serdes.json,
    }
    owned = (orders.left_join if left else orders.join)(
        people,
        foreign_key=lambda order: order["person"],
        store="owned",
        name="owned",
        **pair,
    )
    placed = owned.left_join(
        countries,
        foreign_key=lambda row: row[1] and row[1]["country"],
        store="placed",
        name="placed",
        **pair,
    )
    placed.to_stream().to(topics["placed"])
    owned.group_by(
        lambda key, row: (row[0]["person"] or "", row),
        key=serdes.text,
        value=serdes.json,
    ).count(store="per-name")
    clicks.join(owned, lambda click, row: [click, row], value=serdes.json).to(
        topics["seen"]
    )
    return builder.build()


def events_of(seed: int, count: int, *, late: bool) -> list[Event]:
    """Changes and deletions on all sides, at distinct times. `late`: some have older
    timestamps than earlier ones.
    """
    generator, found = random.Random(seed), list[Event]()
    people, countries = [f"p{n}" for n in range(12)], [f"c{n}" for n in range(4)]
    for number in range(count):
        topic = generator.choice(
            ["orders"] * 4 + ["people"] * 2 + ["countries", "clicks"]
        )
        gone = topic != "clicks" and generator.random() < 0.15
        key = {
            "orders": f"o{generator.randrange(40)}",
            "clicks": f"o{generator.randrange(40)}",
        }.get(topic) or generator.choice(people if topic == "people" else countries)
        value = {"orders": "person", "people": "country"}.get(topic)
        row: dict[str, Any] = {"n": generator.randrange(3)}
        if value is not None:
            row[value] = generator.choice(
                [*(people if topic == "orders" else countries), None]
            )
        at = (
            10 * number
            + 1
            - (generator.randrange(2000) if late and generator.random() < 0.3 else 0)
        )
        found.append((topic, key, None if gone else row, BEGIN_MS + max(0, at)))
    return found


def histories(
    spark: SparkSession, events: Sequence[Event], partitions: int
) -> dict[str, TableHistory]:
    schema = "topic string, key binary, value binary, timestamp bigint, number bigint, partition int"
    rows = spark.createDataFrame(
        [
            (
                topic,
                key.encode(),
                None if value is None else orjson.dumps(value),
                at,
                number,
                partition_of(key.encode(), partitions),
            )
            for number, (topic, key, value, at) in enumerate(events)
        ],
        schema,
    )
    return {
        topic: TableHistory(rows.where(rows.topic == topic), order_by=["number"])
        for topic in SOURCES
    }


def run(
    spark: SparkSession,
    plan: Plan,
    topology: Topology,
    events: Sequence[Event],
    partitions: int,
    folder: Path,
    cache_bytes: int,
) -> Backfilled:
    config = Config.of(
        {"bootstrap.servers": "nowhere:1", "statestore.cache.max.bytes": cache_bytes},
        topology.application_id,
    )
    return carry_out(
        spark,
        topology,
        config,
        plan,
        histories(spark, events, partitions),
        str(folder / "work"),
    )


def driven(
    topology: Topology, events: Sequence[Event]
) -> tuple[dict[str, dict[str, Any]], dict[tuple[str, str], list[tuple[Any, int]]]]:
    """Return the final tables, and the updates for each topic and key."""
    updates = defaultdict(list)
    with TopologyTestDriver(topology) as driver:
        for topic, key, value, at in events:
            driver.input(topic, serdes.text, serdes.json).send(key, value, timestamp=at)
        for record in driver.outputs():
            if record.topic in SINKS:
                updates[record.topic, record.key].append(
                    (record.value, record.timestamp)
                )
        return {
            name: {row.key: row.value for row in driver.store(name).all()}
            for name in TABLES
        }, updates


def tables(
    topology: Topology, folder: Path, done: Backfilled
) -> dict[str, dict[str, Any]]:
    serde = {"per-name": serdes.int64}
    found = changelogs_of(topology, folder / "snapshots", done.results)
    return {
        name: {
            key.decode(): serde.get(name, serdes.json).decode(value)
            for key, (value, _) in found[name].items()
        }
        for name in TABLES
    }


def plan_with_table(
    topology: Topology, partitions: int, ranges: int, folder: Path
) -> Plan:
    return replace(
        plan_of(
            topology, dict.fromkeys(SOURCES, partitions), ranges, folder / "snapshots"
        ),
        outputs="table",
    )


@pytest.mark.slow
def test_tables_and_all_their_updates_are_those_of_answers_that_come_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    topology, events = topology_of(left=False), events_of(3, 1200, late=False)
    expected, told = driven(topology, events)
    done = run(
        spark,
        plan_with_table(topology, 2, 3, tmp_path),
        topology,
        events,
        2,
        tmp_path,
        0,
    )
    assert done.records == len(events)
    assert tables(topology, tmp_path, done) == expected
    updates = defaultdict(list)
    for row in sorted(
        done.outputs(spark).collect(),
        key=lambda row: (row.time, row.subtopology, row.task, row.number),
    ):
        updates[row.topic, row.key.decode()].append(
            (
                None if row.value is None else orjson.loads(bytes(row.value)),
                row.timestamp,
            )
        )
    assert {topic for topic, _ in told} == set(SINKS)
    assert updates == told


@pytest.mark.slow
def test_late_rows_are_answered_and_the_record_cache_holds_no_question_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    topology, events = topology_of(left=True), events_of(4, 1000, late=True)
    expected, _ = driven(topology, events)
    done = run(
        spark,
        plan_with_table(topology, 2, 3, tmp_path),
        topology,
        events,
        2,
        tmp_path,
        10 << 20,
    )
    assert tables(topology, tmp_path, done) == expected


class Hourly(Processor[str, Any, str, Any]):
    """Forwards rows on punctuations."""

    def init(self, context: ProcessorContext[str, Any]) -> None:
        super().init(context)
        context.schedule(ms(3_600_000), "stream_time", lambda _: None)

    def process(self, record: Record[str, Any]) -> None:
        self.context.forward(record)


@pytest.mark.ci
def test_questions_that_depend_on_the_time_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    builder = StreamsBuilder("foreign")
    orders = (
        builder.stream("orders", key=serdes.text, value=serdes.json)
        .process_values(Hourly, value=serdes.json, by_key=False)
        .to_table()
    )
    people = builder.table("people", key=serdes.text, value=serdes.json)
    orders.join(
        people,
        lambda one, other: [one, other],
        foreign_key=lambda order: order["person"],
        value=serdes.json,
        store="owned",
    )
    topology = builder.build()
    events = [
        event
        for event in events_of(5, 20, late=False)
        if event[0] in ("orders", "people")
    ]
    plan = plan_of(topology, {"orders": 1, "people": 1}, 1, tmp_path / "snapshots")
    with pytest.raises(
        TopologyError,
        match="a processor that is called by stream time feeds a foreign-key join",
    ):
        run(spark, plan, topology, events, 1, tmp_path, 0)


@pytest.mark.slow
@pytest.mark.broker
def test_a_run_that_died_between_rounds_is_resumed_and_a_live_application_asks_and_answers_on(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    partitions = {
        "orders": 2,
        "people": 3,
        "countries": 1,
        "clicks": 2,
        "placed": 1,
        "seen": 1,
    }
    topics = {
        name: kafka.topic(name, count, retention_ms="-1")
        for name, count in partitions.items()
    }
    topology = topology_of(
        left=True, application=kafka.unique("foreign"), topics=topics
    )
    events = [
        (topics[topic], key, value, at)
        for topic, key, value, at in events_of(6, 1800, late=True)
    ]
    with TopologyTestDriver(topology) as driver:
        for topic, key, value, at in events:
            driver.input(topic, serdes.text, serdes.json).send(key, value, timestamp=at)
        expected = {
            name: {row.key: row.value for row in driver.store(name).all()}
            for name in TABLES
        }
    write(kafka, events[:1200])
    settings = {"bootstrap.servers": kafka.bootstrap}
    options = Options(ranges=2, work=str(tmp_path / "work"), outputs="topic")
    begun = list[str]()

    def die(stage: Stage) -> None:
        begun.append(stage.name)
        if stage.name == "sub-topology 0, round 2 of 3":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backfill(topology, settings, spark=spark, options=options, on_stage=die)
    assert begun == [
        "sub-topology 0, round 1 of 3",
        "sub-topology 1",
        "sub-topology 0, round 2 of 3",
    ]
    write(kafka, events[1200:])  # behind the cut
    (resumed,) = [folder.name for folder in (tmp_path / "work").iterdir()]
    done = backfill(
        topology,
        settings,
        spark=spark,
        options=options,
        resume=resumed,
        on_stage=lambda stage: begun.append(stage.name),
    )
    assert begun[3:] == [
        "sub-topology 0, round 2 of 3",
        "sub-topology 2",
        "sub-topology 0, round 3 of 3",
        "sub-topology 3",
    ]
    assert done.records == 1200
    publish(done, topology, settings)
    live = {
        **settings,
        "state.dir": str(tmp_path / "state"),
        "commit.interval.ms": 100,
        "ranges.per.partition": 3,
        **PATIENT,
    }
    with (
        CoopStreams(topology, live) as app,
        QueryClient(str(app.url), deadline_s=60) as client,
    ):
        seen: dict[str, dict[str, Any]] = {}

        def complete() -> bool:
            try:
                seen.update(
                    {
                        name: {
                            entry.key: entry.value
                            for entry in client.range(name, page=5000)
                        }
                        for name in TABLES
                    }
                )
            except QueryError:
                return False
            return seen == expected

        eventually(complete, 300, lambda: f"{seen} is not {expected}")


def write(kafka: Kafka, events: Sequence[Event]) -> None:
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "partitioner": "murmur2_random"}
    )
    for topic, key, value, at in events:
        producer.produce(
            topic, None if value is None else orjson.dumps(value), key, timestamp=at
        )
    assert producer.flush(90) == 0
