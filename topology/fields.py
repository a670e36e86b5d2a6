"""Builds expressions: `field("amount")` is a part of a value, and `field("amount") *
field("price") > 100` a condition on two parts.

An expression is callable like any function of `(value)`, `(key, value)` or, in a join,
`(left, right)`. It can be read as well: a generated loop contains its code, a native
plan of a backfill translates it to Spark SQL.

Invariant: an expression is immutable and pure, and never fails a record: in doubt it is
null, as in SQL. Only `field(...)` by itself is the function that it always was: it
raises KeyError where the part is missing. Invariant: `==` makes a condition, so
expressions are not compared; each is equal to itself only.
Turned down: an error where a part is missing (in an expression it could depend on what
`&` has decided before, which SQL does not promise). Arithmetic on texts by `+`
(`concat` says what happens to null). Functions of the user's inside of expressions, and
loops over lists: a lambda says it better, and no other engine could read it. Dates,
decimals and bytes as constants: JSON has none. `and`, `or`, `not` and `if` raise:
Python calls `bool()` on their operands at build time, which loses the expression.
Relies on: `expression_values` (what each operation returns), `expression_code`,
`expression_trees` with `native/src/expressions.rs`, `spark/native/sql_expressions`. A new
function is a row in each of them, and in `tests/topology/drawn_expressions.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import (
    Any,
    Final,
    Literal,
    NoReturn,
    TypeAlias,
)

from coopstreams.topology import expression_values as values
from coopstreams.topology.durations import checked_ms
from coopstreams.topology.expression_code import (
    Code,
    application,
    arithmetic,
    comparison,
    compiled,
    positions,
)
from coopstreams.topology.expression_values import LEAST, MOST, Kind

Comparing = Literal["==", "!=", "<", "<=", ">", ">="]
Calculating = Literal["+", "-", "*", "/", "%"]
Argument = Literal["key", "value", "aggregate", "left", "right"]
Castable = Literal["int64", "float64", "text", "boolean"]
Constant: TypeAlias = bool | int | float | str | None

ANY: Final[frozenset[Kind]] = frozenset(
    {"boolean", "int64", "float64", "text", "other"}
)
BOOLEAN: Final[frozenset[Kind]] = frozenset({"boolean"})
NUMBER: Final[frozenset[Kind]] = frozenset({"int64", "float64"})
INTEGER: Final[frozenset[Kind]] = frozenset({"int64"})
FLOAT: Final[frozenset[Kind]] = frozenset({"float64"})
TEXT: Final[frozenset[Kind]] = frozenset({"text"})
_NONE: Final[frozenset[Kind]] = frozenset()
_NAMES: Final[Mapping[Kind, str]] = {
    "boolean": "a condition",
    "int64": "a number",
    "float64": "a number",
    "text": "a text",
    "other": "a dict",
}


class Expression:
    """A value that is computed from a record: a function of `(value)`, `(key, value)`,
    or what else an operator calls its functions with.

    Operators: `+ - * / %`, comparisons, `&`, `|` and `~`, with constants and with other
    expressions. Shape: `kinds` are those that its value may have unless it is null.
    """

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The expressions that it is made of."""
        return ()

    @cached_property
    def kinds(self) -> frozenset[Kind]:
        """What its value may be, if it is not null: anything, where no more is known."""
        return ANY

    @property
    def constant(self) -> Any:
        """Its value, if that is known now and neither null nor NaN; else None."""
        return None

    @cached_property
    def arguments(self) -> frozenset[Argument]:
        """What it reads of a record."""
        return frozenset().union(*(each.arguments for each in self.operands))

    def code(self, writer: Code) -> str:
        """Return Python code whose value is that of the expression."""
        raise NotImplementedError

    def truth(self, writer: Code) -> str:
        """Return Python code that is truthy exactly if the value is true."""
        code = self.code(writer)
        return code if self.kinds <= BOOLEAN else f"({code} is True)"

    def __call__(self, *record: Any) -> Any:
        """Return the value for a record, null for what has none."""
        function = self._functions.get(len(record))
        if function is None:
            places = positions(self.arguments, len(record))
            function = self._functions[len(record)] = compiled(self, places)
        return function(*record)

    @cached_property
    def _functions(self) -> dict[int, Callable[..., Any]]:
        """The compiled expression by the number of arguments."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: nothing that is made again when it is needed."""
        made = ("_functions", "kinds", "arguments")
        return {name: each for name, each in vars(self).items() if name not in made}

    def __getitem__(self, name: str) -> Part:
        """Return the part of the value that has a name: `field("customer")["city"]`."""
        return Part(self, _name(name))

    def __add__(self, other: object) -> Arithmetic:
        return _calculated("+", self, other)

    def __radd__(self, other: object) -> Arithmetic:
        return _calculated("+", other, self)

    def __sub__(self, other: object) -> Arithmetic:
        return _calculated("-", self, other)

    def __rsub__(self, other: object) -> Arithmetic:
        return _calculated("-", other, self)

    def __mul__(self, other: object) -> Arithmetic:
        return _calculated("*", self, other)

    def __rmul__(self, other: object) -> Arithmetic:
        return _calculated("*", other, self)

    def __truediv__(self, other: object) -> Arithmetic:
        return _calculated("/", self, other)

    def __rtruediv__(self, other: object) -> Arithmetic:
        return _calculated("/", other, self)

    def __mod__(self, other: object) -> Arithmetic:
        return _calculated("%", self, other)

    def __rmod__(self, other: object) -> Arithmetic:
        return _calculated("%", other, self)

    def __neg__(self) -> Applied:
        return Applied("negative", (_taken("unary -", self, NUMBER),))

    def __eq__(self, other: object) -> Any:
        """Return the condition that both are equal; of None, that this is null."""
        return self.is_null() if other is None else _compared(self, "==", other)

    def __ne__(self, other: object) -> Any:
        return ~self.is_null() if other is None else _compared(self, "!=", other)

    __hash__ = object.__hash__

    def __lt__(self, other: object) -> Comparison:
        return _compared(self, "<", other)

    def __le__(self, other: object) -> Comparison:
        return _compared(self, "<=", other)

    def __gt__(self, other: object) -> Comparison:
        return _compared(self, ">", other)

    def __ge__(self, other: object) -> Comparison:
        return _compared(self, ">=", other)

    def __and__(self, other: object) -> Both:
        return Both((*_members(Both, self), _condition("&", other)))

    def __or__(self, other: object) -> Either:
        return Either((*_members(Either, self), _condition("|", other)))

    def __invert__(self) -> Not:
        return Not(_condition("~", self))

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} is true or false of a value, which is not here yet. Instead of `and`, `or`, `not` and `a < b < "
            "c` write `&`, `|` and `~`, with each comparison in parentheses."
        )

    def is_null(self) -> IsNull:
        """Return the condition that the value is null."""
        return IsNull(self)

    def cast(self, kind: Castable) -> Applied:
        """Return the value as another kind: `"int64"`, `"float64"`, `"text"` or
        `"boolean"`. Null if it cannot be read as one.
        """
        if kind not in values.CAST:
            raise TypeError(
                f"{self!r}.cast({kind!r}): a kind is one of {', '.join(values.CAST)}"
            )
        return Applied(f"to_{kind}", (self,))

    def lower(self) -> Applied:
        """Return the text in lower case."""
        return self._of_text("lower")

    def upper(self) -> Applied:
        """Return the text in upper case."""
        return self._of_text("upper")

    def trim(self) -> Applied:
        """Return the text without spaces, tabs and line ends around it."""
        return self._of_text("trim")

    def length(self) -> Applied:
        """Return the number of code points of the text."""
        return self._of_text("length")

    def substring(
        self,
        start: int,
        count: int | None = None,
    ) -> Applied:
        """Return `count` code points of the text, from `start` on, which begins at 0.
        Without `count`, all of them.
        """
        for number in (start, 0 if count is None else count):
            if type(number) is not int or not 0 <= number <= _MOST_POINTS:
                raise TypeError(
                    f"{self!r}.substring({start!r}, {count!r}): start and count are whole numbers from 0 on"
                )
        return self._of_text("substring", options=(start, count))

    def starts_with(self, prefix: Expression | str) -> Applied:
        """Return the condition that the text begins with another."""
        return self._of_text("starts_with", prefix)

    def ends_with(self, suffix: Expression | str) -> Applied:
        """Return the condition that the text ends with another."""
        return self._of_text("ends_with", suffix)

    def contains(self, piece: Expression | str) -> Applied:
        """Return the condition that the text has another in it."""
        return self._of_text("contains", piece)

    def floor(self, size: timedelta) -> Applied:
        """Return the time, in milliseconds since 1970, at which an interval of this
        size begins: `field("ms").floor(timedelta(hours=1))`.
        """
        size_ms = checked_ms(size, f"{self!r}.floor", 1)
        whole = _taken(".floor", self, INTEGER)
        return Applied("floor_time", (whole,), (size_ms,))

    def parse_time(self) -> Applied:
        """Return the milliseconds since 1970 of a text such as
        `2026-11-29T12:30:15.250+01:00`; see `expression_values.parse_time`.
        """
        return self._of_text("parse_time")

    def _of_text(
        self,
        name: str,
        *more: object,
        options: tuple[int | None, ...] = (),
    ) -> Applied:
        texts = [_taken(f".{name}", each, TEXT) for each in (self, *more)]
        return Applied(name, tuple(texts), options)


