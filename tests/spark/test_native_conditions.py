"""Native plans behind filters and in hopping windows: conditions that Spark SQL decides
as Python does, or leaves to it.
"""

from __future__ import annotations

import json
import operator
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 as everybody calls it

from coopstreams import StreamsBuilder, TimeWindows, Topology, field, row, serdes
from coopstreams.spark.native.sql_eligibility import translated
from coopstreams.spark.native.sql_expressions import unreadable, with_values
from coopstreams.spark.native.sql_values import judged, truthy, with_tokens
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.fields import Expression, fields_of
from tests.durations import ms
from tests.spark.native_runs import (
    GOES_ON,
    GRACE,
    Row,
    backfilled,
    both,
    same_state,
    was_native,
)

COMPARE: list[Any] = [
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]
NUMBERS = [
    0,
    5,
    -90,
    10**17,
    (1 << 53) + 1,
    (1 << 63) - 1,
    -0.0,
    5.0,
    0.1,
    1e17,
    1e300,
    -2.5,
]
TEXTS = [
    "",
    "DE",
    "D",
    "DE ",
    "de",
    "\u00fc",
    "u\u0308",
    "\uffee",
    "\U0001f600",
    '"',
    "null",
    "5",
    "true",
]
WHOLE = [
    "0",
    "-0",
    "5",
    "05",
    "-90",
    str(10**17),
    str(10**17 + 1),
    str((1 << 53) + 1),
    str(1 << 53),
    "9" * 18,
    "-" + "9" * 18,
    "9" * 19,
]
FRACTIONS = [
    "5.0",
    "-0.0",
    "0.1",
    "0.10000000000000001",
    "4.99999999999999999",
    "9007199254740993.0",
    "-2.5",
    "1e2",
    "5.",
    "100000000000000000.1",
]
OTHERS = ["true", "false", "null", "[]", "{}", "NaN", "", "'DE'", '"D\\u0045"', '"\\""']


def tokens() -> list[str]:
    generator = random.Random(5)
    close = [
        f"{generator.randrange(-10, 10)}.{generator.randrange(10**17):017}"
        for _ in range(60)
    ]
    return [
        *WHOLE,
        *FRACTIONS,
        *OTHERS,
        *close,
        *(json.dumps(text, ensure_ascii=False) for text in TEXTS if text != '"'),
    ]


def comparisons(every: int) -> list[Expression]:
    """Return comparisons with each constant, by each `every`-th operator in turn."""
    ordered: list[Expression] = [
        compare(field("x"), constant)
        for number, constant in enumerate([*NUMBERS, *TEXTS])
        for compare in COMPARE[number % every :: every]
    ]
    same: list[Expression] = [
        compare(field("x"), constant)
        for constant in (None, True, False)
        for compare in COMPARE[: 2 if constant is None else 6]
    ]
    return [*ordered, *same, field("x")]


def joined(generator: random.Random, depth: int) -> Expression:
    """Return conditions on x and y, combined and negated."""
    if not depth or generator.random() < 0.2:
        part = field(generator.choice("xy"))
        compared = generator.choice(COMPARE)(
            part, generator.choice([0, 5, 0.1, "DE", "D"])
        )
        made: Expression = generator.choice([part, compared, part == None])  # noqa: E711
        return made
    one, other = joined(generator, depth - 1), joined(generator, depth - 1)
    return generator.choice([one & other, one | other, ~one])


def decided(
    spark: SparkSession, conditions: list[Expression], values: list[bytes | None]
) -> list[list[bool | None]]:
    """Return SQL's result of each condition for each value, None where it is in doubt."""
    names = list(
        dict.fromkeys(name for condition in conditions for name in fields_of(condition))
    )
    frame, token_of = with_tokens(
        spark.createDataFrame(list(enumerate(values)), "at int, value binary"),
        names,
        None,
    )
    frame, read = with_values(frame, conditions, token_of)
    judgements = [
        truthy(F.col(token_of[condition.name]))
        if isinstance(condition, field)
        else judged(value)
        for condition, value in zip(conditions, read, strict=True)
    ]
    told = frame.select(
        "at",
        F.array(*(F.when(~each.doubt, each.true) for each in judgements)).alias("told"),
    ).collect()
    return [row["told"] for row in sorted(told, key=lambda row: row["at"])]


