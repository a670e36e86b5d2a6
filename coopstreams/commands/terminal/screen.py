"""The terminal of `coopstreams run --processes N`: a table of the processes and the
bars of their key ranges, redrawn in place below the log lines of the processes.

A worker has two pipes to the supervisor: one has its output, line by line; the other a
status report every second.

Invariant: no output of a worker is lost: `__exit__` returns after the last line of
each.
Turned down: asking the workers over HTTP (they may serve no queries), and letting them
write to the terminal (their lines would break the table).
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, Self

import orjson
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from coopstreams.commands.terminal.processes import WorkerProcess, bars, processes_table
from coopstreams.instance.coop_streams import CoopStreams

REPORTS = "_COOPSTREAMS_REPORTS"
"""Environment variable of a worker: the file descriptor for its reports."""
REPORT_EVERY_S = 1.0
LAST_LINES_S = 5.0
"""The longest wait for the last lines of an ended worker. A child process of the worker
may keep the pipe open.
"""


class Screen:
    """The table of workers on the terminal, as a context manager. It starts the
    workers.
    """

    def __init__(self, console: Console, application: str) -> None:
        self._console = console
        self._application = application
        self._processes: dict[int, WorkerProcess] = {}
        self._readers: list[threading.Thread] = []
        self._live = Live(
            console=console,
            get_renderable=self._picture,
            refresh_per_second=4,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.join(LAST_LINES_S)
        self._live.stop()

    def spawn(
        self,
        number: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Sequence[int],
    ) -> subprocess.Popen[bytes]:
        """Start a worker, and return its process.

        It gets a session of its own, so that Ctrl-C reaches only the supervisor, which
        drains the workers.
        """
        reports, descriptor = os.pipe()
        try:
            worker = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**environment, REPORTS: str(descriptor), "PYTHONUNBUFFERED": "1"},
                pass_fds=(*descriptors, descriptor),
                start_new_session=True,
            )
        except OSError:
            os.close(reports)
            raise
        finally:
            os.close(descriptor)
        before = self._processes.get(number)
        process = self._processes[number] = WorkerProcess(
            number,
            worker.pid,
            restarts=0 if before is None else before.restarts + 1,
        )
        assert worker.stdout is not None
        self._read(self._lines, worker.stdout, process)
        self._read(self._reports, os.fdopen(reports, "rb"), process)
        return worker

    def rests(
        self,
        number: int,
        rest_s: float,
        last_end: str,
    ) -> None:
        """Show that a worker has ended, how, and when it is restarted."""
        if number in self._processes:
            self._processes[number].last_end = last_end
            self._processes[number].again_at = time.monotonic() + rest_s

    def drain(self) -> None:
        """Show from now on that all workers are draining. Signal handlers may call it."""
        for process in list(self._processes.values()):
            if process.word != "ended":
                process.word = "draining"

    def print(self, line: str) -> None:
        """Print a line above the table. Thread-safe."""
        try:
            self._console.print(Text.from_ansi(line), soft_wrap=True, highlight=False)
        except OSError:
            # The terminal is gone. The processes of a job in the background go on, and
            # what they write must be read.
            self._console.quiet = True

    def handler(self) -> logging.Handler:
        """Return a log handler that prints above the table."""
        return _Above(self)

    def _picture(self) -> Group:
        processes = [process for _, process in sorted(dict(self._processes).items())]
        table = processes_table(self._application, processes, time.monotonic())
        return Group(
            table,
            "",
            bars(processes, ascii_only=self._console.options.ascii_only),
        )

    def _read(
        self,
        read: Any,
        stream: IO[bytes],
        process: WorkerProcess,
    ) -> None:
        self._readers = [reader for reader in self._readers if reader.is_alive()]
        self._readers.append(
            threading.Thread(
                target=read,
                args=(stream, process),
                name=f"worker {process.number}",
                daemon=True,
            )
        )
        self._readers[-1].start()

    def _lines(self, stream: IO[bytes], process: WorkerProcess) -> None:
        with stream:
            for line in stream:
                self.print(line.decode(errors="backslashreplace").rstrip("\n"))
        process.word = "ended"

    @staticmethod
    def _reports(stream: IO[bytes], process: WorkerProcess) -> None:
        with stream:
            for line in stream:
                if not line.endswith(b"\n"):
                    return  # the worker was killed while it wrote
                process.report = orjson.loads(line)
                if process.word == "starting":
                    process.word = ""


class _Above(logging.Handler):
    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self._screen.print(self.format(record))


def report(app: CoopStreams, environment: Mapping[str, str]) -> None:
    """Report the status of a worker once a second, if its supervisor shows it. Called
    in the worker; returns at once.
    """
    descriptor = environment.get(REPORTS)
    if descriptor is not None:
        threading.Thread(
            target=_report,
            args=(app, int(descriptor)),
            name="reports",
            daemon=True,
        ).start()


def _report(app: CoopStreams, descriptor: int) -> None:
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as pipe:
            while True:
                status = app.status()
                if status is not None:
                    pipe.write(orjson.dumps(status) + b"\n")
                threading.Event().wait(REPORT_EVERY_S)
    except BrokenPipeError:
        return  # the supervisor is dead; `worker.end_with_supervisor` ends this process