class _Condition(Expression):
    """An expression whose value is a boolean."""

    @cached_property
    def kinds(self) -> frozenset[Kind]:
        """A boolean."""
        return BOOLEAN


@dataclass(frozen=True, repr=False, eq=False)
class _Several(_Condition):
    """A condition that is made of several."""

    conditions: tuple[Expression, ...]

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The conditions."""
        return self.conditions


@dataclass(frozen=True, repr=False, eq=False)
class field(Expression):  # noqa: N801 used as a function
    """The part of a value that has a name: `map_values(field("amount"))`,
    `select_key(field("carrier"))`.

    In an expression, a part that is missing is null: `filter((field("amount") > 100) &
    (field("country") == "DE"))`. A field by itself is a function that returns the part;
    as a condition, whether it is truthy.

    Shape: called with `(value)` or `(key, value)`; the part is a dict's item, or the
    attribute of a typed value.

    Raises:
        KeyError, AttributeError: a field by itself, if the value has no part of this
            name. That fails the record, as in any user function.
    """

    name: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _name(self.name))

    @cached_property
    def arguments(self) -> frozenset[Argument]:
        """What it reads of a record: the value."""
        return frozenset({"value"})

    def code(self, writer: Code) -> str:
        """Return the code of the part, which is null if it is missing."""
        return writer.field_of(self.name)

    def __call__(self, *record: Any) -> Any:
        """Return the part of this name of the last argument."""
        value = record[-1]
        return (
            value[self.name]
            if isinstance(value, Mapping)
            else getattr(value, self.name)
        )

    def __repr__(self) -> str:
        return f"field({self.name!r})"


@dataclass(frozen=True, repr=False, eq=False)
class Whole(Expression):
    """An argument as a whole: the key, the value, or one side of a join."""

    argument: Argument

    @cached_property
    def arguments(self) -> frozenset[Argument]:
        """What it reads of a record."""
        return frozenset({self.argument})

    def code(self, writer: Code) -> str:
        """Return the variable of the argument."""
        return writer.names[self.argument]

    def __repr__(self) -> str:
        return f"{self.argument}()"


@dataclass(frozen=True, repr=False, eq=False)
class Part(Expression):
    """The part of another value that has a name; null if it is missing."""

    of: Expression
    name: str

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The value of which it is a part."""
        return (self.of,)

    def code(self, writer: Code) -> str:
        """Return the code of the part."""
        return writer.part(writer.of(self.of), self.name)

    def __repr__(self) -> str:
        if isinstance(self.of, Whole) and self.of.argument in ("left", "right"):
            return f"{self.of.argument}({self.name!r})"
        return f"{_subject(self.of)}[{self.name!r}]"


