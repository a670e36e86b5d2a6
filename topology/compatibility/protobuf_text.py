"""Parses and writes the source text of Protobuf files, because schema registries take
and return text. A message class has the descriptor only.

`parsed` reads which messages a text has, at which places, and how their fields are
encoded. Options, comments, services, defaults, reserved numbers and extensions are
passed over: they are not on the wire. A type of a file that is not given has no `type`
in the result: it may be a message or an enum. `source_of` leaves out custom options,
services and comments.

Invariant: `plain(parsed(text)) == plain(file)` for the text of a descriptor, if it
names types of other files in full.
Turned down: protoc, or a parser of all of the language: the registry has checked the
text. The descriptor in base64: Confluent's registry takes it, Apicurio's does not.
Source: Protocol Buffers, "Language Specification" (proto2, proto3).
"""

from __future__ import annotations

import re
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
"""The names of the scalar types, by their number in `FieldDescriptorProto.Type`."""
_REQUIRED = 2
_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|\s+|("(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|[A-Za-z_.][\w.]*|[-+]?\d[\w.]*|[^\w\s])""",
    re.DOTALL,
)
"""Matches one token, comment or run of spaces. A comment or string that is not closed
is one token, so that the search for its end is not repeated.
"""
_LABELS = {"optional": 1, "required": 2, "repeated": 3}
_TYPES = {name: number for number, name in SCALARS.items()}
_GROUP = 10
_MESSAGE = 11
_ENUM = 14
_REPEATED = 3
_CLOSING = {"{": "}", "[": "]", "<": ">", "(": ")"}


