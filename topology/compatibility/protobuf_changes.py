"""Checks whether a message of one version of a Protobuf file can be read with another.

A file is given in a sequence: first the file, then the files that it imports.

Unknown fields are kept, and missing ones have defaults, so only the fields that both
versions have can differ: their encoding on the wire must be the same.

Source: Protocol Buffers, "Encoding" and "Updating A Message Type".
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import Any

from coopstreams.topology.compatibility.protobuf_text import parsed, plain
from coopstreams.topology.compatibility.schema import Schema

_WIRE = {
    **dict.fromkeys(
        (3, 4, 5, 8, 13, 14),
        "a varint",
    ),  # int64, uint64, int32, bool, uint32, enum
    **dict.fromkeys((17, 18), "a zigzag varint"),  # sint32, sint64
    **dict.fromkeys((6, 16), "8 bytes"),  # fixed64, sfixed64
    **dict.fromkeys((7, 15), "4 bytes"),  # fixed32, sfixed32
    **dict.fromkeys((9, 12), "a string or bytes"),
    1: "a double",
    2: "a float",
    10: "a group",
    11: "a message",
}
"""How a `FieldDescriptorProto.Type` is encoded."""
_REQUIRED = 2
_MESSAGE = 11


@cache
def files_of(schema: Schema) -> tuple[Any, ...]:
    """Return the file of a schema and the files that it imports, as
    `FileDescriptorProto`; empty if it cannot be read here.

    The text of the schema is a descriptor in base64, or source text, of which the
    result lacks what `protobuf_text` passes over.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    others = tuple(
        chain.from_iterable(files_of(each.schema) for each in schema.references)
    )
    with suppress(binascii.Error, ValueError, DecodeError):
        return FileDescriptorProto.FromString(
            base64.b64decode(schema.text, validate=True)
        ), *others
    with suppress(ValueError):
        return parsed(schema.text, others), *others
    return ()


def why_unreadable(
    reader: Sequence[Any],
    writer: Sequence[Any],
    name: str,
) -> str:
    """Return why the message `name` of the files `writer` cannot be read as that of
    `reader`; empty if it can.

    Shape: both are `FileDescriptorProto`; `name` is the full name of the message.
    """
    return _why(name, dict(_messages(reader)), dict(_messages(writer)), "", set())


def message_at(file: Any, path: tuple[int, ...]) -> str | None:
    """Return the full name of the message to which a path of indexes leads; None if
    there is none. Each index counts the messages nested in the message before it.
    """
    found = file.package
    within = file.message_type
    for number in path:
        if number >= len(within):
            return None
        found = f"{found}.{within[number].name}".removeprefix(".")
        within = within[number].nested_type
    return str(found)


def parts_of(files: Sequence[Any], name: str) -> tuple[Any, ...]:
    """Return all that decides how a message is written: its place in its file, and the
    messages and enums within it.

    Two files with equal parts write equal messages as equal bytes, apart from the
    schema id.
    """
    plains = [plain(file, files) for file in files]
    messages = dict(_messages(plains))
    enums = dict(_enums(plains))
    waiting = [name]
    parts = dict[str, Any]()
    while waiting:
        if (each := waiting.pop()) in parts or each not in messages:
            continue
        parts[each] = [
            (field.SerializeToString(deterministic=True))
            for field in messages[each].field
        ]
        parts[each] += [oneof.name for oneof in messages[each].oneof_decl]
        inner = [_inner(field) for field in messages[each].field]
        parts |= {
            other: enums[other].SerializeToString(deterministic=True)
            for other in inner
            if other in enums
        }
        waiting += inner
    return plains[0].syntax, path_to(plains[0], name), parts


def path_to(file: Any, name: str) -> tuple[int, ...] | None:
    """Return the path of indexes that leads to a message, as of `message_at`; None if
    there is no such message.
    """
    path: tuple[int, ...] = ()
    found = file.package
    within = file.message_type
    while found != name or not path:
        names = [f"{found}.{message.name}".removeprefix(".") for message in within]
        at = next(
            (at for at, each in enumerate(names) if f"{name}.".startswith(f"{each}.")),
            None,
        )
        if at is None:
            return None
        found = names[at]
        within = within[at].nested_type
        path = (*path, at)
    return path


def _why(
    name: str,
    readers: dict[str, Any],
    writers: dict[str, Any],
    at: str,
    seen: set[str],
) -> str:
    if name in seen:
        return ""
    seen.add(name)
    if name not in writers:
        return f"{at or 'the value'}: there is no message {name}"
    written = {field.number: field for field in writers[name].field}
    for field in readers[name].field:
        place = f"{at}.{field.name}".removeprefix(".")
        other = written.get(field.number)
        if why := _why_field(field, other, place):
            return why
        inner = _inner(field)
        followed = (
            other is not None
            and field.type == other.type == _MESSAGE
            and inner in readers
            and _inner(other) == inner
        )
        if followed and (why := _why(inner, readers, writers, place, seen)):
            return why
    return ""


def _why_field(
    field: Any,
    other: Any,
    place: str,
) -> str:
    """Return why a field cannot be read, apart from messages within it; empty if it
    can.

    `other`: the writer's field with the same number, or None.
    """
    if other is None:
        required = field.label == _REQUIRED
        return f"{place}: it is required, and not written" if required else ""
    if not other.HasField("type"):  # it is a type of a file whose text was not read
        return ""
    ours = _WIRE[field.type]
    theirs = _WIRE[other.type]
    if ours == theirs:
        return ""
    return (
        f"{place}: it is written as {theirs} (field {other.name}), and read as {ours}"
    )


def _inner(field: Any) -> str:
    """Return the full name of the message or enum that a field has."""
    name: str = field.type_name
    return name.removeprefix(".")


def _enums(files: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the enums of some files by their full names."""
    for file in files:
        yield from (
            (f"{file.package}.{enum.name}".removeprefix("."), enum)
            for enum in file.enum_type
        )
    for name, message in _messages(files):
        yield from ((f"{name}.{enum.name}", enum) for enum in message.enum_type)


def _messages(files: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the messages of some files by their full names."""
    waiting = [
        (f"{file.package}.{message.name}".removeprefix("."), message)
        for file in files
        for message in file.message_type
    ]
    while waiting:
        name, message = waiting.pop()
        yield name, message
        waiting += [(f"{name}.{inner.name}", inner) for inner in message.nested_type]
