"""An application as an operator runs it: supervisors with their workers, started by the
command line; and faults of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from coopstreams.dev.process import command_line, port_is_free

MOST_WORKERS = 8
"""The most workers, and ports, of one supervisor."""


@dataclass(slots=True)
class Application:
    """One application under several supervisors; each has a name, a first instance
    number and ports of its own.
    """

    app: Path
    bootstrap: str
    folder: Path
    environment: Mapping[str, str]
    settings: Mapping[str, object]
    supervisors: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    """Supervisors that ended without a request, with their exit statuses."""
    stopped: set[int] = field(default_factory=set)
    """Paused workers (SIGSTOP), by process id."""
    ending: set[str] = field(default_factory=set)
    """Supervisors that were asked to end and still run."""
    _ports: dict[str, int] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)

    def start(self, name: str, processes: int) -> None:
        """Start a supervisor with this many workers; the same name gets the same
        numbers and folders again.
        """
        first = self._numbers.setdefault(name, MOST_WORKERS * len(self._numbers))
        port = self._ports.setdefault(name, _ports_in_a_row())
        named = {
            "bootstrap.servers": self.bootstrap,
            "state.dir": self.folder / "state",
            "instance": first,
            **self.settings,
        }
        flags = [
            part for key, value in named.items() for part in ("--set", f"{key}={value}")
        ]
        # Only the tests' own kills count as ends.
        own = [
            "--processes",
            str(max(2, processes)),
            "--max-restarts",
            "1000",
            "--http",
            f"127.0.0.1:{port}",
        ]
        with self.log_file(name).open("ab") as log:
            command = [
                sys.executable,
                "-m",
                "coopstreams",
                "run",
                str(self.app),
                *own,
                *flags,
            ]
            # Bytecode is kept, as for an installed program: without it, a start takes
            # seconds longer.
            environment = (
                os.environ
                | {"PYTHONFAULTHANDLER": "1", "PYTHONDONTWRITEBYTECODE": ""}
                | dict(self.environment)
            )
            self.supervisors[name] = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log
            )

    def look(self) -> None:
        """Note which supervisors have ended by themselves."""
        for name, process in list(self.supervisors.items()):
            if (status := process.poll()) is not None:
                self.ended[name] = status
                del self.supervisors[name]

    def terminate(self, name: str) -> int | None:
        """Ask a supervisor to end in good order; return its exit status, None if it
        does not.
        """
        self.ending.add(name)  # its workers drain, and log what they wait for
        process = self.supervisors.pop(name)
        process.terminate()
        try:
            return process.wait(120)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.ending.discard(name)

    def workers(self) -> dict[int, int]:
        """Return the process id of each running worker, by its number; paused ones
        included.
        """
        return dict(
            pair
            for process in self.supervisors.values()
            for pair in _children(process.pid)
        )

    def urls(self) -> dict[int, str]:
        """Return the query address of each running worker."""
        return {
            self._numbers[name]
            + number: f"http://127.0.0.1:{self._ports[name] + number}"
            for name in {*self.supervisors, *self.ending}
            for number in range(MOST_WORKERS)
        }

    def kill(self, number: int, *, with_state: bool = False) -> None:
        """Kill a worker, which its supervisor restarts; `with_state`: its state is
        deleted, too.
        """
        pid = self.workers().get(number)
        if pid is None:
            return
        _signal(pid, signal.SIGKILL)
        self.stopped.discard(pid)
        if with_state:
            for place in (self.folder / "state").glob(f"*/instance-{number}"):
                gone = place.rename(
                    self.folder / f"gone-{secrets.token_hex(4)}"
                )  # at once: it may be restarted meanwhile
                shutil.rmtree(gone)

    def replace(self, number: int, over: threading.Event) -> None:
        """Ask a worker to end, which its supervisor restarts; return when the new one is
        ready, or when all is over.
        """
        pid = self.workers().get(number)
        if pid is None:
            return
        _signal(pid, signal.SIGTERM)
        while self.workers().get(number) in (pid, None) and not over.wait(0.1):
            pass
        while not _is_ready(self.urls()[number]) and not over.wait(0.1):
            pass

    def freeze(self, number: int) -> int | None:
        """Pause a worker; return its process id."""
        pid = self.workers().get(number)
        if pid is not None:
            self.stopped.add(pid)
            _signal(pid, signal.SIGSTOP)
        return pid

    def thaw(self, pid: int) -> None:
        """Resume a paused worker."""
        self.stopped.discard(pid)
        _signal(pid, signal.SIGCONT)

    def clean_up(self) -> None:
        """Kill all processes that still run."""
        for process in self.supervisors.values():
            workers = [pid for _, pid in _children(process.pid)]
            for pid in [process.pid, *workers]:
                _signal(pid, signal.SIGKILL)
            process.wait()

    def log_file(self, name: str) -> Path:
        """The log file of a supervisor and its workers."""
        return self.folder / f"{name}.log"

    def said(self, pattern: str) -> list[str]:
        """Return the lines of all logs that match."""
        lines = (
            line
            for file in sorted(self.folder.glob("*.log"))
            for line in file.read_text(errors="replace").splitlines()
        )
        return [line for line in lines if re.search(pattern, line)]


def _children(supervisor: int) -> Iterator[tuple[int, int]]:
    """Yield number and process id of each worker of a supervisor."""
    for file in Path(f"/proc/{supervisor}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in map(int, file.read_text().split()):
                found = re.search(r"\binstance=(\d+)", " ".join(command_line(pid)))
                if found:
                    yield int(found[1]), pid


def _is_ready(url: str) -> bool:
    """Return whether a worker says that it is ready."""
    try:
        return httpx.get(f"{url}/health/ready", trust_env=False).is_success
    except httpx.TransportError:
        return False


def _signal(pid: int, which: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, which)


def _ports_in_a_row() -> int:
    """Return the first of several free ports, below the ephemeral range."""
    while True:
        first = 15_000 + MOST_WORKERS * secrets.randbelow(2000)
        if all(port_is_free(first + number) for number in range(MOST_WORKERS)):
            return first
