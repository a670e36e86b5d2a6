"""`field("amount")`: a part of a value, as a function whose meaning can be read.

It is called like any other function; whoever looks at it (a native plan of a backfill) knows what it returns without calling it.

Turned down: expressions with operators (a second language beside Python, of which a backfill could translate little).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class field:  # noqa: N801 used as a function
    """Return the part of a value that has this name: `map_values(field("amount"))`, `select_key(field("carrier"))`.

    Shape: called with `(value)` or `(key, value)`; a dict's item, or the attribute of a typed value.

    Raises:
        KeyError, AttributeError: the value has no such part; as any function that raises, it fails the record.
    """

    name: str

    def __call__(self, *record: Any) -> Any:
        """Return the part of the last argument."""
        value = record[-1]
        return value[self.name] if isinstance(value, Mapping) else getattr(value, self.name)
