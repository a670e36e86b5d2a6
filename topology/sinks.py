"""External sinks, to which the records of a stream are applied, each exactly once: the
contract of `to_sink`.

The records come from a repartition topic, which the application writes under its own
guarantee. So every applied record is in the log, with its offset, and does not change:
each session of a partition continues where the one before it ended. The sink keeps that
position, in the same transaction as the changes by the records.

    open    takes over a partition: the term goes up, and no earlier session can apply anything any more
    apply   records and position together, or nothing

Invariant: the position of a partition is at or above the offset that the group has
committed: the sink first, then the group. Records in between are applied, and left out
when they are read again. Turned down: applying the outputs of a task directly. After a
crash they are made again, perhaps differently (a clock, a random number, a record cache
that is flushed at another moment), so a position in them would mean nothing; and new
key ranges would need a position for each hash.
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
    """A record to be applied. `offset`: its own, in the topic that the sink reads."""

    offset: int
    key: Any
    value: Any
    timestamp: int
    headers: Headers | None = None


class Applied(NamedTuple):
    """A record for the sink: its partition, its batch, its index in the batch, its key
    and value.
    """

    hand: tuple[TopicPartition, Columns, int]
    key: Any
    value: Any


@dataclass(frozen=True, slots=True)
class SinkPartition:
    """A partition of the topic that a sink reads. `topic_id` differs after the topic
    was recreated.
    """

    application: str
    sink: str
    number: int
    topic_id: str

    def __str__(self) -> str:
        return f'partition {self.number} of sink "{self.sink}" of "{self.application}"'


OnRefused: TypeAlias = Callable[[SinkRecord, Exception], None]
"""Called with a record that cannot be applied. If it returns, the record is left out;
if it raises, nothing counts.
"""


class SinkSession(Protocol):
    """One owner's time with a partition. One thread at a time.

    Raises (all methods):
        SinkUnavailableError: the sink is unavailable, and the outcome of the last call
        unknown.
        FencedError: a later session has the partition.
    """

    @property
    def position(self) -> int:
        """The offset below which everything is applied, or was refused."""
        ...

    @property
    def refused(self) -> frozenset[int]:
        """The offsets of records that were refused and not yet forgotten."""
        ...

    def apply(
        self,
        records: Sequence[SinkRecord],
        position: int,
        on_refused: OnRefused,
        settled: int,
    ) -> None:
        """Make the changes by these records, and the position behind them, durable
        together.

        Records that the sink refuses for their content go to `on_refused` before
        anything is durable; their offsets are kept in `refused`, together with the
        position, until an `apply` whose `settled` lies above them.
        """

    def close(self) -> None:
        """Release everything. Idempotent."""


class ExternalSink(Protocol):
    """An external sink. It can be pickled; its sessions hold the connections."""

    def open(self, partition: SinkPartition, begin: int | None) -> SinkSession:
        """Take over a partition, after all earlier sessions of it.

        `begin`: the position of a partition that is new to the sink; None: it must know
        it.

        Raises:
            SinkUnavailableError: the sink is unavailable.
            ConfigError: it cannot take the records, or does not know the partition, or
            knows it from another topic.
        """
        ...
