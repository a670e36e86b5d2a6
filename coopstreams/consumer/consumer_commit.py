"""Commits of a consumer: each is one Kafka transaction, so it counts for all its
partitions or for none.

    begin | one individual commit per key range, tombstones | flush | fence: plain offsets | commit

The proposal detects a torn commit by a commit id and a number of records. Here Kafka's
transaction does: producer id and epoch identify it, its marker completes it, readers of
committed records never see a torn commit, and compaction does not replace a complete
commit by a torn one. So nothing has to be restored or committed again.

`commit_order="offset"` is the proposal's purgatory ("Look into the future:
Transactional Support"). Kafka's transaction markers order transactions within a
partition only. With this setting a transactional commit waits until the stable offset
of each partition has reached the commit's first offset. So results become visible in
the order of the input.

    stable 40;  B commits [45,49] -> waits;  A commits [40,44] -> proceeds, stable 45 -> B proceeds

The commit topic is the queue: each consumer reads the progress of the others there, and
needs no other signal. So a consumer also commits that it has no records up to an offset
(`let_pass`), before it waits itself and from time to time in `consume`. Otherwise two
consumers whose last commits are old would wait for each other, and a consumer without
records would hold up all others.

Invariant: individual commits first, fence last (`tasks/committer`). After a failure the
writer aborts, which decides whether the failed commit counted. Records in flight stay
in flight, and the next commit repeats everything; positions only grow.
Relies on: `commit.progress` (`plan`, what is staged), `owned_range`, `ownership` (the
fence).
Turned down: making every transaction wait (by default order matters only within a key,
where it holds anyway).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from coopstreams.commit.follower import Follower
from coopstreams.commit.offset_runs import Runs, normalise
from coopstreams.commit.progress import plan
from coopstreams.commit.record import Segment
from coopstreams.common.host import Host
from coopstreams.consumer.owned_range import Share
from coopstreams.consumer.ownership import Ownership, Transaction
from coopstreams.log.log import Log, Writer
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import GroupError, LogError

WAIT_S = 0.02


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit, by partition.

    `offset`: the offset below which this consumer's key ranges are committed.
    `last_stable_offset`: the offset below which all key ranges are committed, as far as
    is known; None: some key range has never committed.
    `ranges`: the offsets done since the last commit.
    """

    offset: Mapping[TopicPartition, int] = field(default_factory=dict)
    last_stable_offset: Mapping[TopicPartition, int | None] = field(
        default_factory=dict
    )
    ranges: Mapping[TopicPartition, Runs] = field(default_factory=dict)


