"""Generated code: before it is bound to a task, bound (its functions), and the functions that it calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.compile.operator_time import Operator
from coopstreams.topology.compile.outputs import Output
from coopstreams.topology.compile.processing import Children, EffectsWork, Work
from coopstreams.topology.failures import Phase
from coopstreams.topology.graph.nodes import Processing
from coopstreams.topology.sinks import Applied
from coopstreams.topology.stores import Entry, TableStore


class Process(Protocol):
    """The bound program, as generated code sees it."""

    headers: Headers | None
    """The headers of the current record, or table entry."""

    def fail(self, site: int, error: Exception) -> None:
        """Report that the current record, or table entry, failed at a site of `Compiled.sites`."""

    def at_hand(self) -> tuple[TopicPartition, Columns, int]:
        """Return the current partition and batch, and the index of the current record."""
        ...

    def flushing(self, entries: list[tuple[bytes, Entry]]) -> Iterator[tuple[bytes, Entry]]:
        """Return an iterator over table entries; the current entry is the one that it returned last."""
        ...

    held_row: tuple[bytes | None, int] | None
    """Key and timestamp of the row at hand among those of `held`; None: the current record is."""

    def held(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Return an iterator over rows that were held back, from key to timestamp; what fails meanwhile is theirs."""
        ...

    def stream_time(self, topics: Sequence[str]) -> int:
        """Return the largest stream time that any of these topics has reached."""
        ...

    def begin_output(self, topic: str) -> Output:
        """Return a new output for a topic that has none yet."""
        ...

    partitions: Callable[[str], int]
    """Returns the partition count of a topic that the program writes."""

    def want(self, node: str, key: Any, value: Any) -> None:
        """Note that a node is to be called for the current record."""

    def result(self, node: str) -> Any:
        """Return the result of a node's call for the current record, or raise its error."""
        ...

    applied: list[Applied]
    """The records for the external sink."""

    def task_time(self) -> int:
        """Return the largest timestamp of the records that the task has taken in."""
        ...

    def begin_work(
        self, node: Processing, stores: Mapping[str, TableStore], children: Children, by_name: Mapping[str, Children]
    ) -> Work | EffectsWork:
        """Return the work of a processor node in this task."""
        ...


@dataclass(frozen=True, slots=True)
class Compiled:
    """The code of a program for one setting of the record cache, not yet bound to a task."""

    text: str
    """The generated source, for people and tracebacks."""
    sites: tuple[tuple[Phase, str], ...]
    """Phase and node of each place where a record can fail."""
    drops: tuple[tuple[str, str], ...]
    """Node and reason of each place that drops a record.

    Shape: the reason is `null-key`, `null-value`, `late`, `timestamp`, `no-partition`, `not-the-latest` or
    `stale-answer`.
    """
    make: Callable[[Process, Mapping[str, TableStore], Mapping[str, Output]], Code]
    operator_times: Mapping[str, tuple[str, ...]]
    """Topic to the nodes whose stream time its records advance."""
    operators: Mapping[str, Operator]
    """The nodes with a stream time, which is in the commits: some records of their topics may not reach them."""


@dataclass(frozen=True, slots=True)
class Code:
    """Generated code, closed over the stores and outputs of one task."""

    sources: Mapping[str, Callable[..., None]]
    """Topic to the function over `(keys, values, timestamps, stream_times)` and the columns of operator times, if any.
    """
    flushes: Sequence[Callable[[], None]]
    """The functions that forward the record caches' updates, parents before children."""
    dropped: list[int]
    """How many records were dropped, in the order of `Compiled.drops`."""
    reached: Mapping[str, Callable[[Sequence[int], bool], None]]
    """Topic to the function that advances the operator times of its nodes without a record; with True it forwards the
    results that are then due.
    """
    times: Mapping[str, Callable[[], list[int]]]
    """Topic to the function that returns the operator times of its nodes, up to which every record was processed."""
    observed: Callable[[], None]
    """Advances the window stores to the operator times."""
    expired: Callable[[], None]
    """Deletes the rows that have expired by the stream times of the partitions, and forwards the deletions."""
    headers_come: Callable[[], None]
    """Makes record caches keep the headers of records with the rows that they hold back."""
