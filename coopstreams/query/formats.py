"""Conversion of keys from a URL to stored bytes, and of stored rows to JSON.

    text, raw          the text as it is; raw also as `base64:...`
    int64, float64     a number in decimal; of float64 also the texts `nan`, `inf` and `-inf`
    avro, protobuf,    the JSON text of the key, or `base64:...`
    json_schema
    anything else      the serialised key as text (for json: the JSON text), or `base64:...`; the serde reads and
                       writes it again, so that `{"a": 1}` finds the key that was
                       written as `{"a":1}`

Invariant: the text by which an answer shows a key finds that key again, unless
`key_error` says that the key cannot be read.
Invariant: a key that its serde cannot read is shown in base64. Keys are stored as the
bytes that a topic had, and other rows do not depend on them.
Turned down: guessing a key's type from its text (`007` is a text, a number and invalid
JSON).
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from typing import Any

import msgspec
import orjson

from coopstreams.query.backend import StoreInfo
from coopstreams.query.problems import bad_request, unreadable
from coopstreams.query.scan import plain_key
from coopstreams.state.views import StoredRow
from coopstreams.topology import serdes
from coopstreams.topology.columns import Headers
from coopstreams.topology.errors import QueryError, SerdeError
from coopstreams.topology.kept_headers import split_headers
from coopstreams.topology.row_versions import Version, latest_value, versions_of
from coopstreams.topology.schemas import SchemaSerde, registry_is_away
from coopstreams.topology.serde import shortened
from coopstreams.topology.serdes import Serde
from coopstreams.topology.windows import FOREVER_MS

BASE64 = "base64:"

_WHOLE = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_OPTIONS = orjson.OPT_NON_STR_KEYS


def parse_key(key: Serde[Any], text: str) -> bytes:
    """Return the bytes of a key given as text.

    Raises:
        QueryError: BAD_KEY: the text is no key of this serde; the message shows the
            expected form. UNREADABLE: the schema registry does not answer.
    """
    if key == serdes.text:
        return text.encode()
    if text.startswith(BASE64) and key not in (serdes.int64, serdes.float64):
        data = _from_base64(text)
        return data if key == serdes.raw else _canonical(key, data, text)
    if key == serdes.raw:
        return text.encode()
    if key == serdes.int64:
        if not _WHOLE.fullmatch(text):
            raise bad_key(key, text, "a whole number such as 42")
        return _serialised(key, int(text), text)
    if key == serdes.float64:
        try:
            return _serialised(key, float(text), text)
        except ValueError:
            raise bad_key(key, text, "a number such as 1.5") from None
    return _canonical(key, text.encode(), text)


def parse_prefix(key: Serde[Any], text: str) -> bytes:
    """Return the bytes with which all keys of a prefix begin.

    Raises:
        QueryError: BAD_PARAMETER: the serde does not preserve prefixes of keys.
    """
    if key == serdes.text or (key == serdes.raw and not text.startswith(BASE64)):
        return text.encode()
    if key == serdes.raw:
        return _from_base64(text)
    raise bad_request(
        "BAD_PARAMETER",
        f"prefix is for text and raw keys; this store has {key.name} keys. Use from= and to=",
    )


def show_key(key: Serde[Any], data: bytes) -> Any:
    """Return a stored key as a value for JSON.

    Raises:
        QueryError: UNREADABLE: the serde cannot read the bytes.
    """
    shown = show_value(key, data, "a key")
    return (
        str(shown) if isinstance(shown, float) and not math.isfinite(shown) else shown
    )


def show_value(
    value: Serde[Any],
    data: bytes,
    where: str,
) -> Any:
    """Return a stored value as a value for JSON; `where` names the row in the error.

    Raises:
        QueryError: UNREADABLE: the serde cannot read the bytes.
    """
    if value == serdes.raw:
        return _as_text(data)
    try:
        found = value.deserialize(data)
    except SerdeError as error:
        raise unreadable(f"{where} cannot be read: {error}", error) from error
    return found if value.shown is None else value.shown(found)


def show_bytes(data: bytes) -> str:
    """Return bytes as the text `base64:...`."""
    return BASE64 + base64.b64encode(data).decode()


def show_headers(headers: Headers) -> list[dict[str, str | None]]:
    """Return headers for JSON. A header's value is text, base64 if it is not UTF-8, or
    None if it is null.
    """
    return [
        {"name": name, "value": None if value is None else _as_text(value)}
        for name, value in headers
    ]


def to_json(value: Any, where: str) -> bytes:
    """Return a value as JSON. Dataclasses, dates, enums, msgspec types, sets and
    decimals are converted to JSON types.

    Raises:
        QueryError: UNREADABLE: a part of the value has no form in JSON.
    """
    try:
        return orjson.dumps(value, _builtins, _OPTIONS)
    except TypeError as error:
        raise unreadable(
            f"{where} has no form in JSON: {error.__cause__ or error}",
            error,
        ) from error


def shown(
    store: StoreInfo,
    row: StoredRow,
    partition: int,
) -> bytes | None:
    """Return a row as JSON; None if the row is versioned and its latest version is a
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