def check(
    conditions: list[Expression],
    values: list[bytes | None],
    told: list[list[bool | None]],
) -> dict[str, int]:
    """Return the number of certain results of each condition, and check that they equal
    Python's.
    """
    certain = dict.fromkeys(map(repr, conditions), 0)
    for value, results in zip(values, told, strict=True):
        for condition, found in zip(conditions, results, strict=True):
            if found is not None:
                python = None if value is None else serdes.json.deserialize(value)
                assert bool(condition(python)) is found, (condition, value)
                certain[repr(condition)] += 1
    return certain


@pytest.mark.ci
@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_a_comparison_that_sql_decides_is_decided_as_in_python(
    spark: SparkSession, every: int
) -> None:
    values: list[bytes | None] = [
        f'{{"x": {text}, "other":1}}'.encode() for text in tokens()
    ]
    values += [
        None,
        b"null",
        b"5",
        b"{}",
        b'{"X":5}',
        b'{"x":5,"x":6}',
        b'{"x":"\xff"}',
        b'{"x":"\xed\xa0\x80"}',
        b'{"x":5}}',
    ]
    conditions = comparisons(every)
    assert [unreadable(condition) for condition in conditions] == [None] * len(
        conditions
    )
    certain = check(conditions, values, decided(spark, conditions, values))
    assert min(certain.values()) > 2
    assert certain[repr(field("x") >= 5)] > 60
    assert certain[repr(field("x") != "DE")] > 90


@pytest.mark.slow
def test_joined_conditions_ask_as_much_as_python_asks(spark: SparkSession) -> None:
    generator = random.Random(6)
    pieces = ["0", "5", "0.1", "true", "false", "null", '"DE"', '"D"', "[]", ""]
    values: list[bytes | None] = []
    for _ in range(300):
        parts = [
            f'"{name}":{generator.choice(pieces)}'
            for name in "xyz"
            if generator.random() < 0.9
        ]
        generator.shuffle(parts)
        values.append(f"{{{','.join(parts)}}}".encode())
    conditions = list(dict.fromkeys(joined(generator, 3) for _ in range(30)))
    certain = check(conditions, values, decided(spark, conditions, values))
    assert sum(certain.values()) > 1500


ORDERS = (field("kind") == "order") & (field("amount") > -40)
ABROAD = (field("kind") == "order") & ((field("country") != "D\u00fc") | field("gift"))


def filtered_and_hopping() -> Topology:
    """Filters before folds of all time, and before unevenly overlapping windows; one
    filter drops all.
    """
    builder = StreamsBuilder("native")
    records = builder.stream("orders", key=serdes.text, value=serdes.json)
    hopping = TimeWindows(milliseconds=1000, advance=ms(300), grace=GRACE)
    orders = records.filter(ORDERS)
    orders.group_by_key().count(store="orders")
    orders.group_by_key().windowed_by(hopping).count(
        store="per-second", retention=ms(9000)
    ).to_stream().to("per-second")
    amounts = (
        records.filter_not(~ABROAD)
        .filter(field("price") <= 7.25)
        .map_values(field("amount"), value=serdes.int64)
        .group_by_key()
    )
    amounts.reduce(operator.add, store="abroad", value=serdes.json)
    amounts.windowed_by(hopping).reduce(max, store="largest")
    records.filter(field("kind") == "refund").group_by_key().windowed_by(hopping).count(
        store="refunds"
    )
    records.group_by_key().windowed_by(
        TimeWindows(milliseconds=40, advance=ms(20))
    ).count(store="all", retention=ms(20_000))
    return builder.build()


