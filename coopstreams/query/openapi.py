"""The OpenAPI 3.1 description of the HTTP interface. A test compares it to routes and
answers.

The paths are written by hand, and so are the schemas of answers with rows, whose JSON
is assembled as bytes. All other schemas come from the types of the answers
(`status.model`).
Turned down: a framework that derives the paths from annotations (it would add its own
model layer to every answer).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from coopstreams.query.access import role_of
from coopstreams.query.paths import STALE
from coopstreams.status.model import (
    KeyMetadata,
    Metadata,
    Paused,
    Status,
    Stores,
)
from coopstreams.status.reasons import Health
from coopstreams.topology.graph.drawing import Drawing

if TYPE_CHECKING:
    from coopstreams.query.parameters import RequestLimits

Schema = dict[str, Any]

_RETRY = (
    "No instance can answer now: a task moves or is restored, or its owner does not answer. Ask again after "
    "`retry_after_ms`."
)


def description(limits: RequestLimits) -> Schema:
    """Return the OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "coopstreams queries",
            "version": "1",
            "description": "Every instance answers for all: a request is routed by the key's partition, then by its "
            "key hash, and forwarded at most once.",
        },
        "paths": {
            path: _closed(path, operation) for path, operation in _paths(limits).items()
        },
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "`http.token.read`, or `http.token.operate` for status and metrics; an application "
                    "that has none lets everybody ask.",
                }
            },
        },
    }


def _closed(path: str, operation: Schema) -> Schema:
    """Return an operation; if its path needs a token, with the responses 401 and 403."""
    if role_of(path) is None:
        return operation
    refusals = {
        "401": _error("UNAUTHORIZED: no token, or one that is not known"),
        "403": _error(
            "FORBIDDEN: the token of the other role; or a change, and the application has no tokens. UNKNOWN_HOST: "
            "it has none, and does not know the name in the header Host"
        ),
    }
    ((method, asked),) = operation.items()
    security: list[Schema] = [{"token": []}, {}] if method == "get" else [{"token": []}]
    return {
        method: {
            **asked,
            "security": security,
            "responses": {**asked["responses"], **refusals},
        }
    }


def _paths(limits: RequestLimits) -> Schema:
    store = _path("store", "Name of a store.")
    key = _path("key", _KEY)
    local = _query("local", _BOOLEAN, "Answer from this instance only.")
    stale = _query(
        STALE,
        {**_WHOLE, "minimum": 0},
        "Milliseconds. If the owner does not answer, a standby may whose rows were up to date so long ago; the answer "
        "says how far it is behind in `standby`.",
    )
    brief = _query("brief", _BOOLEAN, "Count no entries, and ask no other instance.")
    limit = _query(
        "limit",
        {
            **_WHOLE,
            "minimum": 1,
            "maximum": limits.max_entries,
            "default": limits.entries,
        },
        "Most entries in an answer; large ones come in shorter pages.",
    )
    return {
        "/v1/stores": _get(
            "stores",
            "All stores of the topology",
            "Stores",
            local,
            brief,
        ),
        "/v1/stores/{store}/keys/{key}": _get(
            "key",
            "The value of a key",
            "Found",
            store,
            key,
            local,
            stale,
            by_key=True,
            missing=True,
        ),
        "/v1/stores/{store}/keys": _keys(limits, store, local, stale),
        "/v1/stores/{store}/range": _range(store, limit, local, stale),
        **_timed(store, key, limit, local, stale),
        "/v1/metadata": _get(
            "metadata",
            "Instances, their tasks and key ranges, by the last assignment",
            "Metadata",
        ),
        "/v1/metadata/{store}/{key}": _get(
            "keyMetadata",
            "Where a key lies and who owns it",
            "KeyMetadata",
            store,
            key,
        ),
        "/v1/status": _status_path(limits, local),
        "/v1/topology": _get(
            "topology",
            "The topology as a picture: boxes, arrows, and which totals of the status pass each",
            "Drawing",
        ),
        "/v1/pause": _change(
            "pause",
            "Process nothing in this instance until it is resumed; its tasks stay",
        ),
        "/v1/resume": _change("resume", "Process again in this instance"),
        "/health/live": _health(
            "live",
            "Whether the instance does its work, or waits for good reason",
        ),
        "/health/ready": _health(
            "ready",
            "Whether the instance is a member of the group with all its tasks open",
        ),
        "/metrics": {
            "get": {
                "operationId": "metrics",
                "summary": "Prometheus metrics",
                "responses": {"200": _answer("Metrics", _STRING, "text/plain")},
            }
        },
        "/openapi.json": {
            "get": {
                "operationId": "openapi",
                "summary": "This document",
                "responses": {"200": _answer("OpenAPI", {"type": "object"})},
            }
        },
    }


