"""Writes expressions into a generated loop, so that it does not call them.

If a JSON value is a dict, a part is an item of it; if parts of the values are columns,
a part is a variable. For any other value the expression is called, as any user
function. `expression_code` writes the code, whose parts come from here.

Invariant: the code has the value of the call, and raises what the call would raise.
Turned down: attributes of typed values (a Struct's class is known only at run time, and
`getattr` costs as much as the call).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coopstreams.topology.expression_code import Code, TooDeepError
from coopstreams.topology.fields import BOOLEAN, Expression, field
from coopstreams.topology.operators.codegen import Unit

Part = Callable[[str], str]
"""A function that returns the code of a part, given the part's name."""


def expression(
    unit: Unit,
    written: Expression,
    part: Part,
    names: Mapping[str, str],
    *,
    truth: bool = False,
) -> str | None:
    """Return the code of an expression, or None if it is nested too deeply.

    `names`: the variables of its arguments. With `truth`, only the truth of the value
    counts.
    """
    if type(written) is field:
        return part(written.name)
    writer = Code(names, part, unit.constant)
    try:
        if truth and written.kinds <= BOOLEAN:
            return writer.truth_of(written)
        return writer.of(written)
    except TooDeepError:
        return None


def of_value(
    unit: Unit,
    written: Expression,
    names: Mapping[str, str],
    call: str,
    *,
    truth: bool = False,
) -> str:
    """Return the code of an expression for a record in the variables `names`.

    `call`: the code that calls the expression, for values that are not dicts.
    """
    value = names.get("value")
    bare = type(written) is field

    def part(name: str) -> str:
        literal = repr(name) if name.isprintable() else unit.constant("name", name)
        return f"{value}[{literal}]" if bare else f"{value}.get({literal})"

    code = expression(unit, written, part, names, truth=truth)
    if code is None:
        return call
    return (
        code if value is None else f"({code} if {value}.__class__ is dict else {call})"
    )
