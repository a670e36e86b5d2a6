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
from coopstreams.consumer.owned_range import OwnedRange
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

    def claim(self, owned_ranges: Sequence[OwnedRange], ownership: Ownership) -> None:
        """Commit the inherited positions of these key ranges under this consumer's own
        terms.

        From then on, this consumer's commits outrank those of earlier owners. A group
        that begins at the end of the log keeps that position, whichever member gets the
        key range next.

        Raises:
            LogError: it is unknown whether the claim counted.
        """
        for owned in owned_ranges:
            found = [
                said.metadata
                for said in self._follower.live(owned.at)
                if said.key.key_range.overlaps(owned.id.key_range)
            ]
            owned.metadata = found[-1] if found else ""
        self._commit_again(owned_ranges, ownership, claim=True)

    def commit(
        self,
        owned_ranges: Sequence[OwnedRange],
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
        for owned in owned_ranges:
            owned.stand(in_order=self.in_order)
            owned.progress.metadata = (
                "" if metadata is None else metadata.get(owned.at, "")
            )
        moved = [
            owned
            for owned in owned_ranges
            if owned.progress.metadata
            or owned.progress.moved
            or owned.progress.mirror_due(self._follower)
        ]
        if metadata is None:
            for owned in moved:
                owned.progress.metadata = owned.metadata
        news = _news(owned_ranges)  # first: the commit forgets them
        if moved:
            self._in_own_transaction(moved, ownership)
        return self._result(owned_ranges, moved, news)

    def commit_in(
        self,
        transaction: Transaction,
        owned_ranges: Sequence[OwnedRange],
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
        news = _news(owned_ranges)
        if self.in_offset_order:
            self._await_turn(owned_ranges, news, ownership)
        for owned in owned_ranges:
            owned.stand(in_order=self.in_order)
        moved = [owned for owned in owned_ranges if owned.progress.moved]
        for owned in moved:
            owned.progress.metadata = metadata.get(owned.at, "")
        # The fence is sent even if nothing moved: it fences the user's results, too.
        self._write(transaction, moved, ownership, owned_ranges[0].epoch)
        return self._result(owned_ranges, moved, news)

    def let_pass(
        self, owned_ranges: Sequence[OwnedRange], ownership: Ownership
    ) -> None:
        """Commit that these key ranges have no records below the first uncommitted one,
        because other consumers may wait for this commit.

        Raises:
            MembershipLostError | LogError: see `commit`.
        """
        for owned in owned_ranges:
            owned.stand_before()
        moved = [owned for owned in owned_ranges if owned.progress.moved]
        if moved:
            self._commit_again(moved, ownership, claim=False)

    def hold(self, owned_ranges: Collection[OwnedRange]) -> None:
        """Hold waiting records of partitions in which a transaction has timed out,
        until all earlier records are committed.

        Otherwise two consumers with two partitions could wait for each other, each with
        the next record of one of them. A key range whose first record is not known yet
        is held until the others have reached the offset from which it is read. So the
        key range that is furthest back is never held. Call this whenever records may
        have arrived.
        """
        for owned in owned_ranges:
            if owned.at in self._in_turn:
                stable = self._others_stable(owned.at, owned_ranges)
                owned.held = stable is None or stable < owned.first()

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()

    def _commit_again(
        self,
        owned_ranges: Sequence[OwnedRange],
        ownership: Ownership,
        *,
        claim: bool,
    ) -> None:
        """Commit these key ranges without any new record, with the metadata of their
        last commit.
        """
        for owned in owned_ranges:
            owned.progress.metadata = owned.metadata
        self._in_own_transaction(owned_ranges, ownership, claim=claim)
        for owned in owned_ranges:
            owned.progress.committed()
            owned.progress.metadata = ""

    def _in_own_transaction(
        self,
        owned_ranges: Sequence[OwnedRange],
        ownership: Ownership,
        *,
        claim: bool = False,
    ) -> None:
        """Commit in a transaction of this consumer's own writer; see `_write`."""
        try:
            self._writer.begin()
            self._write(
                self._writer,
                owned_ranges,
                ownership,
                owned_ranges[0].epoch,
                claim=claim,
            )
        except (LogError, GroupError):
            self._writer.abort()
            raise

    def _write(
        self,
        transaction: Transaction,
        owned_ranges: Sequence[OwnedRange],
        ownership: Ownership,
        epoch: int,
        *,
        claim: bool = False,
    ) -> None:
        """Write a commit of these key ranges: records, flush, then the fence of work that
        began under `epoch`. `claim`: see `plan`.
        """
        commit = plan(
            [owned.progress for owned in owned_ranges], self._follower, claim=claim
        )
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
        owned_ranges: Sequence[OwnedRange],
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
            {at: self._others_stable(at, owned_ranges) for at in first},
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
            self.let_pass(owned_ranges, ownership)
            self._follower.poll(WAIT_S)

    def _others_stable(
        self,
        at: TopicPartition,
        owned_ranges: Collection[OwnedRange],
    ) -> int | None:
        """Return the stable offset of a partition if this consumer's own key ranges
        counted as done; None: unknown.
        """
        mine = [owned for owned in owned_ranges if owned.at == at]
        own = [Segment(owned.id.key_range, 1 << 62) for owned in mine]
        stable = self._follower.stable(at, mine[0].progress.plain_offset(at), own)
        return None if stable is None else stable.offset

    def _result(
        self,
        owned_ranges: Sequence[OwnedRange],
        moved: Sequence[OwnedRange],
        news: Mapping[TopicPartition, Runs],
    ) -> CommitResult:
        """Note that the commit of the key ranges `moved` has counted, and return what
        the user is told. `news`: the offsets that were new in it.
        """
        for owned in moved:
            owned.progress.committed()
            owned.metadata = owned.progress.metadata or ""
            owned.progress.metadata = ""
            owned.inflight.committed()
        own: dict[TopicPartition, list[Segment]] = {}
        plain = {}
        for owned in owned_ranges:
            own.setdefault(owned.at, []).extend(
                owned.progress.committed_segments(owned.at)
            )
            plain[owned.at] = owned.progress.plain_offset(owned.at)
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


def _news(owned_ranges: Sequence[OwnedRange]) -> dict[TopicPartition, Runs]:
    """Return, by partition, the offsets done since the last commit in any of these key
    ranges.
    """
    news: dict[TopicPartition, list[tuple[int, int]]] = {}
    for owned in owned_ranges:
        news.setdefault(owned.at, []).extend(owned.inflight.news())
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
