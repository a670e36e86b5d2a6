"""Backfill from DataFrames, without a broker: its results equal those of one thread."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import array, lit, struct

from coopstreams import (
    KeyValueStore,
    Processor,
    ProcessorContext,
    Record,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    key_value_store,
    serdes,
    until_window_closes,
)
from coopstreams.common.config import Config
from coopstreams.spark import plan as planning
from coopstreams.spark.execution import Backfilled, carry_out
from coopstreams.spark.history.sources import TableHistory, table_frame
from coopstreams.spark.plan import Outputs, Plan
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import ConfigError, ProcessingError
from coopstreams.topology.graph.partitions import check_partitions
from coopstreams.topology.keys import partition_of
from tests.durations import ms
from tests.spark.slices import changelogs_of


def plan_of(
    topology: Topology,
    counts: Mapping[str, int],
    ranges: int | None,
    snapshots: Path,
    outputs: Outputs = "none",
) -> Plan:
    """Return the plan of a run that reads tables only."""
    partitions = check_partitions(topology, counts).partitions
    topics = planning.sources(topology)
    return Plan(
        run="run-1",
        application=topology.application_id,
        topology=planning.digest(topology),
        cut={topic: dict.fromkeys(range(counts[topic]), (0, 0)) for topic in topics},
        stages=planning.stages(topology, partitions, ranges),
        partitions=partitions,
        tables=topics,
        outputs=outputs,
        snapshots=str(snapshots),
    )


def run(
    spark: SparkSession,
    topology: Topology,
    histories: Mapping[str, TableHistory],
    partitions: int,
    ranges: int | None,
    folder: Path,
    handler: str = "fail",
    outputs: Outputs = "none",
) -> Backfilled:
    plan = plan_of(
        topology,
        dict.fromkeys(histories, partitions),
        ranges,
        folder / "snapshots",
        outputs,
    )
    given = {
        "statestore.cache.max.bytes": 0,
        "processing.exception.handler": handler,
        "errors.dead.letter.queue.topic.name": "dead",
    }
    config = Config.of(
        {"bootstrap.servers": "nowhere:1", **given}, topology.application_id
    )
    return carry_out(spark, topology, config, plan, histories, str(folder / "work"))


def exchanging() -> Topology:
    """Each of two streams is counted together with the other one, by the other one's
    values.
    """
    builder = StreamsBuilder("exchanging")
    streams = {
        topic: builder.stream(topic, key=serdes.text, value=serdes.text)
        for topic in ("left", "right")
    }
    for topic, other in (("left", "right"), ("right", "left")):
        moved = (
            streams[other]
            .select_key(lambda _, value: value, key=serdes.text)
            .repartition(name=f"to-{topic}")
        )
        streams[topic].merge(moved).group_by_key().count(store=topic)
    return builder.build()


@pytest.mark.slow
def test_streams_that_wait_for_each_other_are_exchanged_in_rounds(
    spark: SparkSession, tmp_path: Path
) -> None:
    generator = random.Random(2)
    records = [
        (
            generator.choice(["left", "right"]),
            f"k{generator.randrange(9)}",
            f"k{generator.randrange(9)}",
            at,
        )
        for at in range(400)
    ]
    with TopologyTestDriver(exchanging()) as driver:
        for topic, key, value, at in records:
            driver.input(topic, serdes.text, serdes.text).send(key, value, timestamp=at)
        stored = {
            name: {row.key: row.value for row in driver.store(name).all()}
            for name in ("left", "right")
        }
    rows = spark.createDataFrame(
        [
            (topic, key.encode(), value.encode(), at)
            for topic, key, value, at in records
        ],
        "topic string, key binary, value binary, timestamp bigint",
    )
    histories = {
        topic: TableHistory(rows.where(rows.topic == topic))
        for topic in ("left", "right")
    }
    done = run(spark, exchanging(), histories, 2, 2, tmp_path)
    found = changelogs_of(exchanging(), tmp_path / "snapshots", done.results)
    assert {
        name: {
            key.decode(): serdes.int64.decode(value) for key, (value, _) in each.items()
        }
        for name, each in found.items()
    } == stored
    assert done.records == len(records)


def closing() -> Topology:
    """Clicks in sessions, and in seconds that are emitted on close."""
    builder = StreamsBuilder("closing")
    group = (
        builder.stream("clicks", key=serdes.text, value=serdes.text)
        .filter(lambda _, value: value != "skip")
        .group_by_key()
    )
    group.windowed_by(SessionWindows(milliseconds=300, grace=ms(200))).count(
        store="sessions", retention=ms(5000)
    ).to_stream().to("sessions")
    seconds = group.windowed_by(TimeWindows(milliseconds=1000, grace=ms(500))).count(
        store="seconds"
    )
    seconds.suppress(until_window_closes(), name="final").to_stream().to("seconds")
    return builder.build()


@pytest.mark.ci
@pytest.mark.parametrize("ranges", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_sessions_and_windows_that_are_told_once_are_those_of_the_test_driver(
    spark: SparkSession, tmp_path: Path, ranges: int
) -> None:
    generator, now, clicks = random.Random(5), 0, []
    for _ in range(2500):
        now += generator.randrange(30)
        late = generator.randrange(2500) if generator.random() < 0.1 else 0
        clicks.append(
            (
                f"k{generator.randrange(20)}",
                generator.choice(["x", "x", "skip"]),
                max(0, now - late),
            )
        )
    with TopologyTestDriver(closing()) as driver:
        topic = driver.input("clicks", serdes.text, serdes.text)
        for key, value, at in clicks:
            topic.send(key, value, timestamp=at)
        written = Counter(record.topic for record in driver.outputs())
        dropped = {
            f"{node}: {reason}": count
            for (node, reason), count in driver.dropped.items()
        }
        stored = {
            name: {row.key: row.value for row in driver.store(name).all()}
            for name in ("sessions", "seconds")
        }
    assert dropped
    rows = [
        (key.encode(), value.encode(), at, number)
        for number, (key, value, at) in enumerate(clicks)
    ]
    table_of = spark.createDataFrame(
        rows, "key binary, value binary, timestamp bigint, number bigint"
    )
    done = run(
        spark,
        closing(),
        {"clicks": TableHistory(table_of, ["number"])},
        1,
        ranges,
        tmp_path,
    )
    assert (
        sum((Counter(result.written) for result in done.results), Counter()) == written
    )
    assert (
        sum((Counter(result.dropped) for result in done.results), Counter()) == dropped
    )
    found = changelogs_of(closing(), tmp_path / "snapshots", done.results)
    (held,) = found.keys() - stored.keys()
    assert found[held], (
        "nothing is held back at the end: the test proves less than it should"
    )
    session, second = (
        serdes.session_windowed(serdes.text),
        serdes.windowed(serdes.text, timedelta(milliseconds=1000)),
    )
    sessions = {
        session.decode(key): serdes.int64.decode(value)
        for key, (value, _) in found["sessions"].items()
    }
    seconds = {
        second.decode(key[:-4]): serdes.int64.decode(value)
        for key, (value, _) in found["seconds"].items()
    }
    for expected, rows_ in (
        (stored["sessions"], sessions),
        (stored["seconds"], seconds),
    ):
        assert expected
        # Expired rows may be in a segment that has not expired.
        assert expected == {key: rows_.get(key) for key in expected}


class Totals(Processor[str, str, str, int]):
    """Forwards, every second of stream time, the number of records of each key since."""

    def init(self, context: ProcessorContext[str, int]) -> None:
        super().init(context)
        self.counts: KeyValueStore[str, int] = context.store("since")
        context.schedule(ms(1000), "stream_time", self.tell)

    def process(self, record: Record[str, str]) -> None:
        self.counts.put(record.key, (self.counts.get(record.key) or 0) + 1)

    def tell(self, now_ms: int) -> None:
        for key, count in sorted(self.counts.all()):
            self.context.forward(Record(key, count, now_ms))
            self.counts.delete(key)


def totals() -> Topology:
    builder = StreamsBuilder("totals")
    store = key_value_store("since", key=serdes.text, value=serdes.int64)
    clicks = builder.stream("clicks", key=serdes.text, value=serdes.text)
    clicks.process(
        Totals, stores=[store], key=serdes.text, value=serdes.int64, by_key=True
    ).to("totals")
    return builder.build()


@pytest.mark.ci
def test_punctuations_by_stream_time_are_called_at_the_records_of_a_live_task(
    spark: SparkSession, tmp_path: Path
) -> None:
    generator = random.Random(6)
    clicks = [
        (f"k{generator.randrange(9)}", max(0, 20 * at - generator.choice([0, 0, 700])))
        for at in range(600)
    ]
    with TopologyTestDriver(totals()) as driver:
        for key, at in clicks:
            driver.input("clicks", serdes.text, serdes.text).send(
                key, "x", timestamp=at
            )
        expected = [
            (record.key, record.value, record.timestamp) for record in driver.outputs()
        ]
        kept = {row.key: row.value for row in driver.store("since").all()}
    rows = [(key.encode(), b"x", at, number) for number, (key, at) in enumerate(clicks)]
    table = spark.createDataFrame(
        rows, "key binary, value binary, timestamp bigint, number bigint"
    )
    done = run(
        spark,
        totals(),
        {"clicks": TableHistory(table, ["number"])},
        1,
        None,
        tmp_path,
        outputs="table",
    )
    told = (
        done.outputs(spark).orderBy("time", "subtopology", "task", "number").collect()
    )
    assert [
        (row.key.decode(), serdes.int64.decode(bytes(row.value)), row.timestamp)
        for row in told
    ] == expected
    found = changelogs_of(totals(), tmp_path / "snapshots", done.results)["since"]
    assert {
        key.decode(): serdes.int64.decode(value) for key, (value, _) in found.items()
    } == kept
    assert kept


def stubborn() -> Topology:
    """A program that fails at a text that is not a number."""
    builder = StreamsBuilder("stubborn")
    builder.stream("numbers", key=serdes.text, value=serdes.text).map_values(
        int, value=serdes.int64
    ).group_by_key().count(store="counts")
    return builder.build()


def numbers(spark: SparkSession) -> TableHistory:
    rows = [
        (b"k%d" % (at % 7), b"none" if at == 33 else b"%d" % at, at) for at in range(60)
    ]
    return TableHistory(
        spark.createDataFrame(rows, "key binary, value binary, timestamp bigint")
    )


@pytest.mark.ci
def test_a_record_that_fails_ends_the_run_with_its_position_or_is_a_counted_dead_letter(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(
        ProcessingError,
        match=r'the record at "numbers" partition 0 offset 33 made a function raise',
    ):
        run(spark, stubborn(), {"numbers": numbers(spark)}, 1, 2, tmp_path / "fails")
    done = run(
        spark,
        stubborn(),
        {"numbers": numbers(spark)},
        1,
        2,
        tmp_path / "goes-on",
        handler="dead-letter",
    )
    counts = changelogs_of(
        stubborn(), tmp_path / "goes-on" / "snapshots", done.results
    )["counts"]
    assert {key: serdes.int64.decode(value) for key, (value, _) in counts.items()} == {
        b"k%d" % digit: sum(at % 7 == digit and at != 33 for at in range(60))
        for digit in range(7)
    }
    assert (
        sum(
            count
            for result in done.results
            for reason, count in result.dropped.items()
            if reason.endswith(": processing")
        )
        == 1
    )
    assert done.unwritten == {"dead": 1}, "the run writes state only"


def test_the_error_of_a_task_is_raised_and_not_its_cause(
    spark: SparkSession, tmp_path: Path
) -> None:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.int64).filter(
        lambda _, value: value > 0
    ).to("out")
    rows = spark.createDataFrame(
        [(b"key", b"short", 1)], "key binary, value binary, timestamp bigint"
    )
    setting = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
    spark.conf.set(setting, "false")  # the text has the causes, too
    try:
        with pytest.raises(
            ProcessingError,
            match='the record at "in" partition 0 offset 0 cannot be read',
        ):
            run(spark, builder.build(), {"in": TableHistory(rows)}, 1, 1, tmp_path)
    finally:
        spark.conf.unset(setting)


@pytest.mark.ci
def test_a_table_without_partitions_gets_those_of_a_producer_and_loses_no_record(
    spark: SparkSession,
) -> None:
    keys = [None if number % 5 == 0 else b"key-%d" % number for number in range(200)]
    rows = spark.createDataFrame(
        [(key, b"%d" % at, at) for at, key in enumerate(keys)],
        "key binary, value binary, timestamp bigint",
    )
    found = table_frame(TableHistory(rows), "topic", 3).collect()
    assert sorted(row.timestamp for row in found) == list(range(200))
    assert all(
        row.topic == "topic"
        and row.headers is None
        and bytes(row.value) == b"%d" % row.timestamp
        for row in found
    )
    assert all(
        row.partition == partition_of(bytes(row.key), 3)
        and row.key == keys[row.timestamp]
        for row in found
        if row.key is not None
    )
    assert {row.partition for row in found if row.key is None} == {0, 1, 2}


@pytest.mark.ci
def test_a_table_whose_order_is_not_total_is_numbered_in_the_same_way_each_time(
    spark: SparkSession,
) -> None:
    """Spark may send rows in another order to a task that is tried again, or to a run
    that is resumed.
    """
    rows = [
        (key, f"{number}".encode(), 1000)
        for number in range(20)
        for key in (None, b"key")
    ]
    first, again = (
        table_frame(
            TableHistory(
                spark.createDataFrame(
                    sent, "key binary, value binary, timestamp bigint"
                )
            ),
            "in",
            2,
        )
        for sent in (rows, rows[::-1])
    )
    assert first.collect() == again.collect()


@pytest.mark.ci
def test_a_record_of_a_table_without_a_timestamp_ends_the_run_with_the_reason(
    spark: SparkSession,
) -> None:
    rows = spark.createDataFrame(
        [(b"k", b"v", 1), (b"k", b"v", None)],
        "key binary, value binary, timestamp bigint",
    )
    with pytest.raises(
        PySparkException, match='the history of "orders": a record has no timestamp'
    ):
        table_frame(TableHistory(rows), "orders", 1).collect()


def test_a_table_that_is_no_history_is_refused(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [("k", b"v", 1)], "key string, value binary, timestamp bigint"
    )
    with pytest.raises(ConfigError, match='"key" must be binary, it is string'):
        TableHistory(rows).check("orders")
    good = rows.selectExpr("cast(key as binary) as key", "value", "timestamp")
    TableHistory(good).check("orders")
    numbered = good.withColumn("partition", lit(0).cast("bigint"))
    with pytest.raises(ConfigError, match='"partition" must be int, it is bigint'):
        TableHistory(numbered).check("orders")
    headed = good.withColumn(
        "headers", array(struct(lit("n").alias("key"), good.value))
    )
    with pytest.raises(
        ConfigError,
        match=r'"headers" must be array<struct<name:string,value:binary>>, it is',
    ):
        TableHistory(headed).check("orders")
    with pytest.raises(ConfigError, match="no column number to order by"):
        TableHistory(good, order_by=["number"]).check("orders")
