"""A blocking client and one for asyncio, for interactive queries of a running
application. Any instance may be asked: it forwards to the owner of the key.

    with QueryClient("http://localhost:8080") as queries:
        queries.get("counts", "be")            # Found(value=2, ...), or None
        for entry in queries.range("counts", prefix="t"): ...

    async with AsyncQueryClient("http://localhost:8080") as queries:
        await queries.get("counts", "be")
        async for entry in queries.range("counts", prefix="t"): ...

The clients only fetch and wait. `client_requests` decides what to fetch and how long to
wait, and reads the answers.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterator,
    Sequence,
)
from typing import Any, Self, TypeVar

import httpx

from coopstreams.query.certificates import trusting_the_system
from coopstreams.query.client_requests import (
    LATEST_MS,
    EntryFound,
    Found,
    NoAnswer,
    Post,
    Requests,
    Steps,
    VersionFound,
    WindowFound,
)
from coopstreams.topology.errors import QueryError

T = TypeVar("T")


class _Client:
    """The constructor that both clients share."""

    def __init__(
        self,
        url: str,
        *,
        deadline_s: float = 30.0,
        timeout_s: float = 15.0,
        on_wait: Callable[[QueryError], None] | None = None,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Make a client, which connects with its first query.

        `on_wait` is called at most once a query, with the error of its first retry.
        `token` is one of the application's `http.token.read` (or `…operate`, for
        `status`). `tls` has the authorities that check an https URL, and the
        certificate that this client shows; None: the system's, and no certificate.
        """
        self._requests = Requests(url, deadline_s, on_wait)
        # Without TLS no authorities are read: that takes a tenth of a second. httpx
        # alone would read those of certifi.
        verify = tls or (trusting_the_system() if url.startswith("https:") else False)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._connect(
            trust_env=False,
            timeout=timeout_s,
            headers=headers,
            verify=verify,
        )

    def _connect(self, **options: Any) -> None:
        """Make the HTTP client."""
        raise NotImplementedError


