"""The narrow interface to a partitioned log: readers, writers, and administration.

Two implementations: `KafkaLog` (confluent-kafka) and `MemoryLog`. One contract suite
(`tests/log/`) checks both against this interface, and the simulated cluster of the
tests, a `MemoryLog` with faults (`tests/simulation/kafka/`). The interface uses
columns, in batches of one (partition, slot), and has no callback per record: so a
reader or writer may be native without a change above.

Invariant: a reader and a writer belong to the one thread that uses them; a `Log` itself
is thread-safe.
Relies on: `batches` (what is in a `RecordBatch`), `precondition` (why a change takes a
`Check`).
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
"""A function that is called with the name of a topic, right before each attempt of a
request that no broker fences.

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
    """The records of one fetch for one part of a partition. `slot`: the index of that
    part, a key range, in the `Reader.route` of the partition.

    Shape: `next_offset` is the first offset that the reader has not read: it is past
    dropped, compacted and control records. `columns` is empty if all records were
    dropped or control records; the position still moved.
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
    """Whether the reader had reached the end of the log (read_committed: the last
    stable offset) when this batch was made.
    """
    operator_times: Sequence[int] = ()
    """The operator times of the partition after this batch; see `Reader.route`."""
    busy: bool = False
    """Whether the fetch returned a record of the partition, of any key range, that is
    not a time mark.
    """
    advances: tuple[Advances, ...] = ()
    """The moments at which the partition's stream time advanced within this batch; see
    `Reader.route`.
    """
    clock: int = NO_STREAM_TIME
    """The clock after this batch, if the topic is timed (`clocks`)."""

    def behind(self, before: RecordBatch) -> RecordBatch:
        """Return one batch in place of this batch and the previous one, `before`, if
        neither has records. It has this batch's position.
        """
        operator_times = self.operator_times or before.operator_times
        return replace(
            self,
            operator_times=operator_times,
            advances=(*before.advances, *self.advances),
        )

    def reached(self, offset: int, times: Sequence[int]) -> RecordBatch:
        """Return this batch with operator times of at least `times` from an offset on.
        The offset is at most `next_offset`.
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
    """A reader of the partitions that it is assigned. It is never a member of the
    group. One thread.
    """

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Read exactly these partitions. A partition that is read already goes on if
        its position is the same; otherwise it seeks to the new one.

        A partition that stays keeps its routes and its hold, even if it seeks. A
        removed partition loses them.

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

        It takes effect with the next fetch, and may be called before the partition is
        assigned. A partition without routes has the one slot 0, and nothing is hashed.
        A record without a key has the hash of its offset.

        `timestamps` replaces the timestamps of ALL records, before any is dropped and
        before stream times are computed. `operator_times` is called with ALL records:
        the columns of a slot have the operator times before each of its records.
        `time_marks`: whether time marks advance stream time and all operator times.
        They are dropped in any case, unless `keep_marks` returns them as records
        (without routes they are always dropped). `suffix`: the number of bytes at the
        end of each key that are not hashed, because the store of a changelog has added
        them to the plain key. `advances`: whether batches say at which records or time
        marks, of any key range, stream time advanced. `writers`: of a timed topic, the
        number of its writers' source partitions (`clocks`): records then have births,
        and all operator times are the clock.
        """

    def fetch(self, max_records: int, timeout_s: float) -> list[RecordBatch]:
        """Return the records that are available; wait only for the first record, never
        to fill up.

        With routes, each slot of a fetched partition gets a batch, empty or not, so
        that every position moves. When the end of a partition is reached, a batch has
        `at_end`, once for each end.

        Shape: a record without a timestamp has -1. `max_records` bounds the records
        returned; no record is ever returned twice or left out.

        Raises:
            OffsetOutOfRangeError: the log no longer has the position of a partition;
                the message names both. Raised until the partition gets another
                position.
            UnknownTopicError: a topic was deleted while it was read.
            LogError: any other error that retrying does not cure. If the brokers are
                unreachable, the result is empty.
        """
        ...

    def wake(self) -> None:
        """End the wait of the running fetch, or else of the next one. Thread-safe;
        signal handlers may call it.
        """

    def clock(self, partition: TopicPartition) -> Clock | None:
        """Return the clock of a timed topic's partition, as of the last fetch; None if
        the topic is not timed. On the reader's thread only.
        """

    def hold(self, partition: TopicPartition, held: bool) -> None:
        """Stop or resume returning a partition's records, without a round trip;
        prefetched records are kept.
        """

    def close(self) -> None:
        """Close the reader and its connections. Idempotent."""


@dataclass(frozen=True, slots=True)
class GroupFence:
    """The identity under which offsets are committed, for the group coordinator to
    check: a member in a generation.

    `member`: its member id. `instance`: its `group.instance.id`; None: it is not a
    static member.
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
            ValueError: there are no offsets, or one is below 0. Nothing would be sent,
                and a stale member would commit unseen.
            FencedError: this process is no member (-1, ""); no coordinator refuses that
                identity.
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
    """A writer of records, in transactions if it was made with a transactional id. One
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

        Shape: `partitions` is None (murmur2 of the key, as in Java; any partition for a
        null key), an int (that partition for all), or a column (one partition for each
        record, where `outputs.ANY_PARTITION` means the same as None). Timestamps are
        kept. Only 0 becomes 1 on Kafka, whose client takes 0 for "now".

        Raises:
            DeliveryError: a record was refused at once (too large, unknown partition);
                the message names topic and reason.
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
        """Return an offset above all flushed records of this writer in a partition: the
        checkpoint in a changelog.

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
        """Add group offsets (offset, metadata), at least one, to the transaction; the
        coordinator checks the fence now.

        Raises:
            FencedError: the generation or member is stale: abort.
        """

    def commit(self, timeout_s: float) -> None:
        """Commit the transaction: all its records and offsets count. Readers see it
        once its markers are written.

        Raises:
            FencedError | DeliveryError | LogError: it is unknown whether the
                transaction was committed: call `abort`, drop the uncommitted state, and
                read the log.
        """

    def abort(self) -> None:
        """Abort the open transaction, if any; nothing of it counts. The writer is
        usable again in any case.

        Raises:
            LogError: retryable: the log is unreachable, so it is unknown whether the
                transaction has ended; call `abort` again.
        """

    def close(self) -> None:
        """Flush records outside of a transaction, abort an open transaction, and close
        the connections. Idempotent.
        """


