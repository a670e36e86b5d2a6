"""One Avro schema of one that names others: each definition stands where its name is
met first, as Avro wants it.

Source: Apache Avro 1.12, "Names"; Confluent, "Schema references".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from coopstreams.topology.compatibility.avro_changes import NAMED, parts
from coopstreams.topology.compatibility.schema import Schema


def whole(schema: Schema) -> Any:
    """Return an Avro schema as JSON, with the definitions of the names that its
    references define.
    """
    own = orjson.loads(schema.text)
    if not schema.references:
        return own
    others = {
        name: found
        for each in _texts(schema)
        for name, found in _definitions(orjson.loads(each), "")
    }
    return _whole(own, "", others, set())


def _texts(schema: Schema) -> Iterator[str]:
    for each in schema.references:
        yield from _texts(each.schema)
        yield each.schema.text


def _definitions(schema: Any, space: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the definitions within a schema by their full names, each with its
    namespace.
    """
    if isinstance(schema, dict) and schema["type"] in NAMED:
        space, name = _named(schema, space)
        yield name, {**schema, "name": name.rpartition(".")[2], "namespace": space}
    for inner in parts(schema):
        yield from _definitions(inner, space)


def _whole(
    schema: Any, space: str, others: Mapping[str, Any], defined: set[str]
) -> Any:
    if isinstance(schema, list):
        return [_whole(branch, space, others, defined) for branch in schema]
    if isinstance(schema, str):
        name = next(
            (each for each in (f"{space}.{schema}", schema) if each in others), None
        )
        return (
            schema
            if name is None or name in defined
            else _whole(others[name], "", others, defined)
        )
    if schema["type"] in NAMED:
        space, name = _named(schema, space)
        if name in others and name in defined:
            return name
        defined.add(name)
        made = dict(schema)
    else:
        made = {**schema, "type": _whole(schema["type"], space, others, defined)}
    if "fields" in made:
        made["fields"] = [
            {**field, "type": _whole(field["type"], space, others, defined)}
            for field in made["fields"]
        ]
    return made | {
        part: _whole(made[part], space, others, defined)
        for part in ("items", "values")
        if part in made
    }


def _named(schema: Mapping[str, Any], space: str) -> tuple[str, str]:
    """Return the namespace within a definition, and its full name."""
    name = str(schema["name"])
    if "." in name:
        return name.rpartition(".")[0], name
    space = str(schema.get("namespace", space))
    return space, f"{space}.{name}".removeprefix(".")
