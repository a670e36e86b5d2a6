"""An unavailable broker of three ends no start, opening or read."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from coopstreams import QueryClient
from coopstreams.commit.record import PARTITIONS, partition_of
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import TopicSpec
from coopstreams.topology.errors import QueryError
from coopstreams.topology.naming import COMMIT_TOPIC
from tests.broker.cluster import NODES, ThreeBrokers
from tests.broker.counting import Counting, await_running, await_table
from tests.broker.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KEYS = [f"key-{number}" for number in range(100)]


def leader_of_commits(cluster: ThreeBrokers, counting: Counting) -> int:
    """Return the leader of the group's individual commits, which an instance misses first."""
    leader = cluster.leader_of(COMMIT_TOPIC, partition_of(counting.application, PARTITIONS))
    assert leader is not None
    return leader


@pytest.mark.parametrize("how", ["kill", "stop", "pause"])
def test_an_instance_starts_while_a_broker_is_away(three_brokers: ThreeBrokers, tmp_path: Path, how: str) -> None:
    counting = Counting.make(three_brokers.kafka, partitions=3)
    with counting.app(tmp_path, processing_guarantee="exactly_once_v2") as app:
        await_running([app])
    written = counting.write(KEYS)
    getattr(three_brokers, how)(leader_of_commits(three_brokers, counting))
    with counting.app(tmp_path, processing_guarantee="exactly_once_v2") as app:
        await_running([app])
        await_table(app, written)


def test_an_instance_starts_while_all_brokers_are_away_and_goes_on_when_they_come(
    three_brokers: ThreeBrokers, tmp_path: Path
) -> None:
    counting = Counting.make(three_brokers.kafka, partitions=3)
    written = counting.write(KEYS)
    for node in NODES:
        three_brokers.kill(node)
    mending = threading.Timer(10, three_brokers.mend)
    mending.start()
    with counting.app(tmp_path, processing_guarantee="exactly_once_v2", connect_timeout_ms=300_000) as app:
        await_running([app])
        await_table(app, written)
    mending.join()


def test_while_no_broker_answers_an_instance_says_why_it_answers_no_query(
    three_brokers: ThreeBrokers, tmp_path: Path
) -> None:
    """Once the session has ended, another instance may own the keys, for all that this one can know."""
    counting = Counting.make(three_brokers.kafka)
    written, why = counting.write(KEYS), "runs here, but another instance may own it by now"
    with counting.app(tmp_path, session_timeout_ms=6000) as app, QueryClient(str(app.url), deadline_s=0.0) as queries:
        await_table(app, written)
        for node in NODES:
            three_brokers.pause(node)

        def said() -> bool:
            errors = []
            for ask in (lambda: queries.get("counts", KEYS[0]), lambda: list(queries.range("counts"))):
                try:
                    ask()
                except QueryError as error:
                    errors.append(error)
            return [(error.code, why in str(error)) for error in errors] == [("TASK_MOVING", True)] * 2

        eventually(said, 60, lambda: "queries are answered, or refused for another reason")
        three_brokers.mend()
        eventually(lambda: not said(), 60, lambda: "no query is answered")
        await_table(app, written)


def test_a_topic_that_was_made_is_there_whichever_broker_is_asked(three_brokers: ThreeBrokers) -> None:
    """One broker answers before the others know the topic: a worker ended with a KeyError when its next request went to
    another.
    """
    log = KafkaLog({"bootstrap.servers": three_brokers.bootstrap})
    try:
        for _ in range(40):
            name = three_brokers.kafka.unique("made")
            log.create_topics([TopicSpec(name, 1)])
            assert all(log.partitions([name]) == {name: 1} for _ in range(20))
    finally:
        log.close()
