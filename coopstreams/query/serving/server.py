"""The query server of one instance: it binds its socket at once, and serves later, on
an event loop in its own thread.

An instance tells the group its address when it joins, before it can serve. So binding
and serving are two steps.

Invariant: importing this module loads no web server; `start` does.
Relies on: `app` (answers), `connections` (limits), `front` (the native one, if there is
one).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from coopstreams.query.access import Access
from coopstreams.query.backend import Backend
from coopstreams.topology.errors import ConfigError

if TYPE_CHECKING:
    import uvicorn

    from coopstreams.common.metrics import Metrics
    from coopstreams.query.app import QueryApp
    from coopstreams.query.parameters import RequestLimits
    from coopstreams.query.serving.front import FrontThreads

log = logging.getLogger(__name__)

OPEN = Access()
DRAIN_S = 3
"""How long `stop` waits for requests that are being answered."""


class QueryServer:
    """An HTTP server on a thread of its own.

    Make it with `QueryServer("127.0.0.1:0")`, tell the group its `url`, then
    `start(...)` and `stop()` it.
    """

    def __init__(
        self,
        listen: str,
        advertised: str | None = None,
        access: Access = OPEN,
    ) -> None:
        """Bind HOST:PORT; port 0 takes a free one. `advertised` is the HOST:PORT (or
        URL) that others reach it by.

        Raises:
            ConfigError: the address cannot be bound.
        """
        self._socket = _bound(listen)
        host, port = self._socket.getsockname()[:2]
        self.host: str = host
        self.port: int = port
        self.url = url_of(
            advertised or f"{_reachable(host)}:{port}",
            "http" if access.certificates is None else "https",
        )
        self._access = access.known_as(self.url)
        if exposed := access.exposed(host):
            log.warning("%s answers on %s: %s", self.url, listen, exposed)
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._end_app: Callable[[], object] = lambda: None
        self._front: FrontThreads | None = None

    def start(
        self,
        backend: Backend,
        metrics: Metrics,
        limits: RequestLimits | None = None,
    ) -> None:
        """Serve on a thread of its own; return once requests are answered.

        Raises:
            ConfigError: the server did not start; the log says why.
        """
        import uvicorn

        from coopstreams.log.kafka.native import front
        from coopstreams.query.app import QueryApp
        from coopstreams.query.parameters import RequestLimits
        from coopstreams.query.serving.connections import (
            LONGEST_HEAD,
            BoundedSocket,
            limited,
        )
        from coopstreams.query.serving.front import FrontThreads
        from coopstreams.query.serving.key_answers import KeyAnswers

        limits = limits or RequestLimits()
        app = QueryApp(backend, metrics, limits, self._access)
        certificates = self._access.certificates
        make = None if certificates else front()
        listener = self._socket
        connections = limits.connections
        if make is not None:
            self._front = FrontThreads(make, limits)
            listener = self._front.behind
            # the front counts them; a connection that has just ended there may still be
            # open here
            connections *= 2
        if certificates is not None:
            listener = self._socket = BoundedSocket(
                self._socket,
                2 * connections,
            )  # handshakes among them
        config = uvicorn.Config(
            app.starlette(),
            access_log=False,
            log_config=None,
            log_level="warning",
            lifespan="on",
            ws="none",
            http=limited(replace(limits, connections=connections)),
            h11_max_incomplete_event_size=LONGEST_HEAD,
            server_header=False,
            timeout_keep_alive=limits.idle_s,  # type: ignore[arg-type]  # a time-out of asyncio
            timeout_graceful_shutdown=DRAIN_S,
        )
        if certificates is not None:
            config.load()
            config.ssl = (
                certificates.server
            )  # its parameter for this is new: it would shut out older versions
        self._server = uvicorn.Server(config)
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=(
                self._server,
                listener,
                app,
                started,
                limits.ask_s if certificates else None,
            ),
            name="coopstreams-http",
            daemon=True,
        )
        self._thread.start()
        # Without a time-out: a process that is paused during its start would fail, and
        # end all others with this error.
        started.wait()
        if not self._server.started:
            raise ConfigError(
                f"the query server at {self.url} did not come up; see the log"
            )
        if self._front is not None:
            self._front.start(
                self._socket,
                KeyAnswers(app.gate),
                app.budget,
                self._access.hosts,
            )

    def stop(self) -> None:
        """Finish the running requests, then close the socket. Idempotent; `start` need
        not have been called.
        """
        # The front takes nothing new, then the server behind answers what it has, and
        # only then the front ends, through which these answers go.
        if self._front is not None:
            self._front.drain()
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._end_app()
            self._thread.join(2 * DRAIN_S + 4)
            if self._thread.is_alive():
                log.error("the query server at %s did not stop in time", self.url)
            self._server = self._thread = None
        if self._front is not None:
            self._front.end(DRAIN_S)
            self._front = None
        self._socket.close()

    def connections(self) -> int:
        """Return how many connections are open."""
        if self._front is not None:
            return self._front.open()
        return 0 if self._server is None else len(self._server.server_state.connections)

    def _run(
        self,
        server: uvicorn.Server,
        listener: socket.socket,
        app: QueryApp,
        started: threading.Event,
        handshake_s: float | None,
    ) -> None:
        """Serve on this thread until `stop`. `started`: set in any case, also if the
        server does not come up. `handshake_s`: the limit of a TLS handshake, None: no
        TLS.
        """
        from coopstreams.query.serving.connections import limit_handshakes

        async def serve() -> None:
            loop = asyncio.get_running_loop()
            if handshake_s is not None:
                limit_handshakes(loop, handshake_s)
            self._end_app = lambda: asyncio.run_coroutine_threadsafe(app.end(), loop)
            serving = asyncio.ensure_future(server.serve([listener]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.005)
            started.set()
            await serving

        try:
            asyncio.run(serve())
        except (Exception, SystemExit):  # uvicorn exits when it cannot start
            log.exception("the query server at %s ended", self.url)
        finally:
            self._end_app = lambda: None
            started.set()


def _bound(listen: str) -> socket.socket:
    """Return a socket that listens on HOST:PORT."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    try:
        number = int(port)
        if not 0 <= number <= 65535:
            raise ValueError(f"there is no port {number}")
        family, kind, protocol, _, address = socket.getaddrinfo(
            host,
            number,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"http.listen = {listen}: {error}. Give HOST:PORT; port 0 takes a free one"
        ) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(1024)
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"cannot listen on {listen}: {error.strerror}. Give another http.listen; port 0 takes a free one"
        ) from error
    return bound


def _reachable(host: str) -> str:
    """Return an address in the form of a URL; if it means all addresses, the name of
    this host.
    """
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def url_of(address: str, scheme: str) -> str:
    """Return the URL of HOST:PORT; a URL is returned unchanged."""
    return address.rstrip("/") if "://" in address else f"{scheme}://{address}"