def _status_path(limits: RequestLimits, local: Schema) -> Schema:
    summary = (
        "What the instances are doing; one that does not answer is listed as unreachable. With `Accept: "
        f"text/event-stream` an event `status` every {limits.stream_every_s:g} s"
    )
    operation = _get("status", summary, "Status", local)
    responses = operation["get"]["responses"]
    responses["200"]["content"]["text/event-stream"] = {"schema": _STRING}
    responses["503"] = _error(
        f"TOO_MANY_STREAMS: {limits.streams} pages watch this instance"
    )
    return operation


def _timed(
    store: Schema,
    key: Schema,
    limit: Schema,
    local: Schema,
    stale: Schema,
) -> Schema:
    first = _query("from", _MOMENT, "The first moment, inclusive.")
    last = _query("to", _MOMENT, "The last moment, inclusive.")
    windows = "The windows of a key that start within from..to, both inclusive, ascending; an empty list if there are none"
    sessions = "The sessions of a key that overlap from..to, both inclusive, ascending; an empty list if there are none"
    versions = (
        "The versions of a key that held at some moment of from..to, or at `as_of`, ascending; an empty list if there "
        "was none"
    )
    operation = _get(
        "versions",
        versions,
        "Versions",
        store,
        key,
        _query("as_of", _MOMENT, "One moment."),
        first,
        last,
        limit,
        local,
        by_key=True,
    )
    operation["get"]["responses"]["410"] = _error(
        "FORGOTTEN: that time is before the history that is kept, which begins at `known_since`"
    )
    return {
        "/v1/stores/{store}/windows/{key}": _get(
            "windows",
            windows,
            "Windows",
            store,
            key,
            first,
            last,
            limit,
            local,
            stale,
            by_key=True,
        ),
        "/v1/stores/{store}/sessions/{key}": _get(
            "sessions",
            sessions,
            "Sessions",
            store,
            key,
            first,
            last,
            limit,
            local,
            stale,
            by_key=True,
        ),
        "/v1/stores/{store}/versions/{key}": operation,
    }


def _keys(
    limits: RequestLimits,
    store: Schema,
    local: Schema,
    stale: Schema,
) -> Schema:
    operation = _get(
        "keys",
        f"The values of several keys, at most {limits.max_keys}, in the order asked: all, or none while one is moving",
        "FoundMany",
        store,
        _query(
            "key",
            {"type": "array", "items": {"type": "string"}},
            "A key; give it several times.",
            required=True,
        ),
        local,
        stale,
        by_key=True,
    )
    operation["get"]["responses"]["413"] = _error(
        "TOO_LARGE: the values are large: ask for fewer keys at a time"
    )
    return operation


