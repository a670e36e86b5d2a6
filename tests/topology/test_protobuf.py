"""`serdes.protobuf`: the wire format, canonical bytes, versions of writers, and
unreadable records.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.timestamp_pb2 import Timestamp

from coopstreams import StreamsBuilder, serdes
from coopstreams.query.formats import parse_key, show_value, to_json
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.compatibility.protobuf_changes import (
    message_at,
    why_unreadable,
)
from coopstreams.topology.compatibility.schema import Schema
from coopstreams.topology.errors import SerdeError
from coopstreams.topology.schemas import IN_MEMORY, SchemaSerde
from tests.parcels import FILE, Depot, Parcel


def schema_serde(message: Any) -> SchemaSerde[Any]:
    serde = serdes.protobuf(message)
    assert isinstance(serde, SchemaSerde)
    return serde


def changed(change: Callable[[FileDescriptorProto], None]) -> tuple[Any, int]:
    """Return the Parcel of another version of the file, and the id of that file."""
    file = FileDescriptorProto.FromString(FILE.SerializeToString())
    change(file)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    number = IN_MEMORY.register(
        "elsewhere",
        Schema(base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF"),
    )
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("post.Parcel")
    ), number


def head(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


def test_a_record_is_a_zero_byte_the_id_the_messages_index_and_the_message() -> None:
    serde, value = schema_serde(Parcel), Parcel(grams=3, city="Ulm")
    data = serde.serialize(value)
    number = IN_MEMORY.lookup("post.Parcel", serde.codec.schema)
    assert number is not None
    assert data == head(number) + b"\0" + value.SerializeToString()
    assert serde.deserialize(data) == value


def test_a_message_within_another_has_the_indexes_that_lead_to_it() -> None:
    """As Confluent's serializer writes them: the length of the path and the path, as
    zigzag varints.
    """
    assert schema_serde(Depot).serialize(Depot())[5:] == b"\x02\x02"
    assert schema_serde(Depot.Key).serialize(Depot.Key(number=1))[5:7] == b"\x04\x02"
    assert (
        schema_serde(Depot.Key)
        .deserialize(schema_serde(Depot.Key).serialize(Depot.Key(number=1)))
        .number
        == 1
    )


def test_equal_messages_have_equal_bytes_whatever_the_order_of_their_maps() -> None:
    one, other = Parcel(), Parcel()
    for name in ("a", "b", "c"):
        one.fees[name] = 1
    for name in ("c", "b", "a"):
        other.fees[name] = 1
    assert schema_serde(Parcel).serialize(one) == schema_serde(Parcel).serialize(other)


def test_equal_arguments_give_the_same_serde_also_after_a_journey() -> None:
    assert serdes.protobuf(Parcel) is serdes.protobuf(Parcel)
    assert pickle.loads(pickle.dumps(serdes.protobuf(Parcel))) == serdes.protobuf(
        Parcel
    )


def test_a_writers_other_version_is_read_by_the_numbers_of_fields() -> None:
    def more(file: FileDescriptorProto) -> None:
        file.message_type[0].field[1].name = "town"
        file.message_type[0].field.add(
            name="note", number=9, type=FieldDescriptorProto.TYPE_STRING, label=1
        )

    other, number = changed(more)
    data = (
        head(number)
        + b"\0"
        + other(grams=5, town="Hof", note="fragile").SerializeToString()
    )
    value = schema_serde(Parcel).deserialize(data)
    assert (value.grams, value.city) == (5, "Hof")


def test_another_message_of_a_known_file_is_refused_by_its_name() -> None:
    depot, parcel = schema_serde(Depot), schema_serde(Parcel)
    with pytest.raises(SerdeError, match=r"it is a post\.Depot, not a post\.Parcel"):
        parcel.deserialize(depot.serialize(Depot(grams=1)))


def test_a_file_that_moved_the_message_is_read_by_its_name() -> None:
    def moved(file: FileDescriptorProto) -> None:
        messages = list(file.message_type)[::-1]
        del file.message_type[:]
        file.message_type.extend(messages)

    other, number = changed(moved)
    assert (
        schema_serde(Parcel)
        .deserialize(head(number) + b"\x02\x02" + other(grams=7).SerializeToString())
        .grams
        == 7
    )
    with pytest.raises(SerdeError, match=r"it is a post\.Depot"):
        schema_serde(Parcel).deserialize(
            head(number) + b"\0" + other(grams=7).SerializeToString()
        )


def test_a_file_that_a_registry_has_as_text_is_read_by_the_names_of_messages() -> None:
    """Other messages at the same place were read as ours, with whatever their fields
    hold.
    """
    text = """
        syntax = "proto3"; // message Parcel {}
        package post;
        option java_package = "com.post";
        message Cancelled { int64 amount = 1; string why = 2; }
        message Parcel { int64 grams = 1 [deprecated = true]; }
    """
    number = IN_MEMORY.register("text", Schema(text, "PROTOBUF"))
    assert (
        schema_serde(Parcel)
        .deserialize(head(number) + b"\x02\x02" + Parcel(grams=2).SerializeToString())
        .grams
        == 2
    )
    with pytest.raises(
        SerdeError, match=r"it is a post\.Cancelled, not a post\.Parcel"
    ):
        schema_serde(Parcel).deserialize(
            head(number) + b"\0" + Parcel(grams=2).SerializeToString()
        )


def test_a_file_that_cannot_be_read_here_is_read_at_the_same_index() -> None:
    number = IN_MEMORY.register(
        "text", Schema("message of {some later} syntax;", "PROTOBUF")
    )
    assert (
        schema_serde(Parcel)
        .deserialize(head(number) + b"\0" + Parcel(grams=2).SerializeToString())
        .grams
        == 2
    )
    with pytest.raises(SerdeError, match=r"it is a message \[1\] of its file"):
        schema_serde(Parcel).deserialize(head(number) + b"\x02\x02")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "package post; message Parcel { required sint64 grams = 1; }",
            "grams: it is written as a zigzag varint",
        ),
        ("package post; message Parcel { optional Elsewhere grams = 1; }", ""),
        (
            "package mail; message Parcel { required int64 grams = 1; }",
            "the value: there is no message post.Parcel",
        ),
        ("message of", ""),
    ],
)
def test_versions_that_a_registry_has_as_text_are_compared(text: str, why: str) -> None:
    found = schema_serde(Parcel).codec.why_unreadable(Schema(text, "PROTOBUF"))
    assert found.startswith(why)
    assert bool(found) == bool(why)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x08\x01", "the first byte must be 0"),
        (head(2147483647) + b"\0", "no schema with id 2147483647"),
        (
            head(IN_MEMORY.register("avro", Schema('"long"', "AVRO"))) + b"\0",
            "is of type AVRO",
        ),
    ],
    ids=["plain", "unknown id", "avro"],
)
def test_what_no_schema_of_protobuf_wrote_is_refused_with_the_reason(
    data: bytes, why: str
) -> None:
    with pytest.raises(SerdeError, match=why):
        schema_serde(Parcel).deserialize(data)


def test_torn_bytes_and_other_values_are_serde_errors() -> None:
    serde = schema_serde(Parcel)
    with pytest.raises(SerdeError):
        serde.deserialize(serde.serialize(Parcel(city="Ulm"))[:-1])
    with pytest.raises(SerdeError, match="expected Parcel, got Depot"):
        serde.serialize(Depot())


def test_what_is_no_message_is_refused_at_once() -> None:
    with pytest.raises(SerdeError, match="no message class"):
        serdes.protobuf(dict)
    assert serdes.protobuf(Timestamp).name == "protobuf(google.protobuf.Timestamp)"


def test_a_key_with_another_id_is_another_key_and_refused() -> None:
    serde = schema_serde(Depot.Key)
    key = serde.serialize(Depot.Key(number=1))
    assert serde.check_key is not None
    serde.check_key(key)
    with pytest.raises(SerdeError, match="has schema id 305419896"):
        serde.check_key(b"\0\x12\x34\x56\x78" + key[5:])


def test_a_key_in_another_form_is_another_key_and_refused() -> None:
    """Java's serializer writes the entries of a map in no order; some clients write the
    index 0 as a list.
    """
    serde = schema_serde(Parcel)
    key = serde.serialize(Parcel(fees={"a": 1, "b": 2}))
    assert serde.check_key is not None
    serde.check_key(key)
    entries = [
        bytes([26, 5, 10, 1, name, 16, number]) for name, number in ((97, 1), (98, 2))
    ]
    assert key[6:] == b"".join(entries)
    for other in (key[:6] + b"".join(reversed(entries)), key[:5] + b"\x02\0" + key[6:]):
        assert serde.deserialize(other) == serde.deserialize(key)
        with pytest.raises(
            SerdeError, match="not written as this application writes it"
        ):
            serde.check_key(other)


def test_indexes_of_the_deprecated_format_are_refused() -> None:
    with pytest.raises(SerdeError, match="deprecated format"):
        schema_serde(Depot).deserialize(
            schema_serde(Depot).serialize(Depot())[:5] + b"\x01\x01\x10\x05"
        )


def set_type(field: int, type_: Any) -> Callable[[FileDescriptorProto], None]:
    def change(file: FileDescriptorProto) -> None:
        file.message_type[0].field[field].type = type_

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (set_type(0, FieldDescriptorProto.TYPE_INT32), ""),
        (set_type(1, FieldDescriptorProto.TYPE_BYTES), ""),
        (
            set_type(0, FieldDescriptorProto.TYPE_SINT64),
            "grams: it is written as a zigzag varint (field grams)",
        ),
        (
            set_type(1, FieldDescriptorProto.TYPE_INT64),
            "city: it is written as a varint",
        ),
        (
            lambda file: setattr(
                file.message_type[0].nested_type[0].field[1], "type", 2
            ),
            "fees.value: ",
        ),
        (
            lambda file: setattr(file, "package", "mail"),
            "the value: there is no message post.Parcel",
        ),
        (lambda file: file.message_type[0].field.pop(), ""),
    ],
    ids=["narrower", "bytes", "zigzag", "number", "in a map", "elsewhere", "less"],
)
def test_versions_are_compared_by_how_fields_are_encoded(
    change: Callable[[FileDescriptorProto], None], why: str
) -> None:
    other = FileDescriptorProto.FromString(FILE.SerializeToString())
    change(other)
    assert why_unreadable([FILE], [other], "post.Parcel").startswith(why)
    assert bool(why_unreadable([FILE], [other], "post.Parcel")) == bool(why)


def test_a_path_leads_to_a_message_or_to_none() -> None:
    assert [message_at(FILE, path) for path in ((0,), (1,), (1, 0), (2,), (1, 1))] == [
        "post.Parcel",
        "post.Depot",
        "post.Depot.Key",
        None,
        None,
    ]


@pytest.mark.parametrize("ranges", [1, 3])
def test_the_driver_and_queries_take_messages(ranges: int) -> None:
    builder = StreamsBuilder("post")
    key, value = serdes.protobuf(Depot.Key), serdes.protobuf(Parcel)
    (
        builder.stream("parcels", key=key, value=value)
        .group_by_key()
        .aggregate(Depot, add, value=serdes.protobuf(Depot), store="depots")
        .to_stream()
        .to("depots")
    )
    with TopologyTestDriver(builder.build(), ranges=ranges) as driver:
        for number in range(6):
            driver.input("parcels").send(
                Depot.Key(number=number % 2), Parcel(grams=number)
            )
        row = driver.store("depots").get(Depot.Key(number=1))
        assert row.grams == 9
    stored = serdes.protobuf(Depot).serialize(row)
    shown = to_json(show_value(serdes.protobuf(Depot), stored, "it"), "it")
    assert shown == b'{"key":{"number":1},"grams":"9"}'
    assert parse_key(key, '{"number": 1}') == key.serialize(Depot.Key(number=1))


def add(key: Any, parcel: Any, depot: Any) -> Any:
    return Depot(key=key, grams=depot.grams + parcel.grams)
