"""`field("x")` and conditions on fields: they behave as functions of users, and can be
inspected.
"""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams import StreamsBuilder, TimeWindows, field, serdes
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.fields import Expression
from coopstreams.topology.operators.codegen import Unit
from coopstreams.topology.operators.expressions import of_value
from tests.durations import ms
from tests.topology.drawn_expressions import expected

COMPARE = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(-2, 2),
    st.text("ab", max_size=2),
)
VALUES = st.dictionaries(st.sampled_from("xyz"), SCALARS)


LEAVES = st.one_of(
    st.builds(
        lambda name, compare, constant: compare(field(name), constant),
        st.sampled_from("xyz"),
        st.sampled_from(COMPARE),
        SCALARS.filter(lambda scalar: scalar is not None),
    ),
    st.builds(lambda name: field(name) == None, st.sampled_from("xyz")),  # noqa: E711
)
INNER = st.one_of(LEAVES, st.builds(field, st.sampled_from("xyz")))
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(operator.and_, inner, INNER),
        st.builds(operator.or_, inner, INNER),
        st.builds(operator.invert, inner),
    ),
    max_leaves=6,
)


@given(CONDITIONS, VALUES)
def test_a_condition_is_what_sql_would_say(
    condition: Expression, value: dict[str, Any]
) -> None:
    assert condition(value) is expected(condition, value)
    assert condition("key", value) is expected(condition, value)


@given(CONDITIONS)
def test_what_a_condition_prints_makes_it_again(condition: Expression) -> None:
    again = eval(repr(condition), {"field": field})
    assert repr(again) == repr(condition)
    assert repr(pickle.loads(pickle.dumps(condition))) == repr(condition)


def test_a_condition_reads_well() -> None:
    amount, country = field("amount"), field("country")
    assert (
        repr((amount > 100) & ~(country == "DE") | field("gift"))
        == """(((field('amount') > 100) & ~(field('country') == 'DE')) | field('gift'))"""
    )
    assert repr(100 < amount) == "(field('amount') > 100)"  # noqa: SIM300 Python asks the field, too


def test_a_field_by_itself_is_the_function_that_it_was() -> None:
    assert field("a")({"a": [1]}) == [1]
    with pytest.raises(KeyError, match="a"):
        field("a")({})
    with pytest.raises(AttributeError, match="a"):
        field("a")(None)
    assert (field("a") > 1)({}) is None


@dataclass
class Order:
    amount: int


def test_attributes_of_typed_values_are_compared_as_well() -> None:
    large = field("amount") >= 10
    assert [large(Order(amount)) for amount in (9, 10)] == [False, True]
    assert large(None) is None
    with pytest.raises(AttributeError, match="size"):
        (field("size") >= 10)(Order(9))


@pytest.mark.parametrize(
    "question",
    [
        lambda: bool(field("a")),
        lambda: bool(field("a") > 1),
        lambda: 1 < field("a") < 5,
        lambda: field("a") > 1 and field("b") > 1,
        lambda: field("a") > 1 or field("b") > 1,
        lambda: operator.not_(field("a")),
        lambda: field("a") in (1, 2),
    ],
)
def test_who_asks_for_the_truth_while_building_is_told_what_to_write(
    question: Callable[[], object],
) -> None:
    with pytest.raises(TypeError, match=r"write `&`, `\|` and `~`"):
        question()


def test_each_expression_is_itself_only() -> None:
    assert len({field("a"), field("a"), field("b")}) == 3
    assert repr(field("a") == field("a")) == "(field('a') == field('a'))"
    with pytest.raises(AttributeError):
        field("a").name = "b"  # type: ignore[misc]


def unread(bytes_: bytes) -> object:
    raise AssertionError("a key was read")


@pytest.mark.parametrize("ranges", [1, 4])
def test_conditions_filter_live_and_nobody_reads_the_key_for_them(ranges: int) -> None:
    key: serdes.Serde[Any] = serdes.Serde("unread", bytes, unread)
    builder = StreamsBuilder("app")
    orders = builder.stream("in", key=key, value=serdes.json)
    kept = orders.filter(field("amount") > 10).filter_not(field("country") == "DE")
    kept.group_by_key().windowed_by(TimeWindows(milliseconds=10)).count(
        store="counts", retention=ms(1000)
    )
    kept.map_values(field("amount"), value=serdes.int64).to("out")
    with TopologyTestDriver(builder.build(), ranges) as driver:
        topic = driver.input("in", serdes.raw, serdes.json)
        for number, (amount, country) in enumerate(
            [(5, "FR"), (11, "FR"), (50, "DE"), (12, "CH")]
        ):
            topic.send(
                b"key-%d" % number,
                {"amount": amount, "country": country},
                40 - 10 * number,
            )
        assert [
            record.value
            for record in driver.output("out", serdes.raw, serdes.int64).read()
        ] == [11, 12]
        # The times of the records that passed: 30, then 10, which is late.
        assert [(reason, count) for (_, reason), count in driver.dropped.items()] == [
            ("late", 1)
        ]


def told(function: Callable[[], object]) -> object:
    """Return the result of a call, or its error in words."""
    try:
        return function()
    except (KeyError, TypeError, AttributeError) as error:
        return repr(error)


ANYTHING = st.one_of(
    VALUES,
    SCALARS,
    st.lists(SCALARS, max_size=1),
    st.builds(Order, SCALARS),
    st.builds(MappingProxyType, VALUES),
)


@given(st.one_of(CONDITIONS, st.builds(field, st.sampled_from("xyz"))), ANYTHING)
def test_the_code_of_a_condition_gives_and_raises_what_its_call_does(
    condition: Expression, value: Any
) -> None:
    unit = Unit()
    code = of_value(unit, condition, {"value": "value"}, "called(None, value)")
    known = {"value": value, "called": condition, **unit.constants}
    one, other = told(lambda: eval(code, known)), told(lambda: condition(None, value))
    assert (type(one), repr(one)) == (type(other), repr(other))


def test_the_loop_over_records_does_not_call_conditions() -> None:
    kept = (field("a") > 1) & (field("c") == "x")
    code = of_value(
        Unit(), kept, {"value": "value"}, "predicate(None, value)", truth=True
    )
    assert code == (
        "(((not operand_1 <= 1 if (operand_1 := value.get('a')).__class__ is int or "
        "operand_1.__class__ is float else greater_of(operand_1, 1)) and "
        "(operand_2 == 'x' if (operand_2 := value.get('c')).__class__ is str else equal_of(operand_2, 'x'))) "
        "if value.__class__ is dict else predicate(None, value))"
    )
    assert of_value(Unit(), field("a"), {"value": "value"}, "mapper(value)") == (
        "(value['a'] if value.__class__ is dict else mapper(value))"
    )


def test_long_conditions_are_code_and_deep_ones_are_called() -> None:
    long = reduce(operator.or_, [field("x") == number for number in range(400)])
    deep = reduce(
        lambda one, number: (one | (field("x") == number)) & (field("x") != -1),
        range(60),
        field("x") == 0,
    )
    for condition, written in ((long, True), (deep, False)):
        unit = Unit()
        code = of_value(unit, condition, {"value": "value"}, "called(value)")
        assert ("dict" in code) is written
        for x in (0, 59, 399, 400):
            assert eval(
                code, {"value": {"x": x}, "called": condition, **unit.constants}
            ) is condition({"x": x})
