"""Checks of user functions while the topology is built: whether they take the arguments
they will be called with.

Invariant: a function that passes takes its arguments; its result is not checked. Turned
down: finding out at the first record (the program is running by then, and the error
names a task instead of a line).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from coopstreams.topology.calls import is_coroutine_function, name_of
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.signatures import signature_of

F = TypeVar("F", bound=Callable[..., object])


def checked(where: str, function: F, *arguments: str) -> F:
    """Return the function if it can be called with these positional arguments.

    Raises:
        TopologyError: it is not callable, takes other arguments, or is a coroutine
        function; the message names the operator and the line.
    """
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


def _written(signature: inspect.Signature) -> str:
    if sys.version_info >= (3, 14):
        return signature.format(quote_annotation_strings=False)
    return str(signature)


def _calls(where: str, arguments: Sequence[str]) -> str:
    return f"{where} calls {', '.join(arguments).join('()')}"
