"""Checks whether JSON of one schema can be read with another, by types and required
properties; and whether keys of two schemas have the same bytes.

Keywords on values (`minimum`, `pattern`), `oneOf` and the like are not checked: the
first record that does not fit fails. `enum` is checked of classes alone: the members of
an enum or a `Literal`, and the tag of a Struct.

Source: JSON Schema 2020-12, "Core" and "Validation".
"""

from __future__ import annotations

from typing import Any

import orjson

_PARTS = ("items", "additionalProperties")
"""The schemas of the members of a list, and of the values of a dict."""


def why_unreadable(reader: Any, writer: Any, *, complete: bool = False) -> str:
    """Return why JSON of the schema `writer` cannot be read with `reader`, with the
    path; empty if it may be.

    `complete`: the writer writes all properties, not only the required ones, as msgspec
    does of a class. So a field that loses its default is no reason.
    """
    return _why(reader, writer, "", (reader, writer), set(), complete=complete)


def why_other_bytes(now: Any, was: Any) -> str:
    """Return why msgspec writes a key of the schema `now` with other bytes than one of
    `was`, with the path; empty if nothing is known against it.

    A field with a default is written, too: unlike values, keys must have the same
    fields, in the same order.
    """
    return _why_other(now, was, "", (now, was), set())


def compared(schema: Any) -> Any:
    """Return the part of a schema that is compared, with values that may be null as
    those that may not.
    """
    if not isinstance(schema, dict):
        return schema
    branches = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(branches) == 1:
        schema = {**schema, **branches[0]}
    found = {
        name: schema[name]
        for name in ("$ref", "type", "required", "enum")
        if name in schema
    }
    for name in ("properties", "$defs"):
        if name in schema:
            found[name] = {key: compared(each) for key, each in schema[name].items()}
    for name in _PARTS:
        if name in schema:
            found[name] = compared(schema[name])
    if schema.get("format") == "decimal":  # a number can be read as a Decimal
        del found["type"]
    return found


def _why(
    reader: Any,
    writer: Any,
    at: str,
    roots: tuple[Any, Any],
    seen: set[tuple[int, int]],
    *,
    complete: bool,
) -> str:
    reader = _followed(reader, roots[0])
    writer = _followed(writer, roots[1])
    if (
        not isinstance(reader, dict)
        or not isinstance(writer, dict)
        or (id(reader), id(writer)) in seen
    ):
        return ""
    seen.add((id(reader), id(writer)))
    wanted = _types(reader)
    written = _types(writer)
    if wanted and written and (more := written - wanted):
        return f"{at or 'the value'}: it may be {' or '.join(sorted(more))}, and is read as {' or '.join(sorted(wanted))}"
    if complete and (gone := _gone(reader, writer)):
        return f"{at or 'the value'}: it may be {gone}, which is read no more"
    ours = reader.get("properties", {})
    theirs = writer.get("properties", {})
    always = set(theirs if complete else writer.get("required", ()))
    for name in reader.get("required", ()):
        if name not in always:
            return (
                f"{at}.{name}".removeprefix(".")
                + ": it is required, and not always written"
            )
    for name in ours.keys() & theirs.keys():
        if why := _why(
            ours[name],
            theirs[name],
            f"{at}.{name}".removeprefix("."),
            roots,
            seen,
            complete=complete,
        ):
            return why
    for name in _PARTS:
        if why := _why(
            reader.get(name),
            writer.get(name),
            f"{at}[]",
            roots,
            seen,
            complete=complete,
        ):
            return why
    return ""


def _why_other(
    now: Any, was: Any, at: str, roots: tuple[Any, Any], seen: set[tuple[int, int]]
) -> str:
    now = _followed(now, roots[0])
    was = _followed(was, roots[1])
    if (
        not isinstance(now, dict)
        or not isinstance(was, dict)
        or (id(now), id(was)) in seen
    ):
        return ""
    seen.add((id(now), id(was)))
    types = now.get("type")
    before = was.get("type")
    if types and before and types != before:
        return f"{at or 'the key'}: it is {types}, and was {before}"
    if gone := _gone(now, was):
        return f"{at or 'the key'}: it is never {gone} any more"
    ours = now.get("properties", {})
    theirs = was.get("properties", {})
    for name in (
        name for name in [*ours, *theirs] if (name in ours) != (name in theirs)
    ):
        return f"{at}.{name}".removeprefix(".") + (
            ": it is new" if name in ours else ": it is gone"
        )
    if list(ours) != list(theirs):
        return f"{at or 'the key'}: its fields have another order"
    for name in ours:
        if why := _why_other(
            ours[name], theirs[name], f"{at}.{name}".removeprefix("."), roots, seen
        ):
            return why
    whys = (
        _why_other(now.get(name), was.get(name), f"{at}[]", roots, seen)
        for name in _PARTS
    )
    return next(filter(None, whys), "")


def _gone(now: dict[str, Any], was: dict[str, Any]) -> str:
    """Return the members that an enum has lost, as JSON; empty if there are none, or
    one of the two is no enum.
    """
    lost = [
        member
        for member in was.get("enum", ())
        if "enum" in now and member not in now["enum"]
    ]
    return orjson.dumps(lost)[1:-1].decode()


def _followed(schema: Any, root: Any) -> Any:
    """Return the schema to which a reference within the same document leads."""
    for _ in range(16):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        schema = root
        for part in reference[2:].split("/"):
            schema = schema.get(part) if isinstance(schema, dict) else None
    return None


def _types(schema: dict[str, Any]) -> set[str]:
    """Return the types that a value may have; empty: unspecified. A number may be an
    integer.
    """
    said = schema.get("type")
    types: set[str] = {said} if isinstance(said, str) else set(said or ())
    return types | {"integer"} if "number" in types else types
