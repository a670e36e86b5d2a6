"""Checks whether JSON that was written for one version of a class can be read with another: `serdes.json(Type)`.

A description of a topology keeps the schemas of the classes, because those of the version before are gone. A schema is
the part of the JSON Schema which msgspec makes of a class that is compared.

Invariant: an answer errs on the safe side, "it can be read": null, unions and formats of text are not compared.
Turned down: the required properties of the writer. A field with a default is written, too, so that taking away the
default changes nothing for the rows that have it.
"""

from __future__ import annotations

from typing import Any

import msgspec

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
    return json_schema.why_unreadable(reader, writer, complete=True)


def _schema_of(decoder: msgspec.json.Decoder[Any]) -> Any:
    """Return the schema of what a decoder reads; None: msgspec makes none, as of types with a hook."""
    if not decoder.strict or decoder.dec_hook is not None:
        return None
    try:
        return _compared(msgspec.json.schema(decoder.type))
    except TypeError:
        return None


def _compared(schema: Any) -> Any:
    """Return the part of a schema that is compared."""
    if not isinstance(schema, dict):
        return schema
    branches = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(branches) == 1:
        schema = {**schema, **branches[0]}
    found = {name: schema[name] for name in ("$ref", "type", "required") if name in schema}
    for name in ("properties", "$defs"):
        if name in schema:
            found[name] = {key: _compared(each) for key, each in schema[name].items()}
    if "items" in schema:
        found["items"] = _compared(schema["items"])
    if schema.get("format") == "decimal":  # a number can be read as a Decimal
        del found["type"]
    return found
