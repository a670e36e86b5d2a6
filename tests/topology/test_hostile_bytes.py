"""Bytes that somebody else wrote: what is too long, too deep or too many is refused, by
its length, as any bytes that cannot be read.
"""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pytest
from fastavro import parse_schema, schemaless_writer
from fastavro.utils import generate_many
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.hostile_bytes import KINDS, Case, Format, cases, formats
from coopstreams import Failure, serdes
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import input_limits
from coopstreams.topology.avro_limits import check_of
from coopstreams.topology.compatibility.schema import Schema
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import SerdeError
from coopstreams.topology.input_limits import DECIMAL_BYTES, DECIMAL_DIGITS, LEVELS
from coopstreams.topology.schemas import IN_MEMORY
from coopstreams.topology.serde import varint

HEAD = 5
"""A zero byte, and the schema's id."""


def record(type_: Any, *more: dict[str, Any]) -> dict[str, Any]:
    fields = [{"name": "value", "type": type_}, *more]
    return {"type": "record", "name": "Hostile", "fields": fields}


def head_of(schema: Any) -> bytes:
    """Return the first bytes of a record that is written with a schema."""
    number = IN_MEMORY.register(
        "hostile", Schema(orjson.dumps(schema).decode(), "AVRO")
    )
    return b"\0" + number.to_bytes(4, "big")


CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
WIDE = {"type": "fixed", "name": "Wide", "size": 100_000}
WIDE_CENTS = {**WIDE, "logicalType": "decimal", "precision": 9, "scale": 2}
LONG = b"\x7f" * 100_000
LONG_BYTES = varint(len(LONG) << 1) + LONG


@pytest.mark.parametrize(
    ("reader", "writer", "data"),
    [
        (CENTS, CENTS, LONG_BYTES),
        (["null", CENTS], ["null", CENTS], b"\x02" + LONG_BYTES),
        (CENTS, "bytes", LONG_BYTES),
        (["null", CENTS], ["null", WIDE_CENTS, CENTS], b"\x04" + LONG_BYTES),
        (
            {"type": "array", "items": CENTS},
            {"type": "array", "items": CENTS},
            b"\x02" + LONG_BYTES + b"\0",
        ),
        (
            {"type": "map", "values": CENTS},
            {"type": "map", "values": CENTS},
            b"\x02\x02a" + LONG_BYTES + b"\0",
        ),
        (
            {"type": "fixed", "name": "Wide", "size": 100_000},
            WIDE_CENTS,
            None,
        ),
    ],
    ids=[
        "same schema",
        "optional",
        "decimal to the reader only",
        "another branch",
        "array",
        "map",
        "decimal to the writer only",
    ],
)
def test_a_long_decimal_is_refused_before_it_is_converted(
    reader: Any, writer: Any, data: bytes | None
) -> None:
    """It took four seconds, in which no other thread ran."""
    serde = serdes.avro(record(reader))
    if data is None:  # the reader makes no decimal of it
        assert serde.deserialize(head_of(record(writer)) + LONG) == {"value": LONG}
        return
    with pytest.raises(SerdeError, match="a decimal of 100000 bytes: at most 1024"):
        serde.deserialize(head_of(record(writer)) + data)


def test_a_long_decimal_in_a_field_that_is_skipped_is_not_converted() -> None:
    writer = record("int", {"name": "more", "type": CENTS})
    data = head_of(writer) + b"\x02" + LONG_BYTES
    assert serdes.avro(record("int")).deserialize(data) == {"value": 1}


def test_a_long_fixed_decimal_is_refused_before_it_is_converted() -> None:
    """Its definition stands in a field that is skipped, and another field repeats its
    name.
    """
    writer = {**record("Wide"), "fields": []}
    writer["fields"] = [
        {"name": "more", "type": WIDE_CENTS},
        {"name": "value", "type": "Wide"},
    ]
    with pytest.raises(SerdeError, match="a decimal of 100000 bytes: at most 1024"):
        serdes.avro(record(WIDE)).deserialize(head_of(writer) + LONG + LONG)


def test_a_schema_of_decimals_that_could_not_be_read_is_refused() -> None:
    with pytest.raises(SerdeError, match=r"a decimal of 2466 digits.*at most 2465"):
        serdes.avro({**CENTS, "precision": DECIMAL_DIGITS + 1})
    with pytest.raises(SerdeError, match=r"in 100000 bytes: at most .* 1024 bytes"):
        serdes.avro({"type": "array", "items": record(WIDE_CENTS)})