@dataclass(frozen=True, repr=False, eq=False)
class Known(Expression):
    """A constant: null, a boolean, an integer of 64 bits, a float or a text."""

    value: Constant

    @cached_property
    def kinds(self) -> frozenset[Kind]:
        """The kind of the constant; none if it is null."""
        kinds: Mapping[type, frozenset[Kind]] = {
            bool: BOOLEAN,
            int: INTEGER,
            float: FLOAT,
            str: TEXT,
        }
        return kinds.get(self.value.__class__, _NONE)

    @property
    def constant(self) -> Any:
        """The constant, unless it is NaN."""
        return None if self.value != self.value else self.value

    def code(self, writer: Code) -> str:
        """Return the code of the constant."""
        return writer.literal(self.value)

    def __repr__(self) -> str:
        return f"lit({_written(self.value)})"


@dataclass(frozen=True, repr=False, eq=False)
class Arithmetic(Expression):
    """The result of `+ - * / %` on two numbers."""

    one: Expression
    sign: Calculating
    other: Expression

    @property
    def operands(self) -> tuple[Expression, ...]:
        """Both numbers."""
        return (self.one, self.other)

    @cached_property
    def kinds(self) -> frozenset[Kind]:
        """An integer only if both can be one, and none is divided."""
        whole = "int64" in self.one.kinds & self.other.kinds and self.sign != "/"
        real = self.sign == "/" or "float64" in self.one.kinds | self.other.kinds
        return (INTEGER if whole else _NONE) | (FLOAT if real else _NONE)

    def code(self, writer: Code) -> str:
        """Return the code of the operation."""
        return arithmetic(writer, self.sign, self.one, self.other)

    def __repr__(self) -> str:
        return f"({self.one!r} {self.sign} {_behind(self.other)})"