class QueryClient(_Client):
    """A blocking client for queries over HTTP. Thread-safe.

    A key is given as a Python value; bytes are a raw key. A value comes as its JSON:
    that of a dataclass is a dict.
    """

    def get(
        self,
        store: str,
        key: Any,
        *,
        max_staleness_ms: int | None = None,
    ) -> Found | None:
        """Return the value of a key, or None if there is none.

        `max_staleness_ms`, here and in the other methods: if the owner of a key does
        not answer, a standby may whose rows were up to date so long ago. None: only the
        owner.

        Raises:
            QueryError: unknown store or unparsable key, or no instance could answer
                before the deadline.
        """
        return self._do(self._requests.get(store, key, max_staleness_ms))

    def get_many(
        self,
        store: str,
        keys: Sequence[Any],
        *,
        max_staleness_ms: int | None = None,
    ) -> list[Found | None]:
        """Return the values of several keys, in their order; None for a key without a
        row.
        """
        return self._do(self._requests.get_many(store, keys, max_staleness_ms))

    def windows(
        self,
        store: str,
        key: Any,
        start_ms: int = 0,
        end_ms: int = LATEST_MS,
        limit: int = 100_000,
        *,
        max_staleness_ms: int | None = None,
    ) -> list[WindowFound]:
        """Return the windows of a key that start within start_ms..end_ms, both
        inclusive, ascending.
        """
        return self._do(
            self._requests.timed(
                "windows", store, key, start_ms, end_ms, limit, max_staleness_ms
            )
        )

    def sessions(
        self,
        store: str,
        key: Any,
        start_ms: int = 0,
        end_ms: int = LATEST_MS,
        limit: int = 100_000,
        *,
        max_staleness_ms: int | None = None,
    ) -> list[WindowFound]:
        """Return the sessions of a key that overlap start_ms..end_ms, both inclusive,
        ascending.
        """
        return self._do(
            self._requests.timed(
                "sessions", store, key, start_ms, end_ms, limit, max_staleness_ms
            )
        )

    def versions(
        self,
        store: str,
        key: Any,
        start_ms: int = 0,
        end_ms: int = LATEST_MS,
    ) -> list[VersionFound]:
        """Return the versions of a key valid at some moment of start_ms..end_ms, both
        inclusive, ascending.

        Deletions are left out, and so are versions that ended before the history that
        the table keeps.

        Raises:
            QueryError: FORGOTTEN: start_ms..end_ms lies before the history that is
                kept.
        """
        return self._do(self._requests.versions(store, key, start_ms, end_ms))

    def as_of(
        self,
        store: str,
        key: Any,
        moment_ms: int,
    ) -> VersionFound | None:
        """Return the version of a key that was valid at a moment, None if there was
        none.

        Raises:
            QueryError: FORGOTTEN: the moment lies before the history that is kept.
        """
        return self._do(self._requests.as_of(store, key, moment_ms))

    def range(
        self,
        store: str,
        first: Any = None,
        last: Any = None,
        *,
        prefix: str | bytes | None = None,
        reverse: bool = False,
        page: int = 1000,
        max_staleness_ms: int | None = None,
    ) -> Iterator[EntryFound]:
        """Yield the entries first..last, both inclusive, of all instances, in the order
        of the serialised keys.

        Pages are fetched as needed.
        """
        found = self._do(
            self._requests.range(
                store, first, last, prefix, reverse, page, max_staleness_ms
            )
        )
        yield from found.entries
        while found.rest is not None:
            found = self._do(self._requests.page(store, found.rest))
            yield from found.entries

    def stores(self) -> list[dict[str, Any]]:
        """Return the stores of the application."""
        return self._do(self._requests.stores())

    def metadata(self) -> dict[str, Any]:
        """Return the instances with their tasks and key ranges."""
        return self._do(self._requests.ask("/v1/metadata"))

    def owner(self, store: str, key: Any) -> dict[str, Any]:
        """Return the partition and owner of a key; `owner` is None while the key's task
        moves.
        """
        return self._do(self._requests.owner(store, key))

    def status(self) -> dict[str, Any]:
        """Return the status of the instances."""
        return self._do(self._requests.ask("/v1/status"))

    def pause(self) -> None:
        """Pause the processing of the instance at this URL, and of no other. This needs
        the token `http.token.operate`.
        """
        self._do(self._requests.ask("/v1/pause", post=True))

    def resume(self) -> None:
        """Resume the processing of the instance at this URL."""
        self._do(self._requests.ask("/v1/resume", post=True))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, **options: Any) -> None:
        self._client = httpx.Client(**options)

    def _do(self, steps: Steps[T]) -> T:
        came: httpx.Response | NoAnswer | None = None
        while True:
            try:
                step = steps.send(came)
            except StopIteration as end:
                result: T = end.value
                return result
            if not isinstance(step, str):
                time.sleep(step)
                came = None
                continue
            try:
                came = self._client.request(_method(step), step)
            except (httpx.TransportError, httpx.InvalidURL) as error:
                came = error


