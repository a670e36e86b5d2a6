"""Converts batches to and from Arrow columns, for the functions of `map_batches(f,
arrow=True)`.

Invariant: the function gets the values of the list, as far as columns hold them: a type
is that of all values of a batch, so whole numbers beside fractions are fractions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def columns_of(values: list[Any]) -> pa.Array | pa.RecordBatch:
    """Return dicts as a record batch with a column for each field, other values as an
    array. Types are inferred.
    """
    import pyarrow as pa

    array = pa.array(values)
    return (
        pa.RecordBatch.from_struct_array(array)
        if pa.types.is_struct(array.type)
        else array
    )


def listed(answer: Any) -> Any:
    """Return the values of an Arrow array, record batch or table as a list; anything
    else as it is.
    """
    return answer.to_pylist() if hasattr(answer, "to_pylist") else answer


def called(function: Callable[[Any], Any], values: list[Any]) -> Any:
    """Call a function with columns; return its values."""
    return listed(function(columns_of(values)))


async def awaited(function: Callable[[Any], Awaitable[Any]], values: list[Any]) -> Any:
    """Call a coroutine function with columns; return its values."""
    return listed(await function(columns_of(values)))