@dataclass(frozen=True, repr=False, eq=False)
class Comparison(_Condition):
    """The condition that two values compare in a given way."""

    one: Expression
    comparing: Comparing
    other: Expression

    @property
    def operands(self) -> tuple[Expression, ...]:
        """Both values."""
        return (self.one, self.other)

    def code(self, writer: Code) -> str:
        """Return the code of the comparison."""
        return comparison(writer, self.comparing, self.one, self.other)

    def __repr__(self) -> str:
        return f"({self.one!r} {self.comparing} {_behind(self.other)})"


@dataclass(frozen=True, repr=False, eq=False)
class Both(_Several):
    """The condition that all of several conditions are true.

    False if one is false; else null if one is null or no boolean.
    """

    def code(self, writer: Code) -> str:
        """Return the code of the condition."""
        found = {writer.fresh(): each for each in self.conditions}
        tests = [f"({x} := {_boolean(writer, each)})" for x, each in found.items()]
        some = " or ".join(f"{test} is False" for test in tests)
        # None of them is False here, so `and` returns True or None.
        return f"(False if {some} else {' and '.join(found)})"

    def truth(self, writer: Code) -> str:
        """Return code that asks as `and` does."""
        return f"({' and '.join(map(writer.truth_of, self.conditions))})"

    def __repr__(self) -> str:
        return f"({' & '.join(map(repr, self.conditions))})"


@dataclass(frozen=True, repr=False, eq=False)
class Either(_Several):
    """The condition that at least one of several conditions is true.

    True if one is true; else null if one is null or no boolean.
    """

    def code(self, writer: Code) -> str:
        """Return the code of the condition."""
        found = {writer.fresh(): each for each in self.conditions}
        tests = [f"({x} := {_boolean(writer, each)})" for x, each in found.items()]
        unknown = " or ".join(f"{x} is None" for x in found)
        return f"(True if {' or '.join(tests)} else None if {unknown} else False)"

    def truth(self, writer: Code) -> str:
        """Return code that asks as `or` does."""
        return f"({' or '.join(map(writer.truth_of, self.conditions))})"

    def __repr__(self) -> str:
        return f"({' | '.join(map(repr, self.conditions))})"


@dataclass(frozen=True, repr=False, eq=False)
class Not(_Condition):
    """The condition that another condition is false; null if that is null."""

    one: Expression

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The condition that is negated."""
        return (self.one,)

    def code(self, writer: Code) -> str:
        """Return the code of the condition."""
        x = writer.fresh()
        return f"(None if ({x} := {_boolean(writer, self.one)}) is None else not {x})"

    def truth(self, writer: Code) -> str:
        """Return code that is truthy exactly if the other condition is false."""
        return f"({writer.of(self.one)} is False)"

    def __repr__(self) -> str:
        return f"~{self.one!r}"


@dataclass(frozen=True, repr=False, eq=False)
class IsNull(_Condition):
    """The condition that a value is null. It is never null itself."""

    one: Expression

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The value."""
        return (self.one,)

    def code(self, writer: Code) -> str:
        """Return the code of the condition."""
        if isinstance(self.one, field):
            return f"({writer.of(self.one)} is None)"
        # Python warns of a constant in front of `is`, not of a variable.
        return f"(({writer.fresh()} := {writer.of(self.one)}) is None)"

    def __repr__(self) -> str:
        return f"{_subject(self.one)}.is_null()"


