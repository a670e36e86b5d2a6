"""Generated code that is bound to a task: the functions by which a program runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    """Generated code, closed over the stores and outputs of one task."""

    sources: Mapping[str, Callable[..., None]]
    """Topic to the function over `(keys, values, timestamps, stream_times)` and, if there are any, the columns of
    operator times.
    """
    flushes: Sequence[Callable[[], None]]
    """Forward the updates that the record caches hold, parents before children."""
    dropped: list[int]
    """How many records were dropped, in the order of `Compiled.drops`."""
    reached: Mapping[str, Callable[[Sequence[int], bool], None]]
    """Topic to the function that advances the operator times of its nodes without a record, and with True forwards what
    is then due.
    """
    observed: Callable[[], None]
    """Advance the window stores to the operator times."""
    expired: Callable[[], None]
    """Delete the rows that have expired by the stream times of the partitions, and forward the deletions."""
    headers_come: Callable[[], None]
    """From now on, keep the headers of records with the rows that record caches hold back."""
