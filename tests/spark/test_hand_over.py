"""The law of the hand-over, on a real Kafka: a backfill up to a cut, then a live
application, give the results of one run.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from coopstreams import (
    CoopStreams,
    KeyValueStore,
    Processor,
    ProcessorContext,
    Record,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    key_value_store,
    serdes,
)
from coopstreams.common.config import Config
from coopstreams.query.client import QueryClient
from coopstreams.spark import Options, backfill
from coopstreams.spark.history.sources import KafkaHistory, TableHistory
from coopstreams.spark.preparation import make_plan
from coopstreams.spark.publication import publish
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import ConfigError, OffsetOutOfRangeError, QueryError
from tests.broker import law, test_law
from tests.broker.counting import Counting
from tests.broker.reading import read_topic, updates_of
from tests.broker.waiting import eventually
from tests.conftest import PATIENT, Kafka
from tests.durations import ms

pytestmark = pytest.mark.broker


def options(tmp_path: Path, **given: Any) -> Options:
    return Options(ranges=2, work=str(tmp_path / "work"), outputs="topic", **given)


@contextmanager
def never_stopping(
    bootstrap: str, topic: str, keys: Sequence[str]
) -> Iterator[Counter[str]]:
    """Write records of these keys during the block; they are counted at its end."""
    written: Counter[str] = Counter()
    stop = threading.Event()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "partitioner": "murmur2_random",
        }
    )

    def write() -> None:
        while not stop.is_set():
            for key in keys:
                producer.produce(topic, b"x", key)
                written[key] += 1
            producer.poll(0)
            time.sleep(0.01)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join()
        assert producer.flush(90) == 0


@pytest.mark.slow
def test_a_count_goes_on_behind_a_producer_that_never_stops(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    counting = Counting.make(kafka, partitions=2)
    keys = [f"key-{number}" for number in range(50)]
    settings = {"bootstrap.servers": kafka.bootstrap, "statestore.cache.max.bytes": 0}
    before = counting.write(keys * 40)
    with never_stopping(kafka.bootstrap, counting.source, keys) as written:
        done = backfill(
            counting.topology, settings, spark=spark, options=options(tmp_path)
        )
        publish(done, counting.topology, settings)
        assert done.records >= before.total()
        with counting.app(tmp_path / "state", statestore_cache_max_bytes=0) as app:
            time.sleep(1)
    expected = before + written
    with (
        counting.app(tmp_path / "state", statestore_cache_max_bytes=0) as app,
        QueryClient(str(app.url), deadline_s=60) as client,
    ):

        def counted() -> dict[str, int]:
            try:
                return {
                    entry.key: entry.value
                    for entry in client.range("counts", page=5000)
                }
            except QueryError:
                return {}

        eventually(
            lambda: counted() == expected, 150, lambda: f"{counted()} is not {expected}"
        )
    assert updates_of(kafka.bootstrap, counting.sink) == {
        key: list(range(1, count + 1)) for key, count in expected.items()
    }
    assert done.records < expected.total(), "nothing was left for the live application"


def test_behind_a_table_live_goes_on_at_an_offset_that_the_topic_still_has(
    kafka: Kafka, spark: SparkSession
) -> None:
    source = kafka.topic("in", retention_ms="-1")
    kafka.write(source, [(b"key", b"x", at) for at in range(1, 6)])
    kafka.delete_before(source, 0, 3)
    builder = StreamsBuilder(kafka.unique("app"))
    builder.stream(source, key=serdes.text, value=serdes.text).group_by_key().count(
        store="counts"
    )
    topology = builder.build()
    config = Config.of({"bootstrap.servers": kafka.bootstrap}, topology.application_id)
    rows = spark.createDataFrame(
        [(b"key", b"x", 1)], "key binary, value binary, timestamp bigint"
    )

    def goes_on(**given: Any) -> int:
        plan = make_plan(
            topology,
            config,
            {source: TableHistory(rows, **given)},
            Options(),
            create=False,
        )
        ((_, end),) = plan.cut[source].values()
        return end

    assert (goes_on(), goes_on(continues_at={0: 4}), goes_on(continues_at={0: 5})) == (
        3,
        4,
        5,
    )
    with pytest.raises(
        OffsetOutOfRangeError,
        match="the cut 2 lies below the first record that is left, 3",
    ):
        goes_on(continues_at={0: 2})
    with pytest.raises(ConfigError, match="it ends at 5, the cut is 6"):
        goes_on(continues_at={0: 6})
    with pytest.raises(
        ConfigError, match="says where partition '0' goes on: there are 0 to 0"
    ):
        goes_on(continues_at={"0": 4})


@pytest.mark.ci
def test_a_program_that_reads_what_it_writes_is_told_that_its_results_are_missing_there(
    kafka: Kafka, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    source, between = (
        kafka.topic("in", retention_ms="-1"),
        kafka.topic("between", retention_ms="-1"),
    )
    kafka.write(source, [(b"key", b"x", 1)])
    builder = StreamsBuilder(kafka.unique("app"))
    builder.stream(source, key=serdes.text, value=serdes.text).to(between)
    builder.stream(between, key=serdes.text, value=serdes.text).group_by_key().count(
        store="counts"
    )
    topology = builder.build()
    config = Config.of({"bootstrap.servers": kafka.bootstrap}, topology.application_id)
    rows = spark.createDataFrame(
        [(b"key", b"x", 1)], "key binary, value binary, timestamp bigint"
    )

    def told(asked: Options, history: Mapping[str, TableHistory] = {}) -> bool:
        caplog.clear()
        make_plan(topology, config, history, asked, create=False)
        return f'the program writes to "{between}" and reads it' in caplog.text

    assert told(Options())
    assert told(Options(outputs="table"))
    assert not told(Options(outputs="topic"))
    assert not told(Options(), {between: TableHistory(rows)})
    kafka.write(between, [(b"key", b"x", 1)])
    assert not told(Options())


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is in another time zone."""
    with monkeypatch.context() as there:
        there.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("tokyo")
