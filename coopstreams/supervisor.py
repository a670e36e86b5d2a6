"""Several processes of one application: each a member of the group of its own, because Python computes on one core a process.

A worker that a signal killed is started again (nothing it did without committing counts), and so is one that somebody else asked to
end, which drained and ended well; one that ended by an error of the application ends them all, because it would end the others in turn.

Invariant: no worker outlives its supervisor's `stop`; a worker that does not drain in time is killed, and the log knows the rest.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

log = logging.getLogger(__name__)

RESTART_AFTER_S = 1.0
MOST_RESTARTS_A_MINUTE = 5


@dataclass(slots=True)
class _Worker:
    number: int
    process: subprocess.Popen[bytes]
    started: list[float]
    again_at: float | None = None


Spawn: TypeAlias = Callable[[int, Sequence[str]], subprocess.Popen[bytes]]
"""Starts a worker, given its number and its command line."""


def spawn(_: int, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a worker that prints where its supervisor does.

    In a session of its own: Ctrl-C reaches the supervisor alone, which then ends the workers in good order.
    """
    return subprocess.Popen(list(command), start_new_session=True)


class Supervisor:
    """Runs `command(number)` for each worker's number until `stop`, or until one ends by an error."""

    def __init__(self, command: Callable[[int], Sequence[str]], numbers: Iterable[int], drain_s: float, spawn: Spawn = spawn) -> None:
        self._command = command
        self._start = spawn
        self.numbers = tuple(numbers)
        self._drain_s = drain_s
        self._stopping = False
        self._workers: list[_Worker] = []

    def run(self) -> int:
        """Start the workers; return the exit status: 0 after `stop`, else that of the worker that failed."""
        try:
            for number in self.numbers:
                self._workers.append(_Worker(number, self._spawn(number), [time.monotonic()]))
            while not self._stopping:
                for worker in self._workers:
                    status = self._look_after(worker)
                    if status is not None:
                        return status
                time.sleep(0.1)
            return 0
        finally:
            self._end_all()

    def stop(self) -> None:
        """Ask for the end; signal handlers may call it."""
        self._stopping = True

    def _look_after(self, worker: _Worker) -> int | None:
        """Start a worker again that was killed or asked to end; return a status if everything must end."""
        if worker.again_at is not None:
            if time.monotonic() >= worker.again_at:
                worker.process, worker.again_at = self._spawn(worker.number), None
                worker.started.append(time.monotonic())
            return None
        status = worker.process.poll()
        if status is None or self._stopping:
            return None
        if status > 0:
            log.error("worker %d ended with status %d; stopping the others", worker.number, status)
            return status
        how = f"was killed by {signal.Signals(-status).name}" if status else "ended well, asked by somebody else"
        worker.started = [at for at in worker.started if at > time.monotonic() - 60]
        if len(worker.started) > MOST_RESTARTS_A_MINUTE:
            log.error("worker %d was gone %d times in a minute (at last it %s); giving up", worker.number, len(worker.started), how)
            return 128 - status if status else 1
        log.warning("worker %d %s; starting it again", worker.number, how)
        worker.again_at = time.monotonic() + RESTART_AFTER_S
        return None

    def _spawn(self, number: int) -> subprocess.Popen[bytes]:
        return self._start(number, self._command(number))

    def _end_all(self) -> None:
        running = [worker for worker in self._workers if worker.process.poll() is None]
        for worker in running:
            worker.process.terminate()
        deadline = time.monotonic() + self._drain_s
        for worker in running:
            try:
                worker.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.error("worker %d did not drain within %.0f s; killing it", worker.number, self._drain_s)
                worker.process.kill()
                worker.process.wait()
