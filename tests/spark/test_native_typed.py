"""Native plans of typed JSON and of floats: SQL checks types as msgspec does, and adds
in the order of records.
"""

from __future__ import annotations

import math
import operator
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Required, TypedDict

import msgspec
import pytest
from pyspark.sql import SparkSession

from coopstreams import StreamsBuilder, TimeWindows, Topology, field, serdes
from coopstreams.spark.native.sql_eligibility import parts_of, translated
from tests.durations import ms
from tests.spark.native_runs import (
    GOES_ON,
    GRACE,
    Row,
    aggregation_of,
    both,
    same_state,
    understood,
    was_native,
)


class Ride(msgspec.Struct, rename={"fare": "Fare"}):
    """A type with each kind of field, read and unread."""

    fare: float
    stops: int
    city: str
    shared: bool
    tip: float | None = None
    luggage: int = 1
    note: str | None = ""


@dataclass
class Reading:
    """A float field whose default is an int, which is used where the field is missing."""

    level: float = 0
    weight: float = 2.5


class Partly(TypedDict, total=False):
    """A field that may be missing has no default."""

    level: Required[int]
    weight: float


def folded(
    type_: Any,
    part: str,
    store: serdes.Serde[Any],
    reducer: Callable[..., Any] = operator.add,
) -> Topology:
    builder = StreamsBuilder("typed")
    values = builder.stream(
        "records", key=serdes.text, value=serdes.json(type_)
    ).map_values(field(part), value=store)
    values.group_by_key().reduce(reducer, store="folded")
    return builder.build()


WHOLE = ["0", "-0", "7", "-90", "007", "9" * 15, "9" * 18, "9" * 19, "1" + "0" * 19]
FLOATS = [
    "0.0",
    "-0.0",
    "1.5",
    "1e3",
    "1E-5",
    "1e99",
    "1e400",
    "0.1",
    "3.14159265358979312",
    "1e",
    ".5",
    "1.",
    "NaN",
]
OTHERS = [
    "true",
    "null",
    '"5"',
    '"\u00fc"',
    '"a\\"b"',
    '"\\ud83d\\ude00"',
    '"\\ud800"',
    '"\\x"',
    "[1]",
    "{}",
    "",
]
NAMES = [
    "Fare",
    "fare",
    "stops",
    "city",
    "shared",
    "tip",
    "luggage",
    "note",
    "level",
    "weight",
    "x",
    "F\\u0061re",
]
FITTING = {
    "Fare": [*WHOLE, *FLOATS],
    "stops": WHOLE,
    "city": ['"Ulm"', '"\u00fc"', '"a\\nb"'],
    "shared": ["true", "false"],
    "tip": [*FLOATS, "5", "null"],
    "level": [*WHOLE, "1.5"],
    "weight": FLOATS,
}


def objects(seed: int, names: list[str]) -> list[bytes | None]:
    """Return objects of these fields: most are complete and valid, some have one twice,
    too many or none.
    """
    generator, found = random.Random(seed), list[bytes | None]()
    for _ in range(2500):
        named = [name for name in names if generator.random() < 0.97]
        named += generator.choices(NAMES, k=generator.choice([0, 0, 1]))
        generator.shuffle(named)
        pairs = []
        for name in named:
            fitting = (
                FITTING.get(name, OTHERS)
                if generator.random() < 0.95
                else [*WHOLE, *FLOATS, *OTHERS]
            )
            pairs.append(
                f'"{name}"{generator.choice([":", ": ", " :"])}{generator.choice(fitting)}'
            )
        text = generator.choice([",", ", ", " ,\n"]).join(pairs)
        found.append(f"{{{text}}}{generator.choice(['', '', '', ',', ' '])}".encode())
    return [
        *found,
        None,
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"level":1,}',
        b"\xff",
        b"\x01",
        b"\x01\x01",
        b'{"level":1}\x01',
    ]


