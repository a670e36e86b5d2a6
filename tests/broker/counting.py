"""The smallest stateful application, run in this process: a count of each key, with
access to its databases.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from coopstreams import CoopStreams, StreamsBuilder, Topology, serdes
from coopstreams.instance.instance import Instance
from coopstreams.query.client import QueryClient
from coopstreams.topology.errors import QueryError
from tests.broker.reading import counts_of
from tests.broker.waiting import eventually
from tests.conftest import Kafka

PROGRAM = """
from coopstreams import StreamsBuilder, serdes

builder = StreamsBuilder("{application}")
counts = builder.stream("{source}", key=serdes.text, value=serdes.raw).group_by_key().count(store="counts")
counts.to_stream().to("{sink}")
topology = builder.build()
"""


@dataclass(frozen=True, slots=True)
class Counting:
    """An application that counts the keys of a topic into the store `counts` and
    another topic.
    """

    kafka: Kafka
    application: str
    source: str
    sink: str
    topology: Topology

    @staticmethod
    def make(kafka: Kafka, partitions: int = 1) -> Counting:
        """Return a counting application with topics of its own."""
        application = kafka.unique("counting")
        source = kafka.topic("in", partitions)
        sink = kafka.topic("out", partitions)
        builder = StreamsBuilder(application)
        builder.stream(source, key=serdes.text, value=serdes.raw).group_by_key().count(
            store="counts"
        ).to_stream().to(sink)
        return Counting(kafka, application, source, sink, builder.build())

    @property
    def changelog(self) -> str:
        """The store's changelog topic."""
        return f"{self.application}-counts-changelog"

    @property
    def program(self) -> str:
        """The same program for the command line."""
        return PROGRAM.format(
            application=self.application, source=self.source, sink=self.sink
        )

    def counts(self, store: str = "counts") -> dict[str, int]:
        """Return the counts in the changelog of a store."""
        return counts_of(self.kafka.bootstrap, f"{self.application}-{store}-changelog")

    def app(
        self,
        folder: Path,
        number: int = 0,
        heard: Any = None,
        login: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> CoopStreams:
        """Return an instance, not yet running.

        `heard`: listeners; `login`: connection settings, if not the test's; settings by
        name, dots as underscores.
        """
        return CoopStreams(
            self.topology,
            self.kafka.config(folder, login, instance=number, **settings),
            **(heard or {}),
        )

    def write(self, keys: Iterable[str], timeout_s: float = 90) -> Counter[str]:
        """Write a record for each key; return how often each was written."""
        written: Counter[str] = Counter()
        producer = Producer(
            {
                **self.kafka.settings,
                "linger.ms": 5,
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
            }
        )
        for key in keys:
            producer.produce(self.source, b"x", key)
            written[key] += 1
        assert producer.flush(timeout_s) == 0
        return written


def instance_of(app: CoopStreams) -> Instance:
    """Return the instance inside a running application."""
    assert app._instance is not None
    return app._instance


def table(app: CoopStreams, store: str = "counts") -> dict[str, Any]:
    """Return a store by an instance's HTTP answers; empty while a task moves."""
    with QueryClient(str(app.url), deadline_s=20) as client:
        try:
            return {
                entry.key: entry.value for entry in client.range(store, page=20_000)
            }
        except QueryError:
            return {}


def reasons(app: CoopStreams) -> list[str]:
    """Return the codes of the reasons in the status of an application."""
    return [reason["code"] for reason in (app.status() or {"reasons": []})["reasons"]]


def await_table(app: CoopStreams, expected: dict[str, int]) -> None:
    """Return when the store has the expected rows."""
    found: dict[str, int] = {}

    def same() -> bool:
        found.clear()
        found.update(table(app))
        return found == expected

    eventually(
        same,
        120,
        lambda: (
            f"{len(found)} of {len(expected)} keys, {sum(found.values())} of {sum(expected.values())} records"
        ),
    )


def await_running(apps: Iterable[CoopStreams]) -> None:
    """Return when all tasks of all instances run, each instance has some, and together
    they cover everything.
    """
    apps = list(apps)

    def ready() -> bool:
        instances = [instance_of(app) for app in apps]
        states = [dict(instance.registry.states) for instance in instances]
        assigned = [instance.standing.assigned for instance in instances]
        if any(
            one is None or len(one.cluster.members) != len(apps) for one in assigned
        ) or not at_rest(instances):
            return False
        return all(
            mine and all(state.value == "running" for state in mine.values())
            for mine in states
        ) and _whole(states)

    eventually(
        ready,
        120,
        lambda: str(
            [
                {
                    str(task): state.value
                    for task, state in instance_of(app).registry.states.items()
                }
                for app in apps
            ]
        ),
    )


def at_rest(instances: Iterable[Instance]) -> bool:
    """Whether no rebalance will follow: all are in one generation, and none has tasks
    to revoke or to wait for.
    """
    holdings = [instance.member._participant._holdings for instance in instances]
    generations = {each.generation for each in holdings}
    return len(generations) == 1 and all(
        each._settled and not each.closing and not each.wants_rebalance
        for each in holdings
    )


def _whole(states: list[dict[Any, Any]]) -> bool:
    held: Counter[tuple[int, int]] = Counter()
    for mine in states:
        for task in mine:
            held[task.subtopology, task.partition] += (
                task.key_range.end - task.key_range.start + 1
            )
    return set(held.values()) == {1 << 63}


def groups_on_disk(app: CoopStreams) -> Counter[int]:
    """Return how many keys of each key group the databases of an instance hold, owned
    groups or not.
    """
    instance, found = instance_of(app), Counter[int]()
    for subtopology, partition in instance.components.directory.partitions():
        database = instance.components.directory.open(
            subtopology,
            partition,
            instance.components.plan.subtopology(subtopology).stores,
        )
        try:
            if "counts" in database.specs:
                for group in range(256):
                    found[group] += sum(
                        1 for _ in database.scan("counts", [group], None, None)
                    )
        finally:
            instance.components.directory.release(subtopology, partition)
    return +found


def groups_owned(app: CoopStreams) -> set[int]:
    """Return the key groups of the tasks of an instance."""
    tasks = list(instance_of(app).registry.states)
    return {group for task in tasks for group in task.key_range.groups.numbers}


def metric(app: CoopStreams, name: str) -> float:
    """Return the sum of all series of a metric of an instance."""
    lines = instance_of(app).components.metrics.text().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith((f"{name}{{", f"{name} "))
    )


def failure_of(app: CoopStreams) -> BaseException:
    """Run an application that fails; return the error that ends it."""
    found: list[BaseException] = []

    def run() -> None:
        try:
            app.run()
        except BaseException as error:  # noqa: BLE001 it is the result
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(120)
    if thread.is_alive():
        app.stop()
        thread.join(60)
        pytest.fail("it still ran after 120 s")
    assert found, "it ended as if nothing had happened"
    return found[0]
