"""Generated code that is bound to a task: the functions by which a program runs, and what they call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.compile.outputs import Output
from coopstreams.topology.compile.processing import Children, EffectsWork, Work
from coopstreams.topology.graph.nodes import Processing
from coopstreams.topology.sinks import Applied
from coopstreams.topology.stores import Entry, TableStore


class Process(Protocol):
    """The bound program, as generated code sees it."""

    headers: Headers | None
    """The headers of the record, or the table entry, at hand."""

    def fail(self, site: int, error: Exception) -> None:
        """Report that the record, or the table entry, at hand failed at a site of `Compiled.sites`."""

    def at_hand(self) -> tuple[TopicPartition, Columns, int]:
        """Return the partition and the batch that are being processed, and the index of the record at hand."""
        ...

    def flushing(self, entries: list[tuple[bytes, Entry]]) -> Iterator[tuple[bytes, Entry]]:
        """Return an iterator over table entries; the entry at hand is the one that it returned last."""
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
        """Note that a node is to be called for the record at hand."""

    def result(self, node: str) -> Any:
        """Return what the call of a node for the record at hand has returned, or raise what it raised."""
        ...

    applied: list[Applied]
    """The records for the place outside of Kafka."""

    def task_time(self) -> int:
        """Return the largest timestamp of the records that the task has taken in."""
        ...

    def begin_work(
        self, node: Processing, stores: Mapping[str, TableStore], children: Children, by_name: Mapping[str, Children]
    ) -> Work | EffectsWork:
        """Return the work of a processor node in this task."""
        ...


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
    times: Mapping[str, Callable[[], list[int]]]
    """Topic to the function that returns the operator times of its nodes: those up to which every record was processed.
    """
    observed: Callable[[], None]
    """Advance the window stores to the operator times."""
    expired: Callable[[], None]
    """Delete the rows that have expired by the stream times of the partitions, and forward the deletions."""
    headers_come: Callable[[], None]
    """From now on, keep the headers of records with the rows that record caches hold back."""
