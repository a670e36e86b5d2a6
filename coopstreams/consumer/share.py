"""One key range of one partition that a consumer has, and the records of it that wait to be handed out.

    reader -> take -> waiting -> hand_out -> the user -> done -> segments -> the next commit
                         |  ^
                       ask  fill      of what waits without values, they are read again when it can be handed out

Invariant: records wait only while their key range cannot take them (too much of it is in flight, or it is paused). What
does not fit into the cache is dropped and read again: `behind` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from coopstreams.commit.progress import Progress
from coopstreams.commit.ranges import Runs, above, common
from coopstreams.commit.record import Segment
from coopstreams.consumer.inflight import InFlight
from coopstreams.consumer.waiting import WaitingRecords
from coopstreams.topology.columns import Columns, Headers
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.task_id import TaskId


@dataclass(slots=True, eq=False)
class ConsumerRecord:
    """A record as it is handed out. Units: the timestamp in ms since the epoch, -1 without one."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers | None
    share: Share = field(repr=False)
    """Whose record it is, for `done`."""

    @property
    def key_range(self) -> KeyRange:
        """The key range that it was handed out for."""
        return self.share.id.range


class Share:
    """A key range of a partition, from its opening to its end. Belongs to the thread that has the consumer."""

    def __init__(self, id_: TaskId, progress: Progress, epoch: int, most: int) -> None:
        self.id = id_
        (self.at,) = progress.partitions
        self.progress = progress
        self.epoch = epoch
        """Of the membership under which it was opened."""
        self.inflight = InFlight(progress.segments(self.at), most)
        self.taken = self.inflight.next
        """The next offset wanted from the reader."""
        self.behind = False
        """Whether the reader has passed `taken`: it has to go back there."""
        self.paused = False
        self.leaving = False
        """Whether the group wants it back: nothing more is handed out."""
        self.live = True
        """Whether it is still this consumer's."""
        self.waiting = WaitingRecords()

    def __str__(self) -> str:
        return f"{self.at}[{self.id.range}]"

    @property
    def stuck(self) -> bool:
        """Whether it cannot take records now."""
        return self.paused or self.leaving or self.inflight.blocked()

    def take(self, columns: Columns, next_offset: int, room: Callable[[], int], *, values: bool) -> None:
        """Keep what a fetch brought, or remember to read it again if there is no room for it (in bytes) while it cannot
        be handed out.

        `room`: asked only then. `values`: whether to keep the values of what cannot be handed out.
        """
        if self.behind or next_offset <= self.taken:
            return
        if not len(columns) and not self.waiting:
            self.inflight.hand_out((), (), next_offset)
        elif self.stuck or not self.waiting.ready:
            # What comes while the last values are being read again is handed out right after them.
            whole = values or (not self.stuck and self.waiting.all_asked)
            if not self.waiting.keep(columns, next_offset, room(), values=whole):
                self.behind = True
                return
        else:
            self.waiting.put(columns, next_offset)
        self.taken = next_offset

    def hand_out(self, most: int) -> list[ConsumerRecord]:
        """Return the next records for the user."""
        records: list[ConsumerRecord] = []
        while len(records) < most and not self.stuck and self.waiting and self.waiting.ready:
            columns, next_offset = self.waiting.pop(
                min(most - len(records), self.inflight.most - self.inflight.missing)
            )
            records += self._records(columns, self.inflight.hand_out(columns.keys, columns.offsets, next_offset))
        return records

    def settle(self, room: Callable[[], int], *, values: bool) -> None:
        """Have what was about to be handed out, and cannot be, take its place in the cache; without room it is read
        again.
        """
        if self.stuck and not self.waiting.settle(room(), values=values):
            self._forget_waiting()

    def ask(self) -> Sequence[int] | None:
        """Return the offsets of records to read again, so that they can be handed out; None if there are none, or they
        are asked for already.
        """
        return None if self.stuck else self.waiting.ask(self.inflight.most - self.inflight.missing)

    def seek(self, offset: int) -> None:
        """Hand out from this offset on."""
        self.inflight.seek(offset)
        self._forget_waiting()

    def leave(self, leaving: bool) -> None:
        """Hand out nothing more; or go on, the group gives it back."""
        self.leaving = leaving
        if leaving:
            self._forget_waiting()

    def stand(self, *, in_order: bool) -> tuple[Segment, ...]:
        """Tell `progress` what a commit now says, and return it; `in_order`: positions only."""
        segments = self.inflight.segments()
        if in_order:
            segments = tuple(replace(segment, runs=self._committed_runs(segment)) for segment in segments)
        self.progress.stand(self.at, segments)
        return segments

    def _forget_waiting(self) -> None:
        """Drop what waits; it is read again."""
        self.waiting.clear()
        self.taken, self.behind = self.inflight.wanted, True

    def _committed_runs(self, segment: Segment) -> Runs:
        """The done runs that were committed before: they are not taken back."""
        before = [done for done in self.progress.committed_segments(self.at) if done.range.overlaps(segment.range)]
        return reduce(common, (above(done.runs, segment.position) for done in before))

    def _records(self, columns: Columns, picked: list[int]) -> list[ConsumerRecord]:
        topic, partition = self.at
        keys, values, times, offsets, headers = (
            columns.keys,
            columns.values,
            columns.timestamps,
            columns.offsets,
            columns.headers,
        )
        return [
            ConsumerRecord(
                topic,
                partition,
                offsets[i],
                keys[i],
                values[i],
                times[i],
                None if headers is None else headers[i],
                self,
            )
            for i in picked
        ]
