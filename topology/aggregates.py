"""The aggregates of which a table can have several: `aggregate(total=sum_("amount"),
n=count(), p99=quantile("ms", 0.99))`.

An aggregate function says how the state of one aggregate begins, takes in a value,
merges with another, gives a value back, and is finished to what the table shows. It
says so in lines of Python over local variables: `aggregate_rows` puts the lines of all
aggregates of a table into one function, so that a record costs one call.

Nulls are left out, as in SQL: `count("ms")` counts the values that are there, `count()`
counts records, and the sum of no values is null.

Invariant: the state after some records depends on their order at most, never on
commits, ranges or serialisation. Invariant: a line that may raise comes before any line
that changes a state in place, so a record that fails changes nothing.
Relies on: `aggregate_rows` (how the lines are put together, and the bytes of a row),
`sketches` (states of many values).
Turned down: a list of all values (`collect_list`): a row would grow without bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

from coopstreams.topology.calls import name_of
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.fields import Expression, field
from coopstreams.topology.signatures import accepts
from coopstreams.topology.sketches import (
    NOTHING,
    Spread,
    SpreadState,
    distinct_of,
    parts_for,
    spread_of,
    value_hash,
)

Argument: TypeAlias = str | Expression | Callable[..., Any]
"""What an aggregate is of: the name of a part of the value, an expression, or a
function of `(value)` or `(key, value)`.
"""
Scalar: TypeAlias = bool | int | float | str | None
"""A value that a state can keep."""

LARGEST: Final = 1.7976931348623157e308
"""The largest finite float."""


class Lines:
    """The lines of generated functions, as an aggregate writes them.

    Shape: `slots` are the variables of the aggregate's state, `others` those of the
    state that is merged into it, `values` those of its arguments. `constant` makes an
    object known to the code and returns its name.
    """

    def __init__(
        self,
        slots: Sequence[str],
        values: Sequence[str],
        constant: Callable[[str, Any], str],
    ) -> None:
        self.slots = slots
        self.values = values
        self.others = [f"other_{slot}" for slot in slots]
        self._constant = constant

    def named(self, known: Any) -> str:
        """Return the name of a function or a constant in the code."""
        return self._constant(getattr(known, "__name__", "constant"), known)


@dataclass(frozen=True, slots=True, eq=False)
class AggregateFunction:
    """One aggregate of a table, such as `sum_("amount")`. Made by the functions of this
    module.

    Shape: `of` are its arguments. `numbers`: they must be numbers. `finite`: they must
    be finite. `slots`: how many variables its state has.
    """

    of: tuple[Callable[..., Any], ...] = ()

    name: ClassVar[str]
    """The name of the function that makes it."""
    slots: ClassVar[int] = 1
    numbers: ClassVar[bool] = False
    finite: ClassVar[bool] = False
    subtracts: ClassVar[bool] = False
    """Whether it can take a value out again."""
    changes_in_place: ClassVar[bool] = False
    """Whether its state is an object that is changed in place."""
    serialised: ClassVar[Any]
    """The type of its state in a row's bytes."""
    empty: ClassVar[Any] = None
    """The state of no records, as it is in a row's bytes."""

    @property
    def kind(self) -> str:
        """What its state means, by which two versions of a program are compared."""
        return self.name.rstrip("_")

    def initial(self, lines: Lines) -> list[str]:
        """Return the code of the state of no records, one expression a slot."""
        del lines
        return [repr(self.empty)]

    def fold(self, lines: Lines) -> list[str]:
        """Return the lines that take in the arguments of one record."""
        raise NotImplementedError

    def merge(self, lines: Lines) -> list[str]:
        """Return the lines that take in another state, of later records."""
        raise NotImplementedError

    def subtract(self, lines: Lines) -> list[str]:
        """Return the lines that take the arguments of one record out again, if it
        `subtracts`.
        """
        raise NotImplementedError

    def finish(self, lines: Lines) -> str:
        """Return the code of the value that the table shows."""
        return lines.slots[0]

    def encode(self, lines: Lines) -> str:
        """Return the code of the state as it is in a row's bytes."""
        return lines.slots[0]

    def decode(self, lines: Lines, state: str) -> list[str]:
        """Return the lines that set the slots from the state in a row's bytes."""
        return [f"{lines.slots[0]} = {state}"]

    def for_table(self) -> AggregateFunction:
        """Return the aggregate that can take values back, for an aggregation of a
        table.
        """
        return self

    def __repr__(self) -> str:
        shown = ", ".join(_shown(argument) for argument in self.of)
        return f"{self.name}({shown})"


