"""The processes of the demo: each is a `coopstreams run` of the example, as a user
would start it; one gets SIGKILL.

Invariant: a process that was started is in the list of those to stop, also when Ctrl-C
comes in between.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from coopstreams.dev.process import free_port
from coopstreams.topology.errors import DevError

DRAIN_S = 20.0
SESSION_MS = 4000
"""The session time-out: how long after the last heartbeat the other processes take
over.
"""
LAST_WORDS = 12
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SETTINGS = {
    "processing.guarantee": "exactly_once_v2",
    "session.timeout.ms": str(SESSION_MS),
    "heartbeat.interval.ms": "300",
    "ranges.before.windows": "true",  # the windows have a grace of a year
}


@dataclass(slots=True)
class Worker:
    """One process of the application. `number` counts from 1, as people do."""

    number: int
    url: str
    log: Path
    process: subprocess.Popen[bytes]
    killed: bool = False

    @property
    def name(self) -> str:
        """Its name on the screen."""
        return f"process {self.number}"


class Workers:
    """The processes that run one topology file on one broker, with their state and logs
    in a folder.
    """

    def __init__(
        self, program: Path, bootstrap: str, folder: Path, ports: Sequence[int]
    ) -> None:
        """`ports`: where the first processes answer queries; others take free ones."""
        self._program = program
        self._bootstrap = bootstrap
        self._folder = folder
        self._ports = list(ports)
        self.all: list[Worker] = []

    def start(self) -> Worker:
        """Start one more process, and return it."""
        number, port = (
            len(self.all) + 1,
            self._ports.pop(0) if self._ports else free_port(),
        )
        settings = {
            "bootstrap.servers": self._bootstrap,
            "state.dir": str(self._folder / "state"),
            "instance": str(number),
            **SETTINGS,
        }
        flags = [
            part
            for name, value in settings.items()
            for part in ("--set", f"{name}={value}")
        ]
        command = [
            sys.executable,
            "-m",
            "coopstreams",
            "run",
            str(self._program),
            "--http",
            f"127.0.0.1:{port}",
            *flags,
        ]
        path = self._folder / f"process-{number}.log"
        # In a session of its own, Ctrl-C does not reach it. The variable makes it end
        # if this process dies without stopping it.
        with path.open("ab") as log, interrupts_wait():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"_COOPSTREAMS_SUPERVISED": str(os.getpid())},
                start_new_session=True,
            )
            self.all.append(Worker(number, f"http://127.0.0.1:{port}", path, process))
        return self.all[-1]

    @property
    def living(self) -> list[Worker]:
        """The processes that were not killed."""
        return [worker for worker in self.all if not worker.killed]

    def kill(self, worker: Worker) -> None:
        """End a process at once (SIGKILL): it can neither commit nor leave the group."""
        worker.killed = True
        worker.process.kill()
        worker.process.wait()

    def check(self) -> None:
        """Check that all processes run that were not killed.

        Raises:
            DevError: one ended by itself; the message has its last log lines.
        """
        for worker in self.living:
            status = worker.process.poll()
            if status is not None:
                words = "\n".join(
                    worker.log.read_text(errors="replace").splitlines()[-LAST_WORDS:]
                )
                raise DevError(
                    f"{worker.name} ended by itself with status {status}. The end of {worker.log}:\n{words}"
                )

    def stop(self) -> None:
        """Ask all processes to drain, commit and end; kill those that have not after 20
        s.
        """
        for worker in self.all:
            worker.process.terminate()
        for worker in self.all:
            try:
                worker.process.wait(DRAIN_S)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()


def free_ports(count: int) -> list[int]:
    """Return this many different free ports."""
    found: dict[int, None] = {}
    while len(found) < count:
        found[free_port()] = None
    return list(found)


def wait_for_port(worker: Worker, check: Callable[[], None]) -> None:
    """Wait until a process answers at its port; `check` raises if it never will."""
    port = int(worker.url.rpartition(":")[2])
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            check()
            time.sleep(0.05)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block, when the started processes are recorded."""
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    before = {
        number: signal.signal(number, note)
        for number in _INTERRUPTS
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        _restore(before)
    if came:
        raise KeyboardInterrupt


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C in the block, which cleans up."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _INTERRUPTS}
    try:
        yield
    finally:
        _restore(before)


def interrupt_on_signals() -> None:
    """Make SIGTERM and a closed terminal end this process like Ctrl-C; ignored signals
    (nohup) stay ignored.
    """
    for number in _INTERRUPTS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def _restore(before: Mapping[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
