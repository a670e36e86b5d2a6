"""Makes serdes of Protobuf messages (`serdes.protobuf`), in a schema registry's wire
format.

The schema id is followed by the indexes that lead to the message within its file, as
zigzag varints; for the first message, by one zero byte. A message of any version is
read by its field numbers, so the writer's schema only identifies the message.
Registries have the source text of a file, or its descriptor in base64. If this process
can read neither, the indexes must equal those of our message.

Invariant: equal messages without unknown fields have equal bytes (maps are written in
the order of their keys). Other serializers write maps in any order. Readers of a topic
refuse a key with other bytes. Turned down: requesting descriptors
(`format=serialized`): Apicurio 3.3 returns them as damaged text.
Source: Confluent, "Wire format" and "Protobuf Schema Serializer".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeVar

from coopstreams.topology.compatibility.protobuf_changes import (
    files_of,
    message_at,
    parts_of,
    path_to,
    why_unreadable,
)
from coopstreams.topology.compatibility.protobuf_text import source_of
from coopstreams.topology.compatibility.schema import Reference, Schema
from coopstreams.topology.errors import SerdeError
from coopstreams.topology.json_text import read_long
from coopstreams.topology.schemas import Codec, SchemaSerde
from coopstreams.topology.serde import Serde, read_varint, varint

M = TypeVar("M")

_MOST_INDEXES = 100
"""The most message indexes of a record. Protobuf reads no messages that are nested
deeper.
"""
_KNOWN = "google/protobuf/"
"""The prefix of the files that every registry has."""


def protobuf(message: type[M]) -> Serde[M]:
    """Return the serde of a message class that protoc has generated. Equal arguments
    give the same serde.

    Raises:
        SerdeError: protobuf is not installed, the class is not a message class, or a
            file cannot be given to a registry.
    """
    made: Any = message
    return _protobuf(made)


@cache
def _protobuf(message: Any) -> SchemaSerde[Any]:
    try:
        from google.protobuf import json_format
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
    except ImportError:
        raise SerdeError(
            'serdes.protobuf needs protobuf: pip install "coopstreams[registry]"'
        ) from None
    described: Any = getattr(message, "DESCRIPTOR", None)
    if not hasattr(described, "fields_by_number"):
        raise SerdeError(
            f"serdes.protobuf: {message!r} is no message class, as protoc makes them"
        )
    name = described.full_name
    schema = _schema_of(described.file)
    ours = tuple(
        FileDescriptorProto.FromString(file.serialized_pb)
        for file in dict.fromkeys(_with_imports(described.file))
    )
    path = path_to(ours[0], name)
    parts = parts_of(ours, name)
    assert path is not None

    def write(value: Any) -> bytes:
        if not isinstance(value, message):
            raise TypeError(f"expected {message.__name__}, got {type(value).__name__}")
        return value.SerializeToString(deterministic=True)  # type: ignore[no-any-return]

    def reader(written: Schema) -> Callable[[bytes], Any]:
        files = ours if written == schema else files_of(written)
        return _reader(message.FromString, name, path, files)

    def unreadable(written: Schema) -> str:
        files = files_of(written)
        return why_unreadable(ours, files, name) if files else ""

    def from_json(text: bytes) -> Any:
        try:
            return read_long(lambda data: json_format.Parse(data, message()), text)
        except json_format.ParseError as error:
            raise SerdeError(str(error)) from error

    def same(written: Schema) -> bool:
        files = files_of(written)
        return bool(files) and parts_of(files, name) == parts

    codec = Codec(
        name,
        schema,
        write,
        reader,
        unreadable,
        (_protobuf, (message,)),
        _indexes(path),
        same,
    )
    return SchemaSerde(
        f"protobuf({name})",
        codec.encode,
        codec.decode,
        codec,
        from_json,
        check_key=codec.check_form,
    )


def _reader(
    parse: Callable[[bytes], Any],
    name: str,
    path: tuple[int, ...],
    files: tuple[Any, ...],
) -> Callable[[bytes], Any]:
    """Return the function that reads records of the message `name`, and raises a
    SerdeError for records of other messages.

    `files`: the writer's files, which tell the message of a record. `path`: the indexes
    of our message, which records must have if there are no files.
    """

    @cache
    def check(indexes: tuple[int, ...]) -> None:
        if files:
            found = message_at(files[0], indexes)
        else:
            found = name if indexes == path else None
        if found != name:
            raise SerdeError(
                f"it is a {found or f'message {list(indexes)} of its file'}, not a {name}"
            )

    def read(data: bytes) -> Any:
        indexes, at = _read_indexes(data)
        check(indexes)
        return parse(data[at:])

    return read


def _schema_of(file: Any) -> Schema:
    """Return the schema of a file, with those of the files that it imports.

    Raises:
        SerdeError: one of the files cannot be given to a registry.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    try:
        text = source_of(FileDescriptorProto.FromString(file.serialized_pb))
    except ValueError as error:
        raise SerdeError(
            f"serdes.protobuf: {file.name} cannot be given to a registry: {error}"
        ) from error
    return Schema(
        text,
        "PROTOBUF",
        tuple(Reference(each.name, _schema_of(each)) for each in _imports(file)),
    )


def _imports(file: Any) -> list[Any]:
    return [each for each in file.dependencies if not each.name.startswith(_KNOWN)]


def _with_imports(file: Any) -> Iterator[Any]:
    """Yield a file and all files that it imports, directly or not. A file may be
    yielded twice.
    """
    yield file
    for each in _imports(file):
        yield from _with_imports(each)


def _indexes(path: tuple[int, ...]) -> bytes:
    if path == (0,):
        return b"\0"
    return b"".join(
        varint(number << 1) for number in (len(path), *path)
    )  # zigzag, of numbers that are not negative


def _read_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the message indexes of a record, and the offset at which its message
    begins.
    """
    count, at = read_varint(data, 5)
    if count & 1:
        raise SerdeError(
            "its message indexes are not zigzag varints (the deprecated format of Confluent's client)"
        )
    if not count >> 1:
        return (0,), at
    if count >> 1 > _MOST_INDEXES:
        raise SerdeError(
            f"it has {count >> 1} message indexes: at most {_MOST_INDEXES} messages are within each other"
        )
    path = []
    for _ in range(count >> 1):
        number, at = read_varint(data, at)
        path.append(number >> 1)
    return tuple(path), at
