"""Requests to other instances, forwarded at most once.

A request names its target instance and the sender's generation; an answer names the instance that gave it. So an answer
is refused if another process has taken over the address (after a restart, or of another application).

Invariant: whatever keeps the owner from answering is TASK_MOVING, which is retried, and never "not found".
Invariant: an instance that does not answer holds up no request to another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from weakref import WeakValueDictionary

import httpx

from coopstreams.query.access import Access
from coopstreams.query.backend import Backend, Peer, Placement
from coopstreams.query.certificates import trusting_the_system
from coopstreams.query.problems import bad_request, error_of, moving

FORWARDED = "x-coopstreams-forwarded"
APPLICATION = "x-coopstreams-application"
TARGET = "x-coopstreams-target"
GENERATION = "x-coopstreams-generation"
INSTANCE = "x-coopstreams-instance"
"""Headers: the first four of a forwarded request, the last of every answer."""

PART_TYPE = "application/x-msgpack"
"""The media type of the parts of a range query."""

MOST_AT_ONCE = 128
"""The most requests to one instance at a time; further ones wait in order."""


class Peers:
    """The other instances of the application. Used on the server's event loop."""

    def __init__(self, backend: Backend, access: Access, connect_s: float) -> None:
        self._backend = backend
        self._access = access
        self._connect_s = connect_s
        self._client = httpx.AsyncClient(
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=50),
            verify=access.certificates.client
            if access.certificates
            else trusting_the_system(),
        )
        self._lines: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By instance, of those that are asked now: a bound for all would let one that is frozen take it up."""

    async def ask(self, target: Peer, path: str, timeout_s: float) -> bytes:
        """Return the body of an instance's answer to `GET path`. The time is for its turn, then for each piece.

        Raises:
            QueryError: the error that the instance returns; TASK_MOVING if it does not answer, if another instance
                answers, or if it does not know the store.
        """
        headers = {
            FORWARDED: "1",
            APPLICATION: self._backend.application,
            TARGET: target.id,
            GENERATION: str(self._backend.placement().generation),
            **self._access.headers(path.partition("?")[0]),
        }
        timeout = httpx.Timeout(
            timeout_s, connect=min(self._connect_s, timeout_s), pool=None
        )
        line = self._lines.setdefault(target.id, asyncio.Semaphore(MOST_AT_ONCE))
        try:
            async with asyncio.timeout(timeout_s):
                await line.acquire()
            try:
                response = await self._client.get(
                    f"{target.url}{path}", headers=headers, timeout=timeout
                )
            finally:
                line.release()
        except TimeoutError as error:
            raise moving(
                f"instance {target.id} at {target.url} does not answer: {MOST_AT_ONCE} requests wait for it"
            ) from error
        except httpx.InvalidURL as error:
            raise bad_request(
                "BAD_PARAMETER", f"the request does not fit into a URL: {error}"
            ) from error
        except httpx.RequestError as error:
            raise moving(
                f"instance {target.id} at {target.url} does not answer: "
                f"{str(error).removesuffix('.') or type(error).__name__}{self._of_certificates(error)}"
            ) from error
        found = response.status_code == httpx.codes.OK
        refusal = None if found else error_of(response.status_code, response.content)
        if (
            refusal is not None and refusal.code == "TOO_MANY_CONNECTIONS"
        ):  # said before it is known who asks for whom
            raise moving(
                f"instance {target.id} at {target.url} takes no more connections: {refusal}"
            )
        if response.headers.get(INSTANCE) != target.id:
            raise moving(
                f"what answers at {target.url} is not instance {target.id}: each instance needs an application.server "
                "of its own, which is no address of a proxy for several"
            )
        if refusal is None:
            return response.content
        if refusal.code in ("UNAUTHORIZED", "FORBIDDEN"):
            raise moving(
                f"instance {target.id} does not know the token of this one: give all instances the same "
                "http.token.read and http.token.operate (old,new while one replaces another)"
            )
        if refusal.code in ("UNKNOWN_STORE", "UNKNOWN_PATH"):
            raise moving(f"instance {target.id} has another topology: {refusal}")
        raise refusal

    def _of_certificates(self, error: httpx.RequestError) -> str:
        """Return what may be wrong with the certificate that this instance shows: a server says it to itself only."""
        certificates = self._access.certificates
        disconnected = isinstance(error, httpx.ReadError | httpx.RemoteProtocolError)
        if certificates is None or not certificates.clients_show or not disconnected:
            return ""
        return (
            ". With http.ssl.client.auth=required it disconnects instances whose certificate "
            "(http.ssl.certificate.location) it does not trust, or which has expired"
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def check_hop(
    headers: Mapping[str, str], placement: Placement, application: str
) -> None:
    """Check that a forwarded request is for this instance, which knows the sender's generation.

    Raises:
        QueryError: TASK_MOVING: the sender retries with a new placement.
    """
    if headers.get(APPLICATION) != application or headers.get(TARGET) != placement.here:
        raise moving(
            f"this is instance {placement.here} of {application}; the request is for {headers.get(TARGET)} of "
            f"{headers.get(APPLICATION)}"
        )
    try:
        generation = int(headers.get(GENERATION, ""))
    except ValueError as error:
        raise bad_request(
            "BAD_PARAMETER", f"header {GENERATION} must be a number"
        ) from error
    if generation > placement.generation:
        raise moving(
            f"instance {placement.here} has not heard of generation {generation} yet, it is at {placement.generation}",
            retry_after_ms=50,
        )
