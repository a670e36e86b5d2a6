"""Refuses Avro records that are nested too deeply, have more values than their bytes
explain, or have decimals that are too long.

fastavro reads each level of a value on the C stack. When the stack is full, the process
ends by SIGSEGV *(measured: 5,000 levels in 5 kB)*. Items without bytes (null, a record
without fields) cost only their count: ten bytes can stand for 50 million items.
fastavro reads the fields that it skips in the same way, so a check of the writer's
schema covers the reader's schema as well.

The values of most schemas cannot exceed these limits, and `_reach` proves it from the
schema alone. Other schemas contain themselves or have items without bytes. Their
records are scanned once before they are read: the scan counts levels and items and
converts nothing.

Invariant: a record that is read has at most `LEVELS` levels, at most `VALUES` values
plus `VALUES_PER_BYTE` for each byte, and at most `VALUES` values of types without
bytes.
Turned down: fastavro's Python reader for schemas that contain themselves, which raises
RecursionError instead. It takes ten times as long, is private, and does not limit
items. A scan for all schemas: it doubles the time. A limit of decimals by the precision
in the schema: a hostile writer's schema may state any precision.
Source: Apache Avro 1.12, "Binary encoding", "Decimal"; fastavro, "Custom Logical
Types".
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import cache
from io import BytesIO
from math import inf
from typing import Any, NamedTuple, TypeAlias

from coopstreams.topology.compatibility.avro_schemas import (
    BOUNDED_DECIMAL,
    MEMBERS,
    Named,
    definition,
    definitions,
    parts,
    with_parts,
)
from coopstreams.topology.errors import SerdeError
from coopstreams.topology.input_limits import (
    DECIMAL_BYTES,
    DECIMAL_DIGITS,
    LEVELS,
    VALUES,
    VALUES_PER_BYTE,
)

Step: TypeAlias = Callable[[bytes, int, int, list[int]], int]
"""A function that scans one value: (record, where the value begins, levels left, values
left) -> where the value ends.

