"""One key range of one partition that a consumer owns, and its records that wait to be
handed out.

    reader -> take -> waiting -> hand_out -> the user -> done -> segments -> the next commit
                       |    ^
                      ask  fill      records cached without values are read again when they can be handed out

Invariant: records wait only while their key range is stuck (too many are in flight, or
it is paused). Records that do not fit into the cache are dropped and read again, which
`behind` notes.
Relies on: `commit.inflight` (what is done), `range_reader` (feeds it), `range_cache`,
`consumer_commit` (takes the segments).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from coopstreams.commit.inflight import InFlight
from coopstreams.commit.offset_runs import Runs, above, common
from coopstreams.commit.progress import Progress
from coopstreams.commit.record import Segment
from coopstreams.consumer.range_cache import RangeCache
from coopstreams.topology.columns import Columns, Headers
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.task_id import TaskId


@dataclass(slots=True, eq=False)
class ConsumerRecord:
    """A record for the user.

    Units: `timestamp` in ms since the epoch; -1: it has none.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers | None
    owned: OwnedRange = field(repr=False)
    """The owned key range that the record belongs to, for `done`."""

    @property
    def key_range(self) -> KeyRange:
        """The key range that owned the record when it was handed out."""
        return self.owned.id.key_range


class OwnedRange:
    """A key range of a partition, as long as the consumer owns it. Belongs to the
    consumer's thread.

    `most`: the most records in flight.
    """

    def __init__(
        self,
        id_: TaskId,
        progress: Progress,
        epoch: int,
        most: int,
    ) -> None:
        self.id = id_
        (self.at,) = progress.partitions
        self.progress = progress
        progress.metadata = ""
        self.epoch = epoch
        """The membership epoch under which the key range was opened."""
        self.inflight = InFlight(progress.segments(self.at), most)
        self.taken = self.inflight.next
        """The next offset to take from the reader."""
        self.metadata = ""
        """The metadata of the last commit."""
        self.behind = False
        """Whether the reader is past `taken`, because records were dropped, and must go
        back there.
        """
        self.paused = False
        self.held = False
        """Whether waiting records are held until earlier records of other key ranges
        are committed.
        """
        self.leaving = False
        """Whether the group has revoked the key range, so that nothing more is handed
        out.
        """
        self.live = True
        """Whether this consumer still owns the key range."""
        self.waiting = RangeCache()

    def __str__(self) -> str:
        return f"{self.at}[{self.id.key_range}]"

    @property
    def stuck(self) -> bool:
        """Whether no record of the key range can be handed out now."""
        return self.paused or self.held or self.leaving or self.inflight.blocked()

    @property
    def takes_again(self) -> bool:
        """Whether records of the key range were dropped, and it can take them now."""
        return self.behind and not self.waiting and not self.stuck

    def take(
        self,
        columns: Columns,
        next_offset: int,
        room: Callable[[], int],
        *,
        values: bool,
    ) -> None:
        """Keep fetched records. If they cannot be handed out and exceed the room in the
        cache, drop them, to be read again.

        `next_offset`: the offset after them. `room`: returns the free bytes of the
        cache; called only if they are needed. `values`: whether to cache values with
        the keys.
        """
        if self.behind or next_offset <= self.taken:
            return
        # The reader may have gone back for a sibling.
        if len(columns) and columns.offsets[0] < self.taken:
            first = bisect_left(columns.offsets, self.taken)
            columns = columns.slice(first, len(columns))
        if not self.waiting:
            # No record lies below: siblings need not wait for this range, also if the
            # first one is dropped.
            first = columns.offsets[0] if len(columns) else next_offset
            self.inflight.hand_out((), (), first)
        if self.waiting or len(columns):
            self.behind = not self._keep(columns, next_offset, room, values)
        if not self.behind:
            self.taken = next_offset

    def _keep(
        self,
        columns: Columns,
        next_offset: int,
        room: Callable[[], int],
        values: bool,
    ) -> bool:
        """Queue records to be handed out; return False if the cache has no room."""
        if not self.stuck and self.waiting.ready:
            self.waiting.put(columns, next_offset)
            return True
        # Records that arrive while the last values are being read again are handed out
        # right after them.
        whole = values or (not self.stuck and self.waiting.all_asked)
        return self.waiting.keep(columns, next_offset, room(), values=whole)

    def hand_out(self, most: int) -> list[ConsumerRecord]:
        """Return up to `most` records for the user."""
        records: list[ConsumerRecord] = []
        while (
            len(records) < most
            and not self.stuck
            and self.waiting
            and self.waiting.ready
        ):
            columns, next_offset = self.waiting.pop(
                min(most - len(records), self.inflight.most - self.inflight.missing)
            )
            records += self._records(
                columns,
                self.inflight.hand_out(columns.keys, columns.offsets, next_offset),
            )
        return records

    def first(self) -> int:
        """Return the first offset that the next transaction may cover: that of an
        uncommitted or waiting record, or the one to read next.
        """
        uncommitted = self.inflight.uncommitted()
        waiting = self.waiting.first
        if uncommitted is not None:
            return uncommitted
        return self.inflight.wanted if waiting is None else waiting

    def settle(self, room: Callable[[], int], *, values: bool) -> None:
        """If the key range became stuck, count its waiting records against the cache.
        Without room, drop them, to be read again.
        """
        if self.stuck and not self.waiting.settle(room(), values=values):
            self._forget_waiting()

    def ask(self) -> Sequence[int] | None:
        """Return the offsets of records cached without values, whose values are to be
        read now.

        None: there are none, they are being read already, or the key range is stuck.
        """
        return (
            None
            if self.stuck
            else self.waiting.ask(self.inflight.most - self.inflight.missing)
        )

    def seek(self, offset: int) -> None:
        """Continue to hand out records from this offset."""
        self.inflight.seek(offset)
        self._forget_waiting()

    def leave(self, leaving: bool) -> None:
        """Stop handing out records, because the group revokes the key range, or
        continue, because the group assigns it again.
        """
        self.leaving = leaving
        if leaving:
            self._forget_waiting()

    def stand(self, *, in_order: bool) -> tuple[Segment, ...]:
        """Set the segments of the next commit in `progress`, and return them.
        `in_order`: add no done runs to the committed ones.
        """
        segments = self.inflight.segments()
        if in_order:
            segments = tuple(
                replace(segment, runs=self._committed_runs(segment))
                for segment in segments
            )
        self.progress.stand(self.at, segments)
        return segments

    def stand_before(self) -> None:
        """Set the segments in `progress` for a commit without new done records.

        Their position is the offset of the first record that waits here. A range that
        committed a lower position would hold the stable offset of the partition back,
        for which records of other ranges may wait, and these for this range.
        """
        if self.waiting.first is not None:
            self.inflight.hand_out((), (), self.waiting.first)
        self.progress.stand(
            self.at,
            self.inflight.passed_by(self.progress.staged_segments(self.at)),
        )

    def _forget_waiting(self) -> None:
        """Drop the waiting records, to be read again."""
        self.waiting.clear()
        self.taken = self.inflight.wanted
        self.behind = True

    def _committed_runs(self, segment: Segment) -> Runs:
        """Return the done runs of a segment that are already committed. A later commit
        must not take them back.
        """
        before = [
            done
            for done in self.progress.committed_segments(self.at)
            if done.key_range.overlaps(segment.key_range)
        ]
        return reduce(common, (above(done.runs, segment.position) for done in before))

    def _records(self, columns: Columns, picked: list[int]) -> list[ConsumerRecord]:
        topic, partition = self.at
        keys = columns.keys
        values = columns.values
        times = columns.timestamps
        offsets = columns.offsets
        headers = columns.headers
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
