"""Reads the signatures of user functions without evaluating annotations: the names in
them may be imported only for type checkers.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable


def signature_of(function: Callable[..., object]) -> inspect.Signature:
    """Return the signature of a function.

    Raises:
        TypeError, ValueError: it has none, as some builtins.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.STRING)
    return inspect.signature(function)


def accepts(function: Callable[..., object], arguments: int) -> bool:
    """Return whether a function can be called with that many positional arguments. One
    without a signature can be called with one.
    """
    try:
        signature = signature_of(function)
    except (TypeError, ValueError):
        return arguments == 1
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True
