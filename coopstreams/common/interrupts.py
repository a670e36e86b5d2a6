"""Handles SIGTERM and Ctrl-C of `coopstreams run`: the process drains, or ends at once,
with status 0 and no traceback.

    before `drain_by`   there is nothing to drain: the process ends at once
    from then on        `drain` is called, and returns whether there is anything to drain; if not, the process ends at
                        once

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
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_listening = threading.Event()
_drains: list[Callable[[], bool]] = []
"""The registered functions; only the last one is called."""


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


def drain_by(drain: Callable[[], bool]) -> None:
    """Register the function that drains the process when a signal asks it to end.

    It is called on another thread, and must return at once whether there is anything to
    drain.
    """
    _drains.append(drain)


def end(why: str) -> None:
    """Drain the process, or end it at once if there is nothing to drain. Thread-safe.
    `why`: the signal, for the log.
    """
    if _drains and _drains[-1]():
        log.info("%s: draining", why)
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
