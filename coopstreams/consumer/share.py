"""One key range of one partition that a consumer has, and the records of it that wait to be handed out.

    reader -> take -> waiting -> hand_out -> the user -> done -> segments -> the next commit

Invariant: records wait only while their key range cannot take them (too much of it is in flight, or it is paused). What does not fit into
the cache is dropped and read again: `behind` says so.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from functools import reduce

from coopstreams.commit.progress import Progress
from coopstreams.commit.ranges import Runs, above, common
from coopstreams.commit.record import Segment
from coopstreams.consumer.filters import Filter
from coopstreams.consumer.inflight import InFlight
from coopstreams.log.log import Run
from coopstreams.topology.columns import Columns, Headers
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.task_id import TaskId

RECORD_BYTES = 200
"""What a record costs beside its key and value, about."""


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
        self.waiting_bytes = 0
        self._waiting: deque[tuple[Columns, int]] = deque()

    def __str__(self) -> str:
        return f"{self.at}[{self.id.range}]"

    @property
    def stuck(self) -> bool:
        """Whether it cannot take records now."""
        return self.paused or self.leaving or self.inflight.blocked()

    @property
    def empty(self) -> bool:
        """Whether no records wait."""
        return not self._waiting

    def take(self, run: Run, room: int) -> None:
        """Keep what a fetch brought, or remember to read it again if there is no room for it (in bytes) while it cannot be handed out."""
        if self.behind or run.next_offset <= self.taken:
            return
        if not len(run.columns):
            if self._waiting:
                self._waiting.append((run.columns, run.next_offset))
            else:
                self.inflight.hand_out((), (), run.next_offset)
            self.taken = run.next_offset
            return
        size = _size(run.columns) if self.stuck else 0
        if size > room:
            self.behind = True
            return
        self._waiting.append((run.columns, run.next_offset))
        self.waiting_bytes += size
        self.taken = run.next_offset

    def hand_out(self, most: int, filter_: Filter | None) -> list[ConsumerRecord]:
        """Return the next records for the user."""
        records: list[ConsumerRecord] = []
        while self._waiting and len(records) < most and not self.stuck:
            columns, next_offset = self._waiting.popleft()
            room = min(most - len(records), self.inflight.most - self.inflight.missing)
            if len(columns) > room:
                rest = columns.slice(room, len(columns))
                self._waiting.appendleft((rest, next_offset))
                columns, next_offset = columns.slice(0, room), rest.offsets[0]
            picked = self.inflight.hand_out(columns.keys, columns.offsets, next_offset)
            if filter_ is not None:
                kept = filter_.pick(columns.keys, columns.values, picked)
                for i in set(picked).difference(kept):
                    self.inflight.done(columns.offsets[i])
                picked = kept
            records += self._records(columns, picked)
        if not self._waiting:
            self.waiting_bytes = 0
        return records

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
        self._waiting.clear()
        self.waiting_bytes = 0
        self.taken, self.behind = self.inflight.wanted, True

    def _committed_runs(self, segment: Segment) -> Runs:
        """The done runs that were committed before: they are not taken back."""
        before = [done for done in self.progress.committed_segments(self.at) if done.range.overlaps(segment.range)]
        return reduce(common, (above(done.runs, segment.position) for done in before))

    def _records(self, columns: Columns, picked: list[int]) -> list[ConsumerRecord]:
        topic, partition = self.at
        keys, values, times, offsets, headers = columns.keys, columns.values, columns.timestamps, columns.offsets, columns.headers
        return [
            ConsumerRecord(topic, partition, offsets[i], keys[i], values[i], times[i], None if headers is None else headers[i], self) for i in picked
        ]


def _size(columns: Columns) -> int:
    return RECORD_BYTES * len(columns) + sum(map(len, filter(None, columns.keys))) + sum(map(len, filter(None, columns.values)))
