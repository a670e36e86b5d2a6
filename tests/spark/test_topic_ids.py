"""An unpublished run prevents others, and is void once the topics of its plan are
recreated. Without Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from coopstreams import StreamsBuilder, serdes
from coopstreams.common.config import Config
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import TopicSpec
from coopstreams.spark import Options, preparation
from coopstreams.spark.execution import Backfilled, taken_up
from coopstreams.spark.plan import Plan
from coopstreams.spark.preparation import begin, make_plan
from coopstreams.spark.publication import publish
from coopstreams.topology.errors import (
    ConfigError,
    GroupError,
    SnapshotError,
    TopologyChangedError,
)
from coopstreams.topology.naming import backfill_runs, marks_topic
from tests.broker.counting import Counting, await_table, failure_of
from tests.broker.waiting import eventually
from tests.command_line import app
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


@pytest.fixture
def cluster(kafka: Kafka) -> Iterator[KafkaLog]:
    found = KafkaLog({"bootstrap.servers": kafka.bootstrap})
    yield found
    found.close()


def config_of(counting: Counting) -> Config:
    return Config.of(
        {"bootstrap.servers": counting.kafka.bootstrap}, counting.application
    )


def begun(counting: Counting, work: Path) -> Plan:
    return begin(counting.topology, config_of(counting), {}, Options(work=str(work)))


def made_anew(cluster: KafkaLog, topic: str, partitions: int) -> None:
    cluster.delete_topics([topic])
    cluster.create_topics([TopicSpec(topic, partitions, {}, 1)])


@pytest.mark.ci
def test_neither_another_run_nor_the_application_begins_behind_one_that_is_not_published(
    kafka: Kafka, cluster: KafkaLog, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    written = counting.write(["a", "b", "a"])
    plan = begun(counting, tmp_path / "work")
    with pytest.raises(
        ConfigError, match=f"run {plan.run} .* is not published: go on with it"
    ):
        begun(counting, tmp_path / "elsewhere")
    refused = failure_of(counting.app(tmp_path / "state"))
    assert isinstance(refused, ConfigError)
    assert f"--resume {plan.run} --publish" in str(refused)

    cluster.delete_topics([counting.changelog, marks_topic(plan.application, plan.run)])
    with counting.app(tmp_path / "state") as running:
        await_table(running, written)


def test_no_run_begins_while_the_group_has_members(
    kafka: Kafka, tmp_path: Path
) -> None:
    """An application that has just started, or has no tasks yet, has committed nothing."""
    counting = Counting.make(kafka)
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": counting.application,
        "enable.auto.commit": False,
    }
    with closing(Consumer(settings)) as member:
        member.subscribe([counting.source])
        eventually(
            lambda: not member.poll(0.1) and bool(member.assignment()),
            60,
            lambda: "it has joined no group",
        )
        with pytest.raises(ConfigError, match="it has 1 members: stop all instances"):
            begun(counting, tmp_path / "work")


def test_a_run_is_given_up_if_an_instance_starts_while_it_begins(
    kafka: Kafka, cluster: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting.make(kafka)
    written = counting.write(["a", "b", "a"])
    with ExitStack() as running:

        def slow(*arguments: Any) -> Plan:
            """Make a plan; before it is stored and announced, an instance starts."""
            plan = make_plan(*arguments)
            await_table(
                running.enter_context(counting.app(tmp_path / "state")), written
            )
            return plan

        monkeypatch.setattr(preparation, "make_plan", slow)
        with pytest.raises(
            ConfigError,
            match=r"is given up, something else has begun .* the application has run",
        ):
            begun(counting, tmp_path / "work")
    assert not backfill_runs(counting.application, cluster.partitions())


def test_of_two_runs_that_begin_at_once_no_two_go_on(
    kafka: Kafka, cluster: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting.make(kafka)
    counting.write(["a", "b", "a"])
    others: list[Plan] = []

    def slow(*arguments: Any) -> Plan:
        """Make a plan; before it is stored and announced, another one is."""
        monkeypatch.setattr(preparation, "make_plan", make_plan)
        plan = make_plan(*arguments)
        others.append(begun(counting, tmp_path / "elsewhere"))
        return plan

    monkeypatch.setattr(preparation, "make_plan", slow)
    with pytest.raises(ConfigError) as refused:
        begun(counting, tmp_path / "work")
    assert f"run {others[0].run} " in str(refused.value)
    assert backfill_runs(counting.application, cluster.partitions()) == [others[0].run]


@pytest.mark.ci
def test_a_reset_gives_a_run_up_and_another_can_begin(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    program = tmp_path / "program.py"
    program.write_text(counting.program)
    counting.write(["a", "b", "a"])
    plan = begun(counting, tmp_path / "work")
    done = CliRunner().invoke(
        app, ["reset", str(program), "--bootstrap-servers", kafka.bootstrap, "--yes"]
    )
    assert done.exit_code == 0, done.output
    assert f"delete topic {marks_topic(plan.application, plan.run)}" in done.output
    another = begun(counting, tmp_path / "work")  # as if it were the first
    assert another.cut == plan.cut
    with pytest.raises(
        ConfigError,
        match=f"{counting.changelog}: deleted, or made anew, since run {plan.run} was planned",
    ):
        taken_up(
            counting.topology, config_of(counting), str(tmp_path / "work"), plan.run
        )
    with pytest.raises(ConfigError, match="deleted, or made anew"):
        publish(
            Backfilled(plan, (), str(tmp_path / "work")),
            counting.topology,
            config_of(counting),
        )


@pytest.mark.ci
def test_no_run_begins_behind_commits_that_outlive_the_offsets_of_the_group(
    kafka: Kafka, cluster: KafkaLog, tmp_path: Path
) -> None:
    """A broker deletes the offsets of a group that has no members for a week; a live
    application has the other ones.
    """
    counting = Counting.make(kafka)
    program = tmp_path / "program.py"
    program.write_text(counting.program)
    written = counting.write(["a", "b", "a"])
    with counting.app(tmp_path / "state") as running:
        await_table(running, written)
    done = CliRunner().invoke(
        app, ["reset", str(program), "--bootstrap-servers", kafka.bootstrap, "--yes"]
    )
    assert done.exit_code == 0, done.output
    with pytest.raises(ConfigError, match="the application has run, or was reset"):
        begun(counting, tmp_path / "work")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_consumer_groups([counting.application])[counting.application].result()
    with pytest.raises(
        ConfigError,
        match=f"key ranges of the group have committed in {counting.source}",
    ):
        begun(counting, tmp_path / "work")
    assert not backfill_runs(counting.application, cluster.partitions())


@pytest.mark.ci
def test_what_is_left_of_a_publication_that_died_behind_its_offsets_is_told(
    kafka: Kafka, cluster: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting.make(kafka)
    plan = begun(counting, tmp_path / "work")
    done = Backfilled(plan, (), str(tmp_path / "work"))

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(KafkaLog, "delete_topics", die)
        with pytest.raises(KeyboardInterrupt):
            publish(done, counting.topology, config_of(counting))
    with counting.app(tmp_path / "state") as running:
        await_table(running, counting.write(["a", "b", "a"]))
    marks = marks_topic(plan.application, plan.run)
    with pytest.raises(
        GroupError, match=f"nothing is left to do but to delete the topic {marks}"
    ):
        publish(done, counting.topology, config_of(counting))


def test_behind_a_publication_a_version_that_loses_the_state_is_refused(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    plan = begun(counting, tmp_path / "work")
    kafka.write(counting.changelog, [("a", serdes.int64.encode(2))])
    publish(
        Backfilled(plan, (), str(tmp_path / "work")),
        counting.topology,
        config_of(counting),
    )
    builder = StreamsBuilder(counting.application)
    builder.stream(
        counting.source, key=serdes.text, value=serdes.raw
    ).group_by_key().count(store="renamed")
    refused = failure_of(
        replace(counting, topology=builder.build()).app(tmp_path / "state")
    )
    assert isinstance(refused, TopologyChangedError)
    assert 'the same store is named "renamed" now, which starts empty' in str(refused)


def test_a_run_does_not_go_on_with_another_source_of_the_same_name(
    kafka: Kafka, cluster: KafkaLog, tmp_path: Path
) -> None:
    counting = Counting.make(kafka, partitions=2)
    counting.write(["a", "b", "a"])
    plan = begun(counting, tmp_path)
    assert (
        taken_up(counting.topology, config_of(counting), str(tmp_path), plan.run)
        == plan
    )
    made_anew(cluster, counting.source, 2)
    counting.write(["x", "y", "z"])
    with pytest.raises(ConfigError, match=f"^{counting.source}: deleted, or made anew"):
        taken_up(counting.topology, config_of(counting), str(tmp_path), plan.run)


def test_a_run_without_its_marks_does_not_go_on(
    kafka: Kafka, cluster: KafkaLog, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    plan = begun(counting, tmp_path)
    cluster.delete_topics([marks_topic(plan.application, plan.run)])
    with pytest.raises(
        ConfigError, match="which says what its tasks have written, is gone"
    ):
        taken_up(counting.topology, config_of(counting), str(tmp_path), plan.run)


def test_a_place_for_snapshots_that_cannot_be_is_found_before_anything_is_made(
    kafka: Kafka, cluster: KafkaLog, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    with pytest.raises(SnapshotError, match="is no storage for snapshots"):
        begin(
            counting.topology,
            config_of(counting),
            {},
            Options(
                work=str(tmp_path / "work"), snapshots="nowhere://bucket/snapshots"
            ),
        )
    assert counting.changelog not in cluster.partitions()
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"outputs": "topics"},
            'outputs="topics" of a backfill: it must be one of none, topic, table',
        ),
        (
            {"connector": "java"},
            'connector="java" of a backfill: it must be one of python, jvm',
        ),
        ({"ranges": 0}, "ranges=0 of a backfill: a partition has 1 to 256 key ranges"),
    ],
)
def test_an_option_that_means_nothing_is_refused_before_a_run_begins(
    given: dict[str, Any], why: str
) -> None:
    """The results of a run with other outputs than these would have been left out in
    silence.
    """
    with pytest.raises(ConfigError, match=re.escape(why)):
        Options(**given)


def test_a_run_finds_its_snapshots_from_any_folder(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    counting = Counting.make(kafka)
    plan = begin(
        counting.topology, config_of(counting), {}, Options(snapshots="snapshots")
    )
    assert plan.snapshots == str(tmp_path / "snapshots")
