"""SIGTERM and Ctrl-C from the first instruction of `coopstreams run` on: it drains, or ends, with status 0 and without
a traceback.

    before `drain_by`   nothing has begun: the process ends at once
    from then on        `drain` is called, and says whether there is anything to drain; if not, the process ends at once

A thread of its own hears the signals, by Python's wakeup descriptor: while brokers are away the main thread is in calls
of a C library that take up to `connect.timeout.ms`, and Python runs no handler before they return.

Invariant: a process ends in the middle of its work only before it asks to join the group: it owns no task then, and no
transaction is open.
Turned down: an exception from a handler (librdkafka's callbacks, and imports, may swallow it or make another one of
it).
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
"""The last one counts."""


def listen() -> None:
    """Hear signals from now on. Main thread only."""
    _listening.set()
    hears, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    threading.Thread(target=_hear, args=(hears,), name="signals", daemon=True).start()
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)  # without a handler, Python would not write to the descriptor


def listening() -> bool:
    """Return whether signals are heard here, so that nobody else need handle them."""
    return _listening.is_set()


def drain_by(drain: Callable[[], bool]) -> None:
    """Have this called, on another thread, when the process is asked to end; it returns at once, and whether there is
    anything to drain.
    """
    _drains.append(drain)


def end(why: str) -> None:
    """Drain, or end at once if there is nothing to drain. Any thread."""
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
