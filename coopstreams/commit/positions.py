"""The positions with which a task opens, from the individual commits and the plain
offsets, behind the barrier.

A consumer's task has one source: its topic takes the place of a sub-topology.

A plain offset that an open transaction may still change is fetched again. A certain
offset is kept with the opening: behind its barrier no earlier owner can change it any
more. So a task waits for its own partitions only, and a fetch never fails as a whole,
although under exactly-once some transaction is always open.

Commits name their topic by its id, because a topic that is deleted and made anew under
its name has other records at their offsets. In that case an application does not open
(`check_named`): its state comes from the deleted records. A consumer has no state:
commits of the deleted topic no longer count, and it begins at `auto.offset.reset`.

With `auto.offset.reset` latest, or a duration before it, each task that asks would
begin at another offset. So the task with the first key range chooses for all tasks: it
commits the position before it processes anything (`Progress.begin`), and the other
tasks wait for it.

Relies on: `barrier` (`Opening`, and when an answer counts), `view` (which commit counts),
`opening/position_check.py` (whether a position was lost).
"""

from __future__ import annotations

import logging
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Protocol, TypeAlias

from coopstreams.commit.barrier import Opening
from coopstreams.commit.follower import Follower
from coopstreams.commit.group_progress import done_by_all
from coopstreams.commit.progress import Author, Progress
from coopstreams.commit.record import Committed, topic_number
from coopstreams.commit.view import PartitionStart
from coopstreams.common.host import SYSTEM, Host
from coopstreams.common.topic_settings import deletes
from coopstreams.group.group_requests import FetchedOffset, Offsets
from coopstreams.log.log import Log, Position
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    ConfigError,
    LogError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from coopstreams.topology.graph.offset_resets import EARLIEST, duration_ms_of
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

DOUBT_S = 10.0
"""How long commits may be missing before they count as lost: their topic was recreated,
or its records were deleted.

Also how long a topic may have another id than a consumer's commits name, before it
counts as recreated.
"""

FIRST_LOOK_S = 0.1
"""The pause between requests for a plain offset that another task, which starts the
partition, has yet to commit.
"""

Sources: TypeAlias = Callable[[TaskId], tuple[TopicPartition, ...]]
Resets: TypeAlias = Callable[[str], str]
"""A function that returns where a source topic begins if the group has no position in
it: see `offset_resets`.
"""
BegunCheck: TypeAlias = Callable[
    [TaskId, Mapping[TopicPartition, PartitionStart], Follower], None
]
"""A function that checks whether a task without a position has ever begun:
`opening.position_check`.
"""


class OffsetStore(Protocol):
    """A source of plain offsets: a member of the group, or an administrator."""

    def fetch_offsets(
        self,
        partitions: Iterable[TopicPartition] | None,
        *,
        stable: bool = True,
    ) -> FetchedOffset:
        """Return plain offsets as they are now: see `GroupMember.fetch_offsets`."""
        ...


def check_beside(
    follower: Follower,
    committed: Mapping[TopicPartition, Committed | None],
) -> None:
    """Raise an error unless the individual commits that these plain offsets name are
    known.

    Raises:
        ConfigError: they are gone; the message has the cure.
    """
    for partition, plain in committed.items():
        if plain is not None and follower.lacks(partition, plain):
            topic, number = partition
            raise ConfigError(
                f"{partition}: key ranges of group {follower.group!r} had committed more than the plain offset "
                f"{plain.offset} says, and these commits are no longer in {follower.partition}: "
                f"{follower.partition.topic} was made anew, its records were deleted, or its partition count was "
                f"changed. All records below {plain.offset} are done, and those of some keys above. Restore the topic; "
                "or begin anew (`coopstreams reset`); or process some records twice: stop all instances and run "
                f"`coopstreams group reset {follower.group} --topic {topic} --partition {number} --to {plain.offset}`. "
                "Or a tool has copied the offset from another cluster: if the changelogs were copied, too, go on "
                "behind them, with the offset up to which they have the records in that command"
            )


def check_named(
    group: str,
    openings: Mapping[TopicPartition, PartitionStart],
    ids: Mapping[str, str],
) -> None:
    """Raise an error if commits name other topic ids than the current ones in `ids`.
    Commits of older versions name no id.

    Raises:
        ConfigError: a topic was recreated since.
    """
    for partition, opening in openings.items():
        topic_id = ids[partition.topic]
        plain = opening.committed
        plain_names = plain.topic if plain is not None else 0
        if topic_id and (
            opening.named - {topic_id} or plain_names not in (0, topic_number(topic_id))
        ):
            raise made_anew(
                group,
                partition,
                min(segment.position for segment in opening.segments),
            )