class Commits:
    """The commits of the key ranges of one consumer. Belongs to one thread."""

    def __init__(
        self,
        log: Log,
        follower: Follower,
        transactional_id: str,
        timeout_s: float,
        host: Host,
        *,
        in_offset_order: bool,
    ) -> None:
        """Open the writer. This aborts or completes a transaction that an earlier
        writer with the same `transactional_id` left open.
        """
        self._host = host
        self._follower = follower
        self._writer: Writer = log.writer(
            transactional_id,
            lambda: [follower.partition.topic],
        )
        self._timeout_s = timeout_s
        self.in_offset_order = in_offset_order
        self.in_order = False
        """Whether commits have positions only, without done runs above them."""
        self._in_turn: set[TopicPartition] = set()
        """The partitions in which a transaction has timed out while it waited for
        others.
        """

    def claim(self, shares: Sequence[Share], ownership: Ownership) -> None:
        """Commit the inherited positions of these key ranges under this consumer's own
        terms.

        From then on, this consumer's commits outrank those of earlier owners. A group
        that begins at the end of the log keeps that position, whichever member gets the
        key range next.

        Raises:
            LogError: it is unknown whether the claim counted.
        """
        for share in shares:
            found = [
                said.metadata
                for said in self._follower.live(share.at)
                if said.key.key_range.overlaps(share.id.key_range)
            ]
            share.metadata = found[-1] if found else ""
        self._commit_again(shares, ownership, claim=True)

    def commit(
        self,
        shares: Sequence[Share],
        ownership: Ownership,
        metadata: Mapping[TopicPartition, str] | None,
    ) -> CommitResult:
        """Commit the done records of these key ranges in a transaction of its own.
        Write nothing if nothing changed.

        `metadata`: what the user gave for this commit; None: the user has not asked for
        it, and the metadata of the last commit stays.

        Raises:
            MembershipLostError: the group has removed this member; uncommitted work is
                void.
            LogError: it is unknown whether the commit counted; the next commit repeats
                it.
        """
        for share in shares:
            share.stand(in_order=self.in_order)
            share.progress.metadata = (
                "" if metadata is None else metadata.get(share.at, "")
            )
        moved = [
            share
            for share in shares
            if share.progress.metadata
            or share.progress.moved
            or share.progress.mirror_due(self._follower)
        ]
        if metadata is None:
            for share in moved:
                share.progress.metadata = share.metadata
        news = _news(shares)  # first: the commit forgets them
        if moved:
            self._in_own_transaction(moved, ownership)
        return self._result(shares, moved, news)

    def commit_in(
        self,
        transaction: Transaction,
        shares: Sequence[Share],
        ownership: Ownership,
        metadata: Mapping[TopicPartition, str],
    ) -> CommitResult:
        """Add the commit of these key ranges (at least one) to an open transaction, and
        commit the transaction.

        `metadata`: what the user gave, by partition. It is stored with the key ranges
        whose progress has moved.

        Raises:
            MembershipLostError | LogError: abort the transaction.
        """
        news = _news(shares)
        if self.in_offset_order:
            self._await_turn(shares, news, ownership)
        for share in shares:
            share.stand(in_order=self.in_order)
        moved = [share for share in shares if share.progress.moved]
        for share in moved:
            share.progress.metadata = metadata.get(share.at, "")
        # The fence is sent even if nothing moved: it fences the user's results, too.
        self._write(transaction, moved, ownership, shares[0].epoch)
        return self._result(shares, moved, news)

    def let_pass(self, shares: Sequence[Share], ownership: Ownership) -> None:
        """Commit that these key ranges have no records below the first uncommitted one,
        because other consumers may wait for this commit.

        Raises:
            MembershipLostError | LogError: see `commit`.
        """
        for share in shares:
            share.stand_before()
        moved = [share for share in shares if share.progress.moved]
        if moved:
            self._commit_again(moved, ownership, claim=False)

    def hold(self, shares: Collection[Share]) -> None:
        """Hold waiting records of partitions in which a transaction has timed out,
        until all earlier records are committed.

        Otherwise two consumers with two partitions could wait for each other, each with
        the next record of one of them. A key range whose first record is not known yet
        is held until the others have reached the offset from which it is read. So the
        key range that is furthest back is never held. Call this whenever records may
        have arrived.
        """
        for share in shares:
            if share.at in self._in_turn:
                stable = self._others_stable(share.at, shares)
                share.held = stable is None or stable < share.first()

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()

    def _commit_again(
        self,
        shares: Sequence[Share],
        ownership: Ownership,
        *,
        claim: bool,
    ) -> None:
        """Commit these key ranges without any new record, with the metadata of their
        last commit.
        """
        for share in shares:
            share.progress.metadata = share.metadata
        self._in_own_transaction(shares, ownership, claim=claim)
        for share in shares:
            share.progress.committed()
            share.progress.metadata = ""

    def _in_own_transaction(
        self,
        shares: Sequence[Share],
        ownership: Ownership,
        *,
        claim: bool = False,
    ) -> None:
        """Commit in a transaction of this consumer's own writer; see `_write`."""
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
        """Write a commit of these key ranges: records, flush, then the fence of work that
        began under `epoch`. `claim`: see `plan`.
        """
        commit = plan([share.progress for share in shares], self._follower, claim=claim)
        if commit.records:
            now = self._host.wall_ms()
            keys = [key for key, _ in commit.records]
            values = [value for _, value in commit.records]
            where = self._follower.partition
            transaction.append(
                where.topic,
                keys,
                values,
                [now] * len(keys),
                partitions=where.partition,
            )
        transaction.flush(self._timeout_s)
        ownership.commit(transaction, commit, epoch, self._timeout_s)

    def _await_turn(
        self,
        shares: Sequence[Share],
        news: Mapping[TopicPartition, Runs],
        ownership: Ownership,
    ) -> None:
        """Block until other consumers have committed everything before the first offset
        of this commit.

        `news`: the offsets of this commit.

        Raises:
            LogError: retryable: they have not after half of the transaction timeout.
        """
        first = {at: runs[0][0] for at, runs in news.items() if runs}
        give_up = self._host.now() + self._timeout_s / 2
        while blocked := behind(
            first,
            {at: self._others_stable(at, shares) for at in first},
        ):
            if self._host.now() > give_up:
                self._in_turn |= blocked.keys()
                reasons = ", ".join(
                    f"{at} from {first[at]} on, the others are at {stable}"
                    for at, stable in blocked.items()
                )
                raise LogError(
                    "commit.order=offset: not everything before this commit is committed after "
                    f"{self._timeout_s / 2:g} s: {reasons}",
                    retryable=True,
                )
            self.let_pass(shares, ownership)
            self._follower.poll(WAIT_S)

    def _others_stable(
        self,
        at: TopicPartition,
        shares: Collection[Share],
    ) -> int | None:
        """Return the stable offset of a partition if this consumer's own key ranges
        counted as done; None: unknown.
        """
        mine = [share for share in shares if share.at == at]
        own = [Segment(share.id.key_range, 1 << 62) for share in mine]
        stable = self._follower.stable(at, mine[0].progress.plain_offset(at), own)
        return None if stable is None else stable.offset

    def _result(
        self,
        shares: Sequence[Share],
        moved: Sequence[Share],
        news: Mapping[TopicPartition, Runs],
    ) -> CommitResult:
        """Note that the commit of the key ranges `moved` has counted, and return what
        the user is told. `news`: the offsets that were new in it.
        """
        for share in moved:
            share.progress.committed()
            share.metadata = share.progress.metadata or ""
            share.progress.metadata = ""
            share.inflight.committed()
        own: dict[TopicPartition, list[Segment]] = {}
        plain = {}
        for share in shares:
            own.setdefault(share.at, []).extend(
                share.progress.committed_segments(share.at)
            )
            plain[share.at] = share.progress.plain_offset(share.at)
        stable = {
            at: self._follower.stable(at, plain[at], segments)
            for at, segments in own.items()
        }
        return CommitResult(
            {
                at: min(segment.position for segment in segments)
                for at, segments in own.items()
            },
            {
                at: None if found is None else found.offset
                for at, found in stable.items()
            },
            news,
        )


def _news(shares: Sequence[Share]) -> dict[TopicPartition, Runs]:
    """Return, by partition, the offsets done since the last commit in any of these key
    ranges.
    """
    news: dict[TopicPartition, list[tuple[int, int]]] = {}
    for share in shares:
        news.setdefault(share.at, []).extend(share.inflight.news())
    return {at: normalise(runs) for at, runs in news.items()}


P = TypeVar("P")


def behind(
    first: Mapping[P, int],
    stable: Mapping[P, int | None],
) -> dict[P, int | None]:
    """Return the partitions in which offsets before a commit are not all done, each
    with its stable offset; empty: the commit may proceed.

    Shape: `first` has the first offset that the commit covers in each partition.
    `stable` has the first offset that is not done there; None: unknown.
    """
    return {
        at: stable.get(at)
        for at, offset in first.items()
        if (reached := stable.get(at)) is None or reached < offset
    }