def orders(seed: int, records: int) -> list[Row]:
    """Return orders and notes, some with an amount that is none, without a key or late,
    with jumps in time that depend on filters.
    """
    generator, now, rows = random.Random(seed), 0, list[Row]()
    for _ in range(records):
        now += generator.randrange(12)
        note = generator.random() < 0.2
        moved = (
            generator.choice([-2000, -1500, -900, 900, 1500])
            if generator.random() < 0.15
            else 0
        )
        value = {
            "kind": "note" if note else "order",
            "amount": generator.choice(["none", 1.5, None])
            if note
            else generator.randrange(-90, 500),
            "country": generator.choice(["DE", "D\u00fc"]),
            "gift": generator.choice([True, False, None]),
            "price": generator.choice([7, 7.25, 7.5]),
        }
        key = (
            None
            if generator.random() < 0.05
            else b"key-%d\xff" % generator.randrange(20)
        )
        rows.append(
            (
                key,
                json.dumps(value, ensure_ascii=False).encode(),
                max(0, now + moved),
                generator.randrange(2),
            )
        )
    return rows


@pytest.mark.slow
def test_filtered_and_in_hopping_windows_spark_folds_what_python_folds(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    native, python = both(spark, filtered_and_hopping(), orders(9, 1200), tmp_path)
    assert GOES_ON not in caplog.text
    assert was_native(tmp_path)
    assert same_state(native, python)
    assert {store for store, _, _ in native.rows} == {
        "orders",
        "per-second",
        "abroad",
        "largest",
        "all",
    }
    read, dropped, _ = native.counts
    assert read == {"orders": 1200}
    late = {why: count for why, count in dropped.items() if why.endswith("late")}
    assert len(late) == 3
    assert min(late.values()) > 20
    assert len({dropped[why] for why in dropped if why.endswith("null-key")}) > 1


@pytest.mark.slow
def test_a_field_in_doubt_leaves_the_stage_to_python_which_raises(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    builder = StreamsBuilder("native")
    builder.stream("records", key=serdes.text, value=serdes.json).filter(
        field("large")
    ).group_by_key().count(store="large")
    rows: list[Row] = [
        (b"key", b'{"large":true}', 1, 0),
        (b"key", b'{"amount":8}', 2, 0),
    ]
    with pytest.raises(
        ProcessingError,
        match=r'the record at "records" partition 0 offset 1 made a function raise',
    ):
        backfilled(
            spark, builder.build(), rows, tmp_path, ranges=1, native=True, partitions=1
        )
    assert (
        f"sub-topology 0 {GOES_ON}: SQL may treat 1 of its records differently"
        in caplog.text
    )


def why(step: Any, value: serdes.Serde[Any] = serdes.json) -> str:
    """Return why a count behind a step is left to Python."""
    builder = StreamsBuilder("app")
    step(builder.stream("in", key=serdes.text, value=value)).group_by_key().count(
        store="counts"
    )
    found = translated(builder.build().subtopologies[0])
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (lambda stream: stream.filter(lambda key, value: True), "a condition as field"),
        (
            lambda stream: stream.filter(field('"') > 1),
            "which JSON may write in several ways",
        ),
        (
            lambda stream: stream.filter(field("x") == "\ud800"),
            "which is no text in UTF-8",
        ),
        (
            lambda stream: stream.filter((field("x") / 2).cast("text") == "1.5"),
            "the text of a float, which Java writes otherwise",
        ),
        (
            lambda stream: stream.filter(field("x")["y"] == 1),
            "which has no translation",
        ),
        (
            lambda stream: stream.map_values(row(x=field("x")), value=serdes.json),
            "which has no translation",
        ),
        (
            lambda stream: stream.map_values(field("x"), value=serdes.json).filter(
                field("y") > 1
            ),
            "stands behind another step",
        ),
        (lambda stream: (stream.filter(field("x") > 1), stream)[1], "leads nowhere"),
        (
            lambda stream: (stream.map_values(field("x"), value=serdes.json), stream)[
                1
            ],
            "leads nowhere",
        ),
    ],
)
def test_what_sql_may_see_in_another_way_is_python_s_before_anything_runs(
    step: Any, reason: str
) -> None:
    assert reason in why(step)


def test_conditions_are_about_plain_json() -> None:
    assert "folds values of int64" in why(
        lambda stream: stream.filter(field("real") > 1), serdes.int64
    )
