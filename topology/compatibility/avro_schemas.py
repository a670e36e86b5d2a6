"""Interprets Avro schemas: the names in them, which schema can read which, and the
logical types of what is read.

Shape: a *parsed* schema is one that `fastavro.parse_schema` returns.
Source: Apache Avro 1.12, "Names", "Schema Resolution" and "Logical Types"; Confluent,
"Schema references".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import orjson

from coopstreams.topology.compatibility.schema import Schema

Named: TypeAlias = Mapping[str, Any]
"""Definitions by their names."""

NAMED = ("record", "enum", "fixed")
"""The types that have a name."""
MEMBERS = {"array": "items", "map": "values"}
"""The attribute of an array or map that has the schema of its members."""
BOUNDED_DECIMAL = "coopstreams-decimal"
"""The name of the logical type `decimal` in the schemas that fastavro is given: see
`topology/avro_limits.py`.
"""
_PROMOTED: Mapping[str, tuple[str, ...]] = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""For a type in the reader's schema, the other types that it can read."""
_OF_LOGICAL = ("logicalType", "precision", "scale")
"""The attributes of a schema that say its logical type."""


def definitions(schema: Any) -> Named:
    """Return the definitions within a parsed schema by their names."""
    return dict(_definitions_in(schema))


def _definitions_in(schema: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(schema, dict) and "name" in schema and schema["type"] in NAMED:
        yield schema["name"], schema
    for inner in parts(schema):
        yield from _definitions_in(inner)


def definition(schema: Any, named: Named) -> Any:
    """Return a schema as a dict or a list, with a name replaced by its definition and a
    nested type unwrapped.
    """
    if isinstance(schema, str):
        return named.get(schema, {"type": schema})
    if isinstance(schema, dict) and not isinstance(schema["type"], str):
        return definition(schema["type"], named)
    return schema


def parts(schema: Any) -> Iterator[Any]:
    """Yield the schemas directly within a schema: the branches of a union, or the types
    of fields and members.
    """
    if isinstance(schema, list):
        yield from schema
    elif isinstance(schema, dict):
        yield from (field["type"] for field in schema.get("fields", ()))
        yield from (
            schema[part] for part in ("items", "values", "type") if part in schema
        )


def with_parts(schema: Any, change: Callable[[Any], Any]) -> Any:
    """Return a schema, as JSON, with `change` applied to each schema directly within
    it.
    """
    if isinstance(schema, list):
        return [change(branch) for branch in schema]
    made = dict(schema)
    for part in ("type", "items", "values"):
        # the type of a definition is no schema: record, enum, fixed
        if part in made and made[part] not in NAMED:
            made[part] = change(made[part])
    if "fields" in made:
        made["fields"] = [
            {**field, "type": change(field["type"])} for field in made["fields"]
        ]
    return made


def _same_name(reader: Any, writer: Any) -> bool:
    """Whether the writer's type has the name of the reader's type, or one of its
    aliases. Namespaces may differ.
    """
    name = writer["name"].rpartition(".")[2]
    return name == reader["name"].rpartition(".")[2] or bool(
        {name, writer["name"]} & {*reader.get("aliases", ())}
    )


def why_unreadable(reader: Any, writer: Any) -> str:
    """Return why values of the parsed schema `writer` cannot be read with `reader`,
    with the path of the field; empty if they can.
    """
    comparison = _Comparison(definitions(reader), definitions(writer))
    return comparison.why(reader, writer, "")


class _Comparison:
    """The comparison of two schemas. Each pair of records is compared once: a record
    may contain itself.
    """

    def __init__(self, readers: Named, writers: Named) -> None:
        self._readers = readers
        self._writers = writers
        self._seen: set[tuple[str, str]] = set()

    def why(
        self,
        reader: Any,
        writer: Any,
        at: str,
    ) -> str:
        """Return why values at this path cannot be read; empty if they can."""
        reader = definition(reader, self._readers)
        writer = definition(writer, self._writers)
        if isinstance(writer, list):
            found = [self.why(reader, branch, at) for branch in writer]
            return next(filter(None, found), "")
        place = at or "the value"
        if isinstance(reader, list):
            if "" in [self.why(branch, writer, at) for branch in reader]:
                return ""
            return f"{place}: {_shown(writer)} is no branch of the union"
        kind = reader["type"]
        if kind != writer["type"]:
            if writer["type"] in _PROMOTED.get(kind, ()):
                return ""
            return f"{place}: {_shown(writer)} cannot be read as {_shown(reader)}"
        if part := MEMBERS.get(kind):
            return self.why(reader[part], writer[part], f"{at}[]")
        return self._why_named(reader, writer, at) if kind in NAMED else ""

    def _why_named(
        self,
        reader: Any,
        writer: Any,
        at: str,
    ) -> str:
        kind = reader["type"]
        if not _same_name(reader, writer):
            return f"{at or 'the value'}: it is the {kind} {writer['name']}, and is read as {reader['name']}"
        if kind == "record":
            return self._why_record(reader, writer, at)
        if kind == "fixed" and reader["size"] != writer["size"]:
            return f"{at}: {writer['size']} bytes cannot be read as {reader['size']}"
        if kind == "enum" and "default" not in reader:
            more = sorted({*writer["symbols"]} - {*reader["symbols"]})
            if more:
                return f"{at}: the enum has no symbol {', '.join(more)}, and no default"
        return ""

    def _why_record(
        self,
        reader: Any,
        writer: Any,
        at: str,
    ) -> str:
        pair = (reader["name"], writer["name"])
        if pair in self._seen:
            return ""
        self._seen.add(pair)
        written = {field["name"]: field["type"] for field in writer["fields"]}
        for field in reader["fields"]:
            place = f"{at}.{field['name']}".removeprefix(".")
            name = next(filter(written.__contains__, _names(field)), None)
            if name is None:
                if "default" not in field:
                    return f"{place}: it is not written, and has no default"
            elif why := self.why(field["type"], written[name], place):
                return why
        return ""


def _names(field: Mapping[str, Any]) -> tuple[str, ...]:
    return (field["name"], *field.get("aliases", ()))


def _shown(schema: Any) -> str:
    return str(schema.get("name", schema["type"]))


def as_read(writer: Any, reader: Any) -> Any:
    """Return the schema `writer`, with a logical type where `reader` has one, and with
    none where it has none.

    A logical type is not on the wire: a `long` that becomes a `timestamp-millis` is the
    same long. fastavro reads by the writer's types, so without this function a field
    would be an int or a datetime, depending on its writer. Where both have a logical
    type, the writer's says what the number means.

    Shape: `writer` is JSON, `reader` is parsed.
    """
    return _as_read(writer, reader, definitions(reader))


def _as_read(
    writer: Any,
    reader: Any,
    named: Named,
) -> Any:
    if isinstance(writer, list):
        return [_as_read(branch, reader, named) for branch in writer]
    kind = writer["type"] if isinstance(writer, dict) else writer
    if not isinstance(kind, str):
        return {**writer, "type": _as_read(kind, reader, named)}
    branch = _branch_of(writer, kind, reader, named)
    if branch is None:
        return writer
    if kind == "record":
        types = {
            name: field["type"] for field in branch["fields"] for name in _names(field)
        }
        fields = [
            {**field, "type": _as_read(field["type"], types[field["name"]], named)}
            if field["name"] in types
            else field
            for field in writer["fields"]
        ]
        return {**writer, "fields": fields}
    if part := MEMBERS.get(kind):
        return {**writer, part: _as_read(writer[part], branch[part], named)}
    return _with_logical(writer, kind, branch)


def _branch_of(
    writer: Any,
    kind: str,
    reader: Any,
    named: Named,
) -> Any:
    """Return the type with which a written type is read: the reader's, or a branch of
    its union; None if there is none of the same kind.
    """
    found = definition(reader, named)
    for branch in found if isinstance(found, list) else [found]:
        branch = definition(branch, named)
        if kind == branch["type"] and (kind not in NAMED or _same_name(branch, writer)):
            return branch
    return None


def _with_logical(
    writer: Any,
    kind: str,
    reader: Named,
) -> Any:
    plain = dict(writer) if isinstance(writer, dict) else {"type": kind}
    if ("logicalType" in plain) == ("logicalType" in reader):
        return writer
    if "logicalType" in reader:
        return plain | {name: reader[name] for name in _OF_LOGICAL if name in reader}
    return {name: value for name, value in plain.items() if name not in _OF_LOGICAL}


def whole(schema: Schema) -> Any:
    """Return an Avro schema as JSON. A name that a reference defines is replaced by its
    definition where it first occurs, as Avro requires.
    """
    own = orjson.loads(schema.text)
    if not schema.references:
        return own
    others = {
        name: found
        for text in _texts(schema)
        for name, found in _full_definitions(orjson.loads(text), "")
    }
    return _whole(own, "", others, set())


def _texts(schema: Schema) -> Iterator[str]:
    for each in schema.references:
        yield from _texts(each.schema)
        yield each.schema.text


def _full_definitions(schema: Any, space: str) -> Iterator[tuple[str, Named]]:
    """Yield the definitions within a schema by their full names, each with its
    namespace.
    """
    if isinstance(schema, dict) and schema["type"] in NAMED:
        space, name = _full_name(schema, space)
        yield name, {**schema, "name": name.rpartition(".")[2], "namespace": space}
    for inner in parts(schema):
        yield from _full_definitions(inner, space)


def _whole(
    schema: Any,
    space: str,
    others: Named,
    defined: set[str],
) -> Any:
    if isinstance(schema, str):
        names = (f"{space}.{schema}", schema)
        name = next(filter(others.__contains__, names), None)
        if name is None or name in defined:
            return schema
        return _whole(others[name], "", others, defined)
    if isinstance(schema, dict) and schema["type"] in NAMED:
        space, name = _full_name(schema, space)
        if name in others and name in defined:
            return name
        defined.add(name)
    return with_parts(schema, lambda part: _whole(part, space, others, defined))


def _full_name(schema: Named, space: str) -> tuple[str, str]:
    """Return the namespace that holds inside a named definition, and the full name of
    the definition. `space`: the namespace around it.
    """
    name = str(schema["name"])
    if "." in name:
        return name.rpartition(".")[0], name
    space = str(schema.get("namespace", space))
    return space, f"{space}.{name}".removeprefix(".")
