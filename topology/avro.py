"""`serdes.avro`: Avro records in the wire format of a schema registry, as dicts or as objects of a class.

Source: Apache Avro 1.12, binary encoding and schema resolution, by fastavro.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from functools import cache
from io import BytesIO
from typing import Any, TypeAlias, TypeVar, overload
from uuid import UUID

import msgspec
import orjson

from coopstreams.topology.compatibility.avro import why_unreadable
from coopstreams.topology.errors import SerdeError
from coopstreams.topology.schemas import Codec, Schema, SchemaSerde
from coopstreams.topology.serde import Serde

T = TypeVar("T")
AvroSchema: TypeAlias = str | Mapping[str, Any] | Sequence[Any]
"""A schema as JSON text, or as its parsed values."""

_AS_THEY_ARE = (bytes, date, datetime, time, Decimal, UUID)
"""Types that fastavro writes by itself."""


@overload
def avro(schema: AvroSchema) -> Serde[Any]: ...
@overload
def avro(schema: AvroSchema, type_: type[T]) -> Serde[T]: ...
def avro(schema: AvroSchema, type_: Any = None) -> Serde[Any]:
    """Return the serde of values that are written with an Avro schema, and read from any version that it can read.

    Without a type, a record is a dict. `type_`: a class with the schema's fields that msgspec knows: dataclass, Struct,
    TypedDict. Equal arguments give the same serde.

    Raises:
        SerdeError: fastavro is not installed, or this is no Avro schema.
    """
    return _avro(_text(schema), type_)


def _text(schema: AvroSchema) -> str:
    """Return a schema as normalised JSON text, so that equal schemas are equal texts."""
    try:
        return orjson.dumps(orjson.loads(schema) if isinstance(schema, str) else schema).decode()
    except (TypeError, ValueError) as error:
        raise SerdeError(f"serdes.avro: this is no Avro schema: {error}") from error


@cache
def _avro(text: str, type_: Any) -> SchemaSerde[Any]:
    try:
        from fastavro import parse_schema, schemaless_reader, schemaless_writer
    except ImportError:
        raise SerdeError('serdes.avro needs fastavro: pip install "coopstreams[registry]"') from None
    try:
        schema: Any = parse_schema(orjson.loads(text))
    except Exception as error:
        raise SerdeError(f"serdes.avro: this is no Avro schema: {type(error).__name__}: {error}") from error
    name = schema["name"] if isinstance(schema, dict) and "name" in schema else text

    def write(value: Any) -> bytes:
        out = BytesIO()
        schemaless_writer(out, schema, value, strict_allow_default=True)
        return out.getvalue()

    def write_object(value: Any) -> bytes:
        if not isinstance(value, type_):
            raise TypeError(f"expected {type_.__name__}, got {type(value).__name__}")
        return write(msgspec.to_builtins(value, builtin_types=_AS_THEY_ARE))

    def reader(written: str) -> Callable[[bytes], Any]:
        writers = None if _text(written) == text else schema
        parsed: Any = parse_schema(orjson.loads(written))

        def read(data: bytes) -> Any:
            source = BytesIO(data)
            source.seek(5)
            value = schemaless_reader(source, parsed, writers)
            if source.tell() != len(data):
                raise ValueError(f"{len(data) - source.tell()} bytes follow the record")
            return value

        return read if type_ is None else lambda data: msgspec.convert(read(data), type_)

    def unreadable(written: str) -> str:
        return why_unreadable(schema, parse_schema(orjson.loads(written)))

    if _has_map(schema):
        write_sorted, write = write, lambda value: write_sorted(_sorted(value))
    codec = Codec(
        name, Schema(text, "AVRO"), write if type_ is None else write_object, reader, unreadable, (_avro, (text, type_))
    )
    decoder = msgspec.json.Decoder(Any if type_ is None else type_)
    shown = name if type_ is None else f"{name} as {type_.__name__}"
    return SchemaSerde(
        f"avro({shown})",
        codec.encode,
        codec.decode,
        codec,
        decoder.decode,
        check_key=codec.check_key,
        read_back=type_ is not None,  # the schema may allow what the class does not
    )


def _has_map(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_has_map, schema))
    if not isinstance(schema, dict):
        return False
    inner = [*schema.get("fields", ()), schema.get("items"), schema.get("type")]
    return schema["type"] == "map" or any(map(_has_map, inner))


def _sorted(value: Any) -> Any:
    """Return a value with the entries of dicts in the order of their keys, in which Avro writes those of a map."""
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return (value[0], _sorted(value[1])) if isinstance(value, tuple) and len(value) == 2 else value
