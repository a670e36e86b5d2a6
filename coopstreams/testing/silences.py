"""The silent partitions of a test driver: time marks are written as its clock moves on."""

from __future__ import annotations

from coopstreams.log.log import RecordBatch, Writer
from coopstreams.log.time_marks import headers_of
from coopstreams.tasks.silence import Silence
from coopstreams.topology.columns import TopicPartition


class Silences:
    """The silences of the partitions whose sources have `idle_advance`. Units: `now_ms` is the driver's clock."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._of: dict[TopicPartition, Silence] = {}

    def listen(self, source: TopicPartition, idle_ms: int | None) -> bool:
        """Listen to a partition; return whether its source has `idle_advance`."""
        if idle_ms is not None:
            self._of.setdefault(source, Silence(idle_ms))
        return idle_ms is not None

    def heard(self, batch: RecordBatch, now_ms: int) -> bool:
        """Note the result of a fetch; return whether it had no record, and the partition has marks."""
        silence = self._of.get(batch.partition)
        if silence is None:
            return False
        silence.heard(batch, now_ms / 1000)
        return not batch.busy

    def advance(self, now_ms: int) -> None:
        """Write the time marks that are due."""
        for source, silence in self._of.items():
            if (time := silence.advance(now_ms / 1000)) is not None:
                self._writer.append(
                    source.topic, [None], [None], [time], partitions=source.partition, headers=[headers_of(time)]
                )
