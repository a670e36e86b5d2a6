"""What a task is opened with: the incarnation that the opener has made, and the
settings and services of its process; and what `task` reads of an earlier owner's
progress.

Invariant: nothing here changes but the incarnation's state and progress, which belong
to the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from coopstreams.commit.progress import Progress
from coopstreams.commit.record import Segment
from coopstreams.common.host import SYSTEM, Host
from coopstreams.log.log import NO_STREAM_TIME
from coopstreams.state.task_state import TaskState
from coopstreams.tasks.misplaced_topics import Placing
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.operator_time import Part, operators_of
from coopstreams.topology.compile.outputs import Output
from coopstreams.topology.external_sinks import SinkSession
from coopstreams.topology.graph.nodes import SubTopology
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.stores import StoreSpec, TableStore
from coopstreams.topology.task_id import TaskId

if TYPE_CHECKING:
    from coopstreams.tasks.spans import RecordSpans


@dataclass(slots=True)
class Incarnation:
    """One opening of a task, made by the opener. A task that is closed and opened again
    is another incarnation.
    """

    id: TaskId
    sources: tuple[TopicPartition, ...]
    state: TaskState
    progress: Progress
    epoch: int = 0
    """The epoch of the membership under which the task was opened. Its work can be
    committed under no other epoch.
    """
    sink: SinkSession | None = None
    """The session with the task's external sink; None: it has none."""


def committed_positions(
    task: TaskId,
    stores: Iterable[StoreSpec],
    progress: Progress,
) -> dict[str, dict[KeyRange, int]]:
    """Return the committed offset of each part of the task's range, for each store that
    is restored from its source topic.

    A store whose topic has no partition of the task's number is left out.
    """
    sources = {
        store.name: TopicPartition(store.source, task.partition)
        for store in stores
        if store.source is not None
    }
    return {
        name: progress.committed_positions(source)
        for name, source in sources.items()
        if source in progress.partitions
    }


def store_times(subtopology: SubTopology, progress: Progress) -> dict[str, int]:
    """Return the latest stream time of each store's operators at the task's lowest
    positions; -1 if no record has reached them.

    No window of the stores starts later. Operators below a filter may have an earlier
    stream time than the partition.
    """
    lowest = [progress.lowest(source) for source in progress.partitions]
    operators = operators_of(subtopology)
    return {
        store.name: max(
            (
                each.time(at.operator_times, at.stream_time)
                for at in lowest
                for each in operators[store.name]
            ),
            default=NO_STREAM_TIME,
        )
        for store in subtopology.stores
    }


def parts_of(segments: Sequence[Segment], *, apart: bool) -> list[Part]:
    """Return the parts of a task's range with the times that their earlier owners had
    reached.

    `apart`: make each key group a part, because owners with equal committed positions
    may have changed their rows after the commit, each up to another record.
    """
    parts = [
        Part(each.key_range, each.stream_time, each.operator_times) for each in segments
    ]
    if not apart:
        return parts
    return [
        part._replace(key_range=one)
        for part in parts
        for group in part.key_range.groups.numbers
        if (one := part.key_range.intersect(KeyRange.of_groups(group, group)))
        is not None
    ]


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The settings with which a task processes records."""

    caching: bool
    """Whether updates stay in record caches until a commit."""
    by_key: bool = False
    """Whether a record may overtake records of other keys that wait for calls, if the
    program allows it.
    """
    max_idle_ms: int = 0
    """The setting `max.task.idle.ms`."""
    as_sent: bool = False
    """Whether records are in the order of births as they come: the test driver's, with
    one source partition.
    """
    exactly_once: bool = True
    """Whether the state is exactly that of the committed positions; otherwise it may be
    later.
    """


def _unmeasured(_: float) -> None:
    pass


@dataclass(frozen=True, slots=True)
class TaskServices:
    """The functions and values of a process that its tasks use."""

    partitions: Callable[[str], int]
    """Returns the partition count of a topic to which the task writes."""
    global_tables: Mapping[str, TableStore] = field(default_factory=dict)
    output: Callable[[str], Output] = Output
    """Returns a new output to a topic."""
    host: Host = SYSTEM
    latency: Callable[[float], None] = _unmeasured
    """Called with the age of a batch's first record. Units: seconds."""
    spans: RecordSpans | None = None
    """The spans of the task's records; None: nothing is traced."""
    folder: Path | None = None
    """The folder for records that wait, and have no room in memory; None: where the
    system has temporary files.
    """
    placing: Placing | None = None
    """Checks whether records are in the wrong partition; None: nothing does."""
