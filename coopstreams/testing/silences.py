"""The idle partitions of a test driver, for which time marks are written as the
driver's clock advances.

Relies on: `tasks.silence` (when a mark is due), `log.time_marks`.
"""

from __future__ import annotations

from collections.abc import Sequence

from coopstreams.log.log import Position, RecordBatch, Writer
from coopstreams.log.time_marks import headers_of
from coopstreams.tasks.silence import Silence
from coopstreams.tasks.task import Task
from coopstreams.topology.columns import TopicPartition


class Silences:
    """The idle times of the partitions whose sources have `idle_advance`.

    Units: `now_ms` is the driver's clock.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._of: dict[TopicPartition, Silence] = {}
        self._clocked: set[TopicPartition] = set()
        """The partitions of timed topics."""
        self._marked: set[TopicPartition] = set()
        """The partitions whose last fetch brought a time mark and no record."""

    def listen(self, source: TopicPartition, idle_ms: int | None) -> bool:
        """Follow the silence of a partition; return whether its source has
        `idle_advance`.
        """
        if idle_ms is not None:
            self._of.setdefault(source, Silence(idle_ms))
        return idle_ms is not None

    def expect_marks(self, source: TopicPartition) -> None:
        """Note that a partition belongs to a timed topic, to which tasks write time
        marks.
        """
        self._clocked.add(source)

    def heard(self, batch: RecordBatch, now_ms: int) -> bool:
        """Note the result of a fetch; return whether the partition has time marks and
        the fetch brought no record.
        """
        silence = self._of.get(batch.partition)
        if silence is not None:
            silence.heard(batch, now_ms / 1000)
        elif batch.partition not in self._clocked:
            return False
        if batch.busy:
            self._marked.discard(batch.partition)
        else:
            self._marked.add(batch.partition)
        return not batch.busy

    def over(
        self,
        source: TopicPartition,
        at: Position,
        tasks: Sequence[Task],
    ) -> bool:
        """Return whether the tasks of a partition no longer have its record queued, or
        have passed its time mark.

        `at`: the position after the record or time mark.
        """
        if source in self._marked:
            return all(task.is_through(source, at.offset) for task in tasks)
        return not any(task.queues.waiting(source) for task in tasks)

    def advance(self, now_ms: int) -> None:
        """Write the time marks that are due."""
        for source, silence in self._of.items():
            if (time := silence.advance(now_ms / 1000)) is not None:
                self._writer.append(
                    source.topic,
                    [None],
                    [None],
                    [time],
                    partitions=source.partition,
                    headers=[headers_of(time)],
                )
