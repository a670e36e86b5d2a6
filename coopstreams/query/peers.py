"""Requests to other instances, each forwarded at most once.

A request names its target instance and the sender's generation; an answer names the
instance that gave it. So an answer is refused if another process has taken over the
address (after a restart, or of another application).

Invariant: if anything keeps the owner from answering, the error is TASK_MOVING, which
is retried, and never "not found".
Invariant: an instance that does not answer delays no request to another one.
Invariant: an answer of another instance costs bounded memory and bounded time on the
event loop, whatever it contains, and never leads to INTERNAL. Reading it raises only
`ValueError`, and what was read can be written into an answer of this instance.
Relies on: `problems` (how an error travels), `range_pages` (a part of a range),
`access` (the tokens).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import (
    Annotated,
    Any,
    Generic,
    TypeVar,
)
from weakref import WeakValueDictionary

import httpx
import msgspec

from coopstreams.query.access import Access
from coopstreams.query.backend import Backend, Peer, Placement
from coopstreams.query.certificates import trusting_the_system
from coopstreams.query.problems import bad_request, error_of, moving
from coopstreams.query.range_pages import PARTS, PartialPage
from coopstreams.topology.errors import QueryError

T = TypeVar("T")

MOST_DATA = 32 << 20
"""The most bytes of an answer with rows. An instance ends its answer at 16 MiB of
values, which JSON makes longer.
"""
MOST_REPORT = 8 << 20
"""The most bytes of an answer about an instance, which is read on the event loop."""
JSON = "application/json"
PACKED = "application/x-msgpack"
"""The media type of the parts of a range query."""

FORWARDED = "x-coopstreams-forwarded"
APPLICATION = "x-coopstreams-application"
TARGET = "x-coopstreams-target"
GENERATION = "x-coopstreams-generation"
INSTANCE = "x-coopstreams-instance"
"""Names of headers: the first four are in a forwarded request, the last is in every
answer.
"""

MOST_AT_ONCE = 128
"""The most requests to one instance at a time; further ones wait in order."""


@dataclass(frozen=True, slots=True)
class Expected(Generic[T]):
    """What another instance has to answer: the media type, the most bytes, and the
    function that reads them.
    """

    media: str
    most: int
    read: Callable[[bytes], T]


class Peers:
    """A client for the other instances of the application. Used on the server's event
    loop.
    """

    def __init__(
        self,
        backend: Backend,
        access: Access,
        connect_s: float,
    ) -> None:
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
        """The semaphore of each instance that is being asked. One frozen instance would
        use up a bound that all instances share.
        """

    async def ask(
        self,
        target: Peer,
        path: str,
        timeout_s: float,
        expected: Expected[T],
    ) -> T:
        """Return what `expected` reads from an instance's answer to `GET path`.

        `timeout_s` limits the wait for a free place among `MOST_AT_ONCE`, then the wait
        for each piece of the answer.

        Raises:
            QueryError: the error that the instance returns; TASK_MOVING if it does not
                answer, if another instance answers, if it does not know the store, or
                if its answer is not what was expected; TOO_LARGE.
        """
        if target.url is None:
            raise moving(f"instance {target.id} {target.unasked}")
        response, body = await self._response(target, path, timeout_s, expected.most)
        found = response.status_code == httpx.codes.OK
        refusal = None if found else error_of(response.status_code, body)
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
            return _read(target, response, body, expected)
        if refusal.code in ("UNAUTHORIZED", "FORBIDDEN"):
            raise moving(
                f"instance {target.id} does not know the token of this one: give all instances the same "
                "http.token.read and http.token.operate (old,new while one replaces another)"
            )
        if refusal.code in ("UNKNOWN_STORE", "UNKNOWN_PATH"):
            raise moving(f"instance {target.id} has another topology: {refusal}")
        if not 400 <= refusal.status <= 599:
            raise moving(
                f"instance {target.id} at {target.url} answers {refusal.status}"
            )
        raise refusal

    async def _response(
        self,
        target: Peer,
        path: str,
        timeout_s: float,
        most: int,
    ) -> tuple[httpx.Response, bytes]:
        """Return a response and its body, which has at most `most` bytes."""
        headers = {
            FORWARDED: "1",
            APPLICATION: self._backend.application,
            TARGET: target.id,
            GENERATION: str(self._backend.placement().generation),
            "accept-encoding": "identity",  # a few bytes of gzip can be any number
            **self._access.headers(path.partition("?")[0]),
        }
        timeout = httpx.Timeout(
            timeout_s,
            connect=min(self._connect_s, timeout_s),
            pool=None,
        )
        line = self._lines.setdefault(target.id, asyncio.Semaphore(MOST_AT_ONCE))
        try:
            async with asyncio.timeout(timeout_s):
                await line.acquire()
            try:
                async with self._client.stream(
                    "GET",
                    f"{target.url}{path}",
                    headers=headers,
                    timeout=timeout,
                ) as response:
                    return response, await _bounded(response, target, most)
            finally:
                line.release()
        except TimeoutError as error:
            raise moving(
                f"instance {target.id} at {target.url} does not answer: {MOST_AT_ONCE} requests wait for it"
            ) from error
        except httpx.InvalidURL as error:
            raise bad_request(
                "BAD_PARAMETER",
                f"the request does not fit into a URL: {error}",
            ) from error
        except httpx.RequestError as error:
            raise moving(
                f"instance {target.id} at {target.url} does not answer: "
                f"{str(error).removesuffix('.') or type(error).__name__}{self._of_certificates(error)}"
            ) from error

    def _of_certificates(self, error: httpx.RequestError) -> str:
        """Return a hint that the other instance may not trust this instance's
        certificate; empty if that is not the cause. A TLS server disconnects without a
        reason.
        """
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


async def _bounded(
    response: httpx.Response,
    target: Peer,
    most: int,
) -> bytes:
    """Return the body of a response as it was sent.

    Raises:
        QueryError: TASK_MOVING: it is compressed, though that was not asked for;
            TOO_LARGE.
    """
    if "content-encoding" in response.headers:
        raise moving(f"instance {target.id} at {target.url} compresses its answers")
    pieces: list[bytes] = []
    size = 0
    async for piece in response.aiter_raw():
        size += len(piece)
        if size > most:
            raise QueryError(
                "TOO_LARGE",
                f"instance {target.id} answers with more than {most >> 20} MiB: ask for fewer keys, or with limit=",
                status=413,
            )
        pieces.append(piece)
    return b"".join(pieces)


def _read(
    target: Peer,
    response: httpx.Response,
    body: bytes,
    expected: Expected[T],
) -> T:
    """Return what `expected` reads from a response.

    Raises:
        QueryError: TASK_MOVING: the response has another form, as in another version.
    """
    media = response.headers.get("content-type", "").partition(";")[0]
    if media != expected.media:
        raise unexpected(target, f"{media or 'no type'} instead of {expected.media}")
    try:
        return expected.read(body)
    except ValueError as error:
        raise unexpected(target, str(error)) from error


def unexpected(target: Peer, problem: str) -> QueryError:
    """Return the error for an answer of another instance that cannot be read."""
    return moving(
        f"instance {target.id} at {target.url} answers what this one cannot read: {problem[:200]}"
    )


def check_hop(
    headers: Mapping[str, str],
    placement: Placement,
    application: str,
) -> None:
    """Raise an error unless a forwarded request is for this instance, and this instance
    knows the sender's generation.

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
            "BAD_PARAMETER",
            f"header {GENERATION} must be a number",
        ) from error
    if generation > placement.generation:
        raise moving(
            f"instance {placement.here} has not heard of generation {generation} yet, it is at {placement.generation}",
            retry_after_ms=50,
        )


