"""The errors of queries, which travel as JSON.

    400  BAD_KEY, BAD_PARAMETER, WRONG_KIND   the request cannot be parsed, or does not fit this kind of store
    401  UNAUTHORIZED                         no token, or one that the application does not know
    403  FORBIDDEN                            the token of another role
    404  KEY_NOT_FOUND                        only from the owner of the key, whose range was open during the whole read
    404  UNKNOWN_STORE, UNKNOWN_PATH
    405  METHOD_NOT_ALLOWED                   the header `allow` has those that are
    410  FORGOTTEN                            the time lies before the history that a versioned store keeps
    413  TOO_LARGE                            the values of several keys: ask for fewer keys at a time
    421  NOT_OWNER                            `local=true` at another instance; `owner` and `url` name the owner
    500  UNREADABLE, INTERNAL                 stored bytes that the serde cannot read, or a bug
    503  TASK_MOVING                          no instance can prove that it owns the key: ask again
    503  UNREADABLE                           the schema registry does not answer: ask again
    503  TOO_MANY_CONNECTIONS                 ask again, or close some
    503  TOO_MANY_STREAMS                     close a page that watches this instance, or watch another one
    504  TIMED_OUT                            ask again, or ask for less

Invariant: `retryable` means that the same request may succeed later without any
intervention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from coopstreams.topology.errors import QueryError
from coopstreams.topology.schemas import registry_is_away

RETRY_AFTER_MS = 200
"""The pause before a retry, unless the error names another one."""


def bad_request(code: str, message: str) -> QueryError:
    """Return the error for a request that can never succeed."""
    return QueryError(code, message, status=400)


def unknown_path(message: str) -> QueryError:
    """Return the error for a path that does not exist."""
    return QueryError(
        "UNKNOWN_PATH",
        f"{message}: see /openapi.json for the paths",
        status=404,
    )


def unknown_store(name: str, names: list[str]) -> QueryError:
    """Return the error for a store that the topology does not have."""
    return QueryError(
        "UNKNOWN_STORE",
        f'no store "{name}" in this topology; it has: {", ".join(sorted(names)) or "none"}',
        status=404,
    )


def key_not_found(
    store: str,
    key: str,
    details: Mapping[str, Any],
    misplaced: Sequence[str] = (),
) -> QueryError:
    """Return the owner's error that it has no such key. `misplaced`: see `StoreInfo`."""
    message = f'store {store} has no key "{key}"{elsewhere(misplaced)}'
    return QueryError("KEY_NOT_FOUND", message, status=404, details=details)


def elsewhere(misplaced: Sequence[str]) -> str:
    """Return the end of the sentence "key not found" if the key may be in another
    partition, else nothing.
    """
    if not misplaced:
        return ""
    return (
        f" in the partition that murmur2 gives it. It may be in another one: producers of {', '.join(misplaced)} "
        "choose partitions in another way (partitioner=murmur2_random is right). A query by range finds it"
    )


def forgotten(
    store: str,
    key: str,
    last: int,
    oldest: int,
) -> QueryError:
    """Return the owner's error that the moment `last` lies before its history, which
    begins at `oldest`.
    """
    message = (
        f'store {store} does not know any more what "{key}" was at {last}: its history begins at {oldest}, and the row '
        "has changed since"
    )
    return QueryError("FORGOTTEN", message, status=410, details={"known_since": oldest})


def too_large(store: str, most: int) -> QueryError:
    """Return the error for several keys whose values exceed the size of an answer. A
    request for one key never gets it.
    """
    message = f"the values of these keys of {store} are more than {most >> 20} MiB together: ask for fewer at a time"
    return QueryError("TOO_LARGE", message, status=413)


def not_owner(owner: str, url: str | None) -> QueryError:
    """Return the error for a request with `local=true` if another instance owns the
    key.
    """
    ask = (
        "ask it, or leave out local=true"
        if url
        else "it serves no queries: give it http.listen or application.server"
    )
    return QueryError(
        "NOT_OWNER",
        f"instance {owner} owns the key; {ask}",
        status=421,
        details={"owner": owner, "url": url},
    )


