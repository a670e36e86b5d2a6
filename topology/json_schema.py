"""Makes serdes of JSON values with a schema (`serdes.json_schema`), in a schema
registry's wire format.

Invariant: a value is written in one form: without spaces, the entries of objects in the
order of their names, the fields of a class in its order. A key in another form has
other bytes, so it would be another key although its id is the same. Readers of a topic
refuse it.
Relies on: `schemas` (wire format and versions), `compatibility.json_schema_changes`.
Source: JSON Schema 2020-12; Confluent, "JSON Schema Serializer".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from inspect import cleandoc
from typing import (
    Any,
    TypeVar,
    is_typeddict,
    overload,
)

import msgspec
import orjson

from coopstreams.topology.compatibility.json_schema_changes import (
    compared,
    why_unreadable,
)
from coopstreams.topology.compatibility.schema import Schema
from coopstreams.topology.errors import SerdeError
from coopstreams.topology.json_text import read_long, typed_reader
from coopstreams.topology.schemas import Codec, SchemaSerde
from coopstreams.topology.serde import (
    Serde,
    check_nulls,
    shortened,
    undefined,
)

T = TypeVar("T")

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


@overload
def json_schema(schema: type[T]) -> Serde[T]: ...
@overload
def json_schema(schema: str | Mapping[str, Any]) -> Serde[Any]: ...
def json_schema(schema: Any) -> Serde[Any]:
    """Return the serde of JSON values with a schema. `schema`: a class, JSON text, or
    the parsed values of JSON text.

    A class is a dataclass, Struct or TypedDict that msgspec knows; the schema is made
    from it. Without a class, values are those of `serdes.json`, validated when written
    and read. Equal arguments give the same serde.

    Raises:
        SerdeError: jsonschema-rs is not installed, the schema is not valid, or a name
            in an annotation is not defined.
    """
    if isinstance(schema, (str, Mapping)):
        return _of_schema(_text(schema))
    return _of_class(schema)


def _text(schema: str | Mapping[str, Any]) -> str:
    try:
        return orjson.dumps(
            orjson.loads(schema) if isinstance(schema, str) else dict(schema)
        ).decode()
    except (TypeError, ValueError) as error:
        raise SerdeError(
            f"serdes.json_schema: this is no JSON Schema: {error}"
        ) from error


@cache
def _of_schema(text: str) -> SchemaSerde[Any]:
    try:
        import jsonschema_rs
    except ImportError:
        raise SerdeError(
            'serdes.json_schema needs jsonschema-rs: pip install "coopstreams[registry]"'
        ) from None
    schema = orjson.loads(text)
    try:
        validator = jsonschema_rs.validator_for(schema)
    except ValueError as error:
        raise SerdeError(
            f"serdes.json_schema: this is no JSON Schema: {error}"
        ) from error

    def checked(value: Any) -> Any:
        try:
            validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            place = "/".join(map(str, error.instance_path))
            raise SerdeError(
                f"{shortened(place) or 'the value'}: {shortened(error.message)}"
            ) from None  # the error's own text is many lines
        return value

    def write(value: Any) -> bytes:
        data = orjson.dumps(checked(value), option=orjson.OPT_SORT_KEYS)
        if data.find(b"null") >= 0:
            check_nulls(value, data, orjson.loads)
        return data

    def read_checked(data: bytes) -> Any:
        return checked(orjson.loads(data))

    def read(data: bytes) -> Any:
        return read_long(read_checked, data)  # the error has a copy of the value

    return _serde(
        str(schema.get("title", text)),
        text,
        write,
        read,
        (_of_schema, (text,)),
    )


@cache
def _of_class(type_: Any) -> SchemaSerde[Any]:
    try:
        (schema,), others = msgspec.json.schema_components(
            (type_,),
            ref_template="#/$defs/{name}",
        )
    except NameError as error:
        raise undefined(f"serdes.json_schema cannot read {type_!r}", error) from error
    except TypeError as error:
        raise SerdeError(
            f"serdes.json_schema: {type_!r} is no class that msgspec knows: {error}"
        ) from error
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name not in others:
        raise SerdeError(f"serdes.json_schema: {type_!r} is no class with fields")
    for each in others.values():
        if (
            "description" in each
        ):  # a docstring, which Python keeps with its indentation before 3.13
            each["description"] = cleandoc(each["description"])
    text = orjson.dumps(
        {"$schema": _DIALECT, **others[name], **({"$defs": others} if others else {})}
    ).decode()
    encoder = msgspec.json.Encoder(order="deterministic")
    decode = typed_reader(type_)
    outer = dict if is_typeddict(type_) else type_

    def write(value: Any) -> bytes:
        if not isinstance(value, outer):
            raise TypeError(f"expected {type_.__name__}, got {type(value).__name__}")
        data = encoder.encode(value)
        if data.find(b"null") >= 0:
            check_nulls(value, data, decode)
        return data

    of_class = {**compared(msgspec.json.schema(type_)), "text": text}
    return _serde(
        name,
        text,
        write,
        decode,
        (_of_class, (type_,)),
        read_back=True,
        of_class=of_class,
    )


def _serde(
    name: str,
    text: str,
    write: Callable[[Any], bytes],
    read: Callable[[bytes], Any],
    remade: tuple[Any, ...],
    *,
    read_back: bool = False,
    of_class: dict[str, Any] | None = None,
) -> SchemaSerde[Any]:
    def unreadable(written: Schema) -> str:
        return why_unreadable(orjson.loads(text), orjson.loads(written.text))

    def reader(_: Schema) -> Callable[[bytes], Any]:
        return lambda data: read(data[5:])

    codec = Codec(name, Schema(text, "JSON"), write, reader, unreadable, remade)

    shown = name if len(name) < 60 else f"{name[:60]}..."
    return SchemaSerde(
        f"json_schema({shown})",
        codec.encode,
        codec.decode,
        codec,
        read,
        of_class,
        check_key=codec.check_form,
        read_back=read_back,
    )
