"""The state of a consumer from `subscribe` or `assign` to `close`: it opens key ranges,
hands out their records, and gives them up.

    group events       -> openings, revocations        `_handle`
    openings           -> owned ranges, fetched        `_open`
    revocations        -> committed, released          `_begin_poll`

Invariant: nothing more is handed out of a key range that is being revoked. The others
are never paused for a rebalance.
Invariant: an `OwnedRange` that is given up is marked, so that `done` for its records
changes nothing.
Relies on: `ownership` (when a range may open), `revocation` (the lists by which it is
given up), `owned_range` (one range), `consumer_commit` (claims and commits).
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import deque
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from coopstreams.commit.barrier import Barrier, Opening
from coopstreams.commit.cluster_policy import LOOK_EVERY_S
from coopstreams.commit.follower import Follower
from coopstreams.commit.positions import Positions
from coopstreams.commit.progress import Progress
from coopstreams.commit.view import Winner
from coopstreams.common.host import Empty, Host, Inbox
from coopstreams.consumer.assignors import Assignor
from coopstreams.consumer.consumer_commit import CommitResult, Commits
from coopstreams.consumer.consumer_policy import Policies, restrictions
from coopstreams.consumer.consumer_settings import ConsumerConfig
from coopstreams.consumer.filters import RecordFilter
from coopstreams.consumer.group_assignment import (
    assign_consumers,
    topic_number,
    topic_numbers,
)
from coopstreams.consumer.owned_range import ConsumerRecord, OwnedRange
from coopstreams.consumer.ownership import (
    Alone,
    Openings,
    Ownership,
    Shared,
)
from coopstreams.consumer.range_reader import RangeReader
from coopstreams.consumer.revocation import Revocations
from coopstreams.group.admin import GroupAdmin
from coopstreams.group.coordinator_interface import Identity
from coopstreams.group.holdings import (
    Assigned,
    GroupEvent,
    Lost,
    Refused,
)
from coopstreams.group.members import Assignment, MemberInfo, MemberState
from coopstreams.group.membership import GroupMember, Participant, Timings
from coopstreams.log.kafka.wiring import Wiring
from coopstreams.log.log import Log
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    AccessDeniedError,
    ConsumerRangeFetchNotAcceptedError,
    FencedError,
    GroupError,
    IndividualCommitError,
    IndividualCommitTooOldError,
    LogError,
    MembershipLostError,
    OffsetOutOfRangeError,
    TopicRangeFetchNotAllowedError,
    UnknownTopicError,
)
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

SLICE_S = 0.05
"""The longest wait for records before the group's events are handled again."""
OPENING_S = 0.005
"""The longest wait for records while a key range waits to be opened."""
STEADY_S = 5.0
"""How long a request within `consume` waits for unreachable brokers. The next call of
`consume` tries again.
"""
AGAIN_S = 0.1
LET_PASS_S = 0.2
"""The time between two commits that let other consumers' transactions proceed, with
`commit.order=offset`.
"""
MOST_IN_VAIN = 5
"""The most attempts at a commit that is fenced because the group has a new generation.
"""

Ranges = dict[TopicPartition, tuple[KeyRange, ...]]
RangesCallback = Callable[[Ranges], object]
RestrictionsCallback = Callable[[tuple[IndividualCommitError, ...]], object]


@dataclass(frozen=True, slots=True)
class Listeners:
    """The user's callbacks; see `CooperativeConsumer.subscribe`."""

    assign: RangesCallback | None = None
    revoke: RangesCallback | None = None
    lost: RangesCallback | None = None
    restrict: RestrictionsCallback | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """What a session reads, how it owns key ranges, and under which transactional id it
    commits.
    """

    ownership: Ownership
    topics: Mapping[int, str]
    """The topics by their numbers in task ids."""
    transactional_id: str
    follower: Follower
    policies: Policies
    inbox: Inbox[GroupEvent]
    polled: list[float]
    """The time of the last `consume`, as the only element. The membership checks it
    against `max.poll.interval.ms`.
    """
    filter: RecordFilter | None
    listeners: Listeners = Listeners()
    in_parts: Collection[str] = ()
    """The topics of whose partitions this consumer takes parts."""