def parsed(text: str, imported: Iterable[Any] = ()) -> Any:
    """Return the `FileDescriptorProto` of a source text, without the parts that are
    passed over. `imported`: the files that it imports.

    Raises:
        ValueError: it is no source text of Protobuf.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    tokens = _Tokens(text)
    file: Any = FileDescriptorProto(syntax="proto2")
    while tokens.more():
        word = tokens.take()
        if word in ("syntax", "edition"):
            tokens.expect("=")
            file.syntax = tokens.take()[1:-1] if word == "syntax" else "editions"
            tokens.expect(";")
        elif word == "package":
            file.package = tokens.take()
            tokens.expect(";")
        elif word == "message":
            _message(tokens, file.message_type.add(name=tokens.take()))
        elif word == "enum":
            _enum(tokens, file.enum_type.add(name=tokens.take()))
        elif word != ";":  # import, option, service, extend
            tokens.skip()
    _resolve(file, _types_of((file, *imported)))
    return file


def plain(file: Any, imported: Iterable[Any] = ()) -> Any:
    """Return a `FileDescriptorProto` with nothing but what `parsed` reads, and fields
    in the order of their numbers.
    """
    bare = type(file)(syntax=file.syntax or "proto2")
    if file.package:
        bare.package = file.package
    known = _types_of((file, *imported))
    for enum in file.enum_type:
        _plain_enum(bare.enum_type.add(), enum)
    for message in file.message_type:
        _plain_message(bare.message_type.add(), message, known)
    return bare


class _Tokens:
    """The tokens of a text, without comments."""

    def __init__(self, text: str) -> None:
        self._all = [
            match[1] for match in _TOKEN.finditer(text) if match[1] is not None
        ]
        self._at = 0

    def more(self) -> bool:
        """Whether there is another token."""
        return self._at < len(self._all)

    def peek(self) -> str:
        """Return the next token without taking it."""
        if not self.more():
            raise ValueError("the text ends within a definition")
        return self._all[self._at]

    def take(self) -> str:
        """Return the next token and move past it."""
        token = self.peek()
        self._at += 1
        return token

    def expect(self, wanted: str) -> None:
        """Take the next token, which must be `wanted`; else raise a ValueError."""
        if (token := self.take()) != wanted:
            raise ValueError(f"there is {token!r} where {wanted!r} is expected")

    def skip(self) -> None:
        """Move past the end of a statement: a semicolon, or a block in braces that no
        semicolon follows.
        """
        while (token := self.take()) != ";":
            if token in _CLOSING and token != "<":
                self.skip_within(_CLOSING[token])
                if token == "{" and (not self.more() or self.peek() != ";"):
                    return

    def skip_within(self, closing: str) -> None:
        """Move past a closing bracket, whose opening bracket is already taken."""
        while (token := self.take()) != closing:
            if token in _CLOSING and token != "<":
                self.skip_within(_CLOSING[token])


def _message(tokens: _Tokens, message: Any) -> None:
    tokens.expect("{")
    while (word := tokens.take()) != "}":
        if word == "message":
            _message(tokens, message.nested_type.add(name=tokens.take()))
        elif word == "enum":
            _enum(tokens, message.enum_type.add(name=tokens.take()))
        elif word == "oneof":
            message.oneof_decl.add(name=tokens.take())
            tokens.expect("{")
            while (inner := tokens.take()) != "}":
                if inner == "option":
                    tokens.skip()
                elif inner != ";":
                    _field(tokens, message, inner, oneof=len(message.oneof_decl) - 1)
        elif word in ("option", "reserved", "extensions", "extend"):
            tokens.skip()
        elif word != ";":
            _field(tokens, message, word)


def _field(
    tokens: _Tokens,
    message: Any,
    word: str,
    oneof: int | None = None,
) -> None:
    label = _LABELS.get(word, 0)
    kind = tokens.take() if label else word
    field = message.field.add(label=label or 1)
    if kind == "map" and tokens.peek() == "<":
        tokens.expect("<")
        key = tokens.take()
        tokens.expect(",")
        value = tokens.take()
        tokens.expect(">")
        field.name = tokens.take()
        entry = message.nested_type.add(
            name="".join(map(_capital, field.name.split("_"))) + "Entry"
        )
        entry.options.map_entry = True
        _set_type(entry.field.add(name="key", number=1, label=1), key)
        _set_type(entry.field.add(name="value", number=2, label=1), value)
        kind = entry.name
        field.label = _REPEATED
    else:
        field.name = tokens.take()
    tokens.expect("=")
    field.number = int(tokens.take(), 0)
    if oneof is not None:
        field.oneof_index = oneof
    if word == "optional":
        field.proto3_optional = True
    if tokens.peek() == "[":
        tokens.take()
        tokens.skip_within("]")
    if kind == "group":
        field.type = _GROUP
        field.type_name = field.name
        _message(tokens, message.nested_type.add(name=field.name))
        field.name = field.name.lower()
    else:
        _set_type(field, kind)
        tokens.expect(";")


def _capital(word: str) -> str:
    return word[:1].upper() + word[1:]


def _set_type(field: Any, kind: str) -> None:
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type_name = kind


def _enum(tokens: _Tokens, enum: Any) -> None:
    tokens.expect("{")
    while (word := tokens.take()) != "}":
        if word in ("option", "reserved") and tokens.peek() != "=":
            tokens.skip()
        elif word != ";":
            tokens.expect("=")
            sign = tokens.take()
            enum.value.add(
                name=word,
                number=int(sign + tokens.take() if sign == "-" else sign, 0),
            )
            tokens.skip()


def _resolve(file: Any, known: dict[str, int]) -> None:
    """Set the full names and types of messages and enums in the fields that refer to
    them, if they are `known`.
    """

    def of(scope: str, messages: Any) -> None:
        for message in messages:
            within = f"{scope}.{message.name}".removeprefix(".")
            for field in message.field:
                if file.syntax != "proto3":
                    field.ClearField("proto3_optional")
                if not field.type_name:
                    continue
                if found := _found(field.type_name, within, known):
                    field.type = field.type if field.type == _GROUP else known[found]
                field.type_name = f".{found or field.type_name.removeprefix('.')}"
            of(within, message.nested_type)

    of(file.package, file.message_type)


def _types_of(files: Iterable[Any]) -> dict[str, int]:
    """Return the types of the messages and enums of some files, by their full names."""
    return {
        name: type_
        for file in files
        for name, type_ in _named(file.package, file.message_type, file.enum_type)
    }


def _named(
    scope: str,
    messages: Any,
    enums: Any,
) -> Iterator[tuple[str, int]]:
    yield from ((f"{scope}.{enum.name}".removeprefix("."), _ENUM) for enum in enums)
    for message in messages:
        name = f"{scope}.{message.name}".removeprefix(".")
        yield name, _MESSAGE
        yield from _named(name, message.nested_type, message.enum_type)


def _found(
    name: str,
    scope: str,
    known: dict[str, int],
) -> str | None:
    """Return the full name of a type that is named within a scope; None if it is of
    another file.
    """
    if name.startswith("."):
        return name[1:] if name[1:] in known else None
    while True:
        if (full := f"{scope}.{name}".removeprefix(".")) in known:
            return full
        if not scope:
            return None
        scope = scope.rpartition(".")[0]


def _plain_message(
    bare: Any,
    message: Any,
    known: dict[str, int],
) -> None:
    bare.name = message.name
    if message.options.map_entry:
        bare.options.map_entry = True
    for enum in message.enum_type:
        _plain_enum(bare.enum_type.add(), enum)
    for inner in sorted(
        message.nested_type,
        key=lambda each: each.name if each.options.map_entry else "",
    ):
        _plain_message(bare.nested_type.add(), inner, known)
    synthetic = {field.oneof_index for field in message.field if field.proto3_optional}
    for number, oneof in enumerate(message.oneof_decl):
        if number not in synthetic or not oneof.name.startswith("_"):
            bare.oneof_decl.add(name=oneof.name)
    for field in sorted(message.field, key=lambda each: each.number):
        made = bare.field.add(name=field.name, number=field.number, label=field.label)
        _copy_type(made, field, known)


def _copy_type(
    made: Any,
    field: Any,
    known: dict[str, int],
) -> None:
    """Copy the type of a field, and whether it is optional or in a oneof."""
    if field.type_name:
        made.type_name = field.type_name
    if not field.type_name or field.type_name[1:] in known:
        made.type = field.type
    if field.proto3_optional:
        made.proto3_optional = True
    elif field.HasField("oneof_index"):
        made.oneof_index = field.oneof_index


def _plain_enum(bare: Any, enum: Any) -> None:
    bare.name = enum.name
    for value in enum.value:
        bare.value.add(name=value.name, number=value.number)


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
        lines += _enum_lines(enum)
    for message in file.message_type:
        lines += _message_lines(message, syntax)
    return "\n".join(lines) + "\n"


def _message_lines(message: Any, syntax: str) -> Iterator[str]:
    if message.extension or message.extension_range:
        raise ValueError(f"{message.name} has extensions")
    maps = _map_entries(message)
    yield f"message {message.name} {{"
    for enum in message.enum_type:
        yield from _indented(_enum_lines(enum))
    early = _maps_before_messages(message, maps)
    for inner in message.nested_type:
        if inner.name not in maps:
            yield from _indented(_message_lines(inner, syntax))
        elif inner.name in early:
            yield f"  {_field_line(early[inner.name], maps)}"
    yield from _indented(_reserved_lines(message))
    placed = {field.number for field in early.values()}
    for field in message.field:
        if field.number not in placed and not _is_in_oneof(field):
            yield f"  {_label(field, maps, syntax)}{_field_line(field, maps)}"
    yield from _indented(_oneof_lines(message, maps))
    yield "}"


def _map_entries(message: Any) -> dict[str, Any]:
    """Return the entry messages of the map fields, by name."""
    return {
        inner.name: inner for inner in message.nested_type if inner.options.map_entry
    }


def _reserved_lines(message: Any) -> Iterator[str]:
    for each in message.reserved_range:
        yield f"reserved {each.start} to {each.end - 1};"
    for name in message.reserved_name:
        yield f'reserved "{name}";'


def _maps_before_messages(message: Any, maps: dict[str, Any]) -> dict[str, Any]:
    """Return the map fields whose entries come before a nested message, by the names of
    the entries.

    They must be written before that message: an entry has an index among the nested
    messages, and records refer to messages by index.
    """
    names = [inner.name for inner in message.nested_type]
    while names and names[-1] in maps:
        names.pop()
    fields = [(_entry(field, maps), field) for field in message.field]
    return {
        entry.name: field
        for entry, field in fields
        if entry is not None and entry.name in names
    }


def _is_in_oneof(field: Any) -> bool:
    return bool(field.HasField("oneof_index") and not field.proto3_optional)


def _oneof_lines(message: Any, maps: dict[str, Any]) -> Iterator[str]:
    inside = [field for field in message.field if _is_in_oneof(field)]
    for number, oneof in enumerate(message.oneof_decl):
        fields = [field for field in inside if field.oneof_index == number]
        if fields:
            yield f"oneof {oneof.name} {{"
            yield from (f"  {_field_line(field, maps)}" for field in fields)
            yield "}"


def _label(
    field: Any,
    maps: dict[str, Any],
    syntax: str,
) -> str:
    if field.label == _REPEATED:
        return "" if _entry(field, maps) is not None else "repeated "
    if field.label == _REQUIRED:
        return "required "
    return "optional " if syntax == "proto2" or field.proto3_optional else ""


def _field_line(field: Any, maps: dict[str, Any]) -> str:
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
    """Return the entry message of a map field; None if the field is no map."""
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


def _enum_lines(enum: Any) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    if enum.options.allow_alias:
        yield "  option allow_alias = true;"
    yield from (f"  {value.name} = {value.number};" for value in enum.value)
    yield "}"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)
