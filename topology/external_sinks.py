"""Defines the interface of external sinks (`to_sink`), to which each record of a stream
is applied exactly once.

The records come from a repartition topic, which the application writes under its own
guarantee. So every applied record is in the log, with its offset, and does not change:
each session of a partition continues where the previous session ended. The sink stores
that position, in the same transaction as the changes by the records.

    open    takes over a partition: the term goes up, and no earlier session can apply anything any more
    apply   records and position together, or nothing

Invariant: the position of a partition is at or above the offset that the group has
committed, because the sink commits first. Records between the two offsets are applied
already, and skipped when they are read again. Turned down: applying the outputs of a
task directly. After a crash they are made again, perhaps differently (a clock, a random
number, a record cache that is flushed at another moment), so a position in them would
mean nothing; and new key ranges would need a position for each hash.
Relies on: `commit.sink_transactions` (applies), `opening.sink_openings` (opens).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import (
    Any,
    NamedTuple,
    Protocol,
    TypeAlias,
)

from coopstreams.topology.columns import Columns, Headers, TopicPartition


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """A record to apply to a sink. `offset`: its offset in the topic that the sink
    reads. Units: `timestamp` in ms.
    """

    offset: int
    key: Any
    value: Any
    timestamp: int
    headers: Headers | None = None


class Applied(NamedTuple):
    """A record for the sink, with its place in the batch that was read. `hand`: its
    partition, its batch, its index in the batch.
    """

    hand: tuple[TopicPartition, Columns, int]
    key: Any
    value: Any


@dataclass(frozen=True, slots=True)
class SinkPartition:
    """A partition of the topic that a sink reads. `sink`: the name of the sink.
    `number`: the partition's. `topic_id`: Kafka's id of the topic, which changes if the
    topic is recreated.
    """

    application: str
    sink: str
    number: int
    topic_id: str

    def __str__(self) -> str:
        return f'partition {self.number} of sink "{self.sink}" of "{self.application}"'


OnRefused: TypeAlias = Callable[[SinkRecord, Exception], None]
"""The function that is called with each record that cannot be applied. If it returns,
the record is skipped. If it raises, nothing of the call counts.
"""


class SinkSession(Protocol):
    """One owner's time with a partition of the sink. Use it on one thread at a time.

    Raises (all methods):
        SinkUnavailableError: the sink is unavailable, and the outcome of the last call
            is unknown.
        FencedError: a later session has taken over the partition.
    """

    @property
    def position(self) -> int:
        """The offset below which every record is applied or was refused."""
        ...

    @property
    def refused(self) -> frozenset[int]:
        """The offsets of refused records that the session still stores: see `settled`
        of `apply`.
        """
        ...

    def apply(
        self,
        records: Sequence[SinkRecord],
        position: int,
        on_refused: OnRefused,
        settled: int,
    ) -> None:
        """Make the changes by these records, and the position after them, durable
        together.

        Records that the sink refuses for their content are passed to `on_refused`
        before anything is durable. Their offsets are stored in `refused`, together with
        the position. `settled`: stored refused offsets below it are deleted.
        """

    def close(self) -> None:
        """Release all resources. Idempotent."""


class ExternalSink(Protocol):
    """The definition of an external sink. It can be pickled; its sessions hold the
    connections.
    """

    def open(self, partition: SinkPartition, begin: int | None) -> SinkSession:
        """Take over a partition and return its session. All earlier sessions of the
        partition end.

        `begin`: the position of a partition that is new to the sink. None: the sink
        must already know the partition.

        Raises:
            SinkUnavailableError: the sink is unavailable.
            ConfigError: the sink cannot take the records, does not know the partition,
                or knows it from another topic.
        """
        ...
