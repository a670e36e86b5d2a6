"""How long other threads wait for bytes that somebody else wrote: `python -m
benchmarks.hostile_bytes [--bytes N]`.

Each serde, and each format of ours, reads bytes of five kinds, made from a good record
and by hand:

    too long        a good record and a megabyte behind it, a megabyte of digits, a decimal of 100 kB
    too deep        brackets in brackets, records in records
    too many        items, fields and values without bytes of their own
    wrong lengths   each byte of a good record, and each four, replaced by others: also by negative lengths
    truncated       each beginning of a good record

A thread ticks meanwhile. What counts is the longest time between two of its ticks, less
what it is without any work; of a case above 20 ms, the shortest of five runs, because
other processes disturb them. `tests/topology/test_hostile_bytes.py` reads the same
bytes, and checks that each is read or refused by the error that the failure handler
gets.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any
from uuid import UUID

import msgspec
import orjson
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from rich.console import Console
from rich.table import Table

from coopstreams import serdes
from coopstreams.commit.record import (
    CommitKey,
    Committed,
    CommitValue,
    Segment,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from coopstreams.group.codec import (
    decode_assignment,
    decode_subscription,
    encode_assignments,
    encode_subscription,
)
from coopstreams.group.members import Assignment, MemberInfo, MemberState
from coopstreams.log.kafka.native import native_parts
from coopstreams.log.time_marks import headers_of, marks_in
from coopstreams.query.formats import parse_key
from coopstreams.state.checkpoints import Checkpoint, Checkpoints
from coopstreams.state.manifest import Manifest, Slice, StoreSlices
from coopstreams.topology.columns import Columns, Headers
from coopstreams.topology.compatibility.protobuf_changes import files_of
from coopstreams.topology.compatibility.schema import Schema
from coopstreams.topology.dsl.attach_joins import values_of, waiting_of
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import (
    GroupError,
    LogError,
    QueryError,
    SerdeError,
    SnapshotError,
    StateCorruptError,
    TopologyError,
)
from coopstreams.topology.graph.foreign_keys import (
    ANSWERS,
    SUBSCRIBERS,
    SUBSCRIPTION,
    Answer,
    ForeignKeySubscription,
)
from coopstreams.topology.graph.known_folds import totals
from coopstreams.topology.graph.outline import read_outline
from coopstreams.topology.kept_headers import Headed, Place, as_read, with_headers
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.row_versions import versions_of
from coopstreams.topology.schemas import SchemaSerde
from coopstreams.topology.serde import Serde, varint
from coopstreams.topology.task_id import TaskId

MEGABYTE = 1_000_000
KINDS = ("too long", "too deep", "too many", "wrong lengths", "truncated")
LIMIT_MS = 100
"""The longest that other threads may wait."""
TICK_S = 0.001

Made = Callable[[int], Iterator[bytes]]
"""Makes more bytes of a kind, of about so many bytes."""


@dataclass(frozen=True)
class Format:
    """Bytes that this process reads. `refused`: the errors by which it refuses them.

    Shape: the first `head` bytes of a good record say which schema it has, and stay.
    """

    name: str
    read: Callable[[bytes], object]
    refused: tuple[type[Exception], ...]
    good: bytes
    head: int = 0
    more: Mapping[str, Made] = field(default_factory=dict)
    serde: Serde[Any] | None = None


@dataclass(frozen=True)
class Case:
    """Bytes of one kind for one format."""

    format: Format
    kind: str

    def __str__(self) -> str:
        return f"{self.format.name}: {self.kind}"

    def bytes(self, size: int) -> Iterator[bytes]:
        """Yield them; the long ones have about this many bytes."""
        head, good = self.format.good[: self.format.head], self.format.good
        if self.kind == "truncated":
            yield from (good[:end] for end in range(len(good)))
        elif self.kind == "wrong lengths":
            yield from _with_other_bytes(good, self.format.head)
        else:
            yield from _GENERAL[self.kind](head, good, size)
        if self.kind in self.format.more:
            yield from self.format.more[self.kind](size)


def _with_other_bytes(good: bytes, head: int) -> Iterator[bytes]:
    for at in range(head, len(good)):
        for one in (b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff"):
            yield good[:at] + one + good[at + 1 :]
        for four in (
            b"\xff\xff\xff\xff",
            b"\xff\xff\xff\xfc",
            b"\x7f\xff\xff\xff",
            b"\x80\x00\x00\x00",
        ):
            yield good[:at] + four + good[at + 4 :]
        yield good[:at] + varint((1 << 63) - 1) + good[at + 1 :]


def _long(head: bytes, good: bytes, size: int) -> Iterator[bytes]:
    for more in (b"\x00", b"\x80", b"\xff", b" "):
        yield good + more * size
        yield head + more * size
    yield head + b"9" * size
    yield head + b'"' + b"9" * size + b'"'
    yield head + b'{"a":' + b"9" * size + b"}"
    yield head + b"0." + b"9" * size
    yield head + b"1e" + b"9" * size
    yield head + varint(size << 1) + b"\x7f" * size
    yield good[: len(good) // 2] + good * (size // max(len(good), 1))


def _deep(head: bytes, _good: bytes, size: int) -> Iterator[bytes]:
    for levels in (900, size // 8):
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"), (b'{"number":', b"}")):
            yield head + opening * levels + b"1" + closing * levels
            yield head + opening * levels
    for one in (b"\x02", b"\x01", b"\x91", b"\x81\xa1a", b"\x0a\x7f"):
        yield head + one * size
        yield head + one * 5_000 + b"\x00" * 5_001


def _many(head: bytes, _good: bytes, size: int) -> Iterator[bytes]:
    for item in (b"[]", b"{}", b"1", b"null", b'""'):
        yield head + b"[" + (item + b",") * (size // (len(item) + 1)) + item + b"]"
    yield head + b"{" + b",".join(b'"%d":1' % n for n in range(size // 12)) + b"}"
    yield head + varint(100_000_000) + b"\x00"
    yield head + b"\xff\xff\xff\xff\x0f" + b"\x00" * 8
    yield head + b"\x7f\xff\xff\xff" * 2 + b"\x00" * 8
    yield head + b"\xdd\xff\xff\xff\xff"
    yield head + b"\xdf\x7f\xff\xff\xff\x01"


_GENERAL = {"too long": _long, "too deep": _deep, "too many": _many}


class Order(msgspec.Struct):
    """A value of JSON with a type."""

    number: int
    items: list[dict[str, float | None]] = []
    price: Decimal = Decimal(0)


CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
FIELDS: list[Any] = [
    {"name": "id", "type": "long"},
    {"name": "note", "type": ["null", "string"]},
    {"name": "tags", "type": {"type": "map", "values": "int"}},
    {"name": "prices", "type": {"type": "array", "items": CENTS}},
    {
        "name": "kind",
        "type": {"type": "enum", "name": "Kind", "symbols": ["a", "b"]},
    },
    {"name": "mac", "type": {"type": "fixed", "name": "Mac", "size": 6}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
]
ORDER = {"type": "record", "name": "shop.Order", "fields": FIELDS}
NEWER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {
            "name": "skipped",
            "type": {
                "type": "record",
                "name": "Chain",
                "fields": [{"name": "next", "type": ["null", "Chain"]}],
            },
        },
        *FIELDS,
    ],
}
TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "kids", "type": {"type": "array", "items": ["null", "Tree"]}},
    ],
}
OPTIONS = {"type": "array", "items": ["null", "int"]}
NULLS = {"type": "array", "items": "null"}
LINES = {
    "type": "array",
    "items": {
        "type": "record",
        "name": "Line",
        "fields": [{"name": "n", "type": ["null", "int"]}],
    },
}


def _avro(
    name: str,
    schema: Any,
    value: Any,
    writer: Any = None,
    more: Mapping[str, Callable[[bytes, int], Iterator[bytes]]] | None = None,
) -> Format:
    serde = serdes.avro(schema)
    data = serdes.avro(writer or schema).serialize(value)
    head = data[:5]
    return _serde(name, serde, data, 5, _after(head, more or {}))


def _after(
    head: bytes, more: Mapping[str, Callable[[bytes, int], Iterator[bytes]]]
) -> dict[str, Made]:
    def bound(make: Callable[[bytes, int], Iterator[bytes]]) -> Made:
        return lambda size: make(head, size)

    return {kind: bound(make) for kind, make in more.items()}


def _serde(
    name: str,
    serde: Serde[Any],
    good: bytes,
    head: int = 0,
    more: Mapping[str, Made] | None = None,
) -> Format:
    return Format(name, serde.deserialize, (SerdeError,), good, head, more or {}, serde)


def _long_decimals(head: bytes, size: int) -> Iterator[bytes]:
    start = head + b"\x02\x00\x00"
    long = varint(size // 10 << 1) + b"\x7f" * (size // 10)
    yield start + b"\x02" + long + b"\x00"
    most = size // 1026
    yield (
        start + varint(most << 1) + (varint(1024 << 1) + b"\x7f" * 1024) * most + b"\0"
    )


def _full_of(item: bytes) -> Callable[[bytes, int], Iterator[bytes]]:
    def make(head: bytes, size: int) -> Iterator[bytes]:
        count = size // len(item)
        yield head + varint(count << 1) + item * count + b"\x00"

    return make


def _deep_trees(head: bytes, size: int) -> Iterator[bytes]:
    for levels in (250, 5_000, size // 8):
        yield head + b"\x00\x02\x02" * levels + b"\x00" * (2 * levels + 2)


@cache
def _depot() -> Any:
    """Return the class of a message that contains itself: `Depot { repeated Depot
    within = 1; string name = 2; }`.
    """
    file = FileDescriptorProto(name="hostile.proto", package="hostile", syntax="proto3")
    message = file.message_type.add(name="Depot")
    message.field.add(
        name="within", number=1, type=11, label=3, type_name=".hostile.Depot"
    )
    message.field.add(name="name", number=2, type=9, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("hostile.Depot"))


def _nested_messages(head: bytes, size: int) -> Iterator[bytes]:
    data = b""
    while len(data) < min(size, 20_000):
        data = b"\x0a" + varint(len(data)) + data
    yield head + b"\0" + data


def _many_messages(head: bytes, size: int) -> Iterator[bytes]:
    yield head + b"\0" + b"\x0a\x00" * (size // 2)
    yield head + varint(size << 1) + b"\x02" * size


_KEY = b'{"id":1,"note":"x","prices":["1.5"],"name":"y"}'


def _query_key(serde: Serde[Any]) -> Format:
    def read(data: bytes) -> bytes:
        return parse_key(serde, data.decode("latin-1"))

    good = b"12345" if serde in (serdes.int64, serdes.float64) else _KEY
    return Format(
        f"text of a key, {serde.name[:20]}",
        read,
        (QueryError,),
        good,
        more={"too long": lambda _: iter((b'{"prices":["1e99999999"]}',))},
    )


def _written_schema(name: str, text: str) -> Format:
    """The schema of a writer, from a registry."""
    serde = serdes.avro(ORDER)
    assert isinstance(serde, SchemaSerde)

    def read(data: bytes) -> object:
        schema = Schema(data.decode("latin-1"), "AVRO")
        return serde.codec._reader(schema)

    def deep(size: int) -> Iterator[bytes]:
        opening, closing = b'{"type":"array","items":', b"}"
        for levels in (200, 1_000, size // 30):
            yield opening * levels + b'"int"' + closing * levels

    def many(size: int) -> Iterator[bytes]:
        each = '{"type":"record","name":"R%d","fields":[{"name":"a","type":"int"}]}'
        yield ("[" + ",".join(each % n for n in range(size // 70)) + "]").encode()

    more = {"too deep": deep, "too many": many}
    # Whatever is raised here is raised while a record is deserialised, and a
    # `SerdeError` around it.
    return Format(name, read, (Exception,), text.encode(), more=more)


def _protobuf_text() -> Format:
    def read(data: bytes) -> object:
        return files_of(Schema(data.decode("latin-1"), "PROTOBUF"))

    def long(size: int) -> Iterator[bytes]:
        yield b"/*" * (size // 2)
        yield b'"' + b'\\"' * (size // 2)
        yield b"'" + b"\\'" * (size // 2)

    def deep(size: int) -> Iterator[bytes]:
        yield b"message a {" * (size // 11)
        yield b"option a = " + b"{" * size

    text = 'syntax = "proto3"; package a; message M { int64 n = 1; /* x */ }'
    return Format(
        "source text of Protobuf",
        read,
        (RecursionError,),
        text.encode(),
        more={"too long": long, "too deep": deep},
    )


def _marks() -> Format:
    ((name, good),) = headers_of(1_700_000_000_000)

    def read(data: bytes) -> object:
        return marks_in(Columns([None], [None], [5], [0], [5], [[(name, data)]]))

    return Format("time mark", read, (), good or b"")


class _Bound:
    """A bound program, as a held record asks it."""

    headers: Headers | None = None
    place: Place | None = None

    def where(self) -> None:
        return None

    def under_headers(self, _headers: Any, call: Callable[[], object]) -> None:
        call()


def _place() -> Format:
    def read(data: bytes) -> None:
        as_read(_Bound(), [("\0place", data)], lambda: None)

    return Format("place of a held record", read, (), b"orders 1 17")


def _parts() -> list[Format]:
    make = native_parts()
    if make is None:
        return []
    number = ("field", "number")
    parts = make([("keep", ("==", number, number)), ("value", ("field", "a"))])

    def read(data: bytes) -> object:
        return parts.columns([data], None)

    return [Format("parts of JSON, natively", read, (), b'{"number":1,"a":"b"}')]


def _members() -> list[Format]:
    task = TaskId(0, 1, WHOLE)
    info = MemberInfo("process", "host", "http://127.0.0.1:1")
    told = encode_subscription(MemberState(info, (task,)), 1, ["t"], {0: ["t"]})
    assignment = Assignment("process", (task,))
    (given,) = encode_assignments({"a": assignment}, {0: ["t"]}).values()
    return [
        Format(
            "subscription of a member",
            lambda data: decode_subscription(data, "a"),
            (GroupError,),
            told,
        ),
        Format(
            "assignment by the leader",
            lambda data: decode_assignment(data, "a"),
            (GroupError,),
            given,
        ),
    ]


def _commits() -> list[Format]:
    key = CommitKey("group", "topic", 3, WHOLE, 2, 5)
    segment = Segment(WHOLE, 100, 7, ((120, 130), (140, 141)), ((9, 8),))
    value = CommitValue("transactional-id", (segment,), "metadata")
    return [
        Format("key of a commit", decode_key, (LogError,), encode_key(key)),
        Format(
            "value of a commit",
            lambda data: decode_value(data, WHOLE),
            (LogError,),
            encode_value(value),
        ),
        Format(
            "metadata of an offset",
            lambda data: Committed.parse(1, data.decode("latin-1")),
            (),
            b"ic 1700000000000 12 0 a0:17 0:5",
        ),
    ]


def _files() -> list[Format]:
    checkpoints = Checkpoints((Checkpoint(0, 255, 10, 5, 7, "id"),))
    slices = StoreSlices("app-counts-changelog", "id", 4, "shape", (Slice(0, 0, 15),))
    manifest = Manifest("app", "run-1", "rebuild", "2026-11-21", {"counts": slices})
    builder = StreamsBuilder("hostile")
    builder.stream("orders", key=serdes.text, value=serdes.json).to("sums")
    described = builder.build().describe("json").encode()
    return [
        Format(
            "checkpoints",
            Checkpoints.decode,
            (StateCorruptError,),
            checkpoints.encode(),
        ),
        Format(
            "manifest of a snapshot",
            Manifest.from_json,
            (SnapshotError,),
            manifest.to_json(),
        ),
        Format(
            "topology of the last version", read_outline, (TopologyError,), described
        ),
    ]


def _plain_serdes() -> list[Format]:
    json = serdes.json
    schema = '{"type":"object","properties":{"number":{"type":"integer"}}}'
    typed = serdes.json_schema(Order)
    texts = serdes.json_schema(schema)
    return [
        _serde("raw", serdes.raw, b"bytes"),
        _serde("text", serdes.text, "täxt".encode()),
        _serde("int64", serdes.int64, bytes(8)),
        _serde("float64", serdes.float64, bytes(8)),
        _serde("json", json, b'{"number":1,"items":[{"a":1.5,"b":null}]}'),
        _serde("json(int)", json(int), b"12345"),
        _serde("json(Decimal)", json(Decimal), b'"1.5"'),
        _serde("json(list)", json(list[Any]), b'[1,"a",null]'),
        _serde(
            "json(Order)", json(Order), b'{"number":1,"items":[{"a":1.5}],"price":"2"}'
        ),
        _serde("json_schema(text)", texts, texts.serialize({"number": 1}), 5),
        _serde("json_schema(Order)", typed, typed.serialize(Order(1)), 5),
        _serde(
            "windowed",
            serdes.windowed(serdes.text, timedelta(milliseconds=10)),
            b"a" + bytes(8),
        ),
        _serde("session_windowed", serdes.session_windowed(json), b'"a"' + bytes(16)),
        _serde(
            "changed",
            serdes.changed(json),
            serdes.changed(json).serialize(({"a": 1}, {"a": 2})),
        ),
        _serde(
            "row with headers",
            with_headers(json),
            with_headers(json).serialize(Headed({"a": 1}, [("h", b"x"), ("i", None)])),
        ),
        _serde(
            "values of a join", values_of(json), values_of(json).serialize([1, "b"])
        ),
        _serde(
            "records that wait",
            waiting_of(json, json),
            waiting_of(json, json).serialize([(5, 0, 1), (6, 1, "b")]),
        ),
        _serde(
            "versions of a row",
            versions_of(json),
            versions_of(json).serialize([(5, 1), (6, None)]),
        ),
        _serde("row of a mean", totals, totals.serialize((1.5, 2))),
        _serde(
            "question of a foreign-key join",
            SUBSCRIPTION,
            SUBSCRIPTION.serialize(ForeignKeySubscription(3, bytes(16), b"key")),
        ),
        _serde(
            "answer of a foreign-key join",
            ANSWERS,
            ANSWERS.serialize(Answer(bytes(16), b"value")),
        ),
        _serde(
            "subscribers of a row",
            SUBSCRIBERS,
            SUBSCRIBERS.serialize({b"a": bytes(16), b"bc": bytes(16)}),
        ),
        _query_key(serdes.int64),
        _query_key(serdes.float64),
        _query_key(json),
        _query_key(texts),
        _query_key(typed),
        _query_key(serdes.text),
    ]


def _schema_serdes() -> list[Format]:
    order = {
        "id": 1,
        "note": "x",
        "tags": {"a": 1},
        "prices": [Decimal("1.5")],
        "kind": "a",
        "mac": b"123456",
        "at": datetime(2026, 11, 29, tzinfo=UTC),
        "uuid": UUID(int=1),
    }
    newer = {**order, "skipped": {"next": {"next": None}}}
    depot = serdes.protobuf(_depot())
    good = depot.serialize(_depot()(name="a", within=[_depot()(name="b")]))
    messages = {"too deep": _nested_messages, "too many": _many_messages}
    return [
        _avro("avro", ORDER, order, more={"too long": _long_decimals}),
        _avro("avro, a skipped field", ORDER, newer, NEWER),
        _avro(
            "avro, a tree",
            TREE,
            {"name": "a", "kids": [{"name": "b", "kids": [None]}]},
            more={"too deep": _deep_trees},
        ),
        _avro("avro, nulls", NULLS, [None, None]),
        _avro("avro, optional", OPTIONS, [None, 5], more={"too many": _full_of(b"\0")}),
        _avro("avro, lines", LINES, [{"n": 5}], more={"too many": _full_of(b"\0")}),
        _avro(
            "avro, texts",
            {"type": "array", "items": "string"},
            ["a", ""],
            more={"too many": _full_of(b"\0")},
        ),
        _serde("protobuf", depot, good, 5, _after(good[:5], messages)),
        _query_key(serdes.avro(ORDER)),
        _query_key(depot),
        _written_schema("schema of an Avro writer", orjson.dumps(TREE).decode()),
        _protobuf_text(),
    ]


@cache
def formats() -> tuple[Format, ...]:
    """Return all formats."""
    return (
        *_plain_serdes(),
        *_schema_serdes(),
        *_commits(),
        *_members(),
        *_files(),
        *_parts(),
        _marks(),
        _place(),
    )


def cases() -> list[Case]:
    """Return all formats with all kinds."""
    return [Case(each, kind) for each in formats() for kind in KINDS]


class Ticker:
    """A thread that wants the interpreter every millisecond, and the longest that it
    did not get it.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._ends = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        before = time.perf_counter()
        while not self._ends:
            time.sleep(TICK_S)
            now = time.perf_counter()
            self.longest_s = max(self.longest_s, now - before - TICK_S)
            before = now

    def end(self) -> None:
        """End the thread."""
        self._ends = True
        self._thread.join()


