"""Messages as protoc makes them, in a file of their own. Importable: Spark's workers
load them by name.

package post;
message Parcel { int64 grams = 1; string city = 2; map<string, int32> fees = 3; }
message Depot { message Key { int32 number = 1; }  Key key = 1; int64 grams = 2; }
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.internal import builder

FILE = FileDescriptorProto.FromString(
    b'\n\rparcels.proto\x12\x04post"x\n\x06Parcel\x12\r\n\x05grams\x18\x01 \x01(\x03\x12\x0c\n\x04city\x18\x02 \x01(\t'
    b"\x12$\n\x04fees\x18\x03 \x03(\x0b2\x16.post.Parcel.FeesEntry\x1a+\n\tFeesEntry\x12\x0b\n\x03key\x18\x01 \x01(\t"
    b'\x12\r\n\x05value\x18\x02 \x01(\x05:\x028\x01"K\n\x05Depot\x12\x1c\n\x03key\x18\x01 \x01(\x0b2\x0f.post.Depot.Key'
    b"\x12\r\n\x05grams\x18\x02 \x01(\x03\x1a\x15\n\x03Key\x12\x0e\n\x06number\x18\x01 \x01(\x05b\x06proto3"
)
"""The descriptor by protoc 35.1."""

DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(FILE.SerializeToString())
builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, __name__, globals())

Parcel: Any
Depot: Any