@pytest.mark.parametrize("scale", [0, 300])
def test_the_longest_decimal_comes_back(scale: int) -> None:
    schema = {**CENTS, "precision": DECIMAL_DIGITS, "scale": scale}
    serde = serdes.avro(schema)
    largest = Decimal((1, (9,) * DECIMAL_DIGITS, -scale))
    data = serde.serialize(largest)
    assert len(data) <= HEAD + 2 + DECIMAL_BYTES
    assert serde.deserialize(data) == largest


@pytest.mark.parametrize("kind", ["bytes", "fixed", "optional"])
def test_a_decimal_whose_exponent_stands_for_many_zeros_is_not_written(
    kind: str,
) -> None:
    """A key of a query may be one: `1e99999999` would be a number of 40 MB."""
    fixed = {**CENTS, "type": "fixed", "name": "Sixteen", "size": 16}
    schema: Any = {"bytes": CENTS, "fixed": fixed, "optional": ["null", CENTS]}[kind]
    with pytest.raises(SerdeError):
        serdes.avro(schema).serialize(Decimal("1e20000"))
    assert serdes.avro(schema).deserialize(
        serdes.avro(schema).serialize(Decimal("12.34"))
    ) == Decimal("12.34")


def named(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": type_} for field, type_ in fields],
    }


CHAIN = named("Chain", ("next", ["null", "Chain"]))
TREE = named("Tree", ("kids", {"type": "array", "items": "Tree"}))
TRIE = named("Trie", ("below", {"type": "map", "values": "Trie"}))
ENDLESS = named("Endless", ("next", "Endless"))
NULLS = {"type": "array", "items": "null"}
EMPTY = {"type": "array", "items": named("Empty")}
WITHIN = {"type": "array", "items": {"type": "array", "items": "null"}}
MANY = varint(50_000_000 << 1) + b"\0"
DOUBLED = [
    named(f"D{i}", ("one", f"D{i + 1}"), ("other", f"D{i + 1}")) for i in range(40)
]
ROW = [named(f"R{i}", ("next", f"R{i + 1}")) for i in range(5_000)]
"""Each is written after the one that it names."""

DEEP = "it is nested more than 250 levels deep"
NUMEROUS = "it has more values than 10000 without bytes, or 8 for each byte besides"
HOSTILE: dict[str, tuple[Any, bytes, str]] = {
    "records in records": (CHAIN, b"\2" * 5_000 + b"\0", DEEP),
    "records in arrays": (TREE, b"\2" * 5_000 + b"\0" * 5_001, DEEP),
    "records in maps": (TRIE, b"\2\2a" * 5_000 + b"\0" * 5_001, DEEP),
    "a record that has no end": (ENDLESS, b"", DEEP),
    "5,000 records by their names": (
        [*reversed([*ROW, named("R5000")])],
        varint(5_000 << 1),
        DEEP,
    ),
    "nulls": (NULLS, MANY, NUMEROUS),
    "records without fields": (EMPTY, MANY, NUMEROUS),
    "nulls in arrays": (WITHIN, b"\2" + MANY + b"\0", NUMEROUS),
    "nulls in a block with its size": (
        NULLS,
        varint((50_000_000 << 1) - 1) + b"\0\0",
        NUMEROUS,
    ),
    "twice as many records each level": (
        [*reversed([*DOUBLED, named("D40")])],
        varint(40 << 1),
        NUMEROUS,
    ),
}


@pytest.mark.parametrize("where", ["read", "skipped"])
@pytest.mark.parametrize("case", HOSTILE)
def test_what_has_more_levels_or_values_than_bytes_explain_is_refused(
    case: str, where: str
) -> None:
    """Five kilobytes ended the process by SIGSEGV, and ten bytes were 50 million items."""
    schema, data, why = HOSTILE[case]
    reader: Any = schema
    writer: Any = schema
    if where == "skipped":
        reader = named("Order", ("id", "int"))
        writer = named("Order", ("more", schema), ("id", "int"))
        data += b"\2"
    elif len(schema) > 1_000:  # to compare it with itself takes a minute
        reader = named("R0")
    with pytest.raises(SerdeError, match=why):
        serdes.avro(reader).deserialize(head_of(writer) + data)


