"""Spark SQL expressions over record values: the integers to fold, and conditions on fields.

A *token* is the text of a field's scalar in a flat JSON object: `-12`, `1.5`, `"DE"` with its quotes, `true`, `null`;
empty if it is in doubt.

Invariant: a value is in doubt unless SQL provably reads it as Python does. In doubt are: JSON other than one flat
object without escapes that has the field once, numbers of more than 18 digits, and comparisons for which Python raises
or whose result depends on types (`True == 1`).
Turned down: from_json and get_json_object (a lenient parser: it accepts JSON that the serde refuses, and takes the
first of two equal names).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 as everybody calls it

from coopstreams.spark.native import Aggregation
from coopstreams.topology.fields import Both, Comparison, Condition, Either, Not, field

_SPACE: Final = r"[ \t\n\r]*+"
_INTEGER: Final = r"(0|-?[1-9][0-9]{0,17})"
_STRING: Final = r'"[^"\\\x00-\x1f]*+"'
_SCALAR: Final = rf"(?:{_STRING}|-?(?:0|[1-9][0-9]{{0,17}})(?:\.[0-9]{{1,17}})?|true|false|null)"
_LONGEST: Final = 10_000
_EXACT: Final = 1 << 53
_EXACT_DIGITS: Final = 15
"""Integers up to this one, or of so many digits, are exact as floats."""

_COMPARE: Final = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


class Judged(NamedTuple):
    """Whether a condition holds for a record (never null), and whether SQL and Python might differ on it."""

    true: Column
    doubt: Column


def token(name: str) -> Column:
    """Return the token of the field of this name."""
    return _extracted(_pattern(name), "")


def numbers(aggregation: Aggregation, token_of: Mapping[str, Column]) -> tuple[Column, Column]:
    """Return the integer of a record, and whether the record is in doubt."""
    value, nothing = F.col("value"), F.lit(None).cast("bigint")
    if aggregation.values == "any":
        return nothing, F.lit(False)
    if aggregation.values == "int64":
        whole = F.when(F.length(value) == 8, F.conv(F.hex(value), 16, -10).cast("bigint"))
        number = F.when(whole > -(1 << 63), whole)
    elif aggregation.field is not None:
        found = token_of[aggregation.field]
        number = F.when(found.rlike(rf"\A{_INTEGER}\z"), found).try_cast("bigint")
    else:
        number = _extracted(rf"\A{_SPACE}{_INTEGER}{_SPACE}\z", None).try_cast("bigint")
    # The Python path drops records without a value before it reads it, unless a function comes before.
    unseen = (
        value.isNull()
        if aggregation.drops_null_values and aggregation.field is None and aggregation.where is None
        else F.lit(False)
    )
    return number, number.isNull() & ~unseen


def judged(condition: Condition, token_of: Mapping[str, Column]) -> Judged:
    """Return whether a condition holds, by the tokens of its fields; `native.unreadable` must be None for it."""
    match condition:
        case Both(one, other):
            first, second = judged(one, token_of), judged(other, token_of)
            return Judged(first.true & second.true, first.doubt | (first.true & second.doubt))
        case Either(one, other):
            first, second = judged(one, token_of), judged(other, token_of)
            return Judged(first.true | second.true, first.doubt | (~first.true & second.doubt))
        case Not(one):
            first = judged(one, token_of)
            return Judged(~first.true, first.doubt)
        case Comparison(part, comparing, constant):
            return _compared(token_of[part.name], comparing, constant)
        case field(name):
            return Judged(token_of[name] == "true", ~token_of[name].isin("true", "false", "null"))
        case _:
            raise TypeError(f"{condition!r} has no translation")


def _compared(found: Column, comparing: str, constant: Any) -> Judged:
    """Return how a token compares with a constant. Values of other types are unequal; ordering them raises."""
    compare, text, known = _COMPARE[comparing], found.startswith('"'), found != ""
    flag, nothing = found.isin("true", "false"), found == "null"
    number = known & ~text & ~flag & ~nothing
    if constant is None:
        comparable, other, result = known, F.lit(False), compare(nothing, F.lit(True))
    elif isinstance(constant, bool):
        # Booleans are not compared with numbers: 1 == True in Python.
        comparable, other, result = flag, text | nothing, compare(found == "true", F.lit(constant))
    elif isinstance(constant, str):
        # As bytes: UTF-8 has the order of code points, as Python has, whatever collation a session prefers.
        content = found.substr(F.lit(2), F.length(found) - 2).cast("binary")
        comparable, other, result = text, known & ~text, compare(content, F.lit(constant.encode()))
    else:
        comparable, result = _as_number(found, number, compare, constant)
        other = text | nothing
    unequal = other if comparing in ("==", "!=") else F.lit(False)
    return Judged(
        (comparable & F.coalesce(result, F.lit(False))) | (unequal & F.lit(comparing == "!=")), ~(comparable | unequal)
    )


def _as_number(
    found: Column, number: Column, compare: Callable[[Any, Any], Any], constant: float
) -> tuple[Column, Column]:
    """Return whether a token is a number that compares without rounding, and the result of the comparison."""
    fraction = found.contains(".")
    rounded = compare(F.when(number, found).try_cast("double"), F.lit(float(constant)))
    if isinstance(constant, float):
        return number & (fraction | (F.length(found) <= _EXACT_DIGITS)), rounded
    whole = compare(F.when(number & ~fraction, found).try_cast("bigint"), F.lit(constant).cast("bigint"))
    return number & (~fraction | F.lit(abs(constant) <= _EXACT)), F.when(fraction, rounded).otherwise(whole)


def _extracted(pattern: str, missing: str | None) -> Column:
    """Return the part of the value, read as UTF-8, that matches a pattern."""
    text = F.col("value").cast("string")
    safe = (F.length("value") <= _LONGEST) & F.is_valid_utf8(text)
    found = F.when(safe, F.regexp_extract(text, pattern, 1))
    return found if missing is None else F.coalesce(found, F.lit(missing))


def _pattern(name: str) -> str:
    """Return the expression that finds the scalar under this name in a flat object that has it once."""
    key = rf'"\Q{name}\E"'
    other = rf"(?!{key}){_STRING}{_SPACE}:{_SPACE}{_SCALAR}{_SPACE}"
    found = rf"{key}{_SPACE}:{_SPACE}({_SCALAR}){_SPACE}"
    return rf"\A{_SPACE}\{{{_SPACE}(?:{other},{_SPACE})*+{found}(?:,{_SPACE}{other})*+\}}{_SPACE}\z"
