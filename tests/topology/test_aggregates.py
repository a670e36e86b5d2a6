"""The functions of several aggregates in one row, against computation by hand."""

from __future__ import annotations

import math
from enum import StrEnum
from statistics import fmean
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import (
    AggregateFunction,
    count,
    count_distinct,
    field,
    first,
    last,
    max_,
    mean,
    min_,
    quantile,
    sum_,
    top_,
)
from coopstreams.topology.aggregate_rows import AggregateRows, rows_of
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.serdes import schemas_of
from coopstreams.topology.sketches import Spread

Value: TypeAlias = dict[str, Any] | None

NUMBERS = st.one_of(
    st.none(),
    st.integers(-(10**6), 10**6),
    st.floats(-1e6, 1e6).map(lambda number: round(number, 3)),
)
USERS = st.one_of(st.none(), st.sampled_from("abcdef"))
VALUES = st.lists(
    st.one_of(
        st.none(),
        st.fixed_dictionaries({"ms": NUMBERS, "user": USERS}),
    ),
    max_size=25,
)

EVERY: dict[str, AggregateFunction] = {
    "n": count(),
    "known": count("ms"),
    "total": sum_("ms"),
    "average": mean(field("ms")),
    "least": min_("ms"),
    "most": max_(lambda value: value["ms"]),
    "first_user": first("user"),
    "last_user": last(lambda key, value: value["user"]),
    "users": count_distinct("user"),
    "halves": quantile("ms", 0.0, 0.5, 1.0),
    "top": top_("ms", 3),
    "pairs": top_("ms", 2, of="user"),
}
ROWS = rows_of(EVERY)
FOLD = ROWS.folding(EVERY)


def folded(values: list[Value], row: Any = None) -> Any:
    row = ROWS.initial() if row is None else row
    for value in values:
        row = FOLD("key", value, row)
    return row


def by_hand(values: list[Value]) -> dict[str, Any]:
    ms = [value["ms"] for value in values if value and value["ms"] is not None]
    users = [value["user"] for value in values if value and value["user"] is not None]
    pairs = [
        [value["ms"], value["user"]]
        for value in values
        if value and value["ms"] is not None
    ]
    pairs.sort(key=lambda pair: -pair[0])
    spread = Spread(50)
    for number in ms:
        spread.add(number)
    return {
        "n": len(values),
        "known": len(ms),
        "total": pytest.approx(sum(ms), abs=1e-6) if ms else None,
        "average": pytest.approx(fmean(ms), abs=1e-6) if ms else None,
        "least": min(ms, default=None),
        "most": max(ms, default=None),
        "first_user": users[0] if users else None,
        "last_user": users[-1] if users else None,
        "users": len(set(users)),
        "halves": spread.quantiles([0.0, 0.5, 1.0]),
        "top": sorted(ms, key=lambda number: -number)[:3],
        "pairs": pairs[:2],
    }


@settings(max_examples=80, deadline=None)
@given(VALUES)
def test_each_aggregate_is_what_one_computes_by_hand(values: list[Value]) -> None:
    assert ROWS.finish(folded(values)) == by_hand(values)


@settings(max_examples=80, deadline=None)
@given(VALUES, VALUES)
def test_rows_that_are_merged_are_those_of_all_their_records(
    one: list[Value], other: list[Value]
) -> None:
    both = ROWS.merge("key", folded(one), folded(other))
    assert ROWS.finish(both) == by_hand(one + other)


@settings(max_examples=80, deadline=None)
@given(VALUES, VALUES)
def test_bytes_between_two_records_change_nothing(
    before: list[Value], after: list[Value]
) -> None:
    row = folded(before)
    stored = ROWS.serde.deserialize(ROWS.serde.serialize(row))
    assert stored == row
    assert folded(after, stored) == folded(before + after)


SUBTRACTED: dict[str, AggregateFunction] = {
    name: EVERY[name].for_table() for name in ("n", "known", "total", "halves")
}


