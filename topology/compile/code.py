"""Generated code: before it is bound to a task, and bound (its functions)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coopstreams.topology.compile.operator_time import Operator
from coopstreams.topology.compile.outputs import Output
from coopstreams.topology.failures import Phase
from coopstreams.topology.stores import TableStore


@dataclass(frozen=True, slots=True)
class Compiled:
    """The code of a program for one setting of the record cache, not yet bound to a
    task.
    """

    text: str
    """The generated source, for people and tracebacks."""
    sites: tuple[tuple[Phase, str], ...]
    """Phase and node of each place where a record can fail."""
    drops: tuple[tuple[str, str], ...]
    """Node and reason of each place that drops a record.

    Shape: the reason is `null-key`, `null-value`, `late`, `timestamp`, `no-partition`,
    `not-the-latest` or `stale-answer`.
    """
    make: Callable[[Any, Mapping[str, TableStore], Mapping[str, Output]], Code]
    """Given the `program.BoundProgram` that the code calls, its stores and its outputs,
    returns the code.
    """
    operator_times: Mapping[str, tuple[str, ...]]
    """Topic to the nodes whose stream time its records advance."""
    operators: Mapping[str, Operator]
    """The nodes with a stream time, which is in the commits: some records of their
    topics may not reach them.
    """


@dataclass(frozen=True, slots=True)
class Code:
    """Generated code, closed over the stores and outputs of one task."""

    sources: Mapping[str, Callable[..., None]]
    """Topic to the function over `(keys, values, timestamps, stream_times)` and the
    columns of operator times, if any.
    """
    flushes: Sequence[Callable[[], None]]
    """The functions that forward the record caches' updates, parents before children.
    """
    dropped: list[int]
    """How many records were dropped, in the order of `Compiled.drops`."""
    reached: Mapping[str, Callable[[Sequence[int], bool], None]]
    """Topic to the function that advances the operator times of its nodes without a
    record; with True it forwards the results that are then due.
    """
    times: Mapping[str, Callable[[], list[int]]]
    """Topic to the function that returns the operator times of its nodes, up to which
    every record was processed.
    """
    observed: Callable[[], None]
    """Advances the window stores to the operator times."""
    expired: Callable[[], None]
    """Deletes the rows that have expired by the stream times of the partitions, and
    forwards the deletions.
    """
    headers_come: Callable[[], None]
    """Makes record caches keep the headers of records with the rows that they hold
    back.
    """