class AsyncQueryClient(_Client):
    """`QueryClient` for asyncio: the same methods, as coroutines. Any task of one event
    loop may call them.
    """

    async def get(
        self,
        store: str,
        key: Any,
        *,
        max_staleness_ms: int | None = None,
    ) -> Found | None:
        """Return the value of a key, or None if there is none."""
        return await self._do(self._requests.get(store, key, max_staleness_ms))

    async def get_many(
        self,
        store: str,
        keys: Sequence[Any],
        *,
        max_staleness_ms: int | None = None,
    ) -> list[Found | None]:
        """Return the values of several keys, in their order; None for a key without a
        row.
        """
        return await self._do(self._requests.get_many(store, keys, max_staleness_ms))

    async def windows(
        self,
        store: str,
        key: Any,
        start_ms: int = 0,
        end_ms: int = LATEST_MS,
        limit: int = 100_000,
        *,
        max_staleness_ms: int | None = None,
    ) -> list[WindowFound]:
        """Return the windows of a key that start within start_ms..end_ms, both
        inclusive, ascending.
        """
        return await self._do(
            self._requests.timed(
                "windows", store, key, start_ms, end_ms, limit, max_staleness_ms
            )
        )

    async def sessions(
        self,
        store: str,
        key: Any,
        start_ms: int = 0,
        end_ms: int = LATEST_MS,
        limit: int = 100_000,
        *,
        max_staleness_ms: int | None = None,
    ) -> list[WindowFound]:
        """Return the sessions of a key that overlap start_ms..end_ms, both inclusive,
        ascending.
        """
        return await self._do(
            self._requests.timed(
                "sessions", store, key, start_ms, end_ms, limit, max_staleness_ms
            )
        )

    async def versions(
        self,
        store: str,
        key: Any,
        start_ms: int = 0,
        end_ms: int = LATEST_MS,
    ) -> list[VersionFound]:
        """Return the versions of a key valid at some moment of start_ms..end_ms, both
        inclusive, ascending.
        """
        return await self._do(self._requests.versions(store, key, start_ms, end_ms))

    async def as_of(
        self,
        store: str,
        key: Any,
        moment_ms: int,
    ) -> VersionFound | None:
        """Return the version of a key that was valid at a moment, None if there was
        none.
        """
        return await self._do(self._requests.as_of(store, key, moment_ms))

    async def range(
        self,
        store: str,
        first: Any = None,
        last: Any = None,
        *,
        prefix: str | bytes | None = None,
        reverse: bool = False,
        page: int = 1000,
        max_staleness_ms: int | None = None,
    ) -> AsyncIterator[EntryFound]:
        """Yield the entries first..last, both inclusive, of all instances, in the order
        of the serialised keys.
        """
        found = await self._do(
            self._requests.range(
                store, first, last, prefix, reverse, page, max_staleness_ms
            )
        )
        for entry in found.entries:
            yield entry
        while found.rest is not None:
            found = await self._do(self._requests.page(store, found.rest))
            for entry in found.entries:
                yield entry

    async def stores(self) -> list[dict[str, Any]]:
        """Return the stores of the application."""
        return await self._do(self._requests.stores())

    async def metadata(self) -> dict[str, Any]:
        """Return the instances with their tasks and key ranges."""
        return await self._do(self._requests.ask("/v1/metadata"))

    async def owner(self, store: str, key: Any) -> dict[str, Any]:
        """Return the partition and owner of a key; `owner` is None while the key's task
        moves.
        """
        return await self._do(self._requests.owner(store, key))

    async def status(self) -> dict[str, Any]:
        """Return the status of the instances."""
        return await self._do(self._requests.ask("/v1/status"))

    async def pause(self) -> None:
        """Pause the processing of the instance at this URL, and of no other. This needs
        the token `http.token.operate`.
        """
        await self._do(self._requests.ask("/v1/pause", post=True))

    async def resume(self) -> None:
        """Resume the processing of the instance at this URL."""
        await self._do(self._requests.ask("/v1/resume", post=True))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _connect(self, **options: Any) -> None:
        self._client = httpx.AsyncClient(**options)

    async def _do(self, steps: Steps[T]) -> T:
        came: httpx.Response | NoAnswer | None = None
        while True:
            try:
                step = steps.send(came)
            except StopIteration as end:
                result: T = end.value
                return result
            if not isinstance(step, str):
                await asyncio.sleep(step)
                came = None
                continue
            try:
                came = await self._client.request(_method(step), step)
            except (httpx.TransportError, httpx.InvalidURL) as error:
                came = error


def _method(step: str) -> str:
    return "POST" if isinstance(step, Post) else "GET"
