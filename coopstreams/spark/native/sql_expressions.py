"""Translates expressions to Spark SQL that has the same results as Python, to the bit.

An expression has a kind in SQL, but not in JSON. So each operation becomes up to four
columns, one for each kind that its value may have; at most one of them is not null.
Every column is of its own and named, in levels: an operation names its operands several
times, and nested in each other these would multiply.

Invariant: what SQL computes otherwise than Python is in *doubt*: fields that
`sql_values` does not read for certain, texts of floats (Java has other digits), and
case of other letters than ASCII (Java has another version of Unicode).
Relies on: `topology/fields.py` and `expression_values.py` (what Python computes, which is
the law), `sql_values` (tokens). `unreadable` refuses what has no translation.
Turned down: SQL's own casts and order of kinds (they read `" 5 "`, `"yes"` and dates of
five digits, and compare a text with a number); columns built by calls (each is a
message to the JVM; a text is parsed at once).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Final, Literal, NamedTuple, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as everybody calls it

from coopstreams.topology.expression_values import SPACES, TIME
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
    field,
)

SqlKind: TypeAlias = Literal["boolean", "int64", "float64", "text"]
KINDS: Final[Mapping[SqlKind, str]] = {
    "boolean": "boolean",
    "int64": "bigint",
    "float64": "double",
    "text": "string",
}
MISSING: Final = "missing"
"""The token of a field that a record does not have, or whose record has no value."""

_ARITHMETIC: Final = {
    "+": "try_add({x}, {y})",
    "-": "try_subtract({x}, {y})",
    "*": "try_multiply({x}, {y})",
    "/": "try_divide({x}, {y})",
    "%": "try_mod({x}, {y})",
}
_COMPARE: Final = {
    "==": "{x} = {y}",
    "!=": "not ({x} = {y})",
    "<": "{x} < {y}",
    "<=": "{x} <= {y}",
    ">": "{x} > {y}",
    ">=": "{x} >= {y}",
}
_OF_TEXT: Final = {
    "lower": "lower({x})",
    "upper": "upper({x})",
    "length": "cast(length({x}) as bigint)",
    # As bytes, whatever collation a session prefers.
    "starts_with": "startswith(cast({x} as binary), cast({y} as binary))",
    "ends_with": "endswith(cast({x} as binary), cast({y} as binary))",
    "contains": "contains(cast({x} as binary), cast({y} as binary))",
    "concat": "concat({all})",
}
_WHOLE: Final = r"r'\A[+-]?[0-9]{1,400}\z'"
_DECIMAL: Final = (
    r"r'\A[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?\z' "
    "and length({x}) <= 400"
)
_ASCII: Final = r"r'\A[\x00-\x7f]*\z'"
_TIME: Final = rf"r'\A{TIME}\z'"
_LIMIT: Final = "cast('9223372036854775808' as double)"


class Value(NamedTuple):
    """The value of an expression for each record, by kind, and whether SQL and Python
    might differ on it. At most one of the kinds is not null.
    """

    boolean: Column
    int64: Column
    float64: Column
    text: Column
    doubt: Column

    @property
    def given(self) -> Column:
        """Whether the value is not null."""
        kinds = (self.boolean, self.int64, self.float64, self.text)
        return reduce(or_, (kind.isNotNull() for kind in kinds))


class Bound(NamedTuple):
    """A column of the translation: its name, or a constant, and its level: it names
    columns of lower levels only.
    """

    name: str
    level: int


def with_values(
    records: DataFrame,
    expressions: Sequence[Expression],
    token_of: Mapping[str, str],
    floats: Collection[str] = (),
) -> tuple[DataFrame, list[Value]]:
    """Return the records with the columns of these expressions, and their values.

    `token_of`: the columns of the fields' tokens. `floats`: the fields whose type makes
    floats of integers. The expressions must be `readable`.
    """
    bindings = _Bindings()
    values = []
    for expression in expressions:
        translation = _Translation(bindings, token_of, floats)
        kinds = [translation.of(expression, kind) for kind in KINDS]
        columns = {
            kind: F.expr(f"cast(null as {sql})" if found is None else found.name)
            for (kind, sql), found in zip(KINDS.items(), kinds, strict=True)
        }
        # Last: translating has added the doubts.
        values.append(Value(**columns, doubt=F.expr(translation.doubt())))
    return bindings.added_to(records), values


def unreadable(expression: Expression) -> str | None:
    """Return why SQL cannot compute an expression, for any record; None if it can."""
    match expression:
        case Applied("to_text", (one,)) if one.kinds == {"float64"}:
            return (
                f"has {expression!r}, the text of a float, which Java writes otherwise"
            )
        case Known(str(text)) if any("\ud800" <= letter <= "\udfff" for letter in text):
            return f"has {expression!r}, which is no text in UTF-8"
        case (
            field()
            | Known()
            | Arithmetic()
            | Comparison()
            | Both()
            | Either()
            | Not()
            | IsNull()
            | Applied()
            | Coalesce()
            | Case()
        ):
            reasons = map(unreadable, expression.operands)
            return next(filter(None, reasons), None)
        case _:
            return f"has {expression!r}, which has no translation"


class _Bindings:
    """The columns of several translations, by level."""

    def __init__(self) -> None:
        self.levels: list[dict[str, str]] = []

    def bind(self, sql: str, *operands: Bound) -> Bound:
        """Return a new column whose operands are put into `sql` as x, y, z, and all."""
        level = max((each.level for each in operands), default=0)
        while len(self.levels) <= level:
            self.levels.append({})
        name = f"value_{level}_{len(self.levels[level])}"
        names = [each.name for each in operands]
        named = dict(zip("xyz", names, strict=False))
        self.levels[level][name] = sql.format(**named, all=", ".join(names))
        return Bound(name, level + 1)

    def added_to(self, records: DataFrame) -> DataFrame:
        """Return the records with all columns."""
        for level in self.levels:
            columns = [f"{sql} as {name}" for name, sql in level.items()]
            records = records.selectExpr("*", *columns)
        return records


class _Translation:
    """The columns of one expression."""

    def __init__(
        self,
        bindings: _Bindings,
        token_of: Mapping[str, str],
        floats: Collection[str],
    ) -> None:
        self._bind = bindings.bind
        self._token_of = token_of
        self._floats = floats
        self._found: dict[tuple[int, SqlKind], Bound | None] = {}
        self._fields: dict[tuple[str, SqlKind], Bound] = {}
        self._doubts: dict[str, None] = {}

    def of(
        self,
        expression: Expression,
        kind: SqlKind,
    ) -> Bound | None:
        """Return the column of an expression's value where it is of this kind, null
        where it is not; None: it never is.
        """
        memo = (id(expression), kind)
        if memo not in self._found:
            known = kind in expression.kinds
            self._found[memo] = self._translated(expression, kind) if known else None
        return self._found[memo]

    def doubt(self) -> str:
        """Return the SQL of whether anything that was translated is in doubt."""
        return " or ".join(self._doubts) or "false"

    def _translated(
        self,
        expression: Expression,
        kind: SqlKind,
    ) -> Bound | None:
        """Return the column of an expression that may have a value of this kind: null
        where it has none. None: it turns out that it never has.
        """
        match expression:
            case field(name):
                return self._field(name, kind)
            case Known(known):
                return Bound(_literal(known), 0)
            case Arithmetic(one, sign, other):
                return self._calculated(one, sign, other, kind)
            case Comparison(one, sign, other):
                return self._compared(one, sign, other)
            case Both(conditions):
                return self._joined(conditions, " and ")
            case Either(conditions):
                return self._joined(conditions, " or ")
            case Not(one):
                return self._bind("not {x}", self._boolean(one))
            case IsNull(one):
                return self._bind("not {x}", self._given(one))
            case Coalesce(choices):
                return self._first(
                    [(self._given(each), each) for each in choices], None, kind
                )
            case Case(branches, rest):
                asked = [(self._boolean(one), value) for one, value in branches]
                return self._first(asked, rest, kind)
            case Applied():
                return self._applied(expression, kind)
            case _:
                raise TypeError(f"{expression!r} has no translation")

    def _field(
        self,
        name: str,
        kind: SqlKind,
    ) -> Bound:
        """Return the column of a field's value, if it is of this kind, from its token."""
        if (name, kind) in self._fields:
            return self._fields[name, kind]
        token = self._token_of[name]
        self._doubts[f"{token} = ''"] = None
        number = f"{token} rlike '^[-0-9]'"
        real = f"{number} and {token} rlike '[.eE]'"
        if name in self._floats:
            real = number
            self._doubts[f"{token} = '-0'"] = None
        sql = {
            "boolean": f"case {token} when 'true' then true when 'false' then false end",
            "int64": f"case when {number} and not ({real}) then try_cast({token} as bigint) end",
            "float64": f"case when {real} then try_cast({token} as double) end",
            "text": f"case when startswith({token}, '\"') then substring({token}, 2, length({token}) - 2) end",
        }[kind]
        self._fields[name, kind] = self._bind(sql)
        return self._fields[name, kind]

    def _boolean(self, expression: Expression) -> Bound:
        """Return the column of a condition."""
        return self.of(expression, "boolean") or Bound("cast(null as boolean)", 0)

    def _given(self, expression: Expression) -> Bound:
        """Return the column that says whether a value is not null."""
        found = [self.of(expression, kind) for kind in KINDS]
        columns = [each for each in found if each is not None]
        tests = " or ".join(f"{each.name} is not null" for each in columns)
        return self._bind(tests or "false", *columns)

    def _joined(
        self,
        conditions: Sequence[Expression],
        word: str,
    ) -> Bound:
        """Return the column of conditions joined by `and` or `or`."""
        columns = list(map(self._boolean, conditions))
        return self._bind(word.join(each.name for each in columns), *columns)

    def _first(
        self,
        branches: Sequence[tuple[Bound, Expression]],
        rest: Expression | None,
        kind: SqlKind,
    ) -> Bound:
        """Return the column of the value of the first branch whose column is true, else
        of `rest`, where it is of this kind; null where it is not.
        """
        nothing = Bound(f"cast(null as {KINDS[kind]})", 0)
        values = [self.of(value, kind) or nothing for _, value in branches]
        last = (None if rest is None else self.of(rest, kind)) or nothing
        whens = [
            f"when {asked.name} then {value.name}"
            for (asked, _), value in zip(branches, values, strict=True)
        ]
        asked = [column for column, _ in branches]
        sql = f"case {' '.join(whens)} else {last.name} end"
        return self._bind(sql, *asked, *values, last)

    def _as_float(self, expression: Expression) -> Bound | None:
        """Return a number as a float."""
        whole = self.of(expression, "int64")
        real = self.of(expression, "float64")
        if whole is None:
            return real
        if real is None:
            return self._bind("cast({x} as double)", whole)
        return self._bind("coalesce({y}, cast({x} as double))", whole, real)

    def _calculated(
        self,
        one: Expression,
        sign: str,
        other: Expression,
        kind: SqlKind,
    ) -> Bound | None:
        """Return the column of the value of `one sign other` where that is a number of
        this kind, null where it is not (two integers make no float, but for `/`); None:
        it never is one.
        """
        sql = _ARITHMETIC[sign]
        whole = [self.of(each, "int64") for each in (one, other)]
        wholes = [each for each in whole if each is not None]
        if kind == "int64":
            return self._bind(sql, *wholes) if len(wholes) == 2 else None
        floats = [self._as_float(each) for each in (one, other)]
        reals = [each for each in floats if each is not None]
        if len(reals) < 2:
            return None
        if sign == "/" or len(wholes) < 2:
            return self._bind(sql, *reals)
        mixed = f"{wholes[0].name} is null or {wholes[1].name} is null"
        return self._bind(f"case when {mixed} then {sql} end", *reals, *wholes)

    def _compared(
        self,
        one: Expression,
        sign: str,
        other: Expression,
    ) -> Bound:
        """Return the column of the comparison `one sign other`: null where the kinds
        differ, but for the two of numbers.
        """
        found = []
        for kind in KINDS:
            x = self.of(one, kind)
            y = self.of(other, kind)
            if kind == "float64":
                x = self._as_float(one)
                y = self._as_float(other)
            if x is None or y is None:
                continue
            if kind == "text":
                x = self._bind("cast({x} as binary)", x)
                y = self._bind("cast({x} as binary)", y)
            found.append(self._bind(_COMPARE[sign], x, y))
        if not found:
            return Bound("cast(null as boolean)", 0)
        # Two integers come before the same as floats.
        return self._bind("coalesce({all})", *found)

    def _applied(
        self,
        applied: Applied,
        kind: SqlKind,
    ) -> Bound | None:
        """Return the column of a function of the DSL as a value of this kind; None: it
        never is.
        """
        first = applied.applied[0]
        name = applied.name
        if name == "negative":
            x = self.of(first, kind)
            sql = "try_subtract(0L, {x})" if kind == "int64" else "-{x}"
            return None if x is None else self._bind(sql, x)
        if name.startswith("to_"):
            return self._cast(first, kind)
        if name == "floor_time":
            x = self.of(first, "int64")
            size = f"{applied.options[0]}L"
            sql = f"try_subtract({{x}}, pmod({{x}}, {size}))"
            return None if x is None else self._bind(sql, x)
        texts = [self.of(each, "text") for each in applied.applied]
        given = [each for each in texts if each is not None]
        if len(given) < len(texts):
            return None
        return self._of_text(name, given, applied.options)

    def _of_text(
        self,
        name: str,
        texts: Sequence[Bound],
        options: Sequence[int | None],
    ) -> Bound:
        """Return the column of a function of texts, by its name in the DSL."""
        if name in ("lower", "upper"):
            self._doubt(f"not ({texts[0].name} rlike {_ASCII})")
        if name == "trim":
            spaces = _literal(SPACES)
            return self._bind(f"trim(both {spaces} from {{x}})", *texts)
        if name == "substring":
            start, count = options
            assert start is not None
            more = "" if count is None else f", {count}"
            return self._bind(f"substring({{x}}, {start + 1}{more})", *texts)
        if name == "parse_time":
            return self._parsed(texts[0])
        return self._bind(_OF_TEXT[name], *texts)

    def _doubt(self, sql: str) -> None:
        """Add a test to those by which a record is in doubt."""
        self._doubts[f"coalesce({sql}, false)"] = None

    def _cast(
        self,
        one: Expression,
        kind: SqlKind,
    ) -> Bound | None:
        """Return the column of a value cast to a kind, null where that cannot be; None:
        it never can. A float that becomes a text is in doubt.
        """
        casts: Mapping[SqlKind, Mapping[SqlKind, str]] = {
            "boolean": {
                "boolean": "{x}",
                "int64": "{x} != 0",
                "float64": "not ({x} = 0)",
                "text": "case {x} when 'true' then true when 'false' then false end",
            },
            "int64": {
                "boolean": "cast({x} as bigint)",
                "int64": "{x}",
                "float64": f"case when abs({{x}}) < {_LIMIT} or {{x}} = -{_LIMIT} then try_cast({{x}} as bigint) end",
                "text": f"case when {{x}} rlike {_braces(_WHOLE)} then try_cast({{x}} as bigint) end",
            },
            "float64": {
                "boolean": "cast({x} as double)",
                "int64": "cast({x} as double)",
                "float64": "{x}",
                "text": f"case when {{x}} rlike {_DECIMAL} then try_cast({{x}} as double) end",
            },
            "text": {
                "boolean": "cast({x} as string)",
                "int64": "cast({x} as string)",
                "text": "{x}",
            },
        }
        found = []
        for given, sql in casts[kind].items():
            x = self.of(one, given)
            if x is not None:
                found.append(self._bind(sql, x))
        if kind == "text" and (real := self.of(one, "float64")) is not None:
            self._doubt(f"{real.name} is not null")
        return self._bind("coalesce({all})", *found) if found else None

    def _parsed(self, text: Bound) -> Bound:
        """Return the column of the milliseconds since 1970 of a text that is a time,
        null where it is none.
        """
        pattern = _braces(_TIME)

        def group(number: int) -> Bound:
            return self._bind(f"regexp_extract({{x}}, {pattern}, {number})", text)

        def whole(
            sql: str,
            of: Bound,
        ) -> Bound:
            return self._bind(f"coalesce(try_cast({sql} as bigint), 0L)", of)

        offset = group(6)
        day = self._bind(
            f"case when {{x}} rlike {pattern} and not startswith({{x}}, '0000') "
            "then unix_date(try_cast(substring({x}, 1, 10) as date)) end",
            text,
        )
        pieces = [
            day,
            whole("{x}", group(2)),
            whole("{x}", group(3)),
            whole("{x}", group(4)),
            whole("rpad(substring({x}, 1, 3), 3, '0')", group(5)),
            whole("concat(substring({x}, 1, 1), substring({x}, 2, 2))", offset),
            whole("concat(substring({x}, 1, 1), right({x}, 2))", offset),
        ]
        days, hours, minutes, seconds, millis, away_h, away_m = (
            each.name for each in pieces
        )
        return self._bind(
            f"(((cast({days} as bigint) * 24 + {hours} - {away_h}) * 60 + {minutes} - {away_m}) * 60 "
            f"+ {seconds}) * 1000 + {millis}",
            *pieces,
        )


def _braces(pattern: str) -> str:
    """Return a pattern as it has to stand in a text that is formatted."""
    return pattern.replace("{", "{{").replace("}", "}}")


def _literal(value: bool | int | float | str | None) -> str:
    """Return a constant in SQL. A text is given as bytes: what a backslash means in SQL
    is a setting of the session.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"cast('{value}' as bigint)"
    if isinstance(value, float):
        return f"cast('{_JAVA.get(repr(value), repr(value))}' as double)"
    return f"cast(X'{value.encode().hex()}' as string)"


_JAVA: Final = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