def _range(
    store: Schema,
    limit: Schema,
    local: Schema,
    stale: Schema,
) -> Schema:
    operation = _get(
        "range",
        "Entries of all ranges of all instances, in the order of the bytes of the serialised keys. With `Accept: "
        "application/x-ndjson` a line for each entry, without a limit unless one is given; the last line is a "
        "`RangeEnd`, or an `Error` with the `cursor` to go on from",
        "Range",
        store,
        _query("from", _STRING, "First key, inclusive."),
        _query("to", _STRING, "Last key, inclusive."),
        _query("prefix", _STRING, "What the keys begin with; text and raw keys only."),
        _query("reverse", _BOOLEAN, "Descending instead of ascending."),
        limit,
        _query("cursor", _STRING, "The `cursor` of the page before."),
        local,
        stale,
        by_key=True,
    )
    lines = {"schema": {"anyOf": [_ref("Entry"), _ref("RangeEnd"), _ref("Error")]}}
    operation["get"]["responses"]["200"]["content"]["application/x-ndjson"] = lines
    return operation


def _get(
    id_: str,
    summary: str,
    schema: str,
    *parameters: Schema,
    by_key: bool = False,
    missing: bool = False,
) -> Schema:
    names = {parameter["name"] for parameter in parameters}
    responses = {
        "200": _answer(summary, _ref(schema)),
        "400": _error("BAD_KEY, BAD_PARAMETER or WRONG_KIND"),
    }
    if "store" in names:
        responses["404"] = _error(
            "UNKNOWN_STORE"
            + (
                ", or KEY_NOT_FOUND: from the owner of the key only (or, with `max_staleness`, a standby), with the fields of "
                "`Where`"
                if missing
                else ""
            )
        )
    if by_key:
        responses["421"] = _error(
            "NOT_OWNER: `local=true` at another instance; `owner` and `url` say whom to ask"
        )
        responses["503"] = _error(
            f"TASK_MOVING. {_RETRY} Or UNREADABLE: the schema registry does not answer"
        ) | {"headers": {"Retry-After": {"schema": _WHOLE, "description": "Seconds."}}}
        responses["500"] = _error(
            "UNREADABLE: what is stored is no value of the store's serde; or INTERNAL"
        )
    responses["504"] = _error("TIMED_OUT: ask again, or for less")
    return {
        "get": {
            "operationId": id_,
            "summary": summary,
            "parameters": list(parameters),
            "responses": responses,
        }
    }


def _change(id_: str, summary: str) -> Schema:
    responses = {"200": _answer("Done", _ref("Paused")), "400": _error("BAD_PARAMETER")}
    return {"post": {"operationId": id_, "summary": summary, "responses": responses}}


def _health(id_: str, summary: str) -> Schema:
    responses = {
        "200": _answer("Yes", _ref("Health")),
        "503": _answer("No, with the reasons", _ref("Health")),
    }
    return {"get": {"operationId": id_, "summary": summary, "responses": responses}}


