"""Reading the source text of a Protobuf file."""

from __future__ import annotations

import pytest
from google.protobuf import any_pb2, duration_pb2, struct_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from coopstreams.topology.compatibility.protobuf_changes import message_at
from coopstreams.topology.compatibility.protobuf_text import parsed, plain, source_of
from tests.parcels import FILE

ODD = r"""
/* a.b { */ syntax = "proto2"; package a.b;
import public "google/protobuf/any.proto";
option (x.y) = { a: "}" b { c: [1, 2] } };
option java_package = 'com.a "quoted" // no comment';
message Out {
  option deprecated = true; reserved 200 to max; reserved "x", "y";
  extensions 100 to 199 [declaration = { number: 100 full_name: ".a.z" }];
  required In in = 1 [default = LOW, (opt) = { k: "]" }];
  optional group Grp = 2 { optional int32 z = 1; }
  repeated sint32 n = 0x3 [packed = true];
  map<string, b.Out.Nest> nest_of_2things = 4;
  message Nest {
    optional Out o = 1;
    oneof kind { option (z) = 1; Nest n = 2; string s = 3 [deprecated = true]; google.protobuf.Any any = 4; }
    enum In { ZERO = 0; }
    optional In i = 5;
  };
  optional string a = 10 [default = "he said \"x;}\" // no comment"];;
  extend Out { optional int32 ext = 101; }
}
enum In { option allow_alias = true; LOW = 0; C = -1; D = 0 [deprecated = true]; reserved 7, 8 to 10; reserved "Q"; }
service S { rpc X (Out) returns (stream Out) { option deprecated = true; }; }
extend Out { optional string e2 = 102; }
message Last { optional int32 message = 1; optional string option = 2; optional bool reserved = 3; }
"""


@pytest.mark.parametrize(
    "message",
    [struct_pb2.Value, any_pb2.Any, duration_pb2.Duration, wrappers_pb2.BoolValue],
)
def test_the_text_of_a_descriptor_reads_as_the_descriptor(message: type) -> None:
    described = FileDescriptorProto.FromString(message.DESCRIPTOR.file.serialized_pb)  # type: ignore[attr-defined]
    assert plain(parsed(source_of(described))) == plain(described)


def test_maps_and_optional_fields_read_as_the_descriptor() -> None:
    assert plain(parsed(source_of(FILE))) == plain(FILE)
    file = FileDescriptorProto(name="n.proto", syntax="proto3")
    message = file.message_type.add(name="N")
    message.oneof_decl.add(name="which")
    message.oneof_decl.add(name="_n")
    message.field.add(name="a", number=4, label=1, type=5, oneof_index=0)
    message.field.add(
        name="n", number=1, label=1, type=5, proto3_optional=True, oneof_index=1
    )
    assert plain(parsed(source_of(file))) == plain(file)


def test_what_is_not_on_the_wire_is_passed_over() -> None:
    file = parsed(ODD)
    assert [
        message_at(file, path) for path in ((0,), (0, 0), (0, 1), (0, 2), (1,), (2,))
    ] == [
        "a.b.Out",
        "a.b.Out.Grp",
        "a.b.Out.NestOf2thingsEntry",
        "a.b.Out.Nest",
        "a.b.Last",
        None,
    ]
    out, last = file.message_type
    assert [
        (field.name, field.number, field.type, field.type_name) for field in out.field
    ] == [
        ("in", 1, FieldDescriptorProto.TYPE_ENUM, ".a.b.In"),
        ("grp", 2, FieldDescriptorProto.TYPE_GROUP, ".a.b.Out.Grp"),
        ("n", 3, FieldDescriptorProto.TYPE_SINT32, ""),
        (
            "nest_of_2things",
            4,
            FieldDescriptorProto.TYPE_MESSAGE,
            ".a.b.Out.NestOf2thingsEntry",
        ),
        ("a", 10, FieldDescriptorProto.TYPE_STRING, ""),
    ]
    assert [
        (field.name, field.type_name, field.HasField("type"))
        for field in out.nested_type[2].field
    ] == [
        ("o", ".a.b.Out", True),
        ("n", ".a.b.Out.Nest", True),
        ("s", "", True),
        ("any", ".google.protobuf.Any", False),
        ("i", ".a.b.Out.Nest.In", True),
    ]
    assert [field.name for field in last.field] == ["message", "option", "reserved"]
    assert [(value.name, value.number) for value in file.enum_type[0].value] == [
        ("LOW", 0),
        ("C", -1),
        ("D", 0),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "message A",
        "message A { int32 a }",
        "message A { int32 a = x; }",
        "syntax proto3;",
    ],
)
def test_what_is_no_source_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"ends|expected|invalid literal"):
        parsed(text)
