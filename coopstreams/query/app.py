"""The HTTP routes of an instance, and the one place where errors become responses.

Invariant: every response is JSON, NDJSON, server-sent events, Prometheus' text, or a
file of the page. Every error has the form of `problems`, and every request is counted.
Relies on: `gate` (errors and counts), `access` (who may ask for which path), `service`
(the answers), `openapi` (has each path a second time).
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

import msgspec
import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from coopstreams.common.budget import CpuBudget
from coopstreams.common.metrics import CONTENT_TYPE, Metrics
from coopstreams.query.access import Access, Role, role_of
from coopstreams.query.backend import Backend, Staleness, StoreInfo
from coopstreams.query.certificates import CHECK_EVERY_S, Certificates
from coopstreams.query.gate import Gate, not_running
from coopstreams.query.openapi import description
from coopstreams.query.parameters import (
    RANGE_PARAMETERS,
    Parameters,
    RequestLimits,
    What,
    how_asked,
    key_query,
    keys_query,
    limit_of,
    path_piece,
    range_query,
    unpacked,
)
from coopstreams.query.peers import (
    FORWARDED,
    INSTANCE,
    JSON,
    PACKED,
    Peers,
    check_hop,
)
from coopstreams.query.problems import (
    body_of,
    headers_of,
    timed_out,
    unknown_path,
)
from coopstreams.query.range_pages import Cover, Page, Query
from coopstreams.query.router import Asked
from coopstreams.query.service import QueryService, store_named
from coopstreams.query.web_page import EVENTS, StatusFeed, asset
from coopstreams.status.model import Paused
from coopstreams.status.reasons import by_code
from coopstreams.topology.errors import ConfigError, QueryError

log = logging.getLogger(__name__)

NDJSON = "application/x-ndjson"
WITHHELD = "send the token http.token.operate to read it"
"""The message that replaces each reason of health if the request has no token: the
reason may quote a record.
"""
PIECE = 1 << 16
"""The bytes of a response that are sent at a time. A slow client has to read this many
within `read_s`.
"""

Answer: TypeAlias = Callable[[Request], Awaitable[Response]]


class QueryApp:
    """The HTTP routes of one instance, as a Starlette application."""

    def __init__(
        self,
        backend: Backend,
        metrics: Metrics,
        limits: RequestLimits,
        access: Access,
    ) -> None:
        self.gate = Gate(backend, metrics, limits, access)
        self.budget = CpuBudget(limits.cpu_share, backend.busy)
        self._backend = backend
        self._limits = limits
        self._service: QueryService
        self._feed: StatusFeed

    def starlette(self) -> Starlette:
        """Return the ASGI application."""
        read = self.answers() | {"/": self._page, "/page/{file}": self._page}
        routes = [
            Route(path, self._endpoint(path, answer), methods=[method])
            for method, paths in (("GET", read), ("POST", self.changes()))
            for path, answer in paths.items()
        ]
        for route in routes:  # Starlette's `path` would end at a line end in a key
            route.path_regex = re.compile(route.path_regex.pattern, re.DOTALL)
        app = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: self._no_route},
        )
        # a redirect is no JSON, and goes to the host that the client has named
        app.router.redirect_slashes = False
        return app

    def answers(self) -> dict[str, Answer]:
        """Return the handler of each GET path, without the files of the page."""
        return {
            "/v1/stores": self._stores,
            "/v1/stores/{store}/keys": self._keys,
            "/v1/stores/{store}/keys/{key:path}": partial(self._key, "keys"),
            "/v1/stores/{store}/range": self._range,
            "/v1/stores/{store}/windows/{key:path}": partial(self._key, "windows"),
            "/v1/stores/{store}/sessions/{key:path}": partial(self._key, "sessions"),
            "/v1/stores/{store}/versions/{key:path}": partial(self._key, "versions"),
            "/v1/metadata": self._metadata,
            "/v1/metadata/{store}/{key:path}": self._key_metadata,
            "/v1/status": self._status,
            "/v1/topology": self._topology,
            "/health/live": partial(self._health, "live"),
            "/health/ready": partial(self._health, "ready"),
            "/metrics": self._prometheus,
            "/openapi.json": self._openapi,
        }

    def changes(self) -> dict[str, Answer]:
        """Return the handler of each POST path; each one changes the instance."""
        return {
            "/v1/pause": partial(self._pause, paused=True),
            "/v1/resume": partial(self._pause, paused=False),
        }

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """Hold what needs the event loop: connections to peers, the service, the feed
        of the page.
        """
        peers = Peers(self._backend, self.gate.access, self._limits.connect_s)
        self._service = QueryService(self._backend, peers, self._limits, self.budget)
        self._feed = StatusFeed(
            lambda: self._service.status("any"),
            self._limits.stream_every_s,
            self._limits.streams,
        )
        certificates = self.gate.access.certificates
        renewing = (
            None if certificates is None else asyncio.create_task(_renew(certificates))
        )
        try:
            yield
        finally:
            # first: what is cancelled below is answered with TASK_MOVING
            self.gate.ended = True
            if renewing is not None:
                renewing.cancel()
            await self._feed.close()
            await peers.close()
            await self._service.close()

    async def _stores(self, request: Request) -> Response:
        parameters = _parameters(request, "local", "brief")
        asked = self._asked(request, parameters)
        return _json(
            self._service.known_stores()
            if parameters.flag("brief")
            else await self._service.stores(asked)
        )

    async def _key(self, what: What, request: Request) -> Response:
        """Answer for one key. `what`: keys, windows, sessions or versions."""
        query = key_query(
            what,
            self._store(request),
            _raw_path(request),
            request.scope["query_string"],
            self._limits,
            forwarded=_forwarded(request),
        )
        return _json(await self._service.by_key(query))

    async def _keys(self, request: Request) -> Response:
        query = keys_query(
            self._store(request),
            request.scope["query_string"],
            forwarded=_forwarded(request),
        )
        return _json(await self._service.points(query))

    async def _range(self, request: Request) -> Response:
        """Answer a range query: its part of a forwarded one, in bytes; a page as JSON;
        or, on demand, all pages line by line.
        """
        store = self._store(request)
        if _forwarded(request):
            query = unpacked(_parameters(request, "query").text("query"))
            return _Answer(
                await self._service.packed_part(store, query),
                media_type=PACKED,
            )
        parameters = _parameters(request, *RANGE_PARAMETERS)
        asked = self._asked(request, parameters)
        streamed = NDJSON in request.headers.get("accept", "")
        if not streamed:
            limit = limit_of(parameters, self._limits)
            query = await self._service.read(
                lambda: range_query(store, parameters, limit)
            )
            page = await self._service.page(store, query, asked)
            return _json(_page_body(store, page))
        total = (
            None
            if parameters.text("limit") is None
            else limit_of(parameters, self._limits)
        )
        a_page = min(self._limits.entries, total or self._limits.entries)
        query = await self._service.read(lambda: range_query(store, parameters, a_page))
        # before the response begins, so that an error has its own status
        first = await self._service.page(store, query, asked)
        return StreamingResponse(
            self._lines(store, query, first, total, asked),
            media_type=NDJSON,
        )

    async def _lines(
        self,
        store: StoreInfo,
        query: Query,
        page: Page,
        total: int | None,
        asked: Asked,
    ) -> AsyncIterator[bytes]:
        """Yield a line of JSON for each entry, page by page. The last line has `cursor`
        and `count`, or an error.
        """
        count = 0
        cursor: str | None = None
        while True:
            count += len(page.entries)
            lines = b"".join(entry + b"\n" for _, _, entry in page.entries)
            for at in range(0, len(lines), PIECE):
                yield lines[at : at + PIECE]
            cursor = page.cursor
            if cursor is None or count == total:
                break
            key, partition, _ = page.entries[-1]
            limit = query.limit if total is None else min(query.limit, total - count)
            query = msgspec.structs.replace(query, after=(key, partition), limit=limit)
            await self.budget.turn()
            try:
                async with asyncio.timeout(self._limits.request_s):
                    page = await self._service.page(store, query, asked)
            except (QueryError, TimeoutError) as error:
                late = timed_out("a page took too long")
                failure = error if isinstance(error, QueryError) else late
                failure.details = {**failure.details, "cursor": cursor, "count": count}
                yield body_of(failure) + b"\n"
                return
        yield orjson.dumps({"cursor": cursor, "count": count}) + b"\n"

    async def _metadata(self, request: Request) -> Response:
        _parameters(request)
        return _json(self._service.metadata())

    async def _key_metadata(self, request: Request) -> Response:
        _parameters(request)
        return _json(
            await self._service.key_metadata(
                self._store(request),
                path_piece(_raw_path(request), 4),
            )
        )

    async def end(self) -> None:
        """End the streams of the status, which a stopping server would wait for. From
        now on a cancelled request is answered with TASK_MOVING.
        """
        self.gate.ended = True
        await self._feed.close()

    async def _page(self, request: Request) -> Response:
        return asset(request)

    async def _status(self, request: Request) -> Response:
        if EVENTS in request.headers.get("accept", ""):
            _parameters(request)
            return self._feed.open(
                gzip="gzip" in request.headers.get("accept-encoding", "")
            )
        return _json(
            await self._service.status(
                self._asked(request, _parameters(request, "local"))
            )
        )

    async def _topology(self, request: Request) -> Response:
        _parameters(request)
        return _json(self._service.topology())

    async def _pause(self, request: Request, *, paused: bool) -> Response:
        _parameters(request)
        self._backend.pause(paused)
        return _json(msgspec.json.encode(Paused(self.gate.here, paused)))

    async def _health(self, what: str, request: Request) -> Response:
        """Answer a probe. `what`: live or ready. Without a token the reasons are
        withheld.
        """
        health = self._backend.health()
        well = health.live and (what == "live" or health.ready)
        headers = request.headers
        if not self.gate.access.allows(
            "operate",
            headers.get("authorization"),
            headers.get("host"),
        ):
            told = (
                msgspec.structs.replace(reason, message=WITHHELD)
                for reason in health.reasons
            )
            health = msgspec.structs.replace(health, reasons=tuple(told))
        return _json(msgspec.json.encode(health), 200 if well else 503)

    async def _prometheus(self, _request: Request) -> Response:
        self.gate.metrics.health(by_code(self._backend.health().reasons))
        return Response(self.gate.metrics.text(), media_type=CONTENT_TYPE)

    async def _openapi(self, _request: Request) -> Response:
        return _json(orjson.dumps(description(self._limits)))

    def _store(self, request: Request) -> StoreInfo:
        return store_named(self._backend, request.path_params["store"])

    def _asked(self, request: Request, parameters: Parameters) -> Asked:
        return how_asked(parameters, forwarded=_forwarded(request))

    def _endpoint(self, path: str, answer: Answer) -> Answer:
        """Return the endpoint of a path: it checks the token, limits the time, turns
        errors into responses, and counts requests.
        """
        gate = self.gate
        route = path.replace(":path", "")
        role = role_of(path)

        async def endpoint(request: Request) -> Response:
            began = time.monotonic()
            try:
                response = await self._admitted(request, role, answer)
            except asyncio.CancelledError:
                if not gate.ended:
                    raise
                response = _failure(not_running())  # it waited for a thread
            except Exception as error:  # noqa: BLE001 the gate logs it
                what = _request_line(request)
                response = _failure(gate.error(error, what))
            response.headers[INSTANCE] = gate.here
            seconds = time.monotonic() - began
            gate.metrics.answered(route, response.status_code, seconds)
            return response

        return endpoint

    async def _admitted(
        self,
        request: Request,
        role: Role | None,
        answer: Answer,
    ) -> Response:
        """Return the answer to a request, if its token and its forwarding are right."""
        self.gate.access.check(
            role,
            request.headers.get("authorization"),
            request.headers.get("host"),
            changes=request.method == "POST",
        )
        if _forwarded(request):
            check_hop(
                request.headers,
                self._backend.placement(),
                self._backend.application,
            )
        async with asyncio.timeout(self._limits.request_s):
            if role == "read":  # status and health are answered in any case
                await self.budget.turn()
            return await answer(request)

    async def _no_route(self, request: Request, error: Exception) -> Response:
        """Answer a request that no route takes."""
        assert isinstance(error, HTTPException)
        refusal = unknown_path(_request_line(request))
        if error.status_code != refusal.status:
            refusal = QueryError(
                "METHOD_NOT_ALLOWED",
                str(refusal),
                status=error.status_code,
            )
        response = _failure(refusal)
        response.headers.update(error.headers or {})  # `Allow`
        response.headers[INSTANCE] = self.gate.here
        return response


class MountedApp:
    """An ASGI app with the routes of an instance, for a web server of the user's:
    `web.mount("/state", streams.asgi())`.

    Starlette does not run the lifespan of a mounted app, so the instance runs it. While
    the instance does not run, the routes answer 503 `TASK_MOVING`.
    """

    def __init__(self) -> None:
        self._routes: Starlette | None = None

    @asynccontextmanager
    async def serving(self, app: QueryApp) -> AsyncIterator[None]:
        """Answer requests during the block, on the event loop that runs the block."""
        routes = app.starlette()
        async with routes.router.lifespan_context(routes):
            self._routes = routes
            try:
                yield
            finally:
                self._routes = None

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a request.

        Raises:
            ValueError: it is not HTTP: this app was not mounted.
        """
        if scope["type"] != "http":
            raise ValueError(
                f"the query routes answer http, not {scope['type']}: mount them in an app"
            )
        answer = self._routes or _failure(not_running())
        await answer(scope, receive, send)


