"""A paused process that resumes asks its group first: its successor has deleted
repartition records ahead of it, or the application was reset, and what it would delete
has its name and other records.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

import pytest
from typer.testing import CliRunner

from coopstreams.group.admin import GroupAdmin
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from tests.broker.chaos import Chaos, Feeder, examine, seed_of_run, topics_for
from tests.broker.processes import Workers
from tests.broker.waiting import eventually
from tests.command_line import app as commands
from tests.conftest import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SESSION_MS = 4000
STOPS = 8
RECORDS = 2000
PURGE_MS = 12_000


@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_a_process_that_wakes_again_and_again_lives_on(
    kafka: Kafka, workers: Callable[..., Workers], guarantee: str
) -> None:
    """Repartition records are deleted every second. Each pause is longer than the
    session, so the successor has deleted some.
    """
    topics, seed = topics_for(kafka, 1), seed_of_run()
    feeder = Feeder(kafka.bootstrap, topics, seed, orders=90_000, a_second=1000)
    feeder.start()
    group = workers(
        "chaos_app.py",
        kafka.bootstrap,
        topics.environment,
        processing_guarantee=guarantee,
        statestore_cache_max_bytes=0,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=400,
        repartition_purge_interval_ms=1000,
        commit_interval_ms=100,
        deserialization_exception_handler="dead-letter",
        errors_dead_letter_queue_topic_name=topics.dead,
    )
    chaos = Chaos(group, seed, members=2)
    eventually(
        lambda: all("runs on thread" in group.log(number) for number in (0, 1)),
        120,
        group.logs,
    )
    for _ in range(STOPS):
        chaos.stop(SESSION_MS / 1000 + 2)
        time.sleep(1)
    feeder.join()
    found = examine(kafka.bootstrap, topics.cities, feeder.cities)

    def complete() -> bool:
        nonlocal found
        found = examine(kafka.bootstrap, topics.cities, feeder.cities)
        return found.outputs >= found.expected

    eventually(complete, 150, lambda: f"{chaos}: {found}\n{group.logs()}")
    assert set(group.stop().values()) == {0}, group.logs()
    print(chaos, found, group.logs().count("is asked"))
    assert found.lost == 0, found
    assert guarantee == "at_least_once" or found.exactly_once, found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_a_process_that_wakes_after_a_reset_deletes_no_record_of_the_topic_that_was_made_anew(
    kafka: Kafka, workers: Callable[..., Workers], guarantee: str
) -> None:
    """Its successor has written as many records there, and done few of them: those are
    deleted, and no others.
    """
    application, source = kafka.unique("woken"), kafka.topic("in")
    environment = {
        "TEST_APPLICATION": application,
        "TEST_INPUT": source,
        "TEST_PAUSE_S": "0",
    }
    group = workers(
        "repartitioned_app.py",
        kafka.bootstrap,
        environment,
        processing_guarantee=guarantee,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=400,
        repartition_purge_interval_ms=PURGE_MS,
        commit_interval_ms=100,
        auto_offset_reset="earliest",
    )
    forwarded = TopicPartition(f"{application}-last-repartition", 0)
    with (
        closing(KafkaLog(kafka.settings)) as log,
        GroupAdmin(kafka.settings, application) as admin,
    ):
        with closing(log.writer()) as writer:
            keys = [b"%d" % number for number in range(RECORDS)]
            writer.append(
                source,
                keys,
                [serdes.int64.encode(1)] * RECORDS,
                [1] * RECORDS,
                partitions=0,
            )
            writer.flush(60)
        group.start(0)
        eventually(lambda: committed(admin, forwarded) >= RECORDS, 120, group.logs)
        group.freeze(0)
        due_at = time.monotonic() + PURGE_MS / 1000
        assert log.start_offset(forwarded) == 0, "it has still to delete them"
        eventually(lambda: not admin.describe().members_text, 60, group.logs)
        reset = CliRunner().invoke(
            commands,
            [
                "reset",
                str(group.app),
                "--yes",
                "--bootstrap-servers",
                kafka.bootstrap,
            ],
            env=environment,
        )
        assert reset.exit_code == 0, reset.output
        group.environment["TEST_PAUSE_S"] = "0.05"
        group.start(1)
        eventually(
            lambda: (
                forwarded.topic in log.partitions([forwarded.topic])
                and log.end_offset(forwarded) >= RECORDS
            ),
            120,
            group.logs,
        )
        time.sleep(max(0.0, due_at - time.monotonic()))
        group.thaw(0)
        for _ in range(20):
            time.sleep(0.25)
            assert log.start_offset(forwarded) < RECORDS / 2, group.logs()
        assert group.ended() == {}, group.logs()


def committed(admin: GroupAdmin, partition: TopicPartition) -> int:
    """Return the offset that the group has committed; 0: none."""
    row = admin.fetch_offsets([partition], stable=False).offsets[partition]
    return 0 if row is None else row[0]
