"""Fixtures for the whole suite: a real Kafka, started once for all processes of a run,
and brokers of their own for tests that break them.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from _pytest.capture import CaptureManager
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,  # pyright: ignore
    ConfigEntry,  # pyright: ignore
    ConfigResource,  # pyright: ignore
    ResourceType,  # pyright: ignore
)
from confluent_kafka.cimpl import NewPartitions, NewTopic
from hypothesis import settings
from rich.console import Console

from coopstreams.dev.broker import KafkaBroker
from coopstreams.dev.cache import locked
from coopstreams.dev.jars import KAFKA, kafka_jars

# No test fails because the machine is busy: hypothesis would fail one after 200 ms.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


pytest_plugins = ["tests.dealing", "tests.hanging"]

# Each client of httpx, and so each `httpx.get` and each server, would read all
# certificate authorities: 45 ms.
httpx._transports.default.create_ssl_context = cache(httpx.create_ssl_context)  # type: ignore[attr-defined]

# A background process of a script ignores Ctrl-C; its children, which tests interrupt,
# would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# An unclosed connection outlives its broker, and its warnings would be in the logs of
# later tests.
logging.getLogger("kafka").setLevel(logging.CRITICAL)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo the logging set-up of a command that a test ran; later tests would log in
    its format.
    """
    loggers = [logging.getLogger(name) for name in ("", "coopstreams", "kafka", "py4j")]
    levels, handlers = [each.level for each in loggers], list(loggers[0].handlers)
    yield
    for each, level in zip(loggers, levels, strict=True):
        each.setLevel(level)
    for handler in loggers[0].handlers:
        if isinstance(handler, logging.StreamHandler) and handler not in handlers:
            loggers[0].removeHandler(handler)


needs_native = pytest.mark.skipif(
    find_spec("coopstreams_native") is None,
    reason="coopstreams-native is not built: `make setup` does, where cargo is",
)


PATIENT = {
    "session.timeout.ms": 60_000,
    "transaction.timeout.ms": 60_000,
    "consumer.fetch.wait.max.ms": 50,
}
"""Settings for tests with another subject: a machine may pause for seconds without the
loss of a membership or of the last commit; an idle consumer fetches 20 times a second,
not 100, which were two thirds of the shared broker's requests.
"""


@dataclass(slots=True)
class Kafka:
    """The broker that all tests of a run share: never stop it, and use unique names."""

    bootstrap: str
    _admin: AdminClient
    replicas: int = 1
    """The replicas of each topic made here."""
    login: Mapping[str, str] = field(default_factory=dict)
    """The security settings of the client that creates topics."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def settings(self) -> dict[str, str]:
        """How to connect, in librdkafka's names."""
        return {"bootstrap.servers": self.bootstrap, **self.login}

    def config(
        self,
        folder: Path | str,
        login: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """Return the settings of an application that keeps its state in this folder;
        dots are written as underscores. It commits ten times a second, and has the
        settings of `PATIENT`. `login`: connection settings, if not the test's.
        """
        named = {name.replace("_", "."): value for name, value in settings.items()}
        return {
            **(login or self.settings),
            "state.dir": str(folder),
            "commit.interval.ms": 100,
            **PATIENT,
            **named,
        }

    def write(self, topic: str, records: Iterable[tuple[Any, ...]], **at: Any) -> None:
        """Write records (key, value, and optionally timestamp), and wait until they are
        in the log. `at`: the `partition`, `timestamp` or `headers` of all.
        """
        producer = Producer(
            {**self.settings, "linger.ms": 5, "partitioner": "murmur2_random"}
        )
        for key, value, *timestamp in records:
            producer.produce(
                topic,
                value,
                key,
                **({"timestamp": timestamp[0]} if timestamp else {}),
                **at,
            )
        assert producer.flush(90) == 0

    def unique(self, name: str) -> str:
        """Return a name that no other test of this run uses: for topics, groups,
        transactions, applications.
        """
        return f"{name}-{os.getpid()}-{next(self._numbers)}"

    def topic(self, name: str = "topic", partitions: int = 1, **config: str) -> str:
        """Create a topic with a unique name and return the name. Dots in the config are
        written as underscores: `cleanup_policy="compact"`.
        """
        topic = self.unique(name)
        self.create(topic, partitions, **config)
        return topic

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Create a topic of this name, and wait until the broker knows it: it answers
        earlier.
        """
        new = NewTopic(
            topic,
            partitions,
            self.replicas,
            config={key.replace("_", "."): value for key, value in config.items()},
        )
        self._admin.create_topics([new])[topic].result(60)
        while not self._is_led(topic, partitions):
            time.sleep(0.01)

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self._admin.delete_topics([topic])[topic].result(60)
        while self._known(topic) is not None:
            time.sleep(0.05)

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions, and wait until the broker knows them."""
        self._admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(
            60
        )
        while not self._is_led(topic, partitions):
            time.sleep(0.01)

    def configure(self, topic: str, **config: str) -> None:
        """Change settings of a topic, dots written as underscores; the brokers follow
        soon.
        """
        entries = [
            ConfigEntry(
                name.replace("_", "."),
                value,
                incremental_operation=AlterConfigOpType.SET,
            )
            for name, value in config.items()
        ]
        for answer in self._admin.incremental_alter_configs(
            [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)]
        ).values():
            answer.result(60)

    def _is_led(self, topic: str, partitions: int) -> bool:
        """Whether all partitions of a topic can be read and written."""
        found = self._known(topic)
        if found is None or len(found.partitions) != partitions:
            return False
        return all(
            partition.leader > 0 and len(partition.isrs) == self.replicas
            for partition in found.partitions.values()
        )

    def _known(self, topic: str) -> Any:
        """Return what the broker knows of a topic, None if nothing.

        It is asked for this one alone: the answers with all that tests have made were
        most of its work (measured).
        """
        found = self._admin.list_topics(topic, timeout=60).topics.get(topic)
        return None if found is None or found.error is not None else found

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return sorted(self._admin.list_topics(timeout=60).topics)

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records of a partition below an offset, as retention does."""
        for answer in self._admin.delete_records(
            [TopicPartition(topic, partition, offset)]
        ).values():
            answer.result(60)


SHARED, TO_BREAK = "shared-kafka", "kafka-to-break"
"""The folders of the brokers that all processes of a run share."""


def folder_of_run(config: pytest.Config) -> Path:
    """Return the folder that all processes of a run share."""
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    base = factory.getbasetemp()
    return base.parent if hasattr(config, "workerinput") else base


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking through thousands of tests again and
    again, and let it look less often: that saves 8 % of the CPU of tests without Kafka
    (measured).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the shared brokers: the process that distributes the tests ends last."""
    if not hasattr(session.config, "workerinput"):
        for name in (SHARED, TO_BREAK):
            KafkaBroker(folder_of_run(session.config) / name).stop()