Values left is a list of two counts: of all values, and of values of types without
bytes.
"""

_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
"""The size in bytes of the types whose values all have the same size."""
_LONG_BYTES = 32_768
"""The size above which a record is read so that other threads can run meanwhile."""


class _Reach(NamedTuple):
    """The limits that a schema sets to its values. Infinite: the schema sets no limit,
    so each record has to be scanned.

    `levels`: the depth of records, arrays and maps within each other. `excess`: the
    number of values, less `VALUES_PER_BYTE` for each byte of the record.
    """

    levels: float
    excess: float


_UNKNOWN = _Reach(inf, inf)


class Gradual(BytesIO):
    """A long record as a file whose reads run Python code, so that the interpreter can
    change to another thread.

    fastavro itself never lets other threads run within a record, and takes a second for
    a megabyte of small parts.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes."""
        return _read(self, size)


_read = BytesIO.read


def source_of(data: bytes) -> BytesIO:
    """Return the file from which fastavro reads a record."""
    return Gradual(data) if len(data) > _LONG_BYTES else BytesIO(data)


def check_of(schema: Any) -> Callable[[bytes, int], None] | None:
    """Return the function that checks records of a writer's schema, or None if the
    schema alone proves that they keep the limits.

    Shape: `schema` is one that `fastavro.parse_schema` returns. The function takes a
    record and the offset in it at which the value begins; it raises a SerdeError.
    """
    named = definitions(schema)
    reach = _reach(schema, named, {}, LEVELS + 1)
    if reach.levels <= LEVELS and reach.excess <= VALUES:
        return None
    step = _step(schema, _Types(named, _empty_records(named), {}))

    def check(data: bytes, at: int) -> None:
        values_left = [VALUES + VALUES_PER_BYTE * len(data), VALUES]
        try:
            end = step(data, at, LEVELS, values_left)
        except IndexError:
            end = len(data) + 1
        if end > len(data):
            raise SerdeError("the bytes end within the record")

    return check


def _reach(
    schema: Any,
    named: Named,
    known: dict[str, _Reach],
    levels_left: int,
) -> _Reach:
    """Return the limits that a schema sets to its values.

    `known`: the limits of named records; infinite for a record that is still being
    examined. `levels_left`: how many levels of the schema may still be entered.
    """
    if not levels_left:
        return _UNKNOWN

    def within(part: Any) -> _Reach:
        return _reach(part, named, known, levels_left - 1)

    schema = definition(schema, named)
    if isinstance(schema, list):
        branches = list(map(within, schema)) or [_Reach(0, 0)]
        levels, excesses = zip(*branches, strict=True)
        return _Reach(max(levels), _of_bytes(1) + max(excesses))
    kind = schema["type"]
    if kind == "record":
        name = schema["name"]
        if name not in known:
            known[name] = _UNKNOWN  # for fields that have this type
            fields = [
                _Reach(0, 0),
                *(within(field["type"]) for field in schema["fields"]),
            ]
            levels, excesses = zip(*fields, strict=True)
            known[name] = _Reach(1 + max(levels), 1 + sum(excesses))
        return known[name]
    if kind in MEMBERS:
        member = within(schema[MEMBERS[kind]])
        key_excess = _of_bytes(1) if kind == "map" else 0
        as_many_as_bytes = member.excess + key_excess <= 0
        return _Reach(1 + member.levels, _of_bytes(1) if as_many_as_bytes else inf)
    least = schema["size"] if kind == "fixed" else _SIZES.get(kind, 1)
    return _Reach(0, _of_bytes(least))


def _empty_records(named: Named) -> frozenset[str]:
    """Return the names of the records whose values have no byte, because all their
    fields are nulls or other records without bytes.

    fastavro makes such a value without a read, so no other thread runs meanwhile.
    """
    records = {name for name, each in named.items() if each["type"] == "record"}
    users: dict[str, list[str]] = {}
    waiting = []
    for name in records:
        for field in named[name]["fields"]:
            each = definition(field["type"], named)
            if isinstance(each, list) or not _may_be_empty(each):
                waiting.append(name)
            elif each["type"] == "record":
                users.setdefault(each["name"], []).append(name)
    with_bytes = set[str]()
    while waiting:
        name = waiting.pop()
        if name not in with_bytes:
            with_bytes.add(name)
            waiting += users.get(name, ())
    return frozenset(records - with_bytes)


def _may_be_empty(schema: Any) -> bool:
    return schema["type"] in ("null", "record") or schema.get("size") == 0


def _of_bytes(least: int) -> int:
    """Return the excess (see `_Reach`) of one value that is written in at least `least`
    bytes.
    """
    return 1 - VALUES_PER_BYTE * least


class _Types(NamedTuple):
    """The named types of a schema: their definitions, the names of records without
    bytes, and the scan function of each record.
    """

    named: Named
    empty: frozenset[str]
    steps: dict[str, Step]

    def has_no_bytes(self, schema: Any) -> bool:
        """Return whether the values of a type are written in zero bytes."""
        return not isinstance(schema, list) and (
            schema["name"] in self.empty
            if schema["type"] == "record"
            else _may_be_empty(schema)
        )


def _step(schema: Any, types: _Types) -> Step:
    """Return the function that scans a value of a schema."""
    schema = definition(schema, types.named)
    if isinstance(schema, list):
        return _union_step([_step(branch, types) for branch in schema])
    kind = schema["type"]
    if kind == "record":
        return types.steps.get(schema["name"]) or _record_step(schema, types)
    if kind == "array":
        item = definition(schema["items"], types.named)
        return _items_step(_step(item, types), int(types.has_no_bytes(item)))
    if kind == "map":
        return _items_step(_step(schema["values"], types), 0, _pass_bytes)
    if kind in ("bytes", "string"):
        return _pass_bytes
    if kind in ("int", "long", "enum"):
        return _pass_number
    return _fixed_step(schema["size"] if kind == "fixed" else _SIZES[kind])


def _record_step(schema: Any, types: _Types) -> Step:
    fields: list[Step] | None = None
    values = 1 + len(schema["fields"])
    counted = int(types.has_no_bytes(schema))

    def step(
        data: bytes,
        at: int,
        levels_left: int,
        values_left: list[int],
    ) -> int:
        nonlocal fields
        if not levels_left:
            raise SerdeError(f"it is nested more than {LEVELS} levels deep")
        if fields is None:  # they may have this type; and most of 5,000 are never met
            fields = [_step(field["type"], types) for field in schema["fields"]]
        levels_left -= 1
        values_left[counted] -= values
        if values_left[counted] < 0:
            _refuse_values()
        for field in fields:
            at = field(data, at, levels_left, values_left)
        return at

    types.steps[schema["name"]] = step
    return step


def _union_step(branches: list[Step]) -> Step:
    def step(
        data: bytes,
        at: int,
        levels_left: int,
        values_left: list[int],
    ) -> int:
        number, at = _number(data, at)
        if not 0 <= number < len(branches):
            raise SerdeError(f"a union has no branch {number}")
        return branches[number](data, at, levels_left, values_left)

    return step


def _items_step(
    item: Step,
    counted: int,
    key: Step | None = None,
) -> Step:
    """Return the function that scans the blocks of an array, or of a map, whose items
    have keys.

    `counted`: 1 if the items have no bytes, else 0: the index in the values left.
    """

    def step(
        data: bytes,
        at: int,
        levels_left: int,
        values_left: list[int],
    ) -> int:
        if not levels_left:
            raise SerdeError(f"it is nested more than {LEVELS} levels deep")
        levels_left -= 1
        while data[at]:
            count, at = _number(data, at)
            if count < 0:  # the size of the block follows
                count = -count
                _, at = _number(data, at)
            values_left[counted] -= count
            if values_left[counted] < 0:
                _refuse_values()
            for _ in range(count):
                if key is not None:
                    at = key(data, at, 0, values_left)
                at = item(data, at, levels_left, values_left)
        return at + 1

    return step


def _fixed_step(size: int) -> Step:
    def step(
        _data: bytes,
        at: int,
        _levels_left: int,
        _values_left: list[int],
    ) -> int:
        return at + size

    return step


def _pass_number(
    data: bytes,
    at: int,
    _levels_left: int,
    _values_left: list[int],
) -> int:
    while data[at] > 0x7F:
        at += 1
    return at + 1


def _pass_bytes(
    data: bytes,
    at: int,
    _levels_left: int,
    _values_left: list[int],
) -> int:
    length, at = _number(data, at)
    if not 0 <= length <= len(data) - at:
        raise SerdeError(f"{length} bytes of a text, where {len(data) - at} are left")
    return at + length


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag varint at an offset, and the offset of the next byte."""
    byte = data[at]
    at += 1
    if byte <= 0x7F:  # most are short
        return (byte >> 1) ^ -(byte & 1), at
    number = byte & 0x7F
    shift = 7
    while byte > 0x7F:
        if shift > 63:
            raise SerdeError("a number of more than 64 bits")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), at


