"""The records of one key range that are done in any order: the handed-out records, the
done ones, and the segments of a commit. The cooperative consumer has an `InFlight` for
each key range, a task with asynchronous calls has one for each source partition.

    offsets   ....DDDDDDD|oDDoooD|..........      o handed out, D done: here, by an earlier owner, or in another
                         ^       ^                key range
                     position   next

Only the *missing* offsets are stored: handed out, and not done. The done runs above the
position are the gaps between them.

Invariant: a commit covers no record that is handed out and not done. A record that one
commit covers is covered by every later one.
Why, and what happens if earlier owners have done parts: docs/internals/positions.md,
"Records done out of order".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace

from coopstreams.commit.offset_runs import (
    Runs,
    above,
    advance,
    contains,
    merge,
    runs_of,
)
from coopstreams.commit.record import Segment
from coopstreams.commit.view import join
from coopstreams.log.log import Position
from coopstreams.topology.compile.operator_time import OperatorTimes, latest
from coopstreams.topology.keys import key_hashes


class InFlight:
    """The handed-out and done records of one key range. Not thread-safe, no I/O."""

    def __init__(
        self,
        segments: Sequence[Segment],
        most: int,
        *,
        in_order: bool = False,
    ) -> None:
        """Begin at the positions of the segments, which tile the range.

        At most `most` records may be in flight. `in_order`: records are done in the
        order of their offsets.
        """
        self.most = most
        self._in_order = in_order
        self.next = min(segment.position for segment in segments)
        """The offset below which every record of the range was handed out here, or done
        earlier.
        """
        self.wanted = self.next
        """The next offset to hand out. It is below `next` after a seek back, when
        records are handed out a second time.
        """
        self._found = tuple(segments)
        self._found_until = max(each.end for each in segments)
        """The offset from which on no record was done by an earlier owner."""
        self._missing: set[int] = set()
        self._part_of: dict[int, int] = {}
        """The index in `_found` of the part to which each missing record belongs; empty
        if there is one part.
        """
        self._named: Runs = ()
        """The offsets at or above `next` that the user committed by name before they
        were handed out.
        """
        self._news: Runs = ()
        self._latest: list[int] = []
        """The offsets done since the last commit that are not yet merged into `_news`.
        """
        self._blocked = False

    @property
    def missing(self) -> int:
        """The number of records that are handed out and not done."""
        return len(self._missing)

    def blocked(self) -> bool:
        """Return whether no record may be handed out now: `most` were in flight, and
        less than half of them have become done since.
        """
        self._blocked = len(self._missing) >= (
            max(1, self.most // 2) if self._blocked else self.most
        )
        return self._blocked

    def hand_out(
        self,
        keys: Sequence[bytes | None],
        offsets: Sequence[int],
        next_offset: int,
    ) -> list[int]:
        """Return the indices of the records to hand out now, and count them as in
        flight: records behind those handed out earlier that are not done.

        After a seek, all records from the new offset on are handed out again, done or
        not.

        Shape: records of this range in offset order; `next_offset` is the first offset
        behind them.
        """
        again = range(
            bisect_left(offsets, self.wanted),
            bisect_left(offsets, self.next),
        )
        fresh = list(range(max(again.start, again.stop), len(offsets)))
        parts = self._parts_of(keys, offsets, fresh)
        if self.next < self._found_until:
            fresh = self._not_found(offsets, parts, fresh)
        if self._named:
            fresh = [i for i in fresh if not contains(self._named, offsets[i])]
        self._missing.update(offsets[i] for i in fresh)
        if parts:
            self._part_of.update((offsets[i], parts[i]) for i in fresh)
        self.next = max(self.next, next_offset)
        self.wanted = max(self.wanted, next_offset)
        return [*again, *fresh]

    def done(self, offset: int) -> bool:
        """Note that a record was processed; return False if it is not in flight.

        A record is not in flight if it was done earlier, or is handed out again after a
        seek.
        """
        if offset not in self._missing:
            return False
        self._missing.discard(offset)
        self._part_of.pop(offset, None)
        self._latest.append(offset)
        return True

    def held_with(self, runs: Runs) -> int:
        """Return an upper bound of the number of ranges in a commit once these offsets
        are done.

        The part to which a named offset belongs is not known, so it counts in each
        part.
        """
        named = len(merge(self._named, above(runs, self.next))) * len(self._found)
        return named + sum(not contains(runs, offset) for offset in self._missing)

    def done_by_name(self, runs: Runs) -> None:
        """Note that these offsets are done, whether or not they were handed out;
        offsets of other key ranges have no effect.

        Raises:
            OverflowError: the commit would have more than `most` runs; nothing is
                noted.
        """
        ahead = above(runs, self.next)
        named = merge(self._named, ahead)
        if ahead and self.held_with(runs) > self.most:
            raise OverflowError(
                f"{len(named)} runs of offsets beside {len(self._missing)} records that are not done; {self.most} may "
                "be held"
            )
        for offset in [offset for offset in self._missing if contains(runs, offset)]:
            self.done(offset)
        self._named = named
        self._news = merge(self._news, ahead)

    def news(self) -> Runs:
        """Return the offsets done since the last commit as runs: the ranges of the
        proposal's commit request.
        """
        if self._latest:
            latest = self._latest
            self._latest = []
            self._news = merge(self._news, runs_of(latest))
        return self._news

    def many_news(self, most: int) -> bool:
        """Return whether more than `most` ranges were done since the last commit."""
        return len(self._latest) + len(self._news) > most and len(self.news()) > most

    def uncommitted(self) -> int | None:
        """Return the first offset that was handed out or named and is in no commit;
        None: there is none.
        """
        return min(
            [*self._missing, *self._latest, *(start for start, _ in self._news)],
            default=None,
        )

    def committed(self) -> None:
        """Note that the commit of everything done so far has succeeded."""
        self._news = ()
        self._latest = []

    def seek(self, offset: int) -> None:
        """Hand out from this offset on. Skipped records count as done; done records
        stay done, and are handed out again.
        """
        self.wanted = offset
        self.next = max(self.next, offset)

    def segments(
        self,
        reached: Position | None = None,
        operator_times: OperatorTimes = (),
    ) -> tuple[Segment, ...]:
        """Return the progress of each part of the range, as a commit writes it.

        `reached`, `operator_times`: a task's position, and the times of its operators
        there. No part's position goes above `reached`, unless an earlier owner was
        further: the times above it are not known. None (a consumer): positions are as
        high as they can be.
        """
        self._named = above(self._named, self.next)
        passed = min(self._missing, default=self.next)
        if reached is not None:
            passed = min(passed, reached.offset)
        if passed >= self._found_until:
            self._forget_found()
        segments = tuple(
            join(
                [
                    self._stand(found, missing, reached, operator_times)
                    for found, missing in zip(
                        self._found,
                        self._missing_of_parts(),
                        strict=True,
                    )
                ]
            )
        )
        if len(segments) == 1 and self.next >= self._found_until:
            self._forget_found()
        return segments

    def passed_by(self, committed: Sequence[Segment]) -> list[Segment]:
        """Return `committed`, the last commit, with each position raised to the first
        record that is handed out, or named, and in no commit; to `next` if there is
        none. No position falls; the done runs that it passes are dropped. Nothing
        changes here.
        """
        first = self.uncommitted()
        until = self.next if first is None else min(first, self.next)
        stands = []
        for one in committed:
            at, done = advance(max(until, one.position), above(one.runs, until))
            stands.append(replace(one, position=at, runs=done))
        return stands

    def _stand(
        self,
        found: Segment,
        missing: Sequence[int],
        reached: Position | None,
        operator_times: OperatorTimes,
    ) -> Segment:
        """Return the progress of a part found at opening, given its missing records."""
        position, runs = self._own(missing)
        if reached is not None and reached.offset < position:
            runs = merge(((reached.offset, position - 1),), runs)
            position = reached.offset
        if self._in_order:
            # No record of this range lies between the position and the last one that is
            # done. A run would say that one does.
            runs = ()
        at = max(position, found.position)
        done = merge(runs, found.runs)
        if reached is None:
            at, done = advance(at, done)
            return replace(found, position=at, runs=done)
        time = found.stream_time
        times = found.operator_times
        if at != found.position:
            time = max(time, reached.stream_time)
            times = latest(times, operator_times)
        return Segment(found.key_range, at, time, above(done, at), times)

    def _own(self, missing: Sequence[int]) -> tuple[int, Runs]:
        """Return the position and the done runs above it, by the records handed out
        here alone, without `_found`.

        Shape: the missing offsets are ascending.
        """
        bounds = [*missing, self.next]
        runs = tuple(
            (a + 1, b - 1)
            for a, b in zip(missing, bounds[1:], strict=True)
            if b - a > 1
        )
        return advance(bounds[0], merge(runs, self._named))

    def _missing_of_parts(self) -> list[list[int]]:
        """Return, for each part of the range in `_found`, the offsets that were handed
        out and are not done, ascending.
        """
        if len(self._found) == 1:
            return [sorted(self._missing)]
        missing: list[list[int]] = [[] for _ in self._found]
        for offset in sorted(self._missing):
            missing[self._part_of[offset]].append(offset)
        return missing

    def _forget_found(self) -> None:
        """Drop the runs of `_found`, and join its parts: every record that they cover
        has been passed.
        """
        first = min(found.position for found in self._found)
        self._found = tuple(
            join([replace(found, position=first, runs=()) for found in self._found])
        )
        self._part_of.clear()

    def _not_found(
        self,
        offsets: Sequence[int],
        parts: Mapping[int, int],
        some: Sequence[int],
    ) -> list[int]:
        """Return the indices in `some` whose offsets no earlier owner has done."""
        return [
            i for i in some if not self._found[parts.get(i, 0)].has_done(offsets[i])
        ]

    def _parts_of(
        self,
        keys: Sequence[bytes | None],
        offsets: Sequence[int],
        some: Sequence[int],
    ) -> dict[int, int]:
        """Return the part in `_found` of each of these indices; nothing if there is one
        part.
        """
        if len(self._found) == 1:
            return {}
        ends = [segment.key_range.end for segment in self._found]
        hashes = key_hashes([keys[i] for i in some], [offsets[i] for i in some])
        return {
            i: bisect_left(ends, hash_) for i, hash_ in zip(some, hashes, strict=True)
        }
