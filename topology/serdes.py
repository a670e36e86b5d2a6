"""The built-in serdes, which convert values to bytes and back.

A `Serde` is a name and two functions. Keys are hashed, routed and stored as bytes, so a
serde must always write the same bytes for the same key. Null is not a value: the caller
passes null through, and None is never passed to either function.

Invariant: `deserialize(serialize(value)) == value`. A value or bytes that do not fit
raise `SerdeError`; they never become other bytes. Turned down: choosing a serde by the
type of a value at run time (one record in a million corrupts a topic), or by the
annotations of a function (correcting one would change the bytes of a topic); a class
instead of a serde (it does not name the format); comparing serdes by name (two teams
call theirs "json").
Relies on: `serde` (what is read back, and when). A serde's name is compared between
versions (`graph.fingerprint`, `graph.outline`, `state.manifest`): another name is
another format.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from struct import Struct
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    is_typeddict,
    overload,
)

import msgspec
import orjson

from coopstreams.topology.avro import avro as avro  # noqa: PLC0414 users call it serdes.avro
from coopstreams.topology.compatibility.json_schema_changes import compared
from coopstreams.topology.compatibility.other_names import SERDES, missing
from coopstreams.topology.durations import Duration, checked_ms
from coopstreams.topology.errors import SerdeError, TopologyError
from coopstreams.topology.json_schema import json_schema as json_schema  # noqa: PLC0414
from coopstreams.topology.json_text import decoder_of, read_json, typed_reader
from coopstreams.topology.protobuf import protobuf as protobuf  # noqa: PLC0414
from coopstreams.topology.schemas import SchemaSerde
from coopstreams.topology.serde import Serde as Serde  # noqa: PLC0414 as it is known
from coopstreams.topology.serde import (
    check_nulls,
    read_varint,
    undefined,
    varint,
    within,
    wrong_length,
)

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Windowed(Generic[K]):
    """The key of a windowed table: a key and one window, `[start_ms, end_ms)`."""

    key: K
    start_ms: int
    end_ms: int

    def __str__(self) -> str:
        """Return the text that Kafka Streams prints for a windowed key."""
        return f"[{self.key}@{self.start_ms}/{self.end_ms}]"

    if (
        not TYPE_CHECKING
    ):  # with a __getattr__, a type checker would accept every attribute name

        def __getattr__(self, name: str) -> Any:
            """Raise an AttributeError that names our attributes if the name is one of
            Kafka Streams' `Windowed`.
            """
            hint = (
                ": a window is key, start_ms and end_ms, without a window() in between"
                if name in ("window", "start", "end")
                else ""
            )
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{hint}",
                name=name,
                obj=self,
            )


@dataclass(frozen=True, slots=True, repr=False)
class Json(Serde[Any]):
    """The serde of plain JSON values (dict, list, str, int, float, bool). Called with a
    type, `json(Type)`, it returns the serde of typed values.

    The JSON text `null` reads as None, and None is written as a null value: in a table,
    as a tombstone. NaN and infinities are refused, because JSON has no such numbers.
    Without a type, an integer of more than 64 bits reads as the nearest float;
    `json(int)` and other types keep it.
    """

    @overload
    def __call__(self, type_: type[T]) -> Serde[T]: ...
    @overload
    def __call__(self, type_: object) -> Serde[Any]: ...
    def __call__(self, type_: Any) -> Serde[Any]:
        """Return the serde of a type that msgspec knows: dataclass, Struct, TypedDict,
        NamedTuple, list[...], a union.

        Equal types give equal serdes. A value is checked against the whole type when it
        is read, and when a store writes it. When a topic's record is written, only the
        outer class is checked, and that each None is allowed by the type.

        Raises:
            SerdeError: msgspec does not know the type, or a type within it, or a name
                in an annotation is not defined. Use a type that msgspec knows, or write
                a `Serde`.
        """
        try:
            return _typed_json(type_)
        except NameError as error:
            raise undefined(
                f"serdes.json cannot read {_type_name(type_)}",
                error,
            ) from error
        except TypeError as error:
            raise SerdeError(
                f"serdes.json cannot read {_type_name(type_)}: it, or a type in it, is not one that msgspec knows "
                "(dataclass, Struct, TypedDict, NamedTuple, Enum, the usual builtins). Use one of these, or write "
                "Serde(name, encode, decode)."
            ) from error


class _Ends(Protocol):
    def __hash__(self) -> int: ...
    def end(self, start_ms: int) -> int: ...


def windowed(inner: Serde[K], size: Duration) -> Serde[Windowed[K]]:
    """Return the serde of windowed keys: the key's bytes, then the window start as 8
    bytes big-endian.

    `size`: that of the windows.

    Raises:
        TopologyError: the size is a number without a unit, or below 1 ms; or `inner` is
            not a serde.

    Source: Kafka Streams `TimeWindowedSerializer`, which does not write the window size
    either.
    """
    return windowed_ms(
        _serde("windowed", inner),
        checked_ms(size, "serdes.windowed: the size", 1),
    )


def windowed_ms(inner: Serde[K], size_ms: int) -> Serde[Windowed[K]]:
    """Return the serde of windowed keys, with the size in milliseconds, as `windowed`
    does; but nothing is checked.
    """
    return _windowed(inner, size_ms)


def windowed_by(inner: Serde[K], windows: _Ends) -> Serde[Windowed[K]]:
    """Return the serde of windowed keys whose windows may differ in length:
    `windows.end` gives the end.

    Shape: the bytes are those of `windowed`.

    Raises:
        TopologyError: `inner` is not a serde.
    """
    return _windowed_by(_serde("windowed_by", inner), windows)


def session_windowed(inner: Serde[K]) -> Serde[Windowed[K]]:
    """Return the serde of session keys: the key's bytes, then the end and the start, 8
    bytes big-endian each.

    Raises:
        TopologyError: `inner` is not a serde.

    Source: Kafka Streams `SessionWindowedSerializer`.
    """
    return _session_windowed(_serde("session_windowed", inner))


def changed(inner: Serde[V]) -> Serde[tuple[V | None, V | None]]:
    """Return the serde of a table's update: the pair (new, old), where one may be None.

    Shape: new + 01, old + 00, or length of new (zigzag varint) + new + old + 02.
    Source: Kafka Streams `ChangedSerializer` (KIP-904).

    Raises:
        TopologyError: `inner` is not a serde.
    """
    return _changed(_serde("changed", inner))


def schemas_of(serde: Serde[Any]) -> list[Any]:
    """Return the schemas within a serde, by which two versions of a program are
    compared, in the order of the serdes within.

    They are the schemas of registries, and those of types read from JSON, in the form
    of `compared`. A type with a decoding hook has no schema.
    """
    schemas = []
    for part in within(serde):
        if isinstance(part, SchemaSerde):
            schemas.append(part.described)
            continue
        if part.schema is not None:
            schemas.append(part.schema)
            continue
        decoder = decoder_of(part.decode)
        if decoder is not None and decoder.strict and decoder.dec_hook is None:
            with suppress(TypeError):  # it has a part that only a hook could read
                schemas.append(compared(msgspec.json.schema(decoder.type)))
    return schemas


def _serde(called: str, inner: Any) -> Serde[Any]:
    """Return the serde that another serde contains.

    Raises:
        TopologyError: it is not a serde, for example a class.
    """
    if isinstance(inner, Serde):
        return inner
    raise TopologyError(
        f"serdes.{called} contains a serde such as serdes.text or serdes.json(Type), not {inner!r}"
    )


def _same_bytes(value: bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    raise TypeError(f"expected bytes, got {type(value).__name__}")


def _text(data: bytes) -> str:
    return data.decode()


_INT64 = Struct(">q")
_FLOAT64 = Struct(">d")


def _int64(data: bytes) -> int:
    return _INT64.unpack(data)[0]  # type: ignore[no-any-return]


def _float64(data: bytes) -> float:
    return _FLOAT64.unpack(data)[0]  # type: ignore[no-any-return]


# Without these options, orjson writes a dataclass or a datetime, which then reads back
# as a dict or a string.
_STRICT = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)


def _plain(value: Any) -> Any:
    raise TypeError(
        f"{type(value).__name__} is not a plain JSON value. Name its type: serdes.json({type(value).__name__})"
    )


def _json(value: Any) -> bytes:
    data = orjson.dumps(value, _plain, _STRICT)
    if (
        data.find(b"null") >= 0
    ):  # `in` takes twice as long: it tries the bytes as a number first
        check_nulls(value, data, orjson.loads)
    return data


@cache
def _typed_json(type_: Any) -> Serde[Any]:
    schema = msgspec.json.schema(
        type_
    )  # raises for types that a Decoder accepts but fails on at every record
    decode = typed_reader(type_)
    encode_any = msgspec.json.Encoder().encode
    classes = _outer_classes(type_) or (object,)

    def encode(value: Any) -> bytes:
        if not isinstance(value, classes):
            raise TypeError(f"expected {_type_name(type_)}, got {type(value).__name__}")
        data = encode_any(value)
        if data.find(b"null") >= 0:
            check_nulls(value, data, decode)
        return data

    def check_new_key(data: bytes) -> None:
        if (other := encode_any(decode(data))) != data:
            raise ValueError(
                f"as a key it is {data.decode()}, and the equal key with floats is {other.decode()}: they would be two "
                "keys. Convert its numbers by float(), or write int | float in the type, which keeps both as they are"
            )

    floats = b'"number"' in msgspec.json.encode(schema)
    name = f"json({_type_name(type_)})"
    return Serde(
        name,
        encode,
        decode,
        read_back=True,
        check_new_key=check_new_key if floats else None,
    )


def _outer_classes(type_: Any) -> tuple[type, ...] | None:
    """Return the classes that a value of the type may have, or None if they are
    unknown.
    """
    origin = get_origin(type_)
    arguments = get_args(type_)
    if origin is Annotated:
        return _outer_classes(arguments[0])
    if origin in (Union, UnionType):
        members = [_outer_classes(member) for member in arguments]
        if None in members:
            return None
        return tuple(chain.from_iterable(filter(None, members)))
    if origin is Literal:
        return tuple(set(map(type, arguments)))
    outer = origin or type_
    if is_typeddict(outer):
        return (dict,)
    if outer in _CLASSES:
        return _CLASSES[outer]
    return (outer,) if isinstance(outer, type) else None


_CLASSES: dict[Any, tuple[type, ...] | None] = {
    None: (NoneType,),
    float: (float, int),
    Any: None,
}


@cache
def _windowed(inner: Serde[Any], size_ms: int) -> Serde[Windowed[Any]]:
    def encode(key: Windowed[Any]) -> bytes:
        if key.end_ms - key.start_ms != size_ms:
            raise ValueError(f"the window {key} is not {size_ms} ms long")
        return inner.encode(key.key) + _INT64.pack(key.start_ms)

    def decode(data: bytes) -> Windowed[Any]:
        start_ms: int = _INT64.unpack(data[-8:])[0]
        return Windowed(inner.decode(data[:-8]), start_ms, start_ms + size_ms)

    name = f"windowed({inner.name}, {size_ms} ms)"
    return _in_front(
        name,
        encode,
        decode,
        inner,
        8,
        lambda one: _windowed(one, size_ms),
    )


@cache
def _windowed_by(inner: Serde[Any], windows: _Ends) -> Serde[Windowed[Any]]:
    def encode(key: Windowed[Any]) -> bytes:
        return inner.encode(key.key) + _INT64.pack(key.start_ms)

    def decode(data: bytes) -> Windowed[Any]:
        start_ms: int = _INT64.unpack(data[-8:])[0]
        return Windowed(inner.decode(data[:-8]), start_ms, windows.end(start_ms))

    name = f"windowed({inner.name}, {type(windows).__name__})"
    return _in_front(
        name,
        encode,
        decode,
        inner,
        8,
        lambda one: _windowed_by(one, windows),
    )


@cache
def _session_windowed(inner: Serde[Any]) -> Serde[Windowed[Any]]:
    pair = Struct(">qq")

    def encode(key: Windowed[Any]) -> bytes:
        return inner.encode(key.key) + pair.pack(key.end_ms, key.start_ms)

    def decode(data: bytes) -> Windowed[Any]:
        end_ms, start_ms = pair.unpack(data[-16:])
        return Windowed(inner.decode(data[:-16]), start_ms, end_ms)

    return _in_front(
        f"session_windowed({inner.name})",
        encode,
        decode,
        inner,
        16,
        _session_windowed,
    )


def _in_front(
    name: str,
    encode: Callable[[Any], bytes],
    decode: Callable[[bytes], Any],
    key: Serde[Any],
    behind: int,
    around: Callable[[Serde[Any]], Serde[Any]],
) -> Serde[Windowed[Any]]:
    """Return the serde of windowed keys: the key's bytes, followed by `behind` bytes of
    window. The key's own checks get the bytes without the window.
    """

    def checked(check: Callable[[Any], None] | None) -> Callable[[Any], None] | None:
        return (
            None
            if check is None
            else lambda data: check(None if data is None else data[:-behind])
        )

    check_key = checked(key.check_key)
    check_new_key = checked(key.check_new_key)
    return Serde(
        name,
        encode,
        decode,
        parts=(key,),
        check_key=check_key,
        check_new_key=check_new_key,
        around=around,
    )


@cache
def _changed(inner: Serde[Any]) -> Serde[tuple[Any, Any]]:
    def encode(change: tuple[Any, Any]) -> bytes:
        new, old = change
        if old is None:
            return inner.encode(new) + b"\x01"
        if new is None:
            return inner.encode(old) + b"\x00"
        data = inner.encode(new)
        return varint(len(data) << 1) + data + inner.encode(old) + b"\x02"

    def decode(data: bytes) -> tuple[Any, Any]:
        if not data:
            raise ValueError("there are no bytes")
        kind = data[-1]
        if kind == 1:
            return inner.decode(data[:-1]), None
        if kind == 0:
            return None, inner.decode(data[:-1])
        if kind != 2:
            raise ValueError(f"an update ends with 0, 1 or 2, and this with {kind}")
        zigzag, at = read_varint(data, 0)
        length = (zigzag >> 1) ^ -(zigzag & 1)
        middle = at + length
        if not at <= middle <= len(data) - 1:
            raise wrong_length(length, len(data) - 1 - at)
        return inner.decode(data[at:middle]), inner.decode(data[middle:-1])

    return Serde(f"changed({inner.name})", encode, decode, parts=(inner,))


def _type_name(type_: Any) -> str:
    """Return a type's name without modules, so that it does not depend on the import
    path or the Python version.
    """
    origin = get_origin(type_)
    inner = get_args(type_)
    if type_ is ... or type_ is NoneType:
        return "..." if type_ is ... else "None"
    if origin in (Union, UnionType):
        return " | ".join(map(_type_name, inner))
    if origin is Annotated:
        return f"Annotated[{', '.join([_type_name(inner[0]), *map(str, inner[1:])])}]"
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, inner))}]"
    if origin is None:
        return type_.__name__ if isinstance(type_, type) else str(type_)
    return f"{_type_name(origin)}[{', '.join(map(_type_name, inner))}]"


raw: Serde[bytes] = Serde("raw", _same_bytes, _same_bytes)
"""The serde of bytes, unchanged."""

text: Serde[str] = Serde("text", str.encode, _text)
"""The serde of str in UTF-8."""

int64: Serde[int] = Serde("int64", _INT64.pack, _int64)
"""The serde of int in 8 bytes big-endian, signed: Java's LongSerializer."""

float64: Serde[float] = Serde("float64", _FLOAT64.pack, _float64)
"""The serde of float in 8 bytes big-endian IEEE 754: Java's DoubleSerializer."""

json: Json = Json("json", _json, read_json)
"""The serde of JSON: `serdes.json` for plain values, `serdes.json(Type)` for typed
values.
"""


if not TYPE_CHECKING:  # with a __getattr__, a type checker would accept every name

    def __getattr__(name: str) -> Any:
        """Raise an AttributeError that says what to write instead, if the name is one
        of Kafka's `Serdes` or a Python type.
        """
        raise missing(sys.modules[__name__], f"module {__name__!r}", name, SERDES)
