"""The interface between a store and its rows of numbers in native memory
(`native/src/rows.rs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from coopstreams.topology.columns import Headers, Int64s

Updates: TypeAlias = tuple[list[bytes], list[bytes | None], list[int]]
"""Keys, serialised values and timestamps of rows."""
Added: TypeAlias = tuple[int, int, int, int, list[Exception], Updates | None]
"""The result of adding records: the operator time after them; how many had no key, had
no value, or were late; the reducer's error for the last one; and the updates of rows,
in order, if requested.
"""
Load: TypeAlias = Callable[[bytes], bytes | None]


class NativeRows(Protocol):
    """The rows of one store, in native memory. One thread.

    Shape: store keys are plain keys, or window keys; a place is the key group (1 byte)
    and the store key.
    """

    row_bytes: int
    """The length of a row in the database."""
    odd: bool
    """Whether some value is no number of the serde: records are then added one by one,
    to find the one that fails.
    """

    def add(  # noqa: PLR0913
        self,
        keys: Sequence[bytes | None],
        values: Sequence[Any] | None,
        timestamps: Int64s,
        before: Int64s | None,
        operator_time: int,
        load: Load,
        reduce: Callable[[Any, Any], Any] | None,
        *,
        drops_null_values: bool = False,
        headers: Sequence[Headers | tuple[()]] | None = None,
        updates: bool = False,
    ) -> Added:
        """Add records, as `NativeTable.add`. `load` returns timestamp (8 bytes) and
        value of a place, or None.
        """
        ...

    def row(self, key: bytes) -> tuple[Any, int, bytes | None] | None:
        """Return value, timestamp and stored bytes of a row; None: it is not in the
        buffer.
        """

    def keys(self) -> list[bytes]:
        """Return the store keys of the buffer."""
        ...

    def dirty(
        self,
    ) -> list[tuple[bytes, Any, int, bytes | None, Headers | tuple[()] | None]]:
        """Return the changed rows in the order of their first change, and forget their
        headers.
        """
        ...

    def updates(self) -> Updates | None:
        """Return the changed rows, serialised, in the order of their first change;
        None: some value needs Python.
        """

    def stray(self, first: int, last: int) -> bytes | None:
        """Return the first place of a changed row outside of these key groups."""

    def freeze(
        self, encode: Callable[[bytes, Any], bytes], segment_ms: int, horizon: int
    ) -> tuple[Updates, list[tuple[int | None, list[bytes], list[bytes | None]]]]:
        """Return the changelog of the changed rows, which are clean then, and places
        and rows of each time segment.
        """
        ...

    def clear(self) -> None:
        """Forget all rows."""

    def expire(self, horizon: int) -> None:
        """Forget the windows that start before this time; those that changed, after the
        next commit.
        """

    def trim(self, excess: int) -> None:
        """Evict this many clean rows."""

    def size_bytes(self) -> int:
        """Return the memory of the rows."""
        ...

    def __len__(self) -> int: ...
