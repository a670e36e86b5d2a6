"""Checks of user functions while the topology is built: whether they take the arguments they will be called with.

Invariant: a function that passes takes its arguments; its result is not checked.
Turned down: finding out at the first record (the program is running by then, and the error names a task instead of a
line).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

from coopstreams.topology.errors import TopologyError

F = TypeVar("F", bound=Callable[..., object])


def checked(where: str, function: F, *arguments: str) -> F:
    """Return the function if it can be called with these positional arguments.

    Raises:
        TopologyError: not callable, takes other arguments, or is a coroutine function; names the operator and the line.
    """
    called = f"{where} calls {', '.join(arguments).join('()')}"
    if not callable(function):
        raise TopologyError(f"{called}: {function!r} cannot be called. Give it a function.")
    if inspect.iscoroutinefunction(function):
        raise TopologyError(
            f"{called}: {_described(function)} is a coroutine function, which nobody awaits there. Use `def`."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return function  # some builtins have no signature
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TopologyError(
            f"{called}: {_described(function)} takes {signature}. Write "
            f"`{' '.join(['lambda', ', '.join(arguments)]).strip()}: ...`"
        ) from error
    return function


def _described(function: Callable[..., object]) -> str:
    name = getattr(function, "__qualname__", repr(function))
    code = getattr(function, "__code__", None)
    return name if code is None else f"{name} (line {code.co_firstlineno} of {code.co_filename})"
