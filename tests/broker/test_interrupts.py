"""SIGTERM and Ctrl-C at any moment of the start: the process ends with status 0 and
without a traceback.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from coopstreams.dev.process import free_port
from tests.broker.chaos import seed_of_run
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

DRIVER = """
import os, sys, threading, time
from coopstreams import __main__
from coopstreams.common import interrupts

listen = interrupts.listen

def strike():
    time.sleep(float(os.environ["AFTER_S"]))
    os.kill(os.getpid(), int(os.environ["SIGNAL"]))

def then():
    listen()
    threading.Thread(target=strike, daemon=True).start()

interrupts.listen = then  # before anything else of ours is loaded
sys.argv[0] = "coopstreams"
__main__.main()
"""
"""Runs `coopstreams` with a signal to itself at a time after its first instruction:
before that, Python handles signals.
"""

SIGNALS = (signal.SIGTERM, signal.SIGINT)
STARTED_S = 6.0
"""The approximate time of a start."""
LONG_MS = 600_000
"""No end within a test's limit comes from this time-out."""


class Starts:
    """Runs of the counting application, each asked to end at another moment."""

    def __init__(
        self, folder: Path, bootstrap: str, environment: dict[str, str]
    ) -> None:
        self._folder, self._bootstrap, self._environment = (
            folder,
            bootstrap,
            environment,
        )

    def run(
        self,
        number: signal.Signals,
        after_s: float,
        *arguments: str,
        **settings: object,
    ) -> None:
        """Start, send a signal, and check that the process ends with status 0 and
        leaves no other process behind.
        """
        given = {
            "bootstrap.servers": self._bootstrap,
            "state.dir": self._folder / "state",
            "connect.timeout.ms": LONG_MS,
        }
        given |= {name.replace("_", "."): value for name, value in settings.items()}
        flags = [
            part
            for name, value in given.items()
            for part in ("--set", f"{name}={value}")
        ]
        told = {
            "AFTER_S": str(after_s),
            "SIGNAL": str(int(number)),
            "PYTHONFAULTHANDLER": "1",
        }
        command = [
            sys.executable,
            "-c",
            DRIVER,
            "run",
            str(Path(__file__).with_name("counting_app.py")),
            *flags,
            *arguments,
        ]
        process = subprocess.Popen(
            command,
            env=os.environ | self._environment | told,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            said = process.communicate(timeout=150)[0].decode(
                errors="replace"
            )  # until they end, too: workers have the same pipe
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # dumps the stack of each thread
            pytest.fail(
                f"{number.name} after {after_s:.2f} s did not end "
                f"it:\n{process.communicate()[0].decode(errors='replace')}"
            )
        assert process.returncode == 0, (
            f"{number.name} after {after_s:.2f} s: status {process.returncode}\n{said}"
        )
        assert "Traceback" not in said, f"{number.name} after {after_s:.2f} s:\n{said}"
        assert "did not drain" not in said, said


@pytest.fixture
def away(tmp_path: Path) -> Starts:
    """Return starts without a broker."""
    return Starts(
        tmp_path,
        f"127.0.0.1:{free_port()}",
        {"TEST_APPLICATION": "nowhere", "TEST_INPUT": "in", "TEST_OUTPUT": "out"},
    )


@pytest.fixture
def there(kafka: Kafka, tmp_path: Path) -> Callable[[int], Starts]:
    """Return a function that makes `Starts` of a new application on the shared Kafka."""

    def make(number: int) -> Starts:
        environment = {
            "TEST_APPLICATION": kafka.unique("asked"),
            "TEST_INPUT": kafka.topic("in"),
            "TEST_OUTPUT": kafka.topic("out"),
        }
        return Starts(tmp_path / str(number), kafka.bootstrap, environment)

    return make


def moments(seed: int, count: int) -> list[float]:
    """Return moments of a start, more of them early than late."""
    generator = random.Random(seed)
    return [STARTED_S * generator.random() ** 2 for _ in range(count)]


@pytest.mark.parametrize(
    "arguments", [(), ("--processes", "2")], ids=["alone", "processes"]
)
def test_without_brokers(away: Starts, arguments: Sequence[str]) -> None:
    away.run(signal.SIGTERM, 2.5, *arguments)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("brokers", ["there", "away"])
@pytest.mark.parametrize(
    "arguments", [(), ("--processes", "2")], ids=["alone", "processes"]
)
def test_at_any_moment(
    away: Starts, there: Callable[[int], Starts], brokers: str, arguments: Sequence[str]
) -> None:
    seed = seed_of_run()
    print(f"seed {seed}")
    for number, after_s in enumerate(moments(seed, 7)):
        starts = away if brokers == "away" else there(number)
        guarantee = ("exactly_once_v2", "at_least_once")[number // 2 % 2]
        starts.run(
            SIGNALS[number % 2], after_s, *arguments, processing_guarantee=guarantee
        )