def _schemas() -> Schema:
    """Return the schemas of all answers by name."""
    where = {
        "partition": _WHOLE,
        "key_range": _STRING,
        "owner": _STRING,
        "epoch": _WHOLE,
        "lag": _MAYBE_WHOLE,
    }
    # A global table has no partition, key range, epoch or lag: its answers name only
    # the instance that answered.
    about = {
        **where,
        "partition": _MAYBE_WHOLE,
        "key_range": _MAYBE_STRING,
        "epoch": _MAYBE_WHOLE,
    }
    entry = {"key": {}, "value": {}, "timestamp": _WHOLE}
    unread = {
        "key_error": {
            **_STRING,
            "description": "Why the key cannot be read; then it is `base64:...`.",
        }
    }
    headers = {
        "headers": {
            **_list(_object({"name": _STRING, "value": _MAYBE_STRING})),
            "description": "Of the record that wrote the row, if the store keeps headers.",
        }
    }
    window = {
        "start": _WHOLE,
        "end": {
            **_MAYBE_WHOLE,
            "description": "Outside of a window, inside of a session; null: it never ends.",
        },
    }
    windows = _list(_object({**window, "value": {}, "timestamp": _WHOLE}))
    version = {
        "since": _WHOLE,
        "until": {
            **_MAYBE_WHOLE,
            "description": "The first moment at which it did not hold; null: it holds.",
        },
        "value": {},
    }
    timed = {"store": _STRING, "key": {}, "more": _BOOLEAN, **where}
    standby = {
        "standby": {
            **_object({"position": _WHOLE, "lag": _WHOLE, "staleness_ms": _WHOLE}),
            "description": "If a standby answered for the owner: the next changelog offset of the store that it reads, "
            "the records behind that, and how long ago its rows were known to be those of the owner.",
        }
    }
    one_of_many = _object(
        {"key": {}, "found": _BOOLEAN, **about},
        {"value": {}, "timestamp": _WHOLE, **headers, **standby},
    )
    error = {"error": _STRING, "message": _STRING, "retryable": _BOOLEAN}
    return {
        "Where": _object(where, standby),
        "Found": _object({"store": _STRING, **entry, **about}, {**headers, **standby}),
        "FoundMany": _object({"store": _STRING, "entries": _list(one_of_many)}),
        "Entry": _object(
            {**entry, "partition": _MAYBE_WHOLE},
            {"window": _object(window), **unread, **headers},
        ),
        "Range": _object(
            {
                "store": _STRING,
                "entries": _list(_ref("Entry")),
                "cursor": _MAYBE_STRING,
                "ranges": _list(_ref("Where")),
            }
        ),
        "RangeEnd": _object({"cursor": _MAYBE_STRING, "count": _WHOLE}),
        "Windows": _object({**timed, "windows": windows}, standby),
        "Sessions": _object({**timed, "sessions": windows}, standby),
        "Versions": _object(
            {**timed, "versions": _list(_object(version)), "known_since": _WHOLE}
        ),
        "Error": _object(
            error,
            {
                "retry_after_ms": _WHOLE,
                "owner": _STRING,
                "url": _STRING,
                "known_since": _WHOLE,
            },
        ),
        **_described_types(),
    }


def _described_types() -> Schema:
    """Return the schemas of the answers about stores, instances and tasks."""
    answers = (Stores, Metadata, KeyMetadata, Status, Health, Paused, Drawing)
    _, schemas = msgspec.json.schema_components(
        answers,
        ref_template="#/components/schemas/{name}",
    )
    # Defaults are values of Python until they are written as JSON.
    plain: Schema = msgspec.json.decode(msgspec.json.encode(schemas))
    return plain


_STRING: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_BOOLEAN: Schema = {"type": "boolean"}
_MAYBE_STRING: Schema = {"type": ["string", "null"]}
_MAYBE_WHOLE: Schema = {"type": ["integer", "null"]}
_TIME: Schema = {
    "type": "integer",
    "minimum": 0,
    "description": "Milliseconds since the epoch.",
}
_MOMENT: Schema = {
    **_TIME,
    "description": "Milliseconds since the epoch, or ISO 8601 with its zone, 2026-01-31T08:00Z.",
}
_KEY = (
    "A key as text: text as it is, int64 and float64 in decimal, json as JSON text, raw as text or `base64:...`. "
    "Slashes may stand or be %2F."
)


def _object(required: Schema, optional: Schema | None = None) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _ref(schema: str) -> Schema:
    return {"$ref": f"#/components/schemas/{schema}"}


def _answer(
    says: str,
    schema: Schema,
    media_type: str = "application/json",
) -> Schema:
    return {"description": says, "content": {media_type: {"schema": schema}}}


def _error(says: str) -> Schema:
    return _answer(says, _ref("Error"))


def _path(name: str, says: str) -> Schema:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": _STRING,
        "description": says,
    }


def _query(
    name: str,
    schema: Schema,
    says: str,
    *,
    required: bool = False,
) -> Schema:
    return {
        "name": name,
        "in": "query",
        "required": required,
        "schema": schema,
        "description": says,
    }