def read_all(case: Case, size: int) -> tuple[int, int]:
    """Read the bytes of a case; return how many of them were read, and how many
    refused.
    """
    read = refused = 0
    for data in case.bytes(size):
        try:
            case.format.read(data)
            read += 1
        except case.format.refused:
            refused += 1
    return read, refused


def wait_ms(data: bytes, case: Case) -> float:
    """Return how long another thread waited at most while these bytes were read."""
    ticker = Ticker()
    time.sleep(2 * TICK_S)
    ticker.longest_s = 0.0
    with suppress(*case.format.refused):
        case.format.read(data)
    time.sleep(2 * TICK_S)
    ticker.end()
    return ticker.longest_s * 1000


def main() -> int:
    """Print a table of the cases; return 1 if another thread waited too long."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bytes", type=int, default=MEGABYTE)
    size = parser.parse_args().bytes
    console = Console()
    table = Table("format", "kind", "read", "refused", "longest wait (ms)")
    total = count = 0
    worst = (0.0, "")
    for case in cases():
        read = refused = 0
        longest = 0.0
        for data in case.bytes(size):
            # Short bytes by the hundred: one look at each kind of wait suffices.
            ms = wait_ms(data, case) if len(data) > 1_000 else _time_ms(data, case)
            if ms > 20:
                ms = min([ms, *(wait_ms(data, case) for _ in range(4))])
            longest = max(longest, ms)
        read, refused = read_all(case, size)
        total += read + refused
        count += 1
        worst = max(worst, (longest, str(case)))
        shown = f"{longest:.1f}" if longest >= 1 else "<1"
        table.add_row(case.format.name, case.kind, str(read), str(refused), shown)
    console.print(table)
    console.print(
        f"{count} cases of {len(formats())} formats, {total} records of up to {size} bytes; "
        f"the longest wait of another thread: {worst[0]:.0f} ms ({worst[1]})"
    )
    return int(worst[0] > LIMIT_MS)


def _time_ms(data: bytes, case: Case) -> float:
    start = time.perf_counter()
    with suppress(*case.format.refused):
        case.format.read(data)
    return (time.perf_counter() - start) * 1000


if __name__ == "__main__":
    sys.exit(main())
