"""Makes serdes of Avro records (`serdes.avro`) in a schema registry's wire format.
Values are dicts, or objects of a class.

fastavro writes 1.5 as the long 1, and any value as a boolean. So a check before the
write refuses each value that fastavro would change. Turned down: fastavro's own
validation (three times as slow as the writing).

Relies on: `schemas` (wire format and versions), `avro_limits` (called before each
read).
Source: Apache Avro 1.12, binary encoding and schema resolution, by fastavro.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from functools import cache
from io import BytesIO
from numbers import Number
from typing import (
    Any,
    TypeAlias,
    TypeVar,
    is_typeddict,
    overload,
)
from uuid import UUID

import msgspec
import orjson

from coopstreams.topology.avro_limits import (
    check_decimals,
    check_of,
    source_of,
    with_bounded_decimals,
)
from coopstreams.topology.compatibility.avro_schemas import (
    BOUNDED_DECIMAL,
    MEMBERS,
    as_read,
    parts,
    whole,
    why_unreadable,
)
from coopstreams.topology.compatibility.schema import Schema
from coopstreams.topology.errors import SerdeError
from coopstreams.topology.json_text import read_json, read_long, typed_reader
from coopstreams.topology.schemas import Codec, SchemaSerde
from coopstreams.topology.serde import Serde

T = TypeVar("T")
AvroSchema: TypeAlias = str | Mapping[str, Any] | Sequence[Any]
"""A schema as JSON text, or as its parsed values."""

Check: TypeAlias = Callable[[Any], None]
"""A function that raises a TypeError if fastavro would write a value as another
value.
"""

_WHOLE = {"int": 31, "long": 63}
"""The number of bits of each integer type, without the sign."""
_AS_THEY_ARE = (bytes, date, datetime, time, Decimal, UUID)
"""Types that msgspec leaves unconverted, because fastavro writes them itself."""


@overload
def avro(schema: AvroSchema) -> Serde[Any]: ...
@overload
def avro(schema: AvroSchema, type_: type[T]) -> Serde[T]: ...
def avro(schema: AvroSchema, type_: Any = None) -> Serde[Any]:
    """Return the serde that writes values with an Avro schema, and reads records of any
    schema that Avro can resolve to it.

    Without `type_`, a record is a dict. `type_`: a class with the schema's fields that
    msgspec knows: dataclass, Struct, TypedDict. Equal arguments give the same serde.

    Raises:
        SerdeError: fastavro is not installed, or the schema is not an Avro schema.
    """
    return _avro(_text(schema), type_)


def _text(schema: AvroSchema) -> str:
    """Return a schema as normalised JSON text, so that equal schemas are equal texts."""
    try:
        return orjson.dumps(
            read_long(orjson.loads, schema) if isinstance(schema, str) else schema
        ).decode()
    except (TypeError, ValueError) as error:
        raise SerdeError(f"serdes.avro: this is no Avro schema: {error}") from error


@cache
def _avro(text: str, type_: Any) -> SchemaSerde[Any]:
    """Return the serde of the schema in `text`, of dicts or of objects of `type_`."""
    schema = _parsed(text)
    _check_type(type_, schema)
    name = schema["name"] if isinstance(schema, dict) and "name" in schema else text
    has_map = _has_map(schema)  # other serializers write its entries in any order

    def reader(written: Schema) -> Callable[[bytes], Any]:
        ours = None if _text(written.text) == text else schema
        read = _reader(written, schema, ours)
        return (
            read if type_ is None else lambda data: msgspec.convert(read(data), type_)
        )

    def unreadable(written: Schema) -> str:
        from fastavro import parse_schema

        return why_unreadable(schema, parse_schema(whole(written)))

    codec = Codec(
        name,
        Schema(text, "AVRO"),
        _writer(schema, type_, has_map=has_map),
        reader,
        unreadable,
        (_avro, (text, type_)),
    )
    shown = name if type_ is None else f"{name} as {type_.__name__}"
    return SchemaSerde(
        f"avro({shown})",
        codec.encode,
        codec.decode,
        codec,
        _json_reader(schema) if type_ is None else typed_reader(type_),
        check_key=codec.check_form if has_map else codec.check_key,
        read_back=type_ is not None,  # the schema may allow what the class does not
    )


def _parsed(text: str) -> Any:
    """Return a schema as fastavro parses it, with decimals of limited length."""
    try:
        from fastavro import parse_schema
    except ImportError:
        raise SerdeError(
            'serdes.avro needs fastavro: pip install "coopstreams[registry]"'
        ) from None
    try:
        given = orjson.loads(text)
        parse_schema(given)  # it checks decimals by the name of their type
        schema: Any = parse_schema(with_bounded_decimals(given))
    except Exception as error:
        raise SerdeError(
            f"serdes.avro: this is no Avro schema: {type(error).__name__}: {error}"
        ) from error
    check_decimals(given)
    return schema


def _check_type(type_: Any, schema: Any) -> None:
    """Check that a class fits the kind of the schema."""
    is_record = isinstance(schema, dict) and schema["type"] == "record"
    if is_record and isinstance(type_, type) and issubclass(type_, tuple):
        raise SerdeError(
            f"serdes.avro: {type_.__name__} is a tuple, which msgspec writes as an array, and the schema is a record, "
            "whose fields have names: make it a dataclass, a msgspec Struct or a TypedDict"
        )


def _writer(
    schema: Any,
    type_: Any,
    *,
    has_map: bool,
) -> Callable[[Any], bytes]:
    """Return the function that writes a value with a schema. With `type_`, the function
    takes an object of that class.

    `has_map`: whether the schema has a map, whose entries are then sorted by key.
    """
    from fastavro import schemaless_writer

    fits = _check_of(schema, {})

    def write(value: Any) -> bytes:
        if has_map:
            value = _sorted(value)
        if fits is not None:
            fits(value)
        out = BytesIO()
        schemaless_writer(out, schema, value, strict_allow_default=True)
        return out.getvalue()

    outer = dict if is_typeddict(type_) else type_

    def write_object(value: Any) -> bytes:
        if not isinstance(value, outer):
            raise TypeError(f"expected {type_.__name__}, got {type(value).__name__}")
        return write(msgspec.to_builtins(value, builtin_types=_AS_THEY_ARE))

    return write if type_ is None else write_object


def _reader(
    written: Schema,
    schema: Any,
    ours: Any,
) -> Callable[[bytes], Any]:
    """Return the function that reads records written with the schema `written`.

    `schema`: the schema of this serde. `ours`: the same schema if records must be
    converted to it, None if they were written with it.
    """
    from fastavro import parse_schema, schemaless_reader

    def parse(_: str) -> Any:
        return parse_schema(with_bounded_decimals(as_read(whole(written), schema)))

    parsed = read_long(parse, written.text)
    check = check_of(parsed)

    def read(data: bytes) -> Any:
        if check is not None:
            check(data, 5)
        source = source_of(data)
        source.seek(5)
        value = schemaless_reader(source, parsed, ours)
        if source.tell() != len(data):
            raise ValueError(f"{len(data) - source.tell()} bytes follow the record")
        return value

    return read


def _json_reader(schema: Any) -> Callable[[bytes], Any]:
    """Return the function that reads a value from the JSON in which queries show it."""
    of_json = _from_json(schema, {})

    def read(data: bytes) -> Any:
        try:
            return of_json(read_json(data))
        except (AttributeError, TypeError, ValueError, ArithmeticError) as error:
            raise SerdeError(f"{type(error).__name__}: {error}") from error

    return read


def _check_of(schema: Any, named: dict[str, Check]) -> Check | None:
    """Return the check of a schema's values, or None if fastavro itself refuses every
    value that does not fit. fastavro does so for unions.

    `named`: the checks of the records by name; a schema may refer to an outer record.
    """
    if isinstance(schema, list):
        return None
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return _check_of(kind, named)
    if kind == "record":
        return _record_check(schema, named)
    if kind == "array":
        return _array_check(_check_of(schema["items"], named))
    if kind == "map":
        return _map_check(_check_of(schema["values"], named))
    if kind in _WHOLE:
        return _whole_check(kind)
    return _FITTING.get(kind) or named.get(kind)


def _record_check(schema: Mapping[str, Any], named: dict[str, Check]) -> Check | None:
    """Return the check of a record; None: all of its fields are written as they are.
    `named`: gets it under the record's name.
    """
    fields: list[tuple[str, Check]] = []

    def check(value: Any) -> None:
        if not isinstance(value, dict):
            return
        for name, inner in fields:
            if name in value:
                try:
                    inner(value[name])
                except TypeError as error:
                    raise TypeError(f"{name}: {error}") from None

    # before the fields are looked at: one of them may be a record of this name
    named[schema["name"]] = check
    found = [
        (field["name"], _check_of(field["type"], named)) for field in schema["fields"]
    ]
    fields += [(name, inner) for name, inner in found if inner is not None]
    return check if fields else None


def _array_check(inner: Check | None) -> Check:
    """Return the check of an array; `inner` checks its items, None: nothing to check."""

    def check(value: Any) -> None:
        if isinstance(
            value,
            str | bytes | Mapping,
        ):  # it would be an array of its parts
            _refuse(value, "array")
        if inner is not None:
            for item in value:
                inner(item)

    return check


def _map_check(inner: Check | None) -> Check | None:
    """Return the check of a map; `inner` checks its values; None: nothing to check."""

    def check(value: Any) -> None:
        if inner is not None and isinstance(value, Mapping):
            for item in value.values():
                inner(item)

    return None if inner is None else check


def _whole_check(kind: str) -> Check:
    """Return the check of an int or a long: fastavro would cut off a fraction."""
    end = 1 << _WHOLE[kind]

    def check(value: Any) -> None:
        # Dates and times of logical types are no numbers: fastavro makes numbers of
        # them.
        if type(value) is int or isinstance(value, Number):
            number: Any = value
            if int(number) != number or not -end <= number < end:
                _refuse(value, kind)

    return check


def _fitting_check(kind: str, *fitting: Any) -> Check:
    """Return the check that a value is one of `fitting`."""

    def check(value: Any) -> None:
        if value not in fitting:
            _refuse(value, kind)

    return check


def _refuse(value: Any, kind: str) -> None:
    raise TypeError(f"{value!r} is no {kind}")


_FITTING = {
    "boolean": _fitting_check("boolean", True, False),
    "null": _fitting_check("null", None),
}


def _has_map(schema: Any) -> bool:
    return (isinstance(schema, dict) and schema["type"] == "map") or any(
        map(_has_map, parts(schema))
    )


def _sorted(value: Any) -> Any:
    """Return a value whose dicts have their entries in key order, so that equal maps
    give equal bytes.
    """
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return (
        (value[0], _sorted(value[1]))
        if isinstance(value, tuple) and len(value) == 2
        else value
    )


Read: TypeAlias = Callable[[Any], Any]
"""A function that returns the value for one part of the JSON. It raises a ValueError or
a TypeError if the part stands for no value.
"""


def _from_json(schema: Any, named: dict[str, Read]) -> Read:
    """Return the function that converts the JSON of a schema's values to values. In
    that JSON, bytes are base64, decimals and times are text.

    Shape: `schema` is parsed by fastavro; `named` has the functions of the schema's
    named types.
    Source: `query.formats.to_json`, which writes that JSON.
    """
    if isinstance(schema, list):
        return _union(schema, [_from_json(branch, named) for branch in schema])
    if not isinstance(schema, dict):
        return named.get(schema) or _PLAIN.get(schema, _same)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _from_json(kind, named)
    if kind == "record":
        return _record(schema, named)
    if kind in MEMBERS:
        return _members(kind, _from_json(schema[MEMBERS[kind]], named))
    logical = _LOGICAL.get(schema.get("logicalType", ""))
    found = logical or _PLAIN.get(kind, _same)
    if "name" in schema:
        named[schema["name"]] = found
    return named.get(kind, found)


def _members(kind: str, member: Read) -> Read:
    if kind == "array":
        return lambda value: [member(item) for item in value]
    return lambda value: {name: member(item) for name, item in value.items()}


def _record(schema: Mapping[str, Any], named: dict[str, Read]) -> Read:
    """Return the function that makes a record of JSON values. `named`: gets it under
    the record's name.
    """
    fields: dict[str, Read] = {}

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError(f"{value!r} is no record")
        return {name: fields.get(name, _same)(item) for name, item in value.items()}

    named[schema["name"]] = read  # before the fields, as in `_record_check`
    fields |= {
        field["name"]: _from_json(field["type"], named) for field in schema["fields"]
    }
    return read


def _union(branches: list[Any], readers: list[Read]) -> Read:
    """Return the function that makes a JSON value one of the first branch that takes
    it.
    """
    from fastavro.validation import validate

    def read(value: Any) -> Any:
        for branch, of in zip(branches, readers, strict=True):
            try:
                if validate(found := of(value), branch, raise_errors=False):
                    return found
            except (AttributeError, TypeError, ValueError, ArithmeticError):
                continue
        return value

    return read


def _same(value: Any) -> Any:
    return value


_PLAIN: Mapping[str, Read] = {"bytes": base64.b64decode, "fixed": base64.b64decode}
_LOGICAL: Mapping[str, Read] = {
    BOUNDED_DECIMAL: Decimal,
    "uuid": UUID,
    **dict.fromkeys(
        (
            "timestamp-millis",
            "timestamp-micros",
            "local-timestamp-millis",
            "local-timestamp-micros",
        ),
        datetime.fromisoformat,
    ),
    **dict.fromkeys(("time-millis", "time-micros"), time.fromisoformat),
}
