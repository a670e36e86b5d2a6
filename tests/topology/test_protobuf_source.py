"""The source text of a Protobuf file, from its descriptor."""

from __future__ import annotations

import pytest
from google.protobuf import struct_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from coopstreams.topology.compatibility.protobuf_text import parsed, source_of
from tests.parcels import FILE

PARCELS = """syntax = "proto3";
package post;
message Parcel {
  int64 grams = 1;
  string city = 2;
  map<string, int32> fees = 3;
}
message Depot {
  message Key {
    int32 number = 1;
  }
  .post.Depot.Key key = 1;
  int64 grams = 2;
}
"""

STRUCT = """message Value {
  oneof kind {
    .google.protobuf.NullValue null_value = 1;
    double number_value = 2;
    string string_value = 3;
    bool bool_value = 4;
    .google.protobuf.Struct struct_value = 5;
    .google.protobuf.ListValue list_value = 6;
  }
}
message ListValue {
  repeated .google.protobuf.Value values = 1;
}
"""


def described(message: type) -> FileDescriptorProto:
    return FileDescriptorProto.FromString(message.DESCRIPTOR.file.serialized_pb)  # type: ignore[attr-defined]


def test_the_text_says_what_the_descriptor_says() -> None:
    assert source_of(FILE) == PARCELS


def test_choices_enums_and_lists_are_written() -> None:
    text = source_of(described(struct_pb2.Value))
    assert STRUCT in text
    assert "enum NullValue {\n  NULL_VALUE = 0;\n}\n" in text
    assert "map<string, .google.protobuf.Value> fields = 1;" in text
    assert source_of(described(timestamp_pb2.Timestamp)).count("int") == 2


def test_labels_defaults_and_reserved_names_are_written() -> None:
    file = FileDescriptorProto(
        name="old.proto", syntax="proto2", dependency=["google/protobuf/any.proto"]
    )
    message = file.message_type.add(name="Old", reserved_name=["gone"])
    message.reserved_range.add(start=5, end=7)
    message.field.add(name="a", number=1, label=2, type=5)
    message.field.add(name="b", number=2, label=1, type=9, default_value="x")
    packed = message.field.add(name="c", number=3, label=3, type=3)
    packed.options.packed = True
    assert source_of(file) == (
        'syntax = "proto2";\nimport "google/protobuf/any.proto";\nmessage Old {\n  reserved 5 to 6;\n'
        '  reserved "gone";\n  required int32 a = 1;\n  optional string b = 2 [default = "x"];\n'
        "  repeated int64 c = 3 [packed = true];\n}\n"
    )


def test_a_field_that_may_be_absent_is_optional() -> None:
    file = FileDescriptorProto(name="n.proto", syntax="proto3")
    message = file.message_type.add(name="N")
    message.oneof_decl.add(name="_n")
    message.field.add(
        name="n", number=1, label=1, type=5, proto3_optional=True, oneof_index=0
    )
    assert "  optional int32 n = 1;\n}" in source_of(file)


def test_a_message_behind_a_map_keeps_its_index() -> None:
    """The entry of the map has one, too: records of `Key` have the index 1."""
    file = FileDescriptorProto(name="n.proto", syntax="proto3")
    message = file.message_type.add(name="N")
    entry = message.nested_type.add(name="FeesEntry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, label=1, type=5)
    message.nested_type.add(name="Key")
    message.field.add(name="a", number=1, label=1, type=5)
    message.field.add(name="fees", number=2, label=3, type=11, type_name=".N.FeesEntry")
    assert (
        "  map<int32, int32> fees = 2;\n  message Key {\n  }\n  int32 a = 1;\n}"
        in source_of(file)
    )
    assert [
        inner.name for inner in parsed(source_of(file)).message_type[0].nested_type
    ] == ["FeesEntry", "Key"]


def test_a_default_with_quotes_is_escaped() -> None:
    file = FileDescriptorProto(name="q.proto", syntax="proto2")
    file.message_type.add(name="Q").field.add(
        name="q", number=1, label=1, type=9, default_value='say "a\\b"\n'
    )
    assert r'optional string q = 1 [default = "say \"a\\b\"\n"];' in source_of(file)


def test_what_cannot_be_written_is_said() -> None:
    file = FileDescriptorProto(name="g.proto")
    file.message_type.add(name="G").field.add(
        name="g", number=1, label=1, type=FieldDescriptorProto.TYPE_GROUP
    )
    with pytest.raises(ValueError, match="the field g is a group"):
        source_of(file)
    with pytest.raises(ValueError, match="edition"):
        source_of(FileDescriptorProto(name="e.proto", syntax="editions"))
