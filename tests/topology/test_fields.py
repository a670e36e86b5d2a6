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
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.fields import Condition
from coopstreams.topology.operators.codegen import Unit
from coopstreams.topology.operators.expressions import of_value
from tests.durations import ms

Function = Callable[[dict[str, Any]], Any]

COMPARE = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(-2, 2),
    st.text("ab", max_size=2),
)
VALUES = st.dictionaries(st.sampled_from("xyz"), SCALARS)


def compared(name: str, compare: Any, constant: Any) -> tuple[Condition, Function]:
    return compare(field(name), constant), lambda value: compare(value[name], constant)


def truth(name: str) -> tuple[Condition, Function]:
    return field(name), lambda value: value[name]


def joined(
    one: tuple[Condition, Function], other: tuple[Condition, Function], both: bool
) -> tuple[Condition, Function]:
    if both:
        return one[0] & other[0], lambda value: one[1](value) and other[1](value)
    return one[0] | other[0], lambda value: one[1](value) or other[1](value)


def opposite(one: tuple[Condition, Function]) -> tuple[Condition, Function]:
    return ~one[0], lambda value: not one[1](value)


NAMES = st.sampled_from("xyz")
LEAVES = st.one_of(
    st.builds(compared, NAMES, st.sampled_from(COMPARE), SCALARS),
    st.builds(truth, NAMES),
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(joined, inner, inner, st.booleans()), st.builds(opposite, inner)
    ),
    max_leaves=6,
)


def outcome(function: Any, *record: Any) -> object:
    """Return the truth of a condition, or the error that it raises."""
    try:
        return bool(function(*record))
    except (KeyError, TypeError) as error:
        return type(error)


@given(CONDITIONS, VALUES)
def test_a_condition_is_what_and_or_and_not_would_say(
    pair: tuple[Condition, Function], value: dict[str, Any]
) -> None:
    condition, function = pair
    assert outcome(condition, value) == outcome(function, value)
    assert outcome(condition, "key", value) == outcome(function, value)


@given(CONDITIONS)
def test_what_a_condition_prints_makes_it_again(
    pair: tuple[Condition, Function],
) -> None:
    condition, _ = pair
    again = eval(repr(condition), {"field": field})
    assert again == condition
    assert hash(again) == hash(condition)
    assert repr(pickle.loads(pickle.dumps(condition))) == repr(condition)


def test_a_condition_reads_well() -> None:
    amount, country = field("amount"), field("country")
    assert (
        repr((amount > 100) & ~(country == "DE") | field("gift"))
        == """(((field('amount') > 100) & ~(field('country') == 'DE')) | field('gift'))"""
    )
    assert repr(100 < amount) == "(field('amount') > 100)"  # noqa: SIM300 Python asks the field, too


@dataclass
class Order:
    amount: int


def test_attributes_of_typed_values_are_compared_as_well() -> None:
    large = field("amount") >= 10
    assert [large(Order(amount)) for amount in (9, 10)] == [False, True]
    with pytest.raises(AttributeError, match="amount"):
        large(None)


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


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(TypeError, match="a field is compared with a constant"):
        field("a") < field("b")  # noqa: B015 it raises
    with pytest.raises(TypeError, match=r"& takes conditions"):
        field("a") & True  # type: ignore[operator]
    with pytest.raises(TypeError, match="unhashable"):
        field("a") == [1]  # noqa: B015 it raises


def test_fields_are_values() -> None:
    assert (field("a") == field("a")) is True
    assert (field("a") != field("a")) is False
    assert len({field("a"), field("a"), field("b")}) == 2
    with pytest.raises(AttributeError):
        field("a").name = "b"  # type: ignore[misc]
    builder = StreamsBuilder("app")
    with pytest.raises(TopologyError, match="False cannot be called"):
        builder.stream("in", key=serdes.text, value=serdes.json).filter(
            field("a") == field("b")
        )


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


class Mine(Condition):
    """A condition of another class."""

    def __call__(self, *record: Any) -> bool:
        return len(record[-1]) > 1


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
OURS = CONDITIONS.map(lambda pair: pair[0])


@given(st.one_of(OURS, st.builds(lambda one: one & Mine() | ~Mine(), OURS)), ANYTHING)
def test_the_expression_of_a_condition_gives_and_raises_what_its_call_does(
    condition: Condition, value: Any
) -> None:
    unit = Unit()
    code = of_value(unit, condition, "value", "called(None, value)")
    known = {"value": value, "called": condition, **unit.constants}
    one, other = told(lambda: eval(code, known)), told(lambda: condition(None, value))
    assert (type(one), repr(one)) == (type(other), repr(other))


def test_the_loop_over_records_does_not_call_conditions() -> None:
    unit, kept = Unit(), (field("a") > 1) & ~field("b") & (field("c") == "x")
    assert of_value(unit, kept, "value", "predicate(None, value)") == (
        "((not not value['a'] > constant and not not not value['b'] and not not value['c'] == constant_2) "
        "if value.__class__ is dict else predicate(None, value))"
    )
    assert of_value(unit, field("a"), "value", "mapper(value)") == (
        "(value['a'] if value.__class__ is dict else mapper(value))"
    )


def test_long_conditions_are_expressions_and_deep_ones_are_called() -> None:
    long = reduce(operator.or_, [field("x") == number for number in range(400)])
    deep = reduce(
        lambda one, number: (one | (field("x") == number)) & field("x"),
        range(60),
        field("x"),
    )
    for condition, written in ((long, True), (deep, False)):
        unit = Unit()
        code = of_value(unit, condition, "value", "called(value)")
        assert ("dict" in code) is written
        for x in (0, 59, 399, 400):
            assert eval(
                code, {"value": {"x": x}, "called": condition, **unit.constants}
            ) is condition({"x": x})
