"""Decimals of Avro, refused by their length before they are converted.

fastavro converts bytes to a decimal, and a decimal to bytes, in time in the square of
its digits *(measured: 100 kB take 4 s, 900 kB 165 s; no other thread runs meanwhile)*.
It finds the functions of a logical type by its name, in tables that are open to others.
So decimals get a name of ours in the schemas that fastavro is given, whose functions
look at the length first. What else uses fastavro in this process keeps its own.

Turned down: a limit from the precision in the schema. The schema of a hostile writer
has any precision.
Source: fastavro, "Custom Logical Types"; Apache Avro 1.12, "Decimal".
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from typing import Any

from coopstreams.topology.compatibility.avro_changes import parts
from coopstreams.topology.compatibility.avro_logical import BOUNDED_DECIMAL
from coopstreams.topology.errors import SerdeError
from coopstreams.topology.limits import DECIMAL_BYTES, DECIMAL_DIGITS


def with_bounded_decimals(schema: Any) -> Any:
    """Return an Avro schema, as JSON, whose decimals are read and written within the
    limits.
    """
    _register()
    return _bounded(schema)


def check_decimals(schema: Any) -> None:
    """Check that the largest decimals of a schema, as JSON, can be read again.

    Raises:
        SerdeError: one has too many digits.
    """
    if isinstance(schema, dict) and schema.get("logicalType") == "decimal":
        digits = schema.get("precision", 0)
        size = schema.get("size", 0)
        if digits > DECIMAL_DIGITS or size > DECIMAL_BYTES:
            raise SerdeError(
                f"serdes.avro: the schema has a decimal of {digits} digits"
                f"{f' in {size} bytes' if size else ''}: at most {DECIMAL_DIGITS} digits in {DECIMAL_BYTES} bytes "
                "are read"
            )
    for inner in parts(schema):
        check_decimals(inner)


def _bounded(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bounded(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    if made.get("logicalType") == "decimal":
        made["logicalType"] = BOUNDED_DECIMAL
    for part in ("type", "items", "values"):
        if part in made:
            made[part] = _bounded(made[part])
    if "fields" in made:
        made["fields"] = [
            {**field, "type": _bounded(field["type"])} for field in made["fields"]
        ]
    return made


@cache
def _register() -> None:
    """Give fastavro the functions of bounded decimals."""
    from fastavro.read import LOGICAL_READERS
    from fastavro.write import LOGICAL_WRITERS

    def read_of(kind: str) -> Any:
        convert = LOGICAL_READERS[f"{kind}-decimal"]

        def read(data: bytes, writer: dict[str, Any], reader: Any = None) -> Decimal:
            if len(data) > DECIMAL_BYTES:
                raise ValueError(
                    f"a decimal of {len(data)} bytes: at most {DECIMAL_BYTES} are read"
                )
            found: Decimal = convert(data, writer, reader)
            return found

        return read

    def write_of(kind: str) -> Any:
        convert = LOGICAL_WRITERS[f"{kind}-decimal"]

        def write(value: Any, schema: dict[str, Any]) -> Any:
            # The exponent counts, too: fastavro writes the zeros that it stands for.
            if isinstance(value, Decimal) and value.adjusted() >= DECIMAL_DIGITS:
                raise ValueError(
                    f"a decimal of {value.adjusted() + 1} digits: at most {DECIMAL_DIGITS} are written"
                )
            data = convert(value, schema)
            if isinstance(data, bytes) and len(data) > DECIMAL_BYTES:  # with its scale
                raise ValueError(
                    f"a decimal of {len(data)} bytes: at most {DECIMAL_BYTES} are written"
                )
            return data

        return write

    for kind in ("bytes", "fixed"):
        LOGICAL_READERS[f"{kind}-{BOUNDED_DECIMAL}"] = read_of(kind)
        LOGICAL_WRITERS[f"{kind}-{BOUNDED_DECIMAL}"] = write_of(kind)
