"""Windows behind repartition topics: a backfill up to a cut, then live, tell what live
alone tells, although the times of the source partitions are hours apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from coopstreams import (
    CoopStreams,
    KStream,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
    until_window_closes,
)
from coopstreams.spark import Options, backfill
from coopstreams.spark.changelog_repair import Differences
from coopstreams.spark.history.sources import KafkaHistory
from coopstreams.spark.plan import stages
from coopstreams.spark.publication import publish
from coopstreams.spark.source_rebuild import rebuild_from_source
from tests.broker import test_birth_order as birth_order
from tests.broker.reading import read_topic
from tests.broker.test_time_behind_topics import (
    BEGIN_MS,
    HOUR_MS,
    Windows,
    backlog,
    expected,
    told,
    write,
)
from tests.broker.waiting import eventually
from tests.conftest import Kafka

APART_MS = 6 * HOUR_MS
Records = list[list[tuple[str, str, int]]]
"""By partition: key, value, timestamp."""


def once(stream: KStream[str, str]) -> KStream[str, str]:
    return stream.select_key(lambda _, value: value, key=serdes.text).repartition(
        name="once", key=serdes.text, value=serdes.text
    )


def twice(stream: KStream[str, str]) -> KStream[str, str]:
    """Through a topic of which one partition stays empty."""
    one = stream.select_key(lambda *_: "one", key=serdes.text)
    return once(one.repartition(name="first", key=serdes.text, value=serdes.text))


def topology(
    application: str,
    topics: tuple[str, str, str],
    through: Callable[[KStream[str, str]], KStream[str, str]],
) -> Topology:
    source, updates, final = topics
    builder = StreamsBuilder(application)
    stream = builder.stream(source, key=serdes.text, value=serdes.text)
    counts = (
        through(stream)
        .group_by_key()
        .windowed_by(TimeWindows(hours=1, grace=timedelta(0)))
        .count(store="hours", retention=timedelta(days=7))
    )
    counts.to_stream().to(updates)
    counts.suppress(until_window_closes(), name="held").to_stream().to(final)
    return builder.build()


def closed(rows: Records) -> Windows:
    """Return the windows that the slower of the partitions has passed."""
    clock = min(max(at for *_, at in some) for some in rows)
    return Windows(
        {
            window: count
            for window, count in expected(rows).items()
            if window[1] + HOUR_MS <= clock
        }
    )


def finals(kafka: Kafka, topic: str) -> list[tuple[bytes | None, bytes | None, int]]:
    return sorted(
        (each.key, each.value, each.timestamp)
        for each in read_topic(kafka.bootstrap, topic)
    )


class Case:
    """A source whose partitions are hours apart, and programs that read it."""

    def __init__(
        self,
        kafka: Kafka,
        folder: Path,
        through: Callable[[KStream[str, str]], KStream[str, str]],
    ) -> None:
        self.kafka = kafka
        self.folder = folder
        self.through = through
        self.source = kafka.topic("payments", 2, **{"retention.ms": "-1"})
        # Changelogs lose rows that are too old.
        begin_ms = (time.time_ns() // 1_000_000 // HOUR_MS - 27) * HOUR_MS
        self.rows = [
            [(key, value, at - BEGIN_MS + begin_ms + ahead) for key, value, at in rows]
            for rows, ahead in zip(
                backlog(3, 2, 4000, 0.05), [0, APART_MS], strict=True
            )
        ]
        write(kafka, self.source, self.rows)

    def program(self, name: str) -> tuple[Topology, str, str]:
        """Return a program, and its topics of updates and of final results."""
        updates, final = (
            self.kafka.topic(f"{name}-{kind}", 1, **{"retention.ms": "-1"})
            for kind in ("updates", "final")
        )
        topics = self.source, updates, final
        built = topology(self.kafka.unique(name), topics, self.through)
        return built, updates, final

    def run(self, built: Topology, updates: str, final: str) -> None:
        """Run live until all is told."""
        config: dict[str, Any] = self.kafka.config(
            self.folder / built.application_id,
            ranges_per_partition=2,
            # A silence would let time go on.
            repartition_idle_ms=3_600_000,
        )
        wanted = expected(self.rows), closed(self.rows)
        with CoopStreams(built, config):
            eventually(
                lambda: (told(self.kafka, updates), told(self.kafka, final)) == wanted,
                60,
                lambda: f"{told(self.kafka, final)} is not {wanted[1]}",
            )
            time.sleep(1)

    def audit(self, spark: SparkSession, built: Topology) -> Mapping[str, Differences]:
        """Return for each store how its rows differ from those of the source."""
        config = self.kafka.config(self.folder / built.application_id)
        found = rebuild_from_source(
            built, config, spark=spark, dry_run=True, work=str(self.folder / "rebuild")
        )
        return found.stores


@pytest.mark.ci
@pytest.mark.broker
@pytest.mark.parametrize("through", [once, twice])
def test_a_backfill_then_live_tells_what_live_alone_tells(
    kafka: Kafka,
    spark: SparkSession,
    tmp_path: Path,
    through: Callable[[KStream[str, str]], KStream[str, str]],
) -> None:
    case = Case(kafka, tmp_path, through)
    alone, *topics = case.program("alone")
    case.run(alone, *topics)

    built, updates, final = case.program("both")
    cut = {0: 900, 1: 1300}
    before = [some[: cut[at]] for at, some in enumerate(case.rows)]
    settings = {"bootstrap.servers": kafka.bootstrap}
    done = backfill(
        built,
        settings,
        spark=spark,
        sources={case.source: KafkaHistory(until=cut)},
        options=Options(ranges=2, work=str(tmp_path / "work"), outputs="topic"),
    )
    publish(done, built, settings)
    assert told(kafka, updates) == expected(before)
    assert told(kafka, final) == closed(before)
    assert len(finals(kafka, final)) == len(closed(before))

    case.run(built, updates, final)
    assert finals(kafka, final) == finals(kafka, topics[1])
    assert not any(each.wrong for each in case.audit(spark, built).values())


@pytest.mark.ci
@pytest.mark.broker
def test_state_is_rebuilt_from_the_source(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    """What is held until its window closes, too, by the clock that was committed."""
    case = Case(kafka, tmp_path, once)
    built, *topics = case.program("rebuilt")
    case.run(built, *topics)
    stores = case.audit(spark, built)
    assert not any(each.wrong for each in stores.values())
    assert stores["held-store"].equal == len(expected(case.rows)) - len(
        closed(case.rows)
    )


@pytest.mark.ci
@pytest.mark.broker
@pytest.mark.parametrize("direct", [False, True])
def test_sessions_and_joins_come_in_the_order_of_births(
    kafka: Kafka, spark: SparkSession, tmp_path: Path, direct: bool
) -> None:
    topics = {
        kafka.topic(name, 2, **{"retention.ms": "-1"}): birth_order.apart(
            backlog(seed, 2, 1000, 0.05), first
        )
        for name, seed, first in (("left", 1, 0), ("right", 2, 4))
    }
    left, right = topics
    if direct:
        topics[right] = birth_order.in_their_partitions(topics[right])
    for topic, rows in topics.items():
        write(kafka, topic, rows)
    out = kafka.unique("out")
    for kind in ("sessions", "pairs"):
        kafka.create(f"{out}-{kind}", 1, **{"retention.ms": "-1"})
    name = kafka.unique("sessions")
    built = birth_order.program(name, left, right, out, direct=direct)
    settings = {"bootstrap.servers": kafka.bootstrap}
    done = backfill(
        built,
        settings,
        spark=spark,
        sources={topic: KafkaHistory() for topic in topics},
        options=Options(ranges=2, work=str(tmp_path / "work"), outputs="topic"),
    )
    publish(done, built, settings)
    want = birth_order.expected(topics, direct=direct)
    assert not want.missing(birth_order.told(kafka, out))


def test_spark_sql_which_has_one_time_for_all_leaves_windows_on_a_clock_to_python() -> (
    None
):
    built = topology("app", ("in", "updates", "final"), once)
    counts = {"in": 2, "app-once-repartition": 2}
    told = [stage.why for stage in stages(built, counts, 2, native=True)]
    assert told[1] == 'it follows the clock of "app-once-repartition"'
