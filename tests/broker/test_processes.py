"""Processes under an operator's control: signals, exit statuses, crashing workers, full
disks.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from coopstreams.dev.broker import KafkaBroker
from tests.broker.chaos import Found, examine
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

PATIENT = {"session_timeout_ms": 60_000, "transaction_timeout_ms": 60_000}
"""Time-outs that survive some seconds' pause of the machine, for the membership and the
last commit.
"""


class Program:
    """The counting application, run by the command line."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka, self.folder = kafka, folder
        self.application, self.source, self.sink = (
            kafka.unique("counting"),
            kafka.topic("in"),
            kafka.topic("out"),
        )
        self.written: Counter[str] = Counter()
        self.log = folder / "said.log"
        self.started: list[subprocess.Popen[bytes]] = []
        self._began = 0

    def write(self, records: int, value: bytes = bytes(8)) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "linger.ms": 5})
        for number in range(records):
            producer.produce(self.source, value, f"key-{number % 50}")
            self.written[f"key-{number % 50}"] += 1
        assert producer.flush(60) == 0

    def run(self, *arguments: str, **settings: object) -> subprocess.Popen[bytes]:
        """Start `coopstreams run`."""
        given = {
            "bootstrap.servers": self.kafka.bootstrap,
            "state.dir": self.folder / "state",
            "statestore.cache.max.bytes": 0,
        }
        given |= {name.replace("_", "."): value for name, value in settings.items()}
        flags = [
            part
            for name, value in given.items()
            for part in ("--set", f"{name}={value}")
        ]
        environment = {
            "TEST_APPLICATION": self.application,
            "TEST_INPUT": self.source,
            "TEST_OUTPUT": self.sink,
        }
        command = [
            sys.executable,
            "-m",
            "coopstreams",
            "run",
            str(Path(__file__).with_name("counting_app.py")),
            *flags,
            *arguments,
        ]

        self._began = len(self.said()) if self.log.exists() else 0
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, env=os.environ | environment, stdout=log, stderr=log
            )
        self.started.append(process)
        return process

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def await_start(self) -> None:
        """Wait until the task runs in the last process that was started."""
        eventually(
            lambda: (
                re.search(r"task 0_0\[\S+\] runs", self.said()[self._began :])
                is not None
            ),
            120,
            self.said,
        )

    def await_workers(self, count: int) -> None:
        """Wait until this many workers have had their tasks open, as `--verbose` says."""
        eventually(
            lambda: (
                len(set(re.findall(r"worker \d: rebalancing -> running", self.said())))
                == count
            ),
            120,
            self.said,
        )

    def await_outputs(self) -> None:
        eventually(
            lambda: self.found().outputs >= self.written.total(),
            150,
            lambda: f"{self.found()}\n{self.said()[-4000:]}",
        )

    def details(self) -> list[dict[str, object]]:
        """Return the restarts of each process, from the status that one of them
        reports.
        """
        told = [instance.get("details", {}) for instance in self.instances()]
        return [
            {name: found[name] for name in ("restarts", "last_end") if name in found}
            for found in told
        ]

    def processed(self) -> int:
        """Return the number of processed records, committed or not."""
        return sum(
            task["processed"]
            for instance in self.instances()
            for task in instance["tasks"]
        )

    def instances(self) -> list[dict[str, Any]]:
        """Return the status of each process, from the newest process that answers."""
        for url in reversed(
            re.findall(r"queries are answered at (\S+)\n", self.said())
        ):
            with suppress(httpx.ConnectError):  # the process has ended
                return list(
                    httpx.get(f"{url}/v1/status", timeout=30).json()["instances"]
                )
        return []

    def found(self) -> Found:
        return examine(self.kafka.bootstrap, self.sink, self.written)


