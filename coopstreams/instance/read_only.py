"""Reads the stores of this process without HTTP: the keys that this instance owns, as
Python values.

Invariant: as over HTTP, only committed state is read; None means that this instance
owns the key and has no row of it.
Source: Kafka Streams `KafkaStreams.store`, `ReadOnlyKeyValueStore`,
`ReadOnlyWindowStore`, `ReadOnlySessionStore`.
"""

from __future__ import annotations

from typing import Any

from coopstreams.query.backend import Backend, StoreInfo
from coopstreams.query.local_reads import (
    Lookup,
    Views,
    instance_to_ask,
    key_rows,
)
from coopstreams.query.parameters import FAR
from coopstreams.query.problems import bad_request, not_owner
from coopstreams.query.router import KeyLocation, locate, owner_of
from coopstreams.query.scan import rows_of
from coopstreams.topology.kept_headers import split_headers
from coopstreams.topology.row_versions import latest_value, versions_of
from coopstreams.topology.serdes import Windowed


class ReadOnlyStore:
    """A store of a running instance. Thread-safe; reads block on the disk.

    Raises (each method):
        QueryError: NOT_OWNER: another instance has the key, `details` has its id and
        URL (None: it has no URL); TASK_MOVING (`retryable`): no instance can answer
        now; WRONG_KIND: the store is of another kind.
    """

    def __init__(self, backend: Backend, store: StoreInfo) -> None:
        self._backend = backend
        self._store = store

    def get(self, key: Any) -> Any:
        """Return the value of a key, in a versioned store the latest; None: the key has
        no row.
        """
        self._expect("key_value", "versioned", "global")
        data = self._store.key.serialize(key)
        store = self._store
        at = locate(store, data) if store.kind == "global" else self._located(data)
        with Views(self._backend) as views:
            wanted = [Lookup("", data, at)]
            [(*_, row)] = key_rows(self._backend, views, store, wanted)
        if row is None:
            return None
        if self._store.kind == "versioned":
            return latest_value(versions_of(self._store.value).deserialize(row[0]))
        if self._store.headers:
            return self._store.value.deserialize(split_headers(row[0])[1])
        return self._store.value.deserialize(row[0])

    def fetch(
        self,
        key: Any,
        start_ms: int = 0,
        end_ms: int = FAR,
    ) -> list[tuple[Windowed[Any], Any]]:
        """Return the windows of a key that start within start_ms..end_ms, or its
        sessions that overlap that range; ascending.

        Shape: both bounds are inclusive; each entry is a window of the key, and its
        value.
        """
        self._expect("window", "session")
        data = self._store.key.serialize(key)
        at = self._located(data)
        with Views(self._backend) as views:
            view, _ = views.of(self._store, at)
            rows = [row for _, row in rows_of(view.store, data, start_ms, end_ms)]
        assert self._store.row_key is not None
        return [
            (
                self._store.row_key.deserialize(row.key),
                self._store.value.deserialize(row.value),
            )
            for row in rows
        ]

    def _located(self, key: bytes) -> KeyLocation:
        """Return where a key of this instance is.

        Over HTTP, an owner without an address may get one soon, so the request is to be
        retried. Here NOT_OWNER is raised at once, because the key is not this
        instance's.
        """
        at = locate(self._store, key)
        placement = self._backend.placement()
        owner = None if placement.waits else owner_of(placement, self._store, at)
        if (
            owner is not None
            and owner.instance.url is None
            and owner.instance.id != placement.here
        ):
            raise not_owner(owner.instance.id, None)
        instance_to_ask(placement, self._store, at, "local")
        return at

    def _expect(self, *kinds: str) -> None:
        if self._store.kind not in kinds:
            other = "fetch" if "key_value" in kinds else "get"
            raise bad_request(
                "WRONG_KIND",
                f"{self._store.name} is a {self._store.kind} store: use {other}",
            )