def made_anew(
    group: str,
    partition: TopicPartition,
    offset: int | None,
) -> ConfigError:
    """Return the error for a source topic that was recreated since the group committed
    in it, with the cure.

    `offset`: the group's offset in the deleted topic; None: it was deleted with that
    topic.
    """
    was = "read it" if offset is None else f"was at offset {offset} of it"
    return ConfigError(
        f"{partition}: the topic was deleted and made anew since group {group!r} {was}. "
        "The new topic has other records there, and those below were never processed. Begin anew (`coopstreams "
        "reset`); or read it from its beginning, on top of the state that is there: stop all instances and run "
        f"`coopstreams group reset {group} --topic {partition.topic} --to earliest`. A topic that was copied from "
        "another cluster has the same records, and these would count twice: if the changelogs were copied, too, go "
        f"on behind them: `coopstreams group reset {group} --topic {partition.topic} --partition {partition.partition} "
        "--to OFFSET`"
    )


def _check_order(task: TaskId, progress: Progress) -> None:
    """Check that a task which takes records in the order of offsets has none done above
    its position.

    Raises:
        ConfigError: it has: an earlier version of the topology took records in the
            order of births; the message has the cure.
    """
    for source in progress.partitions:
        waiting = any(segment.ahead for segment in progress.segments(source))
        if waiting and source.topic not in progress.by_birth:
            raise ConfigError(
                f"{task}: an earlier version of the topology took the records of {source} "
                "in the order of their time, and some of them still waited. This version "
                "takes them in the order of their offsets, so it would process others "
                "twice. Run the topology as it was until its lag is 0, stop it, and then "
                "start this one; or begin anew (`coopstreams reset`)"
            )


