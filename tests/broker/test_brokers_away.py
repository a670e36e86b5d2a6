"""An unavailable broker of three ends no start, opening or read."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coopstreams import QueryClient
from coopstreams.commit.record import PARTITIONS, partition_of
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import TopicSpec
from coopstreams.status import stall_detector
from coopstreams.status.reasons import Health
from coopstreams.topology.errors import QueryError
from coopstreams.topology.naming import COMMIT_TOPIC
from tests.broker.cluster import NODES, ThreeBrokers
from tests.broker.counting import Counting, await_running, await_table, instance_of
from tests.broker.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KEYS = [f"key-{number}" for number in range(100)]


def leader_of_commits(cluster: ThreeBrokers, counting: Counting) -> int:
    """Return the leader of the group's individual commits, which an instance misses
    first.
    """
    leader = cluster.leader_of(
        COMMIT_TOPIC, partition_of(counting.application, PARTITIONS)
    )
    assert leader is not None
    return leader


@pytest.mark.parametrize("how", ["kill", "stop", "pause"])
def test_an_instance_starts_while_a_broker_is_away(
    three_brokers: ThreeBrokers, tmp_path: Path, how: str
) -> None:
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
    with counting.app(
        tmp_path, processing_guarantee="exactly_once_v2", connect_timeout_ms=300_000
    ) as app:
        await_running([app])
        await_table(app, written)
    mending.join()


def test_while_no_broker_answers_an_instance_says_why_it_answers_no_query(
    three_brokers: ThreeBrokers, tmp_path: Path
) -> None:
    """Once the session has ended, another instance may own the keys, for all that this
    one can know.
    """
    counting = Counting.make(three_brokers.kafka)
    written, why = (
        counting.write(KEYS),
        "runs here, but another instance may own it by now",
    )
    with (
        counting.app(tmp_path, session_timeout_ms=6000) as app,
        QueryClient(str(app.url), deadline_s=0.0) as queries,
    ):
        await_table(app, written)
        for node in NODES:
            three_brokers.pause(node)

        def said() -> bool:
            errors = []
            for ask in (
                lambda: queries.get("counts", KEYS[0]),
                lambda: list(queries.range("counts")),
            ):
                try:
                    ask()
                except QueryError as error:
                    errors.append(error)
            return [(error.code, why in str(error)) for error in errors] == [
                ("TASK_MOVING", True)
            ] * 2

        eventually(
            said, 60, lambda: "queries are answered, or refused for another reason"
        )
        three_brokers.mend()
        eventually(lambda: not said(), 60, lambda: "no query is answered")
        await_table(app, written)


def test_a_topic_that_was_made_is_there_whichever_broker_is_asked(
    three_brokers: ThreeBrokers,
) -> None:
    """One broker answers before the others know the topic: a worker ended with a
    KeyError when its next request went to another.
    """
    with closing(KafkaLog({"bootstrap.servers": three_brokers.bootstrap})) as log:
        for _ in range(40):
            name = three_brokers.kafka.unique("made")
            log.create_topics([TopicSpec(name, 1)])
            assert all(log.partitions([name]) == {name: 1} for _ in range(20))


def test_a_topic_that_another_has_made_is_there_once_a_broker_has_told_its_id(
    three_brokers: ThreeBrokers,
) -> None:
    """At a start its id was found, and then another broker was asked for the partitions
    of all topics.
    """
    maker, log = (
        KafkaLog({"bootstrap.servers": three_brokers.bootstrap}) for _ in range(2)
    )
    try:
        for _ in range(100):
            log.partitions()
            name = three_brokers.kafka.unique("made")
            maker.create_topics([TopicSpec(name, 1)])
            assert log.topic_id(name)
            assert name in log.partitions()
    finally:
        maker.close()
        log.close()


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_an_instance_is_live_however_long_brokers_are_away(
    three_brokers: ThreeBrokers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    guarantee: str,
) -> None:
    """All pods were restarted after half a minute with two of three brokers away, at
    the worst time.
    """
    monkeypatch.setattr(stall_detector, "STALLED_S", 3.5)
    counting = Counting.make(three_brokers.kafka, partitions=6)
    seen: list[Health] = []
    settings: dict[str, Any] = {
        "processing_guarantee": guarantee,
        "num_stream_threads": 2,
        "transaction_timeout_ms": 5000,
    }
    with counting.app(tmp_path, **settings) as app:
        await_running([app])
        instance, serving = instance_of(app), app._serving
        assert serving is not None

        def known() -> bool:
            return sum(
                sample.lag for sample in instance.stalls.samples.values()
            ) == len(KEYS)

        def excused() -> bool:
            seen.append(serving.health())
            return any(
                "no progress for " in reason.message for reason in seen[-1].reasons
            )

        def looked() -> bool:
            excused()
            return len(seen) > 150

        app.pause()
        counting.write(KEYS)
        eventually(known, 60, lambda: "the lag is not known")
        for node in NODES[1:]:
            three_brokers.kill(node)
        app.resume()
        eventually(excused, 60, lambda: f"no task stands still: {seen[-1]}")
        eventually(looked, 120, lambda: f"{len(seen)} looks")
        three_brokers.mend()
        assert [health.reasons for health in seen if not health.live] == []