@dataclass(frozen=True, repr=False, eq=False)
class Applied(Expression):
    """A function of `expression_values`, applied to other values.

    `options`: further arguments, which are numbers.
    """

    name: str
    applied: tuple[Expression, ...]
    options: tuple[int | None, ...] = ()

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The values to which it is applied."""
        return self.applied

    @cached_property
    def kinds(self) -> frozenset[Kind]:
        """What the function returns."""
        if self.name == "negative":
            return self.applied[0].kinds & NUMBER
        return _GIVES[self.name]

    def code(self, writer: Code) -> str:
        """Return the code of the function's result."""
        function = getattr(values, self.name)
        return application(writer, function, self.applied, self.options)

    def __repr__(self) -> str:
        first = _subject(self.applied[0])
        if self.name == "negative":
            return f"(-{first})"
        if self.name == "concat":
            return f"concat({first}, {', '.join(map(_behind, self.applied[1:]))})"
        if self.name == "floor_time":
            return f"{first}.floor(timedelta(milliseconds={self.options[0]}))"
        if self.name.startswith("to_"):
            return f"{first}.cast({self.name[3:]!r})"
        given = [*map(_behind, self.applied[1:]), *map(repr, self.options)]
        return f"{first}.{self.name}({', '.join(given)})"


@dataclass(frozen=True, repr=False, eq=False)
class Coalesce(Expression):
    """The first of several values that is not null."""

    choices: tuple[Expression, ...]

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The values."""
        return self.choices

    @cached_property
    def kinds(self) -> frozenset[Kind]:
        """What any of the values may be."""
        return frozenset().union(*(each.kinds for each in self.choices))

    def code(self, writer: Code) -> str:
        """Return the code of the value."""
        pieces = []
        for choice in self.choices[:-1]:
            x = writer.fresh()
            pieces.append(f"{x} if ({x} := {writer.of(choice)}) is not None else ")
        return f"({''.join(pieces)}{writer.of(self.choices[-1])})"

    def __repr__(self) -> str:
        return f"coalesce({', '.join(map(_behind, self.choices))})"


@dataclass(frozen=True, repr=False, eq=False)
class Case(Expression):
    """The value behind the first condition that is true, or else another value, which
    is null if none is named.
    """

    branches: tuple[tuple[Expression, Expression], ...]
    rest: Expression | None = None

    def when(
        self,
        condition: Expression,
        value: Expression | Constant,
    ) -> Case:
        """Return this with another condition, which is asked if no earlier one is
        true.
        """
        if self.rest is not None:
            raise TypeError(f"{self!r}: .when() comes before .otherwise()")
        return Case((*self.branches, _branch(condition, value)))

    def otherwise(self, value: Expression | Constant) -> Case:
        """Return this with the value for records for which no condition is true."""
        if self.rest is not None:
            raise TypeError(f"{self!r}: there is one .otherwise()")
        return Case(self.branches, _expression(value))

    @property
    def operands(self) -> tuple[Expression, ...]:
        """Conditions and values, in turn, and the value of the rest."""
        pairs = [each for branch in self.branches for each in branch]
        return (*pairs, *(() if self.rest is None else (self.rest,)))

    @cached_property
    def kinds(self) -> frozenset[Kind]:
        """What any of the values may be."""
        found = frozenset[Kind]().union(*(value.kinds for _, value in self.branches))
        return found if self.rest is None else found | self.rest.kinds

    def code(self, writer: Code) -> str:
        """Return the code of the value."""
        pieces = [
            f"{writer.of(value)} if {writer.truth_of(condition)} else "
            for condition, value in self.branches
        ]
        rest = "None" if self.rest is None else writer.of(self.rest)
        return f"({''.join(pieces)}{rest})"

    def __repr__(self) -> str:
        branches = ".".join(
            f"when({condition!r}, {_behind(value)})"
            for condition, value in self.branches
        )
        return (
            branches
            if self.rest is None
            else f"{branches}.otherwise({_behind(self.rest)})"
        )


@dataclass(frozen=True, repr=False, eq=False)
class Row(Expression):
    """A dict of named values."""

    names: tuple[str, ...]
    items: tuple[Expression, ...]

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The values."""
        return self.items

    @cached_property
    def kinds(self) -> frozenset[Kind]:
        """A dict."""
        return frozenset({"other"})

    def code(self, writer: Code) -> str:
        """Return the code of the dict."""
        items = [
            f"{writer.literal(name)}: {writer.of(item)}"
            for name, item in zip(self.names, self.items, strict=True)
        ]
        return f"{{{', '.join(items)}}}"

    def __repr__(self) -> str:
        pairs = zip(self.names, self.items, strict=True)
        if all(name.isidentifier() for name in self.names):
            return (
                f"row({', '.join(f'{name}={_behind(each)}' for name, each in pairs)})"
            )
        items = ", ".join(f"{name!r}: {_behind(each)}" for name, each in pairs)
        return f"row(**{{{items}}})"


