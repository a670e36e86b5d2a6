"""Checks whether values written with one Avro schema can be read with another, before
the first record.

Source: Apache Avro 1.12, "Schema Resolution".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Named: TypeAlias = dict[str, Any]

_PROMOTED: Mapping[str, tuple[str, ...]] = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""The types that may be read as another one."""
NAMED = ("record", "enum", "fixed")
"""The types that have a name."""


def why_unreadable(reader: Any, writer: Any) -> str:
    """Return why values of `writer` cannot be read as `reader`, with the path of the
    field; empty if they can.

    Shape: both are schemas as `fastavro.parse_schema` returns them.
    """
    return _why(reader, writer, "", definitions(reader), definitions(writer), set())


def _why(
    reader: Any,
    writer: Any,
    at: str,
    readers: Named,
    writers: Named,
    seen: set[tuple[str, str]],
) -> str:
    reader = definition(reader, readers)
    writer = definition(writer, writers)
    if isinstance(writer, list):
        found = [_why(reader, branch, at, readers, writers, seen) for branch in writer]
        return next(filter(None, found), "")
    if isinstance(reader, list):
        found = [_why(branch, writer, at, readers, writers, seen) for branch in reader]
        return (
            ""
            if "" in found
            else f"{at or 'the value'}: {_shown(writer)} is no branch of the union"
        )
    wanted = reader["type"]
    written = writer["type"]
    if wanted != written:
        fits = written in _PROMOTED.get(wanted, ())
        return (
            ""
            if fits
            else f"{at or 'the value'}: {_shown(writer)} cannot be read as {_shown(reader)}"
        )
    if wanted in NAMED and not same_name(reader, writer):
        return f"{at or 'the value'}: it is the {wanted} {writer['name']}, and is read as {reader['name']}"
    if wanted in ("array", "map"):
        part = "items" if wanted == "array" else "values"
        return _why(reader[part], writer[part], f"{at}[]", readers, writers, seen)
    if wanted == "fixed" and reader["size"] != writer["size"]:
        return f"{at}: {writer['size']} bytes cannot be read as {reader['size']}"
    if (
        wanted == "enum"
        and "default" not in reader
        and (more := set(writer["symbols"]) - set(reader["symbols"]))
    ):
        return f"{at}: the enum has no symbol {', '.join(sorted(more))}, and no default"
    pair = reader.get("name", ""), writer.get("name", "")
    if wanted != "record" or pair in seen:
        return ""
    seen.add(pair)
    known = {field["name"]: field for field in writer["fields"]}
    for field in reader["fields"]:
        place = f"{at}.{field['name']}".removeprefix(".")
        other = next(
            (
                known[name]
                for name in (field["name"], *field.get("aliases", ()))
                if name in known
            ),
            None,
        )
        if other is None and "default" not in field:
            return f"{place}: it is not written, and has no default"
        if other is not None and (
            why := _why(field["type"], other["type"], place, readers, writers, seen)
        ):
            return why
    return ""


def same_name(reader: Any, writer: Any) -> bool:
    """Whether a type has the name of the reader's, or is one of its aliases. Namespaces
    may differ.
    """
    name = writer["name"].rpartition(".")[2]
    return name == reader["name"].rpartition(".")[2] or bool(
        {name, writer["name"]} & {*reader.get("aliases", ())}
    )


def definitions(schema: Any) -> Named:
    """Return what names stand for within a schema."""
    return dict(_named(schema))


def definition(schema: Any, named: Mapping[str, Any]) -> Any:
    """Return a schema as a dict or a list: names stand for their definitions, and types
    may be nested.
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


def _named(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the definitions of names within a schema."""
    if isinstance(schema, dict) and "name" in schema and schema["type"] in NAMED:
        yield schema["name"], schema
    for inner in parts(schema):
        yield from _named(inner)


def _shown(schema: Any) -> str:
    return str(schema.get("name", schema["type"]))
