"""State of a stopped application from its source topics: the fold of the committed
records, whatever the changelogs contain.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from coopstreams import CoopStreams, StreamsBuilder, serdes
from coopstreams.admin.rebuild import RebuildScope, SourceOptions
from coopstreams.common.config import Config
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import TopicSpec
from coopstreams.spark import Options, backfill
from coopstreams.spark.changelog_repair import Differences
from coopstreams.spark.plan import Plan, Stage
from coopstreams.spark.source_plan import begin_rebuild
from coopstreams.spark.source_rebuild import RebuiltFromSource, rebuild_from_source
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    ConfigError,
    GroupError,
    OffsetOutOfRangeError,
    ProcessingError,
)
from coopstreams.topology.keys import KeyRange, key_hash, partition_of
from coopstreams.topology.row_versions import versions_of
from coopstreams.topology.stores import window_key
from tests.broker import law
from tests.broker.counting import Counting, await_table, failure_of, metric, table
from tests.broker.reading import latest, read_topic
from tests.broker.waiting import eventually
from tests.command_line import app as app_of_commands
from tests.conftest import PATIENT, Kafka
from tests.spark.shop import PARTITIONS, Shop, fold, produce
from tests.spark.test_hand_over import clean_cut
from tests.spark.test_resume import stumble

pytestmark = pytest.mark.broker

LOWER, UPPER = KeyRange.split(2)


def right(found: RebuiltFromSource) -> None:
    assert {store: each.wrong for store, each in found.stores.items()} == dict.fromkeys(
        found.stores, 0
    )


@pytest.mark.ci
def test_state_is_the_fold_of_what_each_key_range_has_committed(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop.make(kafka)
    records = law.law_input(seed=3, orders=2000, partitions=PARTITIONS)
    first = records[: clean_cut(records)]
    shop.write(first)
    shop.run(tmp_path / "before", first, ranges=2)
    assert shop.tables() == fold(first)

    # The lower half of partition 0 has committed only half of it.
    half: dict[tuple[str, int], int] = {}
    for place, mine in shop.partitions(first[: clean_cut(first)]).items():
        if place.partition == 0:
            half[mine[0].topic, 0] = len(mine)
            shop.put_back(
                place, LOWER, len(mine), max(record.timestamp for record in mine)
            )

    def done(record: law.Input, offset: int) -> bool:
        below = half.get((record.topic, record.partition))
        return (
            below is None
            or offset < below
            or key_hash((record.key or "").encode()) in UPPER
        )

    found = shop.rebuild(spark, tmp_path)
    expected = fold(first, done)
    assert shop.tables() == expected != fold(first)
    assert found.plan.stages[0].ranges == 2, (
        "tasks are cut where key ranges stand at different positions"
    )

    # One row is wrong, one is missing, one is surplus.
    wrong, missing = sorted(
        key for key in expected["running"] if key_hash(key.encode()) in LOWER
    )[:2]
    places = {
        key: next(record.partition for record in first if record.key == key)
        for key in (wrong, missing)
    }
    produce(
        kafka,
        TopicPartition(shop.changelog("running"), places[wrong]),
        {wrong.encode(): serdes.int64.encode(77)},
    )
    produce(
        kafka,
        TopicPartition(shop.changelog("running"), places[missing]),
        {missing.encode(): None},
    )
    produce(
        kafka,
        TopicPartition(shop.changelog("running"), 1),
        {b"nobody": serdes.int64.encode(1)},
    )
    damaged = shop.tables()
    audit = shop.rebuild(spark, tmp_path, dry_run=True)
    assert audit.stores["running"] == Differences(
        len(expected["running"]) - 2, added=1, changed=1, deleted=1
    )
    assert [
        each.wrong for store, each in audit.stores.items() if store != "running"
    ] == [0] * 4
    assert shop.tables() == damaged, "a dry run wrote something"
    repaired = shop.rebuild(spark, tmp_path)
    assert repaired.stores == audit.stores
    assert shop.tables() == expected

    shop.write(records[len(first) :])
    shop.run(tmp_path / "after", records, ranges=3)
    assert shop.tables() == fold(records)
    right(shop.rebuild(spark, tmp_path, dry_run=True))


def damage(counting: Counting, keys: Iterable[str], value: bytes | None) -> None:
    """Write this value for these keys to the changelog."""
    for key in keys:
        place = TopicPartition(counting.changelog, partition_of(key.encode(), 2))
        produce(counting.kafka, place, {key.encode(): value})


def settings_of(counting: Counting, **given: str) -> dict[str, str]:
    return {
        "bootstrap.servers": counting.kafka.bootstrap,
        **{name.replace("_", "."): value for name, value in given.items()},
    }


def plan_of(
    counting: Counting,
    folder: Path,
    wanted: RebuildScope | None = None,
    *,
    dry_run: bool = False,
    incomplete: bool = False,
    **given: str,
) -> Plan:
    config = Config.of(settings_of(counting, **given), counting.application)
    return begin_rebuild(
        counting.topology,
        config,
        wanted or RebuildScope(),
        SourceOptions(1, dry_run, incomplete, str(folder / "work")),
    )


def has_run(counting: Counting, folder: Path, written: Mapping[str, int]) -> None:
    """Let the application count the records, and stop it."""
    with counting.app(folder) as app:
        await_table(app, dict(written))


@pytest.mark.slow
def test_some_partitions_and_key_groups_from_the_command_line_then_all_of_it_with_a_snapshot(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    counting, url, local = (
        Counting.make(kafka, 2),
        str(tmp_path / "snapshots"),
        tmp_path / "state",
    )
    written = counting.write(f"key-{number % 120}" for number in range(400))
    has_run(counting, local, written)
    wrong = {
        (partition_of(key.encode(), 2), key_hash(key.encode()) in LOWER): key
        for key in written
    }
    assert len(wrong) == 4
    damage(counting, wrong.values(), serdes.int64.encode(1000))
    has_run(
        counting, local, {**written, **dict.fromkeys(wrong.values(), 1000)}
    )  # now the instance has the damage
    program = tmp_path / "program.py"
    program.write_text(counting.program)

    def rebuild(*options: str) -> str:
        command = [
            "rebuild",
            str(program),
            "--from",
            "source",
            "--bootstrap-servers",
            kafka.bootstrap,
            "--work",
            str(tmp_path / "work"),
        ]
        done = CliRunner().invoke(app_of_commands, [*command, *options])
        assert done.exit_code == 0, done.output
        return done.stdout

    audit = rebuild("--dry-run", "--ranges", "2")
    assert "store counts: 116 equal, 0 added, 4 changed, 0 deleted" in audit
    assert "a dry run: nothing was written" in audit
    right_here = wrong.pop((0, True))
    assert "0 added, 1 changed, 0 deleted" in rebuild(
        "--partitions", "0", "--groups", "0-127", "--ranges", "2", "--store", "counts"
    )
    assert counting.counts() == {**written, **dict.fromkeys(wrong.values(), 1000)}
    assert counting.counts()[right_here] == written[right_here]
    assert "117 equal, 0 added, 3 changed, 0 deleted" in rebuild(
        "--ranges", "3", "--snapshots", url
    )
    assert counting.counts() == written

    written += counting.write(list(written)[:50])
    has_run(counting, local, written)  # replays the corrected rows
    with counting.app(tmp_path / "new", snapshots_dir=url) as app:
        await_table(app, written)
        assert metric(app, "coopstreams_snapshot_keys_total") == 120
    assert not [
        topic
        for topic in topics(kafka)
        if topic.startswith(f"{counting.application}-backfill-")
    ]


def topics(kafka: Kafka) -> set[str]:
    with closing(KafkaLog({"bootstrap.servers": kafka.bootstrap})) as cluster:
        return set(cluster.partitions())


@pytest.mark.slow
def test_a_changelog_that_was_deleted_is_written_again(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    counting = Counting.make(kafka, 2)
    written = counting.write(f"key-{number % 60}" for number in range(300))
    has_run(counting, tmp_path / "state", written)
    with closing(KafkaLog({"bootstrap.servers": kafka.bootstrap})) as cluster:
        cluster.delete_topics([counting.changelog])
    eventually(
        lambda: counting.changelog not in topics(kafka),
        60,
        lambda: "the topic is still there",
    )
    assert "deleted: " in str(failure_of(counting.app(tmp_path / "state")))
    plan_of(counting, tmp_path, dry_run=True)
    for part in (RebuildScope(partitions=[0]), RebuildScope(key_range=LOWER)):
        with pytest.raises(ConfigError, match=f"deleted: {counting.changelog}"):
            plan_of(counting, tmp_path, part)
    with pytest.raises(ConfigError, match="has committed offset"):
        backfill(
            counting.topology,
            settings_of(counting),
            options=Options(work=str(tmp_path / "work")),
            spark=spark,
        )
    assert counting.changelog not in topics(kafka), (
        "a run that does not write all of it has made the topic"
    )
    made = rebuild_from_source(
        counting.topology,
        settings_of(counting),
        spark=spark,
        ranges=1,
        work=str(tmp_path / "work"),
    )
    assert made.stores == {"counts": Differences(added=60)}
    assert counting.counts() == written
    written += counting.write(list(written)[:50])
    has_run(counting, tmp_path / "state", written)
    assert counting.counts() == written


def two_stages(counting: Counting) -> Counting:
    """Counts by key, and by the last character of the key behind a repartition topic.
    The first attempt of some tasks fails in Spark.
    """
    builder = StreamsBuilder(counting.application)
    stream = builder.stream(counting.source, key=serdes.text, value=serdes.raw).peek(
        stumble
    )
    stream.group_by_key().count(store="counts")
    stream.select_key(lambda key, _: key[-1], key=serdes.text).repartition(
        name="by-digit"
    ).group_by_key().count(store="digits")
    return replace(counting, topology=builder.build())


@pytest.mark.slow
def test_a_store_behind_a_repartition_is_rebuilt_once_all_was_read_there_and_no_attempt_writes_twice(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    counting = two_stages(Counting.make(kafka, 2))
    written = counting.write(f"key-{number % 70}" for number in range(500))
    digits: Counter[str] = Counter()
    for key, count in written.items():
        digits[key[-1]] += count
    with counting.app(tmp_path / "state") as app:
        eventually(
            lambda: table(app, "digits") == digits,
            120,
            lambda: f"{table(app, 'digits')} is not {digits}",
        )
    given: dict[str, Any] = {
        "spark": spark,
        "ranges": 1,
        "work": str(tmp_path / "work"),
    }
    for store in ("counts", "digits"):
        for key in ("7", "key-7"):
            produce(
                kafka,
                TopicPartition(
                    f"{counting.application}-{store}-changelog",
                    partition_of(key.encode(), 2),
                ),
                {key.encode(): bytes(8)},
            )
    only = rebuild_from_source(
        counting.topology,
        settings_of(counting),
        wanted=RebuildScope(["digits"]),
        **given,
    )
    assert only.stores == {"digits": Differences(len(digits) - 1, changed=1, deleted=1)}
    assert counting.counts("digits") == digits
    assert counting.counts()["key-7"] == counting.counts()["7"] == 0, (
        "the other store was not asked for"
    )

    before = len(read_topic(kafka.bootstrap, counting.changelog))
    both = rebuild_from_source(counting.topology, settings_of(counting), **given)
    assert both.stores == {
        "counts": Differences(len(written) - 1, changed=1, deleted=1),
        "digits": Differences(len(digits)),
    }
    assert counting.counts() == written
    assert len(read_topic(kafka.bootstrap, counting.changelog)) == before + 2

    produce(
        kafka,
        TopicPartition(f"{counting.application}-by-digit-repartition", 1),
        {b"1": b"x"},
    )
    with pytest.raises(
        ConfigError,
        match=r"by-digit-repartition-1 has 1 records that the application has written to itself and not read",
    ):
        plan_of(counting, tmp_path)
    assert [
        stage.stores
        for stage in plan_of(counting, tmp_path, RebuildScope(["counts"])).stages
    ] == [("counts",)]


@pytest.mark.slow
def test_what_would_give_another_state_is_refused(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    counting = Counting.make(kafka, 2)
    with pytest.raises(
        ConfigError, match="has committed nothing of what its sources have"
    ):
        plan_of(counting, tmp_path)
    written = counting.write(f"key-{number % 60}" for number in range(300))
    with counting.app(tmp_path / "state") as app:
        await_table(app, written)
        with pytest.raises(GroupError, match="has 1 members"):
            plan_of(counting, tmp_path)
    with pytest.raises(ConfigError, match="which are unknown now"):
        plan_of(counting, tmp_path, auto_offset_reset="latest")
    with pytest.raises(
        ConfigError, match="no such store with a changelog; there are counts"
    ):
        plan_of(counting, tmp_path, RebuildScope(["count"]))
    with pytest.raises(ConfigError, match="there is no partition 2"):
        plan_of(counting, tmp_path, RebuildScope(partitions=[2]))

    def run(_: Stage) -> None:
        has_run(counting, tmp_path / "state", written + counting.write(["key-1"]))

    with pytest.raises(
        GroupError, match="was planned: what was written is of an older state"
    ):
        rebuild_from_source(
            counting.topology,
            settings_of(counting),
            spark=spark,
            ranges=1,
            work=str(tmp_path / "work"),
            on_stage=run,
        )

    with closing(KafkaLog({"bootstrap.servers": kafka.bootstrap})) as cluster:
        cluster.delete_before(TopicPartition(counting.source, 1), 10)
    with pytest.raises(
        OffsetOutOfRangeError,
        match=rf"records are gone: {counting.source}-1 begins at 10\b.*--incomplete",
    ):
        plan_of(counting, tmp_path)
    assert plan_of(counting, tmp_path, incomplete=True).cut[counting.source][1][0] == 10
    with closing(KafkaLog({"bootstrap.servers": kafka.bootstrap})) as cluster:
        last = TopicPartition(counting.source, 1)
        end = cluster.end_offset(last)
        cluster.delete_before(last, end)
    with pytest.raises(
        OffsetOutOfRangeError,
        match=rf"records are gone: {counting.source}-1 begins at {end}\b",
    ):
        plan_of(counting, tmp_path)


@pytest.mark.ci
def test_positions_in_a_source_that_was_made_anew_are_refused(
    kafka: Kafka, tmp_path: Path
) -> None:
    """The new topic has other records there: the state would become theirs."""
    counting = Counting.make(kafka)
    written = counting.write(f"key-{number % 60}" for number in range(300))
    with counting.app(tmp_path / "state", ranges_per_partition=2) as app:
        await_table(app, written)
    with closing(KafkaLog({"bootstrap.servers": kafka.bootstrap})) as cluster:
        cluster.delete_topics([counting.source])
        eventually(
            lambda: counting.source not in topics(kafka),
            60,
            lambda: "the topic is still there",
        )
        cluster.create_topics(
            [TopicSpec(counting.source, 1, {"retention.ms": "-1"}, 1)]
        )
    counting.write(f"other-{number % 60}" for number in range(400))
    with pytest.raises(
        ConfigError,
        match=f"{counting.source}-0: the topic was deleted and made anew since group",
    ):
        plan_of(counting, tmp_path)


@pytest.mark.slow
def test_a_run_is_resumed_as_what_it_is(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    counting = Counting.make(kafka, 2)
    written = counting.write(f"key-{number % 60}" for number in range(300))
    has_run(counting, tmp_path / "state", written)
    damage(counting, ["key-1"], serdes.int64.encode(1000))
    given: dict[str, Any] = {"spark": spark, "work": str(tmp_path / "work")}

    def die(_: Stage) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as died:
        rebuild_from_source(
            counting.topology, settings_of(counting), ranges=1, on_stage=die, **given
        )
    (run,) = [folder.name for folder in (tmp_path / "work").iterdir()]
    assert died.value.__notes__ == [
        f'The run is not done. What has not run yet is done with resume="{run}", work="{tmp_path / "work"}".'
    ]
    with pytest.raises(
        ConfigError,
        match=f"is a rebuild --from source: go on with it by coopstreams rebuild --from source --resume {run}",
    ):
        backfill(
            counting.topology,
            settings_of(counting),
            spark=spark,
            options=Options(work=str(tmp_path / "work")),
            resume=run,
        )
    done = rebuild_from_source(
        counting.topology, settings_of(counting), resume=run, **given
    )
    assert done.stores == {"counts": Differences(59, changed=1)}
    assert counting.counts() == written


@pytest.mark.slow
def test_a_run_that_fails_prints_the_command_that_goes_on(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    written = counting.write(f"key-{number % 3}" for number in range(30))
    has_run(counting, tmp_path / "state", written)
    damage(counting, ["key-1"], serdes.int64.encode(1000))
    program = tmp_path / "program.py"
    program.write_text(
        counting.program.replace(
            ".group_by_key()", ".peek(lambda key, _: {}[key]).group_by_key()"
        )
    )
    options = ["--bootstrap-servers", kafka.bootstrap, "--work", str(tmp_path / "work")]
    failed = CliRunner().invoke(
        app_of_commands,
        ["rebuild", "--from", "source", str(program), "--ranges", "1", *options],
    )
    assert isinstance(failed.exception, ProcessingError)
    (again,) = re.findall(
        r"not done. What has not run yet is done by: coopstreams (.*)", failed.stderr
    )
    program.write_text(
        counting.program.replace(
            ".group_by_key()", ".peek(lambda key, _: None).group_by_key()"
        )
    )
    resumed = CliRunner().invoke(app_of_commands, shlex.split(again))
    assert "2 equal, 0 added, 1 changed, 0 deleted" in resumed.stdout, resumed.output
    assert counting.counts() == written


@pytest.mark.slow
def test_versions_are_what_the_records_make_and_those_that_are_too_old_are_no_difference(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    prices = kafka.topic("prices", 1, retention_ms="-1")
    builder = StreamsBuilder(kafka.unique("versions"))
    builder.table(
        prices,
        key=serdes.text,
        value=serdes.int64,
        store="prices",
        history=timedelta(minutes=10),
    )
    topology, past = builder.build(), versions_of(serdes.int64)
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "commit.interval.ms": 100,
        **PATIENT,
    }
    changelog = f"{topology.application_id}-prices-changelog"

    def run(minutes: range) -> None:
        """Have an application make the versions of these minutes."""
        kafka.write(
            prices,
            (
                (b"a", serdes.int64.encode(minute), minute * 60_000)
                for minute in minutes
            ),
        )
        last = past.encode([(minutes[-1] * 60_000, minutes[-1])])
        with CoopStreams(
            topology,
            {
                **settings,
                "state.dir": str(tmp_path / "state"),
                "ranges.per.partition": 2,
            },
        ):
            eventually(
                lambda: (
                    latest(read_topic(kafka.bootstrap, changelog)).get(b"a") == last
                ),
                60,
                lambda: f"{minutes} is not committed",
            )

    run(range(1000, 1200))
    run(range(1200, 1300))
    gone, other = (window_key(b"a", minute * 60_000) for minute in (1297, 1298))
    changed = {gone: None, other: past.encode([(1297 * 60_000, -1)])}
    produce(
        kafka,
        TopicPartition(f"{topology.application_id}-prices-history-changelog", 0),
        changed,
    )
    found = rebuild_from_source(
        topology,
        settings,
        spark=spark,
        ranges=1,
        work=str(tmp_path / "work"),
        dry_run=True,
    )
    assert found.stores == {
        "prices": Differences(1, 0, 0, 0),
        "prices-history": Differences(8, 1, 1, 0),
    }
