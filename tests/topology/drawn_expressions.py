"""Random expressions and records, and what an expression has to return: a second,
naive evaluator, which shares no code with the first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import ROUND_DOWN, Decimal
from fractions import Fraction
from random import Random
from typing import Any

from coopstreams import coalesce, concat, field, lit, row, when
from coopstreams.topology.fields import (
    Applied,
    Arithmetic,
    Both,
    Case,
    Coalesce,
    Comparison,
    Either,
    Expression,
    IsNull,
    Known,
    Not,
    Row,
)

NAMES = ["a", "b", "c", "d"]
WHOLE = [
    0,
    1,
    -1,
    2,
    3,
    7,
    -7,
    10,
    100,
    3_600_000,
    1_764_412_215_250,
    10**15 - 1,
    (1 << 53) + 1,
    -(10**17) - 1,
    10**18 - 1,
]
LARGE = [(1 << 63) - 1, -(1 << 63), 1 << 62, -(1 << 53) - 1]
REAL = [0.0, -0.0, 0.5, -2.5, 7.0, 0.1, 1e15, 1e16, 1e-7, 123456.789, 1e300, 2.5e-5]
ODD = [math.inf, -math.inf, math.nan, 5e-324, 2.0**63, -(2.0**63), 9007199254740993.0]
TEXTS = [
    "",
    "DE",
    "de",
    " de\t",
    "D\u00fcren",
    "\U0001f600 x",
    "5",
    "-12",
    "+7",
    "007",
    "1.5",
    ".5e3",
    "1e400",
    "9223372036854775808",
    "true",
    "false",
    "2026-11-29",
    "2026-02-30",
    "2026-11-29T12:30:15.250+01:00",
    "1969-12-31 23:59:59.9999Z",
    "2026-11-29T24:00",
    "\uffee",
]
SIGNS = ["+", "-", "*", "/", "%"]
COMPARING = ["==", "!=", "<", "<=", ">", ">="]
BUILD: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": lambda one, other: one + other,
    "-": lambda one, other: one - other,
    "*": lambda one, other: one * other,
    "/": lambda one, other: one / other,
    "%": lambda one, other: one % other,
    "==": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


def constant(dice: Random, kind: str) -> Any:
    """Return a constant of a kind."""
    if kind == "number":
        numbers: list[list[Any]] = [[*WHOLE], [*WHOLE], [*REAL], [*LARGE], [*ODD]]
        return dice.choice(dice.choice(numbers))
    return dice.choice(TEXTS if kind == "text" else [True, False])


def drawn(dice: Random, depth: int, kind: str | None = None) -> Expression:
    """Return an expression that may be of a kind: a number, a text or a condition."""
    kind = kind or dice.choice(["number", "text", "condition"])
    if not depth or dice.random() < 0.1:
        if dice.random() < 0.75:
            return field(dice.choice(NAMES))
        return lit(constant(dice, kind))
    if dice.random() < 0.15:
        return _chosen(dice, depth - 1, kind)
    return {"number": _number, "text": _text, "condition": _condition}[kind](
        dice,
        depth - 1,
    )


def _operand(dice: Random, depth: int, kind: str) -> Any:
    """Return an expression or, as the second operand often is, a constant."""
    return constant(dice, kind) if dice.random() < 0.3 else drawn(dice, depth, kind)


def _chosen(dice: Random, depth: int, kind: str) -> Expression:
    if dice.random() < 0.5:
        return coalesce(
            *(drawn(dice, depth, kind) for _ in range(dice.randrange(1, 4)))
        )
    case = when(drawn(dice, depth, "condition"), _operand(dice, depth, kind))
    if dice.random() < 0.3:
        case = case.when(drawn(dice, depth, "condition"), drawn(dice, depth, kind))
    return case if dice.random() < 0.3 else case.otherwise(_operand(dice, depth, kind))


def _number(dice: Random, depth: int) -> Expression:
    way = dice.random()
    if way < 0.55:
        sign = dice.choice(SIGNS)
        one = drawn(dice, depth, "number")
        other = _operand(dice, depth, "number")
        if dice.random() < 0.1:
            one, other = lit(constant(dice, "number")), one
        made: Expression = BUILD[sign](one, other)
        return made
    if way < 0.65:
        return -drawn(dice, depth, "number")
    if way < 0.75:
        return drawn(dice, depth).cast(dice.choice(["int64", "float64"]))
    if way < 0.85:
        return drawn(dice, depth, "text").length()
    if way < 0.92:
        return drawn(dice, depth, "text").parse_time()
    size = timedelta(milliseconds=dice.choice([1, 7, 1000, 3_600_000, 86_400_000]))
    return drawn(dice, depth, "text").cast("int64").floor(size)


def _text(dice: Random, depth: int) -> Expression:
    way = dice.random()
    text = drawn(dice, depth, "text")
    if way < 0.4:
        return {
            0: text.lower(),
            1: text.upper(),
            2: text.trim(),
        }[dice.randrange(3)]
    if way < 0.6:
        count = dice.choice([None, 0, 1, 2, 100])
        return text.substring(dice.choice([0, 1, 2, 100]), count)
    if way < 0.8:
        return concat(text, _operand(dice, depth, "text"))
    return drawn(dice, depth).cast("text")


def _condition(dice: Random, depth: int) -> Expression:
    way = dice.random()
    if way < 0.4:
        kind = dice.choice(["number", "number", "text", "condition"])
        one = drawn(dice, depth, kind)
        made: Expression = BUILD[dice.choice(COMPARING)](
            one,
            _operand(dice, depth, kind),
        )
        return made
    if way < 0.65:
        one = drawn(dice, depth, "condition")
        other = drawn(dice, depth, "condition")
        return one & other if dice.random() < 0.5 else one | other
    if way < 0.75:
        return ~drawn(dice, depth, "condition")
    if way < 0.85:
        return drawn(dice, depth).is_null()
    if way < 0.9:
        return drawn(dice, depth).cast("boolean")
    text = drawn(dice, depth, "text")
    piece = _operand(dice, depth, "text")
    return {
        0: text.starts_with(piece),
        1: text.ends_with(piece),
        2: text.contains(piece),
    }[dice.randrange(3)]


def drawn_row(dice: Random, depth: int) -> Row:
    """Return a row of expressions."""
    return row(**{name: drawn(dice, depth) for name in ("x", "y z")})


def drawn_value(dice: Random) -> dict[str, Any]:
    """Return a value with some parts, as JSON has them."""
    value: dict[str, Any] = {}
    for name in NAMES:
        way = dice.random()
        if way < 0.3:
            value[name] = dice.choice(WHOLE)
        elif way < 0.5:
            value[name] = dice.choice(REAL)
        elif way < 0.7:
            value[name] = dice.choice(TEXTS)
        elif way < 0.85:
            value[name] = dice.choice([True, False])
        elif way < 0.95:
            value[name] = None
    return value


def expected(expression: Expression, value: Any) -> Any:
    """Return what an expression returns for a value."""

    def of(inner: Expression) -> Any:
        return expected(inner, value)

    match expression:
        case field(name):
            return value.get(name) if isinstance(value, dict) else None
        case Known(known):
            return known
        case Arithmetic(one, sign, other):
            return _calculated(sign, of(one), of(other))
        case Comparison(one, sign, other):
            return _compared(sign, of(one), of(other))
        case Case(branches, rest):
            for condition, then in branches:
                if of(condition) is True:
                    return of(then)
            return None if rest is None else of(rest)
    return _of_several(expression, [of(each) for each in expression.operands])


def _of_several(expression: Expression, values: list[Any]) -> Any:
    """Return what an expression returns for these values of its operands."""
    match expression:
        case Both():
            return _all(values)
        case Either():
            return _not(_all(list(map(_not, values))))
        case Not():
            return _not(values[0])
        case IsNull():
            return values[0] is None
        case Coalesce():
            return next((each for each in values if each is not None), None)
        case Row(names):
            return dict(zip(names, values, strict=True))
        case Applied(name, _, options):
            return _applied(name, values, options)
    raise AssertionError(expression)


def _kind(value: Any) -> str:
    """Return the kind of a value."""
    kinds = {bool: "boolean", int: "number", float: "number", str: "text"}
    return kinds.get(type(value), "other")


def _calculated(sign: str, one: Any, other: Any) -> Any:
    if {_kind(one), _kind(other)} != {"number"}:
        return None
    whole = isinstance(one, int) and isinstance(other, int)
    if sign in "/%" and other == 0:
        return None
    if not whole or sign == "/":
        return _of_floats(sign, float(one), float(other))
    exact = {
        "+": lambda: one + other,
        "-": lambda: one - other,
        "*": lambda: one * other,
        "%": lambda: one - other * int(Fraction(one, other)),
    }[sign]()
    return exact if -(2**63) <= exact < 2**63 else None


def _of_floats(sign: str, one: float, other: float) -> float:
    if sign == "%":
        return math.nan if math.isinf(one) else math.fmod(one, other)
    return {
        "+": lambda: one + other,
        "-": lambda: one - other,
        "*": lambda: one * other,
        "/": lambda: one / other,
    }[sign]()


def _compared(sign: str, one: Any, other: Any) -> bool | None:
    if _kind(one) != _kind(other) or _kind(one) == "other":
        return None
    if _kind(one) == "number":
        if not (isinstance(one, int) and isinstance(other, int)):
            one, other = float(one), float(other)
        # NaN behind all others
        one, other = (
            (each != each, 0 if each != each else each) for each in (one, other)
        )
    elif _kind(one) == "text":
        one, other = one.encode("utf-8"), other.encode("utf-8")
    told = {"<": one < other, "==": one == other, ">": one > other}
    answers: dict[str, bool] = {
        "==": told["=="],
        "!=": not told["=="],
        "<": told["<"],
        "<=": told["<"] or told["=="],
        ">": told[">"],
        ">=": told[">"] or told["=="],
    }
    return answers[sign]


def _not(value: Any) -> bool | None:
    return (not value) if isinstance(value, bool) else None


def _all(values: list[Any]) -> bool | None:
    known = [value for value in values if isinstance(value, bool)]
    if not all(known):
        return False
    return True if len(known) == len(values) else None


def _applied(name: str, values: list[Any], options: tuple[int | None, ...]) -> Any:
    first = values[0]
    if name.startswith("to_"):
        return _cast(name[3:], first)
    if name == "negative":
        return _calculated("*", first, -1) if isinstance(first, int) else _minus(first)
    if name == "floor_time":
        if type(first) is not int:
            return None
        size = options[0]
        assert size is not None
        begin = math.floor(Fraction(first, size)) * size
        return begin if begin >= -(2**63) else None
    if any(not isinstance(value, str) for value in values):
        return None
    if name == "parse_time":
        return _parsed(first)
    if name == "substring":
        start, count = options
        points = list(first)[start:]
        return "".join(points if count is None else points[:count])
    return {
        "lower": first.lower,
        "upper": first.upper,
        "trim": lambda: re.sub(r"\A[ \t\n\r]+|[ \t\n\r]+\Z", "", first),
        "length": lambda: len(list(first)),
        "concat": lambda: "".join(values),
        "starts_with": lambda: first[: len(values[1])] == values[1],
        "ends_with": lambda: (
            first[len(first) - len(values[1]) :] == values[1]
            if len(values[1]) <= len(first)
            else False
        ),
        "contains": lambda: first.find(values[1]) >= 0,
    }[name]()


def _minus(value: Any) -> float | None:
    return (
        math.copysign(value, -math.copysign(1, value)) if type(value) is float else None
    )


def _cast(kind: str, value: Any) -> Any:
    if value is None or _kind(value) == "other":
        return None
    if kind == "text":
        return (
            {True: "true", False: "false"}[value] if type(value) is bool else str(value)
        )
    if kind == "boolean":
        if isinstance(value, str):
            return value == "true" if value in ("true", "false") else None
        return bool(value)
    if isinstance(value, str):
        digits = (
            r"[+-]?\d+" if kind == "int64" else r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
        )
        if not re.fullmatch(digits, value):
            return None
        value = int(value) if kind == "int64" else float(value)
    if kind == "float64":
        return float(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        value = int(Decimal(value).to_integral_value(ROUND_DOWN))
    return int(value) if -(2**63) <= value < 2**63 else None


def _parsed(text: str) -> int | None:
    if not re.match(r"\d{4}-\d\d-\d\d([T ]|\Z)", text) or text[11:13] == "24":
        return None
    zoned = (
        text
        if re.search(r"(Z|[+-]\d\d:?\d\d)$", text[10:])
        else f"{text[:10]}T{text[11:] or '00:00'}Z"
    )
    try:
        moment = datetime.fromisoformat(zoned)
    except ValueError:
        return None
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(milliseconds=1)
