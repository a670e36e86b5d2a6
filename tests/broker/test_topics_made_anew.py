"""A changelog that was recreated under its name, or loses rows: state is never
continued from it in silence.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from coopstreams import CoopStreams, StreamsBuilder, serdes
from coopstreams.admin.group_reset import reset_offsets
from coopstreams.group.admin import GroupAdmin
from coopstreams.instance import components
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import TopicSpec
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError
from tests.broker.counting import (
    Counting,
    await_table,
    failure_of,
    groups_on_disk,
    metric,
)
from tests.broker.test_lost_positions import await_end, lose_offsets
from tests.broker.test_running_faults import ends_with
from tests.broker.waiting import eventually
from tests.command_line import app as commands
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

BOTH = [f"both-{number}" for number in range(100)]
"""Keys of the old changelog and of the new one, with other values."""
GONE = [f"gone-{number}" for number in range(100)]
"""Keys that only the old changelog has."""


def made_anew(kafka: Kafka, topic: str, rows: Mapping[str, bytes], times: int) -> None:
    """Recreate a compacted topic of one partition; write these rows to it the given
    number of times.
    """
    kafka.delete(topic)
    with closing(KafkaLog({"bootstrap.servers": kafka.bootstrap})) as cluster:
        eventually(
            lambda: topic not in cluster.partitions(),
            60,
            lambda: f"{topic} is still there",
        )
        cluster.create_topics([TopicSpec(topic, 1, {"cleanup.policy": "compact"})])
        with closing(cluster.writer()) as writer:
            for _ in range(times):
                writer.append(
                    topic,
                    [key.encode() for key in rows],
                    list(rows.values()),
                    [0] * len(rows),
                    partitions=0,
                )
            writer.flush(60)


def health(app: CoopStreams) -> list[str]:
    """Return the codes of the reasons why an instance is not ready."""
    return [
        reason["code"]
        for reason in httpx.get(
            f"{app.url}/health/ready", trust_env=False, timeout=60
        ).json()["reasons"]
    ]


@pytest.mark.ci
def test_a_changelog_that_has_grown_past_the_checkpoints_of_the_one_before_is_restored_from_its_beginning(
    kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counting = Counting.make(kafka)
    with counting.app(tmp_path, processing_guarantee="exactly_once_v2") as app:
        await_table(app, counting.write([*BOTH, *GONE]))
    made_anew(
        kafka,
        counting.changelog,
        dict.fromkeys(BOTH, serdes.int64.encode(1000)),
        times=5,
    )
    with caplog.at_level(logging.WARNING), counting.app(tmp_path) as app:
        await_table(app, dict.fromkeys(BOTH, 1000))
        assert groups_on_disk(app).total() == len(BOTH)
        assert metric(app, "coopstreams_restored_records_total") == 5 * len(BOTH)
    assert (
        'store "counts", key groups 0..255: its checkpoint is of another topic than its changelog is now'
        in caplog.text
    )
    with counting.app(tmp_path) as app:
        await_table(app, dict.fromkeys(BOTH, 1000))
        assert metric(app, "coopstreams_restored_records_total") == 0, (
            "from then on it is the topic of the checkpoints"
        )


@pytest.mark.ci
def test_a_source_topic_that_is_a_changelog_is_read_from_its_beginning_once_it_was_made_anew(
    kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its tasks open only after a reset of the group to its beginning; then the table
    has the rows of the new topic.
    """
    source = kafka.topic("people", cleanup_policy="compact")
    application = kafka.unique("people")
    builder = StreamsBuilder(application)
    builder.table(source, key=serdes.text, value=serdes.int64, store="counts")
    settings: dict[str, Any] = {
        "topology_optimization": "reuse.ktable.source.topics",
        "ranges_per_partition": 2,
        "commit_interval_ms": 50,
    }
    counting = Counting(kafka, application, source, source, builder.build())
    rows = dict.fromkeys([*BOTH, *GONE], serdes.int64.encode(1))
    made_anew(kafka, source, rows, times=2)
    with counting.app(tmp_path, **settings) as app:
        await_table(app, dict.fromkeys([*BOTH, *GONE], 1))
    made_anew(kafka, source, dict.fromkeys(BOTH, serdes.int64.encode(1000)), times=7)
    assert "the topic was deleted and made anew" in str(
        failure_of(counting.app(tmp_path, **settings))
    )
    with (
        GroupAdmin({"bootstrap.servers": kafka.bootstrap}, application) as admin,
        closing(KafkaLog({"bootstrap.servers": kafka.bootstrap})) as log,
    ):
        reset_offsets(log, admin, {TopicPartition(source, 0): 0})
    with caplog.at_level(logging.WARNING), counting.app(tmp_path, **settings) as app:
        await_table(app, dict.fromkeys(BOTH, 1000))
        assert groups_on_disk(app).total() == len(BOTH)
    assert "its checkpoint is of another topic than its changelog is now" in caplog.text


