"""The web page that an instance shows at `/`: its files, and the status as a stream of
server-sent events.

The files hold no data: the page asks for it with the token that a person types in. So
the files need no token, like a login form.

    once a second, while a stream is open: ask for the status -> the latest status
    -> each stream whose client has read the previous one

Invariant: a browser loads nothing from any other host, runs no script that is not one
of these files, and sends no form, frame or referrer anywhere.
Invariant: however many pages watch, the other instances are asked once a second. A page
that reads slowly misses events and delays nothing. There are at most `most` streams.
Turned down: a bundler and a framework (a build step, and megabytes that somebody has to
keep up to date); a WebSocket (the page sends nothing), a loop for each page (ten pages
would ask each instance ten times), a queue for each page (an old status is of no use).
Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from coopstreams.query.problems import too_many_streams, unknown_path

log = logging.getLogger(__name__)

INDEX = "index.html"
_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Revalidated each time, by its tag: an upgraded instance shows its own page.
    "cache-control": "no-cache",
}


def asset(request: Request) -> Response:
    """Return the file of the page that a request names, or 304 if the browser has it.

    Raises:
        QueryError: UNKNOWN_PATH.
    """
    name = request.path_params.get("file", INDEX)
    found = _files().get(name)
    if found is None:
        raise unknown_path(f"the page has no file {name}")
    body, tag = found
    headers = _HEADERS | {"etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=_TYPES[name.rpartition(".")[2]])


@cache
def _files() -> dict[str, tuple[bytes, str]]:
    """Return the bytes and the ETag of each file of the page, by name."""
    found = {}
    for file in (files("coopstreams.query") / "page").iterdir():
        body = file.read_bytes()
        found[file.name] = (body, f'"{hashlib.sha256(body).hexdigest()[:20]}"')
    return found


EVENTS = "text/event-stream"
_GZIP = 16 + zlib.MAX_WBITS


class StatusFeed:
    """The open streams of the status; while there are any, `look` fetches it every
    `every_s`. Used on the server's event loop.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[bytes]],
        every_s: float,
        most: int,
    ) -> None:
        self._look = look
        self._every_s = every_s
        self._most = most
        self._streams = 0
        self._looking: asyncio.Task[None] | None = None
        self._latest: bytes | None = None
        self._number = 0
        self._news = asyncio.Condition()
        self._closed = False

    def open(self, *, gzip: bool) -> StreamingResponse:
        """Return the response that streams the status.

        Raises:
            QueryError: TOO_MANY_STREAMS.
        """
        if self._streams >= self._most:
            raise too_many_streams(self._most)
        self._streams += 1
        if self._looking is None:
            self._looking = asyncio.create_task(self._keep_looking())
        return _Stream(self._events(), self._left, gzip=gzip)

    async def close(self) -> None:
        """End all streams."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
        async with self._news:
            self._news.notify_all()

    def _left(self) -> None:
        """Note that a stream has ended. After the last one nobody looks, and the status
        is forgotten: it would be old when the next page comes.
        """
        self._streams -= 1
        if self._streams == 0 and self._looking is not None:
            self._looking.cancel()
            self._looking = self._latest = None

    async def _keep_looking(self) -> None:
        """Fetch the status again and again; an error is logged once, and ends nothing."""
        failed = False
        while True:
            began = time.monotonic()
            try:
                status = await self._look()
            except Exception:
                if not failed:  # the pages show how old their status is
                    log.exception("the status for the pages cannot be told")
                failed = True
            else:
                failed = False
                async with self._news:
                    self._latest = status
                    self._number = self._number + 1
                    self._news.notify_all()
            await asyncio.sleep(max(0.0, began + self._every_s - time.monotonic()))

    async def _events(self) -> AsyncIterator[bytes]:
        """Yield the status at each change, the latest one only, until `close`."""
        seen = 0
        while True:
            async with self._news:
                while not self._closed and (
                    self._latest is None or self._number == seen
                ):
                    await self._news.wait()
                latest = self._latest
                seen = self._number
            if self._closed or latest is None:
                return
            yield b"event: status\ndata: " + latest + b"\n\n"


class _Stream(StreamingResponse):
    """A response of server-sent events. It calls `ended` at its end, even if it never
    began.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        ended: Callable[[], None],
        *,
        gzip: bool,
    ) -> None:
        super().__init__(_gzipped(events) if gzip else events, media_type=EVENTS)
        # A proxy must neither keep events nor collect them.
        self.headers.update(
            {
                "cache-control": "no-store",
                "x-accel-buffering": "no",
                "vary": "accept-encoding",
            }
        )
        if gzip:
            self.headers["content-encoding"] = "gzip"
        self._ended = ended

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


async def _gzipped(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the events compressed by one compressor, because each status differs little
    from the previous one.
    """
    packer = zlib.compressobj(level=1, wbits=_GZIP)
    async for event in events:
        yield packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH)
    yield packer.flush()