def lit(value: Constant) -> Known:
    """Return a constant as an expression, where an operator would not make it one:
    `when(field("gift"), lit(0))`, `lit(1) / field("n")`.

    Raises:
        TypeError: it is no boolean, integer of 64 bits, float or text, and not None.
    """
    value = values.plain(value)
    if isinstance(value, int) and not LEAST <= value <= MOST:
        raise TypeError(f"lit({value!r}): an integer in an expression has 64 bits")
    if value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(
            f"{value!r} in an expression: a constant is a bool, int, float, str or None. Write a function of your own "
            "for anything else."
        )
    return Known(value)


def key() -> Whole:
    """Return the key of a record, in functions of `(key, value)`."""
    return Whole("key")


def value() -> Whole:
    """Return the whole value of a record: `stream.filter(value() > 5)`."""
    return Whole("value")


def aggregate() -> Whole:
    """Return the aggregate so far, in a reducer and an aggregator: `reduce(aggregate()
    + value())`.
    """
    return Whole("aggregate")


def left(name: str | None = None) -> Expression:
    """Return the first value of a join, or its part of this name."""
    return Whole("left") if name is None else Whole("left")[name]


def right(name: str | None = None) -> Expression:
    """Return the second value of a join, or its part of this name."""
    return Whole("right") if name is None else Whole("right")[name]


def when(
    condition: Expression,
    value: Expression | Constant,
) -> Case:
    """Return a value under a condition: `when(field("n") > 9, "many").when(field("n") >
    0, "some").otherwise("none")`. Without `otherwise`, the rest is null.
    """
    return Case((_branch(condition, value),))


def coalesce(*choices: Expression | Constant) -> Coalesce:
    """Return the first value that is not null, null if all are."""
    if not choices:
        raise TypeError("coalesce() takes at least one value")
    return Coalesce(tuple(map(_expression, choices)))


def concat(*texts: Expression | str) -> Applied:
    """Return texts as one text; null if any of them is null or no text."""
    if len(texts) < 2:
        raise TypeError("concat() takes at least two texts")
    return Applied("concat", tuple(_taken("concat", each, TEXT) for each in texts))


def row(**items: Expression | Constant) -> Row:
    """Return a dict of named values: `map_values(row(id=field("id"), total=field("n") *
    field("price")))`.
    """
    return Row(tuple(items), tuple(map(_expression, items.values())))


def fields_of(expression: Expression | None) -> tuple[str, ...]:
    """Return the names of all parts of the value that an expression reads."""
    if expression is None:
        return ()
    if isinstance(expression, field):
        return (expression.name,)
    return tuple(name for each in expression.operands for name in fields_of(each))


def reads_fields_only(expression: Expression) -> bool:
    """Return whether all that an expression reads of the value are parts that are no
    dicts: it does not read the whole value, nor parts of parts.
    """
    match expression:
        case Whole("value") | Part():
            return False
        case _:
            return all(map(reads_fields_only, expression.operands))


