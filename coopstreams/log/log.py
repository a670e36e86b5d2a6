"""The narrow interface to a partitioned log: readers, writers, and administration.

Two implementations: `KafkaLog` (confluent-kafka) and `MemoryLog`. One contract suite
(`tests/log/`) checks both against this page, and also the simulated cluster of the
tests, a `MemoryLog` with faults (`tests/simulation/kafka/`). The interface uses
columns, in batches of one (partition, slot), and has no callback per record: so a
native reader and writer can come later without a change above.

Invariant: a reader and a writer belong to the one thread that uses them; a `Log` itself
is thread-safe.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import (
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from coopstreams.log.clocks import Clock
from coopstreams.topology.columns import (
    Advances,
    Columns,
    Headers,
    Int64s,
    TopicPartition,
)
from coopstreams.topology.compile.operator_time import OperatorTimeColumns
from coopstreams.topology.compile.timestamps import TimestampColumn
from coopstreams.topology.errors import FencedError
from coopstreams.topology.keys import KeyRange

Check: TypeAlias = Callable[[str], None]
"""Called with the name of a topic, right before each attempt of a request that no
broker fences.

It raises if the request must not be made any more: see `precondition`.
"""
NO_STREAM_TIME = -1
"""The stream time of a partition of which nothing has been read."""
UNKNOWN_FOR_S = 3.0
"""How long a topic may be unknown before it counts as gone.

A broker learns late of a new topic, and of all topics when it has just started.
"""


@dataclass(slots=True)
class RecordBatch:
    """The records of one fetch for one (partition, slot).

    Shape: `next_offset` is the first offset this reader has not looked at: past
    dropped, compacted and control records. `columns` may be empty: everything was
    dropped or control records, and the position still moved.
    """

    partition: TopicPartition
    slot: int
    columns: Columns
    next_offset: int
    stream_time: int
    """The partition's stream time after this batch, `NO_STREAM_TIME` if nothing was
    ever read. Units: ms.
    """
    at_end: bool
    """The reader had reached the end of the log (read_committed: the last stable
    offset) when this was made.
    """
    operator_times: Sequence[int] = ()
    """The operator times of the partition after this batch; see `route`."""
    busy: bool = False
    """Whether the fetch had a record, other than a time mark, of the partition: of any
    key range.
    """
    advances: tuple[Advances, ...] = ()
    """The moments at which the partition's stream time advanced within this batch; see
    `route`.
    """

    def behind(self, before: RecordBatch) -> RecordBatch:
        """Return one batch for this one and the one before it, if neither has records:
        the latest position.
        """
        operator_times = self.operator_times or before.operator_times
        return replace(
            self,
            operator_times=operator_times,
            advances=(*before.advances, *self.advances),
        )

    def reached(self, offset: int, times: Sequence[int]) -> RecordBatch:
        """Return this batch with operator times that hold from an offset on, at most
        `next_offset`.
        """
        columns = self.columns
        begin = bisect_left(columns.offsets, offset)
        if len(columns):
            raised = [
                [*of[:begin], *(max(time, least) for time in of[begin:])]
                for of, least in zip(columns.operator_times, times, strict=True)
            ]
            columns = replace(columns, operator_times=raised)
        after = self.operator_times or [NO_STREAM_TIME] * len(times)
        return replace(
            self,
            columns=columns,
            operator_times=list(map(max, after, times)),
        )

    @staticmethod
    def ended(
        partition: TopicPartition,
        slot: int,
        at: Position,
    ) -> RecordBatch:
        """Return a batch without records that marks the end of a partition at this
        position.
        """
        return RecordBatch(
            partition,
            slot,
            Columns((), (), (), (), ()),
            at.offset,
            at.stream_time,
            at_end=True,
        )


@dataclass(frozen=True, slots=True)
class Position:
    """A reader's start: the next offset to read, and the partition's stream time up to
    there.
    """

    offset: int
    stream_time: int = NO_STREAM_TIME


class Reader(Protocol):
    """Reads the partitions it is assigned; never a member of the group. One thread."""

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Read exactly these partitions. One that is being read goes on if its position
        matches, else seeks there.

        A partition that stays keeps its routes and its hold, also when it seeks; one
        that leaves loses them.

        Raises:
            UnknownTopicError: the cluster has no such partition; nothing is changed.
        """

    def route(
        self,
        partition: TopicPartition,
        ranges: Sequence[KeyRange],
        timestamps: TimestampColumn | None = None,
        operator_times: OperatorTimeColumns | None = None,
        *,
        time_marks: bool = False,
        keep_marks: bool = False,
        suffix: int = 0,
        advances: bool = False,
        writers: int | None = None,
    ) -> None:
        """Give each record to the slot (index) of the range with its key hash; drop
        records outside of all ranges.

        Takes effect from the next fetch. Without routes a partition has the one slot 0,
        and nothing is hashed. A record without a key has the hash of its offset. May be
        called before the partition is assigned. `timestamps` replaces the timestamps of
        ALL records, before any is dropped and before stream times are computed from
        them. `operator_times` is called with ALL records, too: the columns of a slot
        have the operator times before each of its records. Time marks are dropped; with
        `time_marks` they advance stream time and all operator times, and with
        `keep_marks` they are returned as any other record (without routes they are
        dropped, too). The last `suffix` bytes of each key are not hashed: those of a
        changelog that a store adds to the plain key. `advances`: batches say at which
        records or time marks, of any key range, stream time advanced. `writers`: of a
        timed topic, the number of its writers' source partitions (`clocks`): records
        have births, and all operator times are the clock.
        """

    def fetch(self, max_records: int, timeout_s: float) -> list[RecordBatch]:
        """Return the records that are available; wait only for the first record, never
        to fill up.

        With routes, each slot of a fetched partition gets a batch, empty or not, so
        that every position moves. When the end of a partition is reached, a batch with
        `at_end` says so, once per end.

        Shape: a record without a timestamp has -1. `max_records` bounds the records
        returned; no record is ever returned twice or left out.

        Raises:
            OffsetOutOfRangeError: the position of a partition is gone; names partition
                and offset. Until it is assigned elsewhere.
            UnknownTopicError: a topic was deleted while it was read.
            LogError: any other error that does not heal by itself. An unreachable
                broker heals: then the result is empty.
        """
        ...

    def wake(self) -> None:
        """End the wait of the fetch that runs, or else of the next one. Thread-safe;
        signal handlers may call it.
        """

    def clock(self, partition: TopicPartition) -> Clock | None:
        """Return the clock of a partition as far as it was fetched; None: its topic is
        not timed. On the reader's thread only.
        """

    def hold(self, partition: TopicPartition, held: bool) -> None:
        """Stop or resume returning a partition's records, without a round trip;
        prefetched records are kept.
        """

    def close(self) -> None:
        """Release everything. Idempotent."""


