"""A paused process that resumes asks its group first: its successor has deleted repartition records ahead of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.broker.chaos import Chaos, Feeder, examine, seed_of_run, topics_for
from tests.broker.processes import Workers
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SESSION_MS = 4000
STOPS = 8


@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_a_process_that_wakes_again_and_again_lives_on(
    kafka: Kafka, workers: Callable[..., Workers], guarantee: str
) -> None:
    """Repartition records are deleted every second. Each pause is longer than the session, so the successor has deleted
    some.
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
