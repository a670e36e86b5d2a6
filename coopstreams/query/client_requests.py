"""The requests of the query clients: their URLs, their retries, and the reading of the
answers. No I/O.

A request is a generator. It yields a URL to get (or to post to), or the seconds to
wait. The client sends it the response or the error, and it returns the result. So the
blocking client and the one for asyncio are two loops that fetch and wait.

Invariant: None means that the owner of the key has no such key. Transient failures (a
task moves, an instance restarts) are retried for `deadline_s`, and then raised.
Relies on: `paths` (the URLs), `problems` (which errors are `retryable`).
"""

from __future__ import annotations

import base64
import time
from collections.abc import (
    Callable,
    Generator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, fields
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

import httpx
import orjson

from coopstreams.query.paths import (
    STALE,
    key_batches,
    keys_path,
    path_text,
    store_path,
)
from coopstreams.query.problems import bad_request, error_of, moving
from coopstreams.topology.errors import QueryError

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0

LATEST_MS = (1 << 63) - 1
"""The largest timestamp."""

MOST_ENTRIES = 100_000
"""The most entries that a request may ask for."""

AS_JSON = ("json", "avro", "protobuf")
"""The beginnings of the names of serdes whose keys are given as JSON: see `formats`."""

T = TypeVar("T")

NoAnswer: TypeAlias = httpx.TransportError | httpx.InvalidURL

Steps: TypeAlias = Generator[str | float, httpx.Response | NoAnswer | None, T]
"""A request: it yields a URL or seconds, is sent the response or the error of the URL,
None after the seconds, and returns the result.
"""


class Post(str):
    """A URL that is requested with POST instead of GET."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Standby:
    """How far a standby is behind. `position`: the next changelog offset of the store
    that it reads. `lag`: the changelog records behind that, of all key ranges.
    `staleness_ms`: how long ago its rows were known to be those of the owner.
    """

    position: int
    lag: int
    staleness_ms: int


@dataclass(frozen=True, slots=True)
class Found:
    """The value of a key, and its owner. `timestamp`: that of the row, in ms. `owner`:
    the id of the instance that answered. `epoch`: the epoch of its task. `lag`: the
    records by which the owner was behind, None if unknown.

    Partition, key range and epoch are None for a global table: every instance has all
    of it.
    """

    key: Any
    value: Any
    timestamp: int
    partition: int | None
    key_range: str | None
    owner: str
    epoch: int | None
    lag: int | None
    standby: Standby | None = None
    """How far the standby is behind that answered for the owner; None: the owner
    answered.
    """


@dataclass(frozen=True, slots=True)
class WindowFound:
    """One window of a key, or one session. Units: ms since the epoch.

    Shape: `end` is exclusive for a window, inclusive for a session; None: it never
    ends.
    """

    start: int
    end: int | None
    value: Any
    timestamp: int

    @property
    def window(self) -> tuple[int, int | None]:
        """The start and the end (ms), in the form of `EntryFound.window`. The end is
        None if the window never ends.
        """
        return self.start, self.end


@dataclass(frozen=True, slots=True)
class EntryFound:
    """An entry of a range query.

    Shape: `window` is (start, end) in window and session stores; `partition` is None in
    a global table. A key that the store's serde cannot read is "base64:..."; then
    `key_error` says why.
    """

    key: Any
    value: Any
    timestamp: int
    partition: int | None
    window: tuple[int, int | None] | None = None
    key_error: str | None = None

    @property
    def start(self) -> int | None:
        """The start of the window or session; None: the store has none."""
        return None if self.window is None else self.window[0]

    @property
    def end(self) -> int | None:
        """The end of the window or session; None: the store has no windows, or the
        window never ends.
        """
        return None if self.window is None else self.window[1]


@dataclass(frozen=True, slots=True)
class VersionFound:
    """A version of a row of a versioned table, valid while `since <= moment < until`;
    `until` None: still valid.

    Units: ms since the epoch.
    """

    since: int
    until: int | None
    value: Any


@dataclass(frozen=True, slots=True)
class RangePage:
    """A page of a range query. `rest`: the parameters of the next page, None after the
    last.
    """

    entries: Sequence[EntryFound]
    rest: Mapping[str, str] | None


class Requests:
    """The requests to one address. `on_wait` is called at most once a request, with the
    error of its first retry.
    """

    def __init__(
        self,
        url: str,
        deadline_s: float,
        on_wait: Callable[[QueryError], None] | None,
    ) -> None:
        self._url = url.rstrip("/")
        self._deadline_s = deadline_s
        self._on_wait = on_wait
        self._key_serdes: dict[str, str] = {}

    def get(
        self,
        store: str,
        key: Any,
        stale_ms: int | None = None,
    ) -> Steps[Found | None]:
        """Return the value of a key, or None if there is none."""
        path = yield from self._key_path(store, "keys", key)
        try:
            answer = yield from self.ask(path + _stale(stale_ms, "?"))
        except QueryError as error:
            if error.code == "KEY_NOT_FOUND":
                return None
            raise
        return _found(answer)

    def get_many(
        self,
        store: str,
        keys: Sequence[Any],
        stale_ms: int | None = None,
    ) -> Steps[list[Found | None]]:
        """Return the values of several keys, in their order; None for a key without a
        row.
        """
        found: list[Found | None] = []
        left = list(key_batches((yield from self._texts(store, keys))))[::-1]
        while left:
            batch = left.pop()
            try:
                answer = yield from self.ask(keys_path(store, batch) + _stale(stale_ms))
            except QueryError as error:
                if error.code != "TOO_LARGE":
                    raise
                half = len(batch) // 2
                left += [batch[half:], batch[:half]]
                continue
            found += [
                _found(entry) if entry["found"] else None for entry in answer["entries"]
            ]
        return found

    def timed(
        self,
        what: str,
        store: str,
        key: Any,
        start_ms: int,
        end_ms: int,
        limit: int,
        stale_ms: int | None = None,
    ) -> Steps[list[WindowFound]]:
        """Return the windows or the sessions of a key, in several answers if they are
        many.

        `what`: `windows` or `sessions`.
        """
        path = yield from self._key_path(store, what, key)
        found: list[WindowFound] = []
        while True:
            most = min(limit - len(found), MOST_ENTRIES)
            answer = yield from self.ask(
                f"{path}?from={start_ms}&to={end_ms}&limit={most}{_stale(stale_ms)}"
            )
            found += [
                WindowFound(one["start"], one["end"], one["value"], one["timestamp"])
                for one in answer[what]
            ]
            if not answer["more"] or len(found) >= limit:
                return found
            last = found[-1]
            start_ms = (
                last.start if what == "windows" or last.end is None else last.end
            ) + 1

    def versions(
        self,
        store: str,
        key: Any,
        start_ms: int,
        end_ms: int,
    ) -> Steps[list[VersionFound]]:
        """Return the versions of a key, in several answers if they are many."""
        path = yield from self._key_path(store, "versions", key)
        found: list[VersionFound] = []
        while True:
            answer = yield from self.ask(f"{path}?from={start_ms}&to={end_ms}")
            found += [
                VersionFound(one["since"], one["until"], one["value"])
                for one in answer["versions"]
            ]
            if not answer["more"]:
                return found
            start_ms = max(answer["known_since"], found[-1].until or 0 if found else 0)

    def as_of(
        self,
        store: str,
        key: Any,
        moment_ms: int,
    ) -> Steps[VersionFound | None]:
        """Return the version of a key that was valid at a moment; None if there was
        none.
        """
        versions = yield from self.versions(store, key, moment_ms, moment_ms)
        return versions[0] if versions else None

    def range(
        self,
        store: str,
        first: Any,
        last: Any,
        prefix: str | bytes | None,
        reverse: bool,
        page: int,
        stale_ms: int | None = None,
    ) -> Steps[RangePage]:
        """Return the first page of a range query."""
        bounds = {
            name: key
            for name, key in (("from", first), ("to", last), ("prefix", prefix))
            if key is not None
        }
        texts = yield from self._texts(store, list(bounds.values()))
        asked = {"limit": str(page), **dict(zip(bounds, texts, strict=True))}
        if stale_ms is not None:
            asked[STALE] = str(stale_ms)
        return (
            yield from self.page(
                store,
                {**asked, "reverse": "true"} if reverse else asked,
            )
        )

    def page(self, store: str, asked: Mapping[str, str]) -> Steps[RangePage]:
        """Return the page of a range query with these parameters."""
        answer = yield from self.ask(
            store_path(store, f"range?{urlencode(asked, quote_via=quote)}")
        )
        entries = []
        for entry in answer["entries"]:
            window = entry.get("window")
            where = None if window is None else (window["start"], window["end"])
            key, value, timestamp, partition = (
                entry[name] for name in ("key", "value", "timestamp", "partition")
            )
            entries.append(
                EntryFound(
                    key,
                    value,
                    timestamp,
                    partition,
                    where,
                    entry.get("key_error"),
                )
            )
        cursor = answer["cursor"]
        return RangePage(
            entries,
            None if cursor is None else {**asked, "cursor": cursor},
        )

    def stores(self) -> Steps[list[dict[str, Any]]]:
        """Return the stores of the application."""
        stores: list[dict[str, Any]] = (yield from self.ask("/v1/stores"))["stores"]
        return stores

    def owner(self, store: str, key: Any) -> Steps[dict[str, Any]]:
        """Return the partition and owner of a key."""
        [text] = yield from self._texts(store, [key])
        return (
            yield from self.ask(f"/v1/metadata/{path_text(store)}/{path_text(text)}")
        )

    def ask(self, path: str, *, post: bool = False) -> Steps[dict[str, Any]]:
        """Return the JSON of a path, by GET or POST; retry transient failures.

        Raises:
            QueryError: the answer is an error, or no answer came before the deadline.
        """
        deadline = time.monotonic() + self._deadline_s
        pause = FIRST_PAUSE_S
        while True:
            try:
                return self._answer(
                    (yield Post(self._url + path) if post else self._url + path)
                )
            except QueryError as error:
                left = deadline - time.monotonic()
                if not error.retryable or left <= 0:
                    raise
                if pause == FIRST_PAUSE_S and self._on_wait is not None:
                    self._on_wait(error)
                wait_s = min(left, max(pause, (error.retry_after_ms or 0) / 1000))
            yield wait_s
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _answer(self, response: httpx.Response | NoAnswer | None) -> dict[str, Any]:
        if isinstance(response, httpx.TransportError):
            if "CERTIFICATE_VERIFY_FAILED" in str(response):
                raise QueryError(
                    "UNTRUSTED",
                    f"{self._url} shows a certificate that is not trusted: {response}. Name its authority "
                    "(http.ssl.ca.location, or `tls=`), and ask by a name that it has",
                    status=0,
                ) from response
            cure = (
                "Does the application run, and is this an address of it? Each process logs where its queries are "
                "answered."
            )
            if self._url.startswith("https:") and isinstance(
                response,
                httpx.ReadError | httpx.RemoteProtocolError,
            ):
                cure += " With http.ssl.client.auth=required it disconnects clients that show no certificate it trusts."
            raise moving(
                f"{self._url} does not answer: {str(response).removesuffix('.') or type(response).__name__}. {cure}"
            ) from response
        if isinstance(response, httpx.InvalidURL):
            raise bad_request(
                "BAD_PARAMETER",
                f"the address of this request cannot be: {response}",
            ) from response
        assert response is not None
        if response.status_code != httpx.codes.OK:
            raise error_of(response.status_code, response.content)
        try:
            answer: dict[str, Any] = orjson.loads(response.content)
        except orjson.JSONDecodeError as error:
            raise error_of(response.status_code, response.content) from error
        return answer

    def _key_path(
        self,
        store: str,
        what: str,
        key: Any,
    ) -> Steps[str]:
        [text] = yield from self._texts(store, [key])
        return store_path(store, f"{what}/{path_text(text)}")

    def _texts(self, store: str, keys: Sequence[Any]) -> Steps[list[str]]:
        """Return keys as texts that the server parses. The text of a str depends on the
        serde of the store's keys.
        """
        serde = (
            (yield from self._key_serde(store))
            if any(isinstance(key, str) for key in keys)
            else ""
        )
        return [_text(key, serde.startswith(AS_JSON)) for key in keys]

    def _key_serde(self, store: str) -> Steps[str]:
        if store not in self._key_serdes:
            try:
                answer = yield from self.ask("/v1/stores?brief=true")
            except QueryError as error:
                if error.code != "BAD_PARAMETER":
                    raise
                answer = yield from self.ask(
                    "/v1/stores?local=true"
                )  # of an older version, which counts
            self._key_serdes = {
                known["name"]: known["key"] for known in answer["stores"]
            }
        return self._key_serdes.get(store, "")


def _text(key: Any, as_json: bool) -> str:
    if isinstance(key, bytes):
        return "base64:" + base64.b64encode(key).decode()
    if isinstance(key, str):
        return orjson.dumps(key).decode() if as_json else key
    number = isinstance(key, int | float) and not isinstance(key, bool)
    return repr(key) if number else orjson.dumps(key).decode()


def _stale(stale_ms: int | None, before: str = "&") -> str:
    """Return the parameter that allows standbys to answer; empty: they must not."""
    return "" if stale_ms is None else f"{before}{STALE}={stale_ms}"


def _found(answer: Mapping[str, Any]) -> Found:
    about = {
        field.name: answer[field.name]
        for field in fields(Found)
        if field.name != "standby"
    }
    standby = answer.get("standby")
    return Found(**about, standby=None if standby is None else Standby(**standby))
