"""Histories of a group that commits out of order, on a model of the log, compared with
plain sets. Driven by `test_inflight_histories.py`.

The real parts: `InFlight`, `Progress`, `plan`, the codec, `CommitView`. Owners tile the
hash space of one partition and are cut again at any time. A commit succeeds, or is torn
(an aborted transaction, of which no part is visible), or succeeds without an answer to
its author.

    processed   offsets that some owner has finished, or named as done
    complete    offsets that a commit said were done, and counted

Law: complete <= what the view covers <= processed, after every step; and what was
complete when an owner opened is not handed out to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from coopstreams.commit.inflight import InFlight
from coopstreams.commit.offset_runs import contains
from coopstreams.commit.progress import Author, Progress, plan
from coopstreams.commit.record import Committed, Segment
from coopstreams.commit.view import CommitView, combine
from coopstreams.log.log import Position
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash
from coopstreams.topology.naming import COMMIT_TOPIC

AT = TopicPartition("orders", 0)
LENGTH = 48
KEYS = [b"key-%d" % (offset * 7 % 19) for offset in range(LENGTH)]
HASHES = [key_hash(key) for key in KEYS]


class Commits:
    """The group's commits, for `plan`."""

    def __init__(self) -> None:
        self.view = CommitView("g")
        self.partition = TopicPartition(COMMIT_TOPIC, 3)
        self.tail = 0

    def mirror(
        self,
        partition: TopicPartition,
        committed: Committed | None,
        *,
        in_birth_order: bool = False,
    ) -> Committed | None:
        return self.view.mirror(partition, committed, in_birth_order=in_birth_order)

    def garbage(
        self, partition: TopicPartition, mine: Sequence[KeyRange]
    ) -> list[bytes]:
        return self.view.garbage(partition, mine)


class Owner:
    """One consumer's part of the partition, from opening to closing."""

    def __init__(self, key_range: KeyRange, group: Group) -> None:
        opening = group.commits.view.open(AT, key_range, group.plain, Position(0))
        self.progress = Progress(
            key_range,
            {AT: opening},
            Author("g", group.generation, "writer", alone=group.alone),
        )
        self.inflight = InFlight(opening.segments, most=LENGTH)
        self.key_range = key_range
        self.out: list[int] = []
        self.before = set(group.complete)
        self.tried: set[int] = set()
        """The offsets in its commits, whether or not they succeeded."""

    def owns(self, offset: int) -> bool:
        return HASHES[offset] in self.key_range