def _refuse_values() -> None:
    raise SerdeError(
        f"it has more values than {VALUES} without bytes, or {VALUES_PER_BYTE} for each byte besides"
    )


def with_bounded_decimals(schema: Any) -> Any:
    """Return an Avro schema, as JSON, in which decimals have a logical type of ours
    that limits their length.

    fastavro converts decimals in time quadratic in their digits *(measured: 100 kB take
    4 s, 900 kB 165 s; no other thread runs meanwhile)*. It looks up the functions of a
    logical type by name, in tables that anyone may extend. So decimals get a name of
    ours, whose functions check the length first. Other users of fastavro in this
    process are not affected.
    """
    _register()
    return _bounded(schema)


def check_decimals(schema: Any) -> None:
    """Check that the decimals of a schema, as JSON, are within the limits that readers
    accept.

    Raises:
        SerdeError: a decimal type has too many digits or bytes.
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
    if not isinstance(schema, list | dict):
        return schema
    made = with_parts(schema, _bounded)
    if isinstance(made, dict) and made.get("logicalType") == "decimal":
        made["logicalType"] = BOUNDED_DECIMAL
    return made


@cache
def _register() -> None:
    """Add the functions of length-limited decimals to fastavro's tables."""
    from fastavro.read import LOGICAL_READERS
    from fastavro.write import LOGICAL_WRITERS

    def read_of(kind: str) -> Any:
        convert = LOGICAL_READERS[f"{kind}-decimal"]

        def read(
            data: bytes,
            writer: dict[str, Any],
            reader: Any = None,
        ) -> Decimal:
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
