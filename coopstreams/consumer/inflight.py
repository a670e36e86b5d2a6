"""Which records of one key range of one partition were handed out, which are done, and what a commit of them says.

    offsets   ....DDDDDDD|oDDoooD|..........      o handed out, D done: here, by an earlier owner, or in somebody
              else's key range
                         ^       ^
                     position   next

Everything below `next` is done, but for what is handed out and not done. So what has to be kept is what is *missing*,
and the done runs above the position are the gaps between these offsets: offsets of other key ranges do not break them.
(Of a partition in which every second record is its own, a consumer commits one run, where the proposal counts a range
per record.)

An earlier owner may have done more in some part of the range than in another: the segments that were found. They are
kept until `next` has passed them, and records that they cover are not handed out.

Invariant: a commit covers no offset that was handed out and is not done; what one commit covers, every later one
covers, too.
Turned down: keeping what is done (a million finished records behind one slow one are a million entries; what is missing
is one).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from coopstreams.commit.ranges import Runs, above, advance, contains, merge, runs_of
from coopstreams.commit.record import Segment
from coopstreams.commit.view import join
from coopstreams.topology.keys import KeyRange, key_hashes


class InFlight:
    """The records of one key range. Not thread-safe, no I/O."""

    def __init__(self, segments: Sequence[Segment], most: int) -> None:
        """Begin where the segments stand, which tile the range. `most`: so many records may be out."""
        self.range = KeyRange(segments[0].range.start, segments[-1].range.end)
        self.most = most
        self.next = min(segment.position for segment in segments)
        """Every record of the range below it was handed out, or needed not be."""
        self.wanted = self.next
        """The next offset to hand out: below `next` after a seek, for records that are handed out again."""
        self._found = tuple(segments)
        self._missing: set[int] = set()
        self._named: Runs = ()
        """Committed by name before they were handed out: at or above `next`."""
        self._news: Runs = ()
        self._latest: list[int] = []
        """Done since the last commit, not yet in `_news`."""
        self._blocked = False

    @property
    def missing(self) -> int:
        """How many records are handed out and not done."""
        return len(self._missing)

    def blocked(self) -> bool:
        """Return whether nothing more may be handed out: too much is out, and since then not half of it was done."""
        self._blocked = len(self._missing) >= (max(1, self.most // 2) if self._blocked else self.most)
        return self._blocked

    def hand_out(self, keys: Sequence[bytes | None], offsets: Sequence[int], next_offset: int) -> list[int]:
        """Return the indices of the records that are to be handed out now: not done, and not handed out before (but for
        a seek).

        Shape: records of this range in offset order; `next_offset` is the first offset that was not looked at.
        """
        again = range(bisect_left(offsets, self.wanted), bisect_left(offsets, self.next))
        fresh = list(range(max(again.start, again.stop), len(offsets)))
        if any(segment.position > self.next or segment.runs for segment in self._found):
            fresh = self._not_found(keys, offsets, fresh)
        if self._named:
            fresh = [i for i in fresh if not contains(self._named, offsets[i])]
        self._missing.update(offsets[i] for i in fresh)
        self.next, self.wanted = max(self.next, next_offset), max(self.wanted, next_offset)
        return [*again, *fresh]

    def done(self, offset: int) -> bool:
        """Note that a record was processed; return False if it is not out: it was done before, or is handed out again
        after a seek.
        """
        if offset not in self._missing:
            return False
        self._missing.discard(offset)
        self._latest.append(offset)
        return True

    def held_with(self, runs: Runs) -> int:
        """Return how many ranges a commit may come to have when these are done, too."""
        return len(merge(self._named, above(runs, self.next))) + sum(
            not contains(runs, offset) for offset in self._missing
        )

    def done_by_name(self, runs: Runs) -> None:
        """Note that these offsets are done, whether they were handed out or not. Other key ranges' among them do not
        matter.

        Raises:
            OverflowError: more runs than may be held; nothing is noted.
        """
        ahead = above(runs, self.next)
        named = merge(self._named, ahead)
        if self.held_with(runs) > self.most:
            raise OverflowError(
                f"{len(named)} runs of offsets beside {len(self._missing)} records that are not done; {self.most} may "
                "be held"
            )
        for offset in [offset for offset in self._missing if contains(runs, offset)]:
            self.done(offset)
        self._named, self._news = named, merge(self._news, ahead)

    def news(self) -> Runs:
        """Return what was done since the last commit as runs: the ranges that the proposal's commit request has."""
        if self._latest:
            latest, self._latest = self._latest, []
            self._news = merge(self._news, runs_of(latest))
        return self._news

    def many_news(self, most: int) -> bool:
        """Return whether more ranges than this were done since the last commit."""
        return len(self._latest) + len(self._news) > most and len(self.news()) > most

    def committed(self) -> None:
        """Note that a commit of everything that is done has counted."""
        self._news, self._latest = (), []

    def seek(self, offset: int) -> None:
        """Hand out from this offset on. What is skipped counts as done; what is done stays done, although it is handed
        out again.
        """
        self.wanted = offset
        self.next = max(self.next, offset)

    def segments(self) -> tuple[Segment, ...]:
        """Return how far each part of the range is: what a commit says."""
        self._named = above(self._named, self.next)
        position, runs = self._own()
        stands = []
        for found in self._found:
            at, done = advance(max(position, found.position), merge(runs, found.runs))
            stands.append(Segment(found.range, at, found.stream_time, done))
        segments = tuple(join(stands))
        if len(segments) == 1 and segments[0].position == position == self.next:
            self._found = segments  # everything that was found is behind us
        return segments

    def _own(self) -> tuple[int, Runs]:
        """What is done here, not counting what was found."""
        missing = sorted(self._missing)
        bounds = [*missing, self.next]
        runs = [(a + 1, b - 1) for a, b in zip(missing, bounds[1:], strict=True) if b - a > 1]
        return advance(bounds[0], merge(tuple(runs), self._named) if self._named else tuple(runs))

    def _not_found(self, keys: Sequence[bytes | None], offsets: Sequence[int], some: Sequence[int]) -> list[int]:
        """Those of the indices at which no earlier owner was done."""
        ends = [segment.range.end for segment in self._found]
        hashes = [0] * len(some)
        if len(ends) > 1:
            hashes = key_hashes([keys[i] for i in some], [offsets[i] for i in some])
        picked = []
        for i, hash_ in zip(some, hashes, strict=True):
            found = self._found[bisect_left(ends, hash_)]
            if offsets[i] >= found.position and not contains(found.runs, offsets[i]):
                picked.append(i)
        return picked