@settings(max_examples=80, deadline=None)
@given(st.data(), VALUES)
def test_what_is_subtracted_was_never_there(data: Any, values: list[Value]) -> None:
    rows = rows_of(SUBTRACTED)
    fold = rows.folding(SUBTRACTED)
    subtract = rows.subtracting(SUBTRACTED)
    whole = [
        value and {**value, "ms": value["ms"] and round(value["ms"])}
        for value in values
    ]
    gone = data.draw(st.sets(st.sampled_from(range(len(whole))))) if whole else set()
    row = rows.initial()
    for value in whole:
        row = fold("key", value, row)
    for number in gone:
        row = subtract("key", whole[number], row)
    left = by_hand([value for at, value in enumerate(whole) if at not in gone])
    assert rows.finish(row) == {name: left[name] for name in SUBTRACTED}


def test_a_mean_that_lost_all_its_numbers_is_null() -> None:
    given = {"average": mean("ms"), "total": sum_("ms").for_table()}
    rows = rows_of(given)
    row = rows.folding(given)("key", {"ms": 0.1}, rows.initial())
    row = rows.folding(given)("key", {"ms": 0.2}, row)
    for number in 0.2, 0.1:
        row = rows.subtracting(given)("key", {"ms": number}, row)
    assert row == rows.initial()
    assert rows.finish(row) == {"average": None, "total": None}


class Order(msgspec.Struct):
    ms: float
    user: str


def one_row(given: dict[str, AggregateFunction], *values: Any) -> dict[str, Any]:
    rows = rows_of(given)
    row = rows.initial()
    for value in values:
        row = rows.folding(given)("key", value, row)
    return rows.finish(row)


def test_values_may_have_types() -> None:
    assert one_row(
        {"total": sum_("ms"), "users": count_distinct("user"), "keys": first(pair)},
        Order(1.5, "a"),
        Order(2.5, "b"),
    ) == {"total": 4.0, "users": 2, "keys": "key/a"}


def pair(key: str, value: Order) -> str:
    return f"{key}/{value.user}"


def test_arguments_that_are_shared_are_computed_once() -> None:
    calls = []

    def ms(value: Any) -> Any:
        calls.append(value)
        return value["ms"]

    found = one_row({"total": sum_(ms), "most": max_(ms)}, {"ms": 1}, {"ms": 2})
    assert found == {"total": 3, "most": 2}
    assert len(calls) == 2


def test_truth_values_are_added_and_conditions_are_arguments() -> None:
    late = {"late": sum_(field("ms") > 10), "any": max_(field("ms") > 10)}
    assert one_row(late, {"ms": 5}, {"ms": 11}, {"ms": 12}) == {"late": 2, "any": True}


class Color(StrEnum):
    RED = "red"


def test_a_row_keeps_values_of_builtin_classes_only() -> None:
    found = one_row({"color": last("it"), "top": top_("it", 1)}, {"it": Color.RED})
    assert found == {"color": "red", "top": ["red"]}
    assert type(found["color"]) is str
    for wrong in min_("it"), max_("it"), first("it"), last("it"), top_("it", 2):
        with pytest.raises(TypeError, match=r"keeps a number, a text or .* the list"):
            one_row({"it": wrong}, {"it": [1]})


@pytest.mark.parametrize("wrong", ["1", [1], b"1"])
@pytest.mark.parametrize("function", [sum_("it"), mean("it"), quantile("it", 0.5)])
def test_what_is_no_number_fails_with_the_name_of_the_aggregate(
    function: AggregateFunction, wrong: Any
) -> None:
    with pytest.raises(TypeError, match=rf"{function.name}\('it'\) is of numbers"):
        one_row({"it": function}, {"it": wrong})


def test_no_number_is_left_out_of_an_order_and_refused_in_a_quantile() -> None:
    numbers = [{"it": math.nan}, {"it": 2.0}, {"it": math.nan}, {"it": 1.0}]
    given = {"least": min_("it"), "most": max_("it"), "top": top_("it", 5)}
    assert one_row(given, *numbers) == {"least": 1.0, "most": 2.0, "top": [2.0, 1.0]}
    assert math.isnan(one_row({"total": sum_("it")}, *numbers)["total"])
    for wrong in math.nan, math.inf, -math.inf, 10**400:
        with pytest.raises(ValueError, match="of finite numbers"):
            one_row({"it": quantile("it", 0.5)}, {"it": wrong})


