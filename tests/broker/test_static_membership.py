"""Static members on a real Kafka: a process that starts again takes its place in the
group, and no task of the others moves.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.broker.processes import Workers
from tests.broker.test_time_behind_topics import backlog, expected, told, write
from tests.broker.waiting import eventually
from tests.command_line import app
from tests.conftest import Kafka

APP = Path(__file__).parent / "windowed_app.py"
GENERATION = re.compile(r"generation (\d+) of group \S+: (\d+) tasks, \+(\d+), -(\d+)")
Change = tuple[int, int]
"""The numbers of tasks that a process got and gave up."""


def workers_of(kafka: Kafka, folder: Path, **settings: str) -> tuple[Workers, str, str]:
    """Return processes that are not started yet, their source and their output."""
    source = kafka.topic("payments", 2, **{"retention.ms": "-1"})
    out = kafka.topic("out", 1, **{"retention.ms": "-1"})
    environment = {
        "TEST_APPLICATION": kafka.unique("hours"),
        "TEST_INPUT": source,
        "TEST_OUTPUT": out,
    }
    static = {
        "group.instance.id": "worker-{instance}",
        "session.timeout.ms": "60000",
        "ranges.per.partition": "3",
    }
    named = {name.replace("_", "."): value for name, value in settings.items()}
    workers = Workers(APP, kafka.bootstrap, folder, environment, static | named)
    return workers, source, out


def changes(log: str) -> list[Change]:
    """Return what each rebalance in a log changed."""
    return [
        (int(added), int(revoked)) for _, _, added, revoked in GENERATION.findall(log)
    ]


def settled(workers: Workers) -> None:
    """Wait until each process has tasks."""
    eventually(
        lambda: all(
            re.search(r"task \S+ runs on thread", workers.log(number))
            for number in workers.running
        ),
        60,
        workers.logs,
    )


def answering(workers: Workers, number: int) -> None:
    """Wait until a process answers queries."""
    eventually(lambda: workers.url(number) is not None, 60, workers.logs)


@pytest.mark.ci
@pytest.mark.broker
def test_a_rolling_restart_of_static_members_moves_no_task(
    kafka: Kafka, tmp_path: Path
) -> None:
    workers, source, out = workers_of(kafka, tmp_path)
    rows = backlog(1, 2, 6_000, 0.0)
    want = expected(rows)
    parts = [[some[at : at + 1000] for some in rows] for at in (0, 1000, 2000)]
    try:
        for number in range(3):
            workers.start(number)
        write(kafka, source, parts[0])
        eventually(lambda: told(kafka, out).total() >= 1900, 60, workers.logs)
        settled(workers)
        before = {number: len(workers.log(number)) for number in range(3)}
        for number in range(3):
            assert workers.terminate(number) == 0
            workers.start(number)
            answering(workers, number)
            write(kafka, source, parts[1] if number == 1 else [[], []])
        write(kafka, source, parts[2])
        eventually(lambda: told(kafka, out) == want, 60, workers.logs)
        for number in range(3):
            mine = changes(workers.log(number)[before[number] :])
            got = [change for change in mine if change != (0, 0)]
            assert len(got) == 1, f"once, its own tasks: {mine}"
            assert got[0][0] > 0
            assert got[0][1] == 0
    finally:
        workers.clean_up()


@pytest.mark.ci
@pytest.mark.broker
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_a_static_member_that_was_killed_comes_back_and_loses_nothing(
    kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    """Under at-least-once its last requests may still be under way, and no broker
    fences them: it waits for its session.
    """
    workers, source, out = workers_of(
        kafka,
        tmp_path,
        processing_guarantee=guarantee,
        session_timeout_ms="6000",
    )
    rows = backlog(1, 2, 4_000, 0.0)
    want = expected(rows)
    try:
        for number in range(2):
            workers.start(number)
        write(kafka, source, [some[:1000] for some in rows])
        eventually(lambda: told(kafka, out).total() >= 1900, 60, workers.logs)
        workers.kill(0)
        workers.start(0)
        write(kafka, source, [some[1000:] for some in rows])
        if guarantee == "exactly_once_v2":
            eventually(lambda: told(kafka, out) == want, 60, workers.logs)
        else:
            eventually(
                lambda: not (want - told(kafka, out)),
                60,
                lambda: f"{(want - told(kafka, out)).total()} missing",
            )
        waited = "which has not ended cleanly" in workers.log(0)
        assert waited == (guarantee == "at_least_once")
    finally:
        workers.clean_up()


@pytest.mark.ci
@pytest.mark.broker
def test_of_two_processes_with_one_id_the_older_ends_with_the_reason(
    kafka: Kafka, tmp_path: Path
) -> None:
    workers, source, _ = workers_of(
        kafka,
        tmp_path,
        group_instance_id="the-same",
        processing_guarantee="exactly_once_v2",
    )
    write(kafka, source, backlog(1, 2, 100, 0.0))
    try:
        workers.start(0)
        settled(workers)
        workers.start(1)
        eventually(lambda: 0 in workers.ended(), 60, workers.logs)
        assert (
            "another process has taken over group.instance.id 'the-same'"
            in workers.log(0)
        )
        assert workers.ended()[0] != 0
        settled(workers)
    finally:
        workers.clean_up()


@pytest.mark.ci
@pytest.mark.broker
def test_a_static_member_that_was_stopped_for_good_can_be_removed(
    kafka: Kafka, tmp_path: Path
) -> None:
    """Otherwise its tasks would wait for a session of an hour."""
    workers, source, out = workers_of(kafka, tmp_path, session_timeout_ms="600000")
    rows = backlog(1, 2, 4_000, 0.0)
    want = expected(rows)
    application = workers.environment["TEST_APPLICATION"]

    def remove(*ids: str) -> Result:
        asked = ["group", "remove", application, *ids]
        return CliRunner().invoke(app, [*asked, "--bootstrap-servers", kafka.bootstrap])

    try:
        for number in range(2):
            workers.start(number)
        write(kafka, source, [some[:1000] for some in rows])
        eventually(lambda: told(kafka, out).total() >= 1900, 60, workers.logs)
        settled(workers)
        assert workers.terminate(1) == 0
        done = remove("worker-1", "worker-7")
        assert done.stdout == "worker-1 is removed\n"
        assert str(done.exception) == (
            f"group {application} has no static member worker-7; it has worker-0"
        )
        write(kafka, source, [some[1000:] for some in rows])
        eventually(lambda: told(kafka, out) == want, 60, workers.logs)
    finally:
        workers.clean_up()
