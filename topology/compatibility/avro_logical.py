"""The logical types of values that are read with another schema than they were written
with: those of the reader.

A logical type is not on the wire, and a schema may get one, or lose it: a `long` that
becomes a `timestamp-millis` is the same long. fastavro reads by the writer's types, so
the same field would be an int or a datetime, whoever wrote it. Where both have a
logical type, the writer's says what the number means.

Source: Apache Avro 1.12, "Logical Types": implementations use the logical type of the
reader's schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coopstreams.topology.compatibility.avro_changes import (
    NAMED,
    definition,
    definitions,
    same_name,
)

BOUNDED_DECIMAL = "coopstreams-decimal"
"""The name of the logical type `decimal` in the schemas that fastavro is given: see
`topology/avro_decimals.py`.
"""
_OF_LOGICAL = ("logicalType", "precision", "scale")


def as_read(writer: Any, reader: Any) -> Any:
    """Return the schema `writer`, with a logical type where `reader` has one, and with
    none where it has none.

    Shape: `writer` is JSON, `reader` as `fastavro.parse_schema` returns it.
    """
    return _as_read(writer, reader, definitions(reader))


def _as_read(writer: Any, reader: Any, named: Mapping[str, Any]) -> Any:
    if isinstance(writer, list):
        return [_as_read(branch, reader, named) for branch in writer]
    if isinstance(writer, dict) and not isinstance(writer["type"], str):
        return {**writer, "type": _as_read(writer["type"], reader, named)}
    kind = writer["type"] if isinstance(writer, dict) else writer
    reader = next(
        (
            found
            for found in _branches(reader, named)
            if _is_read_as(writer, kind, found)
        ),
        None,
    )
    if reader is None:
        return writer
    if kind == "record":
        known = {
            name: field
            for field in reader["fields"]
            for name in (field["name"], *field.get("aliases", ()))
        }
        fields = [
            {
                **field,
                "type": _as_read(field["type"], known[field["name"]]["type"], named),
            }
            if field["name"] in known
            else field
            for field in writer["fields"]
        ]
        return {**writer, "fields": fields}
    for part in ("items", "values"):
        if kind == {"items": "array", "values": "map"}[part]:
            return {**writer, part: _as_read(writer[part], reader[part], named)}
    return _with_logical(writer, kind, reader)


def _branches(reader: Any, named: Mapping[str, Any]) -> list[Any]:
    found = definition(reader, named)
    return (
        [definition(branch, named) for branch in found]
        if isinstance(found, list)
        else [found]
    )


def _is_read_as(writer: Any, kind: str, reader: Mapping[str, Any]) -> bool:
    return bool(
        kind == reader["type"] and (kind not in NAMED or same_name(reader, writer))
    )


def _with_logical(writer: Any, kind: str, reader: Mapping[str, Any]) -> Any:
    plain = dict(writer) if isinstance(writer, dict) else {"type": kind}
    if ("logicalType" in plain) == ("logicalType" in reader):
        return writer
    if "logicalType" in reader:
        return plain | {name: reader[name] for name in _OF_LOGICAL if name in reader}
    return {name: value for name, value in plain.items() if name not in _OF_LOGICAL}
