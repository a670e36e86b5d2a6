"""All logs, for the contract suite: every test here runs on MemoryLog, on a simulated
cluster, plain and with faults, and on a real Kafka, in pure Python and natively.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest

from coopstreams.common.host import SYSTEM
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.native import SETTING
from coopstreams.log.log import Log, TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.topology.columns import TopicPartition
from tests.conftest import Kafka, needs_native
from tests.simulation.kafka.client import Client
from tests.simulation.kafka.cluster import Cluster
from tests.simulation.kafka.log import SimulatedLog
from tests.simulation.kafka.plan import Chance, Early, Late, Lost

MakeTopic = Callable[..., TopicPartition]


def faulty(seed: int) -> SimulatedLog:
    """Return a simulated cluster with faults that change no result: lost answers,
    records sent early, late markers.
    """
    plan = Chance(
        Random(seed),
        {
            "append": [(0.3, Early())],
            "fetch": [(0.2, Lost())],
            "marker": [(0.5, Late(0.02))],
        },
    )
    return SimulatedLog(Client(Cluster(plan, SYSTEM), "contract"))


@pytest.fixture(
    params=[
        "memory",
        pytest.param("simulated", marks=pytest.mark.slow),
        "faulty",
        pytest.param("kafka", marks=pytest.mark.broker),
        pytest.param("native", marks=[pytest.mark.broker, needs_native]),
    ]
)
def log(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Log]:
    if request.param == "memory":
        yield MemoryLog()
        return
    if request.param == "simulated":
        yield SimulatedLog(Client(Cluster(clock=SYSTEM), "contract"))
        return
    if request.param == "faulty":
        yield faulty(2013)
        return
    monkeypatch.setenv(SETTING, "1" if request.param == "native" else "0")
    kafka: Kafka = request.getfixturevalue("kafka")
    cluster = KafkaLog(
        {
            "bootstrap.servers": kafka.bootstrap,
            "producer.transaction.timeout.ms": 60_000,
        }
    )  # a busy machine may pause for some seconds
    yield cluster
    cluster.close()


@pytest.fixture(params=["pure", pytest.param("native", marks=needs_native)])
def plane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The data planes: each test with this fixture runs on both."""
    monkeypatch.setenv(SETTING, "1" if request.param == "native" else "0")
    return str(request.param)


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return a function that makes unique names: for topics, groups, transactional ids."""
    counter = iter(range(1000))
    return lambda name: (
        f"{name}-{abs(hash(request.node.nodeid)) % 10**9}-{next(counter)}"
    )


@pytest.fixture
def topic(log: Log, unique: Callable[[str], str]) -> MakeTopic:
    """Return a function that makes a topic and returns its partition 0; config by name,
    dots written as underscores.
    """

    def make(partitions: int = 1, **config: str) -> TopicPartition:
        name = unique("contract")
        log.create_topics(
            [
                TopicSpec(
                    name,
                    partitions,
                    {key.replace("_", "."): value for key, value in config.items()},
                )
            ]
        )
        return TopicPartition(name, 0)

    return make
