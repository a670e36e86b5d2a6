"""One commit of a consumer: a transaction, so that it counts for all its partitions or for none.

    begin | one individual commit a key range, tombstones | flush | fence: plain offsets | commit

The proposal's commit id and number of records, by which a reader tells a torn commit, are Kafka's transaction here:
producer id and epoch name it, its marker completes it, readers of committed records never see a torn one, and
compaction does not let it replace what was complete. So nothing has to be restored or committed again.

`commit_order="offset"` is the proposal's purgatory ("Look into the future: Transactional Support"). The transaction
markers of Kafka know the order of a partition only. Who needs results to become visible in the order of the input has
its transactional commit wait until the stable offset of the partition has reached its first offset; the next one then
waits for this one.

    stable 40;  B commits [45,49] -> waits;  A commits [40,44] -> proceeds, stable 45 -> B proceeds

The queue is the commit topic: each consumer reads there how far the others are, so nobody has to be told that it may
proceed.

Invariant: records first, fence last (`tasks/committer`). After a failure what is in flight stays as it is, and the next
commit says it all again: the writer is aborted first, so whether the failed one counted is decided by then, and
positions only grow.
Turned down: making every transaction wait (the default is free of order: per key there is one anyway).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from coopstreams.commit.follower import Follower
from coopstreams.commit.progress import plan
from coopstreams.commit.ranges import Runs, normalise
from coopstreams.commit.record import Segment
from coopstreams.consumer.ownership import Ownership, Transaction
from coopstreams.consumer.share import Share
from coopstreams.log.log import Log, Writer
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import GroupError, LogError

WAIT_S = 0.02


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit came to, of each partition that it was about.

    Shape: `offset`: everything of this consumer's key ranges below it is committed. `last_stable_offset`: everything of
    all key ranges below it is, as far as is known; None: some key range has never committed. `ranges`: what was done
    since the last commit.
    """

    offset: Mapping[TopicPartition, int] = field(default_factory=dict)
    last_stable_offset: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    ranges: Mapping[TopicPartition, Runs] = field(default_factory=dict)


