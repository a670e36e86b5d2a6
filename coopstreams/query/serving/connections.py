"""Limits of the query server's connections: their number, the length of a request's
head, and how long a client may take to ask and to read.

uvicorn closes a connection that is idle after an answer. A client that never finishes a
request, or never reads its answer, would hold a file descriptor for ever, and the
process needs file descriptors for its databases and its brokers. A TLS connection
reaches its protocol only after the handshake. Until then, the socket and the loop limit
it.

Invariant: every connection makes progress or is closed.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from coopstreams.query.parameters import RequestLimits
from coopstreams.query.problems import (
    body_of,
    head_too_long,
    headers_of,
    too_many,
)
from coopstreams.topology.errors import QueryError

log = logging.getLogger(__name__)

LONGEST_HEAD = 1 << 16
"""The most bytes of the request line and the headers together: what HTTP clients allow
of a URL (`paths`).
"""
MOST_LINES = 100
"""The most headers of a request."""
_BLANK_LINE = re.compile(rb"\n\r?\n")
SAY_EVERY_S = 60.0
CLOSE_S = 0.5
"""How long an idle connection may take to close when the server stops. A TLS connection
would wait for the client's closing message, which a client that pools its connections
does not send.
"""


def refusal(most: int) -> bytes:
    """Return the response to a connection above the limit."""
    return _last(too_many(most))


def _last(error: QueryError) -> bytes:
    """Return an error as the last response of a connection."""
    body = body_of(error)
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **headers_of(error),
        "connection": "close",
    }
    phrase = HTTPStatus(error.status).phrase
    lines = [f"HTTP/1.1 {error.status} {phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def too_long(received: bytes) -> bool:
    """Return whether the head of a request that begins with these bytes is longer than
    allowed.
    """
    end = _BLANK_LINE.search(received, 0, LONGEST_HEAD + 4)
    head = received if end is None else received[: end.end()]
    # A line end each for the request line, the headers, and the blank line.
    return len(head) > LONGEST_HEAD or head.count(b"\n") > MOST_LINES + 2


def limited(most: RequestLimits) -> type[asyncio.Protocol]:
    """Return the protocol class of connections that keep these limits."""

    class Limited(LimitedProtocol):
        limits = most
        full = refusal(most.connections)

    return Limited


class LimitedProtocol(H11Protocol):
    """An HTTP connection that keeps the limits of its subclass."""

    limits: ClassVar[RequestLimits]
    full: ClassVar[bytes]
    """The response to a connection above the limit."""
    said_at: ClassVar[float] = -SAY_EVERY_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as its base
        """Accept the connection, or refuse it if too many are open."""
        super().connection_made(transport)  # counts itself among `connections`
        limits = self.limits
        self._asking = _Deadline(self.loop, limits.ask_s, transport.close)
        self._reading = _Deadline(self.loop, limits.read_s, transport.abort)
        self._closing = _Deadline(self.loop, CLOSE_S, transport.abort)
        if len(self.connections) <= limits.connections:
            self._asking.set()
            return
        transport.write(self.full)
        transport.close()
        of_all = type(self)
        if time.monotonic() - of_all.said_at >= SAY_EVERY_S:
            of_all.said_at = time.monotonic()
            log.warning(
                "%d connections are open: new ones are refused (http.max.connections)",
                limits.connections,
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadlines of the connection."""
        self._asking.cancel()
        self._reading.cancel()
        self._closing.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request, all of which has to arrive within `ask_s`."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._asking.cancel()
        # No request yet, or the last one is answered.
        elif getattr(before, "response_complete", True):
            self._asking.set()

    def handle_events(self) -> None:
        """Refuse a head that is too long before it is parsed.

        The parser does not limit lines, and its limit of bytes does not hold for data
        that comes at once: a head of 1 MB took it a third of a second.
        """
        reads_head = self.conn.their_state is h11.IDLE
        if reads_head and too_long(self.conn.trailing_data[0]):
            self.transport.write(_last(head_too_long(LONGEST_HEAD, MOST_LINES)))
            self.transport.close()
            return
        super().handle_events()

    def shutdown(self) -> None:
        """Close the connection: at once if it is idle, otherwise after the answer."""
        super().shutdown()
        if self.transport.is_closing():
            self._closing.set()

    def pause_writing(self) -> None:
        """Stop writing, and abort the connection unless the client reads within
        `read_s`.
        """
        super().pause_writing()
        self._reading.set()

    def resume_writing(self) -> None:
        """Write again, because the client has read."""
        self._reading.cancel()
        super().resume_writing()


class BoundedSocket(socket.socket):
    """A listening socket. While `most` of its connections are open, it closes each new
    one at once.
    """

    def __init__(self, listener: socket.socket, most: int) -> None:
        """Take over the descriptor of a listening socket."""
        super().__init__(fileno=listener.detach())
        self._most = most
        self._open: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        Raises:
            ConnectionAbortedError: too many are open, so it was closed. An event loop
                then accepts the next one.
        """
        accepted, address = super().accept()
        if len(self._open) >= self._most:
            self._open = [one for one in self._open if one.fileno() >= 0]
        if len(self._open) >= self._most:
            accepted.close()
            raise ConnectionAbortedError
        self._open.append(accepted)
        return accepted, address


def limit_handshakes(loop: asyncio.AbstractEventLoop, most_s: float) -> None:
    """Limit the TLS handshakes of the servers that this loop will make: a slower
    connection is closed.

    uvicorn has no setting for it, and asyncio waits for a minute.
    """
    if isinstance(loop, asyncio.BaseEventLoop):
        made = partial(loop.create_server, ssl_handshake_timeout=most_s)
        loop.create_server = made  # type: ignore[method-assign]


class _Deadline:
    """A timer that calls a function after some seconds; `set` has no effect while it
    runs.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        call: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._call = call
        self._timer: asyncio.TimerHandle | None = None

    def set(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._call)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
