"""Answers requests for keys, a batch at a time.

    target -> store, keys -> is this instance the owner? -> read -> owned all the time?
    -> JSON

Invariant: an answer equals that of `QueryApp`. A request gets None here if its key
belongs to another instance, or moves, or if a schema registry must be asked; `QueryApp`
then answers it.
Invariant: a key range is read by one view a batch, and its ownership is checked after
the last read of the batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import TypeAlias

import orjson

from coopstreams.common.metrics import Metrics
from coopstreams.query.access import Access
from coopstreams.query.asked import Parameters, RequestLimits, how_asked, path_piece
from coopstreams.query.backend import Backend, NotOpen, OpenView, Placement, StoreInfo
from coopstreams.query.local import (
    MOST_BYTES,
    About,
    LocalReader,
    Lookup,
    Row,
    about_global,
    about_of,
    decided,
    entry_of,
    grown,
    point_of,
)
from coopstreams.query.peers import INSTANCE
from coopstreams.query.problems import body_of, headers_of, internal, timed_out
from coopstreams.query.router import Asked, Here
from coopstreams.query.service import keys_of, store_named
from coopstreams.topology.errors import QueryError
from coopstreams.topology.schemas import RegistryNeededError, promptly

log = logging.getLogger(__name__)

KEY = "/v1/stores/{store}/keys/{key}"
KEYS = "/v1/stores/{store}/keys"
"""The routes that are answered here."""

KeyRequest: TypeAlias = tuple[bytes, bytes | None, float]
"""The target of a request, its header `authorization`, and for how long it has waited
(s).
"""


@dataclass(frozen=True, slots=True)
class _Read:
    """The rows of a request, not yet known to be owned all the time."""

    store: StoreInfo
    many: bool
    rows: list[tuple[Lookup, About, Row | None]]

    def body(self) -> bytes:
        """Return the JSON.

        Raises:
            QueryError: KEY_NOT_FOUND, UNREADABLE.
        """
        if not self.many:
            return point_of(self.store, *self.rows[0])
        entries = [orjson.Fragment(entry_of(self.store, *row)) for row in self.rows]
        return orjson.dumps({"store": self.store.name, "entries": entries})


class KeyAnswers:
    """The answers of one instance to requests for keys."""

    def __init__(
        self, backend: Backend, metrics: Metrics, limits: RequestLimits, access: Access
    ) -> None:
        self._backend = backend
        self._metrics = metrics
        self._limits = limits
        self._access = access
        self._local = LocalReader(backend)

    def of(self, requests: Sequence[KeyRequest]) -> list[bytes | None]:
        """Return the answers to some requests, as bytes to send; None: `QueryApp`
        answers.
        """
        began = time.monotonic()
        placement = self._backend.placement()
        with _Views(self._backend, placement.here) as views:
            found = [
                None
                if views.size > MOST_BYTES
                else self._promptly(target, authorization, placement, views)
                for target, authorization, _ in requests
            ]
            lost = views.lost()
        answers = _Answers(placement.here)
        for (target, _, waited_s), read in zip(requests, found, strict=True):
            if read is None or (lost and not isinstance(read, QueryError)):
                answers.sent.append(None)
                continue
            try:
                status = answers.add(read)
            except RegistryNeededError:
                answers.sent.append(None)
                continue
            self._metrics.answered(
                _route_of(target), status, waited_s + time.monotonic() - began
            )
        return answers.sent

    def overdue(self, requests: Sequence[KeyRequest]) -> list[bytes | None]:
        """Return the answers to requests that have waited longer than allowed."""
        answers = _Answers(self._backend.placement().here)
        for target, _, waited_s in requests:
            status = answers.add(
                timed_out(f"no answer within {self._limits.request_s:g} s")
            )
            self._metrics.answered(_route_of(target), status, waited_s)
        return answers.sent

    def _promptly(
        self,
        target: bytes,
        authorization: bytes | None,
        placement: Placement,
        views: _Views,
    ) -> _Read | QueryError | None:
        """Return what `_read` returns; None also if a schema registry must be asked:
        other requests would wait.
        """
        try:
            return promptly(lambda: self._read(target, authorization, placement, views))
        except RegistryNeededError:
            return None

    def _read(
        self,
        target: bytes,
        authorization: bytes | None,
        placement: Placement,
        views: _Views,
    ) -> _Read | QueryError | None:
        """Return the rows of a request, or the error in their place; None: `QueryApp`
        answers.
        """
        try:
            self._access.check(
                "read",
                None if authorization is None else authorization.decode("latin-1"),
                None,  # the front has looked at the header `Host`
            )
            store, texts, asked, many = self._parsed(target)
            wanted = keys_of(store, texts, self._limits.max_keys)
            rows: list[tuple[Lookup, About, Row | None]] = []
            size = 0
            if store.kind == "global":
                table = self._local.global_table(store)
                about = about_global(placement.here)
                for one in wanted:
                    rows.append((one, about, row := table.get(one[1])))
                    size = grown(store, size, row)
                return _Read(store, many, rows)
            if not all(
                isinstance(decided(placement, store, at, asked), Here)
                for _, _, at in wanted
            ):
                return None
            for one in wanted:
                opened = views.of(store, one)
                if opened is None:
                    return None
                view, about = opened
                rows.append((one, about, row := view.store.get(one[1])))
                size = grown(store, size, row)
            views.size += size
            return _Read(store, many, rows)
        except QueryError as error:
            return None if error.code == "TASK_MOVING" else error
        except Exception as error:
            if views.lost():
                return None
            log.exception("GET %r failed", target)
            return internal(error)

    def _parsed(self, target: bytes) -> tuple[StoreInfo, list[str], Asked, bool]:
        """Return store, keys as texts, whether the request may be forwarded, and
        whether it has several keys.
        """
        path, _, query = target.partition(b"?")
        name = path.split(b"/", 4)[3].decode()
        if path.endswith(b"/keys") and path.count(b"/") == 4:
            parameters = Parameters(query, ("local",), many="key")
            store = store_named(self._backend, name)
            return store, parameters.many, how_asked(parameters, forwarded=False), True
        store = store_named(self._backend, name)
        text = path_piece(path, 5)
        return (
            store,
            [text],
            how_asked(Parameters(query, ("local",)), forwarded=False)
            if query
            else "any",
            False,
        )


class _Views:
    """The views of a batch, opened as they are needed and open until its end."""

    def __init__(self, backend: Backend, here: str) -> None:
        self._backend = backend
        self._here = here
        self.size = 0
        """The bytes of the values that were read. When they are many, `QueryApp`
        answers: a few requests at a time.
        """
        self._open: dict[tuple[str, int], list[tuple[OpenView, About]]] = {}
        self._stack = ExitStack()

    def of(self, store: StoreInfo, wanted: Lookup) -> tuple[OpenView, About] | None:
        """Return the view that has a key, and the fields about its owner; None: no open
        task here has it.
        """
        _, _, at = wanted
        opened = self._open.setdefault((store.name, at.partition), [])
        for view, about in opened:
            if at.hash in view.task.key_range:
                return view, about
        found = self._backend.view(store.name, at.partition, at.hash)
        if isinstance(found, NotOpen):
            return None
        self._stack.enter_context(found)
        opened.append((found, about_of(found, self._here)))
        return opened[-1]

    def lost(self) -> bool:
        """Whether the owner of one of the views has changed since it was opened."""
        return not all(
            view.owned() for opened in self._open.values() for view, _ in opened
        )

    def __enter__(self) -> _Views:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class _Answers:
    """The answers of a batch, as bytes to send."""

    def __init__(self, here: str) -> None:
        self.sent: list[bytes | None] = []
        self._date = f"date: {_date(int(time.time()))}\r\n"
        self._same = f"content-type: application/json\r\n{INSTANCE}: {here}\r\n"

    def add(self, read: _Read | QueryError) -> int:
        """Add an answer; return its status.

        Raises:
            RegistryNeededError: a schema registry must be asked, and nothing was added.
        """
        status, body, headers = promptly(lambda: self._told(read))
        self._put(status, body, headers)
        return status

    def _told(self, read: _Read | QueryError) -> tuple[int, bytes, dict[str, str]]:
        """Return the status of an answer, its body and its own headers."""
        try:
            if isinstance(read, _Read):
                return 200, read.body(), {}
            error = read
        except QueryError as raised:
            error = raised
        except Exception as raised:
            log.exception("a row of %s cannot be shown", read)
            error = internal(raised)
        return error.status, body_of(error), headers_of(error)

    def _put(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        more = (
            "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            if headers
            else ""
        )
        head = f"HTTP/1.1 {_STATUS[status]}\r\n{self._date}content-length: {len(body)}\r\n{more}{self._same}\r\n"
        self.sent.append(head.encode("latin-1") + body)


_STATUS = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}


@lru_cache(maxsize=1)
def _date(now_s: int) -> str:
    return formatdate(now_s, usegmt=True)


def _route_of(target: bytes) -> str:
    return KEYS if target.partition(b"?")[0].count(b"/") == 4 else KEY
