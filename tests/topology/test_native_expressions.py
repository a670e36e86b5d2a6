"""Natively computed expressions: to the bit what Python computes, or left to Python.

`python -m tests.topology.test_native_expressions SEED EXPRESSIONS ROWS` draws more.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coopstreams import coalesce, concat, field, lit, row, serdes, value, when
from coopstreams.log.kafka.native import native_parts
from coopstreams.topology.expression_trees import json_tree_of, tree_of
from coopstreams.topology.fields import BOOLEAN, Expression
from coopstreams.topology.operators.json_parts import Role, unread
from tests.conftest import needs_native
from tests.topology.drawn_expressions import drawn, drawn_row, drawn_value

pytestmark = [needs_native, pytest.mark.usefixtures("native_plane")]

ODD = (
    None,
    b"null",
    b"{}",
    b"5",
    b'{"a":{"b":1},"b":[],"c":1}',
    b'{"a":"\\u0041","a":7,"b":"x"}',
    b'{"a":-0,"b":-0.0,"c":2}',
    b'{"a":18446744073709551615,"b":9223372036854775808,"c":-9223372036854775808}',
    b'{"a":1e400,"b":"\\ud800","c":0.1}',
    b'{"a":1,"b":2,"c":3,}',
)


def computed(
    role: Role, expression: Expression, texts: Sequence[bytes | None]
) -> list[Any]:
    """Return the column of an expression."""
    make = native_parts()
    tree = json_tree_of(expression) if role == "json" else tree_of(expression)
    assert make is not None
    assert tree is not None, expression
    ((column, _),), _ = make([(role, tree)]).columns(texts, unread)
    return column


def compared(
    expressions: Sequence[Expression], texts: Sequence[bytes | None]
) -> Counter[str]:
    """Return how many results there were, of them null and left to Python, and check
    that the others are Python's.
    """
    counts = Counter[str]()
    values = list(map(_read, texts))
    for expression in expressions:
        found = computed("value", expression, texts)
        truths = computed("keep", expression, texts)
        written = computed("json", expression, texts)
        for text, value_, one, truth, json_ in zip(
            texts, values, found, truths, written, strict=True
        ):
            counts["results"] += 1
            _check_json(expression, value_, json_)
            if one is unread:
                counts["left to Python"] += 1
            else:
                counts["null"] += one is None
                want = expression(value_)
                same = (type(one), repr(one)) == (type(want), repr(want))
                assert same, (expression, text, one, want)
            if truth is not unread:
                want = expression(value_)
                if expression.kinds <= BOOLEAN:
                    assert want in (truth, None), (expression, text, truth, want)
                assert truth is bool(want), (expression, text, truth, want)
    return counts


def _check_json(expression: Expression, value_: Any, found: Any) -> None:
    """Check that JSON is what the serde writes of the value, or left to Python."""
    if found is not unread:
        want = expression(value_)
        written = None if want is None else serdes.json.serialize(want)
        assert found == written, (expression, value_, found, written)


def _read(text: bytes | None) -> Any:
    try:
        return orjson.loads(text or b"")
    except orjson.JSONDecodeError:
        return None


def drawn_texts(dice: Random, count: int) -> list[bytes | None]:
    """Return values in JSON, some with what is left to Python."""
    values = [drawn_value(dice) for _ in range(count - len(ODD))]
    return [
        *ODD,
        *(
            json.dumps(value_, ensure_ascii=dice.random() < 0.1).encode()
            for value_ in values
        ),
    ]


def drawn_expressions(dice: Random, count: int) -> list[Expression]:
    """Return random expressions that can be computed natively."""
    found: list[Expression] = []
    while len(found) < count:
        expression = drawn(dice, dice.randrange(1, 6))
        if tree_of(expression) is not None:
            found.append(expression)
    return found


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=0)
def test_an_expression_returns_natively_what_it_returns(seed: int) -> None:
    dice = Random(seed)
    compared(drawn_expressions(dice, 20), drawn_texts(dice, 30))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=0)
def test_a_row_is_the_json_that_it_is_in_python(seed: int) -> None:
    dice = Random(seed)
    texts = drawn_texts(dice, 30)
    values = list(map(_read, texts))
    for _ in range(20):
        expression = drawn_row(dice, 3)
        if dice.random() < 0.2:
            expression = row(a=expression, b=field("a"), **{'"\n\u00fc': field("b")})
        if json_tree_of(expression) is not None:
            found = computed("json", expression, texts)
            for value_, one in zip(values, found, strict=True):
                _check_json(expression, value_, one)


def test_most_is_computed_natively() -> None:
    dice = Random(51)
    counts = compared(drawn_expressions(dice, 200), drawn_texts(dice, 110))
    assert counts["results"] == 200 * 110
    assert counts["left to Python"] < 0.15 * counts["results"]
    assert counts["null"] < 0.7 * counts["results"]


A = field("a")
B = field("b")
OF_TEXTS: list[Expression] = [
    A.lower(),
    A.upper(),
    A.trim(),
    A.trim().length(),
    A.substring(1),
    A.substring(1, 2).lower(),
    concat(A, "\u00fc", B),
    concat(A, B).trim(),
    concat(A, B).substring(2, 3),
    A.starts_with(B),
    concat(A, B).ends_with(B),
    concat(A, B).contains(A),
    A.cast("int64"),
    A.cast("float64"),
    A.cast("float64").cast("text"),
    A.cast("boolean"),
    A.parse_time(),
    A < B,
    concat(B, "") == A,
    coalesce(A, B, "x"),
]
OF_NUMBERS: list[Expression] = [
    A + B,
    A - B,
    A * B,
    A / B,
    A % B,
    -A,
    A < B,
    A <= B,
    A > B,
    A >= B,
    A == B,
    A != B,
    (A == 0) | (B == 0) | (A > B),
    A.cast("int64"),
    A.cast("float64"),
    A.cast("text"),
    A.cast("text").cast("float64"),
    A.cast("text").cast("int64"),
    A.cast("boolean"),
    A.floor(timedelta(milliseconds=7)),
    when(A > B, A).when(B.is_null(), 5).otherwise(B),
]
OF_ANY: list[Expression] = [
    A,
    coalesce(A),
    coalesce(A, B),
    A.is_null(),
    ~A,
    A & B,
    A | ~B,
    (A & B) | A.is_null(),
    A == B,
    A < B,
    A + B,
    -A,
    A.lower(),
    A.cast("text"),
    A.cast("boolean"),
    when(A, B),
    when(A.is_null(), lit(None)).otherwise(B),
]
integers = st.one_of(st.integers(-100, 100), st.integers(-(1 << 64), 1 << 65))
floats = st.floats(allow_nan=False, allow_infinity=False)
digits = st.text(alphabet="0123456789+-.eE_ \u0663", max_size=8)
times = st.from_regex(
    r"[0-2][0-9]{3}-[01][0-9]-[0-3][0-9]"
    r"([T ][0-2][0-9]:[0-5][0-9](:[0-6][0-9](\.[0-9]{1,10})?)?(Z|[+-][01][0-9]:?[0-6][0-9])?)?",
    fullmatch=True,
)
texts = st.one_of(st.text(max_size=8), digits, times, st.just("true"))
anything = st.one_of(
    st.none(),
    st.booleans(),
    integers,
    floats,
    texts,
    st.just([]),
    st.just([1]),
    st.just({}),
    st.just({"a": 1}),
)


def _texts_of(pairs: Sequence[tuple[Any, Any]]) -> list[bytes | None]:
    return [
        json.dumps({"a": a, "b": b}, ensure_ascii=False).encode("utf-8", "replace")
        for a, b in pairs
    ]


@settings(max_examples=150, deadline=None)
@given(pairs=st.lists(st.tuples(texts, texts), max_size=20))
def test_texts(pairs: list[tuple[str, str]]) -> None:
    compared(OF_TEXTS, _texts_of(pairs))


@settings(max_examples=150, deadline=None)
@given(
    pairs=st.lists(
        st.tuples(st.one_of(integers, floats), st.one_of(integers, floats)), max_size=20
    )
)
def test_numbers(pairs: list[tuple[float, float]]) -> None:
    compared(OF_NUMBERS, _texts_of(pairs))


ROWS = [
    row(),
    row(a=A, b=B),
    row(**{'\x00\x1f\x7f"\\/\u2028\U0001f600': A * B, "": A / B}),
    row(a=row(a=A + B, b=row())),
    row(text=A.cast("text"), number=B.cast("float64")),
]


@settings(max_examples=150, deadline=None)
@given(pairs=st.lists(st.tuples(anything, anything), max_size=20))
def test_rows(pairs: list[tuple[Any, Any]]) -> None:
    texts = _texts_of(pairs)
    for expression in ROWS:
        found = computed("json", expression, texts)
        for text, one in zip(texts, found, strict=True):
            _check_json(expression, _read(text), one)


@settings(max_examples=150, deadline=None)
@given(pairs=st.lists(st.tuples(anything, anything), max_size=20))
def test_any_values(pairs: list[tuple[Any, Any]]) -> None:
    compared(OF_ANY, _texts_of(pairs))


@pytest.mark.parametrize(
    "expression",
    [
        value() + 1,
        field("a")["b"] + 1,
        field("a") == "\ud800",
        field("\ud800") == 1,
        field("a") + float("nan"),
    ],
)
def test_what_is_computed_in_python_only(expression: Expression) -> None:
    assert tree_of(expression) is None


def main() -> None:
    """Compare more expressions and rows than a test has time for."""
    seed, count, rows = map(int, sys.argv[1:4])
    dice = Random(seed)
    counts = Counter[str]()
    for number in range(1, count + 1):
        counts += compared(drawn_expressions(dice, 1), drawn_texts(dice, rows))
        if number % 10_000 == 0 or number == count:
            print(f"{number} expressions: {dict(counts)}", flush=True)


if __name__ == "__main__":
    main()