@pytest.fixture
def program(kafka: Kafka, tmp_path: Path) -> Iterator[Program]:
    made = Program(kafka, tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


@pytest.mark.ci
@pytest.mark.parametrize(
    ("number", "guarantee"),
    [
        (signal.SIGTERM, "exactly_once_v2"),
        pytest.param(signal.SIGINT, "at_least_once", marks=pytest.mark.slow),
    ],
)
def test_a_signal_drains_and_commits_and_nothing_is_done_again(
    program: Program, guarantee: str, number: signal.Signals
) -> None:
    """Signals come while records flow. The commit interval is so long that only the
    last commit counts.
    """
    program.write(500)
    for life in range(3):
        running = program.run(
            processing_guarantee=guarantee, commit_interval_ms=7000, **PATIENT
        )
        program.await_start()
        if life == 0:
            eventually(lambda: program.processed() > 0, 120, program.said)
        program.write(3000)
        time.sleep(0.3)
        running.send_signal(number)
        assert running.wait(120) == 0, program.said()
        assert f"{number.name}: draining" in program.said()
    before = len(read_topic(program.kafka.bootstrap, program.sink))
    assert before > 0
    running = program.run(
        processing_guarantee=guarantee, commit_interval_ms=100, **PATIENT
    )
    program.await_start()
    program.await_outputs()
    running.terminate()
    assert running.wait(120) == 0
    assert program.found().exactly_once, (
        "at least once repeats after a crash, not after an end in good order"
    )


@pytest.mark.ci
def test_a_record_that_cannot_be_read_ends_the_process_with_status_1_and_a_sentence(
    program: Program,
) -> None:
    program.write(1, b"short")
    running = program.run()
    assert running.wait(120) == 1
    assert re.search(
        rf'ProcessingError: .*"{program.source}" partition 0 offset 0 cannot be read',
        program.said(),
    )
    assert "Traceback" not in program.said()


@pytest.mark.slow
def test_a_record_that_nothing_processes_ends_all_processes_when_one_has_met_it_too_often(
    program: Program,
) -> None:
    program.write(10)
    running = program.run("--processes", "3", "--max-restarts", "1")
    program.await_outputs()
    program.write(1, b"short")
    assert running.wait(120) == 1
    ends = re.findall(
        r"worker (\d) ended with status 1: ProcessingError: .* partition 0 offset 10 cannot be read.*; (starting|it "
        r"has ended 2)",
        program.said(),
    )
    assert [how for _, how in ends].count("it has ended 2") == 1
    assert (ends[-1][0], "starting") in ends
    assert "all are stopped (--max-restarts 1)" in program.said()


@pytest.mark.slow
def test_settings_that_no_worker_can_start_with_end_all_at_once(
    program: Program,
) -> None:
    running = program.run(
        "--processes", "2", "--set", "default.dsl.store=no.such:Engine"
    )
    assert running.wait(120) == 2
    assert "it has not run yet, and cannot before this is mended" in program.said()
    assert "starting it again" not in program.said()


@pytest.mark.slow
def test_a_changelog_that_was_deleted_is_not_made_anew_by_the_restarts_of_a_supervisor(
    program: Program,
) -> None:
    changelog = f"{program.application}-counts-changelog"
    program.write(100)
    program.run(
        "--processes",
        "2",
        "--verbose",
        transaction_timeout_ms=5000,
        processing_guarantee="exactly_once_v2",
    )
    # so the group has positions: a group without them would rightly begin anew
    program.await_outputs()
    program.await_workers(
        2
    )  # a worker that has never run and is refused would rightly end the run
    program.kafka.delete(changelog)
    program.write(100)
    refused = rf"WARNING worker \d ended with status 2: ConfigError: deleted: {changelog}, the changelog of store"
    eventually(lambda: len(re.findall(refused, program.said())) >= 2, 120, program.said)
    assert changelog not in program.kafka.topics()


@pytest.mark.ci
def test_a_worker_that_crashes_is_started_again(program: Program) -> None:
    program.write(2000)
    running = program.run(
        "--processes",
        "3",
        processing_guarantee="exactly_once_v2",
        session_timeout_ms=3000,
        heartbeat_interval_ms=300,
    )
    program.await_outputs()
    children = (
        Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    )
    assert len(children) == 3
    os.kill(int(children[1]), signal.SIGKILL)
    program.write(2000)
    program.await_outputs()
    eventually(lambda: "starting it again" in program.said(), 60, program.said)
    eventually(
        lambda: (
            len(
                Path(f"/proc/{running.pid}/task/{running.pid}/children")
                .read_text()
                .split()
            )
            == 3
        ),
        60,
        program.said,
    )
    again = {"restarts": 1, "last_end": "was killed by SIGKILL"}
    eventually(
        lambda: sorted(program.details(), key=len) == [{}, {}, again],
        60,
        lambda: f"{program.details()}\n{program.said()}",
    )
    running.terminate()
    assert running.wait(120) == 0, program.said()
    assert program.found().exactly_once


@pytest.mark.slow
def test_a_worker_whose_secret_is_away_when_it_is_started_again_comes_back_with_it(
    program: Program,
) -> None:
    secret = program.folder / "secret"
    secret.write_text("0")
    running = program.run(
        "--processes", "2", "--verbose", max_task_idle_ms=f"${{file:{secret}}}"
    )
    program.await_workers(2)
    secret.unlink()
    os.kill(
        int(
            Path(f"/proc/{running.pid}/task/{running.pid}/children")
            .read_text()
            .split()[1]
        ),
        signal.SIGKILL,
    )
    eventually(
        lambda: (
            "ended with status 2: ConfigError: max.task.idle.ms = ${file:"
            in program.said()
        ),
        60,
        program.said,
    )
    secret.write_text("0")
    eventually(
        lambda: any("restarts" in told for told in program.details()), 120, program.said
    )
    program.write(1000)
    program.await_outputs()
    running.terminate()
    assert running.wait(120) == 0, program.said()
    assert program.found().exactly_once, (
        "the other one took its tasks, and gave them back"
    )


@pytest.mark.slow
def test_a_disk_that_is_full_ends_the_process_with_the_folder_and_loses_nothing(
    program: Program,
) -> None:
    program.write(20_000)
    running = program.run(
        processing_guarantee="exactly_once_v2", commit_interval_ms=100
    )
    resource.prlimit(
        running.pid, resource.RLIMIT_FSIZE, (200_000, 200_000)
    )  # file size limit, as on a full disk
    deadline = time.monotonic() + 300
    while running.poll() is None and time.monotonic() < deadline:
        program.write(1000)  # few enough to catch up with, however long the start takes
        time.sleep(0.1)
    assert running.poll() == 1, program.said()[-3000:]
    assert re.search(r"StateError: .*0_0", program.said().replace("\n", " ")), (
        program.said()[-3000:]
    )
    running = program.run(
        processing_guarantee="exactly_once_v2", commit_interval_ms=100
    )
    program.await_start()
    eventually(
        lambda: program.found().lost == 0,
        240,
        lambda: f"{program.found()}\n{program.said()[-3000:]}",
    )
    running.terminate()
    assert running.wait(120) == 0
    assert program.found().exactly_once


@pytest.mark.slow
def test_a_signal_ends_a_process_whose_broker_is_away(
    broker_of_own: Callable[..., KafkaBroker], tmp_path: Path
) -> None:
    broker = broker_of_own()
    program = Program(
        Kafka(
            broker.bootstrap,
            AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2}),
        ),
        tmp_path,
    )
    program.write(1000)
    running = program.run(
        processing_guarantee="exactly_once_v2", transaction_timeout_ms=5000
    )
    try:
        program.await_outputs()
        broker.kill()
        time.sleep(3)
        running.terminate()
        running.wait(120)  # any status: uncommitted records could not be committed
    finally:
        running.kill()
        running.wait()
