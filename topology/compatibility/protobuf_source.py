"""Writes the source text of a Protobuf file from its descriptor, because every schema
registry takes text.

A message class has the descriptor only. Confluent's registry takes that too (in
base64), Apicurio's does not.

Custom options, services and comments are left out: they do not change what is on the
wire.
Source: Protocol Buffers, "Language Specification" (proto2, proto3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

SCALARS = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "fixed64",
    7: "fixed32",
    8: "bool",
    9: "string",
    12: "bytes",
    13: "uint32",
    15: "sfixed32",
    16: "sfixed64",
    17: "sint32",
    18: "sint64",
}
"""The names of those of `FieldDescriptorProto.Type` that are no messages, groups or
enums.
"""
_REQUIRED = 2
_REPEATED = 3


def source_of(file: Any) -> str:
    """Return the source text of a `FileDescriptorProto`.

    Raises:
        ValueError: it has groups, extensions or editions, which are not written here.
    """
    syntax = file.syntax or "proto2"
    if syntax not in ("proto2", "proto3") or file.extension:
        raise ValueError("it has extensions, or is of an edition")
    lines = [f'syntax = "{syntax}";']
    lines += [f"package {file.package};"] if file.package else []
    lines += [f'import "{name}";' for name in file.dependency]
    for enum in file.enum_type:
        lines += _enum(enum)
    for message in file.message_type:
        lines += _message(message, syntax)
    return "\n".join(lines) + "\n"


def _message(message: Any, syntax: str) -> Iterator[str]:
    if message.extension or message.extension_range:
        raise ValueError(f"{message.name} has extensions")
    maps = {
        inner.name: inner for inner in message.nested_type if inner.options.map_entry
    }
    yield f"message {message.name} {{"
    yield from _indented(line for enum in message.enum_type for line in _enum(enum))
    last = max(
        (at for at, inner in enumerate(message.nested_type) if inner.name not in maps),
        default=-1,
    )
    placed = set()
    for at, inner in enumerate(message.nested_type):
        if inner.name not in maps:
            yield from _indented(_message(inner, syntax))
        elif at < last:
            # the entry of a map has an index among the messages, and records have those
            # of messages
            field = next(
                field for field in message.field if _entry(field, maps) == inner
            )
            placed.add(field.number)
            yield f"  {_field(field, maps)}"
    for lowest, highest in (
        (each.start, each.end - 1) for each in message.reserved_range
    ):
        yield f"  reserved {lowest} to {highest};"
    for name in message.reserved_name:
        yield f'  reserved "{name}";'
    for field in message.field:
        if field.number not in placed and (
            field.proto3_optional or not field.HasField("oneof_index")
        ):
            yield f"  {_label(field, maps, syntax)}{_field(field, maps)}"
    for number, oneof in enumerate(message.oneof_decl):
        within = [
            f
            for f in message.field
            if f.HasField("oneof_index") and f.oneof_index == number
        ]
        within = [field for field in within if not field.proto3_optional]
        if within:
            yield f"  oneof {oneof.name} {{"
            yield from (f"    {_field(field, maps)}" for field in within)
            yield "  }"
    yield "}"


def _label(field: Any, maps: dict[str, Any], syntax: str) -> str:
    if field.label == _REPEATED:
        return "" if _entry(field, maps) is not None else "repeated "
    if field.label == _REQUIRED:
        return "required "
    return "optional " if syntax == "proto2" or field.proto3_optional else ""


def _field(field: Any, maps: dict[str, Any]) -> str:
    options = []
    if field.HasField("default_value"):
        options.append(f"default = {_default(field)}")
    if field.options.HasField("packed"):
        options.append(f"packed = {str(field.options.packed).lower()}")
    entry = _entry(field, maps)
    type_ = (
        _type(field)
        if entry is None
        else f"map<{_type(entry.field[0])}, {_type(entry.field[1])}>"
    )
    beside = f" [{', '.join(options)}]" if options else ""
    return f"{type_} {field.name} = {field.number}{beside};"


def _default(field: Any) -> str:
    value = str(field.default_value)
    if field.type == 12:  # of bytes, the descriptor has the text with escapes
        return f'"{value}"'
    return orjson.dumps(value).decode() if field.type == 9 else value


def _entry(field: Any, maps: dict[str, Any]) -> Any:
    """Return the message of the entries if the field is a map; None: it is not."""
    return (
        maps.get(field.type_name.rpartition(".")[2])
        if field.label == _REPEATED and field.type_name
        else None
    )


def _type(field: Any) -> str:
    if field.type_name:
        return str(field.type_name)
    if field.type not in SCALARS:
        raise ValueError(f"the field {field.name} is a group")
    return SCALARS[field.type]


def _enum(enum: Any) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    if enum.options.allow_alias:
        yield "  option allow_alias = true;"
    yield from (f"  {value.name} = {value.number};" for value in enum.value)
    yield "}"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)
