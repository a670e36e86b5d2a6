"""`serdes.json_schema`: the wire format, canonical bytes, versions of writers, and
unreadable records.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict

import msgspec
import pytest

from coopstreams import StreamsBuilder, serdes
from coopstreams.query.formats import parse_key
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.compatibility.json_schema_changes import why_unreadable
from coopstreams.topology.compatibility.schema import Schema
from coopstreams.topology.errors import SerdeError
from coopstreams.topology.schemas import IN_MEMORY, SchemaSerde


@dataclass
class Place:
    city: str
    zip: int | None = None


class Stay(msgspec.Struct):
    guest: str
    place: Place
    tags: dict[str, int] = {}


class Night(TypedDict):
    number: int


@dataclass
class Guest:
    """Who stays.

      By number.
    Nothing else.
    """

    number: int
    room: Room | None = None


class Room(msgspec.Struct):
    """Where.

    They sleep.
    """

    number: int


STAY = {
    "title": "Stay",
    "type": "object",
    "properties": {
        "guest": {"type": "string"},
        "nights": {"type": "integer", "minimum": 1},
    },
    "required": ["guest"],
    "additionalProperties": False,
}


def schema_serde(schema: Any) -> SchemaSerde[Any]:
    serde = serdes.json_schema(schema)
    assert isinstance(serde, SchemaSerde)
    return serde


def test_a_record_is_a_zero_byte_the_schemas_id_and_json() -> None:
    serde = schema_serde(STAY)
    data = serde.serialize({"nights": 2, "guest": "ada"})
    number = IN_MEMORY.lookup("Stay", serde.codec.schema)
    assert number is not None
    assert data == b"\0" + number.to_bytes(4, "big") + b'{"guest":"ada","nights":2}'
    assert serde.deserialize(data) == {"guest": "ada", "nights": 2}


def test_a_schema_is_made_from_a_class() -> None:
    serde = schema_serde(Stay)
    value = Stay("ada", Place("Rome"), {"b": 1, "a": 2})
    assert (
        serde.serialize(value)[5:]
        == b'{"guest":"ada","place":{"city":"Rome","zip":null},"tags":{"a":2,"b":1}}'
    )
    assert serde.deserialize(serde.serialize(value)) == value
    schema = json.loads(serde.codec.schema.text)
    assert (schema["title"], schema["required"]) == ("Stay", ["guest", "place"])
    assert schema["properties"]["place"] == {"$ref": "#/$defs/Place"}
    assert serdes.json_schema(Night).serialize({"number": 1})[5:] == b'{"number":1}'


def test_the_schema_of_a_class_is_the_same_in_each_version_of_python() -> None:
    """3.13 removes the indentation of docstrings. Another text has another id, which is
    part of each key.
    """
    schema = json.loads(schema_serde(Guest).codec.schema.text)
    assert schema["description"] == "Who stays.\n\n  By number.\nNothing else."
    assert schema["$defs"]["Room"]["description"] == "Where.\n\nThey sleep."


def test_equal_values_have_equal_bytes_whatever_the_order_of_their_parts() -> None:
    serde = serdes.json_schema(STAY)
    assert serde.serialize({"guest": "a", "nights": 1}) == serde.serialize(
        {"nights": 1, "guest": "a"}
    )


def test_equal_arguments_give_the_same_serde_also_after_a_journey() -> None:
    for schema in (STAY, Stay):
        serde = serdes.json_schema(schema)
        assert pickle.loads(pickle.dumps(serde)) == serde
    assert serdes.json_schema(dict(STAY)) is serdes.json_schema(json.dumps(STAY))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"nights": 1}, "required"),
        ({"guest": "a", "nights": 0}, "nights: 0 is less"),
        ({"guest": "a", "x": 1}, "x"),
    ],
    ids=["missing", "too small", "too much"],
)
def test_values_that_do_not_fit_are_neither_written_nor_read(
    value: dict[str, Any], why: str
) -> None:
    serde = serdes.json_schema(STAY)
    with pytest.raises(SerdeError, match=why):
        serde.serialize(value)
    good = serde.serialize({"guest": "a"})
    with pytest.raises(SerdeError, match=why):
        serde.deserialize(good[:5] + json.dumps(value).encode())


def test_another_class_is_not_written() -> None:
    with pytest.raises(SerdeError, match="expected Stay, got dict"):
        schema_serde(Stay).serialize({"guest": "a"})


@pytest.mark.parametrize(
    "schema", ["{", {"type": "strange"}, "[1]", int, list[int]], ids=str
)
def test_what_is_no_schema_is_refused_at_once(schema: Any) -> None:
    with pytest.raises(SerdeError, match=r"no JSON Schema|no class"):
        serdes.json_schema(schema)


def test_a_newer_writers_version_is_read() -> None:
    newer = {
        **STAY,
        "properties": {"guest": {"type": "string"}, "nights": {"type": "integer"}},
    }
    number = IN_MEMORY.register("newer", Schema(json.dumps(newer), "JSON"))
    data = b"\0" + number.to_bytes(4, "big") + b'{"guest": "ada"}'
    assert serdes.json_schema(STAY).deserialize(data) == {"guest": "ada"}


def test_a_key_in_another_form_is_another_key_and_goes_to_the_handler() -> None:
    builder = StreamsBuilder("hotel")
    key = serdes.json_schema(Place)
    builder.stream("stays", key=key, value=serdes.int64).group_by_key().count(
        store="stays"
    ).to_stream().to("out")
    settings = {"deserialization.exception.handler": "continue"}
    with TopologyTestDriver(builder.build(), config=settings) as driver:
        stays = driver.input("stays", serdes.raw, serdes.int64)
        ours = key.serialize(Place("Rome", 1))
        for data in (ours, ours[:5] + b'{"zip": 1, "city": "Rome"}', ours):
            stays.send(data, 1)
        assert driver.store("stays").get(Place("Rome", 1)) == 2
        assert [
            "is not written as this application writes it" in str(f.error)
            for f in driver.failures
        ] == [True]
    assert parse_key(key, '{"city": "Rome", "zip": 1}') == ours


def test_windowed_keys_are_checked_too() -> None:
    key = serdes.windowed(serdes.json_schema(Place), timedelta(milliseconds=10))
    good = key.serialize(serdes.Windowed(Place("Rome"), 0, 10))
    assert key.check_key is not None
    key.check_key(good)
    key.check_key(None)
    with pytest.raises(SerdeError, match="has schema id 305419896"):
        key.check_key(b"\0\x12\x34\x56\x78" + good[5:])
    assert serdes.windowed(serdes.text, timedelta(milliseconds=10)).check_key is None


def objects(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


@pytest.mark.parametrize(
    ("reader", "writer", "why"),
    [
        ({"type": "number"}, {"type": "integer"}, ""),
        (
            {"type": "integer"},
            {"type": "number"},
            "the value: it may be number, and is read as integer",
        ),
        (objects(a={"type": "string"}), objects(b={"type": "string"}), ""),
        (objects(("a",)), objects(("a",)), ""),
        (objects(("a",)), objects(), "a: it is required, and not always written"),
        (
            objects(x={"type": "array", "items": objects(y={"type": "string"})}),
            objects(
                x={"type": "array", "items": objects(y={"type": ["string", "null"]})}
            ),
            "x[].y: it may be null, and is read as string",
        ),
        (
            {
                "$ref": "#/$defs/N",
                "$defs": {"N": objects(("n",), n={"$ref": "#/$defs/N"})},
            },
            objects(),
            "n: it is",
        ),
        ({"$ref": "http://elsewhere"}, objects(), ""),
        (True, objects(), ""),
    ],
)
def test_versions_are_compared_by_types_and_required_properties(
    reader: Any, writer: Any, why: str
) -> None:
    found = why_unreadable(reader, writer)
    assert found.startswith(why)
    assert bool(found) == bool(why)
