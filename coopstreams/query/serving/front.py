"""The two threads of the native front, and the socket of the Python server behind it.

One thread serves sockets, heads of requests and slow clients, without the interpreter's
lock. The other thread answers waiting requests for keys, all of them each time it gets
the lock. Any other request, or one that it cannot answer here and now, goes through a
Unix socket to the server behind. Without a front, that is the only server.

Invariant: the clients of a front see what they would see without one.
Turned down: answering each request by itself: each would wait for the lock, which a
busy thread gives up every 5 ms.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from coopstreams.common.budget import CpuBudget
from coopstreams.query.host_names import Hosts
from coopstreams.query.parameters import RequestLimits
from coopstreams.query.serving.connections import SAY_EVERY_S, refusal
from coopstreams.query.serving.key_answers import KeyAnswers, KeyRequest
from coopstreams.topology.errors import ConfigError

log = logging.getLogger(__name__)


class Front(Protocol):
    """The native front of a query server: an object of the extension
    `coopstreams-native`.
    """

    def known_as(self, names: Sequence[str], suffixes: Sequence[str]) -> None:
        """Answer a request for keys only if it names one of these hosts, an address, or
        a name without a dot.
        """

    def serve(self) -> None:
        """Accept connections and serve them, until `drain` and `end` were called."""

    def wait(self) -> bool:
        """Block until a request for keys waits, or a connection was refused; return
        False when the front has ended.
        """
        ...

    def take(self, age_s: float) -> list[KeyRequest]:
        """Take the requests that have waited for at least `age_s`, and return them,
        oldest first.
        """
        ...

    def give(self, answers: Sequence[bytes | None]) -> None:
        """Send the answers to the requests of the last `take`; a None is answered by
        the server behind.
        """

    def refused(self) -> int:
        """Return how many connections were refused so far."""
        ...

    def open(self) -> int:
        """Return how many connections are open."""
        ...

    def pass_on(self) -> None:
        """Have the server behind answer all requests from now on."""

    def drain(self) -> None:
        """Accept no connection any more, and close each one after the request that is
        under way.
        """

    def end(self) -> None:
        """Make `serve` and `wait` return; close the connections that are still open."""


class FrontThreads:
    """The threads of a front, which run between `start` and `end`."""

    def __init__(self, make: Callable[..., Any], limits: RequestLimits) -> None:
        """Bind the Unix socket of the server behind.

        Raises:
            ConfigError: the socket cannot be bound.
        """
        self._make = make
        self._limits = limits
        self.behind = socket.socket(socket.AF_UNIX)
        self._folder: str | None = None
        try:
            if sys.platform == "linux":
                # an abstract name and no file, so that a killed process leaves nothing
                # behind
                self.behind.bind("")
            else:
                self._folder = tempfile.mkdtemp(prefix="coopstreams-")
                self.behind.bind(os.path.join(self._folder, "http"))
        except OSError as error:
            self.behind.close()
            raise ConfigError(
                f"the query server cannot bind a socket for itself: {error}"
            ) from error
        self.behind.listen(1024)
        self._front: Front
        self._threads: list[threading.Thread] = []

    def start(
        self,
        listener: socket.socket,
        answers: KeyAnswers,
        budget: CpuBudget,
        hosts: Hosts | None,
    ) -> None:
        """Serve from the listener, which the front takes over. `hosts`: a request to
        another name is answered by the server behind.
        """
        limits = self._limits
        self._front = self._make(
            listener.detach(),
            os.fsdecode(self.behind.getsockname()),
            limits.connections,
            refusal(limits.connections),
            limits.ask_s,
            limits.idle_s,
            limits.read_s,
        )
        if hosts is not None:
            self._front.known_as(list(hosts.names), list(hosts.suffixes))
        self._threads = [
            threading.Thread(
                target=_logged,
                args=(what,),
                name=f"coopstreams-http-{name}",
                daemon=True,
            )
            for name, what in (
                ("front", self._front.serve),
                ("keys", lambda: self._keys(answers, budget)),
            )
        ]
        for thread in self._threads:
            thread.start()

    def open(self) -> int:
        """Return how many connections are open."""
        return self._front.open()

    def drain(self) -> None:
        """Accept no connection any more, and close each one after the request that is
        under way.
        """
        if self._threads:
            self._front.drain()

    def end(self, patience_s: float) -> None:
        """End the front within `patience_s`; connections that are still open then are
        closed.
        """
        deadline = time.monotonic() + patience_s
        if self._threads:
            while self._front.open() and time.monotonic() < deadline:
                time.sleep(0.01)
            self._front.end()
        for thread in self._threads:
            thread.join()
        self.behind.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _keys(self, answers: KeyAnswers, budget: CpuBudget) -> None:
        """Answer waiting requests for keys until the front ends; each `take` is
        followed by its `give`.
        """
        front = self._front
        refused = 0
        said_at = -SAY_EVERY_S
        try:
            while front.wait():
                if (
                    front.refused() > refused
                    and time.monotonic() - said_at >= SAY_EVERY_S
                ):
                    refused = front.refused()
                    said_at = time.monotonic()
                    most = self._limits.connections
                    log.warning(
                        "%d connections are open: new ones are refused (http.max.connections)",
                        most,
                    )
                if wait_s := budget.wait_elsewhere_s():
                    time.sleep(wait_s)
                    front.give(answers.overdue(front.take(self._limits.request_s)))
                else:
                    budget.counted(lambda: front.give(answers.of(front.take(0.0))))()
        finally:
            # whatever has ended this thread: the server behind can answer them, too
            front.pass_on()


def _logged(what: Callable[[], None]) -> None:
    """Run a thread's function; log the error that ends it."""
    try:
        what()
    except BaseException:
        log.critical("a thread of the query server ended", exc_info=True)
        raise
