"""Spark SQL expressions over record values: the numbers to fold, and conditions on
fields.

A *token* is the text of a field's scalar in a flat JSON object: `-12`, `1.5`, `"DE"`
with its quotes, `true`, `null`; empty if it is in doubt. One regular expression checks
a whole object and finds the tokens of all fields; as in Python, of two equal names the
last one counts.

Invariant: a value is in doubt unless SQL provably reads it as Python does. In doubt
are: JSON other than one flat object, or with escapes in names or in a text that is
read, or of another type; numbers of more than 18 digits before the point; and
comparisons for which Python raises or whose result depends on types (`True == 1`).
Turned down: from_json and get_json_object (a lenient parser: it accepts JSON that the
serde refuses, and takes the first of two equal names).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as everybody calls it

from coopstreams.spark.native.sql_eligibility import Aggregation, Part
from coopstreams.spark.native.sql_expressions import MISSING, Value

_SPACE: Final = r"[ \t\n\r]*+"
_STRING: Final = r'"[^"\\\x00-\x1f]*+"'
_PAIR: Final = r"[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_UNIT: Final = r"(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]|[dD][0-7])[0-9a-fA-F]{2}"
# plain characters in runs: one by one they take several times as long
_ESCAPED: Final = (
    r'"[^"\\\x00-\x1f]*+'
    rf'(?:\\(?:["\\/bfnrt]|u(?:{_UNIT}|{_PAIR}))[^"\\\x00-\x1f]*+)*+"'
)
_FRACTION: Final = r"(?:\.[0-9]{1,25})?(?:[eE][+-]?[0-9]{1,2})?"
_NUMBER: Final = rf"-?(?:0|[1-9][0-9]{{0,17}}){_FRACTION}"
_SCALAR: Final = rf"(?:{_STRING}|{_NUMBER}|true|false|null)"
_UNREAD: Final = rf"(?:{_ESCAPED}|{_NUMBER}|true|false|null)"
_INTEGER: Final = r"(?:0|-?[1-9][0-9]{0,17})"
_FOLDED: Final = {"int64": _INTEGER, "float64": rf"(?!-0\z){_NUMBER}"}
_TYPED: Final = {
    "str": _STRING,
    "int": r"-?(?:0|[1-9][0-9]{0,17})",
    # an integer becomes a float, here without rounding
    "float": rf"-?(?:0|[1-9][0-9]{{0,14}}){_FRACTION}",
    "bool": "true|false",
}
_MARK: Final = "\x01"
"""Stands before each token; JSON text cannot have it."""
_LONGEST: Final = 10_000
EXACT: Final = 1 << 53


class Judged(NamedTuple):
    """Whether a condition holds for a record (never null), and whether SQL and Python
    might differ on it.
    """

    true: Column
    doubt: Column


class Number(NamedTuple):
    """The number of a record, whether it is null in Python, and whether SQL and Python
    might differ on it.
    """

    value: Column
    missing: Column
    doubt: Column


def with_tokens(
    records: DataFrame,
    names: Sequence[str],
    parts: Mapping[str, Part] | None,
) -> tuple[DataFrame, dict[str, str]]:
    """Return the records with a column for the token of each named field, and the names
    of these columns by field. A token is the JSON text of the field's value.

    `parts`: the fields of typed JSON by attribute; None: the JSON has no declared type.
    """
    if not names:
        return records, {}
    fields = _plain(names) if parts is None else dict(parts)
    found = [name for name, part in fields.items() if name in names or part.required]
    pattern = _pattern(fields, names, found, typed=parts is not None)
    # Columns of their own, or Spark would match the text for each place where the
    # result is named.
    text = F.col("text")
    marked = F.col("marked")
    marks = "".join(f"{_MARK}${number}" for number in range(1, len(found) + 1))
    read = records.withColumn("text", _text()).withColumn(
        "marked",
        F.regexp_replace(text, pattern, marks),
    )
    # Values without a match stay as they are.
    matched = marked.startswith(_MARK) & ~text.startswith(_MARK)
    cut = read.withColumn("cut", F.when(matched, F.split(marked, _MARK)))
    given = {name: F.get("cut", F.lit(at + 1)) for at, name in enumerate(found)}
    complete = reduce(
        and_,
        (given[name] != "" for name in found if fields[name].required),
        F.isnotnull("cut"),
    )
    token = {
        f"token_{at}": F.when(
            complete,
            F.when(given[name] != "", given[name]).otherwise(
                _default(fields[name]) if parts is not None else F.lit(MISSING)
            ),
        )
        for at, name in enumerate(names)
    }
    nothing = F.col("value").isNull()
    columns = {
        column: F.when(nothing, MISSING).otherwise(F.coalesce(each, F.lit("")))
        for column, each in token.items()
    }
    return cut.withColumns(columns), dict(zip(names, columns, strict=True))


def _plain(names: Sequence[str]) -> dict[str, Part]:
    """Return the fields of JSON without a declared type, as the `Part`s by which SQL
    finds a field in a JSON object.

    Any field may be missing. The kind "str" has no effect: without a declared type, a
    field may have any scalar.
    """
    return {
        name: Part(name, "str", optional=False, required=False, default=None)
        for name in names
    }


def numbers(aggregation: Aggregation, token_of: Mapping[str, str]) -> Number:
    """Return the number of each record that an aggregation folds."""
    value = F.col("value")
    kind = "bigint" if aggregation.number == "int64" else "double"
    no = F.lit(False)
    nothing = F.lit(None).cast(kind)
    if aggregation.values == "any":
        return Number(
            nothing,
            value.isNull() if aggregation.drops_null_values else no,
            no,
        )
    if aggregation.values in ("int64", "float64"):
        whole = F.when(
            F.length(value) == 8,
            F.conv(F.hex(value), 16, -10).cast("bigint"),
        )
        number = (
            _float(whole)
            if aggregation.values == "float64"
            else F.when(whole > -(1 << 63), whole)
        ).cast(kind)
        found = F.lit("")
    elif aggregation.field is not None:
        found = F.col(token_of[aggregation.field])
        number = F.when(found != "-0", found).try_cast(
            kind
        )  # null for a token of another type
    else:
        found = F.trim(_text(), F.lit(" \t\n\r"))
        number = F.when(
            found.rlike(rf"\A{_FOLDED[aggregation.number]}\z"),
            found,
        ).try_cast(kind)
    # A record without a value is dropped before it is read, unless a function comes
    # before, which raises.
    absent = F.coalesce(found == "null", no) | (
        value.isNull() if aggregation.field is None else no
    )
    missing = absent if aggregation.drops_null_values else no
    return Number(number, missing, number.isNull() & ~missing)


def folded_number(
    aggregation: Aggregation,
    value: Value,
) -> Number:
    """Return the number of each record that an aggregation folds, by the value of its
    expression. In doubt is what is no such number: Python folds or refuses it.
    """
    whole = aggregation.number == "int64"
    number = (
        value.int64 if whole else F.coalesce(value.float64, value.int64.cast("double"))
    )
    missing = ~value.given if aggregation.drops_null_values else F.lit(False)
    return Number(number, missing, value.doubt | (number.isNull() & ~missing))


def truthy(token: Column) -> Judged:
    """Return whether a field by itself is truthy, by its token."""
    return Judged(token == "true", ~token.isin("true", "false", "null"))


def judged(value: Value) -> Judged:
    """Return whether a condition is true, by its value."""
    odd = value.given & value.boolean.isNull()
    return Judged(F.coalesce(value.boolean, F.lit(False)), value.doubt | odd)


def _float(bits: Column) -> Column:
    """Return the finite number that has these 64 bits, null for others. All steps are
    exact.
    """
    exponent = F.shiftrightunsigned(bits, 52).bitwiseAND(0x7FF)
    fraction = bits.bitwiseAND((1 << 52) - 1)
    mantissa = (
        F.when(exponent == 0, fraction).otherwise(fraction + (1 << 52)).cast("double")
    )
    size = mantissa * F.pow(F.lit(2.0), F.greatest(exponent, F.lit(1)) - 1075)
    return F.when(exponent < 0x7FF, F.when(bits < 0, -size).otherwise(size))


def _text() -> Column:
    """Return the value as text; null if it is not UTF-8, or too long to be parsed."""
    text = F.col("value").cast("string")
    return F.when((F.length("value") <= _LONGEST) & F.is_valid_utf8(text), text)


def _default(part: Part) -> Column:
    """Return the token (the JSON text of a value) that stands for a field that is
    missing; empty if its default is not known.
    """
    known = part.default is not None and re.fullmatch(
        _type(part, read=True),
        part.default,
    )
    return F.lit(part.default if known else "")


def _pattern(
    fields: Mapping[str, Part],
    names: Sequence[str],
    found: Sequence[str],
    *,
    typed: bool,
) -> str:
    """Return the regular expression that matches a flat object of these fields and
    others.

    Shape: it has a group for each of `found`, in this order: the value of a field in
    `names`, the name of any other field.
    """
    members = []
    for name in [*found, *(name for name in fields if name not in found)]:
        part = fields[name]
        read = name in names
        key = rf'"\Q{part.key}\E"'
        scalar = _type(part, read=read) if typed else _SCALAR
        named = f"({key})" if name in found and not read else key
        members.append(f"{named}{_SPACE}:{_SPACE}({'' if read else '?:'}{scalar})")
    keys = "|".join(rf"\Q{part.key}\E" for part in fields.values())
    members.append(rf'(?!"(?:{keys})"){_STRING}{_SPACE}:{_SPACE}{_UNREAD}')
    separated = rf'{_SPACE}(?:,{_SPACE}(?=")|(?=\}}))'
    return (
        rf"\A{_SPACE}\{{{_SPACE}(?:(?:{'|'.join(members)}){separated})*+\}}{_SPACE}\z"
    )


def _type(part: Part, *, read: bool) -> str:
    scalar = _ESCAPED if part.kind == "str" and not read else _TYPED[part.kind]
    return f"{scalar}|null" if part.optional else scalar
