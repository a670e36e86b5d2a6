"""Foreign-key joins in a backfill, without a broker: tables, and each update of them, are those of a driver that answers at once."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.sql import SparkSession

from coopstreams import StreamsBuilder, Topology, serdes
from coopstreams.config import Config
from coopstreams.spark import Backfilled
from coopstreams.spark.history import TableHistory
from coopstreams.spark.plan import Plan
from coopstreams.spark.running import carry_out
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.keys import partition_of
from tests.spark.slices import changelogs_of
from tests.spark.test_backfill import plan_of

Event = tuple[str, str, Any, int]
"""Topic, key, value, timestamp."""
SOURCES = ("orders", "people", "countries", "clicks")
TABLES = ("owned", "placed", "per-name")


def topology_of(*, left: bool) -> Topology:
    """Orders meet the person whom they name, then that one's country; clicks look into the result, and names are counted."""
    builder = StreamsBuilder("foreign")
    orders, people, countries = (builder.table(topic, key=serdes.text, value=serdes.json) for topic in SOURCES[:3])
    clicks = builder.stream("clicks", key=serdes.text, value=serdes.json)
    pair = {"joiner": lambda one, other: [one, other], "value": serdes.json}
    owned = (orders.left_join if left else orders.join)(people, foreign_key=lambda order: order["person"], store="owned", name="owned", **pair)
    placed = owned.left_join(countries, foreign_key=lambda row: row[1] and row[1]["country"], store="placed", name="placed", **pair)
    placed.to_stream().to("placed")
    owned.group_by(lambda key, row: (row[0]["person"] or "", row), key=serdes.text, value=serdes.json).count(store="per-name")
    clicks.join(owned, lambda click, row: [click, row], value=serdes.json).to("seen")
    return builder.build()


def events_of(seed: int, count: int, *, late: bool) -> list[Event]:
    """Changes and deletions on all sides, each at a moment of its own. `late`: some with older timestamps than those before them."""
    generator, found = random.Random(seed), list[Event]()
    people, countries = [f"p{n}" for n in range(12)], [f"c{n}" for n in range(4)]
    for number in range(count):
        topic = generator.choice(["orders"] * 4 + ["people"] * 2 + ["countries", "clicks"])
        gone = topic != "clicks" and generator.random() < 0.15
        key = {"orders": f"o{generator.randrange(40)}", "clicks": f"o{generator.randrange(40)}"}.get(topic) or generator.choice(
            people if topic == "people" else countries
        )
        value = {"orders": "person", "people": "country"}.get(topic)
        row: dict[str, Any] = {"n": generator.randrange(3)}
        if value is not None:
            row[value] = generator.choice([*(people if topic == "orders" else countries), None])
        at = 10 * number + 1 - (generator.randrange(2000) if late and generator.random() < 0.3 else 0)
        found.append((topic, key, None if gone else row, max(0, at)))
    return found


def histories(spark: SparkSession, events: Sequence[Event], partitions: int) -> dict[str, TableHistory]:
    schema = "topic string, key binary, value binary, timestamp bigint, number bigint, partition int"
    rows = spark.createDataFrame(
        [
            (topic, key.encode(), None if value is None else orjson.dumps(value), at, number, partition_of(key.encode(), partitions))
            for number, (topic, key, value, at) in enumerate(events)
        ],
        schema,
    )
    return {topic: TableHistory(rows.where(rows.topic == topic), order_by=["number"]) for topic in SOURCES}


def run(spark: SparkSession, plan: Plan, topology: Topology, events: Sequence[Event], partitions: int, folder: Path, cache_bytes: int) -> Backfilled:
    config = Config.of({"bootstrap.servers": "nowhere:1", "statestore.cache.max.bytes": cache_bytes}, topology.application_id)
    return carry_out(spark, topology, config, plan, histories(spark, events, partitions), str(folder / "work"))


def driven(topology: Topology, events: Sequence[Event]) -> tuple[dict[str, dict[str, Any]], dict[tuple[str, str], list[tuple[Any, int]]]]:
    """Return the tables in the end, and for each topic and key its updates."""
    updates = defaultdict(list)
    with TopologyTestDriver(topology) as driver:
        for topic, key, value, at in events:
            driver.input(topic, serdes.text, serdes.json).send(key, value, timestamp=at)
        for record in driver.outputs():
            if record.topic in ("placed", "seen"):
                updates[record.topic, record.key].append((record.value, record.timestamp))
        return {name: {row.key: row.value for row in driver.store(name).all()} for name in TABLES}, updates


def tables(topology: Topology, folder: Path, done: Backfilled) -> dict[str, dict[str, Any]]:
    serde = {"per-name": serdes.int64}
    found = changelogs_of(topology, folder / "snapshots", done.results)
    return {
        name: {key.decode(): serde.get(name, serdes.json).decode(value) for key, (value, _) in found[name].items()} for name in TABLES
    }


def plan_with_table(topology: Topology, partitions: int, ranges: int, folder: Path) -> Plan:
    return replace(plan_of(topology, dict.fromkeys(SOURCES, partitions), ranges, folder / "snapshots"), outputs="table")


@pytest.mark.parametrize(("left", "partitions", "ranges"), [(False, 1, 2), (True, 2, 3)])
def test_tables_and_all_their_updates_are_those_of_answers_that_come_at_once(
    spark: SparkSession, tmp_path: Path, left: bool, partitions: int, ranges: int
) -> None:
    topology, events = topology_of(left=left), events_of(3, 2500, late=False)
    expected, told = driven(topology, events)
    done = run(spark, plan_with_table(topology, partitions, ranges, tmp_path), topology, events, partitions, tmp_path, 0)
    assert done.records == len(events)
    assert tables(topology, tmp_path, done) == expected
    updates = defaultdict(list)
    for row in sorted(done.outputs(spark).collect(), key=lambda row: (row.time, row.subtopology, row.task, row.number)):
        updates[row.topic, row.key.decode()].append((None if row.value is None else orjson.loads(bytes(row.value)), row.timestamp))
    assert any(topic == "seen" for topic, _ in told)
    assert updates == told
