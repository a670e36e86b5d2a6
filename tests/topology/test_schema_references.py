"""Schemas that name others: Protobuf files with imports, and Avro schemas of a registry
with references.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from coopstreams import serdes
from coopstreams.log.kafka.schema_registry import RegistryClient
from coopstreams.topology.compatibility.avro_schemas import whole
from coopstreams.topology.compatibility.protobuf_text import parsed
from coopstreams.topology.compatibility.schema import Reference, Schema
from coopstreams.topology.compatibility.schema_comparison import (
    why_other_bytes,
    why_unreadable,
)
from coopstreams.topology.errors import SerdeError
from coopstreams.topology.schemas import IN_MEMORY, InMemoryRegistry, SchemaSerde

PLACES = """
    syntax = "proto3";
    package common;
    enum Kind { STREET = 0; BOX = 1; }
    message Place { string city = 1; Kind kind = 2; }
"""
ORDERS = """
    syntax = "proto3";
    package shop.v1;
    import "common/places.proto";
    import "google/protobuf/timestamp.proto";
    message Line { int64 cents = 1; }
    message Order { common.Place to = 1; repeated Line lines = 2; common.Kind kind = 3; }
"""


def order_of(places: str = PLACES, orders: str = ORDERS) -> SchemaSerde[Any]:
    """Return the serde of the Order of these files, as protoc would make its class."""
    pool, files = descriptor_pool.DescriptorPool(), list[FileDescriptorProto]()
    for name, text in ("common/places.proto", places), ("shop/orders.proto", orders):
        files.append(parsed(text, files))
        files[-1].name = name
    files[1].dependency.append("common/places.proto")
    for file in files:
        pool.Add(file)
    serde = serdes.protobuf(
        message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.v1.Order"))
    )
    assert isinstance(serde, SchemaSerde)
    return serde


def order(serde: SchemaSerde[Any]) -> Any:
    """Return an Order of the class of a serde."""
    return serde.from_json(
        b'{"to": {"city": "Ulm", "kind": "BOX"}, "lines": [{"cents": 3}], "kind": "BOX"}'
    )


def files(places: str = PLACES, orders: str = ORDERS) -> Schema:
    """Return the schema of files as others have registered them."""
    return Schema(
        orders,
        "PROTOBUF",
        (Reference("common/places.proto", Schema(places, "PROTOBUF")),),
    )


def test_a_file_names_what_it_imports_and_its_messages_go_round() -> None:
    serde = order_of()
    [reference] = serde.codec.schema.references
    assert (reference.name, reference.schema.references) == ("common/places.proto", ())
    assert 'import "common/places.proto";' in serde.codec.schema.text
    assert "message Place {" in reference.schema.text
    data = serde.serialize(order(serde))
    assert data[5:7] == b"\x02\x02", "the second message of its own file"
    assert serde.deserialize(data) == order(serde)


def test_a_message_of_a_file_that_others_registered_is_found_and_keys_have_its_id() -> (
    None
):
    """With names relative to the package, comments and options, the files say the same."""
    text = ORDERS.replace(
        "package shop.v1;",
        'package shop.v1; // as Java has it\noption java_package = "x";',
    )
    serde, theirs, registry = order_of(), files(orders=text), InMemoryRegistry()
    number = registry.register("orders-key", theirs)
    with serde.codec.bound(registry, ["orders-key"]):
        key = serde.serialize(order(serde))
        assert int.from_bytes(key[1:5], "big") == number
        assert serde.deserialize(key) == order(serde)
        with pytest.raises(
            SerdeError, match=r"it is a shop\.v1\.Line, not a shop\.v1\.Order"
        ):
            serde.deserialize(key[:5] + b"\0")


@pytest.mark.parametrize(
    ("places", "orders", "why", "same"),
    [
        (PLACES, ORDERS, "", True),
        (
            PLACES.replace("message Place", "message Other {} message Place"),
            ORDERS,
            "",
            True,
        ),
        (PLACES.replace("city = 1;", "city = 1; string zip = 3;"), ORDERS, "", False),
        (
            PLACES.replace("string city", "int64 city"),
            ORDERS,
            "to.city: it is written as a varint",
            False,
        ),
        (PLACES.replace("BOX = 1;", "BOX = 1; TUBE = 2;"), ORDERS, "", False),
        (
            PLACES,
            ORDERS.replace("int64 cents", "double cents"),
            "lines.cents: it is written as a double",
            False,
        ),
        ("message of", ORDERS, "", False),
    ],
    ids=[
        "same",
        "another message",
        "more there",
        "another type there",
        "more of an enum",
        "here",
        "not read",
    ],
)
def test_versions_are_compared_with_what_they_import(
    places: str, orders: str, why: str, same: bool
) -> None:
    serde, theirs = order_of(), files(places, orders)
    found = serde.codec.why_unreadable(theirs)
    assert found.startswith(why)
    assert bool(found) == bool(why)
    assert serde.codec._same is not None
    assert serde.codec._same(theirs) is same


def test_the_description_of_a_program_has_what_a_file_imports() -> None:
    was = order_of().described
    assert json.loads(json.dumps(was)) == was
    now = order_of(PLACES.replace("string city", "int64 city")).described
    assert why_unreadable(now, was).startswith(
        "to.city: it is written as a string or bytes"
    )
    assert why_other_bytes(now, was)
    assert why_unreadable(was, was) == why_other_bytes(was, was) == ""


PLACE = {
    "type": "record",
    "name": "Place",
    "namespace": "common",
    "fields": [
        {"name": "city", "type": "string"},
        {
            "name": "kind",
            "type": {"type": "enum", "name": "Kind", "symbols": ["STREET", "BOX"]},
        },
    ],
}
TOUR = {
    "type": "record",
    "name": "common.Tour",
    "fields": [{"name": "stops", "type": {"type": "array", "items": "Place"}}],
}
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "kind", "type": ["null", "common.Kind"], "default": None},
        {"name": "to", "type": "common.Place"},
        {"name": "back", "type": ["null", "common.Place"], "default": None},
        {"name": "tours", "type": {"type": "map", "values": "common.Tour"}},
    ],
}
VALUE = {
    "kind": "BOX",
    "to": {"city": "Ulm", "kind": "BOX"},
    "back": {"city": "Bonn", "kind": "STREET"},
    "tours": {"a": {"stops": [{"city": "Ulm", "kind": "BOX"}]}},
}


def avro_of(schema: Any, *named: tuple[str, Schema]) -> Schema:
    """Return a schema that names others."""
    return Schema(
        json.dumps(schema), "AVRO", tuple(Reference(name, each) for name, each in named)
    )


PLACE_SCHEMA = avro_of(PLACE)
ORDER_SCHEMA = avro_of(
    ORDER,
    ("common.Tour", avro_of(TOUR, ("common.Place", PLACE_SCHEMA))),
    ("common.Place", PLACE_SCHEMA),
)


def written(schema: Any, named: Sequence[Any], value: Any) -> bytes:
    """Return what fastavro writes, which takes the definitions of names beside a
    schema.
    """
    known: dict[str, Any] = {}
    for each in named:
        parse_schema(each, named_schemas=known)
    out = BytesIO()
    schemaless_writer(out, parse_schema(schema, named_schemas=known), value)
    return out.getvalue()


def test_values_of_an_avro_schema_that_names_others_are_read() -> None:
    serde = serdes.avro(whole(ORDER_SCHEMA))
    number = IN_MEMORY.register("orders", ORDER_SCHEMA)
    assert (
        serde.deserialize(
            b"\0" + number.to_bytes(4, "big") + written(ORDER, (PLACE, TOUR), VALUE)
        )
        == VALUE
    )
    assert isinstance(serde, SchemaSerde)
    assert serde.codec.why_unreadable(ORDER_SCHEMA) == ""
    city = {"name": "city", "type": "long"}
    other = serdes.avro(
        {**ORDER, "fields": [{"name": "to", "type": {**PLACE, "fields": [city]}}]}
    )
    assert isinstance(other, SchemaSerde)
    assert other.codec.why_unreadable(ORDER_SCHEMA).startswith(
        "to.city: string cannot be read as long"
    )


def test_names_are_those_of_the_namespace_and_a_union_may_be_of_names_only() -> None:
    order = {
        "type": "record",
        "name": "Order",
        "namespace": "common",
        "fields": [{"name": "to", "type": "Place"}],
    }
    schema = avro_of(order, ("common.Place", PLACE_SCHEMA))
    assert parse_schema(whole(schema)) == parse_schema(
        {**order, "fields": [{"name": "to", "type": PLACE}]}
    )
    either = whole(
        avro_of(["common.Place", "common.Kind", "long"], ("common.Place", PLACE_SCHEMA))
    )
    assert [
        branch if isinstance(branch, str) else branch["name"] for branch in either
    ] == [
        "Place",
        "common.Kind",
        "long",
    ]
    parse_schema(either)


def test_definitions_without_a_namespace_stay_without_one() -> None:
    plain = {
        "type": "record",
        "name": "Plain",
        "fields": [{"name": "n", "type": "int"}],
    }
    order = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "a", "type": "Plain"}, {"name": "b", "type": "Plain"}],
    }
    schema = avro_of(order, ("Plain", avro_of(plain)))
    value = {"a": {"n": 1}, "b": {"n": 2}}
    number = IN_MEMORY.register("plain", schema)
    read = serdes.avro(whole(schema)).deserialize(
        b"\0" + number.to_bytes(4, "big") + written(order, [plain], value)
    )
    assert read == value


def test_a_registry_gets_what_is_named_first_and_gives_it_back() -> None:
    """Uses confluent-kafka's registry in memory, through the client for real
    registries.
    """
    settings = (("url", "mock://references"),)
    client = RegistryClient("mock://references", settings, registers=True)
    schema = order_of().codec.schema
    assert client.lookup("orders-value", schema) is None
    assert client.latest("common/places.proto") is None, "asking registers nothing"
    with pytest.raises(SerdeError, match=r"auto.register.schemas is false"):
        RegistryClient("mock://references", settings, registers=False).register(
            "orders-value", schema
        )
    number = client.register("orders-value", schema)
    assert client.lookup("orders-value", schema) == number
    assert client.latest("common/places.proto") == schema.references[0].schema
    found = client.schema(number)
    assert found == client.latest("orders-value") == schema
    assert (found.references[0].subject, found.references[0].version) == (
        "common/places.proto",
        1,
    )
    assert client.lookup("orders-value", found) == number