async def _renew(certificates: Certificates) -> None:
    """Read the certificates again when their files have changed; until then those from
    before are used.
    """
    while True:
        await asyncio.sleep(CHECK_EVERY_S)
        try:
            if await asyncio.to_thread(certificates.renew):
                log.info("the certificates of the query server were read again")
        except ConfigError as error:
            log.warning(
                "the certificates have changed; those from before stay in use: %s",
                error,
            )


def _page_body(store: StoreInfo, page: Page) -> bytes:
    """Return a page of a range query as JSON: its entries, and the ranges that were
    read for it.
    """
    ranges = [
        {
            "partition": cover.partition,
            "key_range": str(cover.key_range),
            "owner": cover.owner,
            "epoch": cover.epoch,
            "lag": cover.lag,
            **_standby(cover),
        }
        for cover in page.covers
    ]
    entries = [orjson.Fragment(entry) for _, _, entry in page.entries]
    told = {"store": store.name, "entries": entries, "cursor": page.cursor}
    return orjson.dumps(told | {"ranges": ranges})


def _standby(cover: Cover) -> dict[str, Any]:
    """Return the field about a standby that was read; none: an owner was."""
    if cover.standby is None:
        return {}
    return {"standby": Staleness(*cover.standby)._asdict()}


class _Answer(Response):
    """A response whose body is sent in pieces of `PIECE` bytes."""

    async def __call__(
        self,
        scope: Scope,  # noqa: ARG002 the names in Starlette
        receive: Receive,  # noqa: ARG002 likewise
        send: Send,
    ) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        size = len(self.body)
        for at in range(0, max(size, 1), PIECE):
            piece = self.body[at : at + PIECE]
            more = at + PIECE < size
            await send({"type": "http.response.body", "body": piece, "more_body": more})


def _json(body: bytes, status: int = 200) -> Response:
    return _Answer(body, status, media_type=JSON)


def _failure(error: QueryError) -> Response:
    return Response(body_of(error), error.status, headers_of(error), media_type=JSON)


def _forwarded(request: Request) -> bool:
    """Return whether another instance has forwarded this request."""
    return request.headers.get(FORWARDED) == "1"


def _parameters(request: Request, *known: str) -> Parameters:
    return Parameters(request.scope["query_string"], known)


def _request_line(request: Request) -> str:
    """Return the method and path of a request. `request.url` would read the Host header,
    too, and before Starlette 1.1 raises if that is malformed.
    """
    path: str = request.scope["path"]
    return f"{request.method} {path}"


def _raw_path(request: Request) -> bytes:
    """Return the path as it was sent, without the prefix that the routes are mounted
    under.
    """
    prefix: str = request.scope.get("root_path", "")
    raw: bytes = request.scope["raw_path"]
    return b"/" + raw.split(b"/", prefix.count("/") + 1)[-1]