class Committing:
    """Commits the key ranges of one consumer. One thread."""

    def __init__(
        self, log: Log, follower: Follower, transactional_id: str, timeout_s: float, *, in_offset_order: bool
    ) -> None:
        """`transactional_id`: of our own writer, which ends what a predecessor of that id left open."""
        self._follower = follower
        self._writer: Writer = log.writer(transactional_id, lambda: [follower.partition.topic])
        self._timeout_s = timeout_s
        self._in_offset_order = in_offset_order
        self.in_order = False
        """Whether commits say positions only."""

    def claim(self, shares: Sequence[Share], ownership: Ownership) -> None:
        """Say under our own terms what was found: whoever opens the same hashes from now on speaks louder, and can be
        heard.

        A group that begins at the end of the log keeps that position from now on, whoever gets the key range next.

        Raises:
            LogError: it may or may not have counted.
        """
        for share in shares:
            found = [said.metadata for said in self._follower.live(share.at) if said.key.range.overlaps(share.id.range)]
            share.progress.metadata = found[-1] if found else ""
        self._in_own_transaction(shares, ownership, claim=True)
        for share in shares:
            share.progress.committed()
            share.progress.metadata = ""

    def commit(
        self, shares: Sequence[Share], ownership: Ownership, metadata: Mapping[TopicPartition, str]
    ) -> CommitResult:
        """Commit what these have done, in a transaction of its own; without anything to say, write nothing.

        Raises:
            MembershipLostError: the group went on; what is uncommitted is void.
            LogError: it may or may not have counted; the next commit says it again.
        """
        for share in shares:
            share.stand(in_order=self.in_order)
            share.progress.metadata = metadata.get(share.at, "")
        moved = [
            share
            for share in shares
            if share.progress.metadata or share.progress.moved or share.progress.mirror_due(self._follower)
        ]
        news = _news(shares)
        if moved:
            self._in_own_transaction(moved, ownership)
        return self._result(shares, moved, news)

    def commit_in(self, transaction: Transaction, shares: Sequence[Share], ownership: Ownership) -> CommitResult:
        """Commit what these (at least one) have done within a transaction that is open, and end it.

        Raises:
            MembershipLostError | LogError: abort it.
        """
        for share in shares:
            share.stand(in_order=self.in_order)
        moved = [share for share in shares if share.progress.moved]
        news = _news(shares)
        if self._in_offset_order:
            self._await_turn(shares, news)
        self._write(
            transaction, moved, ownership, shares[0].epoch
        )  # the fence also if nothing moved: results are fenced, too
        return self._result(shares, moved, news)

    def close(self) -> None:
        """Let go of the writer."""
        self._writer.close()

    def _in_own_transaction(self, shares: Sequence[Share], ownership: Ownership, *, claim: bool = False) -> None:
        try:
            self._writer.begin()
            self._write(self._writer, shares, ownership, shares[0].epoch, claim=claim)
        except (LogError, GroupError):
            self._writer.abort()
            raise

    def _write(
        self,
        transaction: Transaction,
        shares: Sequence[Share],
        ownership: Ownership,
        epoch: int,
        *,
        claim: bool = False,
    ) -> None:
        commit = plan([share.progress for share in shares], self._follower, claim=claim)
        if commit.records:
            now = int(time.time() * 1000)
            keys, values = [key for key, _ in commit.records], [value for _, value in commit.records]
            where = self._follower.partition
            transaction.append(where.topic, keys, values, [now] * len(keys), partitions=where.partition)
        transaction.flush(self._timeout_s)
        ownership.commit(transaction, commit, epoch, self._timeout_s)

    def _await_turn(self, shares: Sequence[Share], news: Mapping[TopicPartition, Runs]) -> None:
        """Return when others are done with everything before what is new.

        Raises:
            LogError: retryable: they are not, for so long that the transaction would time out.
        """
        first = {at: runs[0][0] for at, runs in news.items() if runs}
        give_up = time.monotonic() + self._timeout_s / 2
        while blocked := behind(first, {at: self._others_stable(at, shares) for at in first}):
            if time.monotonic() > give_up:
                reasons = ", ".join(
                    f"{at} from {first[at]} on, the others are at {stable}" for at, stable in blocked.items()
                )
                raise LogError(
                    "commit.order=offset: not everything before this commit is committed after "
                    f"{self._timeout_s / 2:g} s: {reasons}",
                    retryable=True,
                )
            self._follower.poll(WAIT_S)

    def _others_stable(self, at: TopicPartition, shares: Sequence[Share]) -> int | None:
        """How far all key ranges but our own are."""
        mine = [share for share in shares if share.at == at]
        own = [Segment(share.id.range, 1 << 62) for share in mine]
        stable = self._follower.stable(at, mine[0].progress.plain_offset(at), own)
        return None if stable is None else stable.offset

    def _result(
        self, shares: Sequence[Share], moved: Sequence[Share], news: Mapping[TopicPartition, Runs]
    ) -> CommitResult:
        for share in moved:
            share.progress.committed()
            share.progress.metadata = ""
            share.inflight.committed()
        own: dict[TopicPartition, list[Segment]] = {}
        plain = {}
        for share in shares:
            own.setdefault(share.at, []).extend(share.progress.committed_segments(share.at))
            plain[share.at] = share.progress.plain_offset(share.at)
        stable = {at: self._follower.stable(at, plain[at], segments) for at, segments in own.items()}
        return CommitResult(
            {at: min(segment.position for segment in segments) for at, segments in own.items()},
            {at: None if found is None else found.offset for at, found in stable.items()},
            news,
        )


def _news(shares: Sequence[Share]) -> dict[TopicPartition, Runs]:
    """What is done since the last commit, in all key ranges of a partition together."""
    news: dict[TopicPartition, list[tuple[int, int]]] = {}
    for share in shares:
        news.setdefault(share.at, []).extend(share.inflight.news())
    return {at: normalise(runs) for at, runs in news.items()}


P = TypeVar("P")


def behind(first: Mapping[P, int], stable: Mapping[P, int | None]) -> dict[P, int | None]:
    """Return the partitions in which somebody is not done with what comes before a commit; empty: it may proceed.

    Shape: `first` is the first offset that it commits, of each partition; `stable` the first offset that is not done
    there, None: not known.
    """
    return {
        at: stable.get(at) for at, offset in first.items() if (reached := stable.get(at)) is None or reached < offset
    }
