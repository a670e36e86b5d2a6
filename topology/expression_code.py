"""Writes the Python source of expressions: one Python expression, without a call of a
function where the values are of the usual classes.

The code of an operation tests the classes of its operands and computes at once; for
anything else (null, subclasses, an integer that leaves 64 bits) it calls the function
of `expression_values`. A generated loop contains the code itself; `compiled` makes a
function of it, which is what a call of an expression runs. So there is one definition.

Invariant: the code of an operand appears once in the code of an operation, so code
grows as its expression. Turned down: classes that interpret an expression (a second
definition, and a call for each operation).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from coopstreams.topology.expression_values import (
    ARITHMETIC,
    COMPARE,
    LEAST,
    MOST,
    SPACES,
    part,
)
from coopstreams.topology.generated_source import executed

_MOST_LEVELS = 12
"""The deepest nesting that is written as one Python expression: CPython's parser limits
parentheses. What is deeper is compiled as a function of its own.
"""
_EXACT = 1 << 53
"""Integers up to this size are exact as floats."""
_OPPOSITE: Final = {">": "<=", ">=": "<"}


class Operand(Protocol):
    """An expression, as far as its code needs it.

    `operands`: the expressions in it. `constant`: its value, if that is known now and
    neither null nor NaN; else None.
    """

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The expressions in it."""
        ...

    @property
    def constant(self) -> Any:
        """Its value, if that is known now."""
        ...

    def code(self, writer: Code) -> str:
        """Return Python code whose value is the expression's."""
        ...

    def truth(self, writer: Code) -> str:
        """Return Python code that is truthy exactly if the expression is true."""
        ...


class TooDeepError(Exception):
    """An expression is nested too deeply to be one Python expression."""