@pytest.mark.ci
def test_a_changelog_that_is_made_anew_while_its_task_runs_has_a_name_and_the_next_opening_has_what_was_written_since(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(components, "COMPARE_EVERY_S", 0.5)
    counting = Counting.make(kafka)
    with counting.app(tmp_path, processing_guarantee="exactly_once_v2") as app:
        await_table(app, counting.write([*BOTH, *GONE]))
        assert health(app) == []
        made_anew(kafka, counting.changelog, {}, times=0)
        eventually(
            lambda: health(app) == ["changelog-made-anew"], 60, lambda: str(health(app))
        )
        counting.write(BOTH)
        await_table(app, dict.fromkeys(GONE, 1) | dict.fromkeys(BOTH, 2))
    with counting.app(tmp_path) as app:
        await_table(app, dict.fromkeys(BOTH, 2))
        assert health(app) == []


@pytest.mark.ci
@pytest.mark.parametrize(
    "guarantee",
    ["exactly_once_v2", pytest.param("at_least_once", marks=pytest.mark.slow)],
)
def test_a_changelog_that_is_deleted_while_its_task_runs_ends_the_process_and_no_start_makes_it_anew(
    kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    """Until somebody creates it: then the store begins empty where the application
    stands, as the message says.
    """
    counting = Counting.make(kafka)
    settings: dict[str, Any] = {
        "processing_guarantee": guarantee,
        "transaction_timeout_ms": 5000,
    }
    again: dict[str, int] = {}

    def deleted() -> None:
        kafka.delete(counting.changelog)
        again.update(counting.write(BOTH))

    written = counting.write(BOTH)
    with counting.app(tmp_path, **settings) as app:
        await_table(app, written)
    ended = ends_with(counting.app(tmp_path, **settings), deleted, 120)
    assert f"writes to {counting.changelog}, which Kafka has no longer" in str(ended)
    refused = failure_of(counting.app(tmp_path, **settings))
    assert isinstance(refused, ConfigError), refused
    assert f'deleted: {counting.changelog}, the changelog of store "counts"' in str(
        refused
    )
    assert "`coopstreams rebuild APP --from source --store counts`" in str(refused)
    assert counting.changelog not in kafka.topics()
    creation = re.search(r"`coopstreams (topics create .+?)`", str(refused))
    assert creation is not None
    made = CliRunner().invoke(
        commands, [*creation[1].split(), "--bootstrap-servers", kafka.bootstrap]
    )
    assert made.exit_code == 0, made.output
    with counting.app(tmp_path, **settings) as app:
        await_table(app, again)


@pytest.mark.slow
def test_a_changelog_that_was_deleted_is_made_anew_if_the_group_begins_at_its_first_records(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    written = counting.write(BOTH)
    for source_is_read_from in ("no offset", "offset 0"):
        with counting.app(tmp_path) as app:
            await_table(app, written)
        await_end(counting)
        kafka.delete(counting.changelog)
        if source_is_read_from == "no offset":
            lose_offsets(counting)
        else:
            with GroupAdmin(kafka.settings, counting.application) as admin:
                admin.commit({TopicPartition(counting.source, 0): (0, "")})
    with counting.app(tmp_path) as app:
        await_table(app, written)


@pytest.mark.slow
def test_a_changelog_that_was_deleted_is_not_made_anew_where_only_individual_commits_say_what_was_processed(
    kafka: Kafka, tmp_path: Path
) -> None:
    """They do not expire, and so the application goes on where it was."""
    counting = Counting.make(kafka)
    with counting.app(tmp_path, ranges_per_partition=2) as app:
        await_table(app, counting.write(BOTH))
    kafka.delete(counting.changelog)
    lose_offsets(counting)
    assert "deleted: " in str(failure_of(counting.app(tmp_path)))
    assert counting.changelog not in kafka.topics()


@pytest.mark.ci
def test_a_changelog_from_which_brokers_delete_rows_is_refused_until_its_policy_is_put_back(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    written = counting.write(BOTH)
    with counting.app(tmp_path / "first") as app:
        await_table(app, written)
    policy_of(kafka, counting.changelog, "delete")
    assert "no rows have been deleted yet" in str(
        failure_of(counting.app(tmp_path / "first"))
    )
    kafka.delete_before(counting.changelog, 0, 10)
    refused = failure_of(counting.app(tmp_path / "second"))
    assert isinstance(refused, ConfigError), refused
    assert (
        f"Rows have been deleted already: {counting.changelog}-0 begins at offset 10"
        in str(refused)
    )
    assert (
        f"--entity-name {counting.changelog} --add-config cleanup.policy=compact`"
        in str(refused)
    )
    policy_of(kafka, counting.changelog, "compact")
    with counting.app(tmp_path / "first") as app:
        await_table(app, written)


def policy_of(kafka: Kafka, changelog: str, policy: str) -> None:
    """Change the policy of a topic, and wait until the broker tells the new one."""
    kafka.configure(changelog, cleanup_policy=policy, retention_ms="604800000")
    with closing(KafkaLog(kafka.settings)) as cluster:
        eventually(
            lambda: cluster.topic_config(changelog)["cleanup.policy"] == policy,
            60,
            lambda: str(cluster.topic_config(changelog)),
        )


@pytest.mark.ci
@pytest.mark.parametrize(
    "guarantee",
    ["exactly_once_v2", pytest.param("at_least_once", marks=pytest.mark.slow)],
)
def test_a_source_that_was_made_anew_beside_another_is_not_counted_again(
    kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    """Kafka has deleted its offset with it, so it looked like one that was added to the
    program.
    """
    application = kafka.unique("merged")
    web, shop = kafka.topic("web"), kafka.topic("shop")
    builder = StreamsBuilder(application)
    streams = [
        builder.stream(topic, key=serdes.text, value=serdes.int64)
        for topic in (web, shop)
    ]
    streams[0].merge(streams[1]).group_by_key().count(store="counts")
    topology = builder.build()
    of_web, of_shop = (
        Counting(kafka, application, topic, topic, topology) for topic in (web, shop)
    )
    settings: dict[str, Any] = {
        "processing_guarantee": guarantee,
        "commit_interval_ms": 50,
    }
    of_web.write(BOTH)
    of_shop.write(BOTH)
    with of_web.app(tmp_path, **settings) as app:
        await_table(app, dict.fromkeys(BOTH, 2))
    kafka.delete(web)
    eventually(lambda: web not in kafka.topics(), 60, lambda: f"{web} is still there")
    kafka.create(web)
    of_web.write(BOTH)
    reset = f"`coopstreams group reset {application} --topic {web} --to earliest`"
    for _ in range(2):
        refused = str(failure_of(of_web.app(tmp_path, **settings)))
        assert f"{web}-0: the topic was deleted and made anew" in refused
        assert reset in refused
    done = CliRunner().invoke(
        commands,
        [
            *f"group reset {application} --topic {web} --to earliest --yes".split(),
            "--bootstrap-servers",
            kafka.bootstrap,
        ],
    )
    assert done.exit_code == 0, done.output
    for _ in range(2):
        with of_web.app(tmp_path, **settings) as app:
            await_table(app, dict.fromkeys(BOTH, 3))
