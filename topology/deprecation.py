"""How a public name goes: for one release it works, and warns.

Keep the old function or class beside what replaces it, and mark it `@deprecated`; name
it in docs/changelog.md under Deprecated, and in the next release under Removed.
`tests/topology/test_deprecation.py` fails when one has stayed longer.

The warning is a `FutureWarning`, because Python hides a `DeprecationWarning` in every
module but the one that was started, and `coopstreams run` imports the program.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])


def deprecated(since: str, instead: str) -> Callable[[_F], _F]:
    """Return a decorator of a function: each place that calls it is warned once.

    `since`: the release, as 0.2, that warns; the next one is without it. `instead`:
    what to do, a sentence without its full stop.
    """

    def mark(function: _F) -> _F:
        message = (
            f"{function.__qualname__} is deprecated since coopstreams {since}, and the next release is without it. "
            f"{instead}."
        )

        @wraps(function)
        def warning(*arguments: Any, **named: Any) -> Any:
            warnings.warn(message, FutureWarning, stacklevel=2)
            return function(*arguments, **named)

        return cast(_F, warning)

    return mark