@pytest.mark.parametrize("levels", [1, LEVELS])
def test_what_is_nested_as_deep_as_the_limit_is_read(levels: int) -> None:
    value: Any = {"next": None}
    for _ in range(levels - 1):
        value = {"next": value}
    serde = serdes.avro(CHAIN)
    assert serde.deserialize(serde.serialize(value)) == value
    with pytest.raises(SerdeError, match="the bytes end within the record"):
        serde.deserialize(serde.serialize(value)[:-1])


@pytest.mark.parametrize(
    ("schema", "looked_at"),
    [
        (record(["null", "string"]), False),
        ({"type": "array", "items": record(["null", "string"])}, False),
        ({"type": "map", "values": record("double")}, False),
        (
            {"type": "array", "items": record(["null", named("One", ("a", "int"))])},
            False,
        ),
        ({"type": "array", "items": "null"}, True),
        ({"type": "map", "values": "null"}, False),
        ({"type": "array", "items": ["null", record("null")]}, False),
        (TREE, True),
    ],
    ids=str,
)
def test_only_schemas_that_allow_it_have_their_records_looked_at(
    schema: Any, looked_at: bool
) -> None:
    assert (check_of(parse_schema(schema)) is not None) == looked_at


@settings(max_examples=40)
@given(data=st.data())
def test_the_pass_ends_where_fastavro_ends(data: st.DataObject) -> None:
    leaf = st.sampled_from(
        ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
    )
    inner = st.recursive(
        leaf,
        lambda each: (
            st.builds(lambda items: {"type": "array", "items": items}, each)
            | st.builds(lambda values: {"type": "map", "values": values}, each)
            | st.builds(lambda other: ["null", other], each.filter(_no_union))
        ),
        max_leaves=4,
    )
    types = data.draw(st.lists(inner, max_size=4))
    fields = [(f"f{number}", type_) for number, type_ in enumerate(types)]
    schema = parse_schema(named("Node", *fields, ("next", ["null", "Node"])))
    (value,) = generate_many(schema, 1)
    out = BytesIO()
    schemaless_writer(out, schema, value)
    written = out.getvalue()
    check = check_of(schema)
    assert check is not None
    check(b"12345" + written, 5)
    with pytest.raises(SerdeError):
        check(b"12345" + written[:-1], 5)


def _no_union(type_: Any) -> bool:
    return type_ != "null" and not isinstance(type_, list)


def test_a_long_record_is_read_as_a_short_one() -> None:
    serde = serdes.avro({"type": "array", "items": "string"})
    value = ["ab"] * 50_000
    assert serde.deserialize(serde.serialize(value)) == value


def test_another_user_of_fastavro_keeps_its_decimals() -> None:
    serdes.avro(CENTS)
    out = BytesIO()
    schema = parse_schema({**CENTS, "precision": 3000, "scale": 0})
    schemaless_writer(out, schema, Decimal("9" * 3000))
    assert len(out.getvalue()) > DECIMAL_BYTES


def test_the_handler_is_asked_about_a_hostile_record() -> None:
    builder = StreamsBuilder("hostile")
    schema = record(CENTS)
    orders = builder.stream("orders", key=serdes.text, value=serdes.avro(schema))
    orders.map_values(lambda order: str(order["value"]), value=serdes.text).to("sums")
    config = {"deserialization.exception.handler": "continue"}
    with TopologyTestDriver(builder.build(), config=config) as driver:
        orders_in = driver.input("orders", key=serdes.text, value=serdes.raw)
        orders_in.send("a", head_of(schema) + LONG_BYTES)
        orders_in.send("b", head_of(schema) + b"\x02\x7f")
        assert driver.output("sums").latest() == {"b": "1.27"}


def test_the_table_of_limits_has_those_of_the_code() -> None:
    page = Path(__file__).parents[2] / "docs" / "guide" / "errors.md"
    rows = re.findall(
        r"^\| .* \| ([\d,]+) \| `([A-Z_]+)` \|$", page.read_text(), re.MULTILINE
    )
    assert {name: int(most.replace(",", "")) for most, name in rows} == {
        name: most for name, most in vars(input_limits).items() if isinstance(most, int)
    }


MANY_LISTS = b"[" + b"[]," * 40_000 + b"[]]"
MANY_OBJECTS = b"[" + b'{"a":[1.5,2]},' * 20_000 + b'{"a":[]}]'


@dataclass
class Listed:
    """A value with a list of anything."""

    items: list[Any]


