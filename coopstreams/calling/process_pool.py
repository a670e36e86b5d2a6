"""Runs functions that compute in processes of their own, because the threads of one
Python process compute one at a time.

    call = ProcessCall(function, arguments)
    call.make(begun) # on a thread that waits
    call.abandon()   # on another thread: the result is no longer needed; kills its process

Invariant: one Python process has at most `MOST_PROCESSES` of them at work. They are
started when needed, by `spawn` (a fork would copy locks that other threads hold), and
are kept. They end when the process that started them ends, for whatever reason, and not
earlier. They ignore signals that are sent to all processes of a service, so that calls
under way can drain.
Invariant: a process that dies fails only its current call. Turned down:
`ProcessPoolExecutor` (a process that dies fails all calls of the pool, and a single
call cannot be ended).
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any

from coopstreams.common.cores import available_cores
from coopstreams.topology.errors import ProcessingError

MOST_PROCESSES = available_cores()
_STOPS = (signal.SIGINT, signal.SIGTERM)
_BEGUN = b""
"""The message before an answer: the function has been imported, and begins."""


class ProcessCall:
    """One call of a function in another process."""

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self._call = function, tuple(arguments)
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._abandoned = False

    def make(self, begun: Callable[[], object]) -> Any:
        """Return the function's result. Blocks. `begun`: called when a process has
        imported the function.

        Raises:
            Exception: the function's error, with its traceback as a note.
            ProcessingError: the process has died.
        """
        asked = pickle.dumps(self._call)
        with _pool.places:
            with self._lock:
                if self._abandoned:
                    return None
                worker = self._worker = _pool.take()
            try:
                answer = worker.ask(asked, begun)
            finally:
                # before it has another call, which `abandon` would kill
                with self._lock:
                    self._worker = None
                _pool.give_back(worker)
        value, error = pickle.loads(answer)
        if error is not None:
            raise error
        return value

    def abandon(self) -> None:
        """Kill the process that makes the call, if the call has begun; otherwise the
        call is not made.
        """
        with self._lock:
            self._abandoned = True
            if self._worker is not None:
                self._worker.end()


class _Worker:
    """A child process that makes calls, one at a time."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve,
            args=(theirs,),
            name="calls",
            daemon=True,
        )
        resource_tracker.ensure_running()  # which `start` would do, and unblock signals
        before = signal.pthread_sigmask(
            signal.SIG_BLOCK,
            _STOPS,
        )  # the process has the mask until it can ignore them
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # so that the end of the process is noticed
        # Where multiprocessing ends, in its own processes, too, and before it waits for
        # those that outlast SIGTERM.
        Finalize(self, self._process.kill, exitpriority=1)
        self._ended = False

    @property
    def alive(self) -> bool:
        return not self._ended and self._process.is_alive()

    def ask(self, asked: bytes, begun: Callable[[], object]) -> bytes:
        try:
            self._connection.send_bytes(asked)
            if (answer := self._connection.recv_bytes()) == _BEGUN:
                begun()
                answer = self._connection.recv_bytes()
            return answer
        except (EOFError, OSError) as error:
            self._process.join()
            raise ProcessingError(
                f"the process that made the call has died (exit code {self._process.exitcode})"
            ) from error
        except BaseException:
            # no memory for the answer: what is left of it would be taken for the next
            # one
            self.end()
            raise

    def end(self) -> None:
        self._ended = True
        self._process.kill()


class _Pool:
    """The started processes that wait for a call."""

    def __init__(self) -> None:
        self.places = threading.BoundedSemaphore(MOST_PROCESSES)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []

    def take(self) -> _Worker:
        with self._lock:
            while self._idle:
                if (worker := self._idle.pop()).alive:
                    return worker
        return _Worker()

    def give_back(self, worker: _Worker) -> None:
        if worker.alive:
            with self._lock:
                self._idle.append(worker)


_pool = _Pool()


def _serve(connection: Connection) -> None:
    """Make calls until the process that requests them has ended."""
    # Ctrl-C, and what stops a service, may reach all processes: the first one drains. A
    # handler that does nothing is not inherited by the programs that a function starts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    while True:
        try:
            asked = connection.recv_bytes()
        except EOFError:
            return
        connection.send_bytes(_answer(asked, partial(connection.send_bytes, _BEGUN)))


def _end_with_parent() -> None:
    """Wait until the parent process has ended, then end this process at once, even in
    the middle of a call. Blocks, so it has a thread of its own.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _answer(asked: bytes, begin: Callable[[], object]) -> bytes:
    """Return the pickled value or error of a call. `begin`: called before the
    function.
    """
    try:
        function, arguments = pickle.loads(asked)
        begin()
        return pickle.dumps((function(*arguments), None))
    except Exception as error:  # noqa: BLE001 it belongs to the record
        error.add_note("".join(traceback.format_exception(error)))
        try:
            answer = pickle.dumps((None, error))
            pickle.loads(answer)  # some exceptions can be written, but not read
        except Exception:  # noqa: BLE001
            answer = pickle.dumps(
                (None, ProcessingError(f"{type(error).__name__}: {error}"))
            )
        return answer