class ConsumerSession:
    """The key ranges of a consumer, with the parts that open, read, commit and give
    them up.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        host: Host,
        log: Log,
        scope: Scope,
    ) -> None:
        self.config = config
        self._host = host
        self.ownership = scope.ownership
        self.follower = scope.follower
        self.follower.check_policy()
        self.openings = _openings(config, host, log, scope)
        self.reader = RangeReader(
            partial(
                log.reader,
                committed_only=config["isolation.level"] == "read_committed",
            ),
            config["max.bytes.key.range.cache"],
            scope.policies.reserves_values,
            scope.filter,
        )
        timeout_s = config["transaction.timeout.ms"] / 1000
        # For the rest of the writer's life: brokers have been found by now.
        log.timeout_s = timeout_s
        self.commits = Commits(
            log,
            scope.follower,
            scope.transactional_id,
            timeout_s,
            host,
            in_offset_order=config["commit.order"] == "offset",
        )
        log.timeout_s = STEADY_S
        self.revocations: Revocations[OwnedRange] = Revocations(
            config["max.revoke.delay.ms"] / 1000
        )
        self.owned_ranges: dict[TaskId, OwnedRange] = {}
        self.finished: deque[tuple[OwnedRange, int]] = deque()
        """The key range and the offset of each record that the user has marked done;
        any thread appends.
        """
        self._scope = scope
        self._policies = scope.policies
        self._told = False
        """Whether a key range was revoked or lost during this poll, so that `consume`
        returns early.
        """
        self._let_pass_at = 0.0
        self._commit_s = config["auto.commit.interval.ms"] / 1000
        self._commit_at = host.now() + self._commit_s
        """The time of the next commit by `enable.auto.commit`."""
        self._compare_at = host.now() + LOOK_EVERY_S
        """The time of the next check whether topics were made anew."""
        self._blocked: set[OwnedRange] = set()
        """The key ranges of which it was logged that too many records are in flight."""
        self._refused: GroupError | IndividualCommitError | None = None
        self._restrictions: tuple[IndividualCommitError, ...] = ()
        """What the cluster's policy keeps this consumer from."""
        self._told_restrictions: tuple[str, ...] | None = None
        """The same as last told to the user; None: the user was told nothing."""
        self._obey()

    def consume(self, most: int, timeout_s: float) -> list[ConsumerRecord]:
        """Return up to `most` records. Block up to `timeout_s` for the first record;
        return early after a revocation.
        """
        deadline = self._host.now() + timeout_s
        self._begin_poll()
        while True:
            self._scope.polled[0] = self._host.now()
            # First: nothing more is handed out of what the group has taken back.
            self._handle()
            if self._refused is not None:
                raise self._refused
            self.follower.poll(OPENING_S if self.openings else 0.0)
            self._open()
            self._note()
            if self._in_offset_order:
                self._let_pass()
            records = self._records(most)
            left = deadline - self._host.now()
            if not records:
                try:
                    self.reader.fetch(
                        most,
                        max(0.0, min(left, OPENING_S if self.openings else SLICE_S)),
                    )
                except (OffsetOutOfRangeError, UnknownTopicError):
                    if not self._lose_remade():
                        raise
                records = self._records(most)
            if records or self._told or left <= 0:
                return records

    @property
    def _in_offset_order(self) -> bool:
        return self.commits.in_offset_order and not self.ownership.alone

    def _records(self, most: int) -> list[ConsumerRecord]:
        """Return up to `most` records that can be handed out now."""
        if self._in_offset_order:
            self.commits.hold(self.owned_ranges.values())
        return self.reader.records(most)

    def commit(
        self,
        owned_ranges: Collection[OwnedRange],
        metadata: Mapping[TopicPartition, str] | None = None,
    ) -> CommitResult:
        """Commit the done records of these key ranges. `metadata` None: the metadata of
        their last commit stays.

        Raises:
            MembershipLostError: the group has removed this member; the next poll fills
                `lost`.
            LogError: it is unknown whether the commit counted; the next commit repeats
                it.
        """
        in_order = sorted(owned_ranges, key=lambda owned: owned.id)
        for _ in range(MOST_IN_VAIN if isinstance(self.ownership, Shared) else 0):
            try:
                return self.commits.commit(in_order, self.ownership, metadata)
            # The group has a new generation. As long as this is a member, it still owns
            # its key ranges: commit again.
            except FencedError as error:
                log.info("committing again: %s", error)
                self._host.sleep(AGAIN_S)
        return self.commits.commit(in_order, self.ownership, metadata)

    def take_done(self) -> bool:
        """Apply the user's `done` marks; return False if one is for a record of a key
        range that was given up.

        Such a mark, and one for a record that was done before, is logged and ignored.
        """
        twice: list[str] = []
        gone: list[str] = []
        while self.finished:
            owned, offset = self.finished.popleft()
            if not owned.live:
                gone.append(f"{owned} {offset}")
            elif not owned.inflight.done(offset):
                twice.append(f"{owned} {offset}")
        if twice:
            log.warning(
                "%d records were done already: %s",
                len(twice),
                ", ".join(twice[:5]),
            )
        if gone:
            log.warning(
                "%d records are of key ranges that are not here any more, and are done again elsewhere: %s",
                len(gone),
                ", ".join(gone[:5]),
            )
        return not gone

    def check_overtaken(self, owned_ranges: Collection[OwnedRange]) -> None:
        """Check that no other consumer has opened the same hashes later, which can
        happen after `assign`.

        Raises:
            IndividualCommitTooOldError: another one has, so uncommitted work here does
                not count. The key range is opened again at the other consumer's
                position.
        """
        if not self.ownership.alone:
            return
        self.follower.poll(0.0)
        for owned in owned_ranges:
            rank = owned.progress.term(owned.at), self.openings.barrier.generation
            keys = [said.key for said in self.follower.live(owned.at)]
            louder = [
                key
                for key in keys
                if key.key_range.overlaps(owned.id.key_range)
                and (key.term, key.generation) > rank
            ]
            if louder:
                resolved = self.follower.resolve(owned.at, owned.id.key_range)
                stable = min(
                    (
                        one.segment.position
                        for one in resolved
                        if isinstance(one, Winner)
                    ),
                    default=0,
                )
                self.reader.close([owned])
                del self.owned_ranges[owned.id]
                self.openings.want([owned.id], owned.epoch)
                raise IndividualCommitTooOldError(
                    f"{owned}: another consumer reads it, and is at {stable}; going on from there",
                    last_stable_offset=stable,
                )

    def reopen(self) -> None:
        """Forget uncommitted progress, and open the key ranges again, so that their
        records are handed out again.
        """
        epochs = {
            owned.id: owned.epoch
            for owned in self.owned_ranges.values()
            if owned not in self.revocations
        }
        self.reader.close(self.owned_ranges.values())
        leaving = [
            owned for owned in self.owned_ranges.values() if owned in self.revocations
        ]
        self._gone(leaving)
        self.owned_ranges.clear()
        for id_, epoch in epochs.items():
            self.openings.want([id_], epoch)

    def close(self) -> None:
        """Commit everything done, and give up all key ranges."""
        self.take_done()
        self._told = True
        try:
            if self.owned_ranges:
                self.commit(list(self.owned_ranges.values()))
        except (LogError, GroupError) as error:
            log.warning(
                "closing: uncommitted records are processed again elsewhere: %s",
                error,
            )
        finally:
            self.openings.clear()
            self.ownership.close()
            self.commits.close()
            self.reader.close_reader()
            self.follower.close()
            self._policies.close()

    def _begin_poll(self) -> None:
        """Do what is due between two polls: obey the policy, lose key ranges that are
        late or whose topic was made anew, and give up those that `revocations` returns.
        """
        now = self._host.now()
        self._told = False
        self.take_done()
        if self._policies.changed():
            self._obey()
            if isinstance(self.ownership, Shared):
                self.ownership.group.rejoin()
        self._tell_restrictions()
        given_up, late = self.revocations.poll(now)
        try:
            if late:
                self._lose(late)
            if now >= self._compare_at:
                try:
                    self._lose_remade(given_up)
                except LogError as error:
                    log.warning("cannot see whether topics were made anew: %s", error)
            given_up &= set(
                self.owned_ranges.values()
            )  # without what was lost just now
            if not given_up:
                return
            _tell(self._scope.listeners.revoke, given_up)
            self.take_done()
            self.commit(given_up)
        except (LogError, MembershipLostError) as error:
            names = ", ".join(map(str, given_up))
            if isinstance(error, LogError) and (
                error.retryable or isinstance(error, FencedError)
            ):
                log.warning("%s cannot be given up yet: %s; trying again", names, error)
                self.revocations.ask(given_up, self._host.now())
                return
            log.warning(
                "giving up %s: uncommitted records are processed again elsewhere: %s",
                names,
                error,
            )
        except BaseException:  # the user's, raised by a callback
            self.revocations.ask(given_up, self._host.now())
            raise
        self._gone(given_up)

    def _obey(self) -> None:
        """Apply the cluster's policy and this consumer's settings.

        Source: the proposal's failures 1a and 2a, for key ranges that no group assigns.
        """
        self.commits.in_order = not (
            self.config["allow.individual.commit"]
            and self._policies.policy.accepts_individual_commit
        )
        if self.config["allow.individual.commit"]:
            self._restrictions = restrictions(
                self._policies.policy,
                self._scope.in_parts,
            )
        if self.ownership.alone and self._scope.in_parts:
            # no group takes the key ranges back
            self._refused = next(iter(self._restrictions), None)

    def _tell_restrictions(self) -> None:
        """Log what the policy keeps this consumer from, and call `on_restrict`, if that
        is new to the user.

        Nothing needs to be set for a topic that is not shared, so that no start warns
        of it.
        """
        before = self._told_restrictions
        now = tuple(map(str, self._restrictions))
        self._told_restrictions = now
        if now == (before or ()):
            return
        for error in self._restrictions:
            usual = before is None and isinstance(error, TopicRangeFetchNotAllowedError)
            log.log(logging.INFO if usual else logging.WARNING, "%s", error)
        if not now:
            log.info("the cluster's policy restricts this consumer no more")
        if self._scope.listeners.restrict is not None:
            self._scope.listeners.restrict(self._restrictions)

    def _handle(self) -> None:
        """Process the events of the group and the deadlines of revocations."""
        late = self.revocations.expire(self._host.now())
        if late:
            self._lose(late)
        while True:
            try:
                event = self._scope.inbox.get_nowait()
            except Empty:
                return
            match event:
                case Refused(error):
                    self._refused = error
                case Lost():
                    log.warning(
                        "the group has removed this consumer; uncommitted records are processed again elsewhere"
                    )
                    self.openings.clear()
                    self._lose(list(self.owned_ranges.values()))
                case Assigned():
                    self._assigned(event)

    def _assigned(self, event: Assigned) -> None:
        """Have added key ranges opened, revoked ones given up, and keep those that the
        group has given back.
        """
        assert isinstance(self.ownership, Shared)
        self.ownership.assigned = event
        self.openings.barrier.follow_generation(event)
        cut = [id_ for id_ in event.added if not id_.key_range.is_whole]
        if cut and not self._scope.in_parts:
            raise ConsumerRangeFetchNotAcceptedError(
                f"this consumer does not share, and was assigned a part of a partition: {cut[0]}"
            )
        kept = self._held(event.added)
        self.revocations.keep(kept)
        for owned in kept:
            owned.leave(False)
        fresh = [id_ for id_ in event.added if id_ not in self.owned_ranges]
        self.openings.want(fresh, event.epoch)
        if unopened := self.openings.drop(event.revoked):
            self.ownership.released(unopened)
        leaving = self._held(event.revoked)
        self.revocations.ask(leaving, self._host.now())
        for owned in leaving:
            owned.leave(True)
        self._told = self._told or bool(leaving)

    def _held(self, ids: Iterable[TaskId]) -> list[OwnedRange]:
        return [self.owned_ranges[id_] for id_ in ids if id_ in self.owned_ranges]

    def _open(self) -> None:
        """Open the key ranges whose barrier is passed, and commit their positions as a
        claim.
        """
        if not self.openings:
            return
        opened: list[tuple[Progress, Opening]] = []
        try:
            opened = self.openings.step(self.owned_ranges.keys())
            fresh = [
                OwnedRange(
                    opening.id,
                    progress,
                    opening.epoch,
                    self.config["max.individual.commits"],
                )
                for progress, opening in opened
            ]
            if fresh:
                # Before a record is handed out: no earlier owner's commit counts then.
                self.commits.claim(fresh, self.ownership)
        except (LogError, GroupError) as error:
            for _, opening in opened:
                self.openings.want([opening.id], opening.epoch)
            if isinstance(error, (OffsetOutOfRangeError, AccessDeniedError)):
                raise
            log.warning("opening key ranges: %s; trying again", error)
            return
        for owned in fresh:
            self.owned_ranges[owned.id] = owned
            self.reader.open(owned)
        _tell(self._scope.listeners.assign, fresh)

    def _note(self) -> None:
        """Apply `done` marks, and commit if there are many or it is time. Rejoin when a
        key range becomes blocked.
        """
        self.take_done()
        if due := self._due():
            self.commit(due)
        blocked = {
            owned for owned in self.owned_ranges.values() if owned.inflight.blocked()
        }
        for owned in blocked - self._blocked:
            log.warning(
                "%s: %d records are handed out and not done; nothing more until half of them are",
                owned,
                owned.inflight.missing,
            )
            if isinstance(self.ownership, Shared):
                self.ownership.group.rejoin()
        self._blocked = blocked

    def _due(self) -> list[OwnedRange]:
        """Return the key ranges that `consume` commits now without being asked."""
        now = self._host.now()
        if self.config["enable.auto.commit"] and now >= self._commit_at:
            self._commit_at = now + self._commit_s
            return list(self.owned_ranges.values())
        most = self.config["max.num.ranges.to.commit"]
        return [
            owned
            for owned in self.owned_ranges.values()
            if owned.inflight.many_news(most)
        ]

    def _let_pass(self) -> None:
        """Commit, for each key range, that it has no record to process below its first
        waiting one. Other consumers' transactions then need not wait for it.
        """
        if self._host.now() < self._let_pass_at:
            return
        self._let_pass_at = self._host.now() + LET_PASS_S
        try:
            self.commits.let_pass(list(self.owned_ranges.values()), self.ownership)
        except (LogError, MembershipLostError) as error:
            log.info("siblings wait longer: %s", error)

    def _lose(self, lost: Iterable[OwnedRange]) -> None:
        """Mark these key ranges as lost, close them, and call `on_lost`."""
        gone = [owned for owned in lost if owned.live]
        self.revocations.lose(gone)
        self._told = True
        self._gone(gone)
        _tell(self._scope.listeners.lost, gone)

    def _lose_remade(self, given_up: Collection[OwnedRange] = ()) -> bool:
        """Lose the key ranges whose topic was deleted and made anew, because their
        offsets mean other records now. Return whether there are any.

        Key ranges that are not in `given_up` are opened again in the new topic.

        Raises:
            LogError: the brokers did not answer.
        """
        self._compare_at = self._host.now() + LOOK_EVERY_S
        remade = self.openings.remade(
            owned.progress for owned in self.owned_ranges.values()
        )
        lost = [
            owned for owned in self.owned_ranges.values() if owned.progress in remade
        ]
        if not lost:
            return False
        log.warning(
            "%s: the topic was deleted and made anew; records of the one before are lost",
            ", ".join(map(str, lost)),
        )
        self.reader.close(lost, remade=True)
        leaving = [
            owned for owned in lost if owned in given_up or owned in self.revocations
        ]
        for owned in lost:
            if owned not in leaving:
                del self.owned_ranges[owned.id]
                self.openings.want([owned.id], owned.epoch)
        self.revocations.lose(lost)
        self._told = True
        self._gone(leaving)
        _tell(self._scope.listeners.lost, lost)
        return True

    def _gone(self, owned_ranges: Collection[OwnedRange]) -> None:
        """Close these key ranges, and release them to the group."""
        self.reader.close(owned_ranges)
        for owned in owned_ranges:
            self.owned_ranges.pop(owned.id, None)
        if (
            owned_ranges
            and isinstance(self.ownership, Shared)
            and self.ownership.assigned is not None
        ):
            self.ownership.released([owned.id for owned in owned_ranges])


