"""Outputs as a table: every update is in it once, whatever fails in between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import Row, SparkSession

from coopstreams import StreamsBuilder, Topology, serdes
from coopstreams.common.config import Config
from coopstreams.spark import Backfilled, Options, backfill, table_outputs
from coopstreams.spark.execution import carry_out
from coopstreams.spark.history.sources import TableHistory
from coopstreams.spark.plan import Plan, Stage
from coopstreams.state.storage import Storage
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import ConfigError
from tests.spark.test_backfill import plan_of

BEGIN_MS = 1_700_000_000_000
RECORDS = [
    (f"key-{number % 23}", "bad" if number == 321 else "x", BEGIN_MS + 10 * number)
    for number in range(700)
]


def stumble(key: Any, _: Any) -> None:
    """Fail, inside Spark, in the first attempt of a task that has one of these keys."""
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0 and key.endswith("7"):
        raise SystemExit("injected")  # no record fails, and no handler is called


def good(value: Any) -> bool:
    """Fail in any attempt for a bad value."""
    if value == "bad":
        raise ValueError(value)
    return True


def topology() -> Topology:
    """Counts by key, and by the last digit of the key behind a repartition; each update
    of both is written.
    """
    builder = StreamsBuilder("tables")
    clicks = (
        builder.stream("clicks", key=serdes.text, value=serdes.text)
        .peek(stumble)
        .filter(lambda _, value: good(value))
    )
    clicks.group_by_key().count(store="keys").to_stream().to("keys")
    by_digit = (
        clicks.select_key(lambda key, _: key[-1], key=serdes.text)
        .repartition(name="by-digit")
        .group_by_key()
    )
    by_digit.count(store="digits").to_stream().to("digits")
    return builder.build()


def settings() -> dict[str, Any]:
    handler = {
        "processing.exception.handler": "dead-letter",
        "errors.dead.letter.queue.topic.name": "letters",
    }
    return {
        "bootstrap.servers": "nowhere:1",
        "statestore.cache.max.bytes": 0,
        **handler,
    }


def run(
    spark: SparkSession, plan: Plan, work: Path, on_stage: Any = None
) -> Backfilled:
    rows = [(key.encode(), value.encode(), at) for key, value, at in RECORDS]
    history = TableHistory(
        spark.createDataFrame(rows, "key binary, value binary, timestamp bigint")
    )
    return carry_out(
        spark,
        topology(),
        Config.of(settings(), "tables"),
        plan,
        {"clicks": history},
        str(work),
        on_stage,
    )


def updates(rows: Iterable[Row]) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Return the values and timestamps of each key of a topic, in the order of the
    table.
    """
    found = defaultdict(list)
    for row in sorted(
        rows, key=lambda row: (row.time, row.subtopology, row.task, row.number)
    ):
        if row.topic != "letters":
            found[row.topic, row.key.decode()].append(
                (serdes.int64.decode(bytes(row.value)), row.timestamp)
            )
    return found


def expected() -> dict[tuple[str, str], list[tuple[int, int]]]:
    found = defaultdict(list)
    with TopologyTestDriver(topology(), config=settings()) as driver:
        clicks = driver.input("clicks", serdes.text, serdes.text)
        for key, value, at in RECORDS:
            clicks.send(key, value, timestamp=at)
        for record in driver.outputs():
            if record.topic in ("keys", "digits"):
                found[record.topic, record.key].append((record.value, record.timestamp))
    return found


@pytest.mark.ci
def test_failing_tasks_and_a_driver_that_died_twice_double_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    table, work = tmp_path / "table", tmp_path / "work"
    plan = replace(
        plan_of(topology(), {"clicks": 1}, 2, tmp_path / "snapshots"),
        outputs="table",
        table=str(table),
        snapshots=None,
    )

    def die(stage: Stage) -> None:
        if stage.subtopology == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spark, plan, work, die)
    assert not table.exists(), "a table is seen whole or not at all"
    done = run(spark, plan, work)
    # As if the run had died during the write: the table's mark is missing.
    Storage(str(work)).delete(f"{plan.run}/table")
    again = run(spark, plan, work)
    assert again.results == done.results
    rows = spark.read.parquet(str(table)).collect()
    assert {row.run for row in rows} == {plan.run}
    assert updates(rows) == expected()
    assert updates(done.outputs(spark).collect()) == expected()
    (letter,) = [row for row in rows if row.topic == "letters"]
    assert (bytes(letter.key), bytes(letter.value)) == (b"key-22", b"bad")
    assert {header.name for header in letter.headers} >= {
        "__coopstreams.errors.exception"
    }


def test_a_table_that_was_not_asked_for_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    plan = plan_of(topology(), {"clicks": 1}, 1, tmp_path)
    with pytest.raises(ConfigError, match='its outputs are "none"'):
        table_outputs.frame(spark, plan, str(tmp_path))
    with pytest.raises(ConfigError, match='say outputs="table"'):
        backfill(
            topology(), settings(), spark=spark, options=Options(table=str(tmp_path))
        )
    with pytest.raises(ConfigError, match="outputs must be none or table"):
        backfill(
            topology(),
            settings(),
            spark=spark,
            options=Options(outputs="topic", seed=False),
        )
