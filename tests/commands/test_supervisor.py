"""Workers under a supervisor: one that ends is restarted, the others continue; a rule
ends them all, and none outlives it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from coopstreams.commands.processes import restarts
from coopstreams.commands.processes.restarts import STOPPED, WRONG
from coopstreams.commands.processes.supervisor import Supervisor
from coopstreams.commands.processes.worker import past, say_why
from coopstreams.dev.process import wait_until
from coopstreams.topology.errors import ProcessingError
from tests.broker.processes import alive

LIVES = "import os, sys, time, pathlib; pathlib.Path(sys.argv[1], f'{sys.argv[2]}-{os.getpid()}').touch(); time.sleep(600)"
FAILS = """
import os
from coopstreams.commands.processes.worker import say_why
from coopstreams.topology.errors import ProcessingError
say_why(ProcessingError("the record at offset 7"), os.environ)
raise SystemExit(1)
"""


def living(folder: Path) -> Callable[[int], Sequence[str]]:
    """Return the command of a worker that writes the file `NUMBER-PID` to the folder
    and keeps running.
    """
    return lambda number: [sys.executable, "-c", LIVES, str(folder), str(number)]


def beside(folder: Path, code: str) -> Callable[[int], Sequence[str]]:
    """Return the commands of worker 0, which keeps running, and of others, which run
    this code.
    """
    return lambda number: (
        [sys.executable, "-c", code] if number else living(folder)(number)
    )


def started(folder: Path, number: int) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in folder.glob(f"{number}-*")]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "FIRST_REST_S", 0.01)


@contextmanager
def running(workers: Supervisor, statuses: list[int]) -> Iterator[None]:
    thread = threading.Thread(target=lambda: statuses.append(workers.run()))
    thread.start()
    yield
    workers.stop()
    thread.join(120)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_somebody_ended_is_started_again_and_stop_leaves_none(
    tmp_path: Path, end: signal.Signals
) -> None:
    def command(number: int) -> Sequence[str]:
        ends = f"import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); {LIVES}"
        return [sys.executable, "-c", f"import sys; {ends}", str(tmp_path), str(number)]

    statuses: list[int] = []
    with running(Supervisor(command, [3, 4], drain_s=10), statuses):
        assert wait_until(
            lambda: bool(started(tmp_path, 3) and started(tmp_path, 4)), 120
        )
        os.kill(started(tmp_path, 4)[0], end)
        assert wait_until(lambda: len(started(tmp_path, 4)) == 2, 120)
    assert statuses == [0]
    assert len(started(tmp_path, 3)) == 1
    assert not any(alive(pid) for number in (3, 4) for pid in started(tmp_path, number))


def test_a_second_request_to_end_is_passed_on(tmp_path: Path) -> None:
    patient = (
        "import signal, time; asked = []; "
        "signal.signal(signal.SIGTERM, lambda *_: (asked.append(1), len(asked) > 1 and sys.exit(0))); "
        + LIVES
    )

    def command(number: int) -> Sequence[str]:
        return [
            sys.executable,
            "-c",
            f"import sys; {patient}",
            str(tmp_path),
            str(number),
        ]

    statuses: list[int] = []
    workers = Supervisor(command, [0], drain_s=300)
    with running(workers, statuses):
        assert wait_until(lambda: bool(started(tmp_path, 0)), 120)
        workers.stop()
        time.sleep(0.5)
        assert alive(started(tmp_path, 0)[0])
        workers.hurry()
    assert statuses == [0]


def test_a_worker_that_fails_is_started_again_and_the_others_run_on_until_it_failed_too_often(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rests: list[tuple[int, str]] = []
    workers = Supervisor(
        beside(tmp_path, FAILS),
        [0, 1],
        10,
        most_restarts=2,
        rests=lambda number, _, how: rests.append((number, how)),
    )
    assert workers.run() == 1
    assert (
        rests
        == [(1, "ended with status 1: ProcessingError: the record at offset 7")] * 2
    )
    assert len(started(tmp_path, 0)) == 1, "the other one ran all along"
    assert not alive(started(tmp_path, 0)[0])
    assert [record.message for record in caplog.records] == [
        "worker 1 ended with status 1: ProcessingError: the record at offset 7; starting it again",
        "worker 1 ended with status 1: ProcessingError: the record at offset 7; starting it again in 0.01 s (2 ends in "
        "a row; more than 2 stop all)",
        "worker 1 ended with status 1: ProcessingError: the record at offset 7; it has ended 3 times in a row; all are "
        "stopped (--max-restarts 2)",
    ]


def test_a_reason_with_a_zero_character_is_passed_on_without_it(tmp_path: Path) -> None:
    """Errors quote records, and an environment variable cannot have this character."""
    rests: list[str] = []
    code = FAILS.replace("the record at offset 7", r"no number: 7\0")
    workers = Supervisor(
        beside(tmp_path, code),
        [0, 1],
        10,
        most_restarts=1,
        rests=lambda *told: rests.append(told[2]),
    )
    assert workers.run() == 1
    assert rests == [r"ended with status 1: ProcessingError: no number: 7\0"]


@pytest.mark.parametrize(
    ("code", "status"),
    [("", 1), ("import os; os.kill(os.getpid(), 9)", 128 + 9), ("1 / 0", 1)],
)
def test_whatever_the_end_of_a_worker_is_called_too_many_end_all(
    tmp_path: Path, code: str, status: int
) -> None:
    assert (
        Supervisor(beside(tmp_path, code), [0, 1], 10, most_restarts=1).run() == status
    )
    assert not any(alive(pid) for pid in started(tmp_path, 0))


@pytest.mark.parametrize("status", [WRONG, STOPPED])
def test_what_would_end_every_worker_ends_all_at_once(
    tmp_path: Path, status: int
) -> None:
    assert (
        Supervisor(beside(tmp_path, f"raise SystemExit({status})"), [0, 1], 10).run()
        == status
    )
    assert not any(alive(pid) for pid in started(tmp_path, 0))


RUNS_ONCE = """
import os, pathlib, sys
from coopstreams.commands.processes.worker import past, say_running, say_why
from coopstreams.tasks.lifecycle import StreamsState
from coopstreams.topology.errors import ConfigError
if not past(os.environ):
    say_running(os.environ)(StreamsState.RUNNING, StreamsState.REBALANCING)
    os.kill(os.getpid(), 9)