class _Entries(msgspec.Struct):
    """The answer of another instance to a query for several keys; its entries are
    passed on as they are.
    """

    entries: list[msgspec.Raw]


class _Instances(msgspec.Struct):
    """The answer of another instance to a request for its status; the entries are
    passed on as they are.
    """

    instances: list[msgspec.Raw]


class _Instance(msgspec.Struct):
    """The one field that is read of an entry of `_Instances`."""

    id: str


class SeenStore(msgspec.Struct):
    """A store in another instance's answer to `/v1/stores`."""

    name: str
    kind: str
    approximate_entries: Annotated[int, msgspec.Meta(ge=0, lt=1 << 50)] = 0
    misplaced: list[str] = []


class _Stores(msgspec.Struct):
    """The answer of another instance to `/v1/stores`."""

    stores: list[SeenStore]


_ANY = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRIES = msgspec.json.Decoder(_Entries)
_INSTANCES = msgspec.json.Decoder(_Instances)
_INSTANCE = msgspec.json.Decoder(_Instance)
_STORES = msgspec.json.Decoder(_Stores)


def entries(count: int) -> Expected[list[bytes]]:
    """Return what a query for `count` keys must answer: as many entries, in order, each
    the bytes of its JSON object, undecoded. Another number is a `ValueError`.
    """
    return Expected(JSON, MOST_DATA, partial(_entries, count=count))


def status_of(instance: str) -> Expected[bytes]:
    """Return what a request for the status of one instance must answer: one entry with
    its id, the bytes of its JSON object. Anything else is a `ValueError`.
    """
    return Expected(JSON, MOST_REPORT, partial(_status, instance=instance))


def _object(body: bytes) -> bytes:
    _decoded(_ANY, body)
    return body


def _entries(body: bytes, count: int) -> list[bytes]:
    found = [_as_object(each) for each in _decoded(_ENTRIES, body).entries]
    if len(found) != count:
        raise ValueError(f"{len(found)} entries for {count} keys")
    return found


def _status(body: bytes, instance: str) -> bytes:
    found = [_as_object(each) for each in _decoded(_INSTANCES, body).instances]
    if [_decoded(_INSTANCE, each).id for each in found] != [instance]:
        raise ValueError("not the status of this one instance")
    return found[0]


def _stores(body: bytes) -> list[SeenStore]:
    stores: list[SeenStore] = _decoded(_STORES, body).stores
    return stores


def part_of(body: bytes) -> PartialPage:
    """Return the part of a range query that these bytes encode; slow if it is large.

    Raises:
        ValueError: the bytes are no such part.
    """
    part: PartialPage = _decoded(PARTS, body)
    for cover in part.covers:
        _ = cover.key_range  # one that cannot be is a ValueError
    for _, _, entry in part.entries:
        _decoded(_ANY, entry)
    if part.more and not part.entries:
        raise ValueError("a part without entries that has more")
    return part


def _as_object(raw: msgspec.Raw) -> bytes:
    """Return the bytes of a JSON object that is a part of another one.

    Raises:
        ValueError: it is no object.
    """
    data = bytes(raw)
    if data[:1] != b"{":
        raise ValueError(f"no JSON object: {data[:40]!r}")
    return data


def _decoded(decoder: Any, data: bytes) -> Any:
    try:
        if isinstance(decoder, msgspec.json.Decoder):
            data.decode()  # what is skipped need not be UTF-8
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error


ROW = Expected(JSON, MOST_DATA, _object)
"""The expected answer for one key, which is sent to the client unchanged."""
STORES = Expected(JSON, MOST_REPORT, _stores)
PART = Expected(PACKED, MOST_DATA, bytes)
"""The expected part of a range query, as bytes that `part_of` reads on another thread.
"""