def _tell(
    listener: RangesCallback | None, owned_ranges: Collection[OwnedRange]
) -> None:
    if listener is not None and owned_ranges:
        listener(by_partition(owned_ranges))


def by_partition(owned_ranges: Iterable[OwnedRange]) -> Ranges:
    """Return the key ranges of each partition, ascending."""
    ranges: dict[TopicPartition, list[KeyRange]] = {}
    for owned in owned_ranges:
        ranges.setdefault(owned.at, []).append(owned.id.key_range)
    return {at: tuple(sorted(some)) for at, some in sorted(ranges.items())}


def transactional_ids(group: str, host: Host) -> tuple[str, str]:
    """Return new transactional ids for one consumer: for the user's producer, and for
    the consumer's own writer.
    """
    life = host.unique()
    return f"{group}-consumer-{life}", f"{group}-consumer-{life}-commit"


def alone(
    config: ConsumerConfig,
    wiring: Wiring,
    log: Log,
    wanted: Mapping[TopicPartition, tuple[KeyRange, ...]],
    filter_: RecordFilter | None,
) -> ConsumerSession:
    """Return a session for these key ranges without a group membership; see
    `CooperativeConsumer.assign`.
    """
    policies = Policies(log, config["replication.factor"], wiring.host)
    _check(config, log, policies, wanted)
    topics = topic_numbers(sorted({at.topic for at in wanted}))
    ids = [
        TaskId(topic_number(at.topic), at.partition, key_range)
        for at, ranges in wanted.items()
        for key_range in ranges or (WHOLE,)
    ]
    ownership = Alone(
        GroupAdmin(
            config.client,
            config["group.id"],
            timeout_s=config["connect.timeout.ms"] / 1000,
        )
    )
    # The id depends on the key ranges only: a replacement that reads the same fences
    # its predecessor, and ends the transaction that it left open.
    what = hashlib.sha256(
        "\n".join(sorted(f"{topics[id_.subtopology]} {id_}" for id_ in ids)).encode()
    ).hexdigest()[:16]
    host = wiring.host
    scope = Scope(
        ownership,
        topics,
        f"{config['group.id']}-alone-{what}",
        _follower(config, log),
        policies,
        host.inbox(),
        [host.now()],
        filter_,
        in_parts={topics[id_.subtopology] for id_ in ids if not id_.key_range.is_whole},
    )
    session = ConsumerSession(config, host, log, scope)
    # No coordinator counts generations here: if two consumers choose the same term, the
    # later start outranks the other.
    session.openings.barrier.generation = host.wall_ms() // 1000
    session.openings.want(ids, 0)
    return session


