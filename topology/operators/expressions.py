"""Generates Python expressions for fields and conditions, so that a loop over records
does not call them.

If a JSON value is a dict, a part is an item of it: two instructions in place of two
calls *(measured: 28 ns and 209 ns)*. If parts of the values are columns, a part is a
variable. For any other value, the field or the condition is called, as any user
function.

Invariant: an expression has the value of the call, and raises what the call would
raise. Turned down: attributes of typed values (a Struct's class is known only at run
time, and `getattr` costs as much as the call).
"""

from __future__ import annotations

from collections.abc import Callable

from coopstreams.topology.fields import (
    Both,
    Comparison,
    Condition,
    Either,
    Not,
    field,
)
from coopstreams.topology.operators.codegen import Unit

_MOST_LEVELS = 20
"""The deepest nesting of a condition that is translated: CPython's parser limits
parentheses.
"""

Part = Callable[[str], str]
"""A function that returns the code of a part, given the part's name."""


def expression(
    unit: Unit,
    condition: Condition,
    part: Part,
) -> str | None:
    """Return the code of a field or a condition, or None if it is nested too deeply or
    of an unknown class.
    """
    return (
        part(condition.name)
        if type(condition) is field
        else _truth(unit, condition, part, _MOST_LEVELS)
    )


def of_value(
    unit: Unit,
    condition: Condition,
    value: str,
    call: str,
) -> str:
    """Return the code of a field or a condition for the value in the variable `value`.
    `call`: the code that calls the field or condition, for values that are not dicts.
    """

    def part(name: str) -> str:  # the repr of a StrEnum is not code
        return f"{value}[{repr(name) if type(name) is str else unit.constant('name', name)}]"

    code = expression(unit, condition, part)
    return (
        call if code is None else f"({code} if {value}.__class__ is dict else {call})"
    )


def _truth(
    unit: Unit,
    condition: Condition,
    part: Part,
    levels: int,
) -> str | None:
    """Return code whose result is True or False. None: the condition is nested more
    than `levels` deep, or of an unknown class.

    CPython removes the `not not` where the code is a test.
    """
    if not levels:
        return None
    if type(condition) is field:
        return f"not not {part(condition.name)}"
    if type(condition) is Comparison:
        constant = unit.constant("constant", condition.constant)
        return f"not not {part(condition.part.name)} {condition.comparing} {constant}"
    if type(condition) is Not:
        one = _truth(unit, condition.one, part, levels - 1)
        return None if one is None else f"not {one}"
    if isinstance(condition, Both | Either):
        word = "and" if isinstance(condition, Both) else "or"
        parts = [
            _truth(unit, each, part, levels - 1)
            for each in _chain(condition, type(condition))
        ]
        return None if None in parts else f"({f' {word} '.join(filter(None, parts))})"
    return None


def _chain(condition: Condition, of: type[Both | Either]) -> list[Condition]:
    """Return the conditions of `a & b & c`, which Python nests as `(a & b) & c`."""
    found: list[Condition] = []
    while type(condition) is of:
        found.append(condition.other)
        condition = condition.one
    return [condition, *reversed(found)]