def moving(message: str, retry_after_ms: int = RETRY_AFTER_MS) -> QueryError:
    """Return the error for a key or range that no instance can answer for now."""
    return _unavailable("TASK_MOVING", message, retry_after_ms)


def timed_out(message: str) -> QueryError:
    """Return the error for an answer that took too long."""
    return QueryError(
        "TIMED_OUT",
        message,
        status=504,
        retryable=True,
        retry_after_ms=RETRY_AFTER_MS,
    )


def too_many(connections: int) -> QueryError:
    """Return the error for a connection beyond the limit."""
    message = f"{connections} connections are open: ask again, and close them when they are not needed"
    return _unavailable("TOO_MANY_CONNECTIONS", message, 1000)


def head_too_long(most_bytes: int, most_lines: int) -> QueryError:
    """Return the error for a request whose head is longer than allowed."""
    message = (
        f"the request line and the headers may have {most_bytes >> 10} KiB in {most_lines} lines: ask for fewer keys "
        "at a time"
    )
    return QueryError("HEAD_TOO_LONG", message, status=431)


def too_many_streams(most: int) -> QueryError:
    """Return the error for a stream of the status beyond the limit."""
    message = f"{most} pages watch this instance already: close one, or open the page of another instance"
    return _unavailable("TOO_MANY_STREAMS", message, 5000)


def unreadable(message: str, why: BaseException) -> QueryError:
    """Return the error for bytes that cannot be read, or shown as JSON; retryable if
    the schema registry does not answer.
    """
    if registry_is_away(why):
        return _unavailable("UNREADABLE", message, 1000)
    return QueryError("UNREADABLE", message, status=500)


def body_of(error: QueryError) -> bytes:
    """Return the JSON of an error."""
    body: dict[str, Any] = {
        "error": error.code,
        "message": str(error),
        "retryable": error.retryable,
    }
    if error.retry_after_ms is not None:
        body["retry_after_ms"] = error.retry_after_ms
    return orjson.dumps(body | dict(error.details))


def headers_of(error: QueryError) -> dict[str, str]:
    """Return the headers that go with the body of an error."""
    headers = {}
    if error.retry_after_ms is not None:
        headers["retry-after"] = str(max(1, -(-error.retry_after_ms // 1000)))
    if error.code == "UNAUTHORIZED":
        headers["www-authenticate"] = "Bearer"
    return headers


def internal(error: Exception) -> QueryError:
    """Return the error for an unexpected exception."""
    return QueryError("INTERNAL", f"{type(error).__name__}: {error}", status=500)


def error_of(status: int, body: bytes) -> QueryError:
    """Return the error that the body of a response carries; INTERNAL if it carries
    none.

    A proxy's body carries none; its status 502, 503 or 504 says that the server behind
    it does not answer now.
    """
    try:
        fields = orjson.loads(body)
        orjson.dumps(fields)  # it reads what is nested more deeply than it writes
        code = str(fields.pop("error"))
        message = str(fields.pop("message"))
        retryable = bool(fields.pop("retryable"))
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return QueryError(
            "INTERNAL",
            f"HTTP status {status} with a body that is not ours: {body[:200]!r}",
            status=status,
            retryable=status in (502, 503, 504),
        )
    wait_ms = fields.pop("retry_after_ms", None)
    return QueryError(
        code,
        message,
        status=status,
        retryable=retryable,
        retry_after_ms=wait_ms if type(wait_ms) is int and wait_ms >= 0 else None,
        details=fields,
    )


def _unavailable(
    code: str,
    message: str,
    retry_after_ms: int,
) -> QueryError:
    return QueryError(
        code,
        message,
        status=503,
        retryable=True,
        retry_after_ms=retry_after_ms,
    )
