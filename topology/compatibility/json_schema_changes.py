"""Checks whether JSON of one schema can be read with another, by types and required
properties; and whether keys of two schemas have the same bytes.

Keywords on values (`minimum`, `pattern`), `oneOf` and the like are not checked: the
first record that does not fit fails. `enum` is checked only in schemas of classes: the
members of an enum or a `Literal`, and the tag of a Struct.

Source: JSON Schema 2020-12, "Core" and "Validation".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

_NAMED_PARTS = ("properties", "$defs")
_PARTS = ("items", "additionalProperties")
"""The schemas of the members of a list, and of the values of a dict."""


def why_unreadable(
    reader: Any,
    writer: Any,
    *,
    complete: bool = False,
) -> str:
    """Return why JSON of the schema `writer` cannot be read with `reader`, with the
    path; empty if it may be.

    `complete`: whether the writer writes all properties, not only the required ones, as
    msgspec does for a class. A field that loses its default is then no reason.
    """
    level = partial(_unreadable_level, complete=complete)
    return _Comparison(reader, writer, level).why(reader, writer, "")


def why_other_bytes(now: Any, was: Any) -> str:
    """Return why msgspec writes a key of the schema `now` with other bytes than one of
    `was`, with the path; empty if no reason is known.

    Keys must have the same fields in the same order, unlike values: a field with a
    default is written, too.
    """
    return _Comparison(now, was, _other_level).why(now, was, "")


def compared(schema: Any) -> Any:
    """Return the part of a schema that is compared. A value that may be null becomes
    one that may not.
    """
    if not isinstance(schema, dict):
        return schema
    branches = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(branches) == 1:
        schema = {**schema, **branches[0]}
    found = {}
    for name in ("$ref", "type", "required", "enum", *_NAMED_PARTS, *_PARTS):
        if name not in schema:
            continue
        found[name] = schema[name]
        if name in _NAMED_PARTS:
            found[name] = {key: compared(each) for key, each in schema[name].items()}
        elif name in _PARTS:
            found[name] = compared(schema[name])
    if schema.get("format") == "decimal":  # a number can be read as a Decimal
        del found["type"]
    return found


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The comparison of two documents. Each pair of schemas in them is compared once: a
    schema may contain itself.

    `level`: returns how two schemas at a path differ, apart from the schemas within
    them.
    """

    now: Any
    was: Any
    level: Callable[[dict[str, Any], dict[str, Any], str], str]
    seen: set[tuple[int, int]] = field(default_factory=set)

    def why(
        self,
        now: Any,
        was: Any,
        at: str,
    ) -> str:
        """Return the first difference of two schemas at this path; empty if there is
        none.
        """
        now = _followed(now, self.now)
        was = _followed(was, self.was)
        pair = (id(now), id(was))
        if not (isinstance(now, dict) and isinstance(was, dict)) or pair in self.seen:
            return ""
        self.seen.add(pair)
        if why := self.level(now, was, at):
            return why
        theirs = was.get("properties", {})
        for name, ours in now.get("properties", {}).items():
            if name in theirs and (
                why := self.why(ours, theirs[name], _path(at, name))
            ):
                return why
        members = (self.why(now.get(part), was.get(part), f"{at}[]") for part in _PARTS)
        return next(filter(None, members), "")


def _unreadable_level(
    reader: dict[str, Any],
    writer: dict[str, Any],
    at: str,
    *,
    complete: bool,
) -> str:
    place = at or "the value"
    wanted = _types(reader)
    written = _types(writer)
    if wanted and not written <= wanted:
        more = " or ".join(sorted(written - wanted))
        return (
            f"{place}: it may be {more}, and is read as {' or '.join(sorted(wanted))}"
        )
    if complete and (gone := _gone(reader, writer)):
        return f"{place}: it may be {gone}, which is read no more"
    always = writer.get("properties" if complete else "required", ())
    for name in reader.get("required", ()):
        if name not in always:
            return f"{_path(at, name)}: it is required, and not always written"
    return ""


def _other_level(
    now: dict[str, Any],
    was: dict[str, Any],
    at: str,
) -> str:
    place = at or "the key"
    types = now.get("type")
    before = was.get("type")
    if types and before and types != before:
        return f"{place}: it is {types}, and was {before}"
    if gone := _gone(now, was):
        return f"{place}: it is never {gone} any more"
    ours = now.get("properties", {})
    theirs = was.get("properties", {})
    for name in [*ours, *theirs]:
        if name not in theirs:
            return f"{_path(at, name)}: it is new"
        if name not in ours:
            return f"{_path(at, name)}: it is gone"
    if list(ours) != list(theirs):
        return f"{place}: its fields have another order"
    return ""


def _path(at: str, name: str) -> str:
    return f"{at}.{name}".removeprefix(".")


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
    """Return the types that a value may have; empty if the schema names none. A number
    may be an integer.
    """
    said = schema.get("type")
    types: set[str] = {said} if isinstance(said, str) else set(said or ())
    return types | {"integer"} if "number" in types else types
