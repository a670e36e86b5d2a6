"""Several aggregates in one table: a backfill has the rows of a live application."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.sql import SparkSession

from coopstreams import (
    SessionWindows,
    StreamsBuilder,
    Topology,
    count,
    count_distinct,
    max_,
    mean,
    quantile,
    serdes,
    sum_,
    top_,
)
from coopstreams.spark.history.sources import TableHistory
from coopstreams.spark.workers.shipping import ship, unship
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.serdes import Serde
from tests.durations import ms
from tests.spark.slices import changelogs_of
from tests.spark.test_backfill import run

STORES = ("all", "sessions")


def several() -> Topology:
    builder = StreamsBuilder("several")
    group = builder.stream("in", key=serdes.text, value=serdes.json).group_by_key()
    group.aggregate(
        n=count(),
        total=sum_("ms"),
        best=top_("ms", 3, of="user"),
        users=count_distinct("user"),
        store="all",
    )
    group.windowed_by(SessionWindows(milliseconds=30, grace=ms(10_000))).aggregate(
        average=mean(lambda value: value["ms"] / 1000),
        worst=max_("ms"),
        p90=quantile("ms", 0.9),
        users=count_distinct("user"),
        store="sessions",
        retention=ms(1_000_000),
    )
    return builder.build()


def records() -> list[tuple[str, dict[str, Any], int]]:
    generator = random.Random(7)
    return [
        (
            f"k{generator.randrange(6)}",
            {"ms": generator.randrange(1000), "user": f"u{generator.randrange(400)}"},
            10 * at + generator.randrange(100),
        )
        for at in range(800)
    ]


def driven(topology: Topology) -> dict[str, dict[bytes, Any]]:
    """Return the rows of the test driver, by store and serialised key."""
    specs = {spec.name: spec for part in topology.subtopologies for spec in part.stores}
    with TopologyTestDriver(topology) as driver:
        for key, value, at in records():
            driver.input("in").send(key, value, at)
        return {
            name: {
                (specs[name].row_key or specs[name].key).serialize(row.key): row.value
                for row in driver.store(name).all()
            }
            for name in STORES
        }


def test_a_shipped_topology_has_the_same_rows() -> None:
    assert driven(unship(ship(several()))) == driven(several())


@pytest.mark.ci
def test_a_backfill_has_the_rows_of_a_live_application(
    spark: SparkSession, tmp_path: Path
) -> None:
    topology = several()
    table = spark.createDataFrame(
        [
            (key.encode(), orjson.dumps(value), at, number)
            for number, (key, value, at) in enumerate(records())
        ],
        "key binary, value binary, timestamp bigint, number bigint",
    )
    history = {"in": TableHistory(table, ["number"])}
    done = run(spark, topology, history, 1, 3, tmp_path)
    found = changelogs_of(topology, tmp_path / "snapshots", done.results)
    serde: dict[str, Serde[Any]] = {
        spec.name: spec.value for part in topology.subtopologies for spec in part.stores
    }

    def finished(store: str, data: bytes) -> Any:
        finish = serde[store].shown
        assert finish is not None
        return finish(serde[store].deserialize(data))

    assert {
        store: {key: finished(store, value) for key, (value, _) in found[store].items()}
        for store in STORES
    } == driven(topology)
