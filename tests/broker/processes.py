"""Worker processes of an application, started by the command line as by a user; and
faults of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.broker.waiting import eventually

ROOT = Path(__file__).resolve().parent.parent.parent


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@dataclass(slots=True)
class Workers:
    """Processes of one application; each has a number and a state folder that outlives
    it.
    """

    app: Path
    bootstrap: str
    folder: Path
    environment: dict[str, str]
    settings: dict[str, str]
    options: Sequence[str] = ()
    """Options of `coopstreams run`, besides the settings."""
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    releases: dict[int, Path] = field(default_factory=dict)
    """The folder with the release that a worker runs from its next start on; this tree
    for the others.
    """
    _began: dict[int, int] = field(default_factory=dict)
    """The offset in each worker's log file at which its current process begins."""

    def start(self, number: int) -> None:
        """Start worker `number`, again or for the first time."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "state.dir": str(self.folder / "state"),
            "instance": str(number),
            **self.settings,
        }
        flags = [
            part
            for name, value in settings.items()
            for part in ("--set", f"{name}={value}")
        ]
        self._began[number] = len(self.log(number))
        with (self.folder / f"worker-{number}.log").open("ab") as log:
            command = [
                sys.executable,
                "-m",
                "coopstreams",
                "run",
                str(self.app),
                *flags,
                *self.options,
            ]
            environment = os.environ | {"PYTHONFAULTHANDLER": "1"} | self.environment
            release = self.releases.get(number)
            if release is not None:
                # The application itself is of this tree.
                environment["PYTHONPATH"] = f"{release}{os.pathsep}{ROOT}"
            self.running[number] = subprocess.Popen(
                command,
                # `python -m` looks in its working folder first.
                cwd=release,
                env=environment,
                stdout=log,
                stderr=log,
            )

    def kill(self, number: int) -> None:
        self._signal(number, signal.SIGKILL)
        self.running.pop(number).wait()

    def freeze(self, number: int) -> None:
        self._signal(number, signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        """Resume a paused worker; it is a zombie if the group has removed it meanwhile."""
        self._signal(number, signal.SIGCONT)

    def terminate(self, number: int, timeout_s: float = 90) -> int:
        """Ask a worker to drain and end; return its exit status."""
        self._await_ears([number])
        worker = self.running.pop(number)
        worker.terminate()
        return worker.wait(timeout_s)

    def stop(self, timeout_s: float = 90) -> dict[int, int]:
        """Ask all to drain and end; return their exit statuses."""
        self._await_ears(self.running)
        for worker in self.running.values():
            worker.terminate()
        return {
            number: worker.wait(timeout_s) for number, worker in self.running.items()
        }

    def _await_ears(self, numbers: Iterable[int]) -> None:
        """Wait until these workers have their signal handlers: before that, SIGTERM
        kills Python.
        """
        eventually(
            lambda: all(self.url(number) is not None for number in numbers),
            120,
            self.logs,
        )

    def clean_up(self) -> None:
        """Kill the processes that still run."""
        for worker in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(signal.SIGCONT)
                worker.kill()
            worker.wait()

    def log(self, number: int) -> str:
        """Return the output of a worker."""
        path = self.folder / f"worker-{number}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def url(self, number: int) -> str | None:
        """Return the query address of a worker; None while it starts."""
        found = re.findall(
            r"queries are answered at (\S+)", self.log(number)[self._began[number] :]
        )
        return found[-1] if found else None

    def logs(self) -> str:
        """Return the last output of all workers, for a failure message."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-6000:]}"
            for path in sorted(self.folder.glob("worker-*.log"))
        )

    def ended(self) -> dict[int, int]:
        """Return the workers that have ended by themselves, with their exit statuses."""
        return {
            number: status
            for number, worker in self.running.items()
            if (status := worker.poll()) is not None
        }

    def _signal(self, number: int, which: signal.Signals) -> None:
        os.kill(self.running[number].pid, which)
