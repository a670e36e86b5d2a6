"""One reader for the instance: each partition is fetched once, hashed once, and each record goes to the sibling that
owns it.

Invariant: a running task gets every record of its range from the position it was opened at, in order, once. When a task
opens below where the reader stands, the reader goes back; its siblings drop what they have already received. When that
one closes before they are reached, the reader goes forward: its next owner may process and delete what lies between
(repartition topics).
Invariant: what is fetched and not processed is bounded: a partition is held while a thread, or a task that waits for
another of its sources, has too much of it. Holding is by partition, so that a full stream never keeps its table away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from coopstreams.common.metrics import Metrics
from coopstreams.log.log import NO_STREAM_TIME, Position, Reader, RecordBatch
from coopstreams.tasks.task import Task
from coopstreams.tasks.thread import StreamThread
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.operator_time import OperatorTimeColumns
from coopstreams.topology.compile.program import TimestampColumn
from coopstreams.topology.keys import WHOLE

FETCH_RECORDS = 10_000
HELD_WAIT_S = 0.05
"""How often it is looked whether a partition that is held may go on."""
MOST_WAITING = 4 * FETCH_RECORDS
"""Records in front of a thread or a task's source at which its partitions are held, if they are small; half of it lets
them go on.
"""
RECORD_BYTES = 200
"""What a record costs beside its key and value, about."""


@dataclass(slots=True)
class _Route:
    task: Task
    thread: StreamThread
    next: Position
    """What the task has been sent up to; what comes below it again, the task drops."""


@dataclass(slots=True)
class _Partition:
    routes: list[_Route] = field(default_factory=list)
    """In order of their ranges: the slots of the reader."""
    at: Position | None = None
    """Where the reader stands; None: not being read."""
    at_end: bool = False
    held: bool = False
    record_bytes: int = RECORD_BYTES
    """How large a record is, by the last batch."""


class Dispatcher:
    """Moves records from a reader to the tasks of an instance. Used by the control thread only."""

    def __init__(
        self,
        reader: Reader,
        timestamp_of: Callable[[str], TimestampColumn | None],
        operator_times_of: Callable[[str], OperatorTimeColumns | None],
        most_bytes: int,
        metrics: Metrics,
    ) -> None:
        self._reader = reader
        self._timestamp_of = timestamp_of
        self._operator_times_of = operator_times_of
        self._most_bytes = most_bytes
        self._metrics = metrics
        self._partitions: dict[TopicPartition, _Partition] = {}

    def open(self, task: Task, thread: StreamThread) -> None:
        """Route the task's ranges to it from now on, from the position it was opened at."""
        for source in task.sources:
            self._partitions.setdefault(source, _Partition()).routes.append(
                _Route(task, thread, task.progress.position(source))
            )
        self._place(task.sources)

    def close(self, task: Task) -> None:
        """Send the task nothing more."""
        for source in task.sources:
            partition = self._partitions.get(source)
            if partition is None:
                continue
            partition.routes = [route for route in partition.routes if route.task is not task]
            if not partition.routes:
                del self._partitions[source]
        self._place(task.sources)

    def __bool__(self) -> bool:
        return bool(self._partitions)

    def move(self, timeout_s: float) -> int:
        """Fetch once, waiting no longer than that or until `wake`, and hand out what came; return the number of records
        looked at.
        """
        self._hold()
        moved = 0
        held = any(partition.held for partition in self._partitions.values())
        for batch in self._reader.fetch(FETCH_RECORDS, min(timeout_s, HELD_WAIT_S) if held else timeout_s):
            partition = self._partitions.get(batch.partition)
            if partition is None:
                continue
            partition.at, partition.at_end = Position(batch.next_offset, batch.stream_time), batch.at_end
            route = partition.routes[batch.slot]
            if batch.next_offset > route.next.offset:
                route.next = partition.at
            if len(batch.columns):
                moved += len(batch.columns)
                partition.record_bytes = _record_bytes(batch.columns)
                self._metrics.consumed(route.task.id, batch.partition.topic, len(batch.columns))
            route.thread.deliver(route.task, batch)
        return moved

    def wake(self) -> None:
        """Have `move` wait for records no longer. Any thread."""
        self._reader.wake()

    def position(self, source: TopicPartition) -> Position | None:
        """Return where the reader stands in a partition, None if it is not read."""
        partition = self._partitions.get(source)
        return partition.at if partition is not None else None

    def close_reader(self) -> None:
        """Stop reading for good."""
        self._reader.close()

    def _place(self, sources: tuple[TopicPartition, ...]) -> None:
        """Tell the reader where to read and whom to route to, after the tasks of these partitions changed."""
        for source in sources:
            partition = self._partitions.get(source)
            if partition is None:
                continue
            partition.routes.sort(key=lambda route: route.task.id)
            first = min((route.next for route in partition.routes), key=lambda at: at.offset)
            if (
                partition.at is None or first.offset != partition.at.offset
            ):  # above it, too: whoever wanted what lies between may have deleted it
                partition.at, partition.at_end = first, False
        self._reader.assign(
            {source: partition.at or Position(0, NO_STREAM_TIME) for source, partition in self._partitions.items()}
        )
        for source in sources:
            partition = self._partitions.get(source)
            if partition is None:
                continue
            ranges = [route.task.id.range for route in partition.routes]
            for route in partition.routes:
                route.task.program.elsewhere = bool(WHOLE.minus(ranges))
            operator_times = (
                self._operator_times_of(source.topic)
                if any(route.task.program.shared for route in partition.routes)
                else None
            )
            self._reader.route(source, ranges, self._timestamp_of(source.topic), operator_times)
            if partition.at_end and partition.at is not None:
                for slot, route in enumerate(partition.routes):
                    route.thread.deliver(route.task, RecordBatch.ended(source, slot, partition.at))

    def _hold(self) -> None:
        for source, partition in self._partitions.items():
            waiting = max(max(route.thread.backlog, route.task.queues.waiting(source)) for route in partition.routes)
            limit = min(MOST_WAITING, self._most_bytes // (partition.record_bytes * len(self._partitions)))
            if (waiting > (limit // 2 if partition.held else limit)) != partition.held:
                partition.held = not partition.held
                self._reader.hold(source, partition.held)


def _record_bytes(columns: Columns) -> int:
    """How large the records of a batch are, by a few of them."""
    some = columns.values[:: 1 + len(columns) // 32]
    return RECORD_BYTES + sum(len(value) for value in some if value is not None) // len(some)