@pytest.mark.parametrize(
    ("type_", "part", "store", "least"),
    [
        (Ride, "fare", serdes.float64, 200),
        (Ride, "stops", serdes.int64, 200),
        (Ride, "luggage", serdes.json, 200),
        (Ride, "tip", serdes.json, 200),
        (Reading, "level", serdes.json, 200),
        (Reading, "weight", serdes.float64, 200),
        (Partly, "weight", serdes.json, 200),
    ],
)
def test_a_typed_number_that_sql_reads_is_the_one_that_msgspec_reads(
    spark: SparkSession, type_: Any, part: str, store: serdes.Serde[Any], least: int
) -> None:
    aggregation = aggregation_of(folded(type_, part, store))
    names = (
        ["Fare", "stops", "city", "shared", "tip"]
        if type_ is Ride
        else ["level", "weight"]
    )
    values = objects(1, names)
    certain = 0
    for value, number in zip(
        values, understood(spark, aggregation, values), strict=True
    ):
        if number is not None:
            assert value is not None
            read = field(part)(serdes.json(type_).deserialize(value))
            assert store.encode(read) == store.encode(number), value
            certain += 1
    assert certain > least


@pytest.mark.ci
def test_floats_of_eight_bytes_are_read_and_those_that_are_not_finite_are_in_doubt(
    spark: SparkSession,
) -> None:
    builder = StreamsBuilder("typed")
    builder.stream(
        "records", key=serdes.text, value=serdes.float64
    ).group_by_key().reduce(max, store="largest")
    aggregation = aggregation_of(builder.build())
    generator = random.Random(2)
    bits = [generator.randbytes(8) for _ in range(500)]
    bits += [struct.pack(">q", (exponent << 52) + 1) for exponent in range(0x7FF)]
    values = [
        *bits,
        *map(
            serdes.float64.encode,
            [0.0, -0.0, 5e-324, -5e-324, math.inf, -math.inf, math.nan],
        ),
        b"1",
        None,
    ]
    for value, number in zip(
        values, understood(spark, aggregation, list(values)), strict=True
    ):
        known = (
            value is not None
            and len(value) == 8
            and math.isfinite(serdes.float64.decode(value))
        )
        assert (number is not None) == known
        assert number is None or struct.pack(">d", number) == value


RIDES = TimeWindows(milliseconds=800, advance=ms(300), grace=GRACE)


def rides() -> Topology:
    """Sums of floats of all time and in windows, behind filters; smallest and largest
    values.
    """
    builder = StreamsBuilder("typed")
    records = builder.stream("rides", key=serdes.text, value=serdes.json(Ride))
    records.map_values(field("fare"), value=serdes.float64).group_by_key().reduce(
        operator.add, store="fares"
    )
    tips = records.filter((field("city") != "Ulm") & ~field("shared")).map_values(
        field("tip"), value=serdes.json
    )
    tips.group_by_key().reduce(operator.add, store="tips")
    tips.group_by_key().reduce(min, store="least-tip")
    fares = (
        records.map_values(field("fare"), value=serdes.json)
        .group_by_key()
        .windowed_by(RIDES)
    )
    fares.reduce(
        operator.add, store="fares-in-windows", retention=timedelta(seconds=9)
    ).to_stream().to("fares")
    fares.reduce(max, store="largest", retention=timedelta(seconds=9))
    luggage = records.map_values(field("luggage"), value=serdes.int64).group_by_key()
    luggage.reduce(operator.add, store="luggage")
    records.filter(field("tip") == None).group_by_key().count(store="without-tip")  # noqa: E711
    return builder.build()


