"""What the operations of expressions return, for any values: the reference for the code
of the loops and for Spark SQL.

A value is null, a boolean, an integer, a float or a text; anything else is *other*,
which an expression can only pass on. Each operation takes any value and never raises.

Invariant: the result is null where an operand is null or has another kind, an integer
leaves 64 bits, a divisor is zero, or a text is not what a cast reads. Source: Spark
SQL's `try_` functions, comparisons of `NaN` and `-0.0`, and the sign of `%`.
Turned down: errors for wrong values (one odd record would stop the partition, and SQL
evaluates in another order than Python, so it would fail other records); casts that trim
or round (two engines agree on few of them).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, Final, Literal, TypeAlias

Kind: TypeAlias = Literal["boolean", "int64", "float64", "text", "other"]
"""What a value is if it is not null."""

LEAST: Final = -(1 << 63)
MOST: Final = (1 << 63) - 1
SPACES: Final = " \t\n\r"
"""What `trim` removes."""

_WHOLE: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DECIMAL: Final = re.compile(
    r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    re.ASCII,
)
_MOST_DIGITS: Final = 400
"""The longest text that is read as a number."""
TIME: Final = (
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[T ]([01][0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9])(?:\.([0-9]{1,9}))?)?"
    r"(Z|[+-](?:0[0-9]|1[0-4]):?[0-5][0-9])?)?"
)
"""Groups: the date, hour, minute, second, fraction, and offset from UTC."""
_TIME: Final = re.compile(TIME, re.ASCII)
_EPOCH: Final = date(1970, 1, 1).toordinal()
_PLAIN: Final = frozenset({type(None), bool, int, float, str})
_NUMBERS: Final = frozenset({int, float})
_WITHOUT_PARTS: Final = frozenset(
    {*_PLAIN, complex, bytes, bytearray, list, tuple, set}
)


def part(
    value: Any,
    name: str,
) -> Any:
    """Return the part of a value that has a name: an item of a dict, or an attribute.
    Null if a dict has no such item, or the value is null, a scalar or a list.

    Raises:
        AttributeError: an object has no such attribute. Its class says which it has, so
        the program is wrong, not the record.
    """
    if isinstance(value, Mapping):
        return value.get(name)
    return None if value.__class__ in _WITHOUT_PARTS else getattr(value, name)


def plain(value: Any) -> Any:
    """Return a value of a subclass, as of a StrEnum, as a value of the built-in class."""
    if value.__class__ in _PLAIN:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else value


def boolean(value: Any) -> bool | None:
    """Return a boolean as it is, null for anything else."""
    return value if value is True or value is False else None


def number(value: Any) -> int | float | None:
    """Return an integer or a float as it is, null for anything else."""
    found = plain(value)
    known = found.__class__ in _NUMBERS
    return found if known else None


def text(value: Any) -> str | None:
    """Return a text as it is, null for anything else."""
    found: Any = plain(value)
    return found if found.__class__ is str else None


def in_range(whole: int) -> int | None:
    """Return an integer of 64 bits, null for a larger one."""
    return whole if LEAST <= whole <= MOST else None


def _as_float(value: int | float) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None


def _alike(
    x: Any,
    y: Any,
) -> tuple[Any, Any] | None:
    """Return two numbers as two integers, or else as two floats. None: one is no
    number.
    """
    x = number(x)
    y = number(y)
    if x is None or y is None:
        return None
    if x.__class__ is y.__class__:
        return x, y
    x = _as_float(x)
    y = _as_float(y)
    return None if x is None or y is None else (x, y)


def _floats(
    x: Any,
    y: Any,
) -> tuple[float, float] | None:
    """Return two numbers as floats. None: one is no number."""
    pair = _alike(x, y)
    if pair is None:
        return None
    x = _as_float(pair[0])
    y = _as_float(pair[1])
    return None if x is None or y is None else (x, y)


def _result(value: Any) -> Any:
    return in_range(value) if value.__class__ is int else value


def add(
    x: Any,
    y: Any,
) -> int | float | None:
    """Return the sum: an integer of two integers, else a float."""
    pair = _alike(x, y)
    return None if pair is None else _result(pair[0] + pair[1])


def subtract(
    x: Any,
    y: Any,
) -> int | float | None:
    """Return the difference: an integer of two integers, else a float."""
    pair = _alike(x, y)
    return None if pair is None else _result(pair[0] - pair[1])


def multiply(
    x: Any,
    y: Any,
) -> int | float | None:
    """Return the product: an integer of two integers, else a float."""
    pair = _alike(x, y)
    return None if pair is None else _result(pair[0] * pair[1])


def divide(
    x: Any,
    y: Any,
) -> float | None:
    """Return the quotient of two numbers as floats. Null if the divisor is zero."""
    pair = _floats(x, y)
    return None if pair is None or pair[1] == 0 else pair[0] / pair[1]


def remainder(
    x: Any,
    y: Any,
) -> int | float | None:
    """Return what a division that rounds toward zero leaves: its sign is the
    dividend's. Null if the divisor is zero.
    """
    pair = _alike(x, y)
    if pair is None or pair[1] == 0:
        return None
    x, y = pair
    if x.__class__ is int:
        left = abs(x) % abs(y)
        return in_range(-left if x < 0 else left)
    return math.nan if math.isinf(x) else math.fmod(x, y)


def negative(x: Any) -> int | float | None:
    """Return a number with the other sign."""
    x = number(x)
    return None if x is None else _result(-x)


def order(
    x: Any,
    y: Any,
) -> int | None:
    """Return -1, 0 or 1: how two values compare. Null if they have no order.

    NaN equals itself and is larger than any other number; -0.0 equals 0.0. An integer
    is compared with a float as a float. Texts are ordered by code points.
    """
    x = plain(x)
    y = plain(y)
    if x.__class__ is y.__class__ and x.__class__ in (bool, int, str):
        return int(x > y) - int(x < y)
    pair = _floats(x, y)
    if pair is None:
        return None
    x, y = pair
    if x != x or y != y:
        return int(x != x) - int(y != y)
    return int(x > y) - int(x < y)


def equal(
    x: Any,
    y: Any,
) -> bool | None:
    """Return whether two values are equal. Null if they are of different kinds."""
    found = order(x, y)
    return None if found is None else found == 0


def unequal(
    x: Any,
    y: Any,
) -> bool | None:
    """Return whether two values differ. Null if they are of different kinds."""
    found = order(x, y)
    return None if found is None else found != 0


def less(
    x: Any,
    y: Any,
) -> bool | None:
    """Return whether x is below y. Null if they have no order."""
    found = order(x, y)
    return None if found is None else found < 0


def at_most(
    x: Any,
    y: Any,
) -> bool | None:
    """Return whether x is not above y. Null if they have no order."""
    found = order(x, y)
    return None if found is None else found <= 0


def greater(
    x: Any,
    y: Any,
) -> bool | None:
    """Return whether x is above y. Null if they have no order."""
    found = order(x, y)
    return None if found is None else found > 0


def at_least(
    x: Any,
    y: Any,
) -> bool | None:
    """Return whether x is not below y. Null if they have no order."""
    found = order(x, y)
    return None if found is None else found >= 0


def to_int64(value: Any) -> int | None:
    """Return a value as an integer: a float without its fraction, a text of digits with
    or without a sign.
    """
    value = plain(value)
    if value.__class__ is bool:
        return int(value)
    if value.__class__ is int:
        return in_range(value)
    if value.__class__ is float:
        return in_range(int(value)) if math.isfinite(value) else None
    if _reads(_WHOLE, value):
        return in_range(int(value))
    return None


def to_float64(value: Any) -> float | None:
    """Return a value as a float: a text if it is a decimal number."""
    value = plain(value)
    if value.__class__ is bool or value.__class__ is int:
        return _as_float(value)
    if value.__class__ is float:
        return float(value)
    return float(value) if _reads(_DECIMAL, value) else None


def to_text(value: Any) -> str | None:
    """Return a value as a text: `true`, `-12`, and a float by its shortest digits, as
    Python writes it.
    """
    value = plain(value)
    if value.__class__ is bool:
        return "true" if value else "false"
    if value.__class__ is int:
        return None if in_range(value) is None else str(value)
    if value.__class__ is float:
        return repr(value)
    return text(value)


def to_boolean(value: Any) -> bool | None:
    """Return a value as a boolean: a number if it is not zero, the texts `true` and
    `false`.
    """
    value = plain(value)
    if value.__class__ is str:
        return {"true": True, "false": False}.get(value)
    known = value.__class__ in (bool, int, float)
    return value != 0 if known else None


def _reads(
    pattern: re.Pattern[str],
    value: Any,
) -> bool:
    return (
        value.__class__ is str
        and len(value) <= _MOST_DIGITS
        and pattern.fullmatch(value) is not None
    )


def lower(value: Any) -> str | None:
    """Return a text in lower case."""
    value = text(value)
    return None if value is None else value.lower()


def upper(value: Any) -> str | None:
    """Return a text in upper case."""
    value = text(value)
    return None if value is None else value.upper()


def trim(value: Any) -> str | None:
    """Return a text without spaces, tabs and line ends around it."""
    value = text(value)
    return None if value is None else value.strip(SPACES)


def length(value: Any) -> int | None:
    """Return the number of code points of a text."""
    value = text(value)
    return None if value is None else len(value)


def substring(
    value: Any,
    start: int,
    count: int | None,
) -> str | None:
    """Return `count` code points of a text from `start` on, which begins at 0; all of
    them if `count` is None.
    """
    whole = text(value)
    if whole is None:
        return None
    return whole[start:] if count is None else whole[start : start + count]


def concat(*values: Any) -> str | None:
    """Return texts as one text. Null if any of them is none."""
    texts = [text(value) for value in values]
    return None if None in texts else "".join(filter(None, texts))


def starts_with(
    value: Any,
    prefix: Any,
) -> bool | None:
    """Return whether a text begins with another."""
    value = text(value)
    prefix = text(prefix)
    return None if value is None or prefix is None else value.startswith(prefix)


def ends_with(
    value: Any,
    suffix: Any,
) -> bool | None:
    """Return whether a text ends with another."""
    value = text(value)
    suffix = text(suffix)
    return None if value is None or suffix is None else value.endswith(suffix)


def contains(
    value: Any,
    piece: Any,
) -> bool | None:
    """Return whether a text has another in it."""
    value = text(value)
    piece = text(piece)
    return None if value is None or piece is None else piece in value


def floor_time(
    value: Any,
    size_ms: int,
) -> int | None:
    """Return the latest multiple of `size_ms` that is not after an integer."""
    value = number(value)
    if value.__class__ is not int:
        return None
    return in_range(value - value % size_ms)


def parse_time(value: Any) -> int | None:
    """Return the milliseconds since 1970 of a text such as `2026-11-29`,
    `2026-11-29T12:30` or `2026-11-29T12:30:15.250+01:00`. A text without an offset is
    in UTC; what is below a millisecond is cut off.
    """
    found = None if (value := text(value)) is None else _TIME.fullmatch(value)
    if found is None:
        return None
    day, hour, minute, second, fraction, offset = found.groups()
    try:
        days = date.fromisoformat(day).toordinal() - _EPOCH
    except ValueError:
        return None
    minutes = (days * 24 + int(hour or 0)) * 60 + int(minute or 0)
    if offset is not None and offset != "Z":
        away = int(offset[1:3]) * 60 + int(offset[-2:])
        minutes -= away if offset[0] == "+" else -away
    millisecond = int((fraction or "")[:3].ljust(3, "0"))
    return (minutes * 60 + int(second or 0)) * 1000 + millisecond


COMPARE: Final[Mapping[str, Callable[[Any, Any], bool | None]]] = {
    "==": equal,
    "!=": unequal,
    "<": less,
    "<=": at_most,
    ">": greater,
    ">=": at_least,
}
ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], int | float | None]]] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "%": remainder,
}
CAST: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int64": to_int64,
    "float64": to_float64,
    "text": to_text,
    "boolean": to_boolean,
}
