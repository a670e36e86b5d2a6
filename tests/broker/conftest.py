"""Fixtures for the tests on a real Kafka."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker.cluster import ThreeBrokers
from tests.broker.consumer_processes import Processes
from tests.broker.consuming import Orders
from tests.broker.processes import Workers
from tests.broker.secured import SecuredKafka, secured_kafka
from tests.conftest import Kafka, download_kafka


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Callable[..., Workers]]:
    """Return a function that makes `Workers` of an application in this folder; settings
    by name, dots written as underscores.
    """
    made: list[Workers] = []

    def make(
        app: str, bootstrap: str, environment: dict[str, str], **settings: object
    ) -> Workers:
        named = {name.replace("_", "."): str(value) for name, value in settings.items()}
        folder = tmp_path / f"group-{len(made)}"
        folder.mkdir()
        made.append(
            Workers(
                Path(__file__).with_name(app), bootstrap, folder, environment, named
            )
        )
        return made[-1]

    yield make
    for group in made:
        group.clean_up()


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[SecuredKafka]:
    """Return a secured broker for the tests of this module."""
    with secured_kafka(
        tmp_path_factory.mktemp("secured"), download_kafka(request)
    ) as kafka:
        yield kafka


@pytest.fixture
def orders(kafka: Kafka) -> Iterator[Orders]:
    """Return a topic of one partition, and consumers of it, which are closed in the
    end.
    """
    made = Orders(kafka)
    yield made
    made.close()


@pytest.fixture(scope="module")
def cluster_of_module(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ThreeBrokers]:
    """Return three brokers that the tests of a module share."""
    with ThreeBrokers(
        tmp_path_factory.mktemp("three"), console=download_kafka(request)
    ) as cluster:
        yield cluster


@pytest.fixture
def three_brokers(cluster_of_module: ThreeBrokers) -> ThreeBrokers:
    """Return three healthy brokers, which the test may break. For tests marked `slow`."""
    cluster_of_module.mend()
    return cluster_of_module


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Callable[..., Processes]]:
    """Return a function that makes `Processes`, which are killed in the end."""
    made: list[Processes] = []

    def make(*arguments: str) -> Processes:
        made.append(Processes(tmp_path, *arguments))
        return made[-1]

    yield make
    for group in made:
        for worker in group.running.values():
            with contextlib.suppress(ProcessLookupError):
                worker.kill()
            worker.wait()