def ridden(seed: int, records: int) -> list[Row]:
    """Return rides whose fares have another sum in any other order; some late, some
    without a key.
    """
    generator, now, rows = random.Random(seed), 0, list[Row]()
    for _ in range(records):
        now += generator.randrange(12)
        late = generator.randrange(3000) if generator.random() < 0.1 else 0
        value: dict[str, Any] = {
            "Fare": generator.choice(
                [generator.uniform(-1, 1) * 10.0 ** generator.randrange(-9, 12), 7]
            ),
            "stops": generator.randrange(9),
            "city": generator.choice(["Ulm", "K\u00f6ln"]),
            "note": generator.choice(["", None, 'a "b"']),
            "shared": generator.random() < 0.4,
        }
        value |= generator.choice(
            [
                {},
                {"tip": None},
                {"tip": generator.random()},
                {"tip": 2},
                {"luggage": 3, "x": -1.5},
            ]
        )
        key = (
            None
            if generator.random() < 0.02
            else f"key-{generator.randrange(7)}".encode()
        )
        rows.append(
            (
                key,
                msgspec.json.encode(value),
                max(0, now - late),
                generator.randrange(2),
            )
        )
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("ranges", [1, 5])
def test_typed_values_and_floats_are_folded_as_in_python_to_the_last_bit(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, ranges: int
) -> None:
    rows = ridden(ranges, 1200)
    native, python = both(spark, rides(), rows, tmp_path, ranges)
    assert GOES_ON not in caplog.text
    assert was_native(tmp_path)
    assert same_state(native, python)
    assert len({store for store, _, _ in native.rows}) == 7
    assert any("null-value" in why for why in native.counts[1])
    assert any("late" in why for why in native.counts[1])


def plain_floats(store: serdes.Serde[Any], reducer: Callable[..., Any]) -> Topology:
    builder = StreamsBuilder("typed")
    amounts = builder.stream("records", key=serdes.text, value=serdes.json).map_values(
        field("x"), value=store
    )
    amounts.group_by_key().reduce(reducer, store="folded")
    return builder.build()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "left"),
    [
        pytest.param(
            [0.1, 2, -0.3, 1.5e7, 9007199254740, -0.0],
            False,
            id="integers-among-floats",
        ),
        pytest.param([1 << 53, 1, 1], True, id="integers-that-a-float-rounds"),
        pytest.param([-0.0, -0.0], True, id="zeros"),
    ],
)
def test_a_sum_that_python_may_round_in_another_way_is_left_to_it(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    values: list[float],
    left: bool,
) -> None:
    rows: list[Row] = [
        (b"key", msgspec.json.encode({"x": value}), at, 0)
        for at, value in enumerate(values)
    ]
    rows += [
        (b"other", b'{"x":null}', len(values), 0),
        (b"other", b'{"x":0.5}', len(values) + 1, 0),
    ]
    native, python = both(
        spark, plain_floats(serdes.float64, operator.add), rows, tmp_path, ranges=1
    )
    assert (GOES_ON in caplog.text) == left
    assert same_state(native, python)


class Checked(msgspec.Struct):
    """A type with code of its own."""

    amount: int

    def __post_init__(self) -> None:
        raise ValueError


class Tagged(msgspec.Struct, tag=True):
    """A type of a union."""

    amount: int


class Nested(msgspec.Struct):
    """A type with a nested type."""

    amount: int
    inner: Reading


@pytest.mark.parametrize(
    "type_", [Checked, Tagged, Nested, int, dict[str, int], list[int], int | str]
)
def test_types_with_checks_of_their_own_are_msgspec_s(type_: Any) -> None:
    assert parts_of(serdes.json(type_)) is None


@pytest.mark.parametrize(
    ("type_", "part", "store", "reason"),
    [
        (Checked, "amount", serdes.int64, "folds values of json(Checked)"),
        (
            Ride,
            "Fare",
            serdes.float64,
            "reads the field 'Fare', which its type does not have",
        ),
        (Ride, "city", serdes.json, "keeps values as json"),
        (Ride, "fare", serdes.int64, "keeps values as int64"),
        (Ride, "fare", serdes.json(float), "keeps values as json(float)"),
    ],
)
def test_what_sql_cannot_check_is_said(
    type_: Any, part: str, store: serdes.Serde[Any], reason: str
) -> None:
    found = translated(folded(type_, part, store).subtopologies[0])
    assert isinstance(found, str)
    assert reason in found


def test_only_what_reads_as_msgspec_does_by_itself_has_plain_fields() -> None:
    assert parts_of(serdes.json) is None
    assert parts_of(serdes.int64) is None
    lax = msgspec.json.Decoder(Ride, strict=False)
    assert parts_of(serdes.Serde("lax", msgspec.json.encode, lax.decode)) is None
    assert [
        part.default for part in (parts_of(serdes.json(Reading)) or {}).values()
    ] == [None, "2.5"]
