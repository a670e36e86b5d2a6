"""Expressions: what they return for any value, how they print and travel, and what is
refused while the topology is built.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum, StrEnum
from random import Random
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coopstreams import (
    StreamsBuilder,
    aggregate,
    coalesce,
    concat,
    field,
    key,
    left,
    lit,
    right,
    row,
    serdes,
    value,
    when,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.fields import Expression, fields_of, reads_fields_only
from coopstreams.topology.operators.codegen import Unit
from coopstreams.topology.operators.expressions import of_value
from tests.topology.drawn_expressions import drawn, drawn_row, drawn_value, expected

HOUR = timedelta(hours=1)


def same(one: Any, other: Any) -> bool:
    """Return whether two results are the same to the bit: 1 is not 1.0, and NaN is."""
    return (type(one), repr(one)) == (type(other), repr(other))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=0)
def test_an_expression_returns_what_a_naive_evaluator_does(seed: int) -> None:
    dice = Random(seed)
    expression = drawn(dice, dice.randrange(1, 5))
    if type(expression) is field:
        expression = coalesce(expression)
    unit = Unit()
    code = of_value(unit, expression, {"value": "value"}, "called(value)")
    truth = of_value(
        unit,
        expression,
        {"value": "value"},
        "called(value)",
        truth=True,
    )
    for one in [*(drawn_value(dice) for _ in range(10)), None, 5, "text", [1]]:
        want = expected(expression, one)
        assert same(expression(one), want), (expression, one)
        assert same(expression("key", one), want), (expression, one)
        known = {"value": one, "called": expression, **unit.constants}
        assert same(eval(code, known), want), (expression, one)
        assert bool(eval(truth, known)) is bool(want), (expression, one)
        if isinstance(one, dict):
            assert same(expression(MappingProxyType(one)), want)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_an_expression_prints_makes_it_again(seed: int) -> None:
    dice = Random(seed)
    expression = drawn_row(dice, 3)
    one = drawn_value(dice)
    expression(one)
    names = {
        "coalesce": coalesce,
        "concat": concat,
        "field": field,
        "lit": lit,
        "row": row,
        "timedelta": timedelta,
        "when": when,
    }
    again = eval(repr(expression), names)
    assert repr(again) == repr(expression)
    travelled = pickle.loads(pickle.dumps(expression))
    assert repr(travelled) == repr(expression)
    assert same(travelled(one), expression(one))


class State(StrEnum):
    PAID = "paid"


class Level(IntEnum):
    HIGH = 3


@dataclass
class Customer:
    city: str | None


@dataclass
class Order:
    amount: int
    customer: Customer | None = None
    state: State = State.PAID
    level: Level = Level.HIGH


def test_parts_of_typed_values_and_parts_of_parts() -> None:
    order = Order(7, Customer("Bern"))
    assert (field("amount") * 2)(order) == 14
    assert field("customer")["city"](order) == "Bern"
    assert field("customer")["city"](Order(7)) is None
    assert field("customer")["city"]({"customer": {"city": "Bern"}}) == "Bern"
    assert (field("state") == "paid")(order) is True
    assert concat(field("state"), "!")(order) == "paid!"
    assert (field("state") == State.PAID)({"state": "paid"}) is True
    assert (field("level") + 1)(order) == 4
    assert field(State.PAID)({"paid": 1}) == 1
    with pytest.raises(AttributeError, match="amonut"):
        (field("amonut") * 2)(order)


def test_integers_have_64_bits_and_floats_are_ieee() -> None:
    most = (1 << 63) - 1
    n = field("n")
    assert (n + 1)({"n": most}) is None
    assert (-n)({"n": -most - 1}) is None
    assert (n * n)({"n": 1e200}) == math.inf
    assert (n / 0)({"n": 5}) is None
    assert (n % 0.0)({"n": 5}) is None
    assert (n % 3)({"n": -7}) == -1
    assert (n % field("m"))({"n": most + 1, "m": most + 2}) is None
    assert (n % 7)({"n": most + 8}) == 1
    assert (n / 2)({"n": 4}) == 2.0
    assert (n + n)({"n": most}) is None
    assert (n - 1)({"n": most + 1}) == most
    assert (n == n)({"n": math.nan}) is True
    assert (n > math.inf)({"n": math.nan}) is True
    assert (n == 0.0)({"n": -0.0}) is True
    assert (n == 9007199254740993)({"n": 9007199254740992.0}) is True


def test_null_is_as_in_sql() -> None:
    a = field("a")
    assert [(a > 1)(one) for one in ({"a": 2}, {"a": 1}, {"a": None}, {}, None)] == [
        True,
        False,
        None,
        None,
        None,
    ]
    null = lit(None)
    yes = lit(True)
    no = lit(False)
    conditions = [coalesce(each) for each in (yes, no, null)]
    assert [[(one & other)({}) for other in conditions] for one in conditions] == [
        [True, False, None],
        [False, False, False],
        [None, False, None],
    ]
    assert [[(one | other)({}) for other in conditions] for one in conditions] == [
        [True, True, True],
        [True, False, None],
        [True, None, None],
    ]
    assert [(~one)({}) for one in conditions] == [False, True, None]
    assert (a == None)({}) is True  # noqa: E711 it makes a condition
    assert (a != None)({"a": 0}) is True  # noqa: E711
    assert (a == "x")({"a": 5}) is None
    assert when(a > 1, "many")({}) is None


def test_times() -> None:
    at = field("at")
    assert at.parse_time()({"at": "1970-01-01T01:00+01:00"}) == 0
    assert at.parse_time()({"at": "2026-02-29"}) is None
    assert at.parse_time()({"at": "2026-W01"}) is None
    assert at.floor(HOUR)({"at": -1}) == -3_600_000
    assert at.parse_time().floor(HOUR)({"at": "1970-01-01T01:59:59.999Z"}) == 3_600_000
    assert at.floor(HOUR)({"at": -(1 << 63)}) is None


def test_a_deep_expression_is_compiled_in_pieces() -> None:
    sum_: Expression = coalesce(field("n"))
    for number in range(45):
        sum_ = coalesce(sum_ + number, 0) if number % 3 else -sum_
    assert sum_({"n": 1}) == expected(sum_, {"n": 1})
    unit = Unit()
    assert of_value(unit, sum_, {"value": "value"}, "called(value)") == "called(value)"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: field("a") + "x", r"\+ takes a number.*concat\(\) joins texts"),
        (lambda: (field("a") > 1) * 2, "takes a number.*which is a condition"),
        (lambda: lit(5).lower(), "takes a text, not lit\\(5\\), which is a number"),
        (lambda: field("a") == [1], "a constant is a bool, int, float, str or None"),
        (lambda: field("a") < None, r"Write .is_null\(\)"),
        (lambda: field("a").lower() > 5, "do not compare"),
        (lambda: field("a") + (1 << 63), "has 64 bits"),
        (
            lambda: field("a").cast("int"),  # type: ignore[arg-type]
            "one of int64, float64, text, boolean",
        ),
        (lambda: field("a").substring(-1), "whole numbers from 0 on"),
        (lambda: field("a")[0], "has a text as its name"),  # type: ignore[index]
        (lambda: field(3), "has a text as its name"),  # type: ignore[arg-type]
        (lambda: list(field("a")), "has a text as its name"),  # type: ignore[call-overload]
        (lambda: when(field("a") + 1, 2), r"when\(\) takes conditions"),
        (lambda: field("a") & True, "& takes conditions"),
        (lambda: when(field("a"), 1).otherwise(2).when(field("b"), 3), "comes before"),
        (coalesce, "at least one"),
        (lambda: concat("x"), "at least two"),
        (lambda: (field("a") / 2).floor(HOUR), "takes a number"),
    ],
)
def test_what_is_null_for_every_record_is_refused(
    build: Callable[[], object],
    message: str,
) -> None:
    with pytest.raises(TypeError, match=message):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda orders: orders.filter(field("a") + 1), "is no condition"),
        (
            lambda orders: orders.map_values(key()),
            r"map_values calls \(value\): key\(\) reads key\(\), which is not here",
        ),
        (lambda orders: orders.filter(left("a") > 1), r"reads left\(\.\.\.\)"),
        (
            lambda orders: orders.join(orders.to_table(), field("a")),
            r"reads field\(\.\.\.\) or value\(\).*left\(\.\.\.\), right\(\.\.\.\)",
        ),
        (
            lambda orders: orders.to("out", partitioner=field("a") + 1),
            "Write a function",
        ),
    ],
)
def test_an_expression_that_cannot_be_read_there_is_refused(
    build: Callable[[Any], object],
    message: str,
) -> None:
    orders = StreamsBuilder("app").stream("in", key=serdes.text, value=serdes.json)
    with pytest.raises(TopologyError, match=message):
        build(orders)


def test_what_is_read() -> None:
    total = when(field("a") > 1, field("b") + 1).otherwise(key())
    assert fields_of(total) == ("a", "b")
    assert total.arguments == {"key", "value"}
    assert reads_fields_only(total)
    assert not reads_fields_only(field("a")["b"] + 1)
    assert not reads_fields_only(value() + 1)
    assert left("a").arguments == {"left"}


ORDERS = [
    ("a", {"n": 2, "price": 250, "city": "Bern", "at": "2026-11-29T12:30Z"}),
    ("b", {"n": 3, "price": 1.5, "city": None, "of": {"pairs": [["x", 1], ["y", 2]]}}),
    ("c", {"n": None, "price": 7}),
    ("d", None),
    ("e", {"n": 1 << 62, "price": 4}),
]


@pytest.mark.parametrize("ranges", [1, 4])
def test_expressions_go_where_functions_go(ranges: int) -> None:
    total = field("n") * field("price") / 100
    builder = StreamsBuilder("app")
    orders = builder.stream("in", key=serdes.text, value=serdes.json)
    rows = orders.filter(~(total > 100) | field("city").is_null()).map_values(
        row(
            total=total,
            city=coalesce(field("city").lower(), "unknown"),
            hour=field("at").parse_time().floor(HOUR),
        ),
        value=serdes.json,
    )
    rows.to("rows")
    orders.filter_not(total > 1).select_key(concat(key(), "-", field("city"))).to(
        "others", key=serdes.text
    )
    orders.map_values_with_key(concat(key(), "!"), value=serdes.json).to("keys")
    orders.filter(~field("of").is_null()).flat_map(
        coalesce(field("of")["pairs"]), key=serdes.text, value=serdes.json
    ).to("pairs")
    rows.group_by(field("city"), key=serdes.text).count(store="n").to_stream().to("n")
    with TopologyTestDriver(builder.build(), ranges) as driver:
        topic = driver.input("in", serdes.text, serdes.json)
        for number, (of, order) in enumerate(ORDERS):
            topic.send(of, order, number)

        def sent(name: str, to: Any = serdes.json) -> list[Any]:
            return [
                (record.key, record.value)
                for record in driver.output(name, serdes.text, to).read()
            ]

        noon = 1_795_953_600_000
        assert sent("rows") == [
            ("a", {"total": 5.0, "city": "bern", "hour": noon}),
            ("b", {"total": 0.045, "city": "unknown", "hour": None}),
            ("c", {"total": None, "city": "unknown", "hour": None}),
            ("d", {"total": None, "city": "unknown", "hour": None}),
            ("e", {"total": None, "city": "unknown", "hour": None}),
        ]
        assert [of for of, _ in sent("others")] == [None] * 4
        assert [text for _, text in sent("keys")] == ["a!", "b!", "c!", "d!", "e!"]
        assert sent("n", serdes.int64)[-1] == ("unknown", 4)
        assert sent("pairs") == [("x", 1), ("y", 2)]


def test_timestamps_are_expressions_as_well() -> None:
    builder = StreamsBuilder("app")
    builder.stream(
        "in",
        key=serdes.text,
        value=serdes.json,
        timestamp=coalesce(field("at").parse_time(), field("ms")),
    ).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input("in", serdes.text, serdes.json)
        for order in ({"at": "1970-01-01T00:01Z"}, {"ms": 7}, {"at": "soon"}, None):
            topic.send("a", order, 1)
        out = driver.output("out", serdes.text, serdes.json).read()
        assert [record.timestamp for record in out] == [60_000, 7]
        assert sum(driver.dropped.values()) == 2


@pytest.mark.parametrize("ranges", [1, 4])
def test_joiners_and_reducers_are_expressions_as_well(ranges: int) -> None:
    builder = StreamsBuilder("app")
    prices = builder.table("prices", key=serdes.text, value=serdes.json)
    orders = builder.stream("in", key=serdes.text, value=serdes.json)
    orders.left_join(
        prices,
        row(total=left("n") * right("price"), name=right("name")),
        value=serdes.json,
    ).to("joined")
    orders.join_with_key(
        prices, concat(key(), ":", right("name")), value=serdes.json
    ).to("keyed")
    orders.map_values(field("n"), value=serdes.int64).group_by_key().reduce(
        coalesce(aggregate() + value(), 0)
    ).to_stream().to("sums")
    orders.group_by_key().aggregate(
        lambda: 0,
        aggregate() + field("n"),
        value=serdes.json,
    ).to_stream().to("totals")
    with TopologyTestDriver(builder.build(), ranges) as driver:
        driver.input("prices", serdes.text, serdes.json).send(
            "a", {"price": 5, "name": "apple"}, 0
        )
        topic = driver.input("in", serdes.text, serdes.json)
        topic.send("a", {"n": 3}, 1)
        topic.send("b", {"n": 4}, 2)
        topic.send("a", {"n": 5}, 3)

        def sent(name: str, to: Any = serdes.json) -> list[Any]:
            return [
                (record.key, record.value)
                for record in driver.output(name, serdes.text, to).read()
            ]

        assert sent("joined") == [
            ("a", {"total": 15, "name": "apple"}),
            ("b", {"total": None, "name": None}),
            ("a", {"total": 25, "name": "apple"}),
        ]
        assert sent("keyed") == [("a", "a:apple"), ("a", "a:apple")]
        assert sent("sums", serdes.int64) == [("a", 3), ("b", 4), ("a", 8)]
        assert sent("totals") == [("a", 3), ("b", 4), ("a", 8)]
