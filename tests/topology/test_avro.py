"""`serdes.avro`: the wire format, canonical bytes, versions of writers, and unreadable
records.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from fastavro import parse_schema, schemaless_writer

from coopstreams import serdes
from coopstreams.topology.compatibility.avro_schemas import why_unreadable
from coopstreams.topology.compatibility.schema import Schema
from coopstreams.topology.errors import ConfigError, SerdeError
from coopstreams.topology.schemas import (
    IN_MEMORY,
    InMemoryRegistry,
    RegistryUnavailableError,
    SchemaSerde,
)


def record(*fields: dict[str, Any], name: str = "shop.Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def column(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


ORDER = record(
    column("id", "long"),
    column("note", ["null", "string"], default=None),
    column("tags", {"type": "map", "values": "int"}, default={}),
)


@dataclass
class Order:
    id: int
    note: str | None
    tags: dict[str, int]


def schema_serde(schema: Any) -> SchemaSerde[Any]:
    serde = serdes.avro(schema)
    assert isinstance(serde, SchemaSerde)
    return serde


def written(schema: dict[str, Any], value: Any, number: int) -> bytes:
    out = BytesIO()
    schemaless_writer(out, parse_schema(schema), value)
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()


def test_a_record_is_a_zero_byte_the_schemas_id_and_avro() -> None:
    serde = schema_serde(ORDER)
    value = {"id": 3, "note": None, "tags": {"a": 1}}
    data = serde.serialize(value)
    number = IN_MEMORY.lookup("shop.Order", serde.codec.schema)
    assert number is not None
    assert data == written(ORDER, value, number)
    assert serde.deserialize(data) == value


def test_equal_values_have_equal_bytes_whatever_the_order_of_their_parts() -> None:
    serde = serdes.avro(ORDER)
    one = serde.serialize({"id": 1, "note": "x", "tags": {"b": 1, "a": 2}})
    assert one == serde.serialize({"tags": {"a": 2, "b": 1}, "note": "x", "id": 1})
    assert one == serdes.avro(ORDER, Order).serialize(Order(1, "x", {"a": 2, "b": 1}))


def test_a_class_is_read_and_written() -> None:
    class Seen(msgspec.Struct):
        at: datetime
        data: bytes

    schema = record(
        column("at", {"type": "long", "logicalType": "timestamp-micros"}),
        column("data", "bytes"),
    )
    serde = serdes.avro(schema, Seen)
    value = Seen(datetime(2026, 11, 23, 9, 30, tzinfo=UTC), b"\xff")
    assert serde.deserialize(serde.serialize(value)) == value
    with pytest.raises(SerdeError, match=r"expected Seen, got dict"):
        serde.serialize({"at": value.at, "data": b""})  # type: ignore[arg-type]


class Sent(TypedDict):
    id: int
    note: str | None
    tags: dict[str, int]


def test_a_typed_dict_is_written_too() -> None:
    serde = serdes.avro(ORDER, Sent)
    value: Sent = {"id": 1, "note": None, "tags": {}}
    assert serde.deserialize(serde.serialize(value)) == value


TREE = record(
    column("long", "long", default=0),
    column("int", "int", default=0),
    column("flag", "boolean", default=False),
    column("none", "null", default=None),
    column("ints", {"type": "array", "items": "int"}, default=[]),
    column("longs", {"type": "map", "values": "long"}, default={}),
    column("texts", {"type": "array", "items": "string"}, default=[]),
    column("day", {"type": "int", "logicalType": "date"}, default=0),
    column("trees", {"type": "array", "items": "Tree"}, default=[]),
    name="Tree",
)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"long": 1.5}, "long: 1.5 is no long"),
        ({"int": Decimal("0.1")}, "int: .* is no int"),
        ({"int": 1 << 31}, "int: 2147483648 is no int"),
        ({"long": float("nan")}, "long"),
        ({"flag": "no"}, "flag: 'no' is no boolean"),
        ({"none": 7}, "none: 7 is no null"),
        ({"ints": [1, 2.5]}, "ints: 2.5 is no int"),
        ({"longs": {"a": 0.5}}, "longs: 0.5 is no long"),
        ({"texts": "abc"}, "texts: 'abc' is no array"),
        ({"trees": [{"trees": [{"int": 1.5}]}]}, "trees: trees: int: 1.5 is no int"),
    ],
)
def test_what_would_be_written_as_another_value_is_refused(
    value: dict[str, Any], why: str
) -> None:
    """The mean of whole numbers is the usual one: fastavro cuts off its fraction, in
    silence.
    """
    with pytest.raises(SerdeError, match=why):
        serdes.avro(TREE).serialize(value)


def test_what_is_written_is_what_is_read() -> None:
    value = {
        "long": 2.0,
        "int": -(1 << 31),
        "flag": True,
        "longs": {"a": 1},
        "day": date(2026, 1, 31),
    }
    serde = serdes.avro(TREE)
    assert serde.deserialize(serde.serialize(value)).items() >= value.items()
    assert serde.deserialize(serde.serialize({"trees": [{"texts": ["a"]}]}))["trees"][
        0
    ]["texts"] == ["a"]


def test_equal_arguments_give_the_same_serde_also_after_a_journey() -> None:
    serde = serdes.avro(ORDER, Order)
    assert serdes.avro(dict(ORDER), Order) is serde
    assert pickle.loads(pickle.dumps(serde)) == serde
    assert serdes.avro(ORDER) != serde


def test_a_newer_writers_version_is_read_with_our_schema() -> None:
    newer = record(
        column("id", "int"),
        column("shop", "string"),
        column("note", ["null", "string"], default=None),
    )
    number = IN_MEMORY.register("elsewhere-value", serdes_text(newer))
    data = written(newer, {"id": 7, "shop": "north", "note": "n"}, number)
    assert serdes.avro(ORDER).deserialize(data) == {"id": 7, "note": "n", "tags": {}}


def serdes_text(schema: dict[str, Any]) -> Schema:
    return schema_serde(schema).codec.schema


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"id": 1}', "the first byte must be 0"),
        (b"\0\0", "the first byte must be 0"),
        (b"\0\x7f\xff\xff\xff\x02", "no schema with id 2147483647"),
    ],
    ids=["json", "short", "unknown id"],
)
def test_what_no_registered_schema_wrote_is_refused_with_the_reason(
    data: bytes, why: str
) -> None:
    with pytest.raises(SerdeError, match=why):
        serdes.avro(ORDER).deserialize(data)


def test_bytes_that_follow_a_record_are_an_error() -> None:
    serde = serdes.avro(ORDER)
    with pytest.raises(SerdeError, match=r"1 bytes follow"):
        serde.deserialize(serde.serialize({"id": 1}) + b"x")


def test_a_value_with_a_field_too_much_is_not_written() -> None:
    with pytest.raises(SerdeError, match=r"extra"):
        serdes.avro(ORDER).serialize({"id": 1, "extra": 2})


@pytest.mark.parametrize("schema", ["{", {"type": "record"}, "strang", 1.5], ids=str)
def test_what_is_no_schema_is_refused_at_once(schema: Any) -> None:
    with pytest.raises(SerdeError, match=r"this is no Avro schema"):
        serdes.avro(schema)


def test_a_key_with_another_id_is_another_key_and_refused() -> None:
    serde = schema_serde(record(column("id", "long"), name="shop.Key"))
    key = serde.serialize({"id": 1})
    serde.codec.check_key(key)
    serde.codec.check_key(None)
    with pytest.raises(SerdeError, match=r"has schema id 305419896.*select_key"):
        serde.codec.check_key(b"\0\x12\x34\x56\x78" + key[5:])


def test_a_running_applications_serde_is_not_taken_to_another_registry() -> None:
    codec = schema_serde(record(column("id", "long"), name="shop.Bound")).codec
    one, other = InMemoryRegistry(), InMemoryRegistry()
    with codec.bound(one, ["a-value"]), codec.bound(one, ["a-value"]):
        codec.encode({"id": 1})
        assert one.latest("a-value") == codec.schema
        with (
            pytest.raises(ConfigError, match=r"another schema registry"),
            codec.bound(other, []),
        ):
            pass
    with codec.bound(other, ["b-value"]):
        codec.encode({"id": 1})
    assert other.latest("b-value") == codec.schema


def test_a_registry_that_is_away_is_asked_again_for_the_next_record() -> None:
    class Away(InMemoryRegistry):
        away = True

        def schema(self, number: int) -> Schema:
            if self.away:
                raise RegistryUnavailableError("no answer")
            return super().schema(number)

    serde, registry = (
        schema_serde(record(column("id", "long"), name="shop.Away")),
        Away(),
    )
    with serde.codec.bound(registry, ["away-value"]):
        data = serde.serialize({"id": 1})
        with pytest.raises(SerdeError, match=r"no answer") as caught:
            serde.deserialize(data)
        assert isinstance(caught.value.__cause__, RegistryUnavailableError)
        registry.away = False
        assert serde.deserialize(data) == {"id": 1}


COLOURS = {"type": "enum", "name": "C", "symbols": ["red", "blue"]}


@pytest.mark.parametrize(
    ("reader", "writer", "why"),
    [
        ("long", "int", ""),
        ("int", "long", "the value: long cannot be read as int"),
        (["null", "string"], "string", ""),
        (["null", "string"], "int", "int is no branch"),
        ("string", ["null", "string"], "null cannot be read as string"),
        (
            record(column("a", "int"), column("b", "int", default=0)),
            record(column("a", "int")),
            "",
        ),
        (
            record(column("a", "int"), column("b", "int")),
            record(column("a", "int")),
            "b: it is not written",
        ),
        (record(column("b", "int", aliases=["a"])), record(column("a", "int")), ""),
        (
            record(
                column(
                    "x",
                    {"type": "array", "items": record(column("y", "int"), name="I")},
                )
            ),
            record(
                column(
                    "x",
                    {"type": "array", "items": record(column("y", "string"), name="I")},
                )
            ),
            "x[].y: string cannot be read as int",
        ),
        (
            record(column("next", ["null", "shop.Order"], default=None)),
            record(column("next", ["null", "shop.Order"], default=None)),
            "",
        ),
        ({**COLOURS, "symbols": ["red"]}, COLOURS, "no symbol blue"),
        ({**COLOURS, "symbols": ["red"], "default": "red"}, COLOURS, ""),
    ],
)
def test_why_a_version_cannot_be_read(reader: Any, writer: Any, why: str) -> None:
    said = why_unreadable(parse_schema(reader), parse_schema(writer))
    assert (why in said) if why else (said == "")


class Pair(NamedTuple):
    a: int
    b: int


def test_a_named_tuple_is_no_record_but_an_array() -> None:
    with pytest.raises(
        SerdeError,
        match=r"Pair is a tuple, .* make it a dataclass, a msgspec Struct or a TypedDict",
    ):
        serdes.avro(record(column("a", "long"), column("b", "long")), Pair)
    array = serdes.avro({"type": "array", "items": "long"}, Pair)
    assert array.deserialize(array.serialize(Pair(1, 2))) == Pair(1, 2)


MOMENT = datetime(2026, 11, 27, 12, tzinfo=UTC)
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
LINE = record(column("at", MILLIS), name="Line")


@pytest.mark.parametrize(
    ("reader", "writer", "written", "read"),
    [
        (MILLIS, "long", 1_795_780_800_000, MOMENT),
        ("long", MILLIS, MOMENT, 1_795_780_800_000),
        ({"type": "long", "logicalType": "timestamp-micros"}, MILLIS, MOMENT, MOMENT),
        (["null", "long"], ["null", MILLIS], MOMENT, 1_795_780_800_000),
        (["null", MILLIS], "long", 1_795_780_800_000, MOMENT),
        (
            {"type": "array", "items": "long"},
            {"type": "array", "items": MILLIS},
            [MOMENT],
            [1_795_780_800_000],
        ),
        (
            {"type": "map", "values": CENTS},
            {"type": "map", "values": "bytes"},
            {"a": b"\x01"},
            {"a": Decimal("0.01")},
        ),
        (
            record(column("at", "long"), name="Line"),
            LINE,
            {"at": MOMENT},
            {"at": 1_795_780_800_000},
        ),
        (
            ["null", record(column("at", "long"), name="Line")],
            LINE,
            {"at": MOMENT},
            {"at": 1_795_780_800_000},
        ),
        (
            record(column("at", "long"), name="Item") | {"aliases": ["Line"]},
            LINE,
            {"at": MOMENT},
            {"at": 1_795_780_800_000},
        ),
        (
            "string",
            {"type": "string", "logicalType": "uuid"},
            UUID(int=1),
            str(UUID(int=1)),
        ),
        ("double", "int", 3, 3.0),
    ],
    ids=str,
)
def test_a_value_has_the_logical_type_of_the_reader_whoever_wrote_it(
    reader: Any, writer: Any, written: Any, read: Any
) -> None:
    ours, theirs = (
        serdes.avro(record(column("f", each), column("n", "int")))
        for each in (reader, writer)
    )
    assert ours.deserialize(theirs.serialize({"f": written, "n": 7})) == {
        "f": read,
        "n": 7,
    }


def test_a_record_of_another_name_is_told_before_the_first_one_fails() -> None:
    ours, theirs, aliased = (
        {"type": "record", "name": name, "fields": [], **more}
        for name, more in (
            ("a.Ours", {}),
            ("b.Theirs", {}),
            ("a.Ours", {"aliases": ["Theirs"]}),
        )
    )
    said = why_unreadable(parse_schema(ours), parse_schema(theirs))
    assert said == "the value: it is the record b.Theirs, and is read as a.Ours"
    with pytest.raises(SerdeError, match="Schema mismatch"):
        serdes.avro(ours).deserialize(serdes.avro(theirs).serialize({}))
    assert why_unreadable(parse_schema(aliased), parse_schema(theirs)) == ""
    assert serdes.avro(aliased).deserialize(serdes.avro(theirs).serialize({})) == {}
