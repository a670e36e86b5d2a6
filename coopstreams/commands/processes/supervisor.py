"""Supervises several processes of one application, each a group member, because a
Python process computes on one core.

A worker is restarted after a back-off if it ends by a signal, by an error, or because
another process asked it to. The others continue its tasks meanwhile. `restarts.py`
decides on the back-off, and whether all workers end instead.

A worker gets these by environment variables: the supervisor's process id, the number of
restarts, the reason of its last end, and the file descriptor of a pipe. To the pipe it
writes `RAN` when it has its tasks open for the first time, and a sentence when it ends.

Invariant: no worker outlives its supervisor's `run`. A worker that does not drain in
time is killed, and the log says so. No child of a worker outlives the worker, because a
forked one keeps the lock of the state folder.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import time
from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from coopstreams.commands.processes.restarts import (
    FAILED,
    MOST_RESTARTS,
    Again,
    Over,
    Restarts,
    describe_end,
)

log = logging.getLogger(__name__)

SUPERVISOR = "_COOPSTREAMS_SUPERVISED"
"""Environment variable of a worker: the process id of its supervisor."""
LAST_WORDS = "_COOPSTREAMS_LAST_WORDS"
"""Environment variable of a worker: the file descriptor for `RAN` and the reason of its
end.
"""
RAN = b"\n"
RESTARTS = "_COOPSTREAMS_RESTARTS"
"""Environment variable of a worker: how often it was restarted."""
LAST_END = "_COOPSTREAMS_LAST_END"
"""Environment variable of a restarted worker: how it had ended."""

LOOK_EVERY_S = 0.1
MOST_WORDS = 2000
"""The most characters of the reason of an end, to fit into a pipe's buffer and into a
log line.
"""

Spawn: TypeAlias = Callable[
    [int, Sequence[str], Mapping[str, str], Sequence[int]], "subprocess.Popen[bytes]"
]
"""Starts a worker in a session of its own. Its arguments are the worker's number, its
command line, its environment, and the file descriptors that it inherits.
"""
Rests: TypeAlias = Callable[[int, float, str], None]
"""Called when a worker waits for its restart. Its arguments are the worker's number,
the seconds until the restart, and how the worker ended.
"""


def spawn(
    _: int,
    command: Sequence[str],
    environment: Mapping[str, str],
    descriptors: Sequence[int],
) -> subprocess.Popen[bytes]:
    """Start a worker whose output goes to the supervisor's output.

    It gets a session of its own, so that Ctrl-C reaches only the supervisor, which
    drains the workers.
    """
    return subprocess.Popen(
        list(command),
        env=environment,
        pass_fds=descriptors,
        start_new_session=True,
    )


@dataclass(slots=True)
class _Worker:
    """A worker of a supervisor, over all its restarts.

    `ends` decides what follows from the end of its process. `starts`: how often it was
    started. `last_end`: how its last process ended, in words. `start_at`: when to start
    it (`time.monotonic`).
    """

    number: int
    ends: Restarts
    process: subprocess.Popen[bytes] | None = None
    """The running process; None: it is not started yet, or waits for its restart."""
    words: int = -1
    """The supervisor's end of the pipe for `RAN` and the reason of the worker's end."""
    starts: int = 0
    last_end: str = ""
    start_at: float = -math.inf


class Supervisor:
    """The workers of one run. Each worker runs `command(number)` until `stop` is
    called, or until `restarts` ends the run.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        numbers: Iterable[int],
        drain_s: float,
        spawn: Spawn = spawn,
        *,
        most_restarts: int = MOST_RESTARTS,
        rests: Rests = lambda *_: None,
    ) -> None:
        self._command = command
        self._spawn = spawn
        self.numbers = tuple(numbers)
        self._drain_s = drain_s
        self._rests = rests
        self._stopping = False
        self._hurried = False
        self._workers = [
            _Worker(number, Restarts(number, most_restarts)) for number in self.numbers
        ]

    def run(self) -> int:
        """Run the workers; return the exit status: 0 after `stop`, else that of the
        worker that ended the run.
        """
        try:
            while True:
                for worker in self._workers:
                    if self._stopping:
                        return 0
                    over = self._look_after(worker)
                    if over is not None:
                        log.error("%s", over.said)
                        return over.status
                time.sleep(LOOK_EVERY_S)
        finally:
            self._end_all()

    def stop(self) -> bool:
        """Ask for the end of the run; return True: there are workers to drain.
        Thread-safe.
        """
        self._stopping = True
        return True

    def hurry(self) -> bool:
        """Have the workers, which were asked to end, wait for no calls; return True.
        Thread-safe.
        """
        self._hurried = True
        return True

    def _look_after(self, worker: _Worker) -> Over | None:
        """Start a worker that is due, or note the end of one. Return the decision to
        end the run; None: the run goes on.
        """
        if worker.process is None:
            return self._start(worker) if time.monotonic() >= worker.start_at else None
        status = worker.process.poll()
        if status is None or self._stopping:
            return None
        _end_children(worker.process)
        worker.process = None
        said = _read(worker.words)
        return self._ended(
            worker,
            status,
            said.removeprefix(RAN.decode()),
            ran=said.startswith(RAN.decode()),
        )

    def _ended(
        self,
        worker: _Worker,
        status: int,
        why: str,
        *,
        ran: bool,
    ) -> Over | None:
        """Decide what follows from the end of a worker's process. Return the decision
        to end the run; None: it is restarted. `why`: what it said; `ran`: whether it
        had its tasks open.
        """
        now = time.monotonic()
        others = any(_goes_on(other) for other in self._workers if other is not worker)
        verdict = worker.ends.ended(status, why, now, ran=ran, others=others)
        if isinstance(verdict, Over):
            return verdict
        worker.last_end = describe_end(status, why)
        worker.start_at = now + verdict.rest_s
        self._say(worker, verdict)
        return None

    def _say(self, worker: _Worker, verdict: Again) -> None:
        log.warning("%s", verdict.said)
        self._rests(worker.number, verdict.rest_s, worker.last_end)

    def _start(self, worker: _Worker) -> Over | None:
        """Start the process of a worker. Return the decision to end the run, if that
        fails too often; None: the run goes on.
        """
        told = {
            SUPERVISOR: str(os.getpid()),
            RESTARTS: str(worker.starts),
            LAST_END: worker.last_end,
        }
        worker.words, theirs = os.pipe()
        worker.starts += 1
        try:
            environment = os.environ | told | {LAST_WORDS: str(theirs)}
            worker.process = self._spawn(
                worker.number,
                self._command(worker.number),
                environment,
                (theirs,),
            )
            os.set_blocking(worker.words, False)
        except (
            OSError
        ) as error:  # memory or processes are exhausted, perhaps for a moment only
            os.close(worker.words)
            return self._ended(
                worker,
                FAILED,
                f"it cannot be started: {error}",
                ran=False,
            )
        finally:
            os.close(theirs)
        return None

    def _wait(
        self,
        process: subprocess.Popen[bytes],
        deadline: float,
        running: Iterable[subprocess.Popen[bytes]],
    ) -> bool:
        """Wait for the end of a worker; return whether it came in time. Pass a second
        request to end on to all that run.
        """
        while True:
            if self._hurried:
                self._hurried = False
                for each in running:
                    each.terminate()
            left = max(0.1, deadline - time.monotonic())
            try:
                process.wait(min(LOOK_EVERY_S, left))
            except subprocess.TimeoutExpired:
                if time.monotonic() >= deadline:
                    return False
            else:
                return True

    def _end_all(self) -> None:
        """Have all workers drain, and kill those that take longer than `drain_s`."""
        running = {
            worker.number: worker.process
            for worker in self._workers
            if worker.process is not None
        }
        for process in running.values():
            process.terminate()
        deadline = time.monotonic() + self._drain_s
        for number, process in running.items():
            if not self._wait(process, deadline, running.values()):
                log.error(
                    "worker %d did not drain within %.0f s; killing it",
                    number,
                    self._drain_s,
                )
                process.kill()
                process.wait()
            _end_children(process)
        for worker in self._workers:
            if worker.process is not None:
                os.close(worker.words)


def _goes_on(worker: _Worker) -> bool:
    """Return whether a worker runs, or is about to be restarted after an end that was
    not WRONG.
    """
    if worker.process is None:
        return not worker.ends.refused
    return worker.process.poll() is None


def _end_children(ended: subprocess.Popen[bytes]) -> None:
    """Kill the processes that an ended worker has left in its session."""
    with suppress(ProcessLookupError, PermissionError):  # there are none
        os.killpg(ended.pid, signal.SIGKILL)


def _read(words: int) -> str:
    """Return what an ended worker wrote to its pipe, and close the pipe.

    A child process of the worker may still keep the other end open. Zero characters are
    replaced, because the reason becomes an environment variable, which must not have
    any. An error that quotes a record may have some.
    """
    said = b""
    with suppress(BlockingIOError):
        said = os.read(words, 4 * MOST_WORDS)
    os.close(words)
    return said.decode(errors="replace").replace("\0", r"\0")[:MOST_WORDS]