class _Count(AggregateFunction):
    __slots__ = ()
    name = "count"
    subtracts = True
    serialised = int
    empty = 0

    def fold(self, lines: Lines) -> list[str]:
        return self._changed(lines, "+")

    def subtract(self, lines: Lines) -> list[str]:
        return self._changed(lines, "-")

    def merge(self, lines: Lines) -> list[str]:
        return [f"{lines.slots[0]} += {lines.others[0]}"]

    def _changed(self, lines: Lines, sign: str) -> list[str]:
        change = f"{lines.slots[0]} {sign}= 1"
        if not self.of:
            return [change]
        return [f"if {lines.values[0]} is not None:", f"    {change}"]


class _Sum(AggregateFunction):
    __slots__ = ()
    name = "sum_"
    numbers = True
    serialised = int | float | None

    def fold(self, lines: Lines) -> list[str]:
        return _added(lines.slots[0], lines.values[0])

    def merge(self, lines: Lines) -> list[str]:
        return _added(lines.slots[0], lines.others[0])

    def for_table(self) -> AggregateFunction:
        return _CountedSum(self.of)


class _CountedSum(AggregateFunction):
    """A sum that knows of how many values it is: of none it is null again, without what
    rounding has left.
    """

    __slots__ = ()
    name = "sum_"
    slots = 2
    numbers = True
    subtracts = True
    serialised = tuple[int | float, int]
    empty: ClassVar[tuple[int | float, int]] = (0, 0)

    @property
    def kind(self) -> str:
        return "sum and count"

    def initial(self, lines: Lines) -> list[str]:
        del lines
        return ["0", "0"]

    def fold(self, lines: Lines) -> list[str]:
        return _counted(lines, "+")

    def merge(self, lines: Lines) -> list[str]:
        return _both_counted(lines)

    def subtract(self, lines: Lines) -> list[str]:
        total, number = lines.slots
        return [
            *_counted(lines, "-"),
            f"if not {number}:",
            f"    {total} = 0",
        ]

    def finish(self, lines: Lines) -> str:
        total, number = lines.slots
        return f"{total} if {number} else None"

    def encode(self, lines: Lines) -> str:
        return f"({', '.join(lines.slots)})"

    def decode(self, lines: Lines, state: str) -> list[str]:
        return [f"{', '.join(lines.slots)} = {state}"]


class _Mean(_CountedSum):
    """A total and the number of its values. The total is a float from the first number
    on.
    """

    __slots__ = ()
    name = "mean"
    serialised = tuple[float, int]
    empty = (0.0, 0)

    @property
    def kind(self) -> str:
        return "mean"

    def initial(self, lines: Lines) -> list[str]:
        del lines
        return ["0.0", "0"]

    def subtract(self, lines: Lines) -> list[str]:
        total, number = lines.slots
        return [
            *_counted(lines, "-"),
            f"if not {number}:",
            f"    {total} = 0.0",
        ]

    def finish(self, lines: Lines) -> str:
        total, number = lines.slots
        return f"{total} / {number} if {number} else None"

    def for_table(self) -> AggregateFunction:
        return self


class _Extreme(AggregateFunction):
    """The least or the largest value."""

    __slots__ = ()
    sign: ClassVar[str]
    serialised = Scalar

    def fold(self, lines: Lines) -> list[str]:
        value = lines.values[0]
        slot = lines.slots[0]
        # A float that compares with another is not NaN.
        usual = f"{value}.__class__ is int or ({value}.__class__ is float and {slot} is not None)"
        other = f"{lines.named(_ordered)}({value}, {repr(self)!r}, {slot})"
        return self._taken(lines, value, f"{value} if {usual} else {other}")

    def merge(self, lines: Lines) -> list[str]:
        return self._taken(lines, lines.others[0], lines.others[0])

    def _taken(
        self,
        lines: Lines,
        value: str,
        kept: str,
    ) -> list[str]:
        slot = lines.slots[0]
        return [
            f"if {value} is not None and ({slot} is None or {value} {self.sign} {slot}):",
            f"    {slot} = {kept}",
        ]


class _Min(_Extreme):
    __slots__ = ()
    name = "min_"
    sign = "<"


class _Max(_Extreme):
    __slots__ = ()
    name = "max_"
    sign = ">"


class _First(AggregateFunction):
    __slots__ = ()
    name = "first"
    serialised = Scalar

    def fold(self, lines: Lines) -> list[str]:
        value = lines.values[0]
        kept = f"{lines.named(plain_of)}({value}, {repr(self)!r})"
        return [
            f"if {lines.slots[0]} is None and {value} is not None:",
            f"    {lines.slots[0]} = {kept}",
        ]

    def merge(self, lines: Lines) -> list[str]:
        return [
            f"if {lines.slots[0]} is None:",
            f"    {lines.slots[0]} = {lines.others[0]}",
        ]


