"""Answers to the requests for keys that a front has read, a batch at a time.

    target -> keys -> is this instance the owner? -> rows -> owned all the time? -> JSON

A front calls two methods: `KeyAnswers.of` and `overdue`. They return the bytes to send,
or None if `QueryApp` has to answer: if a key belongs to another instance, or moves, or
if a schema registry must be asked.

Invariant: an answer equals that of `QueryApp`: the query, the rows, the JSON, and the
refusals (`Gate`) come from the same functions.
Invariant: a batch reads a key range by one view, and its ownership is checked after the
last read of the batch.
Relies on: `local_reads` (views and owners), `front` (calls it, on a thread of its own).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import TypeAlias

import orjson

from coopstreams.query.gate import Gate
from coopstreams.query.local_reads import (
    MOST_BYTES,
    KeyRow,
    Views,
    instance_to_ask,
    key_rows,
)
from coopstreams.query.parameters import KeyQuery, key_query, keys_query
from coopstreams.query.peers import INSTANCE, JSON
from coopstreams.query.problems import body_of, headers_of
from coopstreams.query.service import lookups, store_named
from coopstreams.topology.errors import QueryError
from coopstreams.topology.schemas import RegistryNeededError, promptly

KEY = "/v1/stores/{store}/keys/{key}"
KEYS = "/v1/stores/{store}/keys"
"""The routes whose requests `KeyAnswers` answers."""

KeyRequest: TypeAlias = tuple[bytes, bytes | None, float]
"""The target of a request, its header `authorization`, and the seconds that it has
waited.
"""

_Found: TypeAlias = tuple[KeyQuery, list[KeyRow]]
"""A query, and the rows of its keys. It is not yet checked that their ranges were owned
all the time.
"""


class KeyAnswers:
    """The answers of one instance to requests for keys."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def of(self, requests: Sequence[KeyRequest]) -> list[bytes | None]:
        """Return the answers to these requests, as bytes to send; None: `QueryApp` has
        to answer.
        """
        began = time.monotonic()
        with closing(Views(self._gate.backend)) as views:
            found = [
                self._found(target, authorization, views)
                for target, authorization, _ in requests
            ]
            lost = views.lost()
        answers: list[bytes | None] = []
        for (target, _, waited_s), rows in zip(requests, found, strict=True):
            if rows is None or (lost and not isinstance(rows, QueryError)):
                answers.append(None)
            else:
                taken_s = waited_s + time.monotonic() - began
                answers.append(self._answer(target, rows, taken_s))
        return answers

    def overdue(self, requests: Sequence[KeyRequest]) -> list[bytes | None]:
        """Return the answers to requests that have waited longer than allowed. None:
        `QueryApp` has to answer the request.
        """
        late = self._gate.error(TimeoutError(), "")
        return [
            self._answer(target, late, waited_s) for target, _, waited_s in requests
        ]

    def _found(
        self,
        target: bytes,
        authorization: bytes | None,
        views: Views,
    ) -> _Found | QueryError | None:
        """Return the rows of a request, or its error; None: `QueryApp` has to answer."""
        if views.bytes > MOST_BYTES:  # there, a few requests have their rows at a time
            return None
        try:
            return promptly(lambda: self._read(target, authorization, views))
        except RegistryNeededError:  # other requests would wait
            return None
        except Exception as raised:  # noqa: BLE001 the gate logs it
            if not isinstance(raised, QueryError) and views.lost():
                return None
            error = self._gate.error(raised, _named(target))
            return None if error.code == "TASK_MOVING" else error

    def _read(
        self,
        target: bytes,
        authorization: bytes | None,
        views: Views,
    ) -> _Found | None:
        """Return the rows of a request; None: another instance has one of its keys."""
        gate = self._gate
        # The front has looked at the header `Host`.
        shown = None if authorization is None else authorization.decode("latin-1")
        gate.access.check("read", shown, None)
        path, _, query_string = target.partition(b"?")
        store = store_named(gate.backend, path.split(b"/", 4)[3].decode())
        if _route_of(target) == KEYS:
            query = keys_query(store, query_string, forwarded=False)
        else:
            query = key_query(
                "keys",
                store,
                path,
                query_string,
                gate.limits,
                forwarded=False,
            )
        if query.max_staleness_ms is not None:
            return None  # a standby may have to answer
        wanted = lookups(query, gate.limits.max_keys)
        placement = gate.backend.placement()
        for one in wanted:
            if instance_to_ask(placement, store, one.at, query.asked) is not None:
                return None
        return query, key_rows(gate.backend, views, store, wanted)

    def _answer(
        self,
        target: bytes,
        found: _Found | QueryError,
        seconds: float,
    ) -> bytes | None:
        """Return an answer as bytes to send, and count it. None: `QueryApp` has to
        answer, because a schema registry must be asked.
        """
        error = found if isinstance(found, QueryError) else None
        status = 200
        body = b""
        more = ""
        if not isinstance(found, QueryError):
            query, rows = found
            try:
                body = promptly(lambda: _body(query, rows))
            except RegistryNeededError:
                return None
            except Exception as raised:  # noqa: BLE001 the gate logs it
                error = self._gate.error(raised, _named(target))
        if error is not None:
            status = error.status
            body = body_of(error)
            headers = headers_of(error).items()
            more = "".join(f"{name}: {value}\r\n" for name, value in headers)
        self._gate.metrics.answered(_route_of(target), status, seconds)
        head = (
            f"HTTP/1.1 {_STATUS[status]}\r\ndate: {_date(int(time.time()))}\r\n"
            f"content-length: {len(body)}\r\n{more}content-type: {JSON}\r\n"
            f"{INSTANCE}: {self._gate.here}\r\n\r\n"
        )
        return head.encode("latin-1") + body


def _body(query: KeyQuery, rows: Sequence[KeyRow]) -> bytes:
    """Return the JSON of an answer.

    Raises:
        QueryError: KEY_NOT_FOUND, UNREADABLE.
    """
    if not query.many:
        return rows[0].body()
    entries = [orjson.Fragment(row.entry()) for row in rows]
    return orjson.dumps({"store": query.store.name, "entries": entries})


_STATUS = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}


@lru_cache(maxsize=1)
def _date(now_s: int) -> str:
    return formatdate(now_s, usegmt=True)


def _route_of(target: bytes) -> str:
    return KEYS if target.partition(b"?")[0].count(b"/") == 4 else KEY


def _named(target: bytes) -> str:
    return f"GET {target!r}"