def shared(
    config: ConsumerConfig,
    wiring: Wiring,
    log: Log,
    assignor: Assignor,
    topics: Sequence[str],
    transactional: tuple[str, str],
    filter_: RecordFilter | None,
    listeners: Listeners,
    *,
    parts: bool,
) -> ConsumerSession:
    """Return a session of a member that joins the group; see
    `CooperativeConsumer.subscribe`.
    """
    group = config["group.id"]
    host = wiring.host
    policies = Policies(log, config["replication.factor"], wiring.host)
    policies.watch(topics)
    inbox: Inbox[GroupEvent] = host.inbox()
    follower = _follower(config, log)
    polled = [host.now()]

    def info() -> MemberInfo:
        return MemberInfo(
            transactional[0],
            host.called(),
            transactional_ids=transactional,
            allow_key_share=parts,
        )

    def assign(states: Mapping[str, MemberState]) -> Mapping[str, Assignment]:
        partitions, shareable = policies.for_leader(
            {topic for state in states.values() for topic in state.topics}
        )
        return assign_consumers(assignor, partitions, shareable, states)

    timings = Timings(
        session=config["session.timeout.ms"],
        heartbeat=config["heartbeat.interval.ms"],
        connect=config["connect.timeout.ms"],
        request=int(1000 * STEADY_S),
    )
    participant = Participant(
        group,
        # Subscribe to the commit topic, too: the broker expires offsets of topics
        # without a subscription.
        [*topics, follower.partition.topic],
        info,
        assign,
        inbox.put,
        lambda: host.now() - polled[0] < config["max.poll.interval.ms"] / 1000,
        sources={number: [topic] for number, topic in policies.numbers().items()},
        host=host,
    )
    member = GroupMember(
        wiring.coordinator(config.client),
        participant,
        identity=Identity(config["group.instance.id"]),
        timings=timings,
        host=host,
    )
    scope = Scope(
        Shared(member),
        topic_numbers(topics),
        transactional[1],
        follower,
        policies,
        inbox,
        polled,
        filter_,
        listeners,
        topics if parts else (),
    )
    session = ConsumerSession(config, host, log, scope)
    member.start()
    return session


