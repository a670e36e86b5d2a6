"""Checks whether JSON that was written for one version of a class can be read with another: `serdes.json(Type)`.

The schema is the JSON Schema that msgspec makes of the class. A description of a topology keeps it, because the class
of the version before is gone.

Invariant: an answer errs on the safe side, "it can be read": null, unions and formats of text are not checked.
Turned down: the required properties of the writer. A field with a default is written, too, so that taking away the
default changes nothing for the rows that have it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from coopstreams.topology.compatibility import json_schema
from coopstreams.topology.serde import Serde, within


def schemas_of(serde: Serde[Any]) -> list[Any]:
    """Return the schemas of the classes that a serde reads from JSON, in the order of the serdes within it."""
    decoders = (getattr(part.decode, "__self__", None) for part in within(serde))
    return [
        schema
        for decoder in decoders
        if isinstance(decoder, msgspec.json.Decoder) and (schema := _schema_of(decoder)) is not None
    ]


def why_unreadable(reader: Any, writer: Any) -> str:
    """Return why values of the schema `writer` cannot be read with `reader`, with the field; empty if they may be."""
    return json_schema.why_unreadable(_checked(reader, written=False), _checked(writer, written=True))


def _schema_of(decoder: msgspec.json.Decoder[Any]) -> Any:
    """Return the schema of what a decoder reads; None: msgspec makes none, as of types with a hook."""
    if not decoder.strict or decoder.dec_hook is not None:
        return None
    try:
        return orjson.loads(msgspec.json.encode(msgspec.json.schema(decoder.type)))
    except TypeError:
        return None


def _checked(schema: Any, *, written: bool) -> Any:
    """Return what is checked of a schema. `written`: all of its properties are required."""
    if not isinstance(schema, dict):
        return schema
    branches = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(branches) == 1:
        schema = {**schema, **branches[0]}
    found = {name: schema[name] for name in ("$ref", "type", "required") if name in schema}
    for name in {"properties", "$defs"} & schema.keys():
        found[name] = {key: _checked(each, written=written) for key, each in schema[name].items()}
    if "items" in schema:
        found["items"] = _checked(schema["items"], written=written)
    if schema.get("format") == "decimal":  # a number can be read as a Decimal
        del found["type"]
    if written and "properties" in found:
        found["required"] = list(found["properties"])
    return found
