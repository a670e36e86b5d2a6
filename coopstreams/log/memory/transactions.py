"""Transactions of a `MemoryLog`, as Kafka keeps them: in the coordinator, and in each participant that a transaction
left something in.

The coordinator knows a transactional id, the epoch of the writer that may use it, and the participants that its open
transaction has been to. A place (a partition, the offsets of a group) knows only which producers have something open in
it, until a *marker* says how that ended. The coordinator tells every participant at once here; a model of a cluster may
tell them late (`MemoryState.tell`).

Invariant: a participant does not tell two transactions of one producer apart. A marker ends whatever that producer has
open there: so one that is never written makes the next transaction decide over the last (KAFKA-20734).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from coopstreams.topology.columns import TopicPartition

Offsets: TypeAlias = Mapping[TopicPartition, tuple[int, str]]
"""Offset and metadata of partitions."""


class Participant(Protocol):
    """Where a transaction leaves something behind that does not count yet."""

    @property
    def where(self) -> TopicPartition | str:
        """The partition, or the group."""
        ...

    def is_open(self, producer: Producer) -> bool:
        """Whether the producer has something here that is not decided."""
        ...

    def mark(self, producer: Producer, *, commit: bool) -> None:
        """Write the marker: what the producer has open here counts, or never will."""


@dataclass(slots=True, eq=False)
class Producer:
    """What the transaction coordinator knows of a transactional id."""

    id: str
    epoch: int = 0
    """That of the writer that may use the id: the last one that took it over."""
    open: bool = False
    """Whether it has a transaction open."""
    committed: bool = False
    """Whether the last one that ended was committed. Not after the id was taken over: then nobody knows, and it counts
    as aborted.
    """
    participants: dict[Participant, None] = field(default_factory=dict)
    """What the open transaction has been to, in that order."""


class ProducerSession(NamedTuple):
    """A writer's right to a transactional id: void when another one has taken it over."""

    producer: Producer
    epoch: int

    @property
    def is_fenced(self) -> bool:
        """Whether somebody took over."""
        return self.epoch != self.producer.epoch


class GroupOffsets:
    """The offsets of a group: what is committed, and what open transactions have sent.

    Invariant: what was sent later speaks, whenever its transaction ends (as in Kafka's coordinator).
    """

    def __init__(self, group: str) -> None:
        self.where = group
        self._committed: dict[TopicPartition, tuple[int, tuple[int, str]]] = {}
        self._pending: dict[Producer, dict[TopicPartition, tuple[int, tuple[int, str]]]] = {}
        self._sent = 0

    @property
    def committed(self) -> dict[TopicPartition, tuple[int, str]]:
        """Offset and metadata of each partition."""
        return {partition: told for partition, (_, told) in self._committed.items()}

    @property
    def unstable(self) -> frozenset[TopicPartition]:
        """The partitions whose offset an open transaction may still change."""
        return frozenset(partition for sent in self._pending.values() for partition in sent)

    def send(self, offsets: Offsets, producer: Producer | None) -> None:
        """Take offsets: they count now, or with the producer's transaction."""
        self._sent += 1
        target = self._committed if producer is None else self._pending.setdefault(producer, {})
        target.update({partition: (self._sent, told) for partition, told in offsets.items()})

    def mark(self, producer: Producer, *, commit: bool) -> None:
        """Have what the producer sent count, or forget it."""
        for partition, (sent, told) in self._pending.pop(producer, {}).items():
            if commit and sent > self._committed.get(partition, (0, None))[0]:
                self._committed[partition] = sent, told

    def is_open(self, producer: Producer) -> bool:
        """Whether the producer has sent something that is not decided."""
        return producer in self._pending

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Lose the committed offsets of these partitions: they have expired, or their topic was deleted."""
        for partition in list(partitions):
            self._committed.pop(partition, None)
