"""A consumer that shares partitions by key range and commits records in any order.

    subscribe | assign  ->  consume  ->  (your work, any thread)  ->  done  ->  commit  ->  close

The methods check their arguments and call the `ConsumerSession`. A lock admits one
thread at a time; `done` may be called from any thread at any time.

Invariant: only records marked `done` (or committed by name) are committed. A record
that is not done is handed out again, to the next owner of its key range.
Turned down: a background thread (one more queue between a record and its user, and
errors that no call of the user raises).
Source: the proposals 1 (cooperative consumer), 2 (KIP-983), 3 (offset management); see
docs/proposals.md.
"""

from __future__ import annotations

import threading
from collections.abc import (
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from coopstreams.commit.group_progress import OffsetAndRanges, group_offsets
from coopstreams.commit.offset_runs import Runs, normalise
from coopstreams.consumer.assignors import ASSIGNORS, Assignor
from coopstreams.consumer.consumer_commit import CommitResult
from coopstreams.consumer.consumer_session import (
    ConsumerSession,
    Listeners,
    Ranges,
    RangesCallback,
    RestrictionsCallback,
    alone,
    by_partition,
    shared,
    transactional_ids,
)
from coopstreams.consumer.consumer_settings import ConsumerConfig
from coopstreams.consumer.filters import RecordFilter
from coopstreams.consumer.owned_range import ConsumerRecord, OwnedRange
from coopstreams.consumer.ownership import Shared
from coopstreams.log.kafka.producer import ProducerTransaction
from coopstreams.log.kafka.wiring import KAFKA, Wiring
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    CommitConflictError,
    ConfigError,
    GroupError,
    IndividualCommitNotAllowedError,
    IndividualCommitTooOldError,
    MaxIndividualCommitReachedError,
    MembershipLostError,
)
from coopstreams.topology.keys import KeyRange

Partition = TopicPartition | tuple[str, int]