def test_a_cut_by_time_without_a_zone_is_utc_wherever_the_driver_is(
    kafka: Kafka,
) -> None:
    source, hour_ms = kafka.topic("in", retention_ms="-1"), 3_600_000
    kafka.write(
        source, [(b"key", b"x", at * hour_ms) for at in range(1, 24)]
    )  # Kafka's client takes 0 for now
    builder = StreamsBuilder(kafka.unique("app"))
    builder.stream(source, key=serdes.text, value=serdes.text).group_by_key().count(
        store="counts"
    )
    topology = builder.build()
    config = Config.of({"bootstrap.servers": kafka.bootstrap}, topology.application_id)
    plan = make_plan(
        topology, config, {}, Options(until=datetime(1970, 1, 1, 12)), create=False
    )
    assert plan.cut == {source: {0: (0, 11)}}


def rare_sliding(application: str, source: str) -> Topology:
    """Windows of rare records: those of the source, and those behind a repartition
    topic.
    """
    builder = StreamsBuilder(application)
    stream = builder.stream(source, key=serdes.text, value=serdes.text)
    stream.group_by_key().count(store="all")
    rare = stream.filter(lambda key, _: key == "rare")
    sliding = SlidingWindows(difference=timedelta(minutes=10))
    sessions = SessionWindows(gap=timedelta(minutes=10))
    week = timedelta(days=7)
    rare.group_by_key().windowed_by(sliding).count(store="rare", retention=week)
    moved = rare.group_by(lambda _, value: value, key=serdes.text, name="by-value")
    moved.windowed_by(sliding).count(store="behind", retention=week)
    moved.windowed_by(sessions).count(store="sessions", retention=week)
    return builder.build()