@pytest.fixture(scope="session")
def shared_broker(request: pytest.FixtureRequest) -> KafkaBroker:
    """Return the broker that all tests of a run share, whichever process started it."""
    settings = {
        # Otherwise a machine that pauses for three seconds has no brokers.
        "broker.session.timeout.ms": "60000",
        # Otherwise a test of a compacted topic waits for 15 seconds.
        "log.cleaner.backoff.ms": "1000",
        # Otherwise the records of a killed share group member are delivered again only
        # after 15 seconds.
        "group.share.min.record.lock.duration.ms": "1000",
    }
    console = download_kafka(request)
    broker = KafkaBroker(
        folder_of_run(request.config) / SHARED, settings=settings, console=console
    )
    broker.start()
    return broker


@pytest.fixture(scope="session")
def kafka(shared_broker: KafkaBroker) -> Kafka:
    admin = AdminClient({"bootstrap.servers": shared_broker.bootstrap, "log_level": 2})
    return Kafka(shared_broker.bootstrap, admin)


@pytest.fixture
def broker_to_break(request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    """Return a broker for this test alone, to be paused, stopped and restarted. Another
    test gets it afterwards: use unique names.
    """
    folder = folder_of_run(request.config) / TO_BREAK
    # Kafka's default: a client that asks for a topic may create it.
    settings = {
        "broker.session.timeout.ms": "9000",
        "auto.create.topics.enable": "true",
    }
    with locked(folder.with_suffix(".lock")):
        broker = KafkaBroker(folder, settings=settings, console=download_kafka(request))
        broker.start()
        yield broker
        broker.resume()


@pytest.fixture
def broker_of_own(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[..., KafkaBroker]]:
    """Return a function that starts a broker for this test alone; settings by name,
    dots written as underscores. Stopped at the end.
    """
    brokers: list[KafkaBroker] = []

    def start(
        folder: Path | None = None, *, version: str = KAFKA, **settings: str
    ) -> KafkaBroker:
        console = download_kafka(request, version)
        changes = {"broker.session.timeout.ms": "9000"} | {
            key.replace("_", "."): value for key, value in settings.items()
        }
        broker = KafkaBroker(
            folder or tmp_path_factory.mktemp("broker"),
            settings=changes,
            console=console,
            version=version,
        )
        brokers.append(broker)
        broker.start()
        return broker

    yield start
    for broker in brokers:
        broker.stop()


def download_kafka(request: pytest.FixtureRequest, version: str = KAFKA) -> Console:
    """Download the jars of a Kafka version into the cache, if missing; show the
    download although pytest captures output.
    """
    console = Console(stderr=True)
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert isinstance(capture, CaptureManager)
    with capture.global_and_fixture_disabled():
        kafka_jars(console, version=version)
    return console
