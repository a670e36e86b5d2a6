"""Builds readable expressions: `field("amount")` is a part of a value, `field("amount")
> 100` a predicate on that part.

Fields and conditions are callable like any function, and they are expressions as well:
a native plan of a backfill translates them to Spark SQL instead of calling them. The
operators are comparisons with constants, `&`, `|` and `~`: few enough to translate them
all, and enough for the usual program, a filter in front of an aggregation.

Invariant: an expression is immutable and pure. Turned down: arithmetic, functions,
comparisons of two fields (a second language beside Python, of which a backfill could
translate little). `and`, `or`, `not` and `if` raise: Python calls `bool()` on their
operands at build time, which loses the expression.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import (
    Any,
    Final,
    Literal,
    NoReturn,
)

Comparing = Literal["==", "!=", "<", "<=", ">", ">="]

_COMPARE: Final[Mapping[Comparing, Callable[[Any, Any], Any]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Condition:
    """A predicate: a function of `(value)` or `(key, value)` that reads only the last
    argument.

    `one & other` and `one | other` short-circuit as `and` and `or` do; `~one` negates.
    """

    __slots__ = ()

    def __call__(self, *record: Any) -> Any:
        """Return the result of the condition for the last argument; only its truth
        matters.
        """
        raise NotImplementedError

    def __and__(self, other: Condition) -> Both:
        return Both(self, _condition("&", other))

    def __or__(self, other: Condition) -> Either:
        return Either(self, _condition("|", other))

    def __invert__(self) -> Not:
        return Not(self)

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} is true or false of a value, which is not here yet. Instead of `and`, `or`, `not` and `a < b < "
            "c` write `&`, `|` and `~`, with each comparison in parentheses."
        )


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class field(Condition):  # noqa: N801 used as a function
    """The part of a value that has a name: `map_values(field("amount"))`,
    `select_key(field("carrier"))`.

    A comparison of a field with a constant is a condition: `filter((field("amount") >
    100) & (field("country") == "DE"))`. A field by itself is the condition that the
    part is truthy.

    Shape: called with `(value)` or `(key, value)`; the part is a dict's item, or the
    attribute of a typed value.

    Raises:
        KeyError, AttributeError: the value has no part of this name. That fails the
        record, as in any user function.
    """

    name: str

    def __call__(self, *record: Any) -> Any:
        """Return the part of this name of the last argument."""
        value = record[-1]
        return (
            value[self.name]
            if isinstance(value, Mapping)
            else getattr(value, self.name)
        )

    def __eq__(self, other: object) -> Any:
        """Return the condition that the part equals a constant. For another field,
        return whether both have the same name.
        """
        return (
            self.name == other.name
            if isinstance(other, field)
            else self._compared("==", other)
        )

    def __ne__(self, other: object) -> Any:
        return (
            self.name != other.name
            if isinstance(other, field)
            else self._compared("!=", other)
        )

    def __lt__(self, other: object) -> Comparison:
        return self._compared("<", other)

    def __le__(self, other: object) -> Comparison:
        return self._compared("<=", other)

    def __gt__(self, other: object) -> Comparison:
        return self._compared(">", other)

    def __ge__(self, other: object) -> Comparison:
        return self._compared(">=", other)

    def __hash__(self) -> int:
        return hash((field, self.name))

    def __repr__(self) -> str:
        return f"field({self.name!r})"

    def _compared(self, comparing: Comparing, other: object) -> Comparison:
        if isinstance(other, Condition):
            raise TypeError(
                f"{self!r} {comparing} {other!r}: a field is compared with a constant. Write a function of your own "
                "for anything else."
            )
        hash(other)  # refuses mutable constants
        return Comparison(self, comparing, other)


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Condition):
    """The condition that a part of a value compares with a constant in a given way."""

    part: field
    comparing: Comparing
    constant: Any

    def __call__(self, *record: Any) -> bool:
        """Return whether the comparison holds for the last argument.

        Raises:
            TypeError: part and constant cannot be ordered.
        """
        return bool(_COMPARE[self.comparing](self.part(*record), self.constant))

    def __repr__(self) -> str:
        return f"({self.part!r} {self.comparing} {self.constant!r})"


@dataclass(frozen=True, slots=True, repr=False)
class Both(Condition):
    """The condition that two conditions are true. The second is not called if the first
    is false.
    """

    one: Condition
    other: Condition

    def __call__(self, *record: Any) -> bool:
        """Return whether both conditions are true for the record."""
        return bool(self.one(*record)) and bool(self.other(*record))

    def __repr__(self) -> str:
        return f"({self.one!r} & {self.other!r})"


@dataclass(frozen=True, slots=True, repr=False)
class Either(Condition):
    """The condition that at least one of two conditions is true. The second is not
    called if the first is true.
    """

    one: Condition
    other: Condition

    def __call__(self, *record: Any) -> bool:
        """Return whether at least one condition is true for the record."""
        return bool(self.one(*record)) or bool(self.other(*record))

    def __repr__(self) -> str:
        return f"({self.one!r} | {self.other!r})"


@dataclass(frozen=True, slots=True, repr=False)
class Not(Condition):
    """The condition that another condition is false."""

    one: Condition

    def __call__(self, *record: Any) -> bool:
        """Return whether the negated condition is false for the record."""
        return not bool(self.one(*record))

    def __repr__(self) -> str:
        return f"~{self.one!r}"


def fields_of(condition: Condition | None) -> tuple[str, ...]:
    """Return the names of all fields in a condition."""
    match condition:
        case field(name) | Comparison(field(name)):
            return (name,)
        case Both(one, other) | Either(one, other):
            return fields_of(one) + fields_of(other)
        case Not(one):
            return fields_of(one)
        case _:
            return ()


def _condition(sign: str, other: object) -> Condition:
    if isinstance(other, Condition):
        return other
    raise TypeError(
        f"{sign} takes conditions such as (field(...) > 1), each in parentheses, not {other!r}"
    )
