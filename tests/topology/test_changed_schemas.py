"""Two versions of a program with schemas of a registry: which values are read, and
which keys are other keys.
"""

from __future__ import annotations

from dataclasses import make_dataclass
from datetime import timedelta
from typing import Annotated, Any

import msgspec
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from coopstreams import StreamsBuilder, serdes
from coopstreams.topology.graph.changes import TopologyChange, Verdict, changes
from coopstreams.topology.graph.outline import outline
from coopstreams.topology.graph.topology import Topology
from tests.parcels import FILE, Depot, Parcel

X, Y = {"name": "x", "type": "long"}, {"name": "y", "type": "long"}
RAW = serdes.raw


def avro(*fields: Any, name: str = "V") -> Any:
    return serdes.avro({"type": "record", "name": name, "fields": [*fields]})


def json_schema(*required: str, title: str = "v", **types: str) -> Any:
    properties = {name: {"type": type_} for name, type_ in types.items()}
    titled = {"title": title} if title else {}
    return serdes.json_schema(
        {**titled, "type": "object", "required": [*required], "properties": properties}
    )


def another(message: Any, index: int, **field: Any) -> Any:
    """Return a message in another version of its file, with this field more, or instead
    of one.
    """
    file = FileDescriptorProto.FromString(FILE.SerializeToString())
    fields = file.message_type[index].field
    for at, known in enumerate(fields):
        if known.number == field["number"]:
            del fields[at]
    fields.add(label=1, **field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName(message.DESCRIPTOR.full_name)
    return serdes.protobuf(message_factory.GetMessageClass(found))


def program(key: Any, value: Any, *, history: bool = False) -> Topology:
    builder = StreamsBuilder("app")
    hour = timedelta(hours=1)
    builder.table(
        "in", key=key, value=value, store="rows", history=hour if history else None
    ).to_stream().foreach(print)
    builder.stream("others", key=RAW, value=RAW).map(
        lambda key, value: (key, value), key=key, value=value
    ).repartition(name="made").foreach(print)
    return builder.build()


def verdicts(old: Topology, new: Topology) -> list[TopologyChange]:
    found = changes(outline(old), outline(new))
    return [
        change for change in found if change.name in ("rows", "app-made-repartition")
    ]


SCHEMA_OF = {"type": "record", "name": "V", "fields": [X]}


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (avro(X), avro(X, Y), "y: it is not written, and has no default"),
        (avro(X), avro(X, {**Y, "default": 0}), ""),
        (avro(X, Y), avro(X), ""),
        (avro(X), avro({**X, "type": "string"}), "x: long cannot be read as string"),
        (avro(X), avro(X, name="W"), "avro(V)"),
        (avro(X), serdes.avro(SCHEMA_OF, make_dataclass("V", [("x", int)])), ""),
        (avro(X), serdes.json, "avro(V)"),
        (
            json_schema(x="integer"),
            json_schema("y", x="integer", y="string"),
            "y: it is required, and not always",
        ),
        (json_schema(x="integer"), json_schema(x="integer", y="string"), ""),
        (
            json_schema(x="integer", title=""),
            json_schema(x="integer", y="string", title=""),
            "",
        ),
        (
            serdes.json_schema(make_dataclass("C", [("x", int)])),
            serdes.json_schema(make_dataclass("C", [("x", int), ("y", int)])),
            "y: it is required, and not always written",
        ),
        (
            serdes.json_schema(make_dataclass("C", [("x", int, 0)])),
            serdes.json_schema(make_dataclass("C", [("x", int), ("y", int, 0)])),
            "",
        ),
        (
            serdes.protobuf(Parcel),
            another(
                Parcel, 0, name="more", number=9, type=FieldDescriptorProto.TYPE_BOOL
            ),
            "",
        ),
        (
            serdes.protobuf(Parcel),
            another(
                Parcel, 0, name="grams", number=1, type=FieldDescriptorProto.TYPE_SINT64
            ),
            "grams: it is written as a varint (field grams), and read as a zigzag varint",
        ),
        (serdes.protobuf(Parcel), serdes.protobuf(Depot), "protobuf(post.Depot)"),
    ],
)
@pytest.mark.parametrize("history", [False, True])
def test_values_of_another_schema_are_read_or_refused(
    before: Any, after: Any, why: str, history: bool
) -> None:
    rows, records = verdicts(
        program(RAW, before, history=history), program(RAW, after, history=history)
    )
    assert (
        rows.verdict
        is records.verdict
        is (Verdict.UNREADABLE if why else Verdict.KEEPS)
    )
    assert why in rows.why
    assert why in records.why


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (avro(X), avro(X, {**Y, "default": 0}), False),
        (avro(X), serdes.avro(SCHEMA_OF, make_dataclass("V", [("x", int)])), True),
        (json_schema(x="integer"), json_schema(x="integer", y="string"), False),
        (
            serdes.protobuf(Depot.Key),
            another(Depot.Key, 0, name="more", number=9, type=8),
            True,
        ),
        (
            serdes.protobuf(Depot),
            another(Depot, 1, name="more", number=9, type=8),
            False,
        ),
        (
            serdes.json_schema(make_dataclass("C", [("x", int)])),
            serdes.json_schema(
                make_dataclass("C", [("x", Annotated[int, msgspec.Meta(ge=0)])])
            ),
            False,
        ),
    ],
)
def test_keys_of_another_schema_are_other_keys(
    before: Any, after: Any, same: bool
) -> None:
    """The id of the schema is part of their bytes."""
    rows, records = verdicts(program(before, RAW), program(after, RAW))
    assert rows.verdict is records.verdict is (Verdict.KEEPS if same else Verdict.MIXED)