def _follower(config: ConsumerConfig, log: Log) -> Follower:
    return Follower(log, config["group.id"], replication=config["replication.factor"])


def _openings(
    config: ConsumerConfig,
    host: Host,
    log: Log,
    scope: Scope,
) -> Openings:
    """Return the openings of a session, with its positions and its barrier."""
    ownership = scope.ownership
    follower = scope.follower

    def sources(task: TaskId) -> tuple[TopicPartition, ...]:
        return (TopicPartition(scope.topics[task.subtopology], task.partition),)

    positions = Positions(
        log,
        ownership.group,
        follower,
        sources,
        lambda _: config["auto.offset.reset"],
        scope.transactional_id,
        alone=ownership.alone,
        host=host,
    )
    # Match the whole id: the id of another group may begin with this group's id.
    form = re.compile(
        re.escape(config["group.id"]) + r"-consumer-[0-9a-f]{32}(-commit)?"
    )
    commits = [follower.partition.topic]
    barrier = Barrier(
        ownership.group if isinstance(ownership, Shared) else None,
        follower,
        lambda name: form.fullmatch(name) is not None,
        lambda dead: log.settle(dead, commits),
        host,
    )
    return Openings(follower, barrier, positions, host)


def _check(
    config: ConsumerConfig,
    log: Log,
    policies: Policies,
    wanted: Mapping[TopicPartition, tuple[KeyRange, ...]],
) -> None:
    """Check that this consumer may read these key ranges."""
    counts = log.partitions(sorted({at.topic for at in wanted}))
    policies.watch([at.topic for at in wanted if at.topic in counts])
    for at, ranges in wanted.items():
        if at.partition not in range(counts.get(at.topic, 0)):
            raise UnknownTopicError(
                f"there is no {at}: create the topic first, or correct the name"
            )
        for one, other in combinations(ranges, 2):
            if one.overlaps(other):
                raise ValueError(
                    f"{at}: key range {other} overlaps another one: a record would be handed out twice"
                )
        if not all(key_range.is_whole for key_range in ranges):
            _check_part(config, policies, at)


def _check_part(
    config: ConsumerConfig,
    policies: Policies,
    at: TopicPartition,
) -> None:
    """Check that the topic, the cluster and this consumer's settings allow it to read a
    part of a partition by key range.
    """
    if not config["allow.individual.commit"]:
        raise ConsumerRangeFetchNotAcceptedError(
            f"{at}: a part of a partition, and allow.individual.commit of this consumer is false"
        )
    if not policies.policy.accepts_range_fetch(at.topic):
        raise TopicRangeFetchNotAllowedError(
            f"{at}: its topic may not be read by key range. Allow it: `coopstreams policy set "
            f"accept.range.fetch=true --topic {at.topic}`"
        )
