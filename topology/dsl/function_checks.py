"""Checks of user functions while the topology is built: whether they take the arguments
they will be called with.

Invariant: a function that passes takes its arguments; its result is not checked. Turned
down: finding out at the first record (the program is running by then, and the error
names a task instead of a line).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from coopstreams.topology.calls import is_coroutine_function, name_of
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.fields import Expression
from coopstreams.topology.signatures import signature_of

F = TypeVar("F", bound=Callable[..., object])


def checked(where: str, function: F, *arguments: str) -> F:
    """Return the function if it can be called with these positional arguments.

    Raises:
        TopologyError: it is not callable, takes other arguments, or is a coroutine
        function; the message names the operator and the line.
    """
    _check_if_expression(where, function, arguments)
    if is_coroutine_function(function):
        raise TopologyError(
            f"{_calls(where, arguments)}: {name_of(function)} is a coroutine function, and this operator does not "
            "await it. Use `def`, or an operator such as map_values_async."
        )
    return checked_async(where, function, *arguments)


def checked_async(where: str, function: F, *arguments: str) -> F:
    """Return the function, which may be a coroutine function, if it can be called with
    these positional arguments.

    Raises:
        TopologyError: it is not callable, takes other arguments, or is an asynchronous
        generator; the message names the operator and the line.
    """
    called = _calls(where, arguments)
    if not callable(function):
        cure = (
            "a function"
            if arguments
            else "what makes a new one each time: a class, or `lambda: ...`"
        )
        raise TopologyError(f"{called}: {function!r} cannot be called. Give it {cure}.")
    if inspect.isasyncgenfunction(function):
        raise TopologyError(
            f"{called}: {name_of(function)} is an asynchronous generator. Return a list of its values."
        )
    try:
        signature = signature_of(function)
    except (TypeError, ValueError):
        return function  # some builtins have no signature
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TopologyError(
            f"{called}: {name_of(function)} takes {_written(signature)}. Write "
            f"`{' '.join(['lambda', ', '.join(arguments)]).strip()}: ...`"
        ) from error
    return function


_SPELLED: Final[Mapping[str, str]] = {
    "key": "key()",
    "value": "field(...) or value()",
    "aggregate": "aggregate()",
    "left": "left(...)",
    "right": "right(...)",
}
_CONDITIONS: Final = ("filter", "filter_not", "branch")


def _check_if_expression(
    where: str,
    expression: object,
    arguments: tuple[str, ...],
) -> None:
    if not isinstance(expression, Expression):
        return
    readable = _readable(arguments)
    called = _calls(where, arguments)
    if not readable:
        raise TopologyError(
            f"{called}: an expression such as {expression!r} does not read these. Write a function."
        )
    if odd := sorted(expression.arguments.difference(readable)):
        readable_as = ", ".join(_SPELLED[name] for name in readable)
        raise TopologyError(
            f"{called}: {expression!r} reads {_SPELLED[odd[0]]}, which is not here. An expression here reads "
            f"{readable_as}."
        )
    is_condition = "boolean" in expression.kinds or not expression.kinds
    if where in _CONDITIONS and not is_condition:
        raise TopologyError(
            f"{called}: {expression!r} is no condition. Compare it: ({expression!r} > 0)."
        )


def _readable(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return what an expression may read of the arguments with which it is called."""
    match arguments:
        case ("value",) | ("key", "value") | (*_, "aggregate") | ("aggregate", _):
            return arguments
        case ("value", _):
            return ("left", "right")
        case ("key", "value" | "one", _):
            return ("key", "left", "right")
        case _:
            return ()


def _written(signature: inspect.Signature) -> str:
    if sys.version_info >= (3, 14):
        return signature.format(quote_annotation_strings=False)
    return str(signature)


def _calls(where: str, arguments: Sequence[str]) -> str:
    return f"{where} calls {', '.join(arguments).join('()')}"