class Group:
    """The owners, the log, and the sets."""

    def __init__(self, dice: Random, *, alone: bool) -> None:
        self.dice = dice
        self.alone = alone
        self.commits = Commits()
        self.plain: Committed | None = None
        self.generation = 0
        self.processed: set[int] = set()
        self.complete: set[int] = set()
        self.owners: list[Owner] = []
        self.recut()

    def step(self) -> None:
        owner = self.dice.choice(self.owners)
        acts: list[Callable[[Owner], None]] = [
            self.read,
            self.finish,
            self.name,
            self.commit,
            self.let_pass,
            self.restart,
            self.recut,
        ]
        self.dice.choices(acts, [6, 8, 1, 4, 2, 1, 1])[0](owner)
        self.check()

    def read(self, owner: Owner) -> None:
        """Hand out a part of the log."""
        stop = min(LENGTH, owner.inflight.next + self.dice.randrange(1, 12))
        offsets = [
            offset for offset in range(owner.inflight.next, stop) if owner.owns(offset)
        ]
        given = [
            offsets[i]
            for i in owner.inflight.hand_out(
                [KEYS[offset] for offset in offsets], offsets, stop
            )
        ]
        assert not owner.before & set(given), (
            "committed before this owner opened, and handed out again"
        )
        assert not set(owner.out) & set(given), "handed out twice"
        owner.out += given

    def finish(self, owner: Owner) -> None:
        """Finish some of the records that are out, in any order."""
        self.dice.shuffle(owner.out)
        for _ in range(self.dice.randrange(4)):
            if owner.out:
                offset = owner.out.pop()
                self.processed.add(offset)
                assert owner.inflight.done(offset)
                assert not owner.inflight.done(offset)

    def name(self, owner: Owner) -> None:
        """Mark a range of offsets as done, handed out or not."""
        start = self.dice.randrange(LENGTH)
        end = min(LENGTH - 1, start + self.dice.randrange(6))
        named = {offset for offset in range(start, end + 1) if owner.owns(offset)}
        self.processed |= named
        owner.out = [offset for offset in owner.out if offset not in named]
        owner.inflight.done_by_name(((start, end),))

    def commit(self, owner: Owner) -> None:
        owner.progress.stand(AT, owner.inflight.segments())
        if self.counts(owner, covered(owner.inflight.segments(), owner)):
            owner.inflight.committed()

    def let_pass(self, owner: Owner) -> None:
        """Commit that there is no record below the first uncommitted one."""
        segments = owner.inflight.passed_by(owner.progress.staged_segments(AT))
        said = covered(segments, owner)
        assert said <= self.complete | owner.tried, "a commit without news has some"
        until = min(
            [
                owner.inflight.next,
                *owner.out,
                *(start for start, _ in owner.inflight.news()),
            ]
        )
        assert all(segment.position >= until for segment in segments), (
            "a commit without news keeps others waiting"
        )
        owner.progress.stand(AT, segments)
        self.counts(owner, said)

    def counts(self, owner: Owner, said: set[int]) -> bool:
        """Commit an owner's progress; return whether it succeeds and the owner gets the
        answer.
        """
        owner.tried |= said
        commit = plan([owner.progress], self.commits)
        outcome = self.dice.choice(["counts", "counts", "torn", "unheard"])
        if outcome == "torn":
            return False
        for key, value in commit.records:
            self.commits.view.apply(key, value)
        if AT in commit.offsets:
            self.plain = Committed.parse(*commit.offsets[AT])
        self.complete |= said
        if outcome == "counts":
            owner.progress.committed()
        return outcome == "counts"

    def restart(self, owner: Owner) -> None:
        """Restart: the memory is lost."""
        self.generation += 1
        self.owners = [
            Owner(other.key_range, self) if other is owner else other
            for other in self.owners
        ]

    def recut(self, _: Owner | None = None) -> None:
        """Cut other key ranges: some merged, some split."""
        self.generation += 1
        cuts = sorted(
            {self.dice.randrange(1, WHOLE.end) for _ in range(self.dice.randrange(4))}
        )
        ranges = [
            KeyRange(start, stop - 1)
            for start, stop in zip([0, *cuts], [*cuts, WHOLE.end + 1], strict=True)
        ]
        self.owners = []
        self.owners = [Owner(key_range, self) for key_range in ranges]

    def check(self) -> None:
        stands = combine(self.commits.view.resolve(AT, WHOLE), self.plain, Position(0))
        seen = {
            offset
            for segment in stands
            for offset in range(LENGTH)
            if HASHES[offset] in segment.key_range and done_in(segment, offset)
        }
        assert seen <= self.processed, (
            f"covered and not processed: {sorted(seen - self.processed)}"
        )
        assert self.complete <= seen, (
            f"a complete commit was lost: {sorted(self.complete - seen)}"
        )
        if self.plain is not None:
            assert set(range(self.plain.offset)) <= self.processed, (
                "the plain offset is ahead of somebody"
            )


def done_in(segment: Segment, offset: int) -> bool:
    return offset < segment.position or contains(segment.runs, offset)


def covered(segments: Sequence[Segment], owner: Owner) -> set[int]:
    return {
        offset
        for segment in segments
        for offset in range(LENGTH)
        if HASHES[offset] in segment.key_range and done_in(segment, offset)
    }
