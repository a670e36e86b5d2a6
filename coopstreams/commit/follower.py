"""The follower: it reads the group's partition of `__individual_commit_offsets` and
knows the positions of the group.

The opener thread polls; stream threads ask (`mirror`, `garbage`, `open`) at any time. A
barrier is the partition's high watermark, taken after this member knows its generation:
members fenced earlier have written nothing above it. `poll` reads committed records
only, so when `tail` has passed the barrier, every transaction below it is decided and
known. An open transaction of another group holds the tail, but it holds the barrier
only if a record of this group is behind it (`hidden_commits`).

A record of the group may be unreadable: damaged, or written by a newer version. The
follower never skips it but sets its key aside. As long as a key is set aside, no
barrier counts as passed, and there is no mirror and no tombstone. So no task opens.
Running tasks go on, since they need only what they know themselves. A later record of
the same key, readable or a tombstone, ends this, because the last record of a key
counts. Log compaction has the same effect. Records of other groups are not decoded.

Invariant: every record of the group that counts below `tail` is in the view, or its key
is set aside; `tail` never goes back.
Relies on: `view`, whose methods of the same names have the rules; `hidden_commits`.
Turned down: a follower per stream thread (the topic would be read and kept several
times over). Stopping at an unreadable record (it would have to be compacted away even
after a tombstone: an hour, and never in the last segment).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock

from coopstreams.commit.hidden_commits import NAMED, AboveTail
from coopstreams.commit.record import (
    NEWEST_VALUE,
    PARTITIONS,
    VERSION,
    Committed,
    Segment,
    partition_of,
    topic_spec,
)
from coopstreams.commit.view import (
    CommitView,
    Hole,
    LiveCommit,
    PartitionStart,
    Winner,
)
from coopstreams.common.topic_settings import IN_SYNC, setting_command
from coopstreams.log.log import Log, Position, Reader, TopicSpec
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    ConfigError,
    LogError,
    OffsetOutOfRangeError,
)
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.naming import COMMIT_TOPIC, OFFSETS_TOPIC

log = logging.getLogger(__name__)

VOID = "void"
"""The metadata that voids a plain offset in a partition of the commit topic. A fence
left that offset there before a reset put the group's progress into another partition.
"""
_BATCH = 2000


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record of the group that this version cannot read. `key`: its bytes; `why`: the
    reason.
    """

    key: bytes
    offset: int
    why: str
    newer: bool
    """Whether a newer version wrote it, by its first bytes; otherwise it is damaged."""


