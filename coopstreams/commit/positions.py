"""Where a task begins: what the group's individual commits and plain offsets say about its range, behind the barrier.

A consumer's task has one source: its topic takes the place of a sub-topology.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from coopstreams.commit.follower import Follower
from coopstreams.commit.progress import Author, Progress
from coopstreams.commit.record import Committed
from coopstreams.log.log import Log, Position
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import OffsetOutOfRangeError
from coopstreams.topology.task_id import TaskId

Sources: TypeAlias = Callable[[TaskId], tuple[TopicPartition, ...]]


class Coordinator(Protocol):
    """Who keeps the plain offsets: a member of the group, or an administrator."""

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, str] | None]:
        """Return offset and metadata of each partition, none of which an open transaction may still change."""
        ...


class Positions:
    """Answers for one instance. One thread."""

    def __init__(
        self,
        log: Log,
        coordinator: Coordinator,
        follower: Follower,
        sources: Sources,
        reset: str,
        author: str,
        *,
        alone: bool = False,
    ) -> None:
        self._log = log
        self._coordinator = coordinator
        self._follower = follower
        self.sources = sources
        """The partitions a task reads; none, if this process does not know the task yet."""
        self._from_start = reset == "earliest"
        self._author = author
        self._alone = alone

    def resolve(self, tasks: Sequence[TaskId], generation: int) -> dict[TaskId, Progress]:
        """Return how far each of these tasks is. Only when the barrier is passed.

        Raises:
            LogError: a position that the log no longer has; names it and says what to do.
        """
        partitions = sorted({source for task in tasks for source in self.sources(task)})
        committed = {
            partition: None if found is None else Committed.parse(*found)
            for partition, found in self._coordinator.committed([*partitions, self._follower.partition]).items()
        }
        self._follower.check(partition for partition, found in committed.items() if found is not None)
        author = Author(self._follower.group, generation, self._author, self._alone)
        resets = {partition: self._reset(partition) for partition in partitions}
        progress = {}
        for task in tasks:
            openings = {source: self._follower.open(source, task.range, committed.get(source), resets[source]) for source in self.sources(task)}
            progress[task] = Progress(task.range, openings, author)
        self._check(progress.values())
        return progress

    def _reset(self, partition: TopicPartition) -> Position:
        return Position(self._log.start_offset(partition) if self._from_start else self._log.end_offset(partition))

    def _check(self, progress: Iterable[Progress]) -> None:
        """A position below the log start would be skipped silently by a reset; here it is an error."""
        for one in progress:
            for partition in one.partitions:
                at, start = one.position(partition).offset, self._log.start_offset(partition)
                if at < start:
                    command = (
                        f"coopstreams group reset {self._follower.group} --topic {partition.topic} --partition {partition.partition} --to earliest"
                    )
                    raise OffsetOutOfRangeError(
                        f"{partition}: the group stands at offset {at}, but the log begins at {start}: {start - at} records were deleted before they were "
                        f"processed. Raise the topic's retention; to go on without them, stop all instances and run `{command}`"
                    )
