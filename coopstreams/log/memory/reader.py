"""The reader of a `MemoryLog`: what is in the state's lists, as batches.

Invariant: partitions take turns, so that a busy one never keeps another one waiting.
Relies on: `log.log.Reader` (what is promised), `batches` (`Routes`, `make_batches`),
`state` (the lock). `position`, `routes`, `move` and `one_by_one` are the test driver's.
"""

from __future__ import annotations

from collections.abc import (
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass

from coopstreams.log.batches import Routes, make_batches
from coopstreams.log.clocks import Clock, Clocks
from coopstreams.log.log import Position, RecordBatch
from coopstreams.log.memory.state import MemoryState
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.operator_time import OperatorTimeColumns
from coopstreams.topology.compile.timestamps import TimestampColumn
from coopstreams.topology.errors import LogError, OffsetOutOfRangeError
from coopstreams.topology.keys import KeyRange


@dataclass(slots=True)
class Reading:
    """A partition that is being read, with its position. Readers of the simulation use
    it as well.
    """

    at: Position
    held: bool = False
    told_end: int | None = None
    """The end that a batch has reported already: each end is reported once."""


class MemoryReader:
    """A `Reader` of a `MemoryLog`. One thread."""

    def __init__(self, state: MemoryState, *, committed_only: bool) -> None:
        self._state = state
        self._committed_only = committed_only
        self._readings: dict[TopicPartition, Reading] = {}
        """The partitions that are read, the next in turn first."""
        self._routes: dict[TopicPartition, Routes] = {}
        self._clocks = Clocks()
        self._closed = self._awake = False

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Read exactly these partitions: see `Reader.assign`."""
        with self._state.changed:
            for partition in positions:
                self._state.partition(partition)
        for partition in [known for known in self._readings if known not in positions]:
            del self._readings[partition]
            self._routes.pop(partition, None)
            self._clocks.drop(partition)
        for partition, at in positions.items():
            reading = self._readings.setdefault(partition, Reading(at))
            if reading.at.offset != at.offset:
                reading.told_end = None
                if at.offset < reading.at.offset:
                    self._clocks.forget(partition)
            elif reading.at.stream_time > at.stream_time:
                continue
            reading.at = at

    def route(
        self,
        partition: TopicPartition,
        ranges: Sequence[KeyRange],
        timestamps: TimestampColumn | None = None,
        operator_times: OperatorTimeColumns | None = None,
        *,
        time_marks: bool = False,
        keep_marks: bool = False,
        suffix: int = 0,
        advances: bool = False,
        writers: int | None = None,
    ) -> None:
        """Give each record to the slot of its key range: see `Reader.route`."""
        self._routes[partition] = Routes(
            ranges,
            timestamps,
            operator_times,
            time_marks=time_marks,
            keep_marks=keep_marks,
            suffix=suffix,
            advances=advances,
            clock=self._clocks.of(partition, writers),
        )

    def clock(self, partition: TopicPartition) -> Clock | None:
        """Return the clock of a timed topic's partition; None: its topic is not timed."""
        return self._clocks.get(partition)

    def hold(self, partition: TopicPartition, held: bool) -> None:
        """Stop or resume returning a partition's records."""
        if (reading := self._readings.get(partition)) is not None:
            reading.held = held

    def fetch(self, max_records: int, timeout_s: float) -> list[RecordBatch]:
        """Return the records that are available; wait only for the first record."""
        if self._closed:
            raise LogError("this reader is closed")
        batches: list[RecordBatch] = []

        def look() -> bool:
            batches.extend(self._take(max_records))
            return bool(batches) or self._awake

        with self._state.changed:
            if not look() and timeout_s > 0:
                self._state.changed.wait_for(look, timeout_s)
            self._awake = False
        return batches

    def position(self, partition: TopicPartition) -> Position:
        """Return the position of a partition that is assigned."""
        return self._readings[partition].at

    def routes(self, partition: TopicPartition) -> Routes:
        """Return the routes that the last call of `route` made for a partition."""
        return self._routes[partition]

    def move(self, partition: TopicPartition, end: Position) -> None:
        """Go on at the end of a partition, because the caller has processed the records
        before it by itself.
        """
        reading = self._readings[partition]
        reading.at = end
        reading.told_end = end.offset

    def one_by_one(self, topics: Collection[str]) -> Iterator[list[RecordBatch]]:
        """Yield the batches of each available record, and of each end that is reached,
        partition by partition.

        If the caller holds the partition of a record, the partition's other records are
        left. A partition that had a record comes last the next time, as with `fetch`.
        """
        for partition, reading in list(self._readings.items()):
            if partition.topic not in topics:
                continue
            while not reading.held:
                with self._state.changed:
                    batches, _ = self._read(partition, reading, 1)
                if not batches:
                    break
                self._readings[partition] = self._readings.pop(partition)
                yield batches

    def wake(self) -> None:
        """End the wait of the running fetch, or of the next one."""
        self._awake = True
        with self._state.changed:
            self._state.changed.notify_all()

    def close(self) -> None:
        """Stop reading."""
        self._readings.clear()
        self._routes.clear()
        self._closed = True

    def _take(self, most: int) -> list[RecordBatch]:
        """Return at most `most` records that are available, in the batches of their
        partitions.
        """
        taken: list[RecordBatch] = []
        for partition, reading in list(self._readings.items()):
            if most <= 0:
                break
            if reading.held:
                continue
            try:
                batches, records = self._read(partition, reading, most)
            except LogError:
                if taken:
                    # return the records so far; the next fetch meets the error again
                    break
                raise
            if batches:
                taken += batches
                most -= records
                # Last in turn next time, so that a busy partition never keeps another
                # one waiting.
                self._readings[partition] = self._readings.pop(partition)
        return taken

    def _read(
        self,
        partition: TopicPartition,
        reading: Reading,
        most: int,
    ) -> tuple[list[RecordBatch], int]:
        """Return the batches of a partition's next records, at most `most`, and their
        number. There is none without a record or an end that was not told. The
        caller holds the lock.
        """
        stored = self._state.partition(partition)
        at = reading.at
        if not stored.start <= at.offset <= stored.end:
            raise OffsetOutOfRangeError(
                f"offset {at.offset} of {partition} is gone: the log has {stored.start} to {stored.end}. Begin at one "
                "of these, or at the group's last commit."
            )
        if (
            reading.told_end
            == at.offset
            >= (stored.stable_end if self._committed_only else stored.end)
        ):
            return [], 0  # no new records
        columns, next_offset, at_end = stored.read(
            at.offset,
            most,
            committed_only=self._committed_only,
        )
        reading.told_end = next_offset if at_end else None
        batches = make_batches(
            partition,
            columns,
            self._routes.get(partition),
            at.stream_time,
            next_offset,
            at_end=at_end,
        )
        reading.at = Position(next_offset, batches[0].stream_time)
        return batches, len(columns)