@pytest.mark.slow
def test_rows_that_have_expired_by_the_time_of_the_run_are_left_out_and_counted(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    """The time of an operator below a filter is that of the last record that passed. A
    row of 20 days ended a run whose store keeps 7.
    """
    source, day_ms = kafka.topic("in", retention_ms="-1"), 86_400_000
    now_ms = time.time_ns() // 1_000_000
    for days in (90, 60, 30, 20, 10, 1):
        keys = [b"often", b"rare"] if days in (30, 20) else [b"often"]
        at = now_ms - days * day_ms
        kafka.write(source, [(key, b"x") for key in keys], timestamp=at)
    topology = rare_sliding(kafka.unique("expired"), source)
    config = {"bootstrap.servers": kafka.bootstrap}
    done = backfill(topology, config, spark=spark, options=options(tmp_path))
    seeded, expired = Counter[str](), Counter[str]()
    for result in done.results:
        seeded.update(result.seeded)
        expired.update(result.expired)
    assert +seeded == {"all": 2}
    assert expired == {"rare": 1, "behind": 1, "sessions": 1}


class Ticks(Processor[str, str, str, int]):
    """Forwards every ten seconds of stream time the number of records since."""

    def init(self, context: ProcessorContext[str, int]) -> None:
        super().init(context)
        self.seen: KeyValueStore[str, int] = context.store("seen")
        context.schedule(ms(10_000), "stream_time", self.tell)

    def process(self, record: Record[str, str]) -> None:
        self.seen.put("records", (self.seen.get("records") or 0) + 1)

    def tell(self, now_ms: int) -> None:
        self.context.forward(Record("records", self.seen.get("records") or 0, now_ms))
        self.seen.put("records", 0)


def timed(application: str, source: str, ticks: str, windows: str) -> Topology:
    builder = StreamsBuilder(application)
    stream = builder.stream(source, key=serdes.text, value=serdes.text)
    store = key_value_store("seen", key=serdes.text, value=serdes.int64)
    stream.process(
        Ticks, stores=[store], key=serdes.text, value=serdes.int64, by_key=False
    ).to(ticks)
    counted = (
        stream.group_by_key()
        .windowed_by(TimeWindows(milliseconds=1000, grace=0))
        .count(store="seconds")
    )
    counted.to_stream().map(
        lambda at, count: (f"{at.key} {at.start_ms}", count),
        key=serdes.text,
        value=serdes.int64,
    ).to(windows)
    return builder.build()


@pytest.mark.ci
def test_stream_time_and_timers_go_on_over_the_cut(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    source, ticks, windows = (
        kafka.topic(name, retention_ms="-1") for name in ("in", "ticks", "windows")
    )
    topology = timed(kafka.unique("timed"), source, ticks, windows)
    begin = (
        int(time.time()) // 10 * 10_000 - 200_000
    )  # punctuations are due at multiples of their interval
    before = [begin + at for at in (1_000, 9_000, 11_500, 24_000, 23_000, 57_000)]
    # The first is late by the clock of the backfill, and no punctuation may be called
    # for a past time.
    behind = [begin + at for at in (5_000, 57_100, 58_000, 61_000, 60_000, 83_000)]
    expected: dict[str, list[tuple[str, int, int]]] = {ticks: [], windows: []}
    with TopologyTestDriver(topology) as driver:
        for at in [*before, *behind]:
            driver.input(source, serdes.text, serdes.text).send(
                "key", "x", timestamp=at
            )
        for record in driver.outputs():
            expected[record.topic].append((record.key, record.value, record.timestamp))
    assert len(expected[windows]) == len(before) + len(behind) - 3, (
        "what is late is dropped"
    )

    def write(times: Sequence[int]) -> None:
        kafka.write(source, ((b"key", b"x", at) for at in times))

    write(before)
    settings = {"bootstrap.servers": kafka.bootstrap, "statestore.cache.max.bytes": 0}
    done = backfill(topology, settings, spark=spark, options=options(tmp_path))
    publish(done, topology, settings)
    write(behind)

    def found(topic: str) -> list[tuple[str, int, int]]:
        return [
            (
                (record.key or b"").decode(),
                serdes.int64.decode(record.value or b""),
                record.timestamp,
            )
            for record in read_topic(kafka.bootstrap, topic)
        ]

    with CoopStreams(
        topology,
        {**settings, "state.dir": str(tmp_path / "state"), "commit.interval.ms": 100},
    ):
        # The last record of each topic comes from the last record of the input.
        eventually(
            lambda: all(rows[-1] in found(topic) for topic, rows in expected.items()),
            60,
            lambda: f"{found(ticks)}, {found(windows)}",
        )
    assert found(windows) == expected[windows]
    told, by_backfill = (
        found(ticks),
        [row for row in expected[ticks] if row[2] <= max(before)],
    )
    assert told[: len(by_backfill)] == by_backfill
    # As after any restart, the first record behind the cut triggers the punctuations,
    # with the current time.
    assert [at for _, _, at in told[len(by_backfill) :] if at < max(before)] == []
    assert sum(count for _, count, _ in told) == len(before) + len(behind)


def clean_cut(records: Sequence[law.Input]) -> int:
    """Return an index near the middle of the input such that no later record belongs
    before it, in any partition.
    """
    times = [0] * len(records)
    for at in {(record.topic, record.partition) for record in records}:
        mine = [
            number
            for number, record in enumerate(records)
            if (record.topic, record.partition) == at
        ]
        for number, time_ in zip(
            mine,
            accumulate((records[number].timestamp for number in mine), max),
            strict=True,
        ):
            times[number] = time_
    before = list(accumulate(times, max))
    behind = list(accumulate(reversed(times), min))[::-1]
    return next(
        at
        for at in range(len(records) // 2, len(records))
        if before[at - 1] <= behind[at]
    )


def total(metrics: str, name: str) -> float:
    return sum(
        float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith(f"{name}{{")
    )


@pytest.mark.ci
@pytest.mark.parametrize(
    "orders",
    [4000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_windows_joins_and_repartitions_go_on_where_the_backfill_was_cut(
    kafka: Kafka, spark: SparkSession, tmp_path: Path, orders: int
) -> None:
    partitions = 2
    topics = test_law.topics_for(kafka, partitions)
    topology = law.law_topology(topics)
    records = law.law_input(seed=7, orders=orders, partitions=partitions)
    expected = law.fold(records, partitions)
    cut = clean_cut(records)
    law.write(kafka.bootstrap, topics, records[:cut])
    ends = {
        topic: Counter(
            record.partition for record in records[:cut] if record.topic == topic
        )
        for topic in ("orders", "customers")
    }
    sources = {
        topics.orders: KafkaHistory(until=ends["orders"]),
        topics.customers: KafkaHistory(until=ends["customers"]),
    }
    law.write(kafka.bootstrap, topics, records[cut:])
    settings = {"bootstrap.servers": kafka.bootstrap, "statestore.cache.max.bytes": 0}
    done = backfill(
        topology,
        settings,
        spark=spark,
        sources=sources,
        options=options(tmp_path, snapshots=str(tmp_path / "snapshots")),
    )
    assert done.records == cut
    publish(done, topology, settings)

    live = {
        **settings,
        "state.dir": str(tmp_path / "state"),
        **PATIENT,
        "commit.interval.ms": 100,
        "ranges.per.partition": 3,
        "snapshots.dir": str(tmp_path / "snapshots"),
    }
    with (
        CoopStreams(topology, live) as app,
        QueryClient(str(app.url), deadline_s=60) as client,
    ):
        seen: dict[str, Any] = {}

        def complete() -> bool:
            try:
                seen.update(law.tables_by_query(client))
            except QueryError as error:
                seen["error"] = error
                return False
            return all(seen[name] == table for name, table in expected.tables.items())

        eventually(
            complete,
            150 + orders / 500,
            lambda: test_law.difference(seen, expected.tables),
        )
        with urlopen(f"{app.url}/metrics") as answer:
            metrics = answer.read().decode()
    assert total(metrics, "coopstreams_snapshot_keys_total") == sum(
        sum(result.seeded.values()) for result in done.results
    )
    assert total(metrics, "coopstreams_restored_records_total") == 0, (
        "the changelogs were replayed although the snapshot has it all"
    )
    test_law.check_outputs(kafka, topics, expected)