class Follower:
    """A reader of one group's individual commits, which answers from those that it has
    read.

    `poll`, `barrier`, `look_ahead`, `look_no_more` and `close` belong to the opener
    thread. Everything else is thread-safe: a lock, or one value that is replaced.
    """

    def __init__(
        self,
        log: Log,
        group: str,
        *,
        partitions: int = PARTITIONS,
        replication: int = -1,
    ) -> None:
        """Find the group's partition; create a missing topic with `partitions`
        partitions. Reads no record yet.
        """
        self._log = log
        counts = log.partitions([COMMIT_TOPIC])
        if COMMIT_TOPIC not in counts:
            spec = topic_spec(partitions, replication)
            log.create_topics([_as_durable_as_offsets(log, spec)])
            counts = log.partitions([COMMIT_TOPIC])
        self.partitions = counts[COMMIT_TOPIC]
        self.group = group
        self.partition = TopicPartition(
            COMMIT_TOPIC,
            partition_of(group, self.partitions),
        )
        self._lock = Lock()
        self._view = CommitView(group)
        self._unreadable: dict[bytes, Unreadable] = {}
        self._tail = log.start_offset(self.partition)
        self._above_tail = AboveTail(log, group, self.partition)
        self._clear = 0
        """The offset below which no record of the group follows some earlier tail: see
        `hidden_commits`.
        """
        self._reader: Reader = log.reader()
        self._reader.assign({self.partition: Position(self._tail)})

    def check_policy(self) -> None:
        """Raise an error unless the topic is compacted, so that it keeps the last
        record of each key for ever.

        Raises:
            ConfigError: its `cleanup.policy` is not `compact`: another program created
                it, or the setting was changed.
        """
        try:
            policy = self._log.topic_config(COMMIT_TOPIC).get("cleanup.policy", "")
        except LogError as error:
            log.warning(
                "cannot see whether cleanup.policy of %s is compact, which it must be: %s",
                COMMIT_TOPIC,
                error,
            )
            return
        if policy != "compact":
            raise ConfigError(
                f"{COMMIT_TOPIC} has cleanup.policy={policy}: it would delete the progress of groups. Make it a "
                f"compacted topic: {setting_command(COMMIT_TOPIC, 'cleanup.policy', 'compact')}"
            )

    def check(self, rows: Mapping[TopicPartition, tuple[int, str] | None]) -> None:
        """Raise an error unless the group has always used this partition of the commit
        topic.

        `rows`: the plain offsets that the group's fences have left in the partitions
        they used. An offset that a reset has made void does not count.

        Raises:
            ConfigError: the topic's partition count was changed, so the group's
                progress is in another partition now; or records are gone.
        """
        found = {
            partition: row[0]
            for partition, row in rows.items()
            if row is not None and partition.topic == COMMIT_TOPIC and row[1] != VOID
        }
        known = found.pop(self.partition, 0)
        end = self.barrier()
        if known > end:
            raise ConfigError(
                f"{self.partition} ends at offset {end}, and group {self.group!r} had read it up to {known}: records "
                "of its progress are gone. Restore the topic, or say where to go on: `coopstreams group reset`, or "
                "`coopstreams reset` to begin anew"
            )
        others = sorted(partition.partition for partition in found)
        if others:
            raise ConfigError(
                f"group {self.group!r} keeps its progress in partition {others[0]} of {COMMIT_TOPIC}, but with "
                f"{self.partitions} partitions it belongs into {self.partition.partition}: the partition count was "
                "changed, which it must never be, and Kafka cannot take partitions back. Stop all instances, and begin "
                "anew (`coopstreams reset`), or say where the group goes on in each topic that it reads: `coopstreams "
                f"group reset {self.group} --topic TOPIC --to OFFSET`"
            )

    def rows(self) -> list[TopicPartition]:
        """Return all partitions of the commit topic: in each, a fence of the group may
        have left an offset.
        """
        return [
            TopicPartition(COMMIT_TOPIC, number)
            for number in range(max(self.partitions, PARTITIONS))
        ]

    @property
    def known(self) -> int:
        """The number of the group's records that were read."""
        return self._view.taken

    @property
    def tail(self) -> int:
        """The offset of the group's partition below which everything is known."""
        return self._tail

    def poll(self, timeout_s: float) -> bool:
        """Read on; wait at most `timeout_s` for the first record. Return whether the
        tail moved.

        Raises:
            OffsetOutOfRangeError: the topic was made anew, or records were deleted,
                since the last read.
            LogError: the partition cannot be read.
        """
        before = self._tail
        try:
            batches = self._reader.fetch(_BATCH, timeout_s)
        except OffsetOutOfRangeError as error:
            raise OffsetOutOfRangeError(
                f"{self.partition} has no longer the offset {before}, up to which it was read: {COMMIT_TOPIC} was made "
                f"anew, or its records were deleted, while group {self.group!r} was running. Start this process again: "
                "it goes on, or says which commits are missing"
            ) from error
        for batch in batches:
            columns = batch.columns
            with self._lock:
                for key, value, offset in zip(
                    columns.keys,
                    columns.values,
                    columns.offsets,
                    strict=True,
                ):
                    if key is not None:
                        self._take(key, value, offset)
                self._tail = max(self._tail, batch.next_offset)
        return self._tail > before

    def wake(self) -> None:
        """End the wait of a running `poll`."""
        self._reader.wake()

    @property
    def unreadable(self) -> list[Unreadable]:
        """The records of this group that cannot be read, in log order."""
        with self._lock:
            return sorted(self._unreadable.values(), key=lambda record: record.offset)

    @property
    def trouble(self) -> str:
        """Why no barrier passes although everything was read, with the cure; empty: all
        records are readable.
        """
        records = self.unreadable
        if not records:
            return ""
        first = records[0]
        cure = (
            "A newer coopstreams wrote to this group: upgrade this process"
            if first.newer
            else f"Stop all instances; `coopstreams group reset {self.group}` for the partitions that are concerned "
            "takes it away and says where to go on"
        )
        return (
            f"{len(records)} of the records of group {self.group!r} in {self.partition} cannot be read, the first at "
            f"offset {first.offset}: {first.why}. {cure}. Until then no task opens here; those that run go on"
        )

    def check_readable(self) -> None:
        """Raise an error unless all records of this group so far could be read.

        Raises:
            LogError: a record could not be read; the message names it and the cure.
        """
        if trouble := self.trouble:
            raise LogError(trouble)

    def barrier(self) -> int:
        """Return the true current high watermark: everything written so far lies below
        it, decided or not.

        Raises:
            LogError: retryable: it lies below the tail. The broker that answered hung
                for a while and does not lead the partition any more, or the topic was
                recreated.
        """
        end = self._log.end_offset(self.partition)
        if end < self._tail:
            raise LogError(
                f"{self.partition} ends at offset {end}, but was read up to {self._tail}: a former leader of the "
                f"partition answered. If this persists, {COMMIT_TOPIC} was made anew while group {self.group!r} "
                "was running: restart this process, which then reports the commits that are missing",
                retryable=True,
            )
        return end

    def passed(self, barrier: int) -> bool:
        """Return whether everything of the group below the barrier is decided, known
        and readable.
        """
        return self.knows(barrier) and not self._unreadable

    def knows(self, barrier: int) -> bool:
        """Return whether everything of the group below the barrier is decided and was
        read.
        """
        return max(self._tail, self._clear) >= barrier

    def look_ahead(self, barrier: int) -> None:
        """Look for records of the group between the tail and a barrier that is not
        passed. If there are none, the barrier is passed.

        Reads without waiting; call it again until the barrier is passed, then
        `look_no_more`.

        Raises:
            LogError: the partition cannot be read.
        """
        if self._tail < barrier:
            self._clear = max(self._clear, self._above_tail.look(self._tail, barrier))

    def look_no_more(self) -> None:
        """Stop reading above the tail. Idempotent."""
        self._above_tail.end()

    def held_back(self, barrier: int) -> str:
        """Return why a barrier is not passed, and the cure, as far as `look_ahead` has
        found out.
        """
        known = f"offset {barrier} of {self.partition}, known up to {self._tail}"
        writers = self._above_tail.writers
        if not writers:
            return known
        first = writers[0]
        own = [writer for writer in writers[1:] if writer.group == self.group]
        names = ", ".join(map(str, own[:NAMED]))
        behind = (
            f", with records behind it that concern this group: {names}" if own else ""
        )
        return (
            f"{known}. A transaction of {first} is open from there on{behind}. It ends with its writer, or at the writer's "
            "transaction.timeout.ms. If it has no writer any more and stays: kafka-transactions.sh --bootstrap-server "
            f"<HOST:PORT> abort --topic {COMMIT_TOPIC} --partition {self.partition.partition} --start-offset "
            f"{self._tail}"
        )

    def open(
        self,
        partition: TopicPartition,
        key_range: KeyRange,
        committed: Committed | None,
        reset: Position,
        *,
        in_birth_order: bool = False,
    ) -> PartitionStart:
        """Return where a task begins: see `CommitView.open`. Call it only when the
        barrier is `passed`, with a plain offset fetched after that.
        """
        with self._lock:
            return self._view.open(
                partition,
                key_range,
                committed,
                reset,
                in_birth_order=in_birth_order,
            )

    def stable(
        self,
        partition: TopicPartition,
        committed: Committed | None,
        own: Sequence[Segment] = (),
    ) -> Position | None:
        """Return the stable position, None if some hash has never committed: see
        `CommitView.stable`.
        """
        with self._lock:
            return self._view.stable(partition, committed, own)

    def resolve(
        self,
        partition: TopicPartition,
        key_range: KeyRange,
    ) -> list[Winner | Hole]:
        """Return the winners and holes of a key range: see `CommitView.resolve`."""
        with self._lock:
            return self._view.resolve(partition, key_range)

    def whole(self, partition: TopicPartition) -> Sequence[Winner | Hole]:
        """Return the segments that count for the whole hash space of a partition, and
        the holes between them: see `CommitView.whole`.
        """
        with self._lock:
            return self._view.whole(partition)

    def mirror(
        self,
        partition: TopicPartition,
        committed: Committed | None,
        *,
        in_birth_order: bool = False,
    ) -> Committed | None:
        """Return the plain offset to write: see `CommitView.mirror`. None while a
        record is unreadable.
        """
        with self._lock:
            if self._unreadable:
                return None
            return self._view.mirror(
                partition,
                committed,
                in_birth_order=in_birth_order,
            )

    def garbage(
        self,
        partition: TopicPartition,
        mine: Sequence[KeyRange],
    ) -> list[bytes]:
        """Return the keys to tombstone: see `CommitView.garbage`. Empty while a record
        is unreadable.
        """
        with self._lock:
            return [] if self._unreadable else self._view.garbage(partition, mine)

    def look_up(self, topic: str) -> str:
        """Fetch, set and return the id of a source topic: see `CommitView.tell`.

        Raises:
            LogError: the brokers do not tell the id now.
            UnknownTopicError: there is no topic of this name.
        """
        topic_id = self._log.topic_id(topic)
        with self._lock:
            self._view.tell(topic, topic_id)
        return topic_id

    def of_this_topic(
        self,
        partition: TopicPartition,
        committed: Committed | None,
    ) -> Committed | None:
        """Return the plain offset; None if it names another topic id: see
        `CommitView.of_this_topic`.
        """
        with self._lock:
            return self._view.of_this_topic(partition, committed)

    def outlived(self, partition: TopicPartition, key_range: KeyRange) -> bool:
        """Return whether some hashes were last committed in a deleted topic: see
        `CommitView.outlived`.
        """
        with self._lock:
            return self._view.outlived(partition, key_range)

    def sources(self) -> list[TopicPartition]:
        """Return the source partitions that have individual commits."""
        with self._lock:
            return self._view.sources()

    def anew(self, partition: TopicPartition, committed: Committed | None) -> bool:
        """Return whether nothing was committed since a reset made the topic anew: see
        `CommitView.anew`.
        """
        with self._lock:
            return self._view.anew(partition, committed)

    def lacks(self, partition: TopicPartition, committed: Committed | None) -> bool:
        """Return whether named individual commits are gone: see `CommitView.lacks`."""
        with self._lock:
            return self._view.lacks(partition, committed)

    def next_term(self, partition: TopicPartition, committed: Committed | None) -> int:
        """Return the term for a task that opens now: see `CommitView.next_term`."""
        with self._lock:
            return self._view.next_term(partition, committed)

    def live(self, partition: TopicPartition) -> list[LiveCommit]:
        """Return the individual commits of a partition: see `CommitView.live`."""
        with self._lock:
            return self._view.live(partition)

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._above_tail.end()
        self._reader.close()

    def _take(
        self,
        key: bytes,
        value: bytes | None,
        offset: int,
    ) -> None:
        """Apply a record to the view, or set its key aside. The caller holds the lock."""
        try:
            self._view.apply(key, value)
        except LogError as error:
            if value is None:  # a tombstone takes the unreadable record back
                self._unreadable.pop(key, None)
                return
            newer = key[:1] > bytes([VERSION]) or value[:1] > bytes([NEWEST_VALUE])
            if key not in self._unreadable:
                log.error(
                    "%s: the record at offset %d of group %r cannot be read; no task opens here: %s",
                    self.partition,
                    offset,
                    self.group,
                    error,
                )
            self._unreadable[key] = Unreadable(key, offset, str(error), newer)
        else:
            if self._unreadable:
                self._unreadable.pop(key, None)


def _as_durable_as_offsets(log: Log, spec: TopicSpec) -> TopicSpec:
    """Return the specification of the commit topic with at least the replicas and the
    `min.insync.replicas` of `__consumer_offsets`.

    A cluster without that topic, or a user that may not see it, leaves it as it is.

    Source: the proposal's section on individual commits.
    """
    replicas = log.replicas(OFFSETS_TOPIC)
    if not replicas:
        return spec
    # The broker's default, -1, is at least 1.
    if replicas > max(1, spec.replication):
        spec = replace(spec, replication=replicas)
    try:
        in_sync = int(log.topic_config(OFFSETS_TOPIC).get(IN_SYNC, "1"))
    except LogError as error:
        if error.retryable:
            raise
        return spec
    if 1 < in_sync <= replicas:
        spec = replace(spec, config={**spec.config, IN_SYNC: str(in_sync)})
    return spec