@dataclass(frozen=True, slots=True)
class GroupFence:
    """The identity under which offsets are committed, for the group coordinator to
    check: a member in a generation.
    """

    group: str
    generation: int
    member: str
    instance: str | None = None
    coordinator: int | None = None
    """The broker that coordinates the group, as this member knows it. None: unknown."""

    def check(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Check that sending these offsets makes the coordinator verify this identity.

        Raises:
            ValueError: no offsets, or one below 0: nothing would be sent, and a stale
            member would commit unseen.
            FencedError: the identity of no member (-1, ""), which no coordinator
            refuses.
        """
        if not offsets or any(offset < 0 for offset, _ in offsets.values()):
            raise ValueError(
                f'group "{self.group}": offsets {dict(offsets)} are no fence; send at least one, and none below 0'
            )
        if self.generation < 0 or not self.member:
            raise FencedError(
                f'this process is not a member of group "{self.group}" now, nothing may be committed. Abort, join, '
                "open again."
            )


class Writer(Protocol):
    """Writes records, in transactions if it was made with a transactional id. One
    thread.
    """

    def append(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Int64s,
        *,
        partitions: int | Int64s | None = None,
        headers: Sequence[Headers | None] | None = None,
    ) -> None:
        """Queue these records, in order; wait while the queue is full.

        A transactional writer needs an open transaction.

        Shape: `partitions` None = murmur2 of the key as Java does, any partition for a
        null key; an int = all to that one; a column: one each, with
        `outputs.ANY_PARTITION` as None. Timestamps are kept, but for 0 on Kafka: its
        client would take that for "now", so it is written as 1.

        Raises:
            DeliveryError: a record was refused at once (too large, unknown partition);
            names topic and reason.
            FencedError: another writer took over the transactional id.
        """

    def flush(self, timeout_s: float) -> None:
        """Wait until all queued records are in the log.

        Raises:
            DeliveryError: a record since the last flush was not delivered, or time ran
                out; nothing of this commit may count. A transactional writer on Kafka
                may raise this only when offsets are sent or the transaction is
                committed.
            FencedError: another writer took over the transactional id.
        """

    def delivered_to(self, partition: TopicPartition) -> int:
        """Return an offset above all flushed records of this writer in that partition:
        the changelog checkpoint.

        Only for records appended with `partitions` an int, as changelogs are.
        """
        ...

    def begin(self) -> None:
        """Begin a transaction. Only with a transactional id."""

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        fence: GroupFence,
    ) -> None:
        """Add group offsets (offset, metadata) to the transaction; the coordinator
        checks the fence now. Never empty.

        Raises:
            FencedError: the generation or member is stale: abort.
        """

    def commit(self, timeout_s: float) -> None:
        """Commit the transaction: all its records and offsets count. Readers see it
        once its markers are written.

        Raises:
            FencedError | DeliveryError | LogError: it may or may not have counted:
            `abort`, forget, and read the log.
        """

    def abort(self) -> None:
        """Abort the open transaction, if any; nothing of it counts. The writer is
        usable again in any case.

        Raises:
            LogError: retryable: the log is unreachable, and whether the transaction
            ended is not known; call it again.
        """

    def close(self) -> None:
        """Flush records outside of a transaction, abort an open transaction, release
        everything. Idempotent.
        """


BROKERS_TIME = {"message.timestamp.type": "LogAppendTime"}
"""The setting of a topic whose records have no time of their own.

By default a broker refuses records that are dated more than an hour ahead: a process
whose clock is wrong could commit nothing.
"""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to create. `config` in Kafka's names (`cleanup.policy`, `retention.ms`,
    ...).
    """

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    replication: int = -1


class Log(Protocol):
    """A cluster. Thread-safe."""

    timeout_s: float
    """How long brokers may be unreachable before a request fails; a writer keeps that
    of its beginning.
    """

    def reader(self, *, committed_only: bool = True) -> Reader:
        """Return a reader of committed records only (read_committed), or of all
        (read_uncommitted).
        """
        ...

    def writer(
        self,
        transactional_id: str | None = None,
        written: Callable[[], Collection[str]] | None = None,
    ) -> Writer:
        """Return an idempotent writer, or, with an id, a transactional one: the open
        transaction of that id ends first.

        `written`: the topics that transactions under this id may have written to; None:
        any.
        """
        ...

    def settle(self, dead: Callable[[str], bool], written: Collection[str]) -> None:
        """End hanging transactions of unused transactional ids in these topics
        (`group.missing_markers`).

        Raises:
            LogError: retryable: not all brokers answered in time. Not retryable: this
            principal may not; has the cure.
        """

    def partitions(self, topics: Sequence[str] | None = None) -> dict[str, int]:
        """Return the partition counts of the topics asked for (None: of all) that
        exist.
        """
        ...

    def create_topics(
        self,
        specs: Sequence[TopicSpec],
        check: Check | None = None,
    ) -> None:
        """Create the topics that do not exist yet; one that exists is left as it is.

        Raises:
            LogError: refused (policy, authorisation, replication); names topic and
            cause. Or see `check`.
        """

    def delete_topics(self, names: Sequence[str], check: Check | None = None) -> None:
        """Delete these topics; one that does not exist is fine.

        Raises:
            LogError: refused, or no answer in time. Or see `check`.
        """

    def topic_config(self, topic: str) -> dict[str, str]:
        """Return the topic's configuration in Kafka's names."""
        ...

    def topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the configuration of each of these topics, in one request: as
        `topic_config`.
        """
        ...

    def topic_id(self, topic: str) -> str:
        """Return the id of the topic, which differs after it is recreated; empty:
        brokers with a format before 2.8.

        Raises:
            UnknownTopicError: there is none of that name.
        """
        ...

    def start_offset(self, partition: TopicPartition) -> int:
        """Return the first offset that the log still has."""
        ...

    def end_offset(self, partition: TopicPartition) -> int:
        """Return the true high watermark (read_uncommitted): every record acknowledged
        before lies below it.
        """
        ...

    def end_offsets(
        self,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, int]:
        """Return the true high watermark of each of these partitions, in one request:
        as `end_offset`.
        """
        ...

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """Return the first offset of a record that is not older than this; the true
        high watermark if there is none.
        """
        ...

    def reported_end(self, partition: TopicPartition) -> int:
        """Return the high watermark as a broker reports it, maybe an old one: for lags.
        Cheaper than `end_offset`.
        """
        ...

    def silent_replicas(
        self,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, frozenset[int]]:
        """Return the brokers of in-sync replicas of these partitions that do not answer
        now.

        Nothing new can be read from such a partition before that broker answers, or is
        out of the in-sync replicas.

        Raises:
            LogError: the other brokers cannot be asked.
        """
        ...

    def delete_before(
        self,
        partition: TopicPartition,
        offset: int,
        check: Check | None = None,
    ) -> None:
        """Delete the records below an offset: processed repartition records.
        `start_offset` is then at least that.

        Raises:
            OffsetOutOfRangeError: the partition ends before it.
            LogError: see `check`.
        """

    def close(self) -> None:
        """Release everything. Idempotent."""