def row_value(
    store: StoreInfo,
    data: bytes,
    where: str,
) -> tuple[Any] | None:
    """Return a tuple with the value of a row for JSON, which may be null.

    In a versioned store: the latest version's value; None and no tuple if that version
    is a deletion.
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
    """Return the versions in a row of a versioned store, with their values as bytes.

    Raises:
        QueryError: UNREADABLE.
    """
    try:
        return versions_of(serdes.raw).deserialize(data)
    except SerdeError as error:
        raise unreadable(f"{where} cannot be read: {error}", error) from error


def window_of(store: StoreInfo, stored: bytes) -> dict[str, int | None]:
    """Return the start and the end of the window in a stored key, also if the key
    itself is unreadable. The end is None if the window never ends.
    """
    assert store.row_key is not None
    assert store.row_key.around is not None
    window = store.row_key.around(serdes.raw).deserialize(stored)
    return {
        "start": window.start_ms,
        "end": None if window.end_ms >= FOREVER_MS else window.end_ms,
    }


def _builtins(value: Any) -> Any:
    if hasattr(value, "DESCRIPTOR"):  # a message of Protobuf
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(value, preserving_proto_field_name=True)
    return msgspec.to_builtins(value)


def bad_key(
    key: Serde[Any],
    text: str,
    expected: str,
) -> QueryError:
    """Return the error for a text that is no key of this serde; `expected` says what to
    give.
    """
    shown = text if len(text) <= 60 else text[:60] + "..."
    return bad_request("BAD_KEY", f'"{shown}" is no {key.name} key: give {expected}')


def _as_text(data: bytes) -> str:
    """Return the bytes as text if they are UTF-8 and do not begin with `base64:`, else
    in base64.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return show_bytes(data)
    return show_bytes(data) if text.startswith(BASE64) else text


def _from_base64(text: str) -> bytes:
    digits = text.removeprefix(BASE64)
    try:
        return base64.b64decode(
            digits + "=" * (-len(digits) % 4),
            b"-_" if "-" in digits or "_" in digits else None,
            validate=True,
        )
    except (binascii.Error, ValueError) as error:
        raise bad_request(
            "BAD_KEY",
            f"what follows base64: is no base64 text: {error}",
        ) from error


def _canonical(
    key: Serde[Any],
    data: bytes,
    text: str,
) -> bytes:
    try:
        if isinstance(key, SchemaSerde) and not text.startswith(BASE64):
            return key.serialize(key.read_json(data))
        return key.serialize(key.deserialize(data))
    except SerdeError as error:
        if registry_is_away(error):
            raise unreadable(
                f'the key "{text}" cannot be read: {error}',
                error,
            ) from error
        reason = shortened(str(error.__cause__ or error))
        raise bad_key(
            key,
            text,
            f"the serialised key as text ({reason}), or its bytes as base64:...",
        ) from error


def _serialised(
    key: Serde[Any],
    value: Any,
    text: str,
) -> bytes:
    try:
        return key.serialize(value)
    except SerdeError as error:
        raise bad_key(
            key,
            text,
            f"one that fits: {error.__cause__ or error}",
        ) from error