class Positions:
    """A resolver of the positions of one instance's tasks. Belongs to one thread;
    `waits_for` is thread-safe, because it reads values that are replaced as a whole.
    """

    def __init__(  # noqa: PLR0913
        self,
        log: Log,
        coordinator: OffsetStore,
        follower: Follower,
        sources: Sources,
        resets: Resets,
        author: str,
        *,
        alone: bool = False,
        begun: BegunCheck | None = None,
        purged: Collection[str] = frozenset(),
        by_birth: Callable[[TaskId], frozenset[str]] = lambda _: frozenset(),
        host: Host = SYSTEM,
    ) -> None:
        """Make a resolver that has fetched nothing yet.

        `begun`: checks each task without a position; for applications only. Without it,
        a task without a position begins where `resets` says. `purged`: the topics whose
        processed records this application deletes, if their plain offsets may go back
        (docs/internals/positions.md). `by_birth`: returns the topics whose records a
        task takes in the order of births.
        """
        self._host = host
        self._log = log
        self._coordinator = coordinator
        self._follower = follower
        self.sources = sources
        """The function that returns the source partitions of a task; none if this
        process does not know the task yet.
        """
        self._resets = resets
        self._author = author
        self._alone = alone
        self._begun = begun
        self._purged = purged
        self._by_birth = by_birth
        self.unstable: dict[TopicPartition, float] = {}
        """The plain offsets that tasks wait for because of an open transaction, each
        with the time since when (`Host.now`).
        """
        self._awaited: dict[tuple[TaskId, TopicPartition], tuple[float, bool]] = {}
        """The plain offsets that tasks fetch again, each with the time of the last
        fetch, and whether individual commits were known at that time.
        """
        self._choosing: tuple[tuple[TaskId, TopicPartition], ...] = ()
        """The keys of `_awaited` for which another task chooses where the partition
        begins.
        """
        self._checked = False
        self._doubted_at: float | None = None

    def resolve(
        self,
        asking: Sequence[Opening],
        generation: int,
    ) -> dict[TaskId, Progress]:
        """Return the progress of the tasks whose positions are known; call it again for
        the others. Only behind the barrier.

        Raises:
            ConfigError: the group's progress is not where it should be; the message has
                the reason and the cure.
            LogError: the log no longer has a position; the message names it and the
                cure.
        """
        self._learn(asking)
        author = Author(self._follower.group, generation, self._author, self._alone)
        ready = [
            one
            for one in asking
            if one.plain.keys() >= set(self.sources(one.id))
            and not self._asks_again(one)
        ]
        self._choosing = tuple(
            at for at, (_, known) in self._awaited.items() if not known
        )
        resets: dict[TopicPartition, Position] = {}
        self._look_up_resets(ready, resets)
        topics = {source.topic for one in ready for source in self.sources(one.id)}
        ids = {topic: self._follower.look_up(topic) for topic in topics}
        if self._begun is None:
            ready = [one for one in ready if self._is_settled(one)]
            self._look_up_resets(ready, resets)
        progress = {}
        for one in filter(self._trusted, ready):
            openings = self._openings(one, resets)
            if self._begun is not None:
                check_named(self._follower.group, openings, ids)
                self._begun(one.id, openings, self._follower)
            opened = Progress(one.id.key_range, openings, author, ids)
            opened.by_birth = self._by_birth(one.id)
            _check_order(one.id, opened)
            progress[one.id] = opened
        self._check(progress.values())
        return progress

    def _openings(
        self,
        one: Opening,
        resets: Mapping[TopicPartition, Position],
    ) -> dict[TopicPartition, PartitionStart]:
        """Return where a task begins in each source. `resets`: where those begin that
        have no position.
        """
        return {
            source: self._follower.open(
                source,
                one.id.key_range,
                one.plain[source],
                resets.get(source, Position(0)),
                in_birth_order=source.topic in self._by_birth(one.id),
            )
            for source in self.sources(one.id)
        }

    def _look_up_resets(
        self,
        asking: Iterable[Opening],
        resets: dict[TopicPartition, Position],
    ) -> None:
        """Add to `resets` where `auto.offset.reset` begins in each source without a
        plain offset. In other sources no task begins there.
        """
        beginning = {
            source
            for one in asking
            for source in self.sources(one.id)
            if one.plain[source] is None
        }
        for source in beginning - resets.keys():
            resets[source] = self._reset(source)

    def _is_settled(self, one: Opening) -> bool:
        """Return whether it is certain which of a consumer's commits are of another
        topic. If not, have the task's barrier taken again.

        A lagging broker may have answered with the id of the deleted topic.
        """
        others = [
            source
            for source in self.sources(one.id)
            if self._follower.outlived(source, one.id.key_range)
            or self._follower.of_this_topic(source, one.plain[source])
            is not one.plain[source]
        ]
        if not others:
            return True
        one.doubted_at = one.doubted_at or self._host.now()
        if self._host.now() - one.doubted_at <= DOUBT_S:
            one.barrier = None
            return False
        for source in others:
            one.plain[source] = self._follower.of_this_topic(source, one.plain[source])
            log.warning(
                "%s[%s]: the topic was deleted and made anew since group %r committed in it. Those commits do not "
                "count any more: it begins at auto.offset.reset=%s",
                source,
                one.id.key_range,
                self._follower.group,
                self._resets(source.topic),
            )
        return True

    def remade(self, opened: Iterable[Progress]) -> list[Progress]:
        """Return the tasks with a source topic that was deleted and made anew since
        they were opened.

        Raises:
            LogError: the brokers did not answer.
        """
        ids: dict[str, str] = {}

        def is_remade(topic: str, before: str) -> bool:
            if topic not in ids:
                try:
                    ids[topic] = self._log.topic_id(topic)
                except UnknownTopicError:
                    ids[topic] = ""
            return "" not in (before, ids[topic]) and before != ids[topic]

        return [
            one
            for one in opened
            if any(
                is_remade(at.topic, one.topic_ids.get(at.topic, ""))
                for at in one.partitions
            )
        ]

    def _trusted(self, one: Opening) -> bool:
        """Return whether all commits that a task's plain offsets name are known; if
        not, have its barrier taken again.

        A sibling that opens at the same time may have committed between the barrier and
        the fetch of the offsets; and a lagging broker may have answered with an old
        end. Each commit is in the log before the offset that names it, so a barrier
        taken now lies above it.

        Raises:
            ConfigError: the commits have been missing behind every barrier for
                `DOUBT_S`: they are gone.
        """
        try:
            check_beside(
                self._follower,
                {source: one.plain[source] for source in self.sources(one.id)},
            )
        except ConfigError:
            one.doubted_at = one.doubted_at or self._host.now()
            if self._host.now() - one.doubted_at > DOUBT_S:
                raise
            one.barrier = None
            return False
        return True

    def _asks_again(self, one: Opening) -> bool:
        """Return whether a task fetches a missing plain offset again.

        It does until the task that chooses the first position has begun the partition.
        It does once if individual commits are known: a sibling may have begun after the
        first answer. If the offset is still missing then, it was lost.
        """
        if self._begun is None:
            return False
        now = self._host.now()
        again = False
        for source in self.sources(one.id):
            asked_at, knew = self._awaited.pop((one.id, source), (None, False))
            if one.plain[source] is not None or knew:
                continue
            known = self._follower.open(source, WHOLE, None, Position(0)).term > 1
            chosen_by_another = (
                one.id.key_range.start > 0 and self._resets(source.topic) != EARLIEST
            )
            if not known and not chosen_by_another:
                continue
            again = True
            if asked_at is None or known or now - asked_at >= FIRST_LOOK_S:
                asked_at = now
                del one.plain[source]
            self._awaited[one.id, source] = asked_at, known
        return again

    def waits_for(self, task: TaskId) -> str:
        """Return, in words, why the positions of a task behind its barrier are not
        known yet.
        """
        unstable = self.unstable
        now = self._host.now()
        if first := [str(source) for id_, source in self._choosing if id_ == task]:
            return f"the task with the first key range to choose where {', '.join(first)} begins"
        kept = [
            f"{source} for {now - unstable[source]:.0f} s"
            for source in self.sources(task)
            if source in unstable
        ]
        return "the group's plain offsets" + (
            f": an open transaction keeps back that of {', '.join(kept)}"
            if kept
            else ""
        )

    def _learn(self, asking: Sequence[Opening]) -> None:
        """Fetch the plain offsets that are not yet known, in one request."""
        missing = {
            source
            for one in asking
            for source in self.sources(one.id)
            if source not in one.plain
        }
        if not missing:
            self.unstable = {}
            return
        if not self._checked:
            # Not `stable`: some thread's open transaction always includes an offset of
            # the commit topic.
            self._check_rows(
                self._coordinator.fetch_offsets(
                    self._follower.rows(),
                    stable=False,
                ).offsets
            )
            self._checked = True
        fetched = self._coordinator.fetch_offsets(missing)
        now = self._host.now()
        self.unstable = {
            partition: self.unstable.get(partition, now)
            for partition in sorted(fetched.unstable)
        }
        for partition, found in fetched.offsets.items():
            committed = None if found is None else Committed.parse(*found)
            for one in asking:
                if partition in self.sources(one.id):
                    one.plain.setdefault(partition, committed)

    def _check_rows(self, rows: Offsets) -> None:
        """Check the plain offsets of the commit topic by `Follower.check`. An error is
        final only after `DOUBT_S`: a lagging broker may answer with an old end.
        """
        try:
            self._follower.check(rows)
        except ConfigError as error:
            self._doubted_at = self._doubted_at or self._host.now()
            if self._host.now() - self._doubted_at > DOUBT_S:
                raise
            raise LogError(str(error), retryable=True) from error
        self._doubted_at = None

    def _reset(self, partition: TopicPartition) -> Position:
        """Return where a partition without a position begins."""
        reset = self._resets(partition.topic)
        if reset == EARLIEST:
            return Position(self._log.start_offset(partition))
        before_ms = duration_ms_of(reset)
        if before_ms is None:
            return Position(self._log.end_offset(partition))
        return Position(
            self._log.offset_at(partition, max(0, self._host.wall_ms() - before_ms))
        )

    def _check(self, progress: Iterable[Progress]) -> None:
        """Raise an error for a position below the log start. A consumer would reset it
        silently and skip the deleted records.

        If the records were deleted because they had been processed, move the position
        to the log start instead.
        """
        for one in progress:
            for partition in one.partitions:
                start = self._log.start_offset(partition)
                if one.position(partition).offset >= start:
                    continue
                at, done = done_by_all(one.segments(partition))
                where = f"{partition}[{one.key_range}]: the group stands at offset {at}, but the log begins at {start}"
                if self._only_purged(partition.topic):
                    log.warning(
                        "%s: the records between were processed, and then deleted. The group was taken back by an "
                        "offset commit that was late, or by somebody. Going on from offset %d.",
                        where,
                        start,
                    )
                    one.skip(partition, start)
                    continue
                gone = (
                    start
                    - at
                    - sum(
                        min(end + 1, start) - first
                        for first, end in done
                        if first < start
                    )
                )
                command = (
                    f"coopstreams group reset {self._follower.group} --topic {partition.topic} --partition "
                    f"{partition.partition} --to earliest --forwards"
                )
                raise OffsetOutOfRangeError(
                    f"{where}: up to {max(0, gone)} records were deleted before they were processed. Raise the "
                    f"topic's retention; to go on without them, stop all instances and run `{command}`"
                )

    def _only_purged(self, topic: str) -> bool:
        """Return whether nobody but this application deletes records of a topic."""
        if topic not in self._purged:
            return False
        try:
            return not deletes(self._log.topic_config(topic))
        except LogError as error:
            if error.retryable:
                raise
            log.warning(
                "cannot see whether brokers delete records of %s: %s",
                topic,
                error,
            )
            return False
