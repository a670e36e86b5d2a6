"""Calls of functions that take a batch as Arrow columns, and give one back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def arrow_columns(values: list[Any]) -> pa.Array | pa.RecordBatch:
    """Return dicts as a record batch with a column for each field, other values as an
    array.

    Types are inferred from all values of a batch, so integers become floats if other
    values of the column are floats.
    """
    import pyarrow as pa

    array = pa.array(values)
    return (
        pa.RecordBatch.from_struct_array(array)
        if pa.types.is_struct(array.type)
        else array
    )


def arrow_values(answer: Any) -> Any:
    """Return the values of an Arrow array, record batch or table as a list. Any other
    object is returned unchanged.
    """
    return answer.to_pylist() if hasattr(answer, "to_pylist") else answer


def called_with_arrow(function: Callable[[Any], Any], values: list[Any]) -> Any:
    """Call a function with the values as Arrow columns and return its result as a
    list.
    """
    return arrow_values(function(arrow_columns(values)))


async def awaited_with_arrow(
    function: Callable[[Any], Awaitable[Any]],
    values: list[Any],
) -> Any:
    """Call a coroutine function with the values as Arrow columns and return its result
    as a list.
    """
    return arrow_values(await function(arrow_columns(values)))