class Code:
    """The code of one expression while it is written.

    Shape: `names` are the variables of a record by argument (`key`, `value`,
    `aggregate`, `left`, `right`); `field_of` returns the code of a part of the value;
    `constant` returns the name of a value in the code. `deeper` returns the code of an
    operand that is nested too deeply; without it, TooDeepError is raised.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        field_of: Callable[[str], str],
        constant: Callable[[str, object], str],
        deeper: Callable[[Operand], str] | None = None,
    ) -> None:
        self.names = names
        self.field_of = field_of
        self.constant = constant
        self._deeper = deeper
        self._levels = _MOST_LEVELS
        self._variables = 0

    def of(self, operand: Operand) -> str:
        """Return the code of an operand."""
        return self._nested(operand, operand.code)

    def truth_of(self, operand: Operand) -> str:
        """Return code that is truthy exactly if an operand is true."""
        return self._nested(operand, operand.truth)

    def fresh(self) -> str:
        """Return a variable of which the code of this expression has no other use."""
        self._variables += 1
        return f"operand_{self._variables}"

    def literal(self, value: Any) -> str:
        """Return the code of a constant."""
        named = (value.__class__ is float and not math.isfinite(value)) or (
            value.__class__ is str and not value.isprintable()
        )
        return self.constant("constant", value) if named else repr(value)

    def call(self, function: Callable[..., Any], *arguments: str) -> str:
        """Return the code of a call of a function of `expression_values`."""
        name = self.constant(f"{function.__name__}_of", function)
        return f"{name}({', '.join(arguments)})"

    def part(
        self,
        of: str,
        name: str,
    ) -> str:
        """Return the code of a part of a value."""
        value = self.fresh()
        literal = self.literal(name)
        return (
            f"({value}.get({literal}) if ({value} := {of}).__class__ is dict "
            f"else {self.call(part, value, literal)})"
        )

    def _nested(
        self,
        operand: Operand,
        write: Callable[[Code], str],
    ) -> str:
        if not self._levels and operand.operands:
            if self._deeper is None:
                raise TooDeepError
            return self._deeper(operand)
        self._levels -= 1
        try:
            return write(self)
        finally:
            self._levels += 1


class Pair(NamedTuple):
    """Two operands in code.

    `x`, `y`: the variables of both, or the constant in the place of `y`. `same`: the
    begin of a test of their class, to which ` is int` is added; it assigns the
    variables. `constant`: the second operand, if it is known now.
    """

    x: str
    y: str
    same: str
    constant: Any

    @property
    def both(self) -> str:
        """The code of the class of both, once they are assigned."""
        known = f"{self.x}.__class__"
        return known if self.constant is not None else f"{known} is {self.y}.__class__"


def _pair(
    writer: Code,
    one: Operand,
    other: Operand,
) -> Pair:
    x = writer.fresh()
    first = f"({x} := {writer.of(one)}).__class__"
    if other.constant is not None:
        return Pair(x, writer.literal(other.constant), first, other.constant)
    y = writer.fresh()
    return Pair(x, y, f"{first} is ({y} := {writer.of(other)}).__class__", None)


def arithmetic(
    writer: Code,
    sign: str,
    one: Operand,
    other: Operand,
) -> str:
    """Return the code of an operation on two numbers."""
    pair = _pair(writer, one, other)
    operation = f"{pair.x} {sign} {pair.y}"
    slow = writer.call(ARITHMETIC[sign], pair.x, pair.y)
    if sign == "/":
        return _chosen(operation, _divides(pair), pair, slow)
    if sign == "%":
        return _chosen(operation, _leaves(pair), pair, slow)
    if pair.constant.__class__ is float:
        real = f"{pair.same} is float or {_is_exact(pair.x)}"
        return f"({operation} if {real} else {slow})"
    result = writer.fresh()
    fits = f"{pair.same} is int and {LEAST} <= ({result} := {operation}) <= {MOST}"
    return f"({result} if {fits} else {operation} if {pair.both} is float else {slow})"


def _chosen(
    operation: str,
    test: str | None,
    pair: Pair,
    slow: str,
) -> str:
    if test is None:
        # A class is true: this assigns the operands.
        return f"({slow} if {pair.same} else None)"
    return f"({operation} if {test} else {slow})"


def _is_exact(x: str) -> str:
    return f"{x}.__class__ is int and {-_EXACT} <= {x} <= {_EXACT}"


def _divides(pair: Pair) -> str | None:
    """Return the test that Python divides two numbers as floats would be divided; None
    if it never does.
    """
    if pair.constant is None:
        whole = f"{pair.both} is int and {_is_exact(pair.x)} and {_is_exact(pair.y)}"
        return f"({pair.same} is float or {whole}) and {pair.y}"
    large = pair.constant.__class__ is int and abs(pair.constant) > _EXACT
    if pair.constant == 0 or large:
        return None
    return f"{pair.same} is float or {_is_exact(pair.x)}"


def _leaves(pair: Pair) -> str | None:
    """Return the test that the signs of all kinds of remainder are the same; None if
    they never are.
    """
    constant = pair.constant
    if constant is not None and (constant.__class__ is float or constant <= 0):
        return None
    if constant is not None:
        return f"{pair.same} is int and {pair.x} >= 0"
    # Both may be larger than 64 bits: JSON has such integers.
    return f"{pair.same} is int and {MOST} >= {pair.x} >= 0 < {pair.y}"


def comparison(
    writer: Code,
    sign: str,
    one: Operand,
    other: Operand,
) -> str:
    """Return the code of a comparison of two values."""
    pair = _pair(writer, one, other)
    x = pair.x
    y = pair.y
    slow = writer.call(COMPARE[sign], x, y)
    told = f"{x} {sign} {y}"
    if pair.constant is None:
        # NaN has an order of its own.
        real = f"{x}.__class__ is float and {x} == {x} and {y} == {y}"
        kinds = f"({x}.__class__ is int or {x}.__class__ is str or {real})"
        return f"({told} if {pair.same} and {kinds} else {slow})"
    same = f"{pair.same} is {pair.constant.__class__.__name__}"
    if pair.constant.__class__ is int and abs(pair.constant) <= _EXACT:
        same += f" or {x}.__class__ is float"
    if pair.constant.__class__ in (int, float) and sign in _OPPOSITE:
        told = f"not {x} {_OPPOSITE[sign]} {y}"  # NaN is larger than any number
    return f"({told} if {same} else {slow})"


_OF_ONE: Final[Mapping[str, tuple[str, str]]] = {
    "lower": ("str", "{x}.lower()"),
    "upper": ("str", "{x}.upper()"),
    "trim": ("str", f"{{x}}.strip({SPACES!r})"),
    "length": ("str", "len({x})"),
}
_OF_TWO: Final[Mapping[str, str]] = {
    "starts_with": "{x}.startswith({y})",
    "ends_with": "{x}.endswith({y})",
    "contains": "{y} in {x}",
}


def application(
    writer: Code,
    function: Callable[..., Any],
    operands: Sequence[Operand],
    options: Sequence[int | None],
) -> str:
    """Return the code of a function of `expression_values`, applied to operands. The
    options are the last arguments.
    """
    name = function.__name__
    if name in _OF_TWO:
        pair = _pair(writer, *operands)
        fast = _OF_TWO[name].format(x=pair.x, y=pair.y)
        slow = writer.call(function, pair.x, pair.y)
        return f"({fast} if {pair.same} is str else {slow})"
    if name in _OF_ONE:
        x = writer.fresh()
        kind, fast = _OF_ONE[name]
        test = f"({x} := {writer.of(operands[0])}).__class__ is {kind}"
        return f"({fast.format(x=x)} if {test} else {writer.call(function, x)})"
    arguments = [*map(writer.of, operands), *map(repr, options)]
    return writer.call(function, *arguments)


def positions(
    arguments: Collection[str],
    count: int,
) -> dict[str, int]:
    """Return where the arguments of an expression are among `count` arguments.

    Shape: a function is called with `(value)`, `(key, value)`, `(left, right)` or
    `(key, left, right)`; a reducer with `(aggregate, value)`, and an aggregator with
    `(key, value, aggregate)`.
    """
    last = count - 1
    known = {"key": 0, "value": last, "left": last - 1, "right": last, "aggregate": 0}
    if "aggregate" in arguments and count > 2:
        known.update(value=last - 1, aggregate=last)
    return {argument: known[argument] for argument in sorted(arguments)}


def compiled(
    operand: Operand,
    places: Mapping[str, int],
) -> Callable[..., Any]:
    """Return a function of `(*record)` that returns the value of an expression.

    `places`: where its arguments are in the record.
    """
    known: dict[str, Any] = {}

    def constant(
        label: str,
        value: object,
    ) -> str:
        name = label
        while name in known and known[name] is not value:
            name += "_"
        known[name] = value
        return name

    inner_functions: dict[int, Callable[..., Any]] = {}

    def deeper(inner: Operand) -> str:
        # The code is written twice, but compiled once: else levels would multiply.
        if id(inner) not in inner_functions:
            inner_functions[id(inner)] = compiled(inner, places)
        return f"{constant('deeper', inner_functions[id(inner)])}(*record)"

    def code(
        field_of: Callable[[str], str],
    ) -> str:
        writer = Code({name: name for name in places}, field_of, constant, deeper)
        return writer.of(operand)

    constant("part_of", part)
    of_dict = code(lambda name: f"value.get({name!r})")
    of_any = code(lambda name: f"part_of(value, {name!r})")
    lines = ["def evaluate(*record):"]
    lines += [f"    {name} = record[{at}]" for name, at in places.items()]
    if of_dict != of_any:
        lines.append(f"    if value.__class__ is dict: return {of_dict}")
    lines.append(f"    return {of_any}")
    names = executed("expression", "\n".join([*lines, ""]), known)
    function: Callable[..., Any] = names["evaluate"]
    return function
