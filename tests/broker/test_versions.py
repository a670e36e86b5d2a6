"""Two versions of a program in one group, on a real Kafka: one of them has all tasks,
the other waits and reports why, and no record is lost or doubled.

The first version reads B; the second reads A and B, so that its sub-topology 0 differs.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coopstreams import CoopStreams, StreamsBuilder, Topology, serdes
from coopstreams.query.client import QueryClient
from coopstreams.topology.errors import QueryError
from tests.broker.counting import instance_of, reasons
from tests.broker.reading import latest, read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


@dataclass
class Program:
    """An application with versions that read different topics; inputs and outputs by
    topic.
    """

    kafka: Kafka
    folder: Path
    running: dict[str, tuple[CoopStreams, ExitStack]] = field(default_factory=dict)
    written: dict[str, Counter[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.application = self.kafka.unique("versions")
        self.topics = {
            name: (
                self.kafka.topic(f"in-{name}", 2),
                self.kafka.topic(f"out-{name}", 2),
            )
            for name in "ab"
        }

    def topology(self, reads: str) -> Topology:
        builder = StreamsBuilder(self.application)
        for name in reads:
            source, sink = self.topics[name]
            builder.stream(
                source, key=serdes.text, value=serdes.raw
            ).group_by_key().count(store=f"counts-{name}").to_stream().to(sink)
        return builder.build()

    def start(self, name: str, reads: str, folder: str = "") -> CoopStreams:
        """Start a process of the version that reads these topics; `folder`: the state
        folder, if not a new one.
        """
        settings = self.kafka.config(
            self.folder / (folder or name),
            processing_guarantee="exactly_once_v2",
            commit_interval_ms=50,
        )
        app, stack = CoopStreams(self.topology(reads), settings), ExitStack()
        stack.enter_context(app)
        self.running[name] = app, stack
        return app

    def stop(self, name: str) -> None:
        self.running.pop(name)[1].close()

    def stop_all(self) -> None:
        for name in list(self.running):
            self.stop(name)

    def write(self, records: int) -> None:
        """Write this many records to both topics."""
        keys = [f"key-{number % 37}".encode() for number in range(records)]
        for name, (source, _) in self.topics.items():
            self.kafka.write(source, ((key, b"x") for key in keys))
            self.written.setdefault(name, Counter()).update(keys)

    def counted(self, name: str) -> Counter[bytes]:
        found = latest(read_topic(self.kafka.bootstrap, self.topics[name][1]))
        return Counter(
            {key: int.from_bytes(value, "big") for key, value in found.items()}
        )

    def exact(self, names: str) -> None:
        """Wait until each record of these topics has counted, once."""
        eventually(
            lambda: all(self.counted(name) >= self.written[name] for name in names),
            120,
            self.report,
        )
        assert {name: self.counted(name) for name in names} == {
            name: self.written[name] for name in names
        }

    def report(self) -> str:
        sums = {
            name: (self.counted(name).total(), written.total())
            for name, written in self.written.items()
        }
        return f"counted, of: {sums}; { ({name: app.status() for name, (app, _) in self.running.items()}) }"


@pytest.fixture
def program(kafka: Kafka, tmp_path: Path) -> Iterator[Program]:
    made = Program(kafka, tmp_path)
    yield made
    made.stop_all()


def members(app: CoopStreams) -> int:
    assigned = instance_of(app).standing.assigned
    return 0 if assigned is None else len(assigned.cluster.members)


def await_works(app: CoopStreams, of: int) -> None:
    """Wait until a process runs tasks in a group of this many members."""
    eventually(
        lambda: (
            members(app) == of
            and bool(instance_of(app).standing.tasks)
            and not reasons(app)
        ),
        120,
        lambda: str(app.status()),
    )


def await_waits(app: CoopStreams) -> None:
    """Wait until a process has no tasks for this one reason, and reports it in each
    place.
    """
    eventually(
        lambda: reasons(app) == ["another-version"], 120, lambda: str(app.status())
    )
    status = app.status()
    assert status is not None
    assert (status["state"], status["live"], status["ready"], status["tasks"]) == (
        "waiting",
        True,
        False,
        [],
    )
    assert (
        f"it runs version {status['details']['version']} of the topology, and the group runs "
        in status["reasons"][0]["message"]
    )


@pytest.mark.ci
def test_the_later_version_waits_with_its_reason_and_takes_over_when_the_earlier_one_stops(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    first = program.start("first", "b")
    await_works(first, of=1)
    program.write(500)
    with caplog.at_level(logging.WARNING):
        second = program.start("second", "ab")
        await_waits(second)
    program.write(500)
    program.exact("b")
    told = [
        record.getMessage()
        for record in caplog.records
        if "this process gets no tasks" in record.getMessage()
    ]
    assert len(told) == 1
    assert "2 sub-topologies, not 1" in told[0]
    assert "application.id" in told[0]
    with QueryClient(str(first.url), deadline_s=10) as client:

        def states() -> dict[str, bool]:  # a slow instance is unreachable once
            return {
                instance["state"]: instance["ready"]
                for instance in client.status()["instances"]
            }

        eventually(
            lambda: states() == {"running": True, "waiting": False},
            90,
            lambda: str(states()),
        )
    with (
        QueryClient(str(second.url), deadline_s=1) as client,
        pytest.raises(
            QueryError, match="does not know the owner of the key: it runs version"
        ) as refused,
    ):
        client.get("counts-b", "key-1")
    assert refused.value.code == "TASK_MOVING"
    assert refused.value.retryable
    program.stop("first")
    await_works(second, of=1)
    program.exact("ab")


@pytest.mark.slow
def test_processes_are_replaced_one_by_one_and_back_again_while_records_flow(
    program: Program,
) -> None:
    for number in range(3):
        program.start(f"{number}", "b")
    ended = threading.Event()

    def flow() -> None:
        while not ended.wait(0.05):
            program.write(100)

    producer = threading.Thread(target=flow)
    producer.start()
    try:
        await_works(program.running["0"][0], of=3)
        for reads in ("ab", "b", "ab"):
            for number in range(3):
                program.stop(f"{number}")
                app = program.start(f"{number}", reads)
                if number == 0:
                    await_waits(app)
                else:  # the majority
                    await_works(app, of=3)
    finally:
        ended.set()
        producer.join()
    program.exact("ab")
