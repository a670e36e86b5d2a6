"""A small client for interactive queries of a running application. Any instance will do: it forwards to the owner.

    with QueryClient("http://localhost:8080") as queries:
        queries.get("counts", "be")            # Found(value=2, ...), or None
        for entry in queries.range("counts", prefix="t"): ...

Invariant: None means that the owner of the key has no such key. Transient failures (a task moves, an instance restarts)
are retried until `deadline_s` is over, and raised then.
"""

from __future__ import annotations

import base64
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx
import orjson

from coopstreams.query.paths import key_batches, path_text, store_path
from coopstreams.query.problems import bad_request, error_of, moving
from coopstreams.topology.errors import QueryError

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0

LATEST_MS = (1 << 63) - 1
"""The last timestamp there is."""


@dataclass(frozen=True, slots=True)
class Found:
    """The value of a key, and its owner. `lag`: records the owner was behind, None if unknown.

    Partition, key range and epoch are None for a global table: every instance has all of it.
    """

    key: Any
    value: Any
    timestamp: int
    partition: int | None
    key_range: str | None
    owner: str
    epoch: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class WindowFound:
    """One window of a key, or one session. Units: ms since the epoch.

    Shape: `end` is exclusive for a window, inclusive for a session; None: it never ends.
    """

    start: int
    end: int | None
    value: Any
    timestamp: int


@dataclass(frozen=True, slots=True)
class EntryFound:
    """An entry of a range.

    Shape: `window` is (start, end) in window and session stores; `partition` is None in a global table.
    """

    key: Any
    value: Any
    timestamp: int
    partition: int | None
    window: tuple[int, int | None] | None = None


@dataclass(frozen=True, slots=True)
class VersionFound:
    """A version of a row of a versioned table, valid while `since <= moment < until`; `until` None: still valid.

    Units: ms since the epoch.
    """

    since: int
    until: int | None
    value: Any


