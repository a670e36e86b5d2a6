"""Bytes that somebody else wrote: what is too long, too deep or too many is refused, by its length, as any bytes that
cannot be read.
"""

from __future__ import annotations

import re
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import pytest
from fastavro import parse_schema, schemaless_writer

from coopstreams import serdes
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import limits
from coopstreams.topology.compatibility.schema import Schema
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import SerdeError
from coopstreams.topology.limits import DECIMAL_BYTES, DECIMAL_DIGITS
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
    """Its definition stands in a field that is skipped, and another field repeats its name."""
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
        name: most for name, most in vars(limits).items() if isinstance(most, int)
    }