if not pathlib.Path(sys.argv[1]).exists():
    say_why(ConfigError("the file cannot be read"), os.environ)
    raise SystemExit(2)
"""


def test_a_worker_that_ran_and_is_refused_when_started_again_ends_no_other_and_runs_when_it_may(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mended = tmp_path / "mended"

    def command(number: int) -> Sequence[str]:
        code = f"{RUNS_ONCE if number else ''}\n{LIVES.replace('argv[1]', 'argv[2]').replace('argv[2]}', 'argv[3]}')}"
        return [sys.executable, "-c", code, str(mended), str(tmp_path), str(number)]

    statuses: list[int] = []
    with running(Supervisor(command, [0, 1], 10, most_restarts=2), statuses):
        refused = "worker 1 ended with status 2: ConfigError: the file cannot be read; starting it again in "
        assert wait_until(
            lambda: sum(refused in record.message for record in caplog.records) > 3, 120
        )
        assert not started(tmp_path, 1)
        mended.touch()
        assert wait_until(lambda: bool(started(tmp_path, 1)), 120)
        assert len(started(tmp_path, 0)) == 1, "the other one ran all along"
    assert statuses == [0]
    assert (
        caplog.records[0].message == "worker 1 was killed by SIGKILL; starting it again"
    )
    assert (
        caplog.records[2].message
        == f"{refused}0.02 s (3 ends in a row; the others go on)"
    )


@pytest.mark.ci
def test_all_end_when_none_is_left_that_may_start(tmp_path: Path) -> None:
    assert (
        Supervisor(
            lambda _: [sys.executable, "-c", RUNS_ONCE, "-"],
            [0, 1],
            10,
            most_restarts=3,
        ).run()
        == WRONG
    )


def test_children_of_a_worker_that_was_killed_end_with_it(tmp_path: Path) -> None:
    """A forked child, as multiprocessing makes, keeps the lock of the state folder: no
    other worker could start.
    """
    code = f"""
import fcntl, os, pathlib, time
folder = pathlib.Path({str(tmp_path)!r})
lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
(folder / f"1-{{os.getpid()}}").touch()
if len([*folder.glob("1-*")]) == 1:
    if os.fork():
        os.kill(os.getpid(), 9)
time.sleep(600)
"""
    statuses: list[int] = []
    with running(
        Supervisor(beside(tmp_path, code), [0, 1], drain_s=10, most_restarts=2),
        statuses,
    ):
        assert wait_until(lambda: len(started(tmp_path, 1)) == 2 or bool(statuses), 60)
    assert statuses == [0]


def test_a_worker_knows_how_often_it_was_started_again_and_why(tmp_path: Path) -> None:
    tells = (
        f"import os, pathlib; from coopstreams.commands.processes.worker import past; pathlib.Path({str(tmp_path)!r}, "
        "str(os.getpid())).write_text(str(past(os.environ)))"
    )
    assert (
        Supervisor(
            lambda _: [sys.executable, "-c", f"{tells}; raise SystemExit(5)"],
            [0],
            10,
            most_restarts=2,
        ).run()
        == 5
    )
    told = sorted(path.read_text() for path in tmp_path.iterdir())
    again = "{'restarts': %d, 'last_end': 'ended with status 5'}"
    assert told == [again % 1, again % 2, "{}"]


def test_nobody_is_told_by_a_process_that_has_no_supervisor() -> None:
    environment: Mapping[str, str] = {}
    assert past(environment) == {}
    say_why(ProcessingError("unheard"), environment)


def test_a_worker_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    tries: list[int] = []

    def command(number: int) -> Sequence[str]:
        tries.append(number)
        return [str(tmp_path / "no such program")]

    assert Supervisor(command, [7], 10, most_restarts=3).run() == 1
    assert tries == [7] * 4
