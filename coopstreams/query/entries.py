"""The JSON form of a store's row: its key, its value, and its window if it has one.
Pure.

Invariant: a shown window is the operator's. A window that never ends has the end null,
not the largest timestamp. A key that its serde cannot read is shown too: keys are
stored as the bytes that a topic had, and other rows do not depend on them.
"""

from __future__ import annotations

from typing import Any

from coopstreams.query.backend import StoreInfo
from coopstreams.query.formats import (
    show_bytes,
    show_headers,
    show_key,
    show_value,
    to_json,
)
from coopstreams.query.problems import unreadable
from coopstreams.query.scan import plain_key
from coopstreams.state.views import StoredRow
from coopstreams.topology import serdes
from coopstreams.topology.errors import QueryError, SerdeError
from coopstreams.topology.kept_headers import split_headers
from coopstreams.topology.row_versions import Version, latest_value, versions_of
from coopstreams.topology.windows import FOREVER_MS


def shown(store: StoreInfo, row: StoredRow, partition: int) -> bytes | None:
    """Return a row as JSON; None if the latest version of a versioned row is a
    deletion.

    Shape: a key that cannot be read is `base64:...`; then the field `key_error` says
    why.

    Raises:
        QueryError: UNREADABLE: the store's serde cannot read the value, or the schema
        registry does not answer.
    """
    stored = plain_key(store.kind, row.key)
    unread = {}
    try:
        key = show_key(store.key, stored)
    except QueryError as error:
        if error.retryable:
            raise
        key = show_bytes(stored)
        unread = {"key_error": str(error)}
    where = f"the value of key {key!r} in {store.name}"
    value = row_value(store, row.value, where)
    if value is None:
        return None
    entry = {
        "key": key,
        **unread,
        "value": value[0],
        **row_headers(store, row.value),
        "timestamp": row.timestamp,
        "partition": None if store.kind == "global" else partition,
    }
    if store.row_key is not None:
        entry["window"] = window_of(store, row.key)
    return to_json(entry, where)


def row_value(store: StoreInfo, data: bytes, where: str) -> tuple[Any] | None:
    """Return the value of a row for JSON, which may be null.

    Of a versioned store it is the latest version's; None if that is a deletion.
    """
    if store.headers:
        return (show_value(store.value, split_headers(data)[1], where),)
    if store.kind != "versioned":
        return (show_value(store.value, data, where),)
    latest = latest_value(history_of(data, where))
    return None if latest is None else (show_value(store.value, latest, where),)


def row_headers(store: StoreInfo, data: bytes) -> dict[str, Any]:
    """Return the field of a row's headers; empty if the store keeps none."""
    return {"headers": show_headers(split_headers(data)[0])} if store.headers else {}


def history_of(data: bytes, where: str) -> list[Version]:
    """Return the versions of a row, their values as bytes."""
    try:
        return versions_of(serdes.raw).deserialize(data)
    except SerdeError as error:
        raise unreadable(f"{where} cannot be read: {error}", error) from error


def window_of(store: StoreInfo, stored: bytes) -> dict[str, int | None]:
    """Return the window of a stored key, which need not be readable; its end is None if
    it never ends.
    """
    assert store.row_key is not None
    assert store.row_key.around is not None
    window = store.row_key.around(serdes.raw).deserialize(stored)
    return {
        "start": window.start_ms,
        "end": None if window.end_ms >= FOREVER_MS else window.end_ms,
    }
