"""Expressions in Spark SQL: to the bit what Python computes, or in doubt.

`python -m tests.spark.test_sql_expressions SEED EXPRESSIONS ROWS` draws more.
"""

from __future__ import annotations

import json
import operator
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 as everybody calls it

from coopstreams import (
    StreamsBuilder,
    Topology,
    coalesce,
    field,
    serdes,
    when,
)
from coopstreams.spark.native.sql_expressions import unreadable, with_values
from coopstreams.spark.native.sql_values import with_tokens
from coopstreams.spark.spark_session import local_session
from coopstreams.topology.fields import Expression
from tests.spark.native_runs import GOES_ON, Row, both, same_state, was_native
from tests.topology.drawn_expressions import NAMES, drawn, drawn_value

KINDS = ("boolean", "int64", "float64", "text")
AT_ONCE = 25
"""How many expressions one DataFrame has."""


def drawn_expressions(dice: Random, count: int) -> list[Expression]:
    """Return random expressions that SQL can compute."""
    found: list[Expression] = []
    while len(found) < count:
        expression = drawn(dice, dice.randrange(1, 5))
        if not isinstance(expression, field) and unreadable(expression) is None:
            found.append(expression)
    return found


def compared(
    spark: SparkSession,
    expressions: list[Expression],
    values: list[bytes | None],
) -> Counter[str]:
    """Return how many results there were, of them null and in doubt, and check that
    those that are not in doubt are Python's.
    """
    frame = spark.createDataFrame(list(enumerate(values)), "at int, value binary")
    frame, token_of = with_tokens(frame, NAMES, None)
    frame, computed = with_values(frame, expressions, token_of)
    results = [
        F.when(
            ~value.doubt,
            F.struct(*(getattr(value, kind).alias(kind) for kind in KINDS)),
        )
        for value in computed
    ]
    told = frame.select("at", F.array(*results).alias("told")).collect()
    counts = Counter[str]()
    for row in told:
        text = values[row["at"]]
        value = None if text is None else serdes.json.deserialize(text)
        for expression, found in zip(expressions, row["told"], strict=True):
            counts["results"] += 1
            if found is None:
                counts["in doubt"] += 1
                continue
            kinds = [each for each in found if each is not None]
            assert len(kinds) <= 1, (expression, value)
            one = kinds[0] if kinds else None
            counts["null"] += one is None
            want = expression(value)
            same = (type(one), repr(one)) == (type(want), repr(want))
            assert same, (expression, value, one, want)
    return counts


def drawn_texts(dice: Random, count: int) -> list[bytes | None]:
    """Return values in JSON, some with what SQL may not read."""
    odd = [
        None,
        b"null",
        b"{}",
        b"5",
        b'{"a":{"b":1}}',
        b'{"a":"\\u0041"}',
        b'{"a":-0}',
    ]
    return [
        *odd,
        *(
            json.dumps(drawn_value(dice), ensure_ascii=dice.random() < 0.1).encode()
            for _ in range(count - len(odd))
        ),
    ]


@pytest.mark.ci
def test_sql_computes_what_python_computes(spark: SparkSession) -> None:
    dice = Random(51)
    expressions = drawn_expressions(dice, AT_ONCE)
    counts = compared(spark, expressions, drawn_texts(dice, 300))
    assert counts["results"] == 300 * AT_ONCE
    assert counts["in doubt"] < 0.3 * counts["results"]
    assert counts["null"] < 0.7 * counts["results"]


N = field("n")
LARGE = (field("price") < N * 3 - 7) & ~field("kind").lower().starts_with("re")
WHOLE_N = coalesce(N.cast("int64"), 0)
CENTS = when(N > 0, (field("price") * 100).cast("int64") % 1000).otherwise(WHOLE_N)


def calculating() -> Topology:
    """Filters and folds by expressions, with windows and without."""
    builder = StreamsBuilder("native")
    records = builder.stream("orders", key=serdes.text, value=serdes.json)
    records.filter(LARGE).group_by_key().count(store="large")
    records.filter_not(LARGE).group_by_key().count(store="others")
    cents = records.map_values(CENTS, value=serdes.int64).group_by_key()
    cents.reduce(operator.add, store="cents")
    records.map_values(N / 4, value=serdes.float64).group_by_key().reduce(
        operator.add, store="quarters"
    )
    records.map_values(
        field("at").parse_time().floor(timedelta(hours=1)), value=serdes.int64
    ).group_by_key().reduce(max, store="latest")
    return builder.build()


@pytest.mark.slow
def test_spark_folds_expressions_to_the_same_state(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dice = Random(7)
    rows: list[Row] = []
    for number in range(600):
        order = {
            "n": dice.choice([1, 2, 3, -7, 40, None, "x"]),
            "price": dice.choice([1, 7.25, 1000.5, None]),
            "kind": dice.choice(["Order", "REFUND", None, 5]),
            "at": f"2026-11-{dice.randrange(1, 32):02}T{dice.randrange(24):02}:30Z",
        }
        if dice.random() < 0.2:
            del order[dice.choice(list(order))]
        value = None if dice.random() < 0.02 else json.dumps(order).encode()
        rows.append((b"key-%d" % dice.randrange(9), value, number, dice.randrange(2)))
    native, python = both(spark, calculating(), rows, tmp_path)
    assert GOES_ON not in caplog.text
    assert was_native(tmp_path)
    assert same_state(native, python)


def main() -> None:
    """Compare more expressions and rows than a test has time for."""
    seed, expressions, rows = map(int, sys.argv[1:4])
    dice = Random(seed)
    spark = local_session("expressions", cores="2")
    counts = Counter[str]()
    for _ in range(0, expressions, AT_ONCE):
        drawn_ = drawn_expressions(dice, AT_ONCE)
        counts += compared(spark, drawn_, drawn_texts(dice, rows))
        print(dict(counts), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