class CooperativeConsumer:
    """A consumer of key ranges of partitions, which commits done records in any order.

    Shape: `config` has Kafka's dotted names. Settings that are unknown here go to
    librdkafka. Records that `filter` drops count as done.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        filter: RecordFilter | None = None,  # noqa: A002
        assignor: Assignor | None = None,
        wiring: Wiring = KAFKA,
    ) -> None:
        """Check the settings, without connecting yet. `wiring`: the machine and the
        cluster, which simulations replace.

        Raises:
            ConfigError: an invalid setting.
        """
        self._config = ConsumerConfig.of(config)
        self._wiring = wiring
        self._filter = filter
        self._assignor = (
            assignor or ASSIGNORS[self._config["partition.assignment.strategy"]]
        )
        self._log = wiring.cluster(
            self._config.client,
            self._config["connect.timeout.ms"] / 1000,
        )
        self._lock = threading.RLock()
        self._ids = transactional_ids(self._config["group.id"], wiring.host)
        self._running: ConsumerSession | None = None
        self._in_transaction = False

    # --- what to read ---

    def subscribe(
        self,
        topics: Sequence[str],
        *,
        allow_key_share: bool = True,
        on_assign: RangesCallback | None = None,
        on_revoke: RangesCallback | None = None,
        on_lost: RangesCallback | None = None,
        on_restrict: RestrictionsCallback | None = None,
    ) -> None:
        """Join the group and read the key ranges that it assigns. `allow_key_share`:
        whether they may be parts of partitions.

        Shape: `consume` calls the callbacks with key ranges by partition: `on_assign`
        once they are open, `on_revoke` before they are given up (their last commit
        follows), `on_lost` when they are lost. `on_restrict` gets what the cluster's
        policy keeps this consumer from, at first and whenever that changes: the errors
        that it would raise after `assign`; empty: nothing any more.

        Raises:
            UnknownTopicError: a topic does not exist.
            LogError, GroupError: the brokers cannot be reached.
        """
        listeners = Listeners(on_assign, on_revoke, on_lost, on_restrict)
        parts = allow_key_share and self._config["allow.individual.commit"]
        with self._lock:
            self._check_new()
            self._running = shared(
                self._config,
                self._wiring,
                self._log,
                self._assignor,
                sorted(set(topics)),
                self._ids,
                self._filter,
                listeners,
                parts=parts,
            )

    def assign(self, partitions: Mapping[Partition, Sequence[KeyRange]]) -> None:
        """Read these key ranges without joining the group. An empty sequence means the
        whole partition.

        The positions are those of the group `group.id`, which must have no members. If
        two consumers read the same hashes, the commits of the one that opened them last
        count.

        Raises:
            TopicRangeFetchNotAllowedError: a part of a partition, and the topic does
                not allow it.
            ConsumerRangeFetchNotAcceptedError: a part of a partition, and
                `allow.individual.commit` is false.
            UnknownTopicError: a partition that does not exist.
            ValueError: key ranges that overlap.
        """
        wanted = {
            TopicPartition(*at): tuple(ranges) for at, ranges in partitions.items()
        }
        with self._lock:
            self._check_new()
            self._running = alone(
                self._config,
                self._wiring,
                self._log,
                wanted,
                self._filter,
            )

    def assignment(self) -> Ranges:
        """Return the key ranges that this consumer has open, by partition."""
        with self._lock:
            return by_partition(self._session.owned_ranges.values())

    # --- records ---

    def consume(
        self,
        num_messages: int = 500,
        timeout_s: float = 1.0,
    ) -> list[ConsumerRecord]:
        """Return up to `num_messages` records. Block up to `timeout_s` for the first
        record.

        It returns early when the group revokes a key range. It hands out no committed
        records, and none of key ranges that are being revoked.

        Raises:
            MembershipLostError | LogError: a commit in between failed; no record is
                lost, call it again.
            OffsetOutOfRangeError: the log no longer has the group's position; the
                message names it.
            GroupError: Kafka refuses this member; the message says why.
            IndividualCommitNotAllowedError | TopicRangeFetchNotAllowedError: the policy
                forbids the key ranges of `assign` by now. What is done can be
                committed.
        """
        with self._lock:
            return self._free.consume(num_messages, timeout_s)

    def done(self, record: ConsumerRecord) -> None:
        """Mark a record as processed, for the next commit. Thread-safe; does not block."""
        session = self._running
        if session is not None:
            session.finished.append((record.owned, record.offset))

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Stop handing out records of these partitions until `resume`."""
        with self._lock:
            for at in partitions:
                self._session.reader.pause(TopicPartition(*at), True)

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Hand out records of these partitions again."""
        with self._lock:
            for at in partitions:
                self._session.reader.pause(TopicPartition(*at), False)

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue to hand out records of a partition from this offset.

        Skipped records count as done. Done records stay committed, although they are
        handed out again.

        Raises:
            ValueError: the offset is below 0; confluent-kafka's OFFSET_BEGINNING and
                OFFSET_END are not known here.
        """
        if offset < 0:
            raise ValueError(
                f"{TopicPartition(*partition)}: offset {offset} is below 0"
            )
        with self._lock:
            self._session.take_done()
            for owned in self._owned_of(TopicPartition(*partition)):
                owned.seek(offset)

    # --- commits ---

    def commit(
        self,
        offsets: Mapping[Partition, int] | None = None,
        *,
        expected: Mapping[Partition, int] | None = None,
        metadata: str | Mapping[Partition, str] = "",
    ) -> CommitResult:
        """Commit everything done, in all partitions or none. With `offsets`, commit
        only these partitions: their done records, and everything below their offsets.

        Shape: `metadata` is stored beside each offset: one text for all partitions, or
        one for each. `expected`: commit only if this consumer's key ranges of a
        partition are committed up to exactly this offset.

        Raises:
            CommitConflictError: a partition is not committed up to its offset in
                `expected`; nothing was committed.
            IndividualCommitTooOldError: another consumer has taken over a key range
                (after `assign` only); this consumer continues from that consumer's
                position.
            MembershipLostError: the group has removed this member; `lost` returns its
                former key ranges.
            LogError: it is unknown whether the commit counted; commit again.
        """
        with self._lock:
            session = self._free
            session.take_done()
            named = {
                TopicPartition(*at): offset for at, offset in (offsets or {}).items()
            }
            if offsets is None:
                owned_ranges = list(session.owned_ranges.values())
            else:
                owned_ranges = [owned for at in named for owned in self._owned_of(at)]
            self._check_wanted(owned_ranges, expected or {})
            for owned in owned_ranges:
                if named.get(owned.at, 0) > 0:
                    owned.inflight.done_by_name(((0, named[owned.at] - 1),))
            return session.commit(owned_ranges, _beside(owned_ranges, metadata))

    def commit_ranges(
        self,
        ranges: Mapping[Partition, Sequence[tuple[int, int]]],
        *,
        expected: Mapping[Partition, int] | None = None,
        metadata: str = "",
    ) -> CommitResult:
        """Commit these offsets as done, whether they were handed out or not. Offsets of
        other consumers' key ranges are ignored.

        Shape: ranges of offsets are inclusive (start, end). It raises the errors of
        `commit`, too. Nothing is committed when it raises.

        Raises:
            IndividualCommitNotAllowedError: the cluster, or this consumer, does not
                allow it.
            IndividualCommitTooOldError: all named offsets of a partition are committed
                already; the error has the position.
            MaxIndividualCommitReachedError: more ranges than `max.individual.commits`.
            ValueError: a range that ends before it starts.
        """
        with self._lock:
            session = self._free
            session.take_done()
            if session.commits.in_order:
                raise IndividualCommitNotAllowedError(
                    "individual commits are turned off (accept.individual.commit of the cluster, or "
                    "allow.individual.commit of this consumer)"
                )
            named = {
                TopicPartition(*at): normalise(some) for at, some in ranges.items()
            }
            owned_ranges = [owned for at in named for owned in self._owned_of(at)]
            for at, runs in named.items():
                self._check_ranges(
                    at,
                    runs,
                    [owned for owned in owned_ranges if owned.at == at],
                )
            self._check_wanted(owned_ranges, expected or {})
            for owned in owned_ranges:
                owned.inflight.done_by_name(named[owned.at])
            return session.commit(
                owned_ranges, {owned.at: metadata for owned in owned_ranges}
            )

    def committed(
        self,
        partitions: Iterable[Partition],
    ) -> dict[TopicPartition, OffsetAndRanges | None]:
        """Return the progress of the whole group in these partitions, with all commits
        that were finished before this call. A partition gets None if some key range of
        it has never committed.

        Raises:
            LogError: retryable: an open transaction delays the answer.
        """
        with self._lock:
            session = self._session
            asked = [TopicPartition(*at) for at in partitions]
            return group_offsets(
                session.ownership.group,
                session.follower,
                asked,
                self._wiring.host,
            )

    @contextmanager
    def transaction(
        self,
        producer: Any,
        *,
        metadata: str | Mapping[Partition, str] = "",
    ) -> Iterator[None]:
        """Commit the records that the body produces together with those that it marks
        `done`, both or neither.

        If neither counts, all records since the last commit are handed out again.

        Shape: `producer` is a `confluent_kafka.Producer` with `transactional.id` =
        `consumer.transactional_id`, after `init_transactions`. `metadata` is stored
        beside each offset that this commit moves: one text for all partitions, or one
        for each.

        Raises:
            MembershipLostError | LogError: the transaction was aborted; continue to
                consume.
            FencedError: a LogError; continue with a new producer, because this one may
                be unusable.
        """
        with self._lock:
            session = self._session
            if not isinstance(session.ownership, Shared):
                raise GroupError(
                    "transactions need the fence of a group: subscribe, do not assign"
                )
            session.take_done()
            transaction = ProducerTransaction(
                producer,
                self._config["transaction.timeout.ms"] / 1000,
            )
            self._in_transaction = True
            try:
                with transaction.open():
                    yield
                    all_here = session.take_done()
                    owned_ranges = sorted(
                        session.owned_ranges.values(), key=lambda owned: owned.id
                    )
                    if not all_here or not owned_ranges:
                        raise MembershipLostError(
                            "key ranges of this transaction have another owner by now; what is uncommitted is void"
                        )
                    session.commits.commit_in(
                        transaction,
                        owned_ranges,
                        session.ownership,
                        _beside(owned_ranges, metadata),
                    )
            except BaseException:
                session.reopen()
                raise
            finally:
                self._in_transaction = False

    @property
    def transactional_id(self) -> str:
        """The transactional id for the producer of `transaction`.

        If this process dies, other members abort the transaction that it left open
        under this id.
        """
        return self._ids[0]

    # --- giving up ---

    def to_be_revoked(self) -> Ranges:
        """Return the key ranges that the next `consume` gives up: finish and commit
        them, or call `delay_revoke`.
        """
        with self._lock:
            return by_partition(self._session.revocations.next)

    def lost(self) -> Ranges:
        """Return the key ranges lost in the last `consume`: stop working on them.

        Other members own them. Or their topic was deleted and made anew, and this
        consumer opens them again in the new topic.
        """
        with self._lock:
            return by_partition(self._session.revocations.lost)

    def delay_revoke(self, partitions: Iterable[Partition]) -> bool:
        """Keep the key ranges of these partitions for one more `consume`; return False
        if one of them is lost.
        """
        with self._lock:
            wanted = {TopicPartition(*at) for at in partitions}
            lists = self._session.revocations
            return lists.delay(
                [owned for owned in [*lists.next, *lists.lost] if owned.at in wanted]
            )

    def close(self) -> None:
        """Commit everything done, leave the group, and close all connections.
        Idempotent. Not allowed within a transaction.
        """
        with self._lock:
            session = self._running and self._free
            self._running = None
            if session is not None:
                session.close()
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _free(self) -> ConsumerSession:
        """The session, for calls that are not allowed within a transaction.

        Raises:
            GroupError: a transaction is open.
        """
        if self._in_transaction:
            raise GroupError(
                "a transaction is open: end it before you consume, commit or close, or records would be committed "
                "outside of it"
            )
        return self._session

    @property
    def _session(self) -> ConsumerSession:
        session = self._running
        if session is None:
            raise GroupError(
                "this consumer reads nothing: call subscribe or assign first (and nothing after close)"
            )
        return session

    def _check_new(self) -> None:
        if self._running is not None:
            raise ConfigError(
                "this consumer has a subscription or an assignment already: make another one"
            )

    def _owned_of(self, at: TopicPartition) -> list[OwnedRange]:
        owned_ranges = [
            owned for owned in self._session.owned_ranges.values() if owned.at == at
        ]
        if not owned_ranges:
            raise GroupError(
                f"no key range of {at} is open here: it is not assigned, or not yet, or not any more"
            )
        return owned_ranges

    def _check_ranges(
        self,
        at: TopicPartition,
        runs: Runs,
        owned_ranges: Collection[OwnedRange],
    ) -> None:
        stands = min(
            segment.position
            for owned in owned_ranges
            for segment in owned.inflight.segments()
        )
        if runs and runs[-1][1] < stands:
            raise IndividualCommitTooOldError(
                f"{at}: everything below {stands} is committed; the last offset named is {runs[-1][1]}",
                last_stable_offset=stands,
            )
        most = self._config["max.individual.commits"]
        for owned in owned_ranges:
            if owned.inflight.held_with(runs) > most:
                raise MaxIndividualCommitReachedError(
                    f"{owned}: with these there would be more than {most} ranges (max.individual.commits)"
                )

    def _check_wanted(
        self,
        owned_ranges: Collection[OwnedRange],
        expected: Mapping[Partition, int],
    ) -> None:
        """Check that these key ranges are committed up to `expected`, and still belong
        to this consumer.

        Call it before any offset is noted as done by name, because the next commit
        would have that offset.
        """
        for at, offset in (
            (TopicPartition(*at), offset) for at, offset in expected.items()
        ):
            stands = min(
                (
                    owned.progress.durable(at)
                    for owned in owned_ranges
                    if owned.at == at
                ),
                default=None,
            )
            if stands != offset:
                raise CommitConflictError(
                    f"{at} is committed up to {stands}, not {offset}; nothing was committed"
                )
        self._session.check_overtaken(owned_ranges)


def _beside(
    owned_ranges: Iterable[OwnedRange],
    metadata: str | Mapping[Partition, str],
) -> dict[TopicPartition, str]:
    """Return the metadata to store beside the offset of each partition. A single text
    is for all partitions of these key ranges.
    """
    if isinstance(metadata, str):
        return {owned.at: metadata for owned in owned_ranges}
    return {TopicPartition(*at): text for at, text in metadata.items()}
