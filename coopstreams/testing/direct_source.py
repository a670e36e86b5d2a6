"""The direct way of a record in the test driver: from `send` to its tasks, without the
log and the task queues between.

If no other record waits to be processed, a sent record is the next one, whatever its
timestamp. So its tasks process it at once. The log, the reader and the queues are
updated later, for many records together, when another part of the driver needs them.

Invariant: after `land` the log, the reader and the queues are as if each record had
been written, fetched and taken from its queue.
Relies on: `driver` (when `land` is called), `log.batches` (what a reader would have
made).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coopstreams.log.batches import Routes, make_batches, raw_columns
from coopstreams.log.log import NO_STREAM_TIME, Position
from coopstreams.log.memory.reader import MemoryReader
from coopstreams.log.memory.writer import MemoryWriter
from coopstreams.tasks.task import Task
from coopstreams.topology.columns import Headers, TopicPartition


@dataclass(slots=True)
class DirectSource:
    """A partition whose records may go directly to its tasks, with the records that
    have done so since the last `land`.
    """

    source: TopicPartition
    tasks: Sequence[Task]
    routes: Routes
    end: int = 0
    """The offset of the next record."""
    stream_time: int = NO_STREAM_TIME
    _keys: list[bytes | None] = field(default_factory=list)
    _values: list[bytes | None] = field(default_factory=list)
    _timestamps: list[int] = field(default_factory=list)
    _headers: list[Headers | None] = field(default_factory=list)

    def begin(self, at: Position) -> None:
        """Set the next offset and the stream time to the reader's position."""
        self.end = at.offset
        self.stream_time = at.stream_time

    def process(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers | None,
    ) -> None:
        """Process a record, first in the task that owns its key. Sibling tasks only
        learn its stream time.

        Raises:
            Whatever the failure handler raises.
        """
        offset = self.end
        self.end += 1
        self._keys.append(key)
        self._values.append(value)
        self._timestamps.append(timestamp)
        self._headers.append(headers)
        batches = make_batches(
            self.source,
            raw_columns([key], [value], [timestamp], [offset], [headers]),
            self.routes,
            self.stream_time,
            self.end,
            at_end=True,
        )
        self.stream_time = batches[0].stream_time
        if len(batches) > 1:
            batches.sort(key=lambda batch: not len(batch.columns))
        for batch in batches:
            self.tasks[batch.slot].process_now(batch)

    def land(self, writer: MemoryWriter, reader: MemoryReader) -> None:
        """Write the processed records to the log, and move the reader and the queues
        past them.
        """
        writer.append(
            self.source.topic,
            self._keys,
            self._values,
            self._timestamps,
            partitions=self.source.partition,
            headers=self._headers,
        )
        reader.move(self.source, Position(self.end, self.stream_time))
        for task in self.tasks:
            task.pass_by(self.source, self.end, self.stream_time)
        self._keys.clear()
        self._values.clear()
        self._timestamps.clear()
        self._headers.clear()
