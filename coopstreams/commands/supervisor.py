"""Several processes of one application: each a member of the group of its own, because Python computes on one core a
process.

One worker's end is not the others' end. A worker that ended, by a signal, by an error or because somebody else asked it
to, is started again after a while, and the others go on with its tasks; `restarts.py` says after which while, and when
all end instead.

A worker and its supervisor know of each other by the worker's environment: whose child it is, how often it was started
again and why, and the file descriptor of a pipe for the sentence with which it ends.

Invariant: no worker outlives its supervisor's `run`; a worker that does not drain in time is killed, and the log knows
the rest.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from coopstreams.commands.restarts import FAILED, MOST_RESTARTS, Again, Over, Restarts, describe_end

log = logging.getLogger(__name__)

SUPERVISOR = "_COOPSTREAMS_SUPERVISED"
"""In the environment of a worker: the process id of its supervisor."""
LAST_WORDS = "_COOPSTREAMS_LAST_WORDS"
"""In the environment of a worker: the file descriptor for why it ends."""
RESTARTS = "_COOPSTREAMS_RESTARTS"
"""In the environment of a worker: how often it was started again."""
LAST_END = "_COOPSTREAMS_LAST_END"
"""In the environment of a worker that was started again: how it had ended."""

LOOK_EVERY_S = 0.1
MOST_WORDS = 2000
"""Characters of a last sentence: a pipe that nobody reads yet takes more, and a log line should not."""

Spawn: TypeAlias = Callable[[int, Sequence[str], Mapping[str, str], Sequence[int]], "subprocess.Popen[bytes]"]
"""Starts a worker, given its number, its command line, its environment and the file descriptors that it inherits."""
Rests: TypeAlias = Callable[[int, float, str], None]
"""Hears that a worker is started again in so many seconds, and how it ended."""


def spawn(
    _: int, command: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start a worker that prints where its supervisor does.

    In a session of its own: Ctrl-C reaches the supervisor alone, which then ends the workers in good order.
    """
    return subprocess.Popen(list(command), env=environment, pass_fds=descriptors, start_new_session=True)


@dataclass(slots=True)
class _Worker:
    number: int
    ends: Restarts
    process: subprocess.Popen[bytes] | None = None
    """None: it is about to be started."""
    words: int = -1
    """The end of its pipe for last words that is ours."""
    starts: int = 0
    last_end: str = ""
    start_at: float = -math.inf


class Supervisor:
    """Runs `command(number)` for each worker's number until `stop`, or until they are not to be started again."""

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
        self._workers = [_Worker(number, Restarts(number, most_restarts)) for number in self.numbers]

    def run(self) -> int:
        """Start the workers; return the exit status: 0 after `stop`, else that of the worker that ended all."""
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
        """Ask for the end; return that there is something to drain. Any thread."""
        self._stopping = True
        return True

    def _look_after(self, worker: _Worker) -> Over | None:
        """Start a worker that is due, and note one that has ended; return what ends all."""
        if worker.process is None:
            return self._start(worker) if time.monotonic() >= worker.start_at else None
        status = worker.process.poll()
        if status is None or self._stopping:
            return None
        worker.process = None
        return self._ended(worker, status, _read(worker.words))

    def _ended(self, worker: _Worker, status: int, why: str) -> Over | None:
        now = time.monotonic()
        verdict = worker.ends.ended(status, why, now)
        if isinstance(verdict, Over):
            return verdict
        worker.last_end, worker.start_at = describe_end(status, why), now + verdict.rest_s
        self._say(worker, verdict)
        return None

    def _say(self, worker: _Worker, verdict: Again) -> None:
        log.warning("%s", verdict.said)
        self._rests(worker.number, verdict.rest_s, worker.last_end)

    def _start(self, worker: _Worker) -> Over | None:
        told = {SUPERVISOR: str(os.getpid()), RESTARTS: str(worker.starts), LAST_END: worker.last_end}
        worker.words, theirs = os.pipe()
        worker.starts += 1
        try:
            environment = os.environ | told | {LAST_WORDS: str(theirs)}
            worker.process = self._spawn(worker.number, self._command(worker.number), environment, (theirs,))
            os.set_blocking(worker.words, False)
        except OSError as error:  # no memory or no process left: that may pass
            os.close(worker.words)
            return self._ended(worker, FAILED, f"it cannot be started: {error}")
        finally:
            os.close(theirs)
        return None

    def _end_all(self) -> None:
        running = {worker.number: worker.process for worker in self._workers if worker.process is not None}
        for process in running.values():
            process.terminate()
        deadline = time.monotonic() + self._drain_s
        for number, process in running.items():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.error("worker %d did not drain within %.0f s; killing it", number, self._drain_s)
                process.kill()
                process.wait()
        for worker in self._workers:
            if worker.process is not None:
                os.close(worker.words)


def _read(words: int) -> str:
    """Return what a worker that has ended said last, and close the pipe. A process that it left behind may keep the
    other end open.
    """
    said = b""
    with suppress(BlockingIOError):
        said = os.read(words, 4 * MOST_WORDS)
    os.close(words)
    return said.decode(errors="replace")[:MOST_WORDS]