def test_rows_with_versions_are_not_those_without() -> None:
    rows, _ = verdicts(program(RAW, avro(X)), program(RAW, avro(X), history=True))
    assert rows.verdict is Verdict.UNREADABLE


def joined(value: Any, change: Any) -> Topology:
    builder = StreamsBuilder("app")
    left = change(
        builder.table("left", key=serdes.text, value=value, store="left"), value
    )
    right = builder.table("right", key=serdes.text, value=serdes.text, store="right")
    left.join(
        right, lambda *rows: rows, foreign_key=str, name="named", value=serdes.json
    ).to_stream().to("out")
    return builder.build()


def itself(table: Any, _: Any) -> Any:
    return table.filter(lambda key, _: key != "")


def mapped(table: Any, value: Any) -> Any:
    return table.map_values(lambda row: row, value=value)


def kept(table: Any, value: Any) -> Any:
    return table.map_values(lambda row: row, value=value, store="kept")


CLASS: Any = serdes.json(make_dataclass("C", [("x", int)]))
WIDER: Any = serdes.json(make_dataclass("C", [("x", int), ("y", int, 0)]))


@pytest.mark.parametrize(
    ("before", "after", "change", "why"),
    [
        (CLASS, WIDER, itself, ""),
        (CLASS, WIDER, kept, ""),
        (
            CLASS,
            WIDER,
            mapped,
            "its left rows, which are in no store, are written as json(C), whose class has changed",
        ),
        (avro(X), avro(X, {**Y, "default": 0}), itself, ""),
        (
            avro(X),
            avro(X, {**Y, "default": 0}),
            mapped,
            "are written as avro(V), whose class has changed",
        ),
        (
            CLASS,
            avro(X),
            itself,
            "its left rows are written as avro(V), and were as json(C)",
        ),
        (
            CLASS,
            avro(X),
            mapped,
            "its left rows are written as avro(V), and were as json(C)",
        ),
        (CLASS, CLASS, mapped, ""),
    ],
)
def test_left_rows_that_are_written_otherwise_do_not_get_the_answers_that_they_asked_for(
    before: Any, after: Any, change: Any, why: str
) -> None:
    """An answer has the hash of the bytes that asked."""
    found = changes(outline(joined(before, change)), outline(joined(after, change)))
    (subscribers,) = [each for each in found if each.name == "named-subscription-store"]
    assert subscribers.verdict is (Verdict.MIXED if why else Verdict.KEEPS)
    assert why in subscribers.why