def of_schema(schema: Any) -> tuple[Any, bytes]:
    """Return a serde of JSON with a schema, and the first bytes of its records."""
    serde = serdes.json_schema(schema)
    empty: Any = Listed([]) if schema is Listed else []
    return serde, serde.serialize(empty)[:HEAD]


@pytest.fixture
def collector() -> Iterator[None]:
    """The garbage collector runs; a simulated history before in this process disables it."""
    before = gc.isenabled()
    gc.enable()
    yield
    if not before:
        gc.disable()


@pytest.mark.parametrize("items", [MANY_LISTS, MANY_OBJECTS], ids=["lists", "objects"])
@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize(
    "serde",
    [
        (serdes.json, b"", b"%b"),
        (serdes.json(list[Any]), b"", b"%b"),
        (serdes.json(Listed), b"", b'{"items":%b}'),
        (*of_schema('{"type":"array"}'), b"%b"),
        (*of_schema(Listed), b'{"items":%b}'),
    ],
    ids=[
        "json",
        "json(list)",
        "json(Listed)",
        "json_schema(text)",
        "json_schema(Listed)",
    ],
)
def test_a_long_json_is_read_without_the_collector(
    serde: tuple[Any, bytes, bytes], items: bytes
) -> None:
    """It went through the lists made so far again and again: 245 of 300 ms."""
    reader, head, around = serde
    data = head + around.replace(b"%b", items)
    collected: list[str] = []

    def seen(phase: str, _: dict[str, int]) -> None:
        collected.append(phase)

    of_the_suite = gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # those of Python
    gc.callbacks.append(seen)
    try:
        value = reader.deserialize(data)
        during = len(collected)
    finally:
        gc.callbacks.remove(seen)
        gc.set_threshold(*of_the_suite)
    assert gc.isenabled()
    assert during <= 12  # with it: more than a hundred
    assert (value.items if isinstance(value, Listed) else value) == orjson.loads(items)


@pytest.mark.usefixtures("collector")
def test_who_has_disabled_the_collector_finds_it_disabled() -> None:
    gc.disable()
    try:
        serdes.json.deserialize(MANY_LISTS)
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.usefixtures("collector")
def test_the_collector_runs_again_behind_a_text_that_is_not_read() -> None:
    with pytest.raises(SerdeError):
        serdes.json.deserialize(MANY_LISTS[:-1])
    assert gc.isenabled()


SIZE = 20_000
CASES = cases()


def test_each_format_is_read_with_bytes_of_each_kind() -> None:
    assert len({str(case) for case in CASES}) == len(CASES) == 5 * len(formats())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_hostile_bytes_are_read_or_refused_by_one_error(case: Case) -> None:
    """Any other error fails, and so does a loop that makes no progress: it would not
    end.
    """
    said = ""
    tracemalloc.start()
    try:
        for data in case.bytes(SIZE):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            try:
                case.format.read(data)
            except case.format.refused as error:
                said = max(said, str(error), key=len)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 16 * MEBIBYTE + 200 * len(data)
    finally:
        tracemalloc.stop()
    if case.format.serde is not None:
        assert len(said) < 2_000  # a dead letter has it in a header


MEBIBYTE = 1 << 20
SERDES = [each for each in formats() if each.serde is not None]


@pytest.mark.parametrize("each", SERDES, ids=lambda each: each.name)
def test_the_handler_is_asked_about_each_value_that_is_refused(each: Format) -> None:
    hostile = [
        data
        for kind in KINDS
        for data in islice(Case(each, kind).bytes(10_000), 40)
        if _is_refused(each, data)
    ]
    assert each.serde is not None
    builder = StreamsBuilder("hostile")
    values = builder.stream("hostile", key=serdes.text, value=each.serde)
    values.map_values(lambda value: repr(value)[:20], value=serdes.text).to("shown")
    asked: list[bytes | None] = []

    def handler(failure: Failure) -> str:
        assert failure.phase == "deserialization"
        asked.append(failure.value)
        return "continue"

    config = {"deserialization.exception.handler": handler}
    with TopologyTestDriver(builder.build(), config=config) as driver:
        given = driver.input("hostile", key=serdes.text, value=serdes.raw)
        for data in hostile:
            given.send("a", data)
        given.send("a", each.good)
        assert asked == hostile
        assert len(driver.output("shown").records()) == 1


def _is_refused(each: Format, data: bytes) -> bool:
    try:
        each.read(data)
    except SerdeError:
        return True
    return False