BROKERS_TIME = {"message.timestamp.type": "LogAppendTime"}
"""The setting of a topic whose records get their timestamps from the broker.

By default a broker refuses records that are dated more than an hour ahead: a process
whose clock is wrong could commit nothing.
"""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to create. `config` in Kafka's names (`cleanup.policy`, `retention.ms`,
    ...). `replication`: the number of replicas; -1: the brokers' default.
    """

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    replication: int = -1


class Log(Protocol):
    """A partitioned log: a Kafka cluster, or one in memory. Thread-safe."""

    timeout_s: float
    """How long brokers may be unreachable before a request fails. A writer keeps the
    value that holds when it is made.
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
        """Return an idempotent writer, or, with an id, a transactional one. The open
        transaction of that id ends first.

        `written`: returns the topics that transactions of this id may have written to;
        None: any topic.
        """
        ...

    def settle(self, dead: Callable[[str], bool], written: Collection[str]) -> None:
        """End hanging transactions of unused transactional ids in these topics
        (`group.missing_markers`).

        `dead`: whether a transactional id is unused. `written`: the topics.

        Raises:
            LogError: retryable: not all brokers answered in time. Not retryable: the
                brokers do not allow it; the message has the cure.
        """

    def partitions(self, topics: Sequence[str] | None = None) -> dict[str, int]:
        """Return the partition count of each of these topics (None: of all topics) that
        exists.
        """
        ...

    def create_topics(
        self,
        specs: Sequence[TopicSpec],
        check: Check | None = None,
    ) -> None:
        """Create the topics that do not exist yet; leave existing ones unchanged.

        Raises:
            LogError: the brokers refuse (policy, authorisation, replication); the
                message names topic and cause. Or `check` raised it.
        """

    def delete_topics(self, names: Sequence[str], check: Check | None = None) -> None:
        """Delete these topics; ignore missing ones.

        Raises:
            LogError: the brokers refuse, or do not answer in time. Or `check` raised
                it.
        """

    def topic_config(self, topic: str) -> dict[str, str]:
        """Return the topic's configuration in Kafka's names."""
        ...

    def topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the configuration of each of these topics, in Kafka's names, by one
        request.
        """
        ...

    def topic_id(self, topic: str) -> str:
        """Return the id of the topic, which differs after it is recreated. Empty if the
        cluster's format is older than 2.8.

        Raises:
            UnknownTopicError: there is no topic of that name.
        """
        ...

    def start_offset(self, partition: TopicPartition) -> int:
        """Return the first offset that the log still has."""
        ...

    def end_offset(self, partition: TopicPartition) -> int:
        """Return the true high watermark (read_uncommitted): every record acknowledged
        before the call lies below it.
        """
        ...

    def end_offsets(
        self,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, int]:
        """Return the true high watermark of each of these partitions, by one request:
        see `end_offset`.
        """
        ...

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """Return the first offset whose record time is at least `timestamp_ms`; the
        true high watermark if there is no such record.
        """
        ...

    def reported_end(self, partition: TopicPartition) -> int:
        """Return the high watermark that a broker reports, which may be an old one.
        Cheaper than `end_offset`, and good enough for lags.
        """
        ...

    def replicas(self, topic: str) -> int:
        """Return the fewest replicas that a partition of a topic has, by the last list
        of all topics; 0: the topic is not in it.
        """
        ...

    def silent_replicas(
        self,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, frozenset[int]]:
        """Return, for each of these partitions, the brokers of in-sync replicas that do
        not answer now.

        Nothing new can be read from a partition with a silent replica before that
        broker answers or leaves the in-sync replicas.

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
        """Delete the records of a partition below an offset, which no task needs any
        more. `start_offset` is then at least that offset.

        Raises:
            OffsetOutOfRangeError: the partition ends before the offset.
            LogError: `check` raised it, or the brokers refuse.
        """

    def close(self) -> None:
        """Close all connections. Idempotent."""