class QueryClient:
    """Queries over HTTP. Keys are given as Python values; bytes for raw keys. Any thread may use it."""

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
        """Connect with the first query. `on_wait` is called once a query, with the error of its first retry.

        Shape: `token` is one of the application's `http.token.read` (or `…operate`, for `status`). `tls` says which
        authorities an https URL is checked by, and which certificate this client shows; None: the system's, and none.
        """
        self._url = url.rstrip("/")
        self._on_wait = on_wait
        self._deadline_s = deadline_s
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(
            trust_env=False, timeout=timeout_s, headers=headers, verify=True if tls is None else tls
        )
        self._key_serdes: dict[str, str] = {}

    def get(self, store: str, key: Any) -> Found | None:
        """Return the value of a key, or None if there is none.

        Raises:
            QueryError: unknown store or unparsable key, or no instance could answer before the deadline.
        """
        try:
            answer = self._ask(store_path(store, f"keys/{path_text(self._text(store, key))}"))
        except QueryError as error:
            if error.code == "KEY_NOT_FOUND":
                return None
            raise
        return _found(answer)

    def get_many(self, store: str, keys: Sequence[Any]) -> list[Found | None]:
        """Return the values of several keys, in their order."""
        found: list[Found | None] = []
        for query in key_batches([self._text(store, key) for key in keys]):
            found += [
                _found(entry) if entry["found"] else None
                for entry in self._ask(store_path(store, f"keys?{query}"))["entries"]
            ]
        return found

    def windows(
        self, store: str, key: Any, start_ms: int = 0, end_ms: int = LATEST_MS, limit: int = 100_000
    ) -> list[WindowFound]:
        """Return the windows of a key that start within start_ms..end_ms, both inclusive, ascending."""
        return self._timed("windows", store, key, f"from={start_ms}&to={end_ms}&limit={limit}")

    def sessions(
        self, store: str, key: Any, start_ms: int = 0, end_ms: int = LATEST_MS, limit: int = 100_000
    ) -> list[WindowFound]:
        """Return the sessions of a key that overlap start_ms..end_ms, both inclusive, ascending."""
        return self._timed("sessions", store, key, f"from={start_ms}&to={end_ms}&limit={limit}")

    def versions(self, store: str, key: Any, start_ms: int = 0, end_ms: int = LATEST_MS) -> list[VersionFound]:
        """Return the versions of a key valid at some moment of start_ms..end_ms, both inclusive, ascending.

        Deletions are left out, and so are versions that ended before the history that the table keeps.

        Raises:
            QueryError: FORGOTTEN: the whole time lies before the history that is kept.
        """
        path = store_path(store, f"versions/{path_text(self._text(store, key))}?from={start_ms}&to={end_ms}")
        return [
            VersionFound(version["since"], version["until"], version["value"])
            for version in self._ask(path)["versions"]
        ]

    def as_of(self, store: str, key: Any, moment_ms: int) -> VersionFound | None:
        """Return the version of a key that was valid at a moment, None if there was none.

        Raises:
            QueryError: FORGOTTEN: the moment lies before the history that is kept.
        """
        return next(iter(self.versions(store, key, moment_ms, moment_ms)), None)

    def range(
        self,
        store: str,
        first: Any = None,
        last: Any = None,
        *,
        prefix: str | bytes | None = None,
        reverse: bool = False,
        page: int = 1000,
    ) -> Iterator[EntryFound]:
        """Yield the entries first..last, both inclusive, of all instances, in the order of the serialised keys.

        Pages are fetched as needed.
        """
        asked: dict[str, str] = {"limit": str(page)}
        for name, value in (("from", first), ("to", last), ("prefix", prefix)):
            if value is not None:
                asked[name] = self._text(store, value)
        if reverse:
            asked["reverse"] = "true"
        while True:
            answer = self._ask(store_path(store, f"range?{_query(asked)}"))
            for entry in answer["entries"]:
                window = entry.get("window")
                where = None if window is None else (window["start"], window["end"])
                yield EntryFound(entry["key"], entry["value"], entry["timestamp"], entry["partition"], where)
            if answer["cursor"] is None:
                return
            asked["cursor"] = answer["cursor"]

    def stores(self) -> list[dict[str, Any]]:
        """Return the stores of the application."""
        stores: list[dict[str, Any]] = self._ask("/v1/stores")["stores"]
        return stores

    def metadata(self) -> dict[str, Any]:
        """Return the instances with their tasks and key ranges."""
        return self._ask("/v1/metadata")

    def owner(self, store: str, key: Any) -> dict[str, Any]:
        """Return the partition and owner of a key; `owner` is None while it moves."""
        return self._ask(f"/v1/metadata/{path_text(store)}/{path_text(self._text(store, key))}")

    def status(self) -> dict[str, Any]:
        """Return the status of the instances."""
        return self._ask("/v1/status")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> QueryClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _timed(self, what: str, store: str, key: Any, query: str) -> list[WindowFound]:
        found = self._ask(store_path(store, f"{what}/{path_text(self._text(store, key))}?{query}"))[what]
        return [WindowFound(one["start"], one["end"], one["value"], one["timestamp"]) for one in found]

    def _ask(self, path: str) -> dict[str, Any]:
        deadline = time.monotonic() + self._deadline_s
        pause = FIRST_PAUSE_S
        while True:
            try:
                return self._ask_once(path)
            except QueryError as error:
                left = deadline - time.monotonic()
                if not error.retryable or left <= 0:
                    raise
                if pause == FIRST_PAUSE_S and self._on_wait is not None:
                    self._on_wait(error)
                time.sleep(min(left, max(pause, (error.retry_after_ms or 0) / 1000)))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _ask_once(self, path: str) -> dict[str, Any]:
        try:
            response = self._client.get(self._url + path)
        except httpx.TransportError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise QueryError(
                    "UNTRUSTED",
                    f"{self._url} shows a certificate that is not trusted: {error}. Name its authority "
                    "(http.ssl.ca.location, or `tls=`), and ask by a name that it has",
                    status=0,
                ) from error
            cure = (
                "Does the application run, and is this an address of it? Each process logs where its queries are "
                "answered."
            )
            raise moving(f"{self._url} does not answer: {str(error) or type(error).__name__}. {cure}") from error
        except httpx.InvalidURL as error:
            raise bad_request("BAD_PARAMETER", f"the address of this request cannot be: {error}") from error
        if response.status_code != httpx.codes.OK:
            raise error_of(response.status_code, response.content)
        answer: dict[str, Any] = orjson.loads(response.content)
        return answer

    def _text(self, store: str, key: Any) -> str:
        """Return a key in the form that the server parses; for a str that depends on the serde of the store's keys."""
        if isinstance(key, bytes):
            return "base64:" + base64.b64encode(key).decode()
        if isinstance(key, str):
            return orjson.dumps(key).decode() if self._key_serde(store).startswith("json") else key
        if isinstance(key, int | float):
            return repr(key)
        return orjson.dumps(key).decode()

    def _key_serde(self, store: str) -> str:
        if store not in self._key_serdes:
            self._key_serdes = {known["name"]: known["key"] for known in self._ask("/v1/stores?local=true")["stores"]}
        return self._key_serdes.get(store, "")


def _query(asked: Mapping[str, str]) -> str:
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in asked.items())


def _found(answer: Mapping[str, Any]) -> Found:
    return Found(
        *(answer[name] for name in ("key", "value", "timestamp", "partition", "key_range", "owner", "epoch", "lag"))
    )
