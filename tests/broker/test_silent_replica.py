"""A lost broker with a follower replica of a source blocks its new records, and the
status names it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from coopstreams import CoopStreams
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.topology.columns import TopicPartition
from tests.broker.cluster import NODES, ThreeBrokers
from tests.broker.counting import Counting, await_running, await_table
from tests.broker.waiting import eventually
from tests.conftest import download_kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PATIENCE_S = 120.0
LATE = {"broker.session.timeout.ms": "40000", "replica.lag.time.max.ms": "60000"}
"""How long the cluster keeps a lost replica: a machine may be busy."""


@pytest.fixture(scope="module")
def late_cluster(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ThreeBrokers]:
    """Return three brokers with a late fencing of lost ones."""
    with ThreeBrokers(
        tmp_path_factory.mktemp("late"), settings=LATE, console=download_kafka(request)
    ) as cluster:
        yield cluster


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_source_that_stands_still_because_of_a_lost_replica_is_slow_with_that_reason(
    late_cluster: ThreeBrokers, tmp_path: Path, how: str
) -> None:
    late_cluster.mend()
    counting, keys = (
        Counting.make(late_cluster.kafka),
        [f"key-{number}" for number in range(50)],
    )
    at, log = (
        TopicPartition(counting.source, 0),
        KafkaLog({"bootstrap.servers": late_cluster.bootstrap}),
    )
    kept = {late_cluster.leader_of(*at), late_cluster.controller()}
    lost = next(node for node in NODES if node not in kept)
    written, stop = counting.write(keys), threading.Event()

    def feed() -> None:
        while not stop.wait(0.05):
            written.update(counting.write(keys, PATIENCE_S))

    with counting.app(tmp_path) as app:
        await_running([app])
        await_table(app, written)
        feeder = threading.Thread(target=feed, daemon=True)
        feeder.start()
        eventually(
            lambda: written.total() > 5 * len(keys),
            PATIENCE_S,
            lambda: "nothing is written",
        )
        assert log.silent_replicas([at]) == {}
        getattr(late_cluster, how)(lost)
        eventually(
            lambda: log.silent_replicas([at]) == {at: {lost}},
            PATIENCE_S,
            lambda: "nobody is silent",
        )
        what = f"nothing new can be read from {at} for"
        eventually(
            lambda: any(what in why for why in reasons(app)),
            PATIENCE_S,
            lambda: str(reasons(app)),
        )
        late_cluster.mend()
        eventually(
            lambda: not any(what in why for why in reasons(app)),
            PATIENCE_S,
            lambda: str(reasons(app)),
        )
        assert log.silent_replicas([at]) == {}
        stop.set()
        feeder.join(PATIENCE_S)
        await_table(app, written)
    log.close()


def reasons(app: CoopStreams) -> list[str]:
    """Return the reasons of an application's bad health."""
    with (
        suppress(httpx.TransportError),
        httpx.Client(trust_env=False, timeout=10) as client,
    ):
        return [
            reason["message"]
            for reason in client.get(f"{app.url}/health/ready").json()["reasons"]
        ]
    return []
