"""The query routes in a program's own ASGI server: `web.mount("/state", streams.asgi())`.

Starlette does not run the lifespan of an app that is mounted, so the instance does: the routes answer while it runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from coopstreams.query.app import QueryApp, failure
from coopstreams.query.problems import moving


class MountedApp:
    """An ASGI app with the routes of an instance; 503 `TASK_MOVING` while the instance does not run."""

    def __init__(self) -> None:
        self._routes: Starlette | None = None

    @asynccontextmanager
    async def serving(self, app: QueryApp) -> AsyncIterator[None]:
        """Answer during the block, on the event loop of the block."""
        routes = app.starlette()
        async with routes.router.lifespan_context(routes):
            self._routes = routes
            try:
                yield
            finally:
                self._routes = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            raise ValueError(f"the query routes answer http, not {scope['type']}: mount them in an app")
        answer = self._routes or failure(moving("this instance does not run (yet, or any more)"))
        await answer(scope, receive, send)