def _name(name: object) -> str:
    name = values.plain(name)
    if name.__class__ is str:
        return str(name)
    raise TypeError(f"a part of a value has a text as its name, not {name!r}")


def _expression(value: object) -> Expression:
    """Return a value as an expression: itself, or a constant."""
    return value if isinstance(value, Expression) else lit(value)  # type: ignore[arg-type]


def _taken(
    sign: str,
    value: object,
    kinds: frozenset[Kind],
) -> Expression:
    """Return an operand, unless its kind is known now and always another."""
    operand = _expression(value)
    if operand.kinds and not operand.kinds & kinds:
        wanted = _NAMES[next(iter(kinds))]
        given = _NAMES[_first(operand)]
        more = "; concat() joins texts" if sign == "+" and given == "a text" else ""
        raise TypeError(
            f"{sign} takes {wanted}, not {operand!r}, which is {given}{more}. .cast(...) makes another kind of it."
        )
    return operand


def _condition(
    sign: str,
    other: object,
) -> Expression:
    if isinstance(other, Expression) and (other.kinds & BOOLEAN or not other.kinds):
        return other
    raise TypeError(
        f"{sign} takes conditions such as (field(...) > 1), each in parentheses, not {other!r}"
    )


def _members(
    of: type[Both | Either],
    condition: Expression,
) -> tuple[Expression, ...]:
    """Return the conditions of `a & b` in `a & b & c`, which Python nests."""
    if isinstance(condition, of):
        return condition.conditions
    return (_condition("&" if of is Both else "|", condition),)


def _branch(
    condition: Expression,
    value: Expression | Constant,
) -> tuple[Expression, Expression]:
    return _condition("when()", condition), _expression(value)


def _calculated(
    sign: Calculating,
    one: object,
    other: object,
) -> Arithmetic:
    return Arithmetic(_taken(sign, one, NUMBER), sign, _taken(sign, other, NUMBER))


def _compared(
    one: Expression,
    sign: Comparing,
    other: object,
) -> Comparison:
    against = _expression(other)
    if not against.kinds:
        raise TypeError(
            f"{one!r} {sign} None is null for every record. Write .is_null()."
        )
    if not any(
        one.kinds & kinds and against.kinds & kinds for kinds in (BOOLEAN, NUMBER, TEXT)
    ):
        raise TypeError(
            f"{one!r} {sign} {_behind(against)}: {_NAMES[_first(one)]} and "
            f"{_NAMES[_first(against)]} do not compare, so the condition is null for every record. .cast(...) "
            "makes another kind of one."
        )
    return Comparison(one, sign, against)


def _first(operand: Expression) -> Kind:
    """Return a kind of an expression, for a message."""
    for kind in _NAMES:
        if kind in operand.kinds:
            return kind
    return "other"


def _boolean(
    writer: Code,
    operand: Expression,
) -> str:
    """Return code whose value is True, False or None."""
    code = writer.of(operand)
    if operand.kinds <= BOOLEAN:
        return code
    x = writer.fresh()
    return f"({x} if ({x} := {code}).__class__ is bool else None)"


def _subject(operand: Expression) -> str:
    """Return how an expression is written in front of a dot."""
    return f"({operand!r})" if isinstance(operand, Not) else repr(operand)


def _behind(operand: Expression) -> str:
    """Return how an expression is written where a constant becomes one by itself."""
    return _written(operand.value) if isinstance(operand, Known) else repr(operand)


def _written(constant: Constant) -> str:
    if isinstance(constant, float) and not math.isfinite(constant):
        return f"float({str(constant)!r})"
    return repr(constant)


_MOST_POINTS: Final = (1 << 31) - 1
_GIVES: Final[Mapping[str, frozenset[Kind]]] = {
    "to_int64": INTEGER,
    "to_float64": FLOAT,
    "to_text": TEXT,
    "to_boolean": BOOLEAN,
    "lower": TEXT,
    "upper": TEXT,
    "trim": TEXT,
    "substring": TEXT,
    "concat": TEXT,
    "length": INTEGER,
    "starts_with": BOOLEAN,
    "ends_with": BOOLEAN,
    "contains": BOOLEAN,
    "floor_time": INTEGER,
    "parse_time": INTEGER,
}
"""What the functions return."""