def test_a_record_that_fails_changes_nothing() -> None:
    given = {"spread": quantile("ms", 0.5), "users": first("user"), "n": count()}
    rows = rows_of(given)
    row = rows.folding(given)("key", {"ms": 1, "user": None}, rows.initial())
    before = rows.serde.serialize(row)
    with pytest.raises(TypeError):
        rows.folding(given)("key", {"ms": 2, "user": []}, row)
    assert rows.serde.serialize(row) == before


def test_of_equal_values_the_earlier_record_stays() -> None:
    given = {"top": top_("ms", 2, of="user")}
    values = [{"ms": ms, "user": user} for ms, user in zip([1, 3, 1, 3, 3], "abcde")]  # noqa: B905
    assert one_row(given, *values) == {"top": [[3, "b"], [3, "d"]]}


def reread(old: AggregateRows, new: AggregateRows, row: Any) -> dict[str, Any]:
    return new.finish(new.serde.deserialize(old.serde.serialize(row)))


def test_aggregates_are_added_and_removed_in_a_running_application() -> None:
    given = {"n": count(), "total": sum_("ms")}
    old = rows_of(given)
    row = old.folding(given)("key", {"ms": 3}, old.initial())
    more = rows_of({**EVERY, **given})
    nothing = more.finish(more.initial())
    assert reread(old, more, row) == {**nothing, "n": 1, "total": 3}
    assert reread(old, rows_of({"total": sum_("ms")}), row) == {"total": 3}
    order = reread(old, rows_of(dict(reversed(given.items()))), row)
    assert list(order.items()) == [("total", 3), ("n", 1)]


def test_the_bytes_of_a_row_are_on_disks_and_in_topics() -> None:
    given = {
        "n": count(),
        "total": sum_("ms"),
        "average": mean("ms"),
        "p50": quantile("ms", 0.5),
        "users": count_distinct("user"),
        "best": top_("ms", 1, of="user"),
    }
    rows = rows_of(given)
    row = rows.folding(given)("key", {"ms": 3, "user": "a"}, rows.initial())
    golden = (
        "86a16e01a5746f74616c03a76176657261676592cb400800000000000001a370353095"
        "00ccaf91010090a57573657273c408e6c632b61e964e1fa462657374919203a161"
    )
    assert rows.serde.serialize(row).hex() == golden
    assert rows.serde.deserialize(bytes.fromhex(golden)) == row


def test_a_shorter_top_keeps_the_largest() -> None:
    old = rows_of({"top": top_("ms", 3)})
    new = rows_of({"top": top_("ms", 1)})
    assert reread(old, new, ((5, 4, 3),)) == {"top": [5]}


def test_rows_that_are_never_changed_in_place_need_no_copies() -> None:
    assert rows_of({"n": count(), "users": count_distinct("user")}).serde.immutable
    assert not rows_of({"n": count(), "p": quantile("ms", 0.5)}).serde.immutable


def test_the_kinds_of_aggregates_are_compared_between_versions() -> None:
    (schema,) = schemas_of(rows_of({"n": count(), "p": quantile("x", 0.5)}).serde)
    assert schema["properties"] == {
        "n": {"enum": ["count"]},
        "p": {"enum": ["quantile, accuracy 0.01"]},
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sum_(3), "sum_ takes the name of a part .* not 3"),  # type: ignore[arg-type]
        (lambda: max_(lambda a, b, c: a), r"of \(value\) or \(key, value\), not"),
        (lambda: quantile("ms"), "quantile: give shares from 0 to 1, .* not none"),
        (lambda: quantile("ms", 99), "quantile: give shares from 0 to 1, .* not 99"),
        (lambda: quantile("ms", 0.5, accuracy=0), "accuracy= is a share from 0.001"),
        (lambda: top_("ms", 0), "top_: n is a whole number from 1 to 10,000, not 0"),
    ],
)
def test_aggregates_of_nothing_sensible_are_refused(make: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        make()
