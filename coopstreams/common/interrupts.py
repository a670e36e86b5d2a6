"""Handles SIGTERM and Ctrl-C of `coopstreams run`: the process drains, or ends at once,
with status 0 and no traceback.

    before `drain_by`   there is nothing to drain: the process ends at once
    from then on        `drain` is called, and returns whether there is anything to drain; if not, the process ends at
                        once
    a second signal     `hurry` is called, for a drain that waits for something that may be given up

A thread of its own reads the signals from Python's wakeup descriptor. While brokers are
unreachable, the main thread is in C calls that take up to `connect.timeout.ms`, and
Python runs no signal handler before they return.

Invariant: a process ends without draining only before it asks to join the group: then
it owns no task, and no transaction is open. Turned down: an exception from a handler
(librdkafka's callbacks, and imports, may swallow it or replace it).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_listening = threading.Event()
_drains: list[tuple[Callable[[], bool], Callable[[], object]]] = []
"""The registered functions, `drain` and `hurry`; only the last ones are called."""
ECHO_S = 2.0
"""Signals within this time of the first one are the same request: a service manager
sends one to each process of a group, and its supervisor another one. Units: seconds.
"""


class Requests:
    """The requests to end a process."""

    def __init__(self) -> None:
        self._first: float | None = None

    def again(self) -> bool:
        """Note a request; return whether it is a second one."""
        now = time.monotonic()
        if self._first is None:
            self._first = now
        return now - self._first > ECHO_S


_requests = Requests()


def listen() -> None:
    """Handle SIGTERM and Ctrl-C from now on. Main thread only."""
    _listening.set()
    hears, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    threading.Thread(target=_hear, args=(hears,), name="signals", daemon=True).start()
    for number in SIGNALS:
        signal.signal(
            number,
            lambda *_: None,
        )  # without a handler, Python would not write to the descriptor


def listening() -> bool:
    """Return whether this module handles signals, so that no other handler is needed."""
    return _listening.is_set()


def drain_by(
    drain: Callable[[], bool],
    hurry: Callable[[], object] = lambda: None,
) -> None:
    """Register the function that drains the process when a signal asks it to end.

    It is called on another thread, and must return at once whether there is anything to
    drain. `hurry` is called in its place at a second signal.
    """
    _drains.append((drain, hurry))


def end(why: str, *, asked: bool = True) -> None:
    """Drain the process, or end it at once if there is nothing to drain. Thread-safe.

    `why`: the signal, for the log. `asked`: somebody has asked for it, so that the next
    request is a second one.
    """
    again = asked and _requests.again()
    if _drains:
        drain, hurry = _drains[-1]
        if drain():
            log.info("%s: draining%s", why, " at once" if again else "")
            if again:
                hurry()
            return
    log.info("%s: nothing has begun here yet", why)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def _hear(descriptor: int) -> None:
    while True:
        for number in os.read(descriptor, 16):
            if number in SIGNALS:
                end(signal.Signals(number).name)