class _Last(AggregateFunction):
    __slots__ = ()
    name = "last"
    serialised = Scalar

    def fold(self, lines: Lines) -> list[str]:
        value = lines.values[0]
        usual = f"{value}.__class__ is str or {value}.__class__ is int"
        other = f"{lines.named(plain_of)}({value}, {repr(self)!r})"
        return [
            f"if {value} is not None:",
            f"    {lines.slots[0]} = {value} if {usual} else {other}",
        ]

    def merge(self, lines: Lines) -> list[str]:
        return [
            f"if {lines.others[0]} is not None:",
            f"    {lines.slots[0]} = {lines.others[0]}",
        ]


class _CountDistinct(AggregateFunction):
    __slots__ = ()
    name = "count_distinct"
    serialised = bytes
    empty = b""

    def initial(self, lines: Lines) -> list[str]:
        return [lines.named(NOTHING)]

    def fold(self, lines: Lines) -> list[str]:
        value = lines.values[0]
        return [
            f"if {value} is not None:",
            f"    {lines.slots[0]} = {lines.slots[0]}.add({lines.named(value_hash)}({value}))",
        ]

    def merge(self, lines: Lines) -> list[str]:
        return [f"{lines.slots[0]} = {lines.slots[0]}.merge({lines.others[0]})"]

    def finish(self, lines: Lines) -> str:
        return f"{lines.slots[0]}.estimate()"

    def encode(self, lines: Lines) -> str:
        return f"{lines.slots[0]}.state()"

    def decode(self, lines: Lines, state: str) -> list[str]:
        return [f"{lines.slots[0]} = {lines.named(distinct_of)}({state})"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Quantile(AggregateFunction):
    shares: tuple[float, ...] = ()
    accuracy: float = 0.01

    name = "quantile"
    numbers = True
    finite = True
    subtracts = True
    changes_in_place = True
    serialised = SpreadState
    empty: ClassVar[SpreadState] = (0, 0, [], 0, [])

    @property
    def kind(self) -> str:
        return f"quantile, accuracy {self.accuracy}"

    @property
    def _parts(self) -> int:
        return parts_for(self.accuracy)

    def initial(self, lines: Lines) -> list[str]:
        return [f"{lines.named(Spread)}({self._parts})"]

    def fold(self, lines: Lines) -> list[str]:
        return self._changed(lines, "add")

    def subtract(self, lines: Lines) -> list[str]:
        return self._changed(lines, "subtract")

    def merge(self, lines: Lines) -> list[str]:
        return [f"{lines.slots[0]} = {lines.slots[0]}.merged({lines.others[0]})"]

    def finish(self, lines: Lines) -> str:
        one = "one" if len(self.shares) == 1 else "several"
        function = {"one": _only_quantile, "several": Spread.quantiles}[one]
        return f"{lines.named(function)}({lines.slots[0]}, {self.shares!r})"

    def encode(self, lines: Lines) -> str:
        return f"{lines.slots[0]}.state()"

    def decode(self, lines: Lines, state: str) -> list[str]:
        return [
            f"{lines.slots[0]} = {lines.named(spread_of)}({state}, {self._parts})",
        ]

    def _changed(self, lines: Lines, method: str) -> list[str]:
        return [
            f"if {lines.values[0]} is not None:",
            f"    {lines.slots[0]}.{method}({lines.values[0]})",
        ]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Top(AggregateFunction):
    """The largest values, the largest first. Of equal ones, the earlier record's comes
    first.
    """

    n: int = 1

    name = "top_"
    serialised = tuple[Scalar, ...]
    empty = ()
    least: ClassVar[str] = "[-1]"
    """The code of the least value, behind the variable of the state."""

    @property
    def kind(self) -> str:
        return "top"

    def fold(self, lines: Lines) -> list[str]:
        top = lines.slots[0]
        value = lines.values[0]
        given = [top, *lines.values, str(self.n), f"{repr(self)!r}"]
        call = f"{lines.named(self._with)}({', '.join(given)})"
        place = f"len({top}) < {self.n} or {value} > {top}{self.least}"
        return [f"if {value} is not None and ({place}):", f"    {top} = {call}"]

    def merge(self, lines: Lines) -> list[str]:
        top = lines.slots[0]
        both = lines.named(self._both)
        return [f"{top} = {both}({top}, {lines.others[0]}, {self.n})"]

    def finish(self, lines: Lines) -> str:
        return f"[*{lines.slots[0]}]"

    def decode(self, lines: Lines, state: str) -> list[str]:
        return [f"{lines.slots[0]} = {state}[:{self.n}]"]

    @property
    def _with(self) -> Callable[..., tuple[Any, ...]]:
        return _with_value

    @property
    def _both(self) -> Callable[..., tuple[Any, ...]]:
        return _both_values


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _TopPairs(_Top):
    """The largest values, each with another value of its record."""

    serialised = tuple[tuple[Scalar, Scalar], ...]
    least = "[-1][0]"

    @property
    def kind(self) -> str:
        return "top, in pairs"

    def finish(self, lines: Lines) -> str:
        return f"[*map(list, {lines.slots[0]})]"

    @property
    def _with(self) -> Callable[..., tuple[Any, ...]]:
        return _with_pair

    @property
    def _both(self) -> Callable[..., tuple[Any, ...]]:
        return _both_pairs


def count(of: Argument | None = None) -> AggregateFunction:
    """Count the records; or, `count("ms")`, the values that are not null."""
    return _Count(() if of is None else (checked_argument("count", of),))


def sum_(of: Argument) -> AggregateFunction:
    """Add up the values. Of no values, the sum is null."""
    return _Sum((checked_argument("sum_", of),))


def mean(of: Argument) -> AggregateFunction:
    """Return the mean of the values, as a float; null if there are none."""
    return _Mean((checked_argument("mean", of),))


def min_(of: Argument) -> AggregateFunction:
    """Return the least value, a number or a text; null if there are none. NaN is left
    out.
    """
    return _Min((checked_argument("min_", of),))


def max_(of: Argument) -> AggregateFunction:
    """Return the largest value, a number or a text; null if there are none. NaN is left
    out.
    """
    return _Max((checked_argument("max_", of),))


def first(of: Argument) -> AggregateFunction:
    """Return the first value that is not null, in the order of the records (not of
    their timestamps). Of merged sessions, that of the earlier session.
    """
    return _First((checked_argument("first", of),))


def last(of: Argument) -> AggregateFunction:
    """Return the last value that is not null, in the order of the records (not of their
    timestamps).
    """
    return _Last((checked_argument("last", of),))


def count_distinct(of: Argument) -> AggregateFunction:
    """Count the different values: exactly up to 256, then with a standard error of
    1.6 %.
    """
    return _CountDistinct((checked_argument("count_distinct", of),))


def quantile(
    of: Argument,
    *shares: float,
    accuracy: float = 0.01,
) -> AggregateFunction:
    """Return the number that a share of the numbers does not exceed: `quantile("ms",
    0.99)`. Of several shares, `quantile("ms", 0.5, 0.99)`, return a list.

    `accuracy`: the largest relative error, from 0.001 to 0.2.

    Raises:
        TopologyError: no share, or one outside of 0 to 1; or another accuracy.
    """
    argument = checked_argument("quantile", of)
    if not shares or not all(_between(0, share, 1) for share in shares):
        raise TopologyError(
            f'quantile: give shares from 0 to 1, as in quantile("ms", 0.99), not {", ".join(map(repr, shares)) or "none"}'
        )
    if not _between(0.001, accuracy, 0.2):
        raise TopologyError(
            f"quantile: accuracy= is a share from 0.001 to 0.2, not {accuracy!r}"
        )
    return _Quantile((argument,), tuple(map(float, shares)), float(accuracy))


def top_(
    by: Argument,
    n: int,
    *,
    of: Argument | None = None,
) -> AggregateFunction:
    """Return the `n` largest values, the largest first; with `of=`, pairs of them and
    of another value of their records: `top_("amount", 3, of="product")`.

    Of equal values, that of the earlier record comes first, and stays.

    Raises:
        TopologyError: `n` is not from 1 to 10,000.
    """
    if type(n) is not int or not 1 <= n <= 10_000:
        raise TopologyError(f"top_: n is a whole number from 1 to 10,000, not {n!r}")
    largest = checked_argument("top_", by)
    if of is None:
        return _Top((largest,), n)
    return _TopPairs((largest, checked_argument("top_", of)), n)


def checked_argument(function: str, of: Any) -> Callable[..., Any]:
    """Return the argument of an aggregate, if it is one.

    Raises:
        TopologyError: it is no name, expression or function.
    """
    if isinstance(of, str):
        return field(of)
    read = of.arguments if isinstance(of, Expression) else frozenset()
    if read <= {"key", "value"} and callable(of) and (accepts(of, 1) or accepts(of, 2)):
        return of  # type: ignore[no-any-return]
    raise TopologyError(
        f'{function} takes the name of a part of the value as "amount", an expression as field("amount"), or a function '
        f"of (value) or (key, value), not {of!r}"
    )


def number_of(
    value: Any,
    where: str,
) -> int | float | None:
    """Return a value that is neither an int nor a float as a number: a truth value as 0
    or 1; null as null.

    Raises:
        TypeError: it is no number.
    """
    if value is None:
        return None
    if isinstance(value, int):  # a truth value, or a number of a class of its own
        return int(value)
    if isinstance(value, float):
        return float(value)
    raise TypeError(
        f"{where} is of numbers (int or float), not of the {type(value).__name__} {value!r:.60}"
    )


def finite_of(value: Any, where: str) -> int | float | None:
    """Return a value as a finite number; null as null.

    Raises:
        TypeError: it is no number.
        ValueError: it is NaN, infinite, or larger than any float.
    """
    number = number_of(value, where)
    if number is None or -LARGEST <= number <= LARGEST:
        return number
    raise ValueError(f"{where} is of finite numbers, not of {number}")


def takes_key(argument: Callable[..., Any]) -> bool:
    """Return whether an argument is a function of (key, value), which cannot be called
    with a value alone.
    """
    if isinstance(argument, Expression):
        return "key" in argument.arguments
    return not accepts(argument, 1)


def _added(slot: str, value: str) -> list[str]:
    return [
        f"if {value} is not None:",
        f"    {slot} = {value} if {slot} is None else {slot} + {value}",
    ]


def _counted(lines: Lines, sign: str) -> list[str]:
    total, number = lines.slots
    return [
        f"if {lines.values[0]} is not None:",
        f"    {total} {sign}= {lines.values[0]}",
        f"    {number} {sign}= 1",
    ]


def _both_counted(lines: Lines) -> list[str]:
    return [
        f"{slot} += {other}"
        for slot, other in zip(lines.slots, lines.others, strict=True)
    ]


def plain_of(value: Any, where: str) -> Scalar:
    """Return a value that a row can keep, as an object of a built-in class.

    Raises:
        TypeError: it is neither a number nor a text or truth value.
    """
    if value.__class__ in (int, float, str, bool):
        return value
    if isinstance(value, str):
        return "".join(value)  # a subclass, such as a StrEnum
    for plain in (int, float):
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(
        f"{where} keeps a number, a text or a truth value, not the {type(value).__name__} {value!r:.60}"
    )


def _ordered(
    value: Any,
    where: str,
    before: Scalar,
) -> Scalar:
    """Return a value in the form in which a row keeps it; `before`, which the row has,
    if it is NaN, which has no place in an order. `where`: the aggregate, for an error.
    """
    return plain_of(value, where) if value == value else before


def _only_quantile(spread: Spread, shares: Sequence[float]) -> float | None:
    found = spread.quantiles(shares)
    return None if found is None else found[0]


def _with_value(
    top: tuple[Any, ...],
    value: Any,
    n: int,
    where: str,
) -> tuple[Any, ...]:
    if value != value:  # NaN
        return top
    return _placed(top, plain_of(value, where), n, _itself)


def _with_pair(
    top: tuple[Any, ...],
    value: Any,
    of: Any,
    n: int,
    where: str,
) -> tuple[Any, ...]:
    if value != value:  # NaN
        return top
    kept = None if of is None else plain_of(of, where)
    return _placed(top, (plain_of(value, where), kept), n, _part)


def _both_values(
    top: tuple[Any, ...],
    others: tuple[Any, ...],
    n: int,
) -> tuple[Any, ...]:
    for other in others:
        top = _placed(top, other, n, _itself)
    return top


def _both_pairs(
    top: tuple[Any, ...],
    others: tuple[Any, ...],
    n: int,
) -> tuple[Any, ...]:
    for other in others:
        top = _placed(top, other, n, _part)
    return top


def _placed(
    top: tuple[Any, ...],
    new: Any,
    n: int,
    by: Callable[[Any], Any],
) -> tuple[Any, ...]:
    """Return the `n` largest of `top`, which descends by `by`, and a new one, which
    comes behind its equals.
    """
    at = bisect_left(top, True, key=lambda one: by(one) < by(new))
    return (*top[:at], new, *top[at:])[:n]


def _itself(value: Any) -> Any:
    return value


def _part(pair: Any) -> Any:
    return pair[0]


def _between(
    least: float,
    value: Any,
    most: float,
) -> bool:
    return type(value) in (int, float) and least <= value <= most


def _shown(argument: Callable[..., Any]) -> str:
    if isinstance(argument, field):
        return repr(argument.name)
    return repr(argument) if isinstance(argument, Expression) else name_of(argument)
