"""Workers under a supervisor: a killed one comes back, a failed one ends all, and none outlives it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from coopstreams import supervisor
from coopstreams.dev.process import wait_until
from coopstreams.supervisor import Supervisor

LIVES = "import os, sys, time, pathlib; pathlib.Path(sys.argv[1], f'{sys.argv[2]}-{os.getpid()}').touch(); time.sleep(600)"


def living(folder: Path) -> Callable[[int], Sequence[str]]:
    """Return the command of a worker that leaves `NUMBER-PID` in the folder and lives on."""
    return lambda number: [sys.executable, "-c", LIVES, str(folder), str(number)]


def started(folder: Path, number: int) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in folder.glob(f"{number}-*")]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RESTART_AFTER_S", 0.05)


def test_a_killed_worker_is_started_again_and_stop_leaves_none(tmp_path: Path) -> None:
    workers = Supervisor(living(tmp_path), [3, 4], drain_s=10)
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(workers.run()))
    thread.start()
    assert wait_until(lambda: bool(started(tmp_path, 3) and started(tmp_path, 4)), 120)
    os.kill(started(tmp_path, 4)[0], signal.SIGKILL)
    assert wait_until(lambda: len(started(tmp_path, 4)) == 2, 120)
    workers.stop()
    thread.join(120)
    assert statuses == [0]
    assert len(started(tmp_path, 3)) == 1
    assert not any(alive(pid) for number in (3, 4) for pid in started(tmp_path, number))


def test_a_worker_that_fails_ends_them_all_with_its_status(tmp_path: Path) -> None:
    def command(number: int) -> Sequence[str]:
        return [sys.executable, "-c", "raise SystemExit(3)"] if number else living(tmp_path)(number)

    assert Supervisor(command, [0, 1], drain_s=10).run() == 3
    assert not any(alive(pid) for pid in started(tmp_path, 0))


def test_a_worker_that_somebody_else_ended_well_is_started_again(tmp_path: Path) -> None:
    def command(number: int) -> Sequence[str]:
        ends = f"import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); {LIVES}"
        return [sys.executable, "-c", f"import sys; {ends}", str(tmp_path), str(number)]

    workers = Supervisor(command, [3, 4], drain_s=10)
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(workers.run()))
    thread.start()
    assert wait_until(lambda: bool(started(tmp_path, 3) and started(tmp_path, 4)), 20)
    os.kill(started(tmp_path, 4)[0], signal.SIGTERM)
    assert wait_until(lambda: len(started(tmp_path, 4)) == 2, 20)
    workers.stop()
    thread.join(20)
    assert statuses == [0]
    assert len(started(tmp_path, 3)) == 1


def test_a_worker_that_ends_well_again_and_again_is_given_up(tmp_path: Path) -> None:
    def command(number: int) -> Sequence[str]:
        return [sys.executable, "-c", ""] if number else living(tmp_path)(number)

    assert Supervisor(command, [0, 1], drain_s=10).run() == 1
    assert not any(alive(pid) for pid in started(tmp_path, 0))


def test_a_worker_that_is_killed_again_and_again_is_given_up(tmp_path: Path) -> None:
    def command(number: int) -> Sequence[str]:
        return [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"] if number else living(tmp_path)(number)

    assert Supervisor(command, [0, 1], drain_s=10).run() == 128 + signal.SIGKILL
    assert not any(alive(pid) for pid in started(tmp_path, 0))
