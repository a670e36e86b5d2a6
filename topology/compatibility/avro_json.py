"""Values of an Avro schema from the JSON in which queries show them: bytes in base64,
decimals and times as text.

Source: `query.formats.to_json`, which writes that JSON.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import datetime, time
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

from coopstreams.topology.compatibility.avro_logical import BOUNDED_DECIMAL

Read: TypeAlias = Callable[[Any], Any]
"""Returns the value that a part of the JSON stands for. Raises a ValueError or a
TypeError if there is none.
"""


def from_json(schema: Any, named: dict[str, Read] | None = None) -> Read:
    """Return the reader of the JSON of a schema's values.

    Shape: `schema` is one that `fastavro.parse_schema` returns; `named` are the readers
    of the names in it.
    """
    named = {} if named is None else named
    if isinstance(schema, list):
        return _union(schema, [from_json(branch, named) for branch in schema])
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return from_json(kind, named)
    logical = (
        _LOGICAL.get(schema.get("logicalType", ""))
        if isinstance(schema, dict)
        else None
    )
    found: Read = (
        logical
        or {"bytes": base64.b64decode, "fixed": base64.b64decode}.get(kind)
        or _same
    )
    if kind == "record":
        return _record(schema, named)
    if kind == "array":
        each = from_json(schema["items"], named)
        return lambda value: [each(item) for item in value]
    if kind == "map":
        of = from_json(schema["values"], named)
        return lambda value: {name: of(item) for name, item in value.items()}
    if isinstance(schema, dict) and "name" in schema:
        named[schema["name"]] = found
    return named.get(kind, found)


def _record(schema: Mapping[str, Any], named: dict[str, Read]) -> Read:
    fields: dict[str, Read] = {}

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError(f"{value!r} is no record")
        return {name: fields.get(name, _same)(item) for name, item in value.items()}

    named[schema["name"]] = read
    fields |= {
        field["name"]: from_json(field["type"], named) for field in schema["fields"]
    }
    return read


def _union(branches: list[Any], readers: list[Read]) -> Read:
    from fastavro.validation import validate

    def read(value: Any) -> Any:
        for branch, of in zip(branches, readers, strict=True):
            try:
                if validate(found := of(value), branch, raise_errors=False):
                    return found
            except (AttributeError, TypeError, ValueError, ArithmeticError):
                continue
        return value

    return read


def _same(value: Any) -> Any:
    return value


_LOGICAL: Mapping[str, Read] = {
    BOUNDED_DECIMAL: Decimal,
    "uuid": UUID,
    **dict.fromkeys(
        (
            "timestamp-millis",
            "timestamp-micros",
            "local-timestamp-millis",
            "local-timestamp-micros",
        ),
        datetime.fromisoformat,
    ),
    **dict.fromkeys(("time-millis", "time-micros"), time.fromisoformat),
}
